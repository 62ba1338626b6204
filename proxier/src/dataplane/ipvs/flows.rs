//! Flows (connection tracking entries) that Ops made stale.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::strays::Strays;
use super::{Kernel, Wanted};
use crate::dataplane::Failure;
use crate::dataplane::conntrack::{Stale, Swept};
use crate::dataplane::ipvs::observed::ObservedServer;
use crate::dataplane::ipvs::op::Op;
use crate::plan::frontend::Frontend;
use crate::util::timer::Timer;

/// The pause after a failed sweep.
const RETRY: Duration = Duration::from_secs(5);

/// The flows that wait to be swept.
#[derive(Debug)]
pub(super) struct Flows {
    /// The virtual servers with stale flows, each with the last Op that made flows stale.
    ///
    /// A sweep compares all flows of a virtual server with the plan, so one Op suffices. A list would grow
    /// while sweeps fail.
    unswept: BTreeMap<ipvs::ServiceKey, Op>,
    /// Removed endpoints whose late answers may create flows ([`Strays`]).
    strays: Strays,
    retry: Timer,
    /// Whether another dataplane serves, so that only flows of IPVS are stale.
    pub(super) is_leaving: bool,
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            unswept: BTreeMap::new(),
            strays: Strays::default(),
            retry: Timer::doubling(RETRY, RETRY),
            is_leaving: false,
        }
    }
}

impl Flows {
    /// Notes the flows that `op` makes stale. It took effect at `now`; its virtual server was `known` before.
    pub(super) fn note(&mut self, op: &Op, known: Option<&ObservedServer>, now: Duration) {
        self.strays.record(op, known, now);
        // A plan without frontends would make the flows of the other endpoints stale, too.
        let is_stale = match self.is_leaving {
            true => matches!(op, Op::DeleteService(_)),
            false => may_make_stale(op),
        };
        if let Some(key) = op.service_key().filter(|_| is_stale) {
            self.unswept.insert(key, *op);
        }
    }

    /// Deletes the stale flows; `None` if no flow can be stale.
    ///
    /// After a failure, the next sweep looks for the same flows again.
    pub(super) fn sweep(
        &mut self,
        kernel: &mut impl Kernel,
        wanted: Wanted<'_>,
        now: Duration,
    ) -> Option<Result<Swept, Failure>> {
        let mut stale = Stale::default();
        if self.is_leaving {
            stale.only_of_ipvs();
        }
        add_stale_flows(&mut stale, self.unswept.values(), wanted);
        stale.set_returned(self.strays.due(now));
        if stale.is_empty() {
            self.unswept.clear();
            self.retry.reset();
            return None;
        }
        let result = kernel.sweep_flows(&stale);
        match &result {
            Ok(_) => {
                self.unswept.clear();
                self.strays.record_sweep(stale.returned());
                self.retry.reset();
            }
            Err(_) => {
                // Otherwise they stay due, and rounds would follow each other without a pause.
                self.strays.postpone(stale.returned(), now + RETRY);
                self.retry.back_off(now);
            }
        }
        Some(result)
    }

    /// Returns when the next sweep is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let timers = [self.retry.due(), self.strays.next_due()];
        timers.into_iter().flatten().min()
    }

    #[cfg(test)]
    pub(super) fn unswept(&self) -> usize {
        self.unswept.len()
    }
}

/// Adds the flows that the successful `ops` made stale; `wanted` is the state after them.
///
/// A frontend is included if it lost a destination, was deleted or was
/// created. Clients may send packets to its address before it is created, and those flows have
/// no endpoint.
fn add_stale_flows<'a>(
    stale: &mut Stale,
    ops: impl IntoIterator<Item = &'a Op>,
    wanted: Wanted<'_>,
) {
    let mut marks = BTreeSet::new();
    for key in ops.into_iter().filter_map(changed) {
        match key {
            ipvs::ServiceKey::Mark { .. } => _ = marks.insert(key),
            _ => keep_planned(stale, &key, wanted),
        }
    }
    if marks.is_empty() {
        return;
    }
    // The kernel tracks a flow to a mark's virtual server with the address that the client
    // used, so the frontends of the mark are needed. The plan no longer names those of a
    // deleted mark: each frontend without a mark may have been one.
    let is_gone = marks.iter().any(|mark| !wanted.contains(mark));
    for frontend in wanted.desired().frontends.keys() {
        let mark = wanted.inside(frontend);
        if mark.map_or(is_gone, |mark| marks.contains(&mark)) {
            keep_planned(stale, &(*frontend).into(), wanted);
        }
    }
}

/// Returns whether `op` may make flows stale.
fn may_make_stale(op: &Op) -> bool {
    match changed(op) {
        Some(ipvs::ServiceKey::Address { protocol, .. }) => protocol != ipvs::Protocol::Tcp,
        // The key of a mark has no protocol, and its frontends may use UDP or SCTP.
        Some(_) => true,
        None => false,
    }
}

/// Makes the flows to the frontend of `key` stale. Flows to its endpoints stay, and so do flows to the endpoints of its
/// mark's virtual server.
fn keep_planned(stale: &mut Stale, key: &ipvs::ServiceKey, wanted: Wanted<'_>) {
    let Some(frontend) = Frontend::of(key) else {
        return;
    };
    let inside = wanted.inside(&frontend);
    let inside = inside.and_then(|mark| wanted.get(&mark));
    let servers = [wanted.get(key), inside].into_iter().flatten();
    let endpoints = servers.flat_map(|server| server.endpoints.iter());
    let endpoints = endpoints.map(|it| SocketAddr::new(it.address, it.port));
    stale.keep_only(frontend, endpoints);
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
    use super::*;
    use crate::cluster::model::Family;
    use crate::dataplane::ipvs::InsideMarks;
    use crate::plan::{Desired, example};

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
        let mut stale = Stale::default();
        add_stale_flows(
            &mut stale,
            ops,
            Wanted::new(desired, &InsideMarks::default()),
        );
        stale
    }

    /// Returns the stale flows of UDP frontends, each with the endpoints whose flows stay.
    fn kept(frontends: &[(ipvs::ServiceKey, &[&str])]) -> Stale {
        let mut stale = Stale::default();
        for (key, endpoints) in frontends {
            let endpoints = endpoints.iter().map(|text| text.parse().unwrap());
            stale.keep_only(Frontend::of(key).unwrap(), endpoints);
        }
        stale
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
        let expected = kept(&[(dns, &["10.244.1.3:53"]), (gone, &[])]);
        assert_eq!(stale_after(&ops, &desired), expected);
    }

    #[test]
    fn deleting_a_mark_makes_only_flows_to_its_endpoints_stale() {
        let dns = key(ipvs::Protocol::Udp, "10.96.0.10:53");
        let web = key(ipvs::Protocol::Tcp, "10.96.0.10:80");
        let desired = desired(&[(dns, &["10.244.1.3:53"]), (web, &["10.244.1.3:80"])]);
        let (family, mark) = (Family::V4, 7);
        let gone = Op::DeleteService(ipvs::ServiceKey::Mark { family, mark });
        let expected = kept(&[(dns, &["10.244.1.3:53"])]);
        assert_eq!(stale_after(&[gone], &desired), expected);
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
}
