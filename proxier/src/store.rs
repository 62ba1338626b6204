//! The snapshot of the cluster's objects, and the events that update it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::model::{
    Cidr, EndpointSlice, Location, Node, NodeLocation, ObjectName, Service, ServiceCidr,
};
use crate::packed::pack;
use crate::problem::Problem;

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

/// A [`Parsed`] without its name, which is its key in a map.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored<T> {
    object: Option<T>,
    problems: Box<[Problem]>,
}

impl<T: Clone> Stored<T> {
    /// Copies the content of `before` if this object cannot be used. It still exists in the cluster, so its
    /// clients must still be served.
    fn keep_last_readable(&mut self, before: Option<&Self>) {
        if self.object.is_none() && !self.problems.is_empty() {
            self.object = before.and_then(|before| before.object.clone());
        }
    }
}

impl<T> From<Parsed<T>> for (ObjectName, Stored<T>) {
    fn from(parsed: Parsed<T>) -> Self {
        let stored = Stored {
            object: parsed.object,
            problems: parsed.problems.into(),
        };
        (parsed.name, stored)
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
    /// such update.
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
        let Self::Services(update) = self else {
            return;
        };
        let services = match update {
            Update::Apply(service) => std::slice::from_mut(service),
            Update::Reset(services) | Update::Merge(services) => services,
            Update::Delete(_) => return,
        };
        for service in services.iter_mut().filter_map(|it| it.object.as_mut()) {
            service.external_ips.clear();
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

    /// Adds a Service.
    pub fn add(&mut self, name: &ObjectName) {
        if let Self::Some(names) = self
            && !names.contains(name)
        {
            names.insert(name.clone());
        }
    }
}

/// The cluster's objects, as far as this node uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    services: Objects<Service>,
    slices: Objects<EndpointSlice>,
    /// Slice names by their Service.
    slices_of: BTreeMap<ObjectName, Vec<ObjectName>>,
    node: Option<Node>,
    service_cidrs: Objects<ServiceCidr>,
    nodes: Objects<NodeLocation>,
    services_listed: bool,
    slices_listed: bool,
    /// The number of Services that need the regions of other nodes.
    services_needing_regions: usize,
}

impl Snapshot {
    /// Applies one event, and adds to `touched` the Services whose plan it may change.
    ///
    /// An object that did not change touches no Service, so a relist costs only its differences.
    pub fn apply(&mut self, event: Event, touched: &mut Touched) {
        match event {
            Event::Services(change) => {
                self.services_listed |= matches!(change, Update::Reset(_));
                let needing = &mut self.services_needing_regions;
                self.services.update(change, |name, old, new| {
                    touched.add(name);
                    *needing -= usize::from(needs_regions(old));
                    *needing += usize::from(needs_regions(new));
                });
            }
            Event::EndpointSlices(change) => {
                let is_all = matches!(change, Update::Reset(_));
                self.slices_listed |= is_all;
                let slices_of = &mut self.slices_of;
                self.slices.update(change, |name, old, new| {
                    let (old, new) = (old.and_then(service_of), new.and_then(service_of));
                    for service in [&old, &new].into_iter().flatten() {
                        touched.add(service);
                    }
                    if old != new {
                        old.iter()
                            .for_each(|old| remove_slice(slices_of, old, name));
                        new.into_iter()
                            .for_each(|new| add_slice(slices_of, new, name));
                    }
                });
                if is_all {
                    // A list fills the index by insertions, which leave its nodes half empty.
                    pack(slices_of);
                }
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
            Event::ServiceCidrs(change) => self.service_cidrs.update(change, |_, _, _| ()),
            Event::Nodes(change) => {
                let mut moved = false;
                self.nodes.update(change, |_, _, _| moved = true);
                if moved {
                    let affected = self.services().filter(|service| service.needs_regions());
                    affected.for_each(|service| touched.add(&service.name));
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
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.all()
    }

    /// Returns the Service `name`.
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.services.get(name)
    }

    /// Returns whether the Service `name` exists, even if this node uses no part of it.
    pub fn has_service(&self, name: &ObjectName) -> bool {
        self.services.parsed.contains_key(name)
    }

    /// Returns the slices of `service`, in order of names.
    pub fn slices(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> {
        self.slices_of
            .get(service)
            .into_iter()
            .flatten()
            .filter_map(|name| self.slices.get(name))
    }

    /// Returns our own Node, once known.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Returns whether the locations of nodes are known. A complete list is never empty, since it
    /// includes our own Node.
    pub fn knows_other_nodes(&self) -> bool {
        !self.nodes.parsed.is_empty()
    }

    /// Returns the region of the node `name`, if known.
    pub fn region(&self, name: &Arc<str>) -> Option<&str> {
        let key = ObjectName::new("", name.clone());
        self.nodes.get(&key)?.region.as_deref()
    }

    /// Returns the ranges of cluster IPs that the API server lists.
    pub fn service_ranges(&self) -> impl Iterator<Item = Cidr> + '_ {
        let cidrs = self.service_cidrs.all();
        cidrs.flat_map(|cidr| cidr.ranges.iter().copied())
    }

    /// Returns whether a Service needs the locations of other nodes.
    pub fn needs_other_nodes(&self) -> bool {
        self.services_needing_regions > 0
    }

    /// Returns the problems of all objects, in order of names within a kind.
    ///
    /// # Cost
    /// Proportional to the number of objects with problems, not to that of all objects.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        let services = self.services.problems();
        let slices = self.slices.problems();
        let cidrs = self.service_cidrs.problems();
        let nodes = self.nodes.problems();
        services.chain(slices).chain(cidrs).chain(nodes)
    }
}

/// The objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Objects<T> {
    parsed: BTreeMap<ObjectName, Stored<T>>,
    /// The names of objects with problems.
    with_problems: BTreeSet<ObjectName>,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            parsed: BTreeMap::new(),
            with_problems: BTreeSet::new(),
        }
    }
}

impl<T> Objects<T> {
    fn get(&self, name: &ObjectName) -> Option<&T> {
        self.parsed.get(name)?.object.as_ref()
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        let all = self.parsed.values();
        all.filter_map(|parsed| parsed.object.as_ref())
    }

    fn problems(&self) -> impl Iterator<Item = &Problem> {
        let with_problems = self
            .with_problems
            .iter()
            .filter_map(|name| self.parsed.get(name));
        with_problems.flat_map(|parsed| parsed.problems.iter())
    }

    /// Adds `name` to the index of objects with problems, or removes it.
    fn update_problem_index(&mut self, name: &ObjectName, problems: &[Problem]) {
        if problems.is_empty() {
            self.with_problems.remove(name);
        } else if !self.with_problems.contains(name) {
            self.with_problems.insert(name.clone());
        }
    }
}

impl<T: Clone + PartialEq> Objects<T> {
    /// Applies `change` and calls `differs` for each changed object, with its old and new state.
    fn update(
        &mut self,
        change: Update<T>,
        mut differs: impl FnMut(&ObjectName, Option<&Stored<T>>, Option<&Stored<T>>),
    ) {
        match change {
            Update::Apply(new) => self.replace(new, &mut differs),
            Update::Merge(some) => {
                for new in some {
                    self.replace(new, &mut differs);
                }
            }
            Update::Delete(name) => {
                if let Some(old) = self.parsed.remove(&name) {
                    differs(&name, Some(&old), None);
                    self.with_problems.remove(&name);
                }
            }
            Update::Reset(all) => {
                let mut before = std::mem::take(&mut self.parsed);
                self.with_problems.clear();
                // The last of several objects with one name wins. `collect` builds a B-tree with
                // full nodes, where insertions in order would leave them half empty; most objects
                // arrive in a first list, so this decides the memory per object.
                self.parsed = all.into_iter().map(Into::into).collect();
                for (name, new) in &mut self.parsed {
                    let old = before.remove(name);
                    new.keep_last_readable(old.as_ref());
                    let new = &*new;
                    if old.as_ref() != Some(new) {
                        differs(name, old.as_ref(), Some(new));
                    }
                    if !new.problems.is_empty() {
                        self.with_problems.insert(name.clone());
                    }
                }
                for (name, old) in before {
                    differs(&name, Some(&old), None);
                }
            }
        }
    }

    fn replace(
        &mut self,
        new: Parsed<T>,
        differs: &mut impl FnMut(&ObjectName, Option<&Stored<T>>, Option<&Stored<T>>),
    ) {
        let (name, mut new) = new.into();
        let old = self.parsed.get(&name);
        new.keep_last_readable(old);
        if old != Some(&new) {
            differs(&name, old, Some(&new));
            self.update_problem_index(&name, &new.problems);
            self.parsed.insert(name, new);
        }
    }
}

fn needs_regions(service: Option<&Stored<Service>>) -> bool {
    let service = service.and_then(|parsed| parsed.object.as_ref());
    service.is_some_and(Service::needs_regions)
}

fn service_of(slice: &Stored<EndpointSlice>) -> Option<ObjectName> {
    slice.object.as_ref().map(EndpointSlice::service_name)
}

fn add_slice(
    slices_of: &mut BTreeMap<ObjectName, Vec<ObjectName>>,
    service: ObjectName,
    slice: &ObjectName,
) {
    let names = slices_of.entry(service).or_default();
    // Sorted, so that plans do not depend on the order of events.
    let at = names.partition_point(|name| name < slice);
    // Most Services have one slice.
    names.reserve_exact(1);
    names.insert(at, slice.clone());
}

fn remove_slice(
    slices_of: &mut BTreeMap<ObjectName, Vec<ObjectName>>,
    service: &ObjectName,
    slice: &ObjectName,
) {
    if let Some(names) = slices_of.get_mut(service) {
        names.retain(|name| name != slice);
        if names.is_empty() {
            slices_of.remove(service);
        }
    }
}

/// Shares equal strings and locations, so that a node's name is in memory once, however many
/// endpoints the node has.
#[derive(Debug, Default)]
pub struct Interner {
    texts: HashSet<Arc<str>>,
    /// Locations by the name of their node, "" if it is unknown, so that each needs one lookup.
    locations: HashMap<Arc<str>, Vec<Arc<Location>>>,
    /// Whether objects may have loopback addresses. Here, because the interner is the only value that all
    /// parsing functions share.
    pub(crate) permits_loopback: bool,
}

impl Interner {
    /// Returns the shared form of `text`.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.texts.get(text) {
            return shared.clone();
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(shared.clone());
        shared
    }

    /// Returns the shared form of a location.
    pub fn location(&mut self, node: Option<&str>, zone: Option<&str>) -> Arc<Location> {
        let of_node = self.locations.get(node.unwrap_or_default());
        let mut of_node = of_node.into_iter().flatten();
        let is_it = |it: &&Arc<Location>| (it.node.as_deref(), it.zone.as_deref()) == (node, zone);
        if let Some(shared) = of_node.find(is_it) {
            return shared.clone();
        }
        let shared = Arc::new(Location {
            node: node.map(|node| self.intern(node)),
            zone: zone.map(|zone| self.intern(zone)),
        });
        let key = self.intern(node.unwrap_or_default());
        self.locations.entry(key).or_default().push(shared.clone());
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, service: &str) -> Parsed<EndpointSlice> {
        let name = ObjectName::new("default", name);
        Parsed {
            name: name.clone(),
            object: Some(EndpointSlice {
                name,
                service: service.into(),
                ports: Vec::new(),
                endpoints: Vec::new(),
                changed: None,
            }),
            problems: Vec::new(),
        }
    }

    fn names(snapshot: &Snapshot, service: &str) -> Vec<String> {
        let service = ObjectName::new("default", service);
        snapshot
            .slices(&service)
            .map(|slice| slice.name.name.to_string())
            .collect()
    }

    /// Applies an update of slices. Returns the names of the Services that it touched.
    fn apply(snapshot: &mut Snapshot, change: Update<EndpointSlice>) -> Vec<String> {
        let mut touched = Touched::none();
        snapshot.apply(Event::EndpointSlices(change), &mut touched);
        match touched {
            Touched::Some(names) => names.iter().map(|name| name.name.to_string()).collect(),
            Touched::All => vec!["all".to_owned()],
        }
    }

    #[test]
    fn a_slice_can_move_to_another_service() {
        let snapshot = &mut Snapshot::default();
        for (name, service) in [("b", "web"), ("a", "web"), ("c", "db")] {
            let change = Update::Apply(slice(name, service));
            assert_eq!(apply(snapshot, change), [service]);
        }
        let touched = apply(snapshot, Update::Apply(slice("b", "db")));
        assert_eq!(touched, ["db", "web"]);
        assert_eq!(names(snapshot, "web"), ["a"]);
        assert_eq!(names(snapshot, "db"), ["b", "c"]);
        let gone = ObjectName::new("default", "a");
        assert_eq!(apply(snapshot, Update::Delete(gone)), ["web"]);
        assert_eq!(names(snapshot, "web"), [""; 0]);
    }

    #[test]
    fn a_relist_touches_only_differences() {
        let snapshot = &mut Snapshot::default();
        let all = || vec![slice("a", "web"), slice("b", "db"), slice("c", "db")];
        assert_eq!(apply(snapshot, Update::Reset(all())), ["db", "web"]);
        assert_eq!(apply(snapshot, Update::Reset(all())), [""; 0]);
        assert_eq!(apply(snapshot, Update::Apply(slice("a", "web"))), [""; 0]);
        let fewer = all().drain(..2).collect();
        assert_eq!(apply(snapshot, Update::Reset(fewer)), ["db"]);
        assert_eq!(names(snapshot, "db"), ["b"]);
    }

    #[test]
    fn problems_are_removed_with_their_objects() {
        let snapshot = &mut Snapshot::default();
        let with_problems = |name: &str| Parsed {
            problems: vec![Problem::new(name, "field", "value", "is wrong")],
            ..slice(name, "web")
        };
        let objects = |snapshot: &Snapshot| -> Vec<String> {
            let problems = snapshot.problems();
            problems.map(|problem| problem.object.to_string()).collect()
        };
        let all = vec![with_problems("b"), slice("c", "web"), with_problems("a")];
        apply(snapshot, Update::Reset(all));
        assert_eq!(objects(snapshot), ["a", "b"]);
        apply(snapshot, Update::Apply(with_problems("c")));
        apply(snapshot, Update::Apply(slice("a", "web")));
        assert_eq!(objects(snapshot), ["b", "c"]);
        apply(snapshot, Update::Delete(ObjectName::new("default", "b")));
        assert_eq!(objects(snapshot), ["c"]);
        apply(snapshot, Update::Reset(vec![slice("c", "web")]));
        assert_eq!(objects(snapshot), [""; 0]);
    }

    #[test]
    fn an_unusable_object_keeps_its_last_usable_content() {
        let snapshot = &mut Snapshot::default();
        let unreadable = |name: &str| Parsed {
            object: None,
            problems: vec![Problem::new(name, "", "", "cannot be read")],
            ..slice(name, "web")
        };
        let all = vec![slice("a", "web"), unreadable("b")];
        assert_eq!(apply(snapshot, Update::Reset(all)), ["web"]);
        assert_eq!(apply(snapshot, Update::Apply(unreadable("a"))), ["web"]);
        let relist = vec![unreadable("a"), unreadable("b")];
        assert_eq!(apply(snapshot, Update::Reset(relist)), [""; 0]);
        assert_eq!(names(snapshot, "web"), ["a"]);
        assert_eq!(snapshot.problems().count(), 2);
        // An object without content and without problems replaces the old one.
        let nothing = Parsed {
            object: None,
            ..slice("a", "web")
        };
        assert_eq!(apply(snapshot, Update::Apply(nothing)), ["web"]);
        assert_eq!(names(snapshot, "web"), [""; 0]);
    }

    #[test]
    fn a_merge_keeps_absent_objects() {
        let snapshot = &mut Snapshot::default();
        let all = vec![slice("a", "web"), slice("b", "db"), slice("c", "db")];
        apply(snapshot, Update::Reset(all.clone()));
        let part = vec![slice("b", "db"), slice("c", "web"), slice("d", "new")];
        assert_eq!(apply(snapshot, Update::Merge(part)), ["db", "new", "web"]);
        assert_eq!(names(snapshot, "web"), ["a", "c"]);
        assert_eq!(names(snapshot, "db"), ["b"]);
        assert_eq!(names(snapshot, "new"), ["d"]);
        assert_eq!(apply(snapshot, Update::Merge(Vec::new())), [""; 0]);
        // The next whole list deletes what it lacks.
        assert_eq!(apply(snapshot, Update::Reset(all)), ["db", "new", "web"]);
        assert_eq!(names(snapshot, "db"), ["b", "c"]);
        assert_eq!(names(snapshot, "new"), [""; 0]);
    }

    #[test]
    fn a_merge_touches_only_differences() {
        let snapshot = &mut Snapshot::default();
        let all = vec![slice("a", "web"), slice("b", "db")];
        apply(snapshot, Update::Reset(all.clone()));
        assert_eq!(apply(snapshot, Update::Merge(all)), [""; 0]);
        let part = vec![slice("a", "web"), slice("c", "db")];
        assert_eq!(apply(snapshot, Update::Merge(part)), ["db"]);
    }

    #[test]
    fn a_merge_does_not_complete_a_snapshot() {
        let mut snapshot = Snapshot::default();
        apply(&mut snapshot, Update::Merge(vec![slice("a", "web")]));
        let services = Event::Services(Update::Merge(Vec::new()));
        snapshot.apply(services, &mut Touched::none());
        assert!(!snapshot.is_complete());
        snapshot.accept_partial();
        assert!(snapshot.is_complete());
        assert_eq!(names(&snapshot, "web"), ["a"]);
        assert_eq!(apply(&mut snapshot, Update::Reset(Vec::new())), ["web"]);
        assert!(snapshot.is_complete());
    }

    #[test]
    fn a_snapshot_is_complete_once_services_and_slices_were_listed() {
        let mut snapshot = Snapshot::default();
        apply(&mut snapshot, Update::Apply(slice("a", "web")));
        apply(&mut snapshot, Update::Reset(vec![]));
        assert!(!snapshot.is_complete());
        let services = Event::Services(Update::Reset(vec![]));
        snapshot.apply(services, &mut Touched::none());
        assert!(snapshot.is_complete());
    }
}
