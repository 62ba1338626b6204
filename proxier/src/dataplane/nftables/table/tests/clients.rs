//! What the rules do with the first packet of a client, compared with the plan.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use nftables::{End, Packet, Place, Table};

use super::{Desired, Frontend, frontend};
use crate::cluster::model::{Family, Protocol};
use crate::plan::{FrontendPlan, Scope};

/// A client: its address of each family, and the device from which it comes; none of a process of this node.
struct Client {
    addresses: [&'static str; 2],
    device: &'static str,
    is_inside: bool,
    /// Whether it is in the source ranges of drafts.
    is_in_ranges: bool,
}

const CLIENTS: [Client; 4] = [
    Client {
        addresses: ["172.18.0.2", "fd00:172:18::2"],
        device: "",
        is_inside: true,
        is_in_ranges: false,
    },
    Client {
        addresses: ["10.244.0.99", "fd00:244::99"],
        device: "veth7",
        is_inside: true,
        is_in_ranges: false,
    },
    Client {
        addresses: ["203.0.113.9", "2001:db8::9"],
        device: "eth0",
        is_inside: false,
        is_in_ranges: true,
    },
    Client {
        addresses: ["198.51.100.9", "fd00:198::9"],
        device: "eth0",
        is_inside: false,
        is_in_ranges: false,
    },
];

impl Client {
    /// Returns the end of its packet to `frontend` and its destination, for the given draw.
    fn send(&self, table: &Table, frontend: &Frontend, draw: u32) -> (Option<End>, Packet) {
        let address = match frontend.family() {
            Family::V4 => self.addresses[0],
            Family::V6 => self.addresses[1],
        };
        let source = SocketAddr::new(address.parse().unwrap(), 40_000);
        let mut packet = Packet::new(Protocol::Tcp, source, frontend.socket(), self.device);
        packet.draw = draw;
        let place = match packet.source_is_local {
            true => Place::Output,
            false => Place::Prerouting,
        };
        (table.pass(place, .., &mut packet), packet)
    }

    /// Returns the endpoints that the plan gives it, with their weights.
    fn endpoints(&self, plan: &FrontendPlan) -> BTreeMap<SocketAddr, usize> {
        let admitted = self.is_in_ranges || plan.profile.access.source_ranges.is_none();
        let endpoints = match &plan.inside {
            Some(inside) if self.is_inside => &inside.endpoints,
            _ => &plan.endpoints,
        };
        let serving = endpoints.iter().filter(|it| admitted && it.weight > 0);
        let weighted = serving.map(|it| ((it.address, it.port).into(), it.weight.into()));
        weighted.collect()
    }

    fn assert_served(&self, table: &Table, desired: &Desired, frontend: &Frontend) {
        let plan = desired.frontends.get(frontend);
        let expected = plan.map(|plan| self.endpoints(plan)).unwrap_or_default();
        let mut slots = BTreeMap::<SocketAddr, usize>::new();
        let (_, first) = self.send(table, frontend, 0);
        let what = || format!("{} to {frontend}: {plan:?}", self.addresses[0]);
        for draw in 0..first.choices {
            let (end, packet) = self.send(table, frontend, draw);
            if expected.is_empty() {
                assert_eq!(packet.original, None, "{}", what());
                // A cluster IP refuses unlisted ports. Those of an external address are the machine's that has it.
                let mut others = desired.frontends.iter();
                let is_refused = plan.is_some()
                    || others.any(|(other, plan)| {
                        other.address == frontend.address
                            && plan.profile.access.scope == Scope::Internal
                    });
                assert_eq!(end.is_some(), is_refused, "{}", what());
            } else {
                assert_eq!(end, None, "{}", what());
                *slots.entry(packet.destination).or_default() += 1;
            }
        }
        assert!(
            slots.keys().all(|it| expected.contains_key(it)),
            "{slots:?}, {}",
            what()
        );
        // All endpoints in the shares of their weights, or the choice of the scheduler.
        let scheduler = plan.map_or("", |plan| &plan.profile.balancing.scheduler);
        for (endpoint, weight) in &expected {
            let share = slots.get(endpoint).copied().unwrap_or_default();
            let is_fair = slots.iter().all(|(other, of_other)| match scheduler {
                "rr" => share == *of_other,
                "wrr" | "sh" => share * expected[other] == of_other * weight,
                "fo" => weight <= &expected[other],
                _ => true,
            });
            assert!(is_fair, "{slots:?}, {}", what());
        }
    }
}

/// Asserts that each client of each frontend is led to an endpoint of the plan, or to none if the plan has none for it.
pub(super) fn assert_served(table: &Table, desired: &Desired) {
    for index in 0..4 {
        for client in &CLIENTS {
            client.assert_served(table, desired, &frontend(index));
        }
    }
}
