//! The snapshot of the cluster's objects, and the events that update it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use crate::cluster::model::{EndpointSlice, Node, NodeLocation, ObjectName, Service, ServiceCidr};
use crate::cluster::problem::Problem;

mod faults;
mod interner;
mod objects;
#[cfg(test)]
mod tests;

use faults::FaultyObjects;
pub use interner::Interner;
use objects::Objects;

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
    /// The time of the change of a Pod or Service that caused the last change of an EndpointSlice, if the
    /// annotation `endpoints.kubernetes.io/last-change-trigger-time` tells it. A [`Snapshot`] does not keep it.
    pub changed: Option<SystemTime>,
}

impl<T> Parsed<T> {
    /// Returns whether nothing of the object can be used because of its problems.
    fn is_unusable(&self) -> bool {
        self.object.is_none() && !self.problems.is_empty()
    }
}

/// An update of the objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update<T> {
    /// Adds or replaces one object.
    Apply(Parsed<T>),
    /// Deletes one object.
    Delete(ObjectName),
    /// Replaces all objects of the kind: an object that the list lacks is deleted. A relist is one
    /// such update. Of several objects with one name, the last counts.
    Reset(Vec<Parsed<T>>),
    /// Adds or replaces these objects and deletes none: the list is known to be incomplete.
    Merge(Vec<Parsed<T>>),
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
        let parsed = match self {
            Self::Services(Update::Apply(one)) => std::slice::from_mut(one),
            Self::Services(Update::Reset(some) | Update::Merge(some)) => some,
            _ => return,
        };
        for service in parsed.iter_mut().filter_map(|it| it.object.as_mut()) {
            if let Some(mut external) = service.external.take() {
                external.external_ips.clear();
                service.external = external.boxed();
            }
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

    /// Adds Services.
    pub fn add<'a>(&mut self, services: impl IntoIterator<Item = &'a ObjectName>) {
        if let Self::Some(names) = self {
            names.extend(services.into_iter().cloned());
        }
    }
}

/// The cluster's objects, as far as this node uses them.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    services: Objects<Service>,
    slices: Objects<EndpointSlice>,
    /// The name of each slice after that of its Service.
    slices_of: BTreeSet<(ObjectName, ObjectName)>,
    node: Option<Node>,
    service_cidrs: Objects<ServiceCidr>,
    nodes: Objects<NodeLocation>,
    services_listed: bool,
    slices_listed: bool,
    service_cidrs_listed: bool,
    /// The Services whose plan depends on the regions of other nodes.
    needing_regions: BTreeSet<ObjectName>,
    /// Whether those of all Services do.
    all_need_regions: bool,
    api_servers: Arc<BTreeSet<IpAddr>>,
    node_addresses: Arc<BTreeMap<IpAddr, Arc<str>>>,
}

impl Snapshot {
    /// Applies one event, and adds to `touched` the Services whose plan it may change.
    ///
    /// An object that did not change touches no Service, so a relist costs only its differences.
    pub fn apply(&mut self, event: Event, touched: &mut Touched) {
        match event {
            Event::Services(update) => {
                self.services_listed |= matches!(update, Update::Reset(_));
                self.services.update(update, |change| {
                    touched.add([change.name]);
                    if change.new.is_some_and(Service::needs_regions) {
                        self.needing_regions.insert(change.name.clone());
                    } else {
                        self.needing_regions.remove(change.name);
                    }
                });
            }
            Event::EndpointSlices(update) => self.apply_slices(update, touched),
            Event::Node(node) => {
                let before = self.node.as_ref();
                if !before.is_some_and(|before| before.plans_as(&node)) {
                    // Every plan may depend on the node's addresses and its zone.
                    *touched = Touched::All;
                }
                self.node = Some(node);
            }
            // The plan of no Service depends on these ranges.
            Event::ServiceCidrs(update) => {
                self.service_cidrs_listed |= matches!(update, Update::Reset(_));
                self.service_cidrs.update(update, |_| ());
            }
            Event::Nodes(update) => {
                let mut moved = false;
                self.nodes.update(update, |_| moved = true);
                if moved {
                    match self.all_need_regions {
                        true => *touched = Touched::All,
                        false => touched.add(&self.needing_regions),
                    }
                    self.find_node_addresses();
                }
            }
        }
    }

    fn apply_slices(&mut self, update: Update<EndpointSlice>, touched: &mut Touched) {
        let is_list = matches!(update, Update::Reset(_));
        self.slices_listed |= is_list;
        self.slices.update(update, |change| {
            // A slice may pass from one Service to another. Both plans change.
            if let Some(slice) = change.old {
                let entry = (slice.service.clone(), change.name.clone());
                self.slices_of.remove(&entry);
                touched.add([&slice.service]);
            }
            if let Some(slice) = change.new {
                let entry = (slice.service.clone(), change.name.clone());
                self.slices_of.insert(entry);
                touched.add([&slice.service]);
            }
        });
        if is_list {
            // Entries that were inserted one by one leave each part of the set half empty.
            self.slices_of = std::mem::take(&mut self.slices_of).into_iter().collect();
        }
        self.find_api_servers();
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

    /// Returns whether the service ranges are known: a list of them was received, which may be empty.
    pub fn knows_service_ranges(&self) -> bool {
        self.service_cidrs_listed
    }

    /// Returns all Services, in order of names.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.iter()
    }

    /// Returns the number of Services, also of those of which this node uses no part.
    pub fn count_services(&self) -> usize {
        self.services.len()
    }

    /// Returns the Service `name`.
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.services.get(name)
    }

    /// Returns whether the Service `name` exists, even if this node uses no part of it.
    pub fn has_service(&self, name: &ObjectName) -> bool {
        self.services.has(name)
    }

    /// Returns whether the events that touched these Services may have deleted one.
    pub fn may_have_deleted(&self, touched: &Touched) -> bool {
        match touched {
            Touched::All => true,
            Touched::Some(names) => names.iter().any(|name| !self.has_service(name)),
        }
    }

    /// Returns the slices of `service`, in order of names.
    pub fn slices<'a>(
        &'a self,
        service: &ObjectName,
    ) -> impl Iterator<Item = &'a EndpointSlice> + use<'a> {
        let service = service.clone();
        // No name is before the empty one.
        let first = (service.clone(), ObjectName::default());
        self.slices_of
            .range(first..)
            .take_while(move |(owner, _)| *owner == service)
            .filter_map(|(_, name)| self.slices.get(name))
    }

    /// Returns the names of the nodes of all endpoints; a node may come several times.
    pub fn nodes_of_endpoints(&self) -> impl Iterator<Item = &str> {
        let endpoints = self.slices.iter().flat_map(|slice| &slice.endpoints);
        endpoints.filter_map(|endpoint| endpoint.location.node.as_deref())
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
    pub fn region(&self, name: &str) -> Option<&str> {
        let name = ObjectName::new("", name);
        self.nodes.get(&name)?.region.as_deref()
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
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        let found: BTreeSet<IpAddr> = endpoints.map(|endpoint| endpoint.address).collect();
        if found != *self.api_servers {
            self.api_servers = Arc::new(found);
        }
    }

    fn find_node_addresses(&mut self) {
        let mut found = BTreeMap::new();
        for node in self.nodes.iter() {
            for &address in &node.addresses {
                found.entry(address).or_insert_with(|| node.name.clone());
            }
        }
        if found != *self.node_addresses {
            self.node_addresses = Arc::new(found);
        }
    }

    /// Returns the ranges of cluster IPs that the API server lists.
    pub fn service_cidrs(&self) -> impl Iterator<Item = &ServiceCidr> {
        self.service_cidrs.iter()
    }

    /// Notes that the plan of each Service depends on the regions of other nodes.
    pub(crate) fn need_regions_for_all(&mut self) {
        self.all_need_regions = true;
    }

    /// Returns whether a Service needs the locations of other nodes.
    pub fn needs_other_nodes(&self) -> bool {
        self.all_need_regions || !self.needing_regions.is_empty()
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
