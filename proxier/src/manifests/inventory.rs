//! All objects of the manifests, before they become events.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::document::{self, Found};
use super::kind::Object;
use super::{Loaded, Options, addresses, node_ports};
use crate::api;
use crate::model::{self, ObjectName};
use crate::problem::{Problem, Source};
use crate::store::{Event, Interner, Parsed, Update};

/// What was read so far.
#[derive(Default)]
pub(super) struct Inventory {
    interner: Interner,
    services: BTreeMap<ObjectName, Placed<api::Service>>,
    endpoints: BTreeMap<ObjectName, Placed<api::Endpoints>>,
    slices: BTreeMap<ObjectName, Parsed<model::EndpointSlice>>,
    nodes: BTreeMap<String, Placed<api::Node>>,
    /// Services whose Endpoints object was mirrored by a control plane already.
    mirrored: BTreeSet<ObjectName>,
    problems: Vec<Problem>,
    /// Whether a file, a document or an object could not be read.
    is_partial: bool,
}

/// An object and where it was found.
pub(super) struct Placed<T> {
    pub(super) object: T,
    /// What was found out about the object beyond itself.
    pub(super) problems: Vec<Problem>,
    /// Whether the object is left at that, because it lacks what nobody can give it.
    pub(super) is_given_up: bool,
    source: Source,
}

impl Inventory {
    /// Takes in the contents of a file.
    pub(super) fn read(&mut self, text: &str, file: &str) {
        for Found { line, object } in document::read(text) {
            let source = Source {
                file: file.to_owned(),
                line,
            };
            let taken = object.and_then(|object| self.take(object, &source));
            if let Err(problem) = taken {
                self.refuse(place(problem, &source));
            }
        }
    }

    /// Takes note of a file that could not be read.
    pub(super) fn refuse_file(&mut self, file: &str, reason: &str) {
        let message = format!("{reason}; the file is skipped");
        self.refuse(Problem::new(file, "", "", message));
    }

    /// Notes input that could not be read, so that objects may be missing.
    fn refuse(&mut self, problem: Problem) {
        self.is_partial = true;
        self.problems.push(problem);
    }

    fn take(&mut self, object: Object, source: &Source) -> Result<(), Problem> {
        let interner = &mut self.interner;
        match object {
            Object::Service(service) => {
                let name = service.metadata.object_name("Service", interner)?;
                insert(&mut self.services, "Service", name, *service, source);
            }
            Object::Endpoints(endpoints) => {
                let name = endpoints.metadata.object_name("Endpoints", interner)?;
                insert(&mut self.endpoints, "Endpoints", name, endpoints, source);
            }
            Object::Node(node) => {
                let name = node.metadata.cluster_name("Node")?.to_owned();
                insert(&mut self.nodes, "Node", name, node, source);
            }
            // Slices are most of a cluster: they are reduced to what counts at once.
            Object::EndpointSlice(slice) => {
                let mut parsed = slice.parse(interner)?;
                let namespace = &parsed.name.namespace;
                if let Some(service) = slice.mirrored_service() {
                    self.mirrored
                        .insert(ObjectName::new(namespace.clone(), service));
                }
                if let Some(earlier) = self.slices.get(&parsed.name) {
                    parsed
                        .problems
                        .push(repeated("EndpointSlice", &earlier.name));
                }
                for problem in &mut parsed.problems {
                    problem.source = Some(source.clone());
                }
                self.slices.insert(parsed.name.clone(), parsed);
            }
        }
        Ok(())
    }

    /// Does what the control plane would do, and makes events of everything.
    pub(super) fn finish(mut self, options: &Options) -> Loaded {
        addresses::assign(&mut self.services, &options.service_cidr);
        node_ports::assign(&mut self.services);
        self.mirror();
        let mut services = Vec::with_capacity(self.services.len());
        for (name, placed) in std::mem::take(&mut self.services) {
            let place = |problem| place(problem, &placed.source);
            let mut problems: Vec<Problem> = placed.problems.into_iter().map(place).collect();
            let mut object = None;
            if !placed.is_given_up {
                match placed.object.parse(&mut self.interner) {
                    Ok(parsed) => {
                        problems.extend(parsed.problems.into_iter().map(place));
                        object = parsed.object;
                    }
                    Err(problem) => problems.push(place(problem)),
                }
            }
            services.push(Parsed {
                name,
                object,
                problems,
            });
        }
        let asks = |service: &Parsed<model::Service>| {
            let object = service.object.as_ref();
            object.is_some_and(model::Service::needs_regions)
        };
        let own = options.node_name.to_lowercase();
        let places = services.iter().any(asks);
        let places = places.then(|| places_of(&self.nodes, &own, &mut self.interner));
        let mut own_node = None;
        if let Some(placed) = self.nodes.remove(&own) {
            let place = |problem| place(problem, &placed.source);
            self.problems.extend(placed.problems.into_iter().map(place));
            match placed.object.parse(&mut self.interner) {
                Ok((node, problems)) => {
                    self.problems.extend(problems.into_iter().map(place));
                    own_node = Some(node);
                }
                Err(problem) => self.refuse(place(problem)),
            }
        }
        let is_whole = !self.is_partial;
        let slices = self.slices.into_values().collect();
        let mut events = vec![
            Event::Services(update(services, is_whole)),
            Event::EndpointSlices(update(slices, is_whole)),
        ];
        events.extend(places.map(|places| Event::Nodes(update(places, is_whole))));
        events.extend(own_node.map(Event::Node));
        Loaded {
            events,
            problems: self.problems,
            is_whole,
        }
    }

    /// Makes slices of Endpoints objects where the control plane would: for Services without a
    /// selector. Where it has done so already, its copies are the ones to keep.
    fn mirror(&mut self) {
        for (name, placed) in std::mem::take(&mut self.endpoints) {
            let place = |problem| place(problem, &placed.source);
            self.problems.extend(placed.problems.into_iter().map(place));
            let Some(service) = self.services.get(&name) else {
                continue;
            };
            let is_copied = self.mirrored.contains(&name);
            if service.object.has_selector() || is_copied || !placed.object.wants_mirror() {
                continue;
            }
            match placed.object.mirror(&mut self.interner) {
                Err(problem) => self.refuse(place(problem)),
                Ok(slices) => {
                    for mut slice in slices {
                        slice.problems = slice.problems.into_iter().map(place).collect();
                        self.slices.entry(slice.name.clone()).or_insert(slice);
                    }
                }
            }
        }
    }
}

fn update<T>(objects: Vec<Parsed<T>>, is_whole: bool) -> Update<T> {
    if is_whole {
        Update::Reset(objects)
    } else {
        Update::Merge(objects)
    }
}

/// Where all nodes are. What is wrong with our `own` is said where the whole of it is read.
fn places_of(
    nodes: &BTreeMap<String, Placed<api::Node>>,
    own: &str,
    interner: &mut Interner,
) -> Vec<Parsed<model::NodeLocation>> {
    let mut places = Vec::with_capacity(nodes.len());
    for (name, placed) in nodes {
        let place = |problem| place(problem, &placed.source);
        if let Ok(mut parsed) = placed.object.location(interner) {
            let problems = parsed.problems.into_iter().map(place);
            parsed.problems = problems.filter(|_| name != own).collect();
            places.push(parsed);
        }
    }
    places
}

fn insert<N: Ord + Clone + std::fmt::Display, T>(
    objects: &mut BTreeMap<N, Placed<T>>,
    kind: &str,
    name: N,
    object: T,
    source: &Source,
) {
    let mut placed = Placed {
        object,
        problems: Vec::new(),
        is_given_up: false,
        source: source.clone(),
    };
    match objects.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(placed);
        }
        Entry::Occupied(mut entry) => {
            placed.problems.push(repeated(kind, entry.key()));
            entry.insert(placed);
        }
    }
}

fn repeated(kind: &str, name: impl std::fmt::Display) -> Problem {
    let message = "the object was already given; this later one counts";
    Problem::new(format!("{kind} {name}"), "", "", message)
}

/// Says where a problem is; one that concerns no object gets the place for one.
fn place(mut problem: Problem, source: &Source) -> Problem {
    if problem.object.is_empty() {
        problem.object = source.to_string();
        return problem;
    }
    problem.at(source.clone())
}
