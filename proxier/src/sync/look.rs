//! Learning what is: the plan follows events, what is known follows the machine.

use std::collections::BTreeSet;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::{Error, Proxier, drained, draining};
use crate::dataplane::Dataplane;
use crate::drain::Drains;
use crate::observed::Observed;
use crate::plan::{Changed, Desired};
use crate::state_file::Record;
use crate::store::Touched;

impl<D: Dataplane> Proxier<D> {
    pub(super) fn update_plan(&mut self) {
        let touched = std::mem::replace(&mut self.touched, Touched::none());
        let changed = self.planner.update(&self.snapshot, &self.machine, touched);
        for key in &changed.virtual_servers {
            self.call_back(*key);
        }
        if let Some(packets) = &mut self.packets {
            let desired = self.planner.desired();
            let node = self.snapshot.node();
            packets.follow(&changed, desired, node, &self.machine, self.input);
        }
        self.pending.extend(&changed);
    }

    /// Ends the draining of destinations that are wanted.
    fn call_back(&mut self, key: ipvs::ServiceKey) {
        let Some(wanted) = self.planner.desired().virtual_servers.get(&key) else {
            return;
        };
        let drains = &mut self.state.drains;
        for destination in drains.of(&key) {
            if wanted.has_destination(&destination) {
                drains.end(&key, &destination);
                self.unwritten.extend(drained(key, destination));
            }
        }
    }

    /// Reads machine and tables, and plans; answers what the plan changed.
    pub(super) fn read(&mut self, now: Duration) -> Result<Changed, Error> {
        let mut machine = self.dataplane.machine()?;
        machine.missing_schedulers = std::mem::take(&mut self.machine.missing_schedulers);
        self.machine = machine;
        self.pending = Changed::default();
        self.update_plan();
        self.known = self.dataplane.observe(self.planner.desired())?;
        self.is_known = true;
        self.look_at_rules()?;
        self.recognise_drains(now);
        self.retries.all();
        Ok(std::mem::take(&mut self.pending))
    }

    /// Reads again what failed and counts what drains, where that is due.
    pub(super) fn look_at_due(&mut self, now: Duration) -> Result<(), Error> {
        let drains = self.state.drains.due(now);
        let retries = self.retries.due(now);
        for key in drains.into_iter().chain(retries) {
            let found = self.dataplane.virtual_server(&key)?;
            let gone = self.state.drains.counted(&key, found.as_ref(), now);
            let gone = gone.iter();
            self.unwritten
                .extend(gone.filter_map(|destination| drained(key, *destination)));
            match found {
                Some(found) => self.known.virtual_servers.insert(key, found.server),
                None => self.known.virtual_servers.remove(&key),
            };
            self.pending.virtual_servers.insert(key);
        }
        self.pending
            .addresses
            .extend(self.retries.due_addresses(now));
        Ok(())
    }

    /// Keeps the destinations of a virtual server in memory once, where they are as planned.
    pub(super) fn share(&mut self, key: &ipvs::ServiceKey) {
        let wanted = self.planner.desired().virtual_servers.get(key);
        let known = self.known.virtual_servers.get_mut(key);
        if let (Some(wanted), Some(known)) = (wanted, known) {
            known.destinations.share(&wanted.destinations);
        }
    }

    /// Finds out whether the packet rules have to be looked at: they are gone, or somebody has changed
    /// something, be it in another table, since we did last.
    fn look_at_rules(&mut self) -> Result<(), Error> {
        let Some(packets) = &mut self.packets else {
            return Ok(());
        };
        match (self.dataplane.rules_generation()?, self.state.rules) {
            (None, _) => packets.lost(),
            (Some(now), Some((then, fingerprint))) if now == then => packets.trust(fingerprint),
            (Some(_), _) => packets.distrust(),
        }
        Ok(())
    }

    /// Finds destinations that drain though nobody noted it: unwanted, with weight 0. So they were left
    /// by a process that died, or by a return to service that failed.
    fn recognise_drains(&mut self, now: Duration) {
        let draining: BTreeSet<_> = self.state.drains.iter().map(|(key, ..)| key).collect();
        for key in draining {
            self.call_back(key);
        }
        let desired = self.planner.desired();
        for key in desired.virtual_servers.keys() {
            let records = recognise(*key, desired, &self.known, now, &mut self.state.drains);
            self.unwritten.extend(records);
        }
    }

    /// The same for what is about to be compared.
    pub(super) fn recognise_pending_drains(&mut self, now: Duration) {
        let desired = self.planner.desired();
        for key in &self.pending.virtual_servers {
            let records = recognise(*key, desired, &self.known, now, &mut self.state.drains);
            self.unwritten.extend(records);
        }
    }

    /// What of ours is not what we left.
    pub(super) fn drift(&self, expected: &Observed) -> Changed {
        let mut drifted = Changed::default();
        let found = &self.known;
        let desired = self.planner.desired();
        for key in desired.virtual_servers.keys() {
            let (before, now) = (
                expected.virtual_servers.get(key),
                found.virtual_servers.get(key),
            );
            if before != now {
                drifted.virtual_servers.insert(*key);
            }
        }
        for (address, source) in &expected.addresses {
            if found.addresses.get(address) != Some(source) {
                drifted.addresses.insert(*address);
            }
        }
        for address in found.addresses.keys() {
            if !expected.addresses.contains_key(address) {
                drifted.addresses.insert(*address);
            }
        }
        drifted
    }
}

/// Answers the records of what it found.
fn recognise(
    key: ipvs::ServiceKey,
    desired: &Desired,
    known: &Observed,
    now: Duration,
    drains: &mut Drains,
) -> Vec<Record> {
    let wanted = desired.virtual_servers.get(&key);
    let found = known.virtual_servers.get(&key);
    let (Some(wanted), Some(found)) = (wanted, found) else {
        return Vec::new();
    };
    let quiet = found.destinations.iter();
    let quiet = quiet.filter(|destination| destination.weight == 0);
    let unwanted = quiet.filter(|destination| !wanted.has_destination(&destination.key));
    let deadline = now + wanted.drain;
    unwanted
        .filter(|destination| drains.begin(key, destination.key, now, deadline))
        .filter_map(|destination| draining(key, destination.key, deadline))
        .collect()
}
