//! Which virtual servers are ours.
//!
//! The kernel keeps no owner with a virtual server, so we do, and remember it in the
//! [state file](crate::state_file). Addresses need no such record: our routes carry our protocol
//! number, our addresses sit on our device.

use std::collections::BTreeMap;

use ipvs_netlink as ipvs;

use crate::model::{Cidr, ServicePortName};
use crate::packed::pack;

/// The virtual servers that we created or adopted, with the Service port each serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    names: BTreeMap<ipvs::ServiceKey, Box<str>>,
}

impl Owned {
    /// The Service port that a virtual server serves or served, as `namespace/name:port`.
    pub fn name(&self, key: &ipvs::ServiceKey) -> Option<&str> {
        self.names.get(key).map(|name| &**name)
    }

    /// Whether a virtual server is ours.
    pub fn contains(&self, key: &ipvs::ServiceKey) -> bool {
        self.names.contains_key(key)
    }

    /// Whether a virtual server is ours, for that Service port.
    pub fn is_for(&self, key: &ipvs::ServiceKey, owner: &ServicePortName) -> bool {
        let Some(name) = self.name(key) else {
            return false;
        };
        // Compared piece by piece: asked for every change, it should not allocate.
        let namespace = name.strip_prefix(&*owner.service.namespace);
        let service = namespace
            .and_then(|rest| rest.strip_prefix('/'))
            .and_then(|rest| rest.strip_prefix(&*owner.service.name));
        match service {
            Some("") => owner.port.is_empty(),
            Some(rest) => rest.strip_prefix(':') == Some(&*owner.port),
            None => false,
        }
    }

    /// Takes in a virtual server. Answers whether that is news.
    pub fn insert(&mut self, key: ipvs::ServiceKey, name: &str) -> bool {
        if self.name(&key) == Some(name) {
            return false;
        }
        self.names.insert(key, name.into());
        true
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Takes no more memory than has to be; for after many were taken in.
    pub fn pack(&mut self) {
        pack(&mut self.names);
    }

    /// Forgets a virtual server. Answers whether that is news.
    pub fn remove(&mut self, key: &ipvs::ServiceKey) -> bool {
        self.names.remove(key).is_some()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&ipvs::ServiceKey, &str)> {
        self.names.iter().map(|(key, name)| (key, &**name))
    }
}

/// Whose virtual servers are, judged by their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Territory {
    /// Ranges whose virtual servers are ours even when we do not remember them: nobody else serves
    /// the cluster IPs of this cluster. They make good for a lost state file.
    pub ours: Vec<Cidr>,
    /// Ranges whose virtual servers are never deleted (`--ipvs-exclude-cidrs`).
    pub excluded: Vec<Cidr>,
}

impl Territory {
    /// Whether a virtual server may be deleted when no Service wants it.
    pub fn is_ours(&self, key: &ipvs::ServiceKey, owned: &Owned) -> bool {
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

    #[test]
    fn excluded_ranges_win_over_everything() {
        let key = |address: [u8; 4]| ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: address.into(),
            port: 80,
        };
        let range = |text: &str| vec![Cidr::parse(text).unwrap()];
        let mut owned = Owned::default();
        assert!(owned.insert(key([192, 0, 2, 1]), "a/b"));
        assert!(!owned.insert(key([192, 0, 2, 1]), "a/b"));
        let mut territory = Territory {
            ours: range("10.96.0.0/16"),
            excluded: range("10.96.7.0/24"),
        };
        let is_ours = |territory: &Territory, address| territory.is_ours(&key(address), &owned);
        assert!(is_ours(&territory, [192, 0, 2, 1]), "recorded");
        assert!(!is_ours(&territory, [192, 0, 2, 2]), "foreign");
        assert!(is_ours(&territory, [10, 96, 0, 2]), "in a service range");
        assert!(!is_ours(&territory, [10, 96, 7, 2]), "excluded");
        territory.excluded = range("0.0.0.0/0");
        assert!(
            !is_ours(&territory, [192, 0, 2, 1]),
            "excluded though recorded"
        );
        let mark = ipvs::ServiceKey::Mark {
            family: ipvs::Family::V4,
            mark: 7,
        };
        assert!(!territory.is_ours(&mark, &owned), "foreign mark");
    }
}
