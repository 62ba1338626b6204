#!/bin/sh
# Records the netlink messages of ipvsadm and the kernel in tests/data/*.hex, for tests/wire.rs.
#
#   cargo lab run -- sh ipvs-netlink/tests/record.sh
#
# Run it with LAB_KERNEL of 6.1, then of 7.2. Each kernel writes its own lists-VERSION.hex; the
# second run overwrites the other files.
#
# In a file each command is followed by its generic-netlink messages without their netlink headers:
# `>` to the kernel, `<` from it. Needs ipvsadm and tcpdump, but no privileges outside the lab.
set -eu

data=$(dirname "$0")/data
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ip link add nlmon0 type nlmon
ip link set nlmon0 up
# The interface for the synchronisation daemons.
ip link set dummy0 up
ip address add 198.51.100.1/24 dev dummy0

# Prints the generic-netlink messages of the pcap file on standard input. The file has a header of
# 24 bytes, then for each datagram a 16-byte packet header with the length, a 16-byte link-layer
# header with the netlink protocol (16 is generic netlink), and the datagram.
messages() {
    od -An -v -tx1 | tr -d ' \n' | awk -v with_info="$1" '
        function byte(at) {
            return 16 * digit(2 * at + 1) + digit(2 * at + 2)
        }
        function digit(at) {
            return index("0123456789abcdef", substr(all, at, 1)) - 1
        }
        function number(at, width,    value) {
            for (value = 0; width > 0; width--) value = 256 * value + byte(at + width - 1)
            return value
        }
        function show(sign, at, end,    line) {
            for (line = sign; at < end; at += 4) {
                if (length(line) >= 73) { print line; line = " " }
                line = line " " substr(all, 2 * at + 1, 8)
            }
            print line
        }
        {
            all = $0
            for (at = 24; at < length(all) / 2; at += 16 + size) {
                size = number(at + 8, 4)
                if (byte(at + 31) != 16) continue
                for (m = at + 32; m < at + 16 + size; m += int((long + 3) / 4) * 4) {
                    long = number(m, 4)
                    # Types up to 16 are acknowledgements, ends of dumps and family look-ups.
                    if (number(m + 4, 2) <= 16) continue
                    # Every ipvsadm sends IPVS_CMD_GET_INFO first.
                    if (!with_info && (byte(m + 16) == 14 || byte(m + 16) == 15)) continue
                    # Only requests have NLM_F_REQUEST (1).
                    show(byte(m + 6) % 2 ? ">" : "<", m + 16, m + long)
                }
            }
        }'
}

# Begins the file for the following commands. $2 is 1 to include the messages of GET_INFO.
file() {
    current=$data/$1.hex
    with_info=$2
    version=$(ipvsadm --version | sed 's/ (.*//')
    echo "# Recorded by record.sh: $version, Linux $(uname -r)." >"$current"
}

# Runs ipvsadm and appends the command and its messages to the file.
record() {
    : >"$work/log"
    # Each datagram occupies a whole snapshot length (-s) in the buffer (-B, in KiB).
    tcpdump -i nlmon0 -s 65536 -B 32768 --immediate-mode -U -Z root -w "$work/pcap" \
        2>>"$work/log" &
    until grep -q 'listening on' "$work/log"; do sleep 0.05; done
    ipvsadm "$@" >/dev/null || { echo "failed: ipvsadm $*" >&2; exit 1; }
    sleep 0.3
    kill $!
    wait $! || true
    grep -q '^0 packets dropped by kernel' "$work/log"
    { echo && echo "# ipvsadm $*" && messages "$with_info" <"$work/pcap"; } >>"$current"
}

file services 0
record -A -t 192.0.2.1:80 -s rr
record -A -u 192.0.2.1:53 -s wlc -o
record -A --sctp-service 192.0.2.2:2905 -s lc
record -A -t [2001:db8::1]:443 -s sh -b sh-fallback,sh-port
record -A -t 192.0.2.3:0 -s wrr -p 300 -M 255.255.255.0
record -A -t [2001:db8::2]:80 -s mh -p 60 -M 48 -b mh-port
record -A -f 7 -s wrr
record -A -f 7 -6 -s wrr -p 600 -M 64
record -E -t 192.0.2.1:80 -s wlc -p 120
record -E -f 7 -s rr
record -D -u 192.0.2.1:53
record -D -f 7 -6

file destinations 0
record -a -t 192.0.2.1:80 -r 10.0.0.1:8080 -m -w 5 -x 100 -y 50
record -a -t 192.0.2.1:80 -r 10.0.0.2 -g -w 0
record -a -t 192.0.2.1:80 -r 10.0.0.3 -i -w 1
record -a -t 192.0.2.1:80 -r 10.0.0.4 -i --tun-type gue --tun-port 6080 --tun-remcsum
record -a -t 192.0.2.1:80 -r 10.0.0.5 -i --tun-type gue --tun-port 6080 --tun-nocsum
record -a -t 192.0.2.1:80 -r 10.0.0.6 -i --tun-type gre --tun-csum
record -a -t [2001:db8::1]:443 -r [fd00::1]:8443 -m -w 3
record -a -t [2001:db8::1]:443 -r 10.0.0.7:443 -i
record -a -f 7 -r 10.0.0.8:80 -g -w 2
record -e -t 192.0.2.1:80 -r 10.0.0.1:8080 -m -w 9
record -d -t 192.0.2.1:80 -r 10.0.0.2
record -d -t [2001:db8::1]:443 -r [fd00::1]:8443

# The table after the commands above. Only the lab's 6.1 kernel pads 64-bit counters to 8 bytes.
file "lists-$(uname -r | cut -d. -f1,2)" 0
record -L -n

file settings 1
record -Z -t 192.0.2.1:80
record -Z
record -C
record --set 100 20 30
record -L --timeout
# After -C: the kernel starts no daemon while a destination's family differs from its service's.
record --start-daemon master --mcast-interface dummy0 --syncid 3
record --start-daemon backup --mcast-interface dummy0 --syncid 4 --sync-maxlen 1400 \
    --mcast-group 224.0.0.82 --mcast-port 9000 --mcast-ttl 2
record -L --daemon
record --stop-daemon backup
record --start-daemon backup --mcast-interface dummy0 --mcast-group ff02::81
record -L --daemon
record --stop-daemon master
