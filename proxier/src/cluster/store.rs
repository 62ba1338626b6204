//! The snapshot of the cluster's objects, and the events that update it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::model::{EndpointSlice, Node, NodeLocation, ObjectName, Service, ServiceCidr};
use crate::cluster::problem::Problem;

mod blocks;
mod encoded;
mod encoding;
mod faults;
mod interner;
mod key;
mod kinds;
mod list;
mod objects;
mod shared;
#[cfg(test)]
mod tests;

use encoded::Encoded;
use faults::FaultyObjects;
pub use interner::Interner;
pub use kinds::ObjectKind;
use kinds::has_rare_fields;
pub use list::ObjectList;
use objects::Objects;
use shared::SharedValues;

/// A parsed object with its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<T> {
    /// The object's name.
    pub name: ObjectName,
    /// The parts that this node uses.
    ///
    /// `None` without problems means that the node uses no part, as of a headless Service. `None`
    /// with problems means that the object cannot be used; a [`Snapshot`] then keeps its last
    /// usable content.
    pub object: Option<T>,
    /// The problems of the object.
    pub problems: Vec<Problem>,
}

/// An update of the objects of one kind.
#[derive(Clone, PartialEq, Eq)]
pub enum Update<T> {
    /// Adds or replaces one object.
    Apply(Parsed<T>),
    /// Deletes one object.
    Delete(ObjectName),
    /// Replaces all objects of the kind: an object that the list lacks is deleted. A relist is one
    /// such update.
    Reset(ObjectList<T>),
    /// Adds or replaces these objects and deletes none: the list is known to be incomplete.
    Merge(Vec<Parsed<T>>),
}

impl<T: ObjectKind + fmt::Debug> fmt::Debug for Update<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apply(object) => f.debug_tuple("Apply").field(object).finish(),
            Self::Delete(name) => f.debug_tuple("Delete").field(name).finish(),
            Self::Reset(all) => f.debug_tuple("Reset").field(all).finish(),
            Self::Merge(some) => f.debug_tuple("Merge").field(some).finish(),
        }
    }
}

/// An event that updates the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An update of Services.
    Services(Update<Service>),
    /// An update of EndpointSlices.
    EndpointSlices(Update<EndpointSlice>),
    /// A new state of our own Node.
    Node(Node),
    /// An update of the ranges of cluster IPs.
    ServiceCidrs(Update<ServiceCidr>),
    /// An update of the locations of all nodes; sent only while a Service needs them
    /// ([`Snapshot::needs_other_nodes`]).
    Nodes(Update<NodeLocation>),
}

impl Event {
    /// Removes the external IPs of all Services of this event.
    pub(crate) fn drop_external_ips(&mut self) {
        let Self::Services(update) = self else {
            return;
        };
        let edit = |service: &mut Parsed<Service>| {
            if let Some(service) = &mut service.object {
                service.external_ips = Box::default();
            }
        };
        match update {
            Update::Apply(service) => edit(service),
            Update::Merge(services) => services.iter_mut().for_each(edit),
            Update::Reset(services) => services.edit(edit),
            Update::Delete(_) => {}
        }
    }
}

/// The Services that must be planned again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Touched {
    /// These Services.
    Some(BTreeSet<ObjectName>),
    /// All Services.
    #[default]
    All,
}

impl Touched {
    /// Returns the empty set.
    pub fn none() -> Self {
        Self::Some(BTreeSet::new())
    }

    /// Returns whether the set is empty.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::Some(names) if names.is_empty())
    }

    /// Adds Services. If all are touched already, takes no name, because making one costs memory.
    pub fn add(&mut self, services: impl IntoIterator<Item = ObjectName>) {
        if let Self::Some(names) = self {
            names.extend(services);
        }
    }
}

/// The cluster's objects, as far as this node uses them.
///
/// Nearly all objects rest most of the time, so they are encoded, which takes a quarter of the memory, and are
/// decoded when a Service is planned.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    services: Objects<Service>,
    /// In groups: those of one Service.
    slices: Objects<EndpointSlice>,
    node: Option<Node>,
    service_cidrs: Objects<ServiceCidr>,
    nodes: Objects<NodeLocation>,
    shared: SharedValues,
    services_listed: bool,
    slices_listed: bool,
    /// The Services whose plan depends on the regions of other nodes.
    needing_regions: BTreeSet<ObjectName>,
    api_servers: Arc<BTreeSet<IpAddr>>,
    node_addresses: Arc<BTreeMap<IpAddr, Arc<str>>>,
}

impl Snapshot {
    /// Applies one event, and adds to `touched` the Services whose plan it may change.
    ///
    /// An object that did not change touches no Service, so a relist costs only its differences.
    pub fn apply(&mut self, event: Event, touched: &mut Touched) {
        match event {
            Event::Services(change) => {
                self.services_listed |= matches!(change, Update::Reset(_));
                let needing = &mut self.needing_regions;
                self.services
                    .update(change, &mut self.shared, |change, shared| {
                        touched.add(std::iter::once_with(|| change.name()));
                        let new = change.new.filter(|new| has_rare_fields(new.content()));
                        let new = new.and_then(|new| new.decode::<Service>(change.name(), shared));
                        match new.is_some_and(|new| new.needs_regions()) {
                            true => _ = needing.insert(change.name()),
                            false if needing.is_empty() => {}
                            false => _ = needing.remove(&change.name()),
                        }
                    });
            }
            Event::EndpointSlices(change) => {
                self.slices_listed |= matches!(change, Update::Reset(_));
                self.slices.update(change, &mut self.shared, |change, _| {
                    // A slice may pass from one Service to another, and has another key then. Both plans
                    // change.
                    let left = change.old.filter(|old| Some(*old) != change.new);
                    let both = left.into_iter().chain(change.new);
                    touched.add(both.filter_map(Encoded::group));
                });
                self.find_api_servers();
            }
            Event::Node(node) => {
                let before = self.node.as_ref();
                if !before.is_some_and(|before| before.plans_as(&node)) {
                    // Every plan may depend on the node's addresses and its zone.
                    *touched = Touched::All;
                }
                self.node = Some(node);
            }
            // No plan depends on these ranges. They only decide about ownership, at the next resync.
            Event::ServiceCidrs(change) => {
                self.service_cidrs
                    .update(change, &mut self.shared, |_, _| ());
            }
            Event::Nodes(change) => {
                let mut moved = false;
                self.nodes
                    .update(change, &mut self.shared, |_, _| moved = true);
                if moved {
                    touched.add(self.needing_regions.iter().cloned());
                    self.find_node_addresses();
                }
            }
        }
    }

    /// Marks the snapshot complete as it is.
    ///
    /// For a start with partly unreadable input. The kernel must have no state of this proxy, so that
    /// serving the readable part deletes nothing. A later [`Update::Reset`] still deletes the objects that
    /// it lacks.
    pub fn accept_partial(&mut self) {
        self.services_listed = true;
        self.slices_listed = true;
    }

    /// Returns whether the snapshot holds all Services and EndpointSlices.
    ///
    /// Until then, an object that the snapshot lacks may exist in the cluster. A [`Update::Reset`]
    /// of both kinds completes the snapshot, and so does [`Snapshot::accept_partial`]; a
    /// [`Update::Merge`] does not.
    pub fn is_complete(&self) -> bool {
        self.services_listed && self.slices_listed
    }

    /// Returns all Services, in order of names.
    pub fn services(&self) -> impl Iterator<Item = Service> {
        self.services.all(&self.shared)
    }

    /// Returns the number of Services, also of those of which this node uses no part.
    pub fn count_services(&self) -> usize {
        self.services.len()
    }

    /// Returns the Service `name`.
    pub fn service(&self, name: &ObjectName) -> Option<Service> {
        self.services.get(name, &self.shared)
    }

    /// Returns whether the Service `name` exists, even if this node uses no part of it.
    pub fn has_service(&self, name: &ObjectName) -> bool {
        self.services.has(name)
    }

    /// Returns the slices of `service`, in an order that depends on their names only.
    pub fn slices<'a>(
        &'a self,
        service: &ObjectName,
    ) -> impl Iterator<Item = EndpointSlice> + use<'a> {
        self.slices.group(service, &self.shared)
    }

    /// Returns the names of the nodes of all endpoints; a node may come several times.
    ///
    /// # Cost
    /// Linear in the nodes, not in the endpoints.
    pub fn nodes_of_endpoints(&self) -> impl Iterator<Item = &str> {
        let locations = self.shared.locations();
        locations.filter_map(|location| location.node.as_deref())
    }

    /// Returns our own Node, once known.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Returns whether the locations of nodes are known. A complete list is never empty, since it
    /// includes our own Node.
    pub fn knows_other_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Returns the region of the node `name`, if known.
    pub fn region(&self, name: &str) -> Option<Arc<str>> {
        let name = ObjectName::new("", name);
        self.nodes.get(&name, &self.shared)?.region
    }

    /// Returns the addresses of the API servers: the endpoints of `default/kubernetes`.
    pub fn api_servers(&self) -> &Arc<BTreeSet<IpAddr>> {
        &self.api_servers
    }

    /// Returns the addresses of all nodes, also of our own one, each with the name of its node.
    ///
    /// Only manifests tell the addresses of other nodes.
    pub fn node_addresses(&self) -> &Arc<BTreeMap<IpAddr, Arc<str>>> {
        &self.node_addresses
    }

    fn find_api_servers(&mut self) {
        let slices = self.slices(&ObjectName::new("default", "kubernetes"));
        let endpoints = slices.flat_map(|slice| slice.endpoints);
        let found: BTreeSet<IpAddr> = endpoints.map(|endpoint| endpoint.address).collect();
        if found != *self.api_servers {
            self.api_servers = Arc::new(found);
        }
    }

    fn find_node_addresses(&mut self) {
        let mut found = BTreeMap::new();
        for node in self.nodes.all(&self.shared) {
            for address in node.addresses {
                found.entry(address).or_insert_with(|| node.name.clone());
            }
        }
        if found != *self.node_addresses {
            self.node_addresses = Arc::new(found);
        }
    }

    /// Returns the ranges of cluster IPs that the API server lists.
    pub fn service_cidrs(&self) -> impl Iterator<Item = ServiceCidr> + '_ {
        self.service_cidrs.all(&self.shared)
    }

    /// Returns whether a Service needs the locations of other nodes.
    pub fn needs_other_nodes(&self) -> bool {
        !self.needing_regions.is_empty()
    }

    /// Returns the problems of all objects, in order of names within a kind.
    ///
    /// # Cost
    /// Proportional to the number of objects with problems, not to that of all objects.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        let faulty = self.faulty().into_iter();
        faulty.flat_map(FaultyObjects::listed)
    }

    /// Returns the number of objects whose problems are not listed, because there are too many.
    pub fn unlisted(&self) -> usize {
        self.faulty().map(FaultyObjects::unlisted).iter().sum()
    }

    /// Returns a number that increases with each change of a problem.
    pub fn problems_revision(&self) -> u64 {
        self.faulty().map(FaultyObjects::revision).iter().sum()
    }

    fn faulty(&self) -> [&FaultyObjects; 4] {
        [
            self.services.faulty(),
            self.slices.faulty(),
            self.service_cidrs.faulty(),
            self.nodes.faulty(),
        ]
    }
}
