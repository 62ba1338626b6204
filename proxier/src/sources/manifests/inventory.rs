//! The objects of all manifests, and their conversion to events.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{self, ManifestObject};
use super::kind::Object;
use super::{Allocated, Loaded, Options, addresses, node_ports};
use crate::cluster::api::{self, Scalar, WireObject as _};
use crate::cluster::model::{self, ObjectName};
use crate::cluster::problem::{Problem, Source};
use crate::cluster::store::{Event, Interner, Parsed, Update};

/// The objects that were read so far.
#[derive(Default)]
pub(super) struct Inventory {
    interner: Interner,
    services: BTreeMap<ObjectName, Located<api::ServiceObject<'static>>>,
    endpoints: BTreeMap<ObjectName, Located<api::Endpoints<'static>>>,
    slices: BTreeMap<ObjectName, Parsed<model::EndpointSlice>>,
    nodes: BTreeMap<ObjectName, Located<api::NodeObject<'static>>>,
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

impl<T> Located<T> {
    /// Adds a problem with `field`.
    pub(super) fn add_problem(&mut self, object: &str, field: &str, message: impl Into<String>) {
        let problem = Problem::new(object, field, "", message);
        self.problems.push(problem.at(self.source.clone()));
    }
}

impl Inventory {
    /// Returns an empty inventory.
    pub(super) fn new(options: &Options) -> Self {
        let mut inventory = Self::default();
        inventory.interner.permits_loopback = options.permits_loopback;
        inventory
    }

    /// Adds the objects of a file.
    pub(super) fn read(&mut self, text: &str, file: &str) {
        for ManifestObject { line, object } in document::read(text) {
            let source = Source {
                file: file.to_owned(),
                line,
            };
            let added = object.and_then(|object| self.add(object, &source));
            if let Err(mut problem) = added {
                // A problem that names no object names the place instead.
                if problem.object.is_empty() {
                    problem.object = source.to_string();
                } else {
                    problem = problem.at(source);
                }
                self.add_unreadable(problem);
            }
        }
    }

    /// Records a file that could not be read.
    pub(super) fn add_unreadable_file(&mut self, file: &str, reason: &str) {
        let message = format!("{reason}; objects read from this file before stay in use");
        self.add_unreadable(Problem::new(file, "", "", message));
    }

    /// Records unreadable input, which may contain objects that the inventory lacks.
    fn add_unreadable(&mut self, problem: Problem) {
        self.is_partial = true;
        self.problems.push(problem);
    }

    fn add(&mut self, object: Object, source: &Source) -> Result<(), Problem> {
        match object {
            Object::Service(service) => {
                let name = service.metadata.object_name("Service")?;
                insert(&mut self.services, "Service", name, *service, source);
            }
            Object::Endpoints(endpoints) => {
                let name = endpoints.metadata.object_name("Endpoints")?;
                insert(&mut self.endpoints, "Endpoints", name, endpoints, source);
            }
            Object::Node(node) => {
                let name = node.metadata.cluster_object_name("Node")?;
                insert(&mut self.nodes, "Node", name, node, source);
            }
            // Most of a cluster's data is slices, so they are reduced to the model at once.
            Object::EndpointSlice(slice) => {
                let mut parsed = slice.parse(&mut self.interner)?;
                if slice.is_detached() {
                    // From an API server it is no mistake.
                    let field = "metadata.labels[kubernetes.io/service-name]";
                    let message = "is missing; the slice belongs to no Service";
                    let object = format!("EndpointSlice {}", parsed.name);
                    let problem = Problem::new(object, field, "", message);
                    self.problems.push(problem.at(source.clone()));
                }
                let namespace = parsed.name.namespace();
                if let Some(service) = slice.mirrored_service() {
                    self.mirrored.insert(ObjectName::new(namespace, service));
                }
                if let Some(earlier) = self.slices.get(&parsed.name) {
                    parsed
                        .problems
                        .push(repeated("EndpointSlice", &earlier.name));
                }
                locate(&mut parsed.problems, source);
                self.slices.insert(parsed.name.clone(), parsed);
            }
        }
        Ok(())
    }

    /// Does the control plane's part and converts all objects to events. `allocated` is that of the load before.
    pub(super) fn finish(mut self, options: &Options, mut allocated: Allocated) -> Loaded {
        let are_all = !self.is_partial;
        let networks = &options.service_cidr;
        addresses::assign(
            &mut self.services,
            networks,
            &mut allocated.addresses,
            are_all,
        );
        node_ports::assign(&mut self.services, &mut allocated.node_ports, are_all);
        // Before `parse_services`, which consumes the Services.
        self.mirror();
        let services = self.parse_services();
        // Node names are lower case in the API; `--node-name` may not be.
        let own_name = ObjectName::new("", options.node_name.to_lowercase());
        let objects = services.iter().filter_map(|it| it.object.as_ref());
        let needs_regions = { objects }.any(model::Service::needs_regions);
        let locations = needs_regions.then(|| self.node_locations(&own_name));
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
            allocated,
        }
    }

    /// Parses an object with `parse`, and sets the place of its problems.
    fn parse<T, U>(
        &mut self,
        mut located: Located<T>,
        parse: impl FnOnce(&T, &mut Interner) -> Result<Parsed<U>, Problem>,
    ) -> Option<Parsed<U>> {
        match parse(&located.object, &mut self.interner) {
            Ok(mut parsed) => {
                locate(&mut parsed.problems, &located.source);
                located.problems.append(&mut parsed.problems);
                parsed.problems = located.problems;
                Some(parsed)
            }
            Err(problem) => {
                self.add_unreadable(problem.at(located.source));
                None
            }
        }
    }

    fn parse_services(&mut self) -> Vec<Parsed<model::Service>> {
        let services = std::mem::take(&mut self.services);
        // For this proxy they do not exist, as with an API server, whose watch leaves them out. A Service that
        // exists keeps its connections, and would keep the other proxy from serving it.
        let is_ours = |located: &Located<api::ServiceObject<'static>>| {
            located.object.metadata.labels.service_proxy_name == Scalar::Absent
        };
        let services = services.into_iter().filter(|(_, located)| is_ours(located));
        let parsed = services.filter_map(|(name, located)| {
            let is_unservable = located.is_unservable;
            self.parse(located, |service, interner| match is_unservable {
                false => service.parse(interner),
                true => Ok(Parsed {
                    name,
                    object: None,
                    problems: Vec::new(),
                    changed: None,
                }),
            })
        });
        parsed.collect()
    }

    /// Returns the locations of all nodes. `parse_own_node` reports the problems of the Node `own`.
    fn node_locations(&mut self, own: &ObjectName) -> Vec<Parsed<model::NodeLocation>> {
        let mut locations = Vec::with_capacity(self.nodes.len());
        for (name, located) in &self.nodes {
            if let Ok(mut parsed) = located.object.location(&mut self.interner) {
                parsed.problems.retain(|_| name != own);
                locate(&mut parsed.problems, &located.source);
                locations.push(parsed);
            }
        }
        locations
    }

    fn parse_own_node(&mut self, name: &ObjectName) -> Option<model::Node> {
        let located = self.nodes.remove(name)?;
        let parsed = self.parse(located, api::NodeObject::parse)?;
        self.problems.extend(parsed.problems);
        parsed.object
    }

    /// Mirrors Endpoints objects to slices where the control plane would: for Services without a
    /// selector. If a control plane did so already, its slices are used.
    fn mirror(&mut self) {
        for (name, located) in std::mem::take(&mut self.endpoints) {
            self.problems.extend(located.problems);
            let endpoints = located.object;
            let service = self.services.get(&name);
            let is_wanted = service.is_some_and(|service| !service.object.has_selector());
            if !is_wanted || self.mirrored.contains(&name) || !endpoints.wants_mirror() {
                continue;
            }
            for mut slice in endpoints.mirror(&name, &mut self.interner) {
                locate(&mut slice.problems, &located.source);
                // A slice of the same name in the manifests takes precedence.
                self.slices.entry(slice.name.clone()).or_insert(slice);
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

fn insert<T>(
    objects: &mut BTreeMap<ObjectName, Located<T>>,
    kind: &str,
    name: ObjectName,
    object: T,
    source: &Source,
) {
    let mut located = Located {
        object,
        problems: Vec::new(),
        is_unservable: false,
        source: source.clone(),
    };
    if objects.contains_key(&name) {
        located
            .problems
            .push(repeated(kind, &name).at(source.clone()));
    }
    objects.insert(name, located);
}

fn repeated(kind: &str, name: &ObjectName) -> Problem {
    let message = "the object was defined before; this later definition is used";
    Problem::new(format!("{kind} {name}"), "", "", message)
}

/// Sets the place of `problems`.
fn locate(problems: &mut [Problem], source: &Source) {
    for problem in problems {
        problem.source = Some(source.clone());
    }
}
