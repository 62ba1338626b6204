//! Endpoints that are frontends of this relay.
//!
//! The API server accepts a Service whose endpoint is its own address, or that of another Service. The relay would
//! connect to itself for each connection, again and again. It leaves such endpoints out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use rapidhash::RapidHashSet;

use super::Userspace;
use crate::cluster::model::ObjectName;
use crate::cluster::problem::Problem;
use crate::plan::frontend::Frontend;
use crate::plan::{Changed, Desired, FrontendPlan, SelectedEndpoint};

/// The maximum number of endpoints that a Problem names.
const SAMPLES: usize = 3;

/// The planned endpoints that are left out.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    by_frontend: BTreeMap<Frontend, BTreeSet<SocketAddr>>,
    /// Increases when the Problems about them may have changed.
    pub(super) revision: u64,
}

impl LeftOut {
    /// Replaces those of a frontend, whose Service may have changed too.
    fn set(&mut self, frontend: Frontend, endpoints: BTreeSet<SocketAddr>) {
        let has_any = !endpoints.is_empty();
        let before = if has_any {
            self.by_frontend.insert(frontend, endpoints)
        } else {
            self.by_frontend.remove(&frontend)
        };
        self.revision += u64::from(has_any || before.is_some());
    }

    /// Returns a Problem for each Service with endpoints that are left out.
    pub(super) fn problems(&self, desired: &Desired) -> Vec<Problem> {
        let mut services: BTreeMap<&ObjectName, BTreeSet<&SocketAddr>> = BTreeMap::new();
        for (frontend, left_out) in &self.by_frontend {
            if let Some(plan) = desired.frontends.get(frontend) {
                let of_service = services.entry(&plan.owner.service).or_default();
                of_service.extend(left_out);
            }
        }
        let problem = |(service, endpoints): (&ObjectName, BTreeSet<&SocketAddr>)| {
            let named = endpoints.iter().take(SAMPLES).map(ToString::to_string);
            let mut value = named.collect::<Vec<_>>().join(", ");
            if let Some(more @ 1..) = endpoints.len().checked_sub(SAMPLES) {
                value += &format!(" and {more} more");
            }
            let message = "are addresses of Services, at which this relay listens: connections would circle; these \
                           endpoints are left out";
            Problem::new(
                format_args!("Service {service}"),
                "endpoints",
                value,
                message,
            )
        };
        services.into_iter().map(problem).collect()
    }
}

impl Userspace {
    /// Notes the endpoints of a frontend that are left out.
    pub(super) fn note_circles(&mut self, frontend: Frontend, desired: &Desired) {
        let plan = desired.frontends.get(&frontend);
        let endpoints = plan.into_iter().flat_map(endpoints);
        let addresses = endpoints.map(|it| SocketAddr::from((it.address, it.port)));
        let left_out = addresses.filter(|it| self.is_frontend(&frontend, *it, desired));
        let left_out = left_out.collect();
        self.left_out.set(frontend, left_out);
    }

    /// Returns whether an endpoint of `frontend` is itself a frontend of this relay.
    pub(super) fn is_frontend(
        &self,
        frontend: &Frontend,
        endpoint: SocketAddr,
        desired: &Desired,
    ) -> bool {
        let endpoint = at(frontend, endpoint);
        self.serves(&endpoint) && desired.frontends.contains_key(&endpoint)
    }

    /// Returns the frontends with an endpoint that became a frontend, or is one no longer.
    ///
    /// # Cost
    /// Linear in the endpoints of all frontends, if any was added or removed.
    pub(super) fn circling(&self, desired: &Desired, changed: &Changed) -> Vec<Frontend> {
        let before = &changed.before.frontends;
        let moved = changed.frontends.iter().filter(|it| {
            self.serves(it) && before.contains_key(it) != desired.frontends.contains_key(it)
        });
        let moved: RapidHashSet<Frontend> = moved.copied().collect();
        if moved.is_empty() {
            return Vec::new();
        }
        let is_affected = |frontend: &&Frontend| {
            let plan = desired.frontends.get(frontend);
            let mut endpoints = plan.into_iter().flat_map(endpoints);
            endpoints.any(|it| moved.contains(&at(frontend, (it.address, it.port).into())))
        };
        self.served.keys().filter(is_affected).copied().collect()
    }
}

/// Returns the endpoints of a frontend for all clients.
fn endpoints(plan: &FrontendPlan) -> impl Iterator<Item = &SelectedEndpoint> {
    let inside = plan
        .inside
        .iter()
        .flat_map(|inside| inside.endpoints.iter());
    plan.endpoints.iter().chain(inside)
}

/// Returns the frontend that an endpoint of `frontend` would be.
fn at(frontend: &Frontend, endpoint: SocketAddr) -> Frontend {
    Frontend {
        address: endpoint.ip(),
        protocol: frontend.protocol,
        port: endpoint.port(),
    }
}
