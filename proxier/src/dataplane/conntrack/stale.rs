//! The flows that must be deleted: a pure function of applied Ops and the desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipvs_netlink as ipvs;

use super::flow::Flow;
use crate::cluster::model::{Family, Protocol};
use crate::dataplane::ipvs::Wanted;
use crate::dataplane::ipvs::op::Op;
use crate::plan::frontend::Frontend;

/// The frontends with stale flows, and per frontend the endpoints whose flows stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    frontends: BTreeMap<Frontend, BTreeSet<SocketAddr>>,
    /// UDP endpoints that returned; their stray flows are stale (`Strays` of IPVS).
    returned: BTreeSet<SocketAddr>,
}

/// The flows of one dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DumpScope {
    pub(super) family: Family,
    pub(super) protocol: Protocol,
    /// If set, only flows with this source.
    pub(super) source: Option<SocketAddr>,
}

/// The maximum number of endpoints whose strays are dumped one by one.
///
/// Each such dump makes the kernel walk its whole table, even if it lists few flows.
const MAX_SINGLE_DUMPS: usize = 8;

impl Stale {
    /// Returns the flows that the successful `ops` made stale; `desired` is the state after them.
    ///
    /// Only UDP and SCTP flows become stale: TCP connections to a removed endpoint may drain and
    /// end by themselves. A frontend is included if it lost a destination, was deleted or was
    /// created. Clients may send packets to its address before it is created, and those flows have
    /// no endpoint.
    pub fn from_ops<'a>(ops: impl IntoIterator<Item = &'a Op>, wanted: Wanted<'_>) -> Self {
        let mut stale = Self::default();
        let mut marks = BTreeSet::new();
        for key in ops.into_iter().filter_map(changed) {
            match key {
                ipvs::ServiceKey::Mark { .. } => _ = marks.insert(key),
                _ => stale.add(&key, wanted),
            }
        }
        if marks.is_empty() {
            return stale;
        }
        // The kernel tracks a flow to a mark's virtual server with the address that the client
        // used, so the frontends of the mark are needed. The plan no longer names those of a
        // deleted mark: each frontend without a mark may have been one.
        let is_gone = marks.iter().any(|mark| !wanted.contains(mark));
        for frontend in wanted.desired().frontends.keys() {
            let mark = wanted.inside(frontend);
            if mark.map_or(is_gone, |mark| marks.contains(&mark)) {
                stale.add(&(*frontend).into(), wanted);
            }
        }
        stale
    }

    /// Returns whether `op` may make flows stale.
    pub fn may_result_from(op: &Op) -> bool {
        match changed(op) {
            Some(ipvs::ServiceKey::Address { protocol, .. }) => protocol != ipvs::Protocol::Tcp,
            // The key of a mark has no protocol, and its frontends may use UDP or SCTP.
            Some(_) => true,
            None => false,
        }
    }

    /// Adds the frontend of `key`. Flows to its endpoints stay, and so do flows to the endpoints of
    /// its mark's virtual server.
    fn add(&mut self, key: &ipvs::ServiceKey, wanted: Wanted<'_>) {
        let frontend = Frontend::of(key).filter(|it| it.protocol != Protocol::Tcp);
        let Some(frontend) = frontend else {
            return;
        };
        let inside = wanted.inside(&frontend);
        let inside = inside.and_then(|mark| wanted.get(&mark));
        let servers = [wanted.get(key), inside].into_iter().flatten();
        let endpoints = servers.flat_map(|server| server.endpoints.iter());
        let endpoints = endpoints.map(|it| SocketAddr::new(it.address, it.port));
        self.frontends.insert(frontend, endpoints.collect());
    }

    /// Sets the UDP endpoints whose stray flows are stale.
    pub fn set_returned(&mut self, endpoints: BTreeSet<SocketAddr>) {
        self.returned = endpoints;
    }

    /// Returns the UDP endpoints whose stray flows are stale.
    pub fn returned(&self) -> &BTreeSet<SocketAddr> {
        &self.returned
    }

    /// Returns whether no flow is stale.
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.returned.is_empty()
    }

    /// Returns whether `flow` must be deleted.
    ///
    /// A flow to one of the frontends must be deleted if its replies come from none of the
    /// frontend's endpoints. A stray of a returned endpoint must be deleted too.
    pub fn contains(&self, flow: &Flow) -> bool {
        let endpoints = self.frontends.get(&flow.frontend());
        let has_other_endpoint = |it: &BTreeSet<_>| !it.contains(&flow.reply.source);
        endpoints.is_some_and(has_other_endpoint) || self.is_stray(flow)
    }

    /// Returns whether `flow` is a stray of a returned endpoint.
    ///
    /// A flow that the endpoint opens itself matches too until it is answered. Deleting it is harmless:
    /// it is not translated, so the reply arrives anyway, unless a firewall requires the entry.
    fn is_stray(&self, flow: &Flow) -> bool {
        flow.protocol == Protocol::Udp
            && !flow.is_answered
            && flow.reply == flow.original.reversed()
            && self.returned.contains(&flow.original.source)
    }

    /// Returns the dumps that together list every flow that may be stale.
    ///
    /// The strays of an endpoint get a dump of their own, filtered by its address. If there are
    /// more than [`MAX_SINGLE_DUMPS`] endpoints, or the frontends need all UDP flows of the family
    /// anyway, one dump of these lists the strays too.
    pub(super) fn scopes(&self) -> BTreeSet<DumpScope> {
        let whole = |family, protocol| DumpScope {
            family,
            protocol,
            source: None,
        };
        let frontends = self.frontends.keys();
        let mut scopes: BTreeSet<DumpScope> = frontends
            .map(|frontend| whole(frontend.family(), frontend.protocol))
            .collect();
        for endpoint in &self.returned {
            let all = whole(endpoint.ip().into(), Protocol::Udp);
            if self.returned.len() > MAX_SINGLE_DUMPS {
                scopes.insert(all);
            } else if !scopes.contains(&all) {
                let source = Some(*endpoint);
                scopes.insert(DumpScope { source, ..all });
            }
        }
        scopes
    }
}

/// Returns the virtual server whose flows `op` may make stale.
fn changed(op: &Op) -> Option<ipvs::ServiceKey> {
    match *op {
        Op::AddService(service) => Some(service.key),
        Op::DeleteService(key) | Op::DeleteDestination(key, _) => Some(key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::flow::{Handle, Tuple};
    use super::*;
    use crate::dataplane::ipvs::InsideMarks;
    use crate::plan::{Desired, example};

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
        let frontends = servers.iter().map(|(key, endpoints)| {
            let frontend = Frontend::of(key).unwrap();
            (frontend, example::cluster_ip(endpoints))
        });
        Desired {
            frontends: frontends.collect(),
            ..Desired::default()
        }
    }

    fn stale_after(ops: &[Op], desired: &Desired) -> Stale {
        Stale::from_ops(ops, Wanted::new(desired, &InsideMarks::default()))
    }

    #[test]
    fn flows_to_removed_endpoints_and_frontends_are_stale() {
        let dns = key(ipvs::Protocol::Udp, "10.96.0.10:53");
        let gone = key(ipvs::Protocol::Udp, "10.96.0.11:53");
        let desired = desired(&[(dns, &["10.244.1.3:53"])]);
        let ops = [
            Op::DeleteDestination(dns, destination("10.244.1.2:53").key),
            Op::DeleteService(gone),
        ];
        let stale = stale_after(&ops, &desired);
        let is_stale = |to, by| stale.contains(&flow(Protocol::Udp, to, by));
        assert!(is_stale("10.96.0.10:53", "10.244.1.2:53"));
        assert!(is_stale("10.96.0.10:53", "10.244.1.3:54"), "another port");
        assert!(is_stale("10.96.0.10:53", "10.96.0.10:53"), "no endpoint");
        assert!(
            is_stale("10.96.0.11:53", "10.244.1.3:53"),
            "deleted Service"
        );
        assert!(!is_stale("10.96.0.10:53", "10.244.1.3:53"));
        assert!(!is_stale("10.96.0.10:54", "10.244.1.2:53"), "another port");
        assert!(!is_stale("8.8.8.8:53", "8.8.8.8:53"), "not a frontend");
        let tcp = flow(Protocol::Tcp, "10.96.0.10:53", "10.244.1.2:53");
        assert!(!stale.contains(&tcp));
    }

    #[test]
    fn deleting_a_mark_makes_only_flows_to_its_endpoints_stale() {
        let dns = key(ipvs::Protocol::Udp, "10.96.0.10:53");
        let web = key(ipvs::Protocol::Tcp, "10.96.0.10:80");
        let desired = desired(&[(dns, &["10.244.1.3:53"]), (web, &["10.244.1.3:80"])]);
        let (family, mark) = (Family::V4, 7);
        let gone = Op::DeleteService(ipvs::ServiceKey::Mark { family, mark });
        let stale = stale_after(&[gone], &desired);
        let is_stale = |by| stale.contains(&flow(Protocol::Udp, "10.96.0.10:53", by));
        assert!(is_stale("10.244.2.2:53"), "an endpoint of the mark only");
        assert!(!is_stale("10.244.1.3:53"));
        let tcp = flow(Protocol::Tcp, "10.96.0.10:80", "10.244.2.2:80");
        assert!(!stale.contains(&tcp));
    }

    #[test]
    fn ops_that_remove_no_udp_endpoint_make_no_flow_stale() {
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
        assert!(stale_after(&ops, &desired).is_empty());
    }

    #[test]
    fn only_the_needed_scopes_are_dumped() {
        let mut stale = Stale::default();
        for frontend in ["10.96.0.10:53", "10.96.0.11:53"] {
            let gone = key(ipvs::Protocol::Udp, frontend);
            stale.add(
                &gone,
                Wanted::new(&Desired::default(), &InsideMarks::default()),
            );
        }
        let udp = DumpScope {
            family: Family::V4,
            protocol: Protocol::Udp,
            source: None,
        };
        assert_eq!(stale.scopes(), BTreeSet::from([udp]));

        // Strays are dumped by endpoint, except if all flows are dumped or there are many endpoints.
        let [four, six]: [SocketAddr; 2] =
            ["10.244.1.2:53", "[fd00::2]:53"].map(|it| it.parse().unwrap());
        stale.set_returned([four, six].into());
        let six = DumpScope {
            family: Family::V6,
            source: Some(six),
            ..udp
        };
        assert_eq!(stale.scopes(), BTreeSet::from([udp, six]));
        let mut many = Stale::default();
        many.set_returned((0..20).map(|port| ([10, 244, 1, 2], port).into()).collect());
        assert_eq!(many.scopes(), BTreeSet::from([udp]));
    }

    #[test]
    fn a_stray_is_unanswered_untranslated_and_from_a_returned_endpoint() {
        let mut stale = Stale::default();
        let endpoint = "10.244.1.2:53".parse().unwrap();
        stale.set_returned([endpoint].into());
        let mut stray = flow(Protocol::Udp, "10.244.1.4:5000", "10.244.1.4:5000");
        stray.original.source = endpoint;
        stray.reply.destination = endpoint;
        stray.is_answered = false;
        assert!(stale.contains(&stray));
        let but = |change: fn(&mut Flow)| {
            let mut flow = stray.clone();
            change(&mut flow);
            stale.contains(&flow)
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
