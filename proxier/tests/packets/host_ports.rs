//! A Pod has host ports that are also ports of Services.
//!
//! The rules for host ports match every local destination, and with IPVS service addresses are local. With our
//! shield, connections to frontends reach the Service, and connections to the node's own addresses reach
//! the Pod. The dataplane nftables translates connections to frontends before these rules.

use std::path::Path;

use lab::net::Host;

use proxier::testing::plan::ServiceAddresses;

use super::plugin::{Iptables, Plugin};
use super::scene::{Scene, Subject, nft, with_each_dataplane};
use super::services::Services;
use crate::{at, check};

/// Rules that send connections at port 80 (TCP) and 53 (UDP) of local addresses to pod3.
enum HostPorts {
    /// The plugin portmap itself, with one of the two iptables.
    Plugin(Plugin),
    /// The rules that portmap writes with its nftables backend (plugins 3d27709f). Debian's version
    /// 1.1.1 lacks that backend.
    Nftables,
    /// The chain DOCKER as Docker writes it with iptables.
    Docker,
}

/// The rules of portmap's nftables backend for one family: `portmap_nftables.go`, `forwardPorts`. Only this
/// backend has a port of SCTP here, because the kernels lack iptables' match for SCTP.
fn nftables(family: &str, pod: &str) -> String {
    let target = match family {
        "ip" => pod.to_owned(),
        _ => format!("[{pod}]"),
    };
    format!(
        "table {family} cni_hostport {{
            chain hostports {{
                tcp dport 80 dnat to {target}:8080
                udp dport 53 dnat to {target}:5353
                sctp dport 53 dnat to {target}:5353
            }}
            chain prerouting {{
                type nat hook prerouting priority dstnat
                fib daddr type local jump hostports
            }}
            chain output {{
                type nat hook output priority -100
                fib daddr type local jump hostports
            }}
            chain masquerading {{
                type nat hook postrouting priority srcnat
                {family} saddr {pod} {family} daddr {pod} masquerade
            }}
        }}\n"
    )
}

/// Returns the rules of portmap's nftables backend for pod3.
pub(super) fn nftables_rules() -> String {
    nftables("ip", "10.244.1.4") + &nftables("ip6", "fd00:244:1::4")
}

/// Docker's rules for published ports, for each program of iptables.
const DOCKER: [(&str, &str, &str); 2] = [
    ("/usr/sbin/iptables-nft", "127.0.0.0/8", "10.244.1.4"),
    ("/usr/sbin/ip6tables-nft", "::1/128", "[fd00:244:1::4]"),
];

fn docker(node: &Host) {
    for (program, loopback, pod) in DOCKER {
        for words in [
            "-N DOCKER".to_owned(),
            "-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER".to_owned(),
            format!("-A OUTPUT ! -d {loopback} -m addrtype --dst-type LOCAL -j DOCKER"),
            format!("-A DOCKER ! -i docker0 -p tcp --dport 80 -j DNAT --to-destination {pod}:8080"),
            format!("-A DOCKER ! -i docker0 -p udp --dport 53 -j DNAT --to-destination {pod}:5353"),
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            let command = [&[program, "-t", "nat"][..], &words].concat();
            node.exec(&command);
        }
    }
}

impl HostPorts {
    fn plugin(iptables: Iptables) -> Self {
        Self::Plugin(Plugin::new(iptables, ""))
    }

    fn install(&self, node: &Host) {
        match self {
            Self::Plugin(plugin) => plugin.add(node).unwrap(),
            Self::Nftables => nft(node, &nftables_rules()),
            Self::Docker => docker(node),
        }
    }
}

/// Counts packets of connections whose entry has the status DNAT: `shielded` those to service addresses,
/// `forwarded` those to host ports.
const STATUS: &str = "
    table inet status {
        chain count {
            ct original ip daddr { 10.96.0.0/16, 198.51.100.0/24 } counter comment shielded
            ct original ip6 daddr { fd00:10:96::/64, 2001:db8:51::/64 } counter comment shielded
            ct original ip daddr 172.18.0.2 counter comment forwarded
            ct original ip6 daddr fd00:172:18::2 counter comment forwarded
        }
        chain input { type filter hook input priority 50; ct status dnat jump count; }
        chain forward { type filter hook forward priority 50; ct status dnat jump count; }
        chain output { type filter hook output priority 50; ct status dnat jump count; }
    }";

/// Returns whether a rule with this comment has counted packets of IPv4, and of IPv6.
fn has_counted(node: &Host, comment: &str) -> [bool; 2] {
    let list = ["/usr/sbin/nft", "list", "chain", "inet", "status", "count"];
    let listed = node.exec(&list);
    ["ip daddr", "ip6 daddr"].map(|family| {
        let mut rules = listed.lines().filter(|line| line.contains(comment));
        let rule = rules.find(|line| line.contains(family)).unwrap();
        !rule.contains("packets 0 ")
    })
}

/// Asserts that each client reaches Services at frontends, and pod3 at the node's own addresses.
fn services_and_host_ports_are_reached<D: Subject>(scene: &Scene<D>) {
    let both = ["pod1/client", "podB1/client"];
    let masqueraded = ["pod1/node", "podB1/node"];
    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    check(scene, "pod2", &cluster_ip, &both);
    for external in [
        cluster_ip,
        at("198.51.100.1", "2001:db8:51::1", 80, 53),
        at("198.51.100.2", "2001:db8:51::2", 80, 53),
    ] {
        for client in ["ext", "node"] {
            check(scene, client, &external, &masqueraded);
        }
    }
    let local = at("198.51.100.4", "2001:db8:51::4", 80, 53);
    check(scene, "ext", &local, &["pod2/client"]);
    check(scene, "pod1", &local, &["pod2/client", "podB1/client"]);
    let ranged = at("198.51.100.5", "2001:db8:51::5", 80, 53);
    check(scene, "ext", &ranged, &["pod1/node"]);
    check(scene, "ext2", &ranged[..1], &["timeout"]);
    let empty = at("198.51.100.6", "2001:db8:51::6", 80, 53);
    check(scene, "ext", &empty, &["refused"]);

    let host_ports = at("172.18.0.2", "fd00:172:18::2", 80, 53);
    for client in ["ext", "peer", "pod2"] {
        check(scene, client, &host_ports, &["pod3/client"]);
    }
    check(scene, "node", &host_ports, &["pod3/node"]);
    let others = at("203.0.113.1", "2001:db8:113::1", 80, 53);
    check(scene, "ext", &others, &["pod3/client"]);
}

/// Asserts the same with the rules for host ports after ours, and with them before ours.
fn host_ports_take_no_connection_to_a_frontend<D: Subject>(host_ports: &HostPorts) {
    let mut scene = Scene::<D>::serving(Services::dual());
    scene.nft(STATUS);
    host_ports.install(scene.client("node"));
    services_and_host_ports_are_reached(&scene);
    let counted = |scene: &Scene<D>| {
        let node = scene.client("node");
        ["forwarded", "shielded"].map(|comment| has_counted(node, comment))
    };
    assert_eq!(counted(&scene), [[true; 2], [D::TRANSLATES; 2]]);

    // Without our table, the rules take all connections to local addresses.
    scene.delete_table();
    let are_local = D::FORM != ServiceAddresses::None;
    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    for client in ["ext", "pod2", "node"] {
        for frontend in cluster_ip.iter().filter(|_| are_local) {
            let answers = scene.ask(client, frontend, 1);
            assert!(
                answers.iter().all(|it| it.starts_with("pod3/")),
                "{client} to {frontend}: {answers:?}"
            );
        }
    }
    if are_local {
        assert_eq!(counted(&scene)[1], [true; 2]);
    }
    scene.nft("delete table inet status");
    scene.nft(STATUS);

    // Now our rules come last. Earlier flows must not decide about new connections.
    scene.restart();
    scene.program(Services::dual());
    services_and_host_ports_are_reached(&scene);
    assert_eq!(counted(&scene)[1], [D::TRANSLATES; 2]);
}

with_each_dataplane!(
    portmap_with_iptables_nft_takes_no_connection_to_a_frontend,
    portmap_with_iptables_legacy_takes_no_connection_to_a_frontend,
    portmap_with_nftables_takes_no_connection_to_a_frontend,
    docker_takes_no_connection_to_a_frontend,
    host_ports_of_sctp_take_no_connection_to_a_frontend,
    a_host_port_that_is_a_node_port_is_a_conflict,
);

fn portmap_with_iptables_nft_takes_no_connection_to_a_frontend<D: Subject>() {
    if has_iptables() {
        let plugin = HostPorts::plugin(Iptables::Nft);
        host_ports_take_no_connection_to_a_frontend::<D>(&plugin);
    }
}

fn portmap_with_iptables_legacy_takes_no_connection_to_a_frontend<D: Subject>() {
    if has_iptables() {
        let plugin = HostPorts::plugin(Iptables::Legacy);
        host_ports_take_no_connection_to_a_frontend::<D>(&plugin);
    }
}

fn portmap_with_nftables_takes_no_connection_to_a_frontend<D: Subject>() {
    host_ports_take_no_connection_to_a_frontend::<D>(&HostPorts::Nftables);
}

fn docker_takes_no_connection_to_a_frontend<D: Subject>() {
    if has_iptables() {
        host_ports_take_no_connection_to_a_frontend::<D>(&HostPorts::Docker);
    }
}

fn host_ports_of_sctp_take_no_connection_to_a_frontend<D: Subject>() {
    let scene = Scene::<D>::serving(Services::dual().instead_of_udp("SCTP"));
    for pod in ["pod1", "pod2", "pod3", "podB1"] {
        scene.client(pod).serve_sctp(5353);
    }
    HostPorts::Nftables.install(scene.client("node"));
    let sctp = |v4: &str, v6: &str| [format!("sctp {v4}:53"), format!("sctp [{v6}]:53")];
    let cluster_ip = sctp("10.96.1.1", "fd00:10:96::1");
    check(
        &scene,
        "pod2",
        &cluster_ip,
        &["pod1/client", "podB1/client"],
    );
    check(&scene, "ext", &cluster_ip, &["pod1/node", "podB1/node"]);
    check(&scene, "node", &cluster_ip, &["pod1/node", "podB1/node"]);
    let host_ports = sctp("172.18.0.2", "fd00:172:18::2");
    check(&scene, "ext", &host_ports, &["pod3/client"]);
}

/// The administrator must avoid it. The shield leaves node ports alone, as kube-proxy's; a translation comes first.
fn a_host_port_that_is_a_node_port_is_a_conflict<D: Subject>() {
    let scene = Scene::<D>::serving(Services::dual());
    scene.nft(&nftables_rules().replace("dport 80 ", "dport 30080 "));
    let node_port = ["tcp 172.18.0.2:30080", "tcp [fd00:172:18::2]:30080"].map(String::from);
    let winner: &[&str] = match D::TRANSLATES {
        true => &["pod1/node", "podB1/node"],
        false => &["pod3/client"],
    };
    check(&scene, "ext", &node_port, winner);
}

/// Returns whether the kernel has iptables. Kernels of `lab kernel --no-iptables` lack it, and run only the
/// tests with rules of nft.
pub(super) fn has_iptables() -> bool {
    Path::new("/proc/net/ip_tables_names").exists()
}
