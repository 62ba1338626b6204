//! The outcomes of Ops, recorded in the ledger, the observed state and the retries.

use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;
use rustix::io::Errno;

use super::{Ipvs, Kernel, Wanted};
use crate::dataplane::ipvs::observed::ObservedServer;
use crate::dataplane::ipvs::op::{AddressForm, Op, Ops};
use crate::dataplane::{Failure, Outcome, Planned};

impl<K: Kernel> Ipvs<K> {
    /// Ends the retries of what `ops`, all of this round, have achieved.
    pub(super) fn settle(&mut self, ops: &Ops) {
        self.retries.settle();
        // After a start: insertions in order of the keys leave the nodes of the maps half empty.
        if ops.len() > self.state.observed.virtual_servers.len() {
            self.state.observed.virtual_servers.pack();
            self.state.observed.addresses.pack();
        }
    }

    /// Records the outcome of each Op in the ledger, the observed state and the retries.
    pub(super) fn learn(
        &mut self,
        planned: Planned<'_>,
        ops: &[Op],
        outcomes: &[Outcome],
        now: Duration,
    ) {
        let mut outcomes = outcomes.iter();
        // The Ops of a virtual server follow each other. Those of addresses have no key.
        for run in ops.chunk_by(|one, next| one.service_key() == next.service_key()) {
            let mut effective = Vec::with_capacity(run.len());
            for (op, outcome) in run.iter().zip(&mut outcomes) {
                match outcome {
                    Ok(()) => effective.push(op),
                    Err(failure) => self.learn_failure(op, failure, now),
                }
            }
            match run.first().and_then(Op::service_key) {
                Some(key) => self.learn_server(planned, key, &effective, now),
                None => effective.iter().for_each(|op| self.learn_address(op, now)),
            }
        }
    }

    /// Records `ops`, which changed the virtual server `key`.
    fn learn_server(
        &mut self,
        planned: Planned<'_>,
        key: ipvs::ServiceKey,
        ops: &[&Op],
        now: Duration,
    ) {
        let wanted = Wanted::new(planned.desired(), &self.marks).get(&key);
        let is_of_server = |op: &Op| matches!(op, Op::AddService(_) | Op::DeleteService(_));
        for run in ops.chunk_by(|one, next| !is_of_server(one) && !is_of_server(next)) {
            let found = self.state.observed.virtual_servers.get_mut(&key);
            for &op in run {
                self.flows.note(op, found.as_deref(), now);
                match *op {
                    Op::SetDestination(_, destination) => {
                        if let Some(wanted) = wanted
                            && !wanted.has_destination(&destination.key)
                        {
                            let deadline = now + wanted.plan.profile.drain;
                            self.ledger.drain(key, destination.key, now, deadline);
                        }
                    }
                    Op::DeleteDestination(_, destination) => self.ledger.end(&key, &destination),
                    Op::DeleteService(_) => self.ledger.disown(&key),
                    _ => {}
                }
            }
            match (run, found) {
                ([Op::AddService(service)], _) => {
                    let server = ObservedServer::empty(service);
                    self.state.observed.virtual_servers.insert(key, server);
                }
                ([Op::DeleteService(_)], _) => {
                    self.state.observed.virtual_servers.remove(&key);
                }
                (_, Some(found)) => {
                    match wanted.filter(|wanted| found.is_filled_by(run, wanted.endpoints)) {
                        Some(wanted) => found.destinations = wanted.endpoints.clone().into(),
                        None => found.record(run),
                    }
                    if let Some(wanted) = wanted {
                        found.destinations.settle(wanted.endpoints);
                    }
                }
                (_, None) => {}
            }
        }
    }

    /// Records `op`, which changed an address or the carrier.
    fn learn_address(&mut self, op: &Op, now: Duration) {
        match *op {
            Op::AddAddress(address, _) => self.succeed_leftovers(address, now),
            Op::DeleteLeftover(_, AddressForm::Address) => {
                // The routes on `lo` move to the carrier only after its last address is deleted, because the
                // kernel deletes the routes of a device with its last address (`fib_disable_ip`).
                self.state.knows_addresses = false;
                self.state.follow_up.no_later_than(now);
            }
            _ => {}
        }
        self.state.observed.record(op);
    }

    /// Makes the next round remove the other forms of `address`, whose configured form now exists.
    fn succeed_leftovers(&mut self, address: IpAddr, now: Duration) {
        let mut leftovers = self.state.observed.leftovers_of(address);
        if leftovers.next().is_some() {
            self.state.pending.addresses.insert(address);
            self.state.follow_up.no_later_than(now);
        }
    }

    fn learn_failure(&mut self, op: &Op, failure: &Failure, now: Duration) {
        if failure.errno.is_none() {
            // The kernel's answer is lost, so only a resync tells which Ops took effect.
            self.state.is_known = false;
        }
        if let Op::AddService(service) = op
            && failure.errno == Some(Errno::EXIST)
        {
            // Another program created it since the kernel was read. Whether it is adopted is decided after it is read.
            self.ledger.disown(&service.key);
        }
        if let Op::AddService(service) | Op::SetService(service) = op
            && failure.is_scheduler_missing()
            && let Some(scheduler) = service.scheduler
            && self.schedulers.lacks(
                scheduler.as_str(),
                &mut self.capabilities.missing_schedulers,
                now,
            )
        {
            // The next round plans this virtual server with the default scheduler, or with rr.
            self.state.pending.virtual_servers.insert(service.key);
            return;
        }
        self.retries.add(op.target(), now);
    }
}
