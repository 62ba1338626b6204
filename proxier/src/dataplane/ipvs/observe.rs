//! Reading the kernel: all of it at a resync, else what is due.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::state::address_drift;
use super::{Ipvs, Kernel, KernelParts, Wanted};
use crate::dataplane::ipvs::ledger::Owned;
use crate::dataplane::ipvs::op::Target;
use crate::dataplane::{Failure, Planned};
use crate::plan::{Capabilities, Changed};

impl<K: Kernel> Ipvs<K> {
    /// Reads what the plan depends on, before planning.
    pub(super) fn begin_resync(&mut self, planned: Planned<'_>) -> Result<(), Failure> {
        let before = std::mem::take(&mut self.capabilities);
        self.capabilities = Capabilities {
            // Each name is asked for once.
            missing_schedulers: before.missing_schedulers,
            foreign: before.foreign,
            ..Capabilities::default()
        };
        if let Some(rules) = &mut self.rules
            && rules.filter.needs_links()
        {
            rules.filter.set_links(&self.kernel.link_addresses()?);
        }
        let marks = self.set_mark_key(planned)?;
        if let Some(rules) = &mut self.rules {
            let wanted = Wanted::new(planned.desired(), &self.marks);
            let node = planned.snapshot.node();
            (rules.filter).follow(wanted, &Changed::default(), &marks, node);
        }
        self.state.pending.virtual_servers.extend(marks.servers);
        Ok(())
    }

    /// Reads the whole kernel. Returns whether other programs serve other frontends than before.
    pub(super) fn read_all(
        &mut self,
        planned: Planned<'_>,
        now: Duration,
    ) -> Result<bool, Failure> {
        let expected = self.state.expected();
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let owned = self.ledger.owned();
        self.drifted = (self.state).read(expected, &mut self.kernel, wanted, owned, now)?;
        // Here too: if resyncs are frequent, no other round may come.
        let due: Vec<ipvs::ServiceKey> = self.ledger.due(now).collect();
        due.iter().try_for_each(|key| self.count(key, now))?;
        self.inherit(planned);
        Ok(self.exclude_all_foreign(planned))
    }

    /// Records what is in the kernel already: virtual servers to adopt, drains that go on.
    pub(super) fn recognise(&mut self, planned: Planned<'_>, now: Duration) {
        self.own_lost(planned);
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let retired = self.ledger.retired().iter().map(|(key, _)| key);
        let draining = self.ledger.drains().virtual_servers().copied();
        let draining: Vec<_> = draining.chain(retired).collect();
        for key in &draining {
            if let Some(server) = wanted.get(key) {
                self.ledger.end_desired(key, &server);
            }
        }
        self.ledger.adopt(wanted, &self.state.observed, now);
    }

    /// Ends the reading of a resync. From now on the observed state can be trusted.
    ///
    /// The packet rules are checked here, because the guards of retired frontends are rules.
    pub(super) fn end_reading(&mut self, planned: Planned<'_>) -> Result<(), Failure> {
        if let Some(rules) = &mut self.rules {
            let wanted = Wanted::new(planned.desired(), &self.marks);
            match rules.recorded(&mut self.kernel, &self.ledger)? {
                Some(fingerprint) => rules.filter.trust(wanted, fingerprint),
                None => rules.filter.distrust(),
            }
        }
        // A difference in an object that this round changes anyway is no drift: another program need not
        // have caused it.
        let ours = &self.state.pending;
        let is_ours = |key: &_| ours.virtual_servers.contains(key);
        let drifted = &mut self.drifted;
        drifted.virtual_servers.retain(|key| !is_ours(key));
        let addresses = &mut drifted.addresses;
        addresses.retain(|address| !ours.addresses.contains(address));
        drifted.carrier &= !ours.carrier;
        // The full comparison repeats each failed Op that is still needed.
        self.retries.try_all();
        self.state.is_known = true;
        self.state.knows_addresses = true;
        self.state.suspects_drift = false;
        self.state.follow_up.clear();
        Ok(())
    }

    /// Reads the virtual servers whose failed Ops or draining destinations are due.
    ///
    /// Finds drift of the service addresses, if another program changed any. Only a resync finds other drift.
    pub(super) fn read_due(
        &mut self,
        planned: Planned<'_>,
        now: Duration,
    ) -> Result<bool, Failure> {
        let retries = self.retries.take_due(now);
        self.state.follow_up.clear();
        // The retry timers are cleared already, so after a failed read no timer names the remaining keys.
        // Then the next round reads everything.
        self.state.is_known = false;
        let mut due: BTreeSet<_> = self.ledger.due(now).collect();
        for target in retries {
            match target {
                Target::Server(key) => _ = due.insert(key),
                Target::Address(address) => _ = self.state.pending.addresses.insert(address),
                // Every round compares it.
                Target::Carrier => {}
            }
        }
        for key in due {
            self.count(&key, now)?;
            self.state.pending.virtual_servers.insert(key);
        }
        self.state.is_known = true;
        self.drifted = self.read_addresses()?;
        let keys = std::mem::take(&mut self.state.pending.virtual_servers);
        let has_more = self.exclude_foreign(planned, keys.iter().copied());
        self.state.pending.virtual_servers = keys;
        Ok(has_more)
    }

    /// Reads a virtual server, and counts the connections of what drains at it.
    fn count(&mut self, key: &ipvs::ServiceKey, now: Duration) -> Result<(), Failure> {
        let found = self.kernel.virtual_server(key)?;
        self.ledger.count(key, found.as_ref(), now);
        self.count_retired(key, found.as_ref(), now)?;
        let servers = &mut self.state.observed.virtual_servers;
        match found {
            Some(found) => servers.insert(*key, found.server),
            None => servers.remove(key),
        };
        Ok(())
    }

    /// Reads the service addresses if another program may have changed any. Returns the drift.
    fn read_addresses(&mut self) -> Result<KernelParts, Failure> {
        if self.state.knows_addresses {
            return Ok(KernelParts::default());
        }
        let found = self.kernel.addresses()?;
        let leftovers = found.leftovers.iter().map(|&(address, _)| address);
        let others: Vec<IpAddr> = leftovers.chain(found.outdated.iter().copied()).collect();
        let before = self.state.observed.replace_addresses(found);
        let expected = (&before.addresses, before.carrier);
        let mut drifted = address_drift(expected, &self.state.observed);
        let pending = &mut self.state.pending;
        let ours = std::mem::take(&mut pending.addresses);
        let addresses = drifted.addresses.iter().copied();
        pending.addresses.extend(addresses.chain(others));
        pending.addresses.extend(&ours);
        drifted.addresses.retain(|address| !ours.contains(address));
        self.state.knows_addresses = true;
        // Our own Ops make the addresses unknown too: the kernel deletes routes with a device's last address.
        match std::mem::take(&mut self.state.suspects_drift) {
            true => Ok(drifted),
            false => Ok(KernelParts::default()),
        }
    }
}

/// Returns the addresses of the machine at which owned virtual servers serve node ports, while our Node is unknown.
pub(super) fn node_port_addresses(planned: Planned<'_>, owned: &Owned) -> BTreeSet<IpAddr> {
    planned.earlier_node_ports(owned.iter().filter_map(|(key, _)| match key {
        ipvs::ServiceKey::Address { address, port, .. } => Some((address, port)),
        _ => None,
    }))
}
