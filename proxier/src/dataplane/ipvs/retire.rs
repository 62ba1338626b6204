//! Retiring: virtual servers that an edit of their Service made stale keep their connections.
//!
//! An edit of a Service must not break a connection whose endpoint exists. So the stale virtual servers
//! are retired ([`crate::dataplane::ipvs::ledger::Retired`]): their frontends reject new connections, and their addresses
//! stay local. If the Service is deleted, its retired virtual servers are deleted at once.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::{Ipvs, Kernel, Wanted, foreign};
use crate::cluster::model::{Protocol, ServicePortName};
use crate::cluster::store::{Snapshot, Touched};
use crate::dataplane::ipvs::observed::CountedServer;
use crate::dataplane::{Failure, Planned};
use crate::plan;
use crate::plan::frontend::Frontend;

/// Marks with fewer bits may be those of other programs.
const FEW_BITS: u32 = 9;

impl<K: Kernel> Ipvs<K> {
    /// Retires the virtual servers among `stale` whose Service exists, and guards their frontends.
    ///
    /// Ends the retirement of a virtual server whose Service was deleted.
    pub(super) fn retire_servers(
        &mut self,
        planned: Planned<'_>,
        stale: &[ipvs::ServiceKey],
        now: Duration,
    ) {
        if stale.is_empty() {
            return;
        }
        let territory = self.territory(planned);
        for &key in stale {
            let is_found = self.state.observed.virtual_servers.contains_key(&key);
            let drain = match is_found && territory.is_ours(&key, self.ledger.owned()) {
                true => self.drain_time(planned, &key),
                false => Duration::ZERO,
            };
            // Another program deleted it, and its connections with it; or the Ops of this round do, if it is
            // ours.
            if drain.is_zero() {
                self.ledger.end_retirement(&key);
                continue;
            }
            self.ledger.retire(key, now, now + drain);
            if let (Some(rules), Some(frontend)) = (&mut self.rules, Frontend::of(&key)) {
                let wanted = Wanted::new(planned.desired(), &self.marks);
                rules.filter.retire(wanted, frontend);
            }
        }
    }

    /// Returns every stale virtual server, observed or retired. Retirements of desired ones must have ended.
    pub(super) fn retirable(&self, planned: Planned<'_>) -> Vec<ipvs::ServiceKey> {
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let observed = self.state.observed.virtual_servers.keys();
        let stale = observed.filter(|key| !wanted.contains(key));
        let retired = self.ledger.retired().iter().map(|(key, _)| key);
        retired.chain(stale).collect()
    }

    /// Returns how long a stale virtual server may keep its connections; zero if it is deleted at once.
    ///
    /// Only TCP drains, as for destinations: a UDP client may send from one port for ever. (If IPVS leaves the node, all
    /// drain.) A virtual server
    /// in the service ranges without a record may belong to a Service that exists, so it drains too.
    fn drain_time(&self, planned: Planned<'_>, key: &ipvs::ServiceKey) -> Duration {
        // IPVS gets packets before local sockets do. A retired virtual server would reject new connections
        // for the program that serves at a yielded device.
        let yielded = &planned.machine.yielded;
        if key
            .address()
            .is_some_and(|address| yielded.contains_key(&address))
        {
            return Duration::ZERO;
        }
        // Versions in which marks had no key may have given a Service the mark of another program. Until it is deleted,
        // its virtual server takes all packets with this mark.
        if let ipvs::ServiceKey::Mark { mark, .. } = *key
            && mark.count_ones() < FEW_BITS
        {
            return Duration::ZERO;
        }
        let Some(owner) = self.ledger.owned().owner(key) else {
            let is_tcp = matches!(
                key,
                ipvs::ServiceKey::Address {
                    protocol: ipvs::Protocol::Tcp,
                    ..
                }
            );
            return match is_tcp || self.flows.is_leaving {
                true => planned.config().drain,
                false => Duration::ZERO,
            };
        };
        if *owner == foreign::nobody() {
            // A Service may exist whose clients inside have had another mark since the ledger was lost. An endpoint's address
            // may be another tenant's, but no new connection gets this mark.
            return match key.address() {
                None => planned.config().drain,
                Some(_) => Duration::ZERO,
            };
        }
        // While the address stays local, this node cannot reach the machine that has it.
        if (key.address()).is_some_and(|it| planned.planner.is_elsewhere(&it, &owner.service)) {
            return Duration::ZERO;
        }
        let snapshot = planned.snapshot;
        let has_servers = || {
            let found = self.state.observed.virtual_servers.get(key);
            let is_used = found.is_some_and(|found| !found.destinations.is_empty());
            is_used || !self.inside(key).is_empty()
        };
        let may_drain = self.flows.is_leaving || self.is_tcp(key, owner);
        if !snapshot.has_service(&owner.service) || !may_drain || !has_servers() {
            return Duration::ZERO;
        }
        let config = planned.config();
        let service = snapshot.service(&owner.service);
        service.map_or(config.drain, |service| plan::drain(service, config))
    }

    /// Returns the observed virtual servers of this frontend's inside marks. While an earlier mark drains, there are
    /// two.
    fn inside(&self, key: &ipvs::ServiceKey) -> Vec<ipvs::ServiceKey> {
        let owned = self.ledger.owned();
        let (Some(_), Some(owner)) = (key.address(), owned.owner(key)) else {
            return Vec::new();
        };
        let marks = self.state.marks().filter(|mark| {
            mark.family() == key.family()
                && owned.owner(mark) == Some(owner)
                && (self.flows.is_leaving || self.is_tcp(mark, owner))
        });
        marks.collect()
    }

    /// Returns whether the virtual server `key` of `owner` serves TCP.
    fn is_tcp(&self, key: &ipvs::ServiceKey, owner: &ServicePortName) -> bool {
        match *key {
            ipvs::ServiceKey::Address { protocol, .. } => protocol == ipvs::Protocol::Tcp,
            // The key has no protocol, but the mark is the hash of one. A mark of a key that was lost counts as
            // TCP: its connections end in their time, at the latest at the deadline.
            ipvs::ServiceKey::Mark { family, mark } => {
                let is_of = |protocol| self.marks.may_be_of(mark, owner, protocol, family);
                !is_of(Protocol::Udp) && !is_of(Protocol::Sctp)
            }
            _ => false,
        }
    }

    /// Counts the connections of `key`, which the kernel has as `found`, if it is retired.
    ///
    /// # Errors
    /// If the virtual server of its firewall mark cannot be read.
    pub(super) fn count_retired(
        &mut self,
        key: &ipvs::ServiceKey,
        found: Option<&CountedServer>,
        now: Duration,
    ) -> Result<(), Failure> {
        if !self.ledger.retired().contains(key) {
            return Ok(());
        }
        let mut inside = Vec::new();
        for mark in self.inside(key) {
            inside.extend(self.kernel.virtual_server(&mark)?);
        }
        self.ledger.count_retired(key, found, &inside, now);
        Ok(())
    }

    /// Adds the retired virtual servers of deleted Services to those that the next round compares.
    ///
    /// # Cost
    /// Linear in the retired virtual servers, and only if a Service was deleted.
    pub(super) fn release_orphans(&mut self, snapshot: &Snapshot, touched: &Touched) {
        let retired = self.ledger.retired();
        if retired.is_empty() || !snapshot.may_have_deleted(touched) {
            return;
        }
        let owned = self.ledger.owned();
        let is_orphan = |key: &ipvs::ServiceKey| {
            let owner = owned.owner(key);
            owner.is_some_and(|owner| !snapshot.has_service(&owner.service))
        };
        let keys = retired.iter().map(|(key, _)| key).filter(is_orphan);
        self.state.pending.virtual_servers.extend(keys);
    }

    /// Returns the addresses of retired virtual servers, which stay local.
    ///
    /// Skips the addresses of node ports, because another machine may have such an address by now.
    ///
    /// # Cost
    /// Linear in the retired virtual servers.
    pub(super) fn kept_addresses(&self, planned: Planned<'_>) -> BTreeSet<IpAddr> {
        let (before, observed) = (planned.planner.kept_addresses(), &self.state.observed);
        let is_service_address = |address: &IpAddr| {
            !planned.machine.has(address)
                && (before.contains(address) || observed.has_address(*address))
        };
        let retired = self.ledger.retired().addresses();
        retired.filter(is_service_address).collect()
    }
}
