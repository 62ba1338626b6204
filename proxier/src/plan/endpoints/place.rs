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
        !self.node_name.is_empty() && endpoint.location.node.as_deref() == Some(self.node_name)
    }

    /// The zone of `endpoint`, as far as known.
    pub(super) fn zone_of<'e>(&'e self, endpoint: &'e Endpoint) -> Option<&'e str> {
        let own = || self.zone.filter(|_| self.is_local(endpoint));
        endpoint.location.zone.as_deref().or_else(own)
    }

    /// Whether `endpoint` is as near as `key` wants it.
    ///
    /// An endpoint of this node is near by every key, even where nobody knows what the node's zone
    /// is called. Of others only what is known to be near is; but while nobody has told where nodes
    /// are, all are: better served from afar for a moment than refused.
    pub(super) fn is_near(&self, endpoint: &Endpoint, key: TopologyKey) -> bool {
        if self.is_local(endpoint) || self.lacks(key).is_some() {
            return true;
        }
        match key {
            TopologyKey::Any => true,
            TopologyKey::Hostname => false,
            TopologyKey::Zone => {
                self.zone.is_some() && endpoint.location.zone.as_deref() == self.zone
            }
            TopologyKey::Region => self.region.is_some() && self.region_of(endpoint) == self.region,
        }
    }

    /// What has to be told before `key` can be followed, if anything.
    pub(in crate::plan) fn lacks(&self, key: TopologyKey) -> Option<&'static str> {
        let needs_own = matches!(key, TopologyKey::Zone | TopologyKey::Region);
        if needs_own && self.snapshot.node().is_none() {
            return Some("this node's object");
        }
        let needs_others = key == TopologyKey::Region;
        (needs_others && !self.snapshot.knows_other_nodes()).then_some("the objects of other nodes")
    }

    fn region_of(&self, endpoint: &Endpoint) -> Option<&str> {
        self.snapshot.region(endpoint.location.node.as_ref()?)
    }
}
