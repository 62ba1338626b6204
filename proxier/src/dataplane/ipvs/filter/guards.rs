//! Guards: rules that stay until the kernel no longer needs them.
//!
//! The rules of a removed frontend are deleted in one transaction, and its virtual server by a later Op.
//! Between the two, IPVS would admit clients outside the source ranges, and daemons of the node would
//! answer at the service address. So until [`Filter::release`], a removed frontend keeps its guard, and
//! connections to a removed service address stay rejected.
//!
//! A virtual server that is missing, because another program deleted it, is guarded by a rule behind IPVS too, and not by
//! taking its address away: another port of the address may have its virtual server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use super::Filter;
use super::admission::{guard, refusing};
use super::view::{Subjects, View, has_rules};
use crate::dataplane::ipvs::Wanted;
use crate::dataplane::ipvs::observed::{Observed, ObservedServer};
use crate::dataplane::packet_rules::Part;
use crate::plan::Machine;
use crate::plan::frontend::Frontend;

/// The rules that reject clients of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    pub(super) parts: Vec<Part>,
    /// Whether the frontend's address stays hidden from ARP as long as the guard stays.
    pub(super) hides: bool,
}

/// The guards and service addresses that stay although the plan does not need them.
#[derive(Clone, Debug, Default)]
pub(super) struct Guards {
    pub(super) frontends: BTreeMap<Frontend, Guard>,
    pub(super) addresses: BTreeSet<IpAddr>,
}

impl Guards {
    /// Returns whether the guard of a frontend at `address` hides it.
    pub(super) fn hide(&self, address: IpAddr) -> bool {
        let mut guards = self.frontends.range(Frontend::range_at(address));
        guards.any(|(_, guard)| guard.hides)
    }
}

impl Filter {
    /// Keeps the guards and addresses that the plan needed before and does not need now.
    pub(super) fn keep_guards(&mut self, subjects: &Subjects, before: View<'_>, now: View<'_>) {
        let guards = &mut self.guards;
        for frontend in &subjects.frontends {
            let in_view = |view: View<'_>| {
                let access = view.admission(frontend)?.access;
                guard(frontend, access, &self.node)
            };
            if in_view(now).is_some() {
                guards.frontends.remove(frontend);
            } else if let Some(needed) = in_view(before) {
                guards.frontends.insert(*frontend, needed);
            }
        }
        for &address in &subjects.addresses {
            if now.plan.has_address(address) {
                guards.addresses.remove(&address);
            } else if before.plan.has_address(address) {
                guards.addresses.insert(address);
            }
        }
    }

    /// Rejects new connections to stale frontends and service addresses until [`Filter::release`].
    ///
    /// Needed before a write of the whole table: the kernel may have virtual servers of an earlier process,
    /// for which the table lacks guards.
    pub fn guard(
        &mut self,
        wanted: Wanted<'_>,
        frontends: impl IntoIterator<Item = Frontend>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) {
        let guards = &self.guards.frontends;
        let frontends = frontends.into_iter().filter(|it| !guards.contains_key(it));
        let desired = &wanted.desired().addresses;
        let addresses = addresses.into_iter().filter(|it| !desired.contains_key(it));
        self.refuse(wanted, frontends.collect(), addresses.collect());
    }

    /// Rejects new connections to the frontend of a retired virtual server until [`Filter::release`].
    ///
    /// The new guard does not depend on the guard that the frontend had. So the rules of a new process equal
    /// those that an earlier process wrote, and need no write.
    pub fn retire(&mut self, wanted: Wanted<'_>, frontend: Frontend) {
        self.refuse(wanted, vec![frontend], Vec::new());
    }

    /// Guards those frontends that are not desired, and these addresses.
    fn refuse(&mut self, wanted: Wanted<'_>, mut frontends: Vec<Frontend>, addresses: Vec<IpAddr>) {
        let desired = &wanted.desired().frontends;
        frontends.retain(|frontend| has_rules(frontend) && !desired.contains_key(frontend));
        let now = View::now(wanted);
        let subjects = Subjects::at(&frontends, &addresses);
        self.change([now, now], &subjects, |filter| {
            let refusing = |frontend| (frontend, refusing(&frontend));
            let guards = &mut filter.guards;
            guards.frontends.extend(frontends.into_iter().map(refusing));
            guards.addresses.extend(addresses);
        });
    }

    /// Removes the guards that are not needed in the state `observed`. Returns whether there were any.
    ///
    /// These are the guards of stale frontends that the kernel no longer has, of desired frontends that have
    /// a destination with a weight above 0, and of addresses that are no longer service addresses.
    ///
    /// # Cost
    /// Proportional to the number of guards.
    pub fn release(&mut self, wanted: Wanted<'_>, observed: &Observed, machine: &Machine) -> bool {
        let is_needless = |frontend: &Frontend| {
            let key = ipvs::ServiceKey::from(*frontend);
            let server = observed.virtual_servers.get(&key);
            if wanted.desired().frontends.contains_key(frontend) {
                server.is_some_and(ObservedServer::accepts_connections)
            } else {
                server.is_none()
            }
        };
        let is_gone = |address: &IpAddr| !observed.has_address(*address) || machine.has(address);
        let frontends = self.guards.frontends.keys().copied();
        let frontends: Vec<Frontend> = frontends.filter(is_needless).collect();
        let addresses = self.guards.addresses.iter().copied();
        let addresses: Vec<IpAddr> = addresses.filter(is_gone).collect();
        let now = View::now(wanted);
        let subjects = Subjects::at(&frontends, &addresses);
        self.change([now, now], &subjects, |filter| {
            for frontend in &frontends {
                filter.guards.frontends.remove(frontend);
            }
            for address in &addresses {
                filter.guards.addresses.remove(address);
            }
        });
        !frontends.is_empty() || !addresses.is_empty()
    }
}
