//! Changing the machine, and drawing conclusions.

use std::time::Duration;

use super::compare::first_addresses;
use super::{Applied, Input, Proxier, drained, draining};
use crate::conntrack::{Stale, Swept};
use crate::dataplane::{Dataplane, Failure, Outcome};
use crate::op::Op;
use crate::plan::Changed;
use crate::retry::Wait;
use crate::state_file::{Key, Record};

/// How soon flows are looked through again after that failed.
const SWEEP_AGAIN: Duration = Duration::from_secs(5);

impl<D: Dataplane> Proxier<D> {
    pub(super) fn apply(&mut self, mut ops: Vec<Op>, now: Duration) -> Applied {
        self.adopt(&ops);
        let ahead = self.go_ahead(&ops);
        let mut outcomes = self.dataplane.apply(&ops[..ahead]);
        let tightened = self.program_rules(&mut ops, ahead, now);
        outcomes.extend(self.dataplane.apply(&ops[ahead..]));
        let mut records = Vec::new();
        let mut results = outcomes.iter();
        // The Ops of a virtual server follow each other. Those of addresses have none.
        for run in ops.chunk_by(|a, b| a.service_key() == b.service_key()) {
            for (op, outcome) in run.iter().zip(&mut results) {
                match outcome {
                    Ok(()) => {
                        self.learn(op, now, &mut records);
                        self.strays.record(op, &self.known, now);
                        self.known.record(op);
                    }
                    Err(failure) => self.fail(op, failure, now),
                }
            }
            if let Some(key) = run.first().and_then(Op::service_key) {
                self.share(&key);
            }
        }
        self.retries.settle();
        let loosened = self.loosen_rules(now);
        let flows = self.sweep_flows(&ops, &outcomes, now);
        self.unwritten.append(&mut records);
        let unrecorded = self.write_records().err();
        match unrecorded {
            Some(_) => self.record_again.failed(now),
            None => self.record_again = Wait::default(),
        }
        Applied {
            rules: loosened.or(tightened),
            flows,
            ops,
            outcomes,
            unrecorded,
            drifted: Changed::default(),
        }
    }

    /// On a node that starts: sets the rules of the addresses that come before all others, and says
    /// how many of the Ops, which are in order, need not wait for more rules than these.
    fn go_ahead(&mut self, ops: &[Op]) -> usize {
        let lost = self.packets.as_mut().filter(|packets| packets.are_lost());
        let Some(packets) = lost else {
            return 0;
        };
        let first = first_addresses(&self.snapshot);
        let is_first = |op: &&Op| op.address().is_some_and(|it| first.contains(&it));
        let count = ops.iter().take_while(is_first).count();
        if count > 0 && packets.begin(&first, self.planner.desired(), &mut self.dataplane) {
            count
        } else {
            0
        }
    }

    /// Sets the packet rules before the frontends that need them, but for what only loosens them.
    /// While the kernel has not got them, no frontend comes that not everybody may use. The Ops that
    /// went `ahead` stay.
    fn program_rules(
        &mut self,
        ops: &mut Vec<Op>,
        ahead: usize,
        now: Duration,
    ) -> Option<Result<(), Failure>> {
        let territory = self.territory();
        let packets = self.packets.as_mut()?;
        let (owned, input) = (&self.state.owned, self.input);
        packets.guard_leftovers(&self.known, self.planner.desired(), &self.machine, |key| {
            input == Input::Whole && territory.is_ours(key, owned)
        });
        // What needs no Op of this round need not wait for one.
        packets.release(&self.known);
        let outcome = self.set_rules(now);
        if !self.packets.as_ref()?.is_in_step() {
            self.hold_back(ops, ahead);
        }
        outcome
    }

    /// Takes the Ops that bring a frontend that not everybody may use out of those after the first
    /// `ahead`; they come again with the next round.
    fn hold_back(&mut self, ops: &mut Vec<Op>, ahead: usize) {
        let (keys, addresses) = self.planner.desired().restricted();
        let (known, pending) = (&self.known.virtual_servers, &mut self.pending);
        for op in ops.split_off(ahead) {
            match (op.service_key(), op) {
                (Some(key), _) if keys.contains(&key) && !known.contains_key(&key) => {
                    pending.virtual_servers.insert(key);
                }
                (None, Op::AddAddress(address, _)) if addresses.contains(&address) => {
                    pending.addresses.insert(address);
                }
                _ => ops.push(op),
            }
        }
    }

    /// Takes out of the packet rules what the Ops made superfluous. What did not take effect keeps
    /// its guards until it does.
    fn loosen_rules(&mut self, now: Duration) -> Option<Result<(), Failure>> {
        let packets = self.packets.as_mut()?;
        // Rules that are not in step are set as a whole when they are tried again.
        if !packets.release(&self.known) || !packets.is_in_step() {
            return None;
        }
        self.set_rules(now)
    }

    /// Sets what changed in the packet rules, and sees to it that it is recorded.
    fn set_rules(&mut self, now: Duration) -> Option<Result<(), Failure>> {
        let packets = self.packets.as_mut()?;
        let outcome = packets.program(&mut self.dataplane, now)?;
        if let (Ok(Some(generation)), Some(fingerprint)) = (&outcome, packets.fingerprint()) {
            let generation = *generation;
            self.state.rules = Some((generation, fingerprint));
            self.unwritten.push(Record::Rules {
                generation,
                fingerprint,
            });
        }
        Some(outcome.map(drop))
    }

    /// Forgets UDP and SCTP flows whose endpoint is gone, or whose frontend is new, and answers that
    /// came when their endpoint was gone.
    fn sweep_flows(
        &mut self,
        ops: &[Op],
        outcomes: &[Outcome],
        now: Duration,
    ) -> Option<Result<Swept, Failure>> {
        let done = ops.iter().zip(outcomes);
        let done = done
            .filter(|(_, outcome)| outcome.is_ok())
            .map(|(op, _)| op);
        for op in done {
            if let Some(key) = op.service_key().filter(|_| Stale::may_result_from(op)) {
                self.unswept.insert(key, *op);
            }
        }
        let mut stale = Stale::from_ops(self.unswept.values(), self.planner.desired());
        stale.set_returned(self.strays.due(now));
        if stale.is_empty() {
            self.unswept.clear();
            return None;
        }
        let result = self.dataplane.sweep_flows(&stale);
        match &result {
            Ok(_) => {
                self.unswept.clear();
                self.strays.record_sweep(stale.returned());
            }
            Err(_) => {
                self.retries.at_once(now + SWEEP_AGAIN);
                self.strays.postpone(stale.returned(), now + SWEEP_AGAIN);
            }
        }
        Some(result)
    }

    /// Records as ours what is about to be programmed, so that a process that dies meanwhile leaves
    /// nothing that the next one takes for foreign.
    fn adopt(&mut self, ops: &[Op]) {
        let (mut last, mut count) = (None, 0);
        for key in ops.iter().filter_map(Op::service_key) {
            if last == Some(key) {
                continue;
            }
            last = Some(key);
            let Some(wanted) = self.planner.desired().virtual_servers.get(&key) else {
                continue;
            };
            if self.state.owned.is_for(&key, &wanted.owner) {
                continue;
            }
            let name = wanted.owner.to_string();
            self.state.owned.insert(key, &name);
            self.unwritten
                .extend(Key::new(key).map(|server| Record::Own {
                    server,
                    service: name.into(),
                }));
            count += 1;
        }
        if count > self.state.owned.len() / 2 {
            self.state.owned.pack();
        }
        if count > 0 {
            // What fails here is tried once more at the end of the round.
            let _ = self.write_records();
        }
    }

    /// Writes down what was learnt.
    fn write_records(&mut self) -> Result<(), Failure> {
        let written = self.state_file.append(&self.unwritten, &self.state);
        self.unwritten.clear();
        Ok(written?)
    }

    /// Draws the conclusions of an Op that took effect.
    fn learn(&mut self, op: &Op, now: Duration, records: &mut Vec<Record>) {
        let drains = &mut self.state.drains;
        match *op {
            Op::SetDestination(key, destination) => {
                let wanted = self.planner.desired().virtual_servers.get(&key);
                let unwanted = wanted.filter(|wanted| !wanted.has_destination(&destination.key));
                if let Some(server) = unwanted {
                    let deadline = now + server.drain;
                    if drains.begin(key, destination.key, now, deadline) {
                        records.extend(draining(key, destination.key, deadline));
                    }
                }
            }
            Op::DeleteDestination(key, destination) => {
                let was_draining = drains.end(&key, &destination);
                records.extend(drained(key, destination).filter(|_| was_draining));
            }
            Op::DeleteService(key) => {
                drains.end_all(&key);
                if self.state.owned.remove(&key) {
                    records.extend(Key::new(key).map(|server| Record::Disown { server }));
                }
            }
            _ => {}
        }
    }

    /// Sees to it that a failed Op is tried again.
    fn fail(&mut self, op: &Op, failure: &Failure, now: Duration) {
        if failure.errno.is_none() {
            // The socket failed: nobody knows what took effect.
            self.is_known = false;
        }
        if let Op::AddService(service) | Op::SetService(service) = op
            && failure.is_scheduler_missing()
            && let Some(scheduler) = service.scheduler
            && self.machine.missing_schedulers.insert(scheduler)
        {
            // Planned again with the cluster's, or with rr, at once.
            self.pending.virtual_servers.insert(service.key);
            self.retries.at_once(now);
            return;
        }
        self.retries.add(op, now);
    }
}
