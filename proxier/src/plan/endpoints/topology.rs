//! The node's zone and region, and their match with those of endpoints.

use crate::cluster::model::{Endpoint, TopologyKey};
use crate::cluster::store::Snapshot;

/// The position of this node in the cluster.
pub(in crate::plan) struct Topology<'a> {
    /// The node's name; empty if it has none.
    pub(super) node_name: &'a str,
    /// The node's zone, if labelled.
    pub(super) zone: Option<&'a str>,
    /// The node's region, if labelled.
    region: Option<&'a str>,
    snapshot: &'a Snapshot,
}

impl<'a> Topology<'a> {
    /// Returns the topology of the node `node_name`, with zone and region of its Node object.
    pub(in crate::plan) fn new(node_name: &'a str, snapshot: &'a Snapshot) -> Self {
        let node = snapshot.node();
        Self {
            node_name,
            zone: node.and_then(|node| node.zone.as_deref()),
            region: node.and_then(|node| node.region.as_deref()),
            snapshot,
        }
    }

    /// Returns whether `endpoint` runs on this node.
    pub(super) fn is_local(&self, endpoint: &Endpoint) -> bool {
        endpoint.is_on(self.node_name)
    }

    /// Returns the zone of `endpoint`, if known.
    pub(super) fn zone_of<'e>(&'e self, endpoint: &'e Endpoint) -> Option<&'e str> {
        // A slice need not name zones, but a local endpoint is in the zone of this node.
        let own = || self.zone.filter(|_| self.is_local(endpoint));
        endpoint.location.zone.as_deref().or_else(own)
    }

    /// Returns whether the key selects `endpoint`: whether it is near, as far as that is known.
    ///
    /// Before the Node objects arrive, every endpoint matches: until then, a connection to a distant
    /// endpoint is better than a rejected one.
    pub(super) fn matches(&self, endpoint: &Endpoint, key: TopologyKey) -> bool {
        self.missing_objects(key).is_some() || self.is_near(endpoint, key)
    }

    /// Returns whether `endpoint` is in the same topology domain as this node.
    ///
    /// A local endpoint is in every domain, even if the node has no zone label. A remote endpoint
    /// without a known zone or region is not.
    pub(super) fn is_near(&self, endpoint: &Endpoint, key: TopologyKey) -> bool {
        if self.is_local(endpoint) {
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

    /// Returns the objects without which `key` cannot be evaluated; `None` if all are known.
    pub(in crate::plan) fn missing_objects(&self, key: TopologyKey) -> Option<&'static str> {
        let needs_own_node = matches!(key, TopologyKey::Zone | TopologyKey::Region);
        if needs_own_node && self.snapshot.node().is_none() {
            return Some("this node's object");
        }
        let needs_other_nodes = key == TopologyKey::Region;
        (needs_other_nodes && !self.snapshot.knows_other_nodes())
            .then_some("the objects of other nodes, which needs --watch-nodes=all")
    }

    fn region_of(&self, endpoint: &Endpoint) -> Option<&str> {
        self.snapshot.region(endpoint.location.node.as_ref()?)
    }
}
