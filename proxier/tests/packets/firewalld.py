"""Starts firewalld's own code, without D-Bus, with its zone "drop" for all interfaces.

Debian's package python3-firewall has the code; its package firewalld, which would start at the next boot
of the machine, has the zones. So the zones and the policy are written here as in that package.
The only argument is a directory for the configuration.
"""

import os
import sys

from firewall import config

DIRECTORY = sys.argv[1]
ETC, LIB = "/etc/firewalld", "/usr/lib/firewalld"
NEIGHBOUR = ["neighbour-advertisement", "neighbour-solicitation"]


def write(path, text):
    path = DIRECTORY + path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


for name in dir(config):
    value = getattr(config, name)
    if isinstance(value, str) and value.startswith((ETC, LIB)):
        setattr(config, name, DIRECTORY + value)

write(ETC + "/firewalld.conf", "DefaultZone=drop\nFirewallBackend=nftables\n")
for zone, target in [("block", "%%REJECT%%"), ("drop", "DROP"), ("trusted", "ACCEPT")]:
    text = f'<zone target="{target}"><short>{zone}</short></zone>'
    write(f"{LIB}/zones/{zone}.xml", text)
for name in NEIGHBOUR:
    text = f'<icmptype><short>{name}</short><destination ipv6="yes"/></icmptype>'
    write(f"{LIB}/icmptypes/{name}.xml", text)
rules = "".join(
    f'<rule family="ipv6"><icmp-type name="{name}"/><accept/></rule>' for name in NEIGHBOUR
)
write(
    f"{LIB}/policies/allow-host-ipv6.xml",
    '<policy target="CONTINUE" priority="-15000"><short>Allow host IPv6</short>'
    f'<ingress-zone name="ANY"/><egress-zone name="HOST"/>{rules}</policy>',
)

from firewall.core.fw import Firewall  # noqa: E402, after the paths are set

Firewall().start()
