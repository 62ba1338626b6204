//! Frontends and the rulesets of these tests.

use std::net::{IpAddr, SocketAddr};

use nftables::Table;
use proxier::testing::dataplane::ipvs::{Admission, MarkedClients};
use proxier::testing::filter::{FilterConfig, LocalMode, MarkBit, Ruleset};
use proxier::testing::frontend::Frontend;
use proxier::testing::model::{Family, Networks, Node, Protocol, TrafficPolicy};
use proxier::testing::plan::{Availability, Scope};

/// Reads a frontend: `tcp 10.96.0.1:80`.
pub(crate) fn frontend(text: &str) -> Frontend {
    let (protocol, address) = text.split_once(' ').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    Frontend {
        protocol: match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => Protocol::Sctp,
        },
        address: address.ip(),
        port: address.port(),
    }
}

/// Returns the admission of an address with usable endpoints.
pub(crate) fn admission(scope: Scope, policy: TrafficPolicy) -> Admission {
    Admission {
        scope,
        policy,
        endpoints: Availability::Usable,
        source_ranges: None,
        inside: None,
    }
}

/// Returns source ranges.
pub(crate) fn ranges(family: Family, list: &[&str]) -> Option<Networks> {
    let networks = list.iter().map(|text| text.parse().unwrap());
    Some(Networks::new(family, networks))
}

/// Returns the way of clients inside by this mark, with these endpoints on the node.
pub(crate) fn inside(mark: u32, here: &[&str]) -> MarkedClients {
    MarkedClients {
        mark,
        here: here
            .iter()
            .map(|address| address.parse().unwrap())
            .collect(),
    }
}

/// Returns our table with every kind of frontend, address and port.
pub(crate) fn everything(local_mode: LocalMode) -> Table {
    use TrafficPolicy::{Cluster, Local};
    let config = FilterConfig {
        local_mode,
        answer_ping: true,
        input_accept_bit: Some(MarkBit::INPUT_ACCEPT),
        hides_arp: true,
        ..FilterConfig::default()
    };
    let cluster_ip = admission(Scope::Internal, Cluster);
    let external = admission(Scope::External, Cluster);
    let local = Admission {
        endpoints: Availability::RemoteOnly,
        inside: Some(inside(0x8000_0001, &["10.244.1.2", "fd00:244:1::2"])),
        ..admission(Scope::External, Local)
    };
    let frontends = [
        (frontend("tcp 10.96.0.1:443"), cluster_ip.clone()),
        (frontend("udp 10.96.0.10:53"), cluster_ip.clone()),
        (frontend("sctp [fd00:10:96::1]:7777"), cluster_ip.clone()),
        (
            frontend("tcp 10.96.0.9:80"),
            Admission {
                endpoints: Availability::None,
                ..cluster_ip
            },
        ),
        (
            frontend("tcp 172.18.0.2:30080"),
            admission(Scope::NodePort, Cluster),
        ),
        (
            frontend("tcp 198.51.100.12:80"),
            Admission {
                source_ranges: ranges(
                    Family::V4,
                    &["203.0.113.0/24", "172.18.0.0/15", "0.0.0.0/31"],
                ),
                ..external.clone()
            },
        ),
        (
            frontend("tcp [2001:db8::12]:80"),
            Admission {
                source_ranges: ranges(Family::V6, &["2001:db8:113::/48", "ffff::/17"]),
                ..external.clone()
            },
        ),
        (
            frontend("tcp 198.51.100.13:80"),
            Admission {
                source_ranges: ranges(Family::V4, &["10.0.0.0/9"]),
                endpoints: Availability::None,
                ..external
            },
        ),
        (frontend("tcp 198.51.100.19:80"), local.clone()),
        (
            frontend("udp [fd00:172:18::2]:30054"),
            Admission {
                scope: Scope::NodePort,
                ..local
            },
        ),
    ];
    let addresses = |list: &[&str]| {
        let parsed = list.iter().map(|text| text.parse().unwrap());
        parsed.collect::<Vec<IpAddr>>()
    };
    let mut rules = Ruleset::new(&config, Some(&node()));
    for (frontend, admission) in frontends {
        rules.set_frontend(frontend, Some(admission));
    }
    for address in addresses(&["10.96.0.1", "198.51.100.12", "fd00:10:96::1"]) {
        rules.add_service_address(address);
    }
    for address in addresses(&["10.244.1.2", "fd00:244:1::2"]) {
        rules.add_local_endpoint(address);
    }
    rules.add_health_check_port(31_999);
    let links = [("eth0", "172.18.0.2"), ("cni0", "10.244.1.1")];
    let links = links.map(|(link, address)| (link.into(), address.parse().unwrap()));
    rules.set_links(&links.into());
    rules.table().clone()
}

/// Returns our node.
pub(crate) fn node() -> Node {
    Node {
        name: "node-a".into(),
        addresses: vec!["172.18.0.2".parse().unwrap()],
        zone: None,
        region: None,
        pod_cidrs: Vec::new(),
        is_leaving: false,
    }
}

/// Returns every way to tell clients inside the cluster from clients outside.
pub(crate) fn modes() -> [LocalMode; 4] {
    let networks = ["10.244.0.0/16", "fd00:244::/31"];
    [
        LocalMode::ClusterCidr(networks.map(|text| text.parse().unwrap()).into()),
        LocalMode::ClusterCidr(Vec::new()),
        LocalMode::BridgeInterface("cni0".into()),
        LocalMode::InterfaceNamePrefix("veth".into()),
    ]
}
