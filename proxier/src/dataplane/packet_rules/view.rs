//! The plan now, or as it was before its last changes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::cluster::model::Cidr;
use crate::plan::frontend::Frontend;
use crate::plan::{Changed, Desired, FrontendPlan};

/// A plan, perhaps as it was earlier.
#[derive(Clone, Copy)]
pub(in crate::dataplane) struct PlanView<'a> {
    pub(in crate::dataplane) desired: &'a Desired,
    /// The changes before which the plan is viewed.
    pub(in crate::dataplane) undone: Option<&'a Changed>,
}

impl<'a> PlanView<'a> {
    /// Returns the plan as it is.
    pub(in crate::dataplane) fn now(desired: &'a Desired) -> Self {
        let undone = None;
        Self { desired, undone }
    }

    /// Returns the plan as it was before its last changes, which are `changed`.
    pub(in crate::dataplane) fn before(desired: &'a Desired, changed: &'a Changed) -> Self {
        let undone = Some(changed);
        Self { desired, undone }
    }

    /// Returns the plan of a frontend; `None` if it is not desired.
    pub(in crate::dataplane) fn frontend(self, frontend: &Frontend) -> Option<&'a FrontendPlan> {
        let source = self.source(|changed| &changed.frontends, frontend);
        source.frontends.get(frontend)
    }

    /// Returns the frontends at `address`, some of them twice, and perhaps others that are not desired.
    pub(in crate::dataplane) fn frontends_at(
        self,
        address: IpAddr,
    ) -> impl Iterator<Item = &'a Frontend> {
        let before = self.undone.map(|changed| &changed.before);
        let plans = [Some(self.desired), before].into_iter().flatten();
        let found = plans.flat_map(move |plan| plan.frontends.range(Frontend::range_at(address)));
        found.map(|(frontend, _)| frontend)
    }

    /// Returns whether `address` is local for Services.
    pub(in crate::dataplane) fn has_address(self, address: IpAddr) -> bool {
        let source = self.source(|changed| &changed.addresses, &address);
        source.addresses.contains_key(&address)
    }

    /// Returns whether an endpoint on this node has `address`.
    pub(in crate::dataplane) fn has_local_endpoint(self, address: IpAddr) -> bool {
        let source = self.source(|changed| &changed.local_endpoints, &address);
        source.local_endpoints.contains(&address)
    }

    /// Returns whether `port` has a health check.
    pub(in crate::dataplane) fn has_health_check(self, port: u16) -> bool {
        let source = self.source(|changed| &changed.health_checks, &port);
        source.health_checks.contains_key(&port)
    }

    /// Returns the ranges in which an address without a Service is rejected.
    pub(in crate::dataplane) fn service_ranges(self) -> &'a BTreeSet<Cidr> {
        match self.undone {
            Some(all) if all.service_ranges => &all.before.service_ranges,
            _ => &self.desired.service_ranges,
        }
    }

    /// Returns the plan that has `key` as it is viewed.
    fn source<K: Ord>(self, changed: impl Fn(&Changed) -> &BTreeSet<K>, key: &K) -> &'a Desired {
        match self.undone {
            Some(all) if changed(all).contains(key) => &all.before,
            _ => self.desired,
        }
    }
}
