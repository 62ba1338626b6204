//! The owned virtual servers, and the rules that decide whether one may be deleted.
//!
//! Addresses need no record: the kernel stores our protocol number with our routes, and our other addresses
//! are on our own device.

use ipvs_netlink as ipvs;

use crate::cluster::model::{Cidr, ServicePortName};
use crate::dataplane::ipvs::split_map::SplitMap;

/// The virtual servers that were created or adopted, each with the Service port that it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    owners: SplitMap<ipvs::ServiceKey, ServicePortName>,
}

impl Owned {
    /// Returns the Service port of an owned virtual server.
    pub fn owner(&self, key: &ipvs::ServiceKey) -> Option<&ServicePortName> {
        self.owners.get(key)
    }

    /// Returns whether a virtual server is owned.
    pub fn contains(&self, key: &ipvs::ServiceKey) -> bool {
        self.owners.contains_key(key)
    }

    /// Returns whether a virtual server is owned and serves `owner`. Shares the memory of `owner` then: a
    /// name that was read from the file has its own.
    pub(super) fn is_for(&mut self, key: &ipvs::ServiceKey, owner: &ServicePortName) -> bool {
        let known = self.owners.get_mut(key).filter(|known| *known == owner);
        if let Some(known) = known {
            known.clone_from(owner);
            return true;
        }
        false
    }

    pub(super) fn insert(&mut self, key: ipvs::ServiceKey, owner: ServicePortName) {
        self.owners.insert(key, owner);
    }

    /// Removes a virtual server. Returns whether it was owned.
    pub(super) fn remove(&mut self, key: &ipvs::ServiceKey) -> bool {
        self.owners.remove(key).is_some()
    }

    /// Returns the number of owned virtual servers.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Returns whether no virtual server is owned.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(super) fn pack(&mut self) {
        self.owners.pack();
    }

    /// Returns every owned virtual server, in their order.
    pub fn keys(&self) -> impl Iterator<Item = ipvs::ServiceKey> {
        self.owners.keys()
    }

    /// Returns every owned virtual server with its Service port, in order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (ipvs::ServiceKey, &ServicePortName)> {
        self.owners.iter()
    }
}

/// The address ranges that decide about ownership beside the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Territory {
    /// The cluster's service ranges. A virtual server in them is ours even without a record, because no
    /// other program serves the cluster IPs of this cluster. So after the loss of the ledger, stale ones
    /// are still deleted. None of them is doubtful.
    pub ours: Vec<Cidr>,
    /// Ranges in which no virtual server is ever deleted (`--ipvs-exclude-cidrs`).
    pub excluded: Vec<Cidr>,
}

impl Territory {
    /// Returns whether a stale virtual server may be deleted.
    pub(crate) fn is_ours(&self, key: &ipvs::ServiceKey, owned: &Owned) -> bool {
        let within = |ranges: &[Cidr]| match *key {
            ipvs::ServiceKey::Address { address, .. } => {
                ranges.iter().any(|range| range.contains(address))
            }
            _ => false,
        };
        !within(&self.excluded) && (owned.contains(key) || within(&self.ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::Family;

    #[test]
    fn virtual_servers_are_ours_by_record_or_range_unless_excluded() {
        let key = |address: [u8; 4]| ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: address.into(),
            port: 80,
        };
        let range = |text: &str| vec![Cidr::parse(text).unwrap()];
        let recorded = key([192, 0, 2, 1]);
        let mark = ipvs::ServiceKey::Mark {
            family: Family::V4,
            mark: 7,
        };
        let mut owned = Owned::default();
        owned.insert(recorded, ServicePortName::from("a/b"));
        for (scenario, excluded, key, is_ours) in [
            ("recorded", "10.96.7.0/24", recorded, true),
            ("recorded and excluded", "0.0.0.0/0", recorded, false),
            ("not recorded", "10.96.7.0/24", key([192, 0, 2, 2]), false),
            (
                "in a service range",
                "10.96.7.0/24",
                key([10, 96, 0, 2]),
                true,
            ),
            (
                "in a service range and excluded",
                "10.96.7.0/24",
                key([10, 96, 7, 2]),
                false,
            ),
            ("a mark that is not recorded", "10.96.7.0/24", mark, false),
        ] {
            let territory = Territory {
                ours: range("10.96.0.0/16"),
                excluded: range(excluded),
            };
            assert_eq!(territory.is_ours(&key, &owned), is_ours, "{scenario}");
        }
    }
}
