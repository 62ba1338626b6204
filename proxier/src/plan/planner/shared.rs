//! Addresses that several Services use.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

/// Addresses of the plan that several Services use, each with the number of users.
///
/// Most addresses of the plan have one user and are not here.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedAddresses(BTreeMap<IpAddr, u32>);

impl SharedAddresses {
    /// Adds a user of an address that has one already.
    pub(super) fn add_user(&mut self, address: IpAddr) {
        *self.0.entry(address).or_insert(1) += 1;
    }

    /// Removes a user of an address. Returns whether it was the last one.
    pub(super) fn remove_user(&mut self, address: IpAddr) -> bool {
        let Entry::Occupied(mut users) = self.0.entry(address) else {
            return true;
        };
        *users.get_mut() -= 1;
        if *users.get() == 1 {
            users.remove();
        }
        false
    }
}
