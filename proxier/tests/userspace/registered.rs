//! A scheduler of another crate chooses for the virtual servers that name it.

use std::net::{Ipv4Addr, SocketAddr};

use ipvs_netlink as ipvs;
use proxier::testing::dataplane::Dataplane as _;
use proxier::testing::dataplane::userspace::Userspace;
use proxier::testing::op::Op;
use proxier::testing::relay::{InsideClients, RelayLimits};
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

#[test]
fn a_registered_scheduler_chooses_for_the_virtual_servers_that_name_it() {
    let mut registry = Registry::kernel();
    registry.register("highest", |_| Box::new(Highest)).unwrap();
    let started = Userspace::start(RelayLimits::default(), InsideClients::default());
    let mut userspace = started.unwrap().choosing(registry);
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
