//! Which flows have to go: a pure function of what was changed and what should be.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipvs_netlink as ipvs;

use super::flow::Flow;
use crate::model::{Family, Protocol};
use crate::op::Op;
use crate::plan::{Desired, VirtualServer};

/// Frontends with flows that may have to go, and the endpoints at which flows may stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    frontends: BTreeMap<(Protocol, SocketAddr), BTreeSet<SocketAddr>>,
    /// UDP endpoints that came back, whose strays go ([`super::Strays`]).
    back: BTreeSet<SocketAddr>,
}

/// Flows that are looked through together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    pub(super) family: Family,
    pub(super) protocol: Protocol,
    /// Only those that began there.
    pub(super) source: Option<SocketAddr>,
}

/// Each look for one endpoint's flows makes the kernel walk through its whole table, though it tells
/// of few.
const MOST_SINGLY: usize = 8;

impl Stale {
    /// What became stale by `ops`, which took effect and of which `desired` is the aim.
    ///
    /// Only UDP and SCTP: TCP connections of a removed endpoint may drain, and end by themselves. A
    /// frontend counts when it lost a destination, when it is gone, and when it is new: clients may
    /// have been sending to its address before, and their flows lead nowhere.
    pub fn of<'a>(ops: impl IntoIterator<Item = &'a Op>, desired: &Desired) -> Self {
        let mut stale = Self::default();
        let mut marks = BTreeSet::new();
        for key in ops.into_iter().filter_map(frontend) {
            match key {
                ipvs::ServiceKey::Address { .. } => stale.add(&key, desired),
                ipvs::ServiceKey::Mark { mark, .. } => {
                    marks.insert(mark);
                }
                // There are no others.
                _ => {}
            }
        }
        if marks.is_empty() {
            return stale;
        }
        // Flows to a virtual server of a mark carry the address that its clients dialled. Whose mark
        // it was that is gone is not known any more: it may have been anybody's who has none now.
        let wanted = desired.virtual_servers.values();
        let used: BTreeSet<u32> = wanted.filter_map(|it| desired.mark(it)).collect();
        let is_gone = marks.iter().any(|mark| !used.contains(mark));
        for (key, server) in &desired.virtual_servers {
            let mark = desired.mark(server);
            if mark.map_or(is_gone, |mark| marks.contains(&mark)) {
                stale.add(key, desired);
            }
        }
        stale
    }

    /// Whether flows may have become stale by `op`.
    pub fn concerns(op: &Op) -> bool {
        match frontend(op) {
            Some(ipvs::ServiceKey::Address { protocol, .. }) => protocol != ipvs::Protocol::Tcp,
            Some(_) => true,
            None => false,
        }
    }

    /// Flows of `protocol` to `frontend` are stale unless they lead to one of `endpoints`.
    pub fn set(
        &mut self,
        protocol: Protocol,
        frontend: SocketAddr,
        endpoints: impl IntoIterator<Item = SocketAddr>,
    ) {
        let endpoints = endpoints.into_iter().collect();
        self.frontends.insert((protocol, frontend), endpoints);
    }

    fn add(&mut self, key: &ipvs::ServiceKey, desired: &Desired) {
        let &ipvs::ServiceKey::Address {
            protocol,
            address,
            port,
        } = key
        else {
            return;
        };
        let protocol = match protocol {
            ipvs::Protocol::Udp => Protocol::Udp,
            ipvs::Protocol::Sctp => Protocol::Sctp,
            _ => return,
        };
        let server = desired.virtual_servers.get(key);
        let inside = server
            .and_then(|server| desired.mark(server))
            .and_then(|mark| {
                let family = key.family();
                let key = ipvs::ServiceKey::Mark { family, mark };
                desired.virtual_servers.get(&key)
            });
        let of = |server: &VirtualServer| -> Vec<SocketAddr> {
            let keys = server
                .destinations
                .iter()
                .map(|destination| destination.key);
            keys.map(|key| (key.address, key.port).into()).collect()
        };
        let endpoints = server.into_iter().chain(inside).flat_map(of);
        self.set(protocol, (address, port).into(), endpoints);
    }

    /// Strays of these UDP endpoints are stale, too.
    pub fn set_back(&mut self, endpoints: BTreeSet<SocketAddr>) {
        self.back = endpoints;
    }

    /// The UDP endpoints whose strays are stale.
    pub fn back(&self) -> &BTreeSet<SocketAddr> {
        &self.back
    }

    /// Whether no flow is stale.
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.back.is_empty()
    }

    /// Whether `flow` has to go: it was made for one of the frontends, and its answers come from
    /// somewhere else than the frontend's endpoints; or it is a stray.
    pub fn has(&self, flow: &Flow) -> bool {
        let frontend = (flow.protocol, flow.original.destination);
        let endpoints = self.frontends.get(&frontend);
        let leads_elsewhere = |it: &BTreeSet<_>| !it.contains(&flow.reply.source);
        endpoints.is_some_and(leads_elsewhere) || self.is_stray(flow)
    }

    /// What an endpoint sends of its own accord looks like a stray, too, until it is answered. As it
    /// is not translated, its answer still comes, unless a firewall wants to know the flow.
    fn is_stray(&self, flow: &Flow) -> bool {
        flow.protocol == Protocol::Udp
            && !flow.is_answered
            && flow.reply == flow.original.reversed()
            && self.back.contains(&flow.original.source)
    }

    /// The parts of the kernel's table in which to look. An endpoint's strays are found by its
    /// address, unless there are many or all flows have to be looked at anyway.
    pub(super) fn parts(&self) -> BTreeSet<Part> {
        let whole = |protocol, address: &SocketAddr| Part {
            family: address.ip().into(),
            protocol,
            source: None,
        };
        let frontends = self.frontends.keys();
        let mut parts: BTreeSet<Part> = frontends
            .map(|(protocol, frontend)| whole(*protocol, frontend))
            .collect();
        for endpoint in &self.back {
            let all = whole(Protocol::Udp, endpoint);
            if self.back.len() > MOST_SINGLY {
                parts.insert(all);
            } else if !parts.contains(&all) {
                let source = Some(*endpoint);
                parts.insert(Part { source, ..all });
            }
        }
        parts
    }
}

/// The virtual server whose flows may have become stale by `op`.
fn frontend(op: &Op) -> Option<ipvs::ServiceKey> {
    match *op {
        Op::AddService(service) => Some(service.key),
        Op::DeleteService(key) | Op::DeleteDestination(key, _) => Some(key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::flow::{Handle, Tuple};
    use super::*;
    use crate::model::{ObjectName, ServicePortName};
    use crate::plan::FrontendKind;

    fn flow(protocol: Protocol, to: &str, answered_by: &str) -> Flow {
        let client = "10.244.1.4:5000".parse().unwrap();
        Flow {
            protocol,
            original: Tuple {
                source: client,
                destination: to.parse().unwrap(),
            },
            reply: Tuple {
                source: answered_by.parse().unwrap(),
                destination: client,
            },
            is_answered: true,
            handle: Handle::default(),
        }
    }

    fn key(protocol: ipvs::Protocol, frontend: &str) -> ipvs::ServiceKey {
        let frontend: SocketAddr = frontend.parse().unwrap();
        ipvs::ServiceKey::Address {
            protocol,
            address: frontend.ip(),
            port: frontend.port(),
        }
    }

    fn destination(endpoint: &str) -> ipvs::Destination {
        let endpoint: SocketAddr = endpoint.parse().unwrap();
        ipvs::Destination::new(endpoint.into(), 1)
    }

    fn desired(servers: &[(ipvs::ServiceKey, &[&str])]) -> Desired {
        let mut desired = Desired::default();
        for (key, endpoints) in servers {
            let server = VirtualServer {
                service: ipvs::Service::new(*key, "rr".parse().unwrap()),
                destinations: endpoints.iter().map(|it| destination(it)).collect(),
                owner: ServicePortName {
                    service: ObjectName::new("default", "dns"),
                    port: Arc::from(""),
                },
                kind: FrontendKind::ClusterIp,
                drain: Duration::ZERO,
                admission: None,
            };
            desired.virtual_servers.insert(*key, server);
        }
        desired
    }

    #[test]
    fn flows_to_removed_endpoints_and_frontends_go() {
        let dns = key(ipvs::Protocol::Udp, "10.96.0.10:53");
        let gone = key(ipvs::Protocol::Udp, "10.96.0.11:53");
        let desired = desired(&[(dns, &["10.244.1.3:53"])]);
        let ops = [
            Op::DeleteDestination(dns, destination("10.244.1.2:53").key),
            Op::DeleteService(gone),
        ];
        let stale = Stale::of(&ops, &desired);
        let is_stale = |to, by| stale.has(&flow(Protocol::Udp, to, by));
        assert!(is_stale("10.96.0.10:53", "10.244.1.2:53"));
        assert!(is_stale("10.96.0.10:53", "10.244.1.3:54"), "another port");
        assert!(is_stale("10.96.0.10:53", "10.96.0.10:53"), "led nowhere");
        assert!(is_stale("10.96.0.11:53", "10.244.1.3:53"), "gone Service");
        assert!(!is_stale("10.96.0.10:53", "10.244.1.3:53"));
        assert!(!is_stale("10.96.0.10:54", "10.244.1.2:53"), "another port");
        assert!(!is_stale("8.8.8.8:53", "8.8.8.8:53"), "nothing of ours");
        let tcp = flow(Protocol::Tcp, "10.96.0.10:53", "10.244.1.2:53");
        assert!(!stale.has(&tcp));
    }

    #[test]
    fn without_its_mark_a_frontend_has_its_own_endpoints_left() {
        let dns = key(ipvs::Protocol::Udp, "10.96.0.10:53");
        let web = key(ipvs::Protocol::Tcp, "10.96.0.10:80");
        let desired = desired(&[(dns, &["10.244.1.3:53"]), (web, &["10.244.1.3:80"])]);
        let (family, mark) = (ipvs::Family::V4, 7);
        let gone = Op::DeleteService(ipvs::ServiceKey::Mark { family, mark });
        let stale = Stale::of(&[gone], &desired);
        let is_stale = |by| stale.has(&flow(Protocol::Udp, "10.96.0.10:53", by));
        assert!(is_stale("10.244.2.2:53"), "an endpoint of the mark's alone");
        assert!(!is_stale("10.244.1.3:53"));
        let tcp = flow(Protocol::Tcp, "10.96.0.10:80", "10.244.2.2:80");
        assert!(!stale.has(&tcp));
    }

    #[test]
    fn what_takes_no_endpoint_away_makes_nothing_stale() {
        let dns = key(ipvs::Protocol::Udp, "10.96.0.10:53");
        let web = key(ipvs::Protocol::Tcp, "10.96.0.10:80");
        let desired = desired(&[(dns, &["10.244.1.3:53"]), (web, &[])]);
        let ops = [
            Op::AddDestination(dns, destination("10.244.1.3:53")),
            Op::SetDestination(dns, destination("10.244.1.3:53")),
            Op::DeleteDestination(web, destination("10.244.1.3:80").key),
            Op::DeleteService(web),
            Op::DeleteAddress("10.96.0.10".parse().unwrap()),
        ];
        assert!(Stale::of(&ops, &desired).is_empty());
    }

    #[test]
    fn only_the_parts_that_matter_are_looked_through() {
        let mut stale = Stale::default();
        stale.set(Protocol::Udp, "10.96.0.10:53".parse().unwrap(), []);
        stale.set(Protocol::Udp, "10.96.0.11:53".parse().unwrap(), []);
        let udp = Part {
            family: Family::V4,
            protocol: Protocol::Udp,
            source: None,
        };
        assert_eq!(stale.parts(), BTreeSet::from([udp]));

        // Strays are sought singly, but not where all flows are looked at, or for many endpoints.
        let [four, six]: [SocketAddr; 2] =
            ["10.244.1.2:53", "[fd00::2]:53"].map(|it| it.parse().unwrap());
        stale.set_back([four, six].into());
        let six = Part {
            family: Family::V6,
            source: Some(six),
            ..udp
        };
        assert_eq!(stale.parts(), BTreeSet::from([udp, six]));
        let mut many = Stale::default();
        many.set_back((0..20).map(|port| ([10, 244, 1, 2], port).into()).collect());
        assert_eq!(many.parts(), BTreeSet::from([udp]));
    }

    #[test]
    fn strays_are_unanswered_untranslated_and_of_an_endpoint_that_is_back() {
        let mut stale = Stale::default();
        let endpoint = "10.244.1.2:53".parse().unwrap();
        stale.set_back([endpoint].into());
        let mut stray = flow(Protocol::Udp, "10.244.1.4:5000", "10.244.1.4:5000");
        stray.original.source = endpoint;
        stray.reply.destination = endpoint;
        stray.is_answered = false;
        assert!(stale.has(&stray));
        let but = |change: fn(&mut Flow)| {
            let mut flow = stray.clone();
            change(&mut flow);
            stale.has(&flow)
        };
        assert!(!but(|it| it.is_answered = true));
        assert!(!but(|it| it.protocol = Protocol::Tcp));
        assert!(!but(|it| it.reply.destination.set_port(1024)));
        assert!(!but(|it| {
            it.original.source.set_port(54);
            it.reply.destination.set_port(54);
        }));
        assert!(!but(|it| std::mem::swap(&mut it.original, &mut it.reply)));
    }
}
