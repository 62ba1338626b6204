//! Where this node is, and how near endpoints are to it.

use crate::model::{Endpoint, TopologyKey};
use crate::store::Snapshot;

/// Where this node is.
pub(in crate::plan) struct Place<'a> {
    /// The node's name; empty if it has none.
    pub(super) node_name: &'a str,
    /// The node's zone, if labelled.
    pub(super) zone: Option<&'a str>,
    /// The node's region, if labelled.
    region: Option<&'a str>,
    snapshot: &'a Snapshot,
}

impl<'a> Place<'a> {
    /// The place of the node called `node_name`, as its object in `snapshot` says.
    pub(in crate::plan) fn new(node_name: &'a str, snapshot: &'a Snapshot) -> Self {
        let node = snapshot.node();
        Self {
            node_name,
            zone: node.and_then(|node| node.zone.as_deref()),
            region: node.and_then(|node| node.region.as_deref()),
            snapshot,
        }
    }

    /// Whether `endpoint` runs on this node.
    pub(super) fn is_local(&self, endpoint: &Endpoint) -> bool {
        !self.node_name.is_empty() && endpoint.node.as_deref() == Some(self.node_name)
    }

    /// The zone of `endpoint`, as far as known.
    pub(super) fn zone_of<'e>(&'e self, endpoint: &'e Endpoint) -> Option<&'e str> {
        let own = || self.zone.filter(|_| self.is_local(endpoint));
        endpoint.zone.as_deref().or_else(own)
    }

    /// Whether `endpoint` is as near as `key` wants it.
    ///
    /// An endpoint of this node is near by every key, even where nobody knows what the node's zone
    /// is called. Of others only what is known to be near is.
    pub(super) fn is_near(&self, endpoint: &Endpoint, key: TopologyKey) -> bool {
        if key == TopologyKey::Any || self.is_local(endpoint) {
            return true;
        }
        match key {
            TopologyKey::Hostname | TopologyKey::Any => false,
            TopologyKey::Zone => self.zone.is_some() && endpoint.zone.as_deref() == self.zone,
            TopologyKey::Region => self.region.is_some() && self.region_of(endpoint) == self.region,
        }
    }

    fn region_of(&self, endpoint: &Endpoint) -> Option<&str> {
        self.snapshot.region(endpoint.node.as_ref()?)
    }
}
