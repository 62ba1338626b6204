//! Frontends and the rules of these tests.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipvs_netlink as ipvs;
use nftables::{Command, Table, hash};
use proxier::testing::dataplane::ipvs::{InsideMarks, MarkChanges, Wanted};
use proxier::testing::filter::{Content, Filter, FilterConfig, LocalMode, MarkBit};
use proxier::testing::frontend::Frontend;
use proxier::testing::model::{Family, Networks, Node, ObjectName, Protocol, TrafficPolicy};
use proxier::testing::observed::{Observed, ObservedServer};
use proxier::testing::plan::{
    Access, Availability, Changed, Desired, FrontendPlan, HealthCheck, Machine, Scope,
    SelectedEndpoint, example,
};

/// A filter, and a plan that consists of what its rules depend on.
pub(crate) struct Rules {
    filter: Filter,
    desired: Desired,
    marks: InsideMarks,
    node: Option<Node>,
}

/// What the rules of a frontend depend on.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    pub(crate) scope: Scope,
    pub(crate) policy: TrafficPolicy,
    pub(crate) endpoints: Availability,
    pub(crate) source_ranges: Option<Networks>,
    /// The firewall mark of clients inside the cluster, and the addresses of endpoints on this node.
    pub(crate) inside: Option<(u32, Vec<IpAddr>)>,
}

impl Rules {
    /// Returns the rules of an empty plan, which the kernel has.
    pub(crate) fn new(config: FilterConfig, node: Option<Node>) -> Self {
        let mut rules = Self {
            filter: Filter::new(config),
            desired: Desired::default(),
            marks: InsideMarks::default(),
            node,
        };
        rules.change(|_| {});
        let (wanted, filter) = rules.parts();
        let write = filter.pending(wanted).unwrap();
        filter.written(write.fingerprint);
        rules
    }

    /// Returns the plan and the filter.
    pub(crate) fn parts(&mut self) -> (Wanted<'_>, &mut Filter) {
        (Wanted::new(&self.desired, &self.marks), &mut self.filter)
    }

    /// Changes the plan.
    pub(crate) fn change(&mut self, edit: impl FnOnce(&mut Desired)) {
        self.change_with(MarkChanges::default(), edit);
    }

    fn change_with(&mut self, marks: MarkChanges, edit: impl FnOnce(&mut Desired)) {
        let before = self.desired.clone();
        edit(&mut self.desired);
        let changed = Changed::between(before, &mut self.desired);
        let node = self.node.clone();
        let (wanted, filter) = self.parts();
        filter.follow(wanted, &changed, &marks, node.as_ref());
    }

    /// Sets the admission of a frontend; `None` removes it.
    pub(crate) fn set_frontend(&mut self, frontend: Frontend, admission: Option<Admission>) {
        let inside = admission.as_ref().and_then(|it| it.inside.as_ref());
        let marks = self.marks.assign(frontend, inside.map(|(mark, _)| *mark));
        self.change_with(marks, |desired| match admission {
            Some(admission) => drop(desired.frontends.insert(frontend, plan(admission))),
            None => drop(desired.frontends.remove(&frontend)),
        });
    }

    /// Sets whether `address` is a service address.
    pub(crate) fn set_address(&mut self, address: IpAddr, is_local: bool) {
        self.change(|desired| match is_local {
            true => drop(desired.addresses.insert(address, None)),
            false => drop(desired.addresses.remove(&address)),
        });
    }

    /// Adds an endpoint on this node.
    pub(crate) fn add_local_endpoint(&mut self, address: IpAddr) {
        self.change(|desired| _ = desired.local_endpoints.insert(address));
    }

    /// Adds a health-check node port.
    pub(crate) fn add_health_check(&mut self, port: u16) {
        let check = HealthCheck {
            service: ObjectName::new("default", "web"),
            local_endpoints: BTreeMap::new(),
        };
        self.change(|desired| drop(desired.health_checks.insert(port, check)));
    }

    /// Releases the guards that a kernel with all of the plan, and nothing else, does not need. Returns whether
    /// there were any.
    pub(crate) fn release(&mut self) -> bool {
        let mut observed = Observed::default();
        for frontend in self.desired.frontends.keys() {
            let key = ipvs::ServiceKey::from(*frontend);
            let destination = ipvs::DestinationKey {
                address: frontend.address,
                port: 8080,
            };
            let mut found = server(key);
            found.destinations = [ipvs::Destination::new(destination, 1)]
                .into_iter()
                .collect();
            observed.virtual_servers.insert(key, found);
        }
        self.release_on(&observed)
    }

    /// Releases the guards that a kernel in this state does not need. Returns whether there were any.
    pub(crate) fn release_on(&mut self, observed: &Observed) -> bool {
        let (wanted, filter) = self.parts();
        filter.release(wanted, observed, &Machine::default())
    }

    /// Returns the commands for the changes since the last call. They count as written then.
    #[track_caller]
    pub(crate) fn take_commands(&mut self) -> Vec<Command> {
        let (wanted, filter) = self.parts();
        let Some(write) = filter.pending(wanted) else {
            return Vec::new();
        };
        assert_eq!(write.fingerprint, hash::table(&filter.table(wanted)));
        filter.written(write.fingerprint);
        match write.content {
            Content::Commands(commands) => commands,
            Content::Table(_) => panic!("the kernel's rules count as unknown"),
        }
    }

    /// Returns the table.
    pub(crate) fn table(&mut self) -> Table {
        let (wanted, filter) = self.parts();
        filter.table(wanted)
    }
}

/// Returns a virtual server without destinations.
pub(crate) fn server(key: ipvs::ServiceKey) -> ObservedServer {
    ObservedServer::empty(&ipvs::Service::new(key, "rr".parse().unwrap()))
}

fn plan(admission: Admission) -> FrontendPlan {
    let (_, here) = admission.inside.unwrap_or_default();
    let endpoint = |address| SelectedEndpoint {
        address,
        port: 8080,
        weight: 1,
        most_connections: 0,
    };
    let mut plan = example::cluster_ip(&[]);
    let mut profile = (*plan.profile).clone();
    profile.access = Access {
        scope: admission.scope,
        policy: admission.policy,
        endpoints: admission.endpoints,
        source_ranges: admission.source_ranges,
    };
    plan.profile = Arc::new(profile);
    plan.endpoints = here.into_iter().map(endpoint).collect();
    plan
}

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

/// Returns this mark with these endpoints on the node.
pub(crate) fn inside(mark: u32, here: &[&str]) -> (u32, Vec<IpAddr>) {
    let here = here.iter().map(|address| address.parse().unwrap());
    (mark, here.collect())
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
    let mut rules = Rules::new(config, Some(node()));
    for (frontend, admission) in frontends {
        rules.set_frontend(frontend, Some(admission));
    }
    for address in addresses(&["10.96.0.1", "198.51.100.12", "fd00:10:96::1"]) {
        rules.set_address(address, true);
    }
    for address in addresses(&["10.244.1.2", "fd00:244:1::2"]) {
        rules.add_local_endpoint(address);
    }
    rules.add_health_check(31_999);
    let links = [("eth0", "172.18.0.2"), ("cni0", "10.244.1.1")];
    let links = links.map(|(link, address)| (link.into(), address.parse().unwrap()));
    rules.filter.set_links(&links.into());
    rules.table()
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
