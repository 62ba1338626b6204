//! What the daemon tells: all Services in short, and one Service in full.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;
use smallvec::SmallVec;

use super::counters::Counts;
use super::rotation;
use crate::cluster::model::{
    Location, ObjectName, Service, ServicePort, ServicePortName, TrafficPolicy,
};
use crate::dataplane::{Dataplane, Planned, Serving};
use crate::plan::frontend::Frontend;
use crate::plan::{
    Availability, Balancing, Endpoints, FrontendKind, FrontendPlan, Surveyed, find_endpoint, survey,
};
use crate::reconcile::Proxier;

/// The most endpoints that are told of one Service, each counted once per frontend.
const MAX_ENDPOINTS: usize = 1_000;

/// The most frontends that are told of one Service. It may have 40,000 ports.
const MAX_FRONTENDS: usize = 100;

/// All Service ports that the plan serves, in order of names.
#[derive(Debug, Default)]
pub(crate) struct Directory(pub(crate) BTreeMap<ServicePortName, Entry>);

/// A Service port in short.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Its frontends, in order.
    pub(crate) frontends: SmallVec<[EntryFrontend; 1]>,
    /// The endpoints of the frontend with the most of them.
    pub(crate) endpoints: usize,
    /// The endpoints that left and keep their connections, each counted once per frontend.
    pub(crate) draining: usize,
    /// Why clients of a frontend find no endpoint.
    pub(crate) unserved: BTreeSet<&'static str>,
}

/// A frontend in short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryFrontend {
    /// The frontend.
    pub(crate) frontend: Frontend,
    /// The virtual server of clients inside the cluster, if IPVS has one for them.
    pub(crate) inside: Option<ipvs::ServiceKey>,
    /// What a relay counts; `None` if the kernel serves.
    pub(crate) relayed: Option<Counts>,
}

impl EntryFrontend {
    /// Returns the keys of its counters.
    pub(crate) fn keys(&self) -> impl Iterator<Item = ipvs::ServiceKey> + use<> {
        [Some(self.frontend.into()), self.inside]
            .into_iter()
            .flatten()
    }
}

/// A Service in full.
#[derive(Debug)]
pub(crate) struct Detail {
    /// Its name.
    pub(crate) service: ObjectName,
    /// Its frontends, some twice: for clients outside and inside the cluster.
    pub(crate) frontends: Vec<FrontendDetail>,
    /// The frontends that are left out, because there are too many.
    pub(crate) left_out_frontends: usize,
    /// The endpoints of the others that are left out.
    pub(crate) left_out: usize,
}

/// A frontend for some clients.
#[derive(Debug)]
pub(crate) struct FrontendDetail {
    /// The frontend.
    pub(crate) frontend: Frontend,
    /// The key of its counters.
    pub(crate) key: ipvs::ServiceKey,
    /// The name of the Service's port.
    pub(crate) port: Arc<str>,
    /// Its kind.
    pub(crate) kind: FrontendKind,
    /// The clients.
    pub(crate) clients: &'static str,
    /// The traffic policy for them.
    pub(crate) policy: TrafficPolicy,
    /// How their connections are spread.
    pub(crate) balancing: Balancing,
    /// Why they find no endpoint.
    pub(crate) unserved: Option<&'static str>,
    /// All endpoints that the Service has for them, also those that get no connections.
    pub(crate) endpoints: Vec<EndpointDetail>,
}

/// An endpoint of a frontend.
#[derive(Debug)]
pub(crate) struct EndpointDetail {
    /// Address and port.
    pub(crate) address: SocketAddr,
    /// Its node and zone; `None` if no EndpointSlice has it any more.
    pub(crate) location: Option<Arc<Location>>,
    /// Its weight, if it is in the plan.
    pub(crate) weight: Option<u16>,
    /// Whether its weight is smaller because it is new.
    pub(crate) is_new: bool,
    /// Why it gets no new connections.
    pub(crate) reason: Option<&'static str>,
    /// Until when it keeps its connections, in time since boot.
    pub(crate) until: Option<Duration>,
    /// What a relay knows of it.
    pub(crate) relayed: Option<Counts>,
}

/// Returns all Services of the plan in short.
///
/// # Cost
/// A walk over the plan: some milliseconds for 10,000 Services.
pub(crate) fn directory<D: Dataplane>(proxier: &Proxier<D>) -> Directory {
    let mut services = BTreeMap::<ServicePortName, Entry>::new();
    for (frontend, plan) in &proxier.desired().frontends {
        let serving = proxier.dataplane().serving(frontend);
        // Nearly all Service ports have one frontend, so few names are cloned in vain.
        let entry = services.entry(plan.owner.clone()).or_default();
        let relayed = serving.relayed.map(|endpoints| {
            let mut sum = Counts::default();
            endpoints
                .into_iter()
                .for_each(|(_, state)| sum += state.into());
            sum
        });
        entry.frontends.push(EntryFrontend {
            frontend: *frontend,
            inside: serving.inside,
            relayed,
        });
        let inside = plan
            .inside
            .as_ref()
            .map_or(0, |inside| inside.endpoints.len());
        entry.endpoints = entry.endpoints.max(plan.endpoints.len()).max(inside);
        entry.draining += serving.draining.len();
        entry.unserved.extend(unserved(plan));
    }
    Directory(services)
}

/// Returns why clients of a frontend find no endpoint.
fn unserved(plan: &FrontendPlan) -> Option<&'static str> {
    match plan.profile.access.endpoints {
        Availability::Usable => None,
        Availability::RemoteOnly => Some("no endpoint on this node (traffic policy Local)"),
        Availability::None if plan.endpoints.is_empty() => Some("no endpoint"),
        Availability::None => Some("all endpoints have weight 0"),
    }
}

/// Returns the Service `name` in full; `None` if the plan serves no port of it.
///
/// # Cost
/// A walk over the names of the plan.
pub(crate) fn detail<D: Dataplane>(proxier: &Proxier<D>, name: &ObjectName) -> Option<Detail> {
    let planned = proxier.planned();
    let service = planned.snapshot.service(name)?;
    let mut builder = DetailBuilder {
        planned,
        service,
        detail: Detail {
            service: name.clone(),
            frontends: Vec::new(),
            left_out_frontends: 0,
            left_out: 0,
        },
        count: 0,
    };
    let all = planned.desired().frontends.iter();
    for (frontend, plan) in all.filter(|(_, plan)| plan.owner.service == *name) {
        if builder.detail.frontends.len() >= MAX_FRONTENDS {
            builder.detail.left_out_frontends += 1;
            continue;
        }
        builder.add(frontend, plan, &proxier.dataplane().serving(frontend));
    }
    let detail = builder.detail;
    (!detail.frontends.is_empty()).then_some(detail)
}

struct DetailBuilder<'a> {
    planned: Planned<'a>,
    service: &'a Service,
    detail: Detail,
    /// The endpoints so far.
    count: usize,
}

impl DetailBuilder<'_> {
    fn add(&mut self, frontend: &Frontend, plan: &FrontendPlan, serving: &Serving) {
        let access = &plan.profile.access;
        let clients = match plan.inside {
            Some(_) => "outside the cluster",
            None => "all",
        };
        let outside = FrontendDetail {
            frontend: *frontend,
            key: (*frontend).into(),
            port: plan.owner.port.clone(),
            kind: plan.profile.kind,
            clients,
            policy: access.policy,
            balancing: plan.profile.balancing.clone(),
            unserved: unserved(plan),
            endpoints: Vec::new(),
        };
        let inside = plan.inside.as_ref().map(|inside| FrontendDetail {
            key: serving.inside.unwrap_or(outside.key),
            port: outside.port.clone(),
            clients: "inside the cluster",
            policy: TrafficPolicy::Cluster,
            balancing: inside.balancing.clone(),
            unserved: inside.endpoints.is_empty().then_some("no endpoint"),
            endpoints: Vec::new(),
            ..outside
        });
        self.push(outside, &plan.endpoints, serving);
        if let (Some(detail), Some(inside)) = (inside, &plan.inside) {
            self.push(detail, &inside.endpoints, serving);
        }
    }

    /// Adds a frontend, whose endpoints are `planned` for its clients.
    fn push(&mut self, mut detail: FrontendDetail, planned: &Endpoints, serving: &Serving) {
        if self.count >= MAX_ENDPOINTS {
            self.detail.left_out += planned.len();
            return self.detail.frontends.push(detail);
        }
        let mut endpoints = BTreeMap::<SocketAddr, EndpointDetail>::new();
        for surveyed in self.survey(&detail) {
            let address = surveyed.address;
            let selected = find_endpoint(planned, address.ip(), address.port());
            let found = EndpointDetail {
                reason: rotation::reason(&surveyed),
                location: Some(surveyed.endpoint.location),
                weight: selected.map(|it| it.weight),
                is_new: surveyed.is_new,
                ..EndpointDetail::at(address)
            };
            endpoints.insert(address, found);
        }
        for (address, until) in &serving.draining {
            let known = endpoints
                .entry(*address)
                .or_insert_with(|| EndpointDetail::at(*address));
            if known.weight.is_none() {
                known.until = Some(*until);
                known.reason = known.reason.or(Some("removed"));
            }
        }
        for (address, state) in serving.relayed.iter().flatten() {
            if let Some(known) = endpoints.get_mut(address) {
                *known.relayed.get_or_insert_default() += (*state).into();
                if state.is_ejected {
                    known.reason = Some("ejected: it did not accept the last connections");
                }
            }
        }
        let room = MAX_ENDPOINTS - self.count;
        self.count += endpoints.len();
        self.detail.left_out += endpoints.len().saturating_sub(room);
        detail.endpoints = endpoints.into_values().take(room).collect();
        self.detail.frontends.push(detail);
    }

    /// Returns the endpoints that the slices have for a frontend, as the planner judges them.
    fn survey(&self, detail: &FrontendDetail) -> Vec<Surveyed> {
        let (family, protocol) = (detail.frontend.family(), detail.frontend.protocol);
        let is_wanted =
            |port: &&ServicePort| (&port.name, port.protocol) == (&detail.port, protocol);
        let port = self.service.ports.iter().find(is_wanted);
        let standings = &self.planned.machine.standings;
        let view = (self.planned.snapshot, self.planned.config(), standings);
        let survey = |port| survey(view, (self.service, port), family, detail.policy);
        port.map(survey).unwrap_or_default()
    }
}

impl EndpointDetail {
    /// Returns an endpoint of which nothing is known.
    fn at(address: SocketAddr) -> Self {
        Self {
            address,
            location: None,
            weight: None,
            is_new: false,
            reason: None,
            until: None,
            relayed: None,
        }
    }
}
