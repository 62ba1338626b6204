//! The elements of addresses, which their frontends share.

use std::net::IpAddr;

use super::Filter;
use super::names::ARP_ADDRESSES;
use super::view::{Admission, View};
use crate::dataplane::packet_rules::{PINGABLE, Part, SERVICE_ADDRESSES};
use crate::plan::{Availability, Scope};

impl Filter {
    /// Adds the parts of `address`.
    ///
    /// # Cost
    /// Linear in the frontends at the address, if none of them has endpoints.
    pub(super) fn add_address(&self, address: IpAddr, view: View<'_>, add: &mut dyn FnMut(Part)) {
        let key = || [address.into()];
        let is_guarded = self.guards.addresses.contains(&address);
        let is_local = is_guarded || view.plan.has_address(address);
        if is_local {
            add(Part::member(SERVICE_ADDRESSES.of(address.into()), key()));
        }
        let has_endpoints = |it: Admission<'_>| it.access.endpoints != Availability::None;
        if view.admissions_at(address).any(has_endpoints) {
            add(Part::member(PINGABLE.of(address.into()), key()));
        }
        if !self.config.hides_arp || !address.is_ipv4() || !is_local {
            return;
        }
        // After a restart it is unknown whether an address that is no longer desired was external, so each of them
        // is hidden.
        let is_external = |it: Admission<'_>| it.access.scope == Scope::External;
        let is_external = || view.admissions_at(address).any(is_external);
        if is_guarded || self.guards.hide(address) || is_external() {
            add(Part::member(ARP_ADDRESSES, key()));
        }
    }
}
