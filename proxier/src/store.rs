//! The latest word of the API server, and how events change it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{EndpointSlice, Node, ObjectName, Service};
use crate::problem::Problem;

/// An object as it was read: what could be used of it, and what could not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<T> {
    /// The object's name.
    pub name: ObjectName,
    /// What this node has to know of it; `None` when that is nothing (a headless Service, a broken
    /// object).
    pub object: Option<T>,
    /// What was wrong with it.
    pub problems: Vec<Problem>,
}

/// A change of one kind of object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// The object is new or differs.
    Apply(Parsed<T>),
    /// The object is gone.
    Delete(ObjectName),
    /// These are all objects of the kind; any other one is gone. A relist is one such event.
    Reset(Vec<Parsed<T>>),
}

/// What the world can tell the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A change of Services.
    Services(Change<Service>),
    /// A change of EndpointSlices.
    EndpointSlices(Change<EndpointSlice>),
    /// Our own node's object.
    Node(Node),
}

/// Everything known about the cluster that matters to this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    services: BTreeMap<ObjectName, Parsed<Service>>,
    slices: BTreeMap<ObjectName, Parsed<EndpointSlice>>,
    /// Slice names by the Service they belong to.
    slices_of: BTreeMap<ObjectName, Vec<ObjectName>>,
    node: Option<Node>,
}

impl Snapshot {
    /// Takes in one event.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Services(Change::Apply(parsed)) => {
                self.services.insert(parsed.name.clone(), parsed);
            }
            Event::Services(Change::Delete(name)) => {
                self.services.remove(&name);
            }
            Event::Services(Change::Reset(all)) => {
                self.services = all
                    .into_iter()
                    .map(|parsed| (parsed.name.clone(), parsed))
                    .collect();
            }
            Event::EndpointSlices(Change::Apply(parsed)) => self.insert_slice(parsed),
            Event::EndpointSlices(Change::Delete(name)) => self.remove_slice(&name),
            Event::EndpointSlices(Change::Reset(all)) => {
                self.slices.clear();
                self.slices_of.clear();
                for parsed in all {
                    self.insert_slice(parsed);
                }
            }
            Event::Node(node) => self.node = Some(node),
        }
    }

    /// All Services, in order of their names.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services
            .values()
            .filter_map(|parsed| parsed.object.as_ref())
    }

    /// The slices of `service`, in order of their names.
    pub fn slices(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> {
        self.slices_of
            .get(service)
            .into_iter()
            .flatten()
            .filter_map(|name| self.slices.get(name)?.object.as_ref())
    }

    /// Our own node, once known.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// What was wrong with the objects, in order of their names.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        let services = self.services.values().flat_map(|parsed| &parsed.problems);
        let slices = self.slices.values().flat_map(|parsed| &parsed.problems);
        services.chain(slices)
    }

    fn insert_slice(&mut self, parsed: Parsed<EndpointSlice>) {
        self.remove_slice(&parsed.name);
        if let Some(slice) = &parsed.object {
            let names = self.slices_of.entry(slice.service_name()).or_default();
            let at = names.partition_point(|name| *name < parsed.name);
            names.insert(at, parsed.name.clone());
        }
        self.slices.insert(parsed.name.clone(), parsed);
    }

    fn remove_slice(&mut self, name: &ObjectName) {
        let Some(Parsed {
            object: Some(slice),
            ..
        }) = self.slices.remove(name)
        else {
            return;
        };
        let service = slice.service_name();
        if let Some(names) = self.slices_of.get_mut(&service) {
            names.retain(|other| other != name);
            if names.is_empty() {
                self.slices_of.remove(&service);
            }
        }
    }
}

/// Shares equal strings, so that a node's name costs its bytes once however many endpoints it has.
#[derive(Debug, Default)]
pub struct Interner(std::collections::HashSet<Arc<str>>);

impl Interner {
    /// The shared form of `text`.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.0.get(text) {
            return shared.clone();
        }
        let shared: Arc<str> = text.into();
        self.0.insert(shared.clone());
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

    #[test]
    fn a_slice_may_move_to_another_service() {
        let mut snapshot = Snapshot::default();
        for (name, service) in [("b", "web"), ("a", "web"), ("c", "db"), ("b", "db")] {
            snapshot.apply(Event::EndpointSlices(Change::Apply(slice(name, service))));
        }
        assert_eq!(names(&snapshot, "web"), ["a"]);
        assert_eq!(names(&snapshot, "db"), ["b", "c"]);
        snapshot.apply(Event::EndpointSlices(Change::Delete(ObjectName::new(
            "default", "a",
        ))));
        assert_eq!(names(&snapshot, "web"), [""; 0]);
        snapshot.apply(Event::EndpointSlices(Change::Reset(vec![slice("z", "db")])));
        assert_eq!(names(&snapshot, "db"), ["z"]);
    }
}
