//! What an earlier process learnt of endpoints whose Services were not seen yet.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::cluster::model::ObjectName;

/// A value of each endpoint, by Service.
#[derive(Debug)]
pub(super) struct Earlier<T>(BTreeMap<ObjectName, BTreeMap<IpAddr, T>>);

impl<T> Default for Earlier<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> FromIterator<(ObjectName, IpAddr, T)> for Earlier<T> {
    fn from_iter<I: IntoIterator<Item = (ObjectName, IpAddr, T)>>(values: I) -> Self {
        let mut all = Self::default();
        for (service, address, value) in values {
            all.0.entry(service).or_default().insert(address, value);
        }
        all
    }
}

impl<T: Copy> Earlier<T> {
    /// Returns each endpoint with its value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectName, IpAddr, T)> {
        self.0.iter().flat_map(|(service, values)| {
            let each = values.iter();
            each.map(move |(address, value)| (service, *address, *value))
        })
    }

    /// Takes the endpoints of a Service out.
    pub(super) fn take(&mut self, service: &ObjectName) -> BTreeMap<IpAddr, T> {
        self.0.remove(service).unwrap_or_default()
    }

    /// Forgets the rest, when all Services were seen. Returns whether there was any.
    pub(super) fn forget(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}
