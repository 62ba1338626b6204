//! A scheduler of another crate chooses for the virtual servers that name it.

use std::net::{Ipv4Addr, SocketAddr};

use ipvs_netlink as ipvs;
use proxier::testing::dataplane::ipvs::Kernel as _;
use proxier::testing::dataplane::userspace::Userspace;
use proxier::testing::ledger::LedgerFile;
use proxier::testing::manifests::{self, Options};
use proxier::testing::op::Op;
use proxier::testing::plan::{NodePortAddresses, PlanConfig, ServiceAddresses};
use proxier::testing::sync::Proxier;
use relay::{InsideClients, RelayLimits};
use schedulers::{Registry, Request, Scheduler, ServerId, Servers};

use super::*;

/// Picks the endpoint with the highest port.
#[derive(Debug)]
struct Highest;

impl Scheduler for Highest {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let highest = servers.iter().max_by_key(|(_, server)| server.port());
        highest.map(|(id, _)| id)
    }
}

/// Returns a dataplane that has the kernel's schedulers and `highest`.
fn userspace() -> Userspace {
    let mut registry = Registry::kernel();
    registry.register("highest", |_| Box::new(Highest)).unwrap();
    let started = Userspace::start(RelayLimits::default(), InsideClients::default());
    started.unwrap().choosing(registry)
}

#[test]
fn a_registered_scheduler_chooses_for_the_virtual_servers_that_name_it() {
    let mut userspace = userspace();
    let endpoints = [endpoint(), endpoint(), endpoint()];
    for (name, expected) in [
        ("highest", endpoints.iter().max().map(|&it| [it].into())),
        ("rr", Some(BTreeSet::from(endpoints))),
    ] {
        let scheduler = name.parse().unwrap();
        assert!(matches!(userspace.has_scheduler(scheduler), Ok(Some(true))));
        let port = unused_port();
        let key = ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: SERVICE.parse::<Ipv4Addr>().unwrap().into(),
            port,
        };
        let mut ops = vec![Op::AddService(ipvs::Service::new(key, scheduler))];
        for endpoint in endpoints {
            let address = SocketAddr::from(([127, 0, 0, 1], endpoint));
            let destination = ipvs::Destination::new(address.into(), 1);
            ops.push(Op::AddDestination(key, destination));
        }
        for outcome in userspace.apply(&ops) {
            outcome.unwrap();
        }
        assert_eq!(answers(port).ok(), expected);
    }
    let unknown = "lowest".parse().unwrap();
    assert!(matches!(userspace.has_scheduler(unknown), Ok(Some(false))));
}

#[test]
fn the_annotation_names_a_registered_scheduler_and_an_unknown_name_is_a_problem() {
    let directory = tempfile::tempdir().unwrap();
    let config = PlanConfig {
        node_name: "node-a".into(),
        scheduler: "rr".into(),
        node_port_addresses: NodePortAddresses::default(),
        has_localhost_node_ports: false,
        service_addresses: ServiceAddresses::Loopback,
        drain: Duration::ZERO,
    };
    let ledger = LedgerFile::new(directory.path().join("ledger"));
    let mut proxier = Proxier::new(userspace(), config, ledger).unwrap();
    let (port, endpoints) = (unused_port(), [endpoint(), endpoint(), endpoint()]);
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
        permits_loopback: true,
    };
    let highest = endpoints.iter().max().map(|&it| [it].into());
    let all = Some(BTreeSet::from(endpoints));
    for (at, (annotation, expected, is_known)) in [
        ("", all.clone(), true),
        ("ipvs-proxier.io/scheduler: highest", highest, true),
        ("ipvs-proxier.io/scheduler: lowest", all, false),
    ]
    .into_iter()
    .enumerate()
    {
        let text = manifest("TCP", port, &endpoints, annotation);
        let loaded = manifests::parse(&text, "test.yaml", &options);
        proxier.receive(loaded.events);
        let now = Duration::from_secs(at as u64 + 1);
        let applied = proxier.sync(now).unwrap();
        assert_eq!(applied.failures().count(), 0, "{annotation}");
        assert_eq!(answers(port).ok(), expected, "{annotation}");
        let problems: Vec<_> = proxier.problems().iter().map(ToString::to_string).collect();
        let is_named = problems.iter().any(|it| it.contains("lowest"));
        assert_eq!(is_named, !is_known, "{problems:?}");
    }
}
