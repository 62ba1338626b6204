//! The latest word of the API server, and how events change it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::model::{
    Cidr, EndpointSlice, Location, Node, NodeLocation, ObjectName, Service, ServiceCidr,
};
use crate::packed::pack;
use crate::problem::Problem;

/// An object as it was read: what could be used of it, and what could not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<T> {
    /// The object's name.
    pub name: ObjectName,
    /// What this node has to know of it; `None` when that is nothing (a headless Service), or when
    /// nothing of it can be used, which `problems` says. In the second case a [`Snapshot`] keeps to
    /// what it knew.
    pub object: Option<T>,
    /// What was wrong with it.
    pub problems: Vec<Problem>,
}

impl<T: Clone> Parsed<T> {
    /// Keeps to what was known before where nothing of the object can be used any more: that we
    /// cannot read it does not mean that nobody wants it.
    fn hold_to(&mut self, before: Option<&Self>) {
        if self.object.is_none() && !self.problems.is_empty() {
            self.object = before.and_then(|before| before.object.clone());
        }
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

/// What the world can tell the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A change of Services.
    Services(Update<Service>),
    /// A change of EndpointSlices.
    EndpointSlices(Update<EndpointSlice>),
    /// Our own node's object.
    Node(Node),
    /// A change of the ranges that cluster IPs are taken from.
    ServiceCidrs(Update<ServiceCidr>),
    /// A change of where other nodes are; told only while a Service asks for it
    /// ([`Snapshot::needs_other_nodes`]).
    Nodes(Update<NodeLocation>),
}

/// The Services whose plan has to be made again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Touched {
    /// These.
    Some(BTreeSet<ObjectName>),
    /// All of them.
    #[default]
    All,
}

impl Touched {
    /// No Service.
    pub fn none() -> Self {
        Self::Some(BTreeSet::new())
    }

    /// Whether nothing was touched.
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

/// Everything known about the cluster that matters to this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    services: Objects<Service>,
    slices: Objects<EndpointSlice>,
    /// Slice names by the Service they belong to.
    slices_of: BTreeMap<ObjectName, Vec<ObjectName>>,
    node: Option<Node>,
    service_cidrs: Objects<ServiceCidr>,
    nodes: Objects<NodeLocation>,
    has_services: bool,
    has_slices: bool,
    /// How many Services ask where other nodes are.
    asking_for_nodes: usize,
}

impl Snapshot {
    /// Takes in one event, and adds to `touched` the Services whose plan it may change.
    ///
    /// What is told again and is the same touches nothing: a relist costs only its differences.
    pub fn apply(&mut self, event: Event, touched: &mut Touched) {
        match event {
            Event::Services(change) => {
                self.has_services |= matches!(change, Update::Reset(_));
                let asking = &mut self.asking_for_nodes;
                self.services.update(change, |name, old, new| {
                    touched.add(name);
                    *asking -= usize::from(needs_regions(old));
                    *asking += usize::from(needs_regions(new));
                });
            }
            Event::EndpointSlices(change) => {
                let is_all = matches!(change, Update::Reset(_));
                self.has_slices |= is_all;
                let slices_of = &mut self.slices_of;
                self.slices.update(change, |name, old, new| {
                    let (old, new) = (old.and_then(service_of), new.and_then(service_of));
                    for service in [&old, &new].into_iter().flatten() {
                        touched.add(service);
                    }
                    if old != new {
                        old.iter().for_each(|old| unlist(slices_of, old, name));
                        new.into_iter().for_each(|new| list(slices_of, new, name));
                    }
                });
                if is_all {
                    pack(slices_of);
                }
            }
            Event::Node(node) => {
                if self.node.as_ref() != Some(&node) {
                    self.node = Some(node);
                    *touched = Touched::All;
                }
            }
            // What is ours is judged when the kernel is read, not when Services are planned.
            Event::ServiceCidrs(change) => self.service_cidrs.update(change, |_, _, _| ()),
            Event::Nodes(change) => {
                let mut moved = false;
                self.nodes.update(change, |_, _, _| moved = true);
                if moved {
                    let asking = self.services().filter(|service| service.needs_regions());
                    asking.for_each(|service| touched.add(&service.name));
                }
            }
        }
    }

    /// Marks the snapshot complete as it is.
    ///
    /// For a start with input of which a part cannot be read, on a machine without state of ours:
    /// nothing is lost there when the readable part is served. A later [`Update::Reset`] deletes
    /// what it lacks, as ever.
    pub fn accept_partial(&mut self) {
        self.has_services = true;
        self.has_slices = true;
    }

    /// Returns whether the snapshot holds all Services and EndpointSlices.
    ///
    /// Before that, an object that is missing here may exist. A [`Update::Reset`] of both kinds
    /// completes the snapshot, and so does [`Snapshot::accept_partial`]; a [`Update::Merge`] does not.
    pub fn is_complete(&self) -> bool {
        self.has_services && self.has_slices
    }

    /// All Services, in order of their names.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.all()
    }

    /// One Service.
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.services.get(name)
    }

    /// The slices of `service`, in order of their names.
    pub fn slices(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> {
        self.slices_of
            .get(service)
            .into_iter()
            .flatten()
            .filter_map(|name| self.slices.get(name))
    }

    /// Our own node, once known.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Whether it was told where other nodes are. No list of them is empty that is one: ours is a
    /// node too.
    pub fn knows_other_nodes(&self) -> bool {
        !self.nodes.parsed.is_empty()
    }

    /// The region of the node called `name`, as far as known.
    pub fn region(&self, name: &Arc<str>) -> Option<&str> {
        let key = ObjectName::new("", name.clone());
        self.nodes.get(&key)?.region.as_deref()
    }

    /// The ranges that cluster IPs are taken from, as far as the API server told.
    pub fn service_ranges(&self) -> impl Iterator<Item = Cidr> + '_ {
        let cidrs = self.service_cidrs.all();
        cidrs.flat_map(|cidr| cidr.ranges.iter().copied())
    }

    /// Whether some Service asks where other nodes are.
    pub fn needs_other_nodes(&self) -> bool {
        self.asking_for_nodes > 0
    }

    /// What was wrong with the objects, in order of their names.
    ///
    /// # Cost
    /// Proportional to the objects that something is wrong with, however many others there are.
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
    parsed: BTreeMap<ObjectName, Parsed<T>>,
    /// The names of those that something is wrong with.
    faulty: BTreeSet<ObjectName>,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            parsed: BTreeMap::new(),
            faulty: BTreeSet::new(),
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
        let faulty = self.faulty.iter().filter_map(|name| self.parsed.get(name));
        faulty.flat_map(|parsed| &parsed.problems)
    }

    /// Notes whether something is wrong with the object `name`.
    fn judge(&mut self, name: &ObjectName, problems: &[Problem]) {
        if problems.is_empty() {
            self.faulty.remove(name);
        } else if !self.faulty.contains(name) {
            self.faulty.insert(name.clone());
        }
    }
}

impl<T: Clone + PartialEq> Objects<T> {
    /// Applies `change` and shows each difference: the object's name, what it was and what it is.
    fn update(
        &mut self,
        change: Update<T>,
        mut differs: impl FnMut(&ObjectName, Option<&Parsed<T>>, Option<&Parsed<T>>),
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
                    self.faulty.remove(&name);
                }
            }
            Update::Reset(all) => {
                let mut before = std::mem::take(&mut self.parsed);
                self.faulty.clear();
                // Named twice, the later counts. Collected, a map has no half-empty nodes; that is
                // where most of the objects of a lifetime come from.
                let all = all.into_iter().map(|new| (new.name.clone(), new));
                self.parsed = all.collect();
                for (name, new) in &mut self.parsed {
                    let old = before.remove(name);
                    new.hold_to(old.as_ref());
                    let new = &*new;
                    if old.as_ref() != Some(new) {
                        differs(name, old.as_ref(), Some(new));
                    }
                    if !new.problems.is_empty() {
                        self.faulty.insert(name.clone());
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
        mut new: Parsed<T>,
        differs: &mut impl FnMut(&ObjectName, Option<&Parsed<T>>, Option<&Parsed<T>>),
    ) {
        let old = self.parsed.get(&new.name);
        new.hold_to(old);
        if old != Some(&new) {
            differs(&new.name, old, Some(&new));
            self.judge(&new.name, &new.problems);
            self.parsed.insert(new.name.clone(), new);
        }
    }
}

fn needs_regions(service: Option<&Parsed<Service>>) -> bool {
    let service = service.and_then(|parsed| parsed.object.as_ref());
    service.is_some_and(Service::needs_regions)
}

fn service_of(slice: &Parsed<EndpointSlice>) -> Option<ObjectName> {
    slice.object.as_ref().map(EndpointSlice::service_name)
}

fn list(
    slices_of: &mut BTreeMap<ObjectName, Vec<ObjectName>>,
    service: ObjectName,
    slice: &ObjectName,
) {
    let names = slices_of.entry(service).or_default();
    let at = names.partition_point(|name| name < slice);
    // Most Services have one slice.
    names.reserve_exact(1);
    names.insert(at, slice.clone());
}

fn unlist(
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

/// Shares equal strings and places, so that a node's name costs its bytes once however many endpoints
/// it has.
#[derive(Debug, Default)]
pub struct Interner {
    texts: HashSet<Arc<str>>,
    /// Places by their nodes, so that an endpoint costs one look; under "" those of no node.
    locations: HashMap<Arc<str>, Vec<Arc<Location>>>,
}

impl Interner {
    /// The shared form of `text`.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.texts.get(text) {
            return shared.clone();
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(shared.clone());
        shared
    }

    /// The shared form of a place.
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

    /// Applies a change of slices; answers the names of the Services it touched.
    fn apply(snapshot: &mut Snapshot, change: Update<EndpointSlice>) -> Vec<String> {
        let mut touched = Touched::none();
        snapshot.apply(Event::EndpointSlices(change), &mut touched);
        match touched {
            Touched::Some(names) => names.iter().map(|name| name.name.to_string()).collect(),
            Touched::All => vec!["all".to_owned()],
        }
    }

    #[test]
    fn a_slice_may_move_to_another_service() {
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
    fn a_relist_touches_what_it_changes() {
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
    fn problems_last_as_long_as_their_objects() {
        let snapshot = &mut Snapshot::default();
        let faulty = |name: &str| Parsed {
            problems: vec![Problem::new(name, "field", "value", "is wrong")],
            ..slice(name, "web")
        };
        let objects = |snapshot: &Snapshot| -> Vec<String> {
            let problems = snapshot.problems();
            problems.map(|problem| problem.object.to_string()).collect()
        };
        let all = vec![faulty("b"), slice("c", "web"), faulty("a")];
        apply(snapshot, Update::Reset(all));
        assert_eq!(objects(snapshot), ["a", "b"]);
        apply(snapshot, Update::Apply(faulty("c")));
        apply(snapshot, Update::Apply(slice("a", "web")));
        assert_eq!(objects(snapshot), ["b", "c"]);
        apply(snapshot, Update::Delete(ObjectName::new("default", "b")));
        assert_eq!(objects(snapshot), ["c"]);
        apply(snapshot, Update::Reset(vec![slice("c", "web")]));
        assert_eq!(objects(snapshot), [""; 0]);
    }

    #[test]
    fn an_object_that_cannot_be_used_is_what_it_was() {
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
        // What needs nothing of this node is no riddle.
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
    fn complete_once_services_and_slices_were_listed() {
        let mut snapshot = Snapshot::default();
        apply(&mut snapshot, Update::Apply(slice("a", "web")));
        apply(&mut snapshot, Update::Reset(vec![]));
        assert!(!snapshot.is_complete());
        let services = Event::Services(Update::Reset(vec![]));
        snapshot.apply(services, &mut Touched::none());
        assert!(snapshot.is_complete());
    }
}
