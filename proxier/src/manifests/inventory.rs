//! The objects of all manifests, and their conversion to events.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::document::{self, ManifestObject};
use super::kind::Object;
use super::{Loaded, Options, addresses, node_ports};
use crate::api;
use crate::model::{self, ObjectName};
use crate::problem::{Problem, Source};
use crate::store::{Event, Interner, Parsed, Update};

/// The objects that were read so far.
#[derive(Default)]
pub(super) struct Inventory {
    interner: Interner,
    services: BTreeMap<ObjectName, Located<api::Service>>,
    endpoints: BTreeMap<ObjectName, Located<api::Endpoints>>,
    slices: BTreeMap<ObjectName, Parsed<model::EndpointSlice>>,
    nodes: BTreeMap<String, Located<api::Node>>,
    /// Services whose Endpoints object a control plane has mirrored already.
    mirrored: BTreeSet<ObjectName>,
    problems: Vec<Problem>,
    /// Whether a file, a document or an object could not be read.
    is_partial: bool,
}

/// An object with its place in a file.
pub(super) struct Located<T> {
    pub(super) object: T,
    /// Problems beyond those that parsing the object reports.
    pub(super) problems: Vec<Problem>,
    /// Whether the object is not parsed further, because no cluster IP could be allocated.
    pub(super) is_unservable: bool,
    source: Source,
}

impl Inventory {
    /// Adds the objects of a file.
    pub(super) fn read(&mut self, text: &str, file: &str) {
        for ManifestObject { line, object } in document::read(text) {
            let source = Source {
                file: file.to_owned(),
                line,
            };
            let added = object.and_then(|object| self.add(object, &source));
            if let Err(problem) = added {
                self.add_unreadable(with_source(problem, &source));
            }
        }
    }

    /// Notes a file that could not be read.
    pub(super) fn add_unreadable_file(&mut self, file: &str, reason: &str) {
        let message = format!("{reason}; objects read from this file before stay in use");
        self.add_unreadable(Problem::new(file, "", "", message));
    }

    /// Notes unreadable input, so that objects may be missing.
    fn add_unreadable(&mut self, problem: Problem) {
        self.is_partial = true;
        self.problems.push(problem);
    }

    fn add(&mut self, object: Object, source: &Source) -> Result<(), Problem> {
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
            // Most of a cluster's data is slices, so they are reduced to the model at once.
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

    /// Does the control plane's part and converts all objects to events.
    pub(super) fn finish(mut self, options: &Options) -> Loaded {
        addresses::assign(&mut self.services, &options.service_cidr);
        node_ports::assign(&mut self.services);
        self.mirror();
        let services = self.parse_services();
        let needs_regions = |service: &Parsed<model::Service>| {
            let object = service.object.as_ref();
            object.is_some_and(model::Service::needs_regions)
        };
        // Node names are lower case in the API; `--node-name` may not be.
        let own_name = options.node_name.to_lowercase();
        let locations = services
            .iter()
            .any(needs_regions)
            .then(|| node_locations(&self.nodes, &own_name, &mut self.interner));
        let own_node = self.parse_own_node(&own_name);
        let is_whole = !self.is_partial;
        let slices = self.slices.into_values().collect();
        let mut events = vec![
            Event::Services(update(services, is_whole)),
            Event::EndpointSlices(update(slices, is_whole)),
        ];
        events.extend(locations.map(|locations| Event::Nodes(update(locations, is_whole))));
        events.extend(own_node.map(Event::Node));
        Loaded {
            events,
            problems: self.problems,
            is_whole,
        }
    }

    fn parse_services(&mut self) -> Vec<Parsed<model::Service>> {
        let mut services = Vec::with_capacity(self.services.len());
        for (name, located) in std::mem::take(&mut self.services) {
            let add_source = |problem| with_source(problem, &located.source);
            let mut problems: Vec<Problem> = located.problems.into_iter().map(add_source).collect();
            let mut object = None;
            if !located.is_unservable {
                match located.object.parse(&mut self.interner) {
                    Ok(parsed) => {
                        problems.extend(parsed.problems.into_iter().map(add_source));
                        object = parsed.object;
                    }
                    Err(problem) => problems.push(add_source(problem)),
                }
            }
            services.push(Parsed {
                name,
                object,
                problems,
            });
        }
        services
    }

    fn parse_own_node(&mut self, name: &str) -> Option<model::Node> {
        let located = self.nodes.remove(name)?;
        let add_source = |problem| with_source(problem, &located.source);
        self.problems
            .extend(located.problems.into_iter().map(add_source));
        match located.object.parse(&mut self.interner) {
            Ok((node, problems)) => {
                self.problems.extend(problems.into_iter().map(add_source));
                Some(node)
            }
            Err(problem) => {
                self.add_unreadable(add_source(problem));
                None
            }
        }
    }

    /// Mirrors Endpoints objects to slices where the control plane would: for Services without a
    /// selector. If a control plane did so already, its slices are used.
    fn mirror(&mut self) {
        for (name, located) in std::mem::take(&mut self.endpoints) {
            let add_source = |problem| with_source(problem, &located.source);
            self.problems
                .extend(located.problems.into_iter().map(add_source));
            let Some(service) = self.services.get(&name) else {
                continue;
            };
            let is_copied = self.mirrored.contains(&name);
            if service.object.has_selector() || is_copied || !located.object.wants_mirror() {
                continue;
            }
            match located.object.mirror(&mut self.interner) {
                Err(problem) => self.add_unreadable(add_source(problem)),
                Ok(slices) => {
                    for mut slice in slices {
                        slice.problems = slice.problems.into_iter().map(add_source).collect();
                        // A slice of the same name in the manifests takes precedence.
                        self.slices.entry(slice.name.clone()).or_insert(slice);
                    }
                }
            }
        }
    }
}

/// Returns a [`Update::Merge`] for an incomplete list, which must delete nothing.
fn update<T>(objects: Vec<Parsed<T>>, is_whole: bool) -> Update<T> {
    if is_whole {
        Update::Reset(objects)
    } else {
        Update::Merge(objects)
    }
}

/// Returns the locations of all nodes. The problems of our `own` Node are reported by its parsing.
fn node_locations(
    nodes: &BTreeMap<String, Located<api::Node>>,
    own: &str,
    interner: &mut Interner,
) -> Vec<Parsed<model::NodeLocation>> {
    let mut locations = Vec::with_capacity(nodes.len());
    for (name, located) in nodes {
        let add_source = |problem| with_source(problem, &located.source);
        if let Ok(mut parsed) = located.object.location(interner) {
            let problems = parsed.problems.into_iter().map(add_source);
            parsed.problems = problems.filter(|_| name != own).collect();
            locations.push(parsed);
        }
    }
    locations
}

fn insert<N: Ord + Clone + std::fmt::Display, T>(
    objects: &mut BTreeMap<N, Located<T>>,
    kind: &str,
    name: N,
    object: T,
    source: &Source,
) {
    let mut located = Located {
        object,
        problems: Vec::new(),
        is_unservable: false,
        source: source.clone(),
    };
    match objects.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(located);
        }
        Entry::Occupied(mut entry) => {
            located.problems.push(repeated(kind, entry.key()));
            entry.insert(located);
        }
    }
}

fn repeated(kind: &str, name: impl std::fmt::Display) -> Problem {
    let message = "the object was defined before; this later definition is used";
    Problem::new(format!("{kind} {name}"), "", "", message)
}

/// Adds the place to a problem. If the problem has no object, the place becomes its object.
fn with_source(mut problem: Problem, source: &Source) -> Problem {
    if problem.object.is_empty() {
        problem.object = source.to_string();
        return problem;
    }
    problem.at(source.clone())
}
