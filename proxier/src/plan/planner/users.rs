//! Addresses, each with the number of Services that use it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use crate::packed;

/// The number of Services that use each address.
#[derive(Clone, Debug, Default)]
pub(super) struct Users(BTreeMap<IpAddr, u32>);

impl Users {
    /// Frees the spare memory of the map.
    pub(super) fn pack(&mut self) {
        packed::pack(&mut self.0);
    }

    pub(super) fn add(&mut self, address: IpAddr) {
        *self.0.entry(address).or_default() += 1;
    }

    /// Returns whether the removed user was the last one.
    pub(super) fn remove(&mut self, address: IpAddr) -> bool {
        let Entry::Occupied(mut users) = self.0.entry(address) else {
            return false;
        };
        *users.get_mut() -= 1;
        let is_last = *users.get() == 0;
        if is_last {
            users.remove();
        }
        is_last
    }
}
