//! The flows that must be deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::flow::Flow;
use crate::cluster::model::{Family, Protocol};
use crate::plan::frontend::Frontend;

/// The flows that must be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// The frontends with stale flows, each with the endpoints whose flows stay.
    frontends: BTreeMap<Frontend, BTreeSet<SocketAddr>>,
    /// The endpoints of frontends that may keep their connections no longer.
    ended: BTreeSet<(Frontend, SocketAddr)>,
    /// Of `frontends`, those whose unanswered flows to removed endpoints stay for now.
    patient: BTreeSet<Frontend>,
    /// Whether only flows that no NAT rule translates are stale: another dataplane has the others.
    is_of_ipvs: bool,
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
    /// Makes the UDP or SCTP flows to `frontend` stale, except those that one of `endpoints` answers. Flows without an
    /// endpoint are stale, too: a client may have sent packets before the frontend existed.
    ///
    /// TCP connections to a removed endpoint may drain and end by themselves ([`Stale::end`]).
    pub fn keep_only(
        &mut self,
        frontend: Frontend,
        endpoints: impl IntoIterator<Item = SocketAddr>,
    ) {
        if frontend.protocol != Protocol::Tcp || self.is_of_ipvs {
            let endpoints = endpoints.into_iter().collect();
            self.frontends.insert(frontend, endpoints);
        }
    }

    /// Makes only flows that no NAT rule translates stale, TCP connections too: IPVS leaves the node, and another dataplane
    /// has the others.
    pub fn only_of_ipvs(&mut self) {
        self.is_of_ipvs = true;
    }

    /// Keeps the unanswered flows of `frontend` to removed endpoints for now: the answer may be on its way.
    pub fn wait_for_answers(&mut self, frontend: Frontend) {
        self.patient.insert(frontend);
    }

    /// Makes the flows from `frontend` to `endpoint` stale.
    pub fn end(&mut self, frontend: Frontend, endpoint: SocketAddr) {
        self.ended.insert((frontend, endpoint));
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
        self.frontends.is_empty() && self.ended.is_empty() && self.returned.is_empty()
    }

    /// Returns whether `flow` must be deleted.
    ///
    /// A flow to one of the frontends must be deleted if its replies come from none of the
    /// frontend's endpoints, or from one whose time is over. A stray of a returned endpoint must be deleted too.
    pub fn contains(&self, flow: &Flow) -> bool {
        self.is_misled(flow) && !self.waits_for(flow)
            || self.ended.contains(&(flow.frontend(), flow.reply.source))
            || self.is_stray(flow)
    }

    /// Returns whether `flow` would be stale if an answer were not perhaps on its way.
    pub(super) fn spares(&self, flow: &Flow) -> bool {
        self.is_misled(flow) && self.waits_for(flow)
    }

    /// Returns whether another endpoint than those of the frontend answers `flow`.
    fn is_misled(&self, flow: &Flow) -> bool {
        let endpoints = self.frontends.get(&flow.frontend());
        let is_concerned = !(self.is_of_ipvs && flow.is_translated);
        is_concerned && endpoints.is_some_and(|it| !it.contains(&flow.reply.source))
    }

    fn waits_for(&self, flow: &Flow) -> bool {
        // A flow that was not translated gets no answer.
        let is_translated = flow.reply.source != flow.original.destination;
        !flow.is_answered && is_translated && self.patient.contains(&flow.frontend())
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
        let ended = self.ended.iter().map(|(frontend, _)| frontend);
        let frontends = self.frontends.keys().chain(ended);
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

#[cfg(test)]
mod tests {
    use super::super::flow::{Handle, Tuple};
    use super::*;

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
            is_translated: true,
            is_established: false,
            seconds_left: 30,
            handle: Handle::default(),
        }
    }

    fn frontend_at(protocol: Protocol, socket: &str) -> Frontend {
        let socket: SocketAddr = socket.parse().unwrap();
        Frontend {
            protocol,
            address: socket.ip(),
            port: socket.port(),
        }
    }

    #[test]
    fn flows_to_other_endpoints_and_those_whose_time_is_over_are_stale() {
        let mut stale = Stale::default();
        let endpoint = |text: &str| text.parse::<SocketAddr>().unwrap();
        let keep = |stale: &mut Stale, protocol, socket, endpoints: &[&str]| {
            let endpoints = endpoints.iter().map(|text| endpoint(text));
            stale.keep_only(frontend_at(protocol, socket), endpoints);
        };
        keep(
            &mut stale,
            Protocol::Udp,
            "10.96.0.10:53",
            &["10.244.1.3:53"],
        );
        keep(&mut stale, Protocol::Udp, "10.96.0.11:53", &[]);
        keep(&mut stale, Protocol::Tcp, "10.96.0.10:53", &[]);
        let web = frontend_at(Protocol::Tcp, "10.96.0.10:80");
        stale.end(web, endpoint("10.244.1.2:80"));
        let udp = |to, by| stale.contains(&flow(Protocol::Udp, to, by));
        let tcp = |to, by| stale.contains(&flow(Protocol::Tcp, to, by));
        assert!(udp("10.96.0.10:53", "10.244.1.2:53"));
        assert!(udp("10.96.0.10:53", "10.244.1.3:54"), "another port");
        assert!(udp("10.96.0.10:53", "10.96.0.10:53"), "no endpoint");
        assert!(udp("10.96.0.11:53", "10.244.1.3:53"), "no endpoints");
        assert!(!udp("10.96.0.10:53", "10.244.1.3:53"));
        assert!(!udp("10.96.0.10:54", "10.244.1.2:53"), "another port");
        assert!(!udp("8.8.8.8:53", "8.8.8.8:53"), "not a frontend");
        assert!(!tcp("10.96.0.10:53", "10.244.1.2:53"), "drains");
        assert!(tcp("10.96.0.10:80", "10.244.1.2:80"), "time is over");
        assert!(!tcp("10.96.0.10:80", "10.244.1.3:80"));
        assert!(!udp("10.96.0.10:80", "10.244.1.2:80"));
    }

    #[test]
    fn flows_whose_answers_may_be_on_their_way_are_spared() {
        let dns = frontend_at(Protocol::Udp, "10.96.0.10:53");
        let mut stale = Stale::default();
        stale.keep_only(dns, ["10.244.1.3:53".parse().unwrap()]);
        let judged = |stale: &Stale, by, is_answered| {
            let flow = Flow {
                is_answered,
                ..flow(Protocol::Udp, "10.96.0.10:53", by)
            };
            (stale.contains(&flow), stale.spares(&flow))
        };
        assert_eq!(judged(&stale, "10.244.1.2:53", false), (true, false));
        stale.wait_for_answers(dns);
        assert_eq!(judged(&stale, "10.244.1.2:53", false), (false, true));
        assert_eq!(judged(&stale, "10.244.1.2:53", true), (true, false));
        assert_eq!(judged(&stale, "10.244.1.3:53", false), (false, false));
        let untranslated = "10.96.0.10:53";
        assert_eq!(judged(&stale, untranslated, false), (true, false));
    }

    #[test]
    fn only_the_needed_scopes_are_dumped() {
        let mut stale = Stale::default();
        for frontend in ["10.96.0.10:53", "10.96.0.11:53"] {
            stale.keep_only(frontend_at(Protocol::Udp, frontend), []);
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
