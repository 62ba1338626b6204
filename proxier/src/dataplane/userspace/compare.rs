//! The comparison of what is served with the plan, and the wait for connections of what leaves it.
//!
//! A frontend that an edit of its Service removed drains all its endpoints. It closes when its last connection has ended,
//! or at its deadline; at once if its Service is deleted.

use std::time::Duration;

use super::Userspace;
use super::change::{Change, Changes, Place};
use super::served::{Served, Terms};
use crate::cluster::model::{Protocol, ServicePortName};
use crate::dataplane::Planned;
use crate::plan;
use crate::plan::frontend::Frontend;

impl Userspace {
    /// Begins or ends the wait for the connections of a frontend that the plan may no longer have.
    pub(super) fn leave(&mut self, frontend: Frontend, planned: Planned<'_>, now: Duration) {
        let Some(served) = self.served.get_mut(&frontend) else {
            return;
        };
        if planned.desired().frontends.contains_key(&frontend) {
            served.leaving = None;
            return;
        }
        let drain = drain_time(planned, &frontend, &served.owner);
        let deadline = served.leaving.unwrap_or(now + drain);
        let is_used = match served.leaving {
            // Counted only after the endpoints get no new connections.
            None => served.has_endpoints(),
            Some(_) => served.has_connections(),
        };
        let stays = is_used && !drain.is_zero() && deadline > now;
        served.leaving = stays.then_some(deadline);
        if stays {
            self.draining.insert(frontend);
        }
    }

    /// Appends the changes of a frontend.
    pub(super) fn compare(
        &mut self,
        frontend: Frontend,
        planned: Planned<'_>,
        now: Duration,
        changes: &mut Changes,
    ) {
        let desired = planned.desired();
        self.note_circles(frontend, desired);
        let plan = desired.frontends.get(&frontend);
        let Some(served) = self.served.get(&frontend) else {
            changes.list.extend(plan.map(|_| Change::Open(frontend)));
            return;
        };
        let end = match (plan, served.leaving) {
            (Some(plan), _) => now + plan.profile.drain,
            (None, Some(deadline)) => deadline,
            (None, None) => {
                changes.left.insert(frontend, served.owner.clone());
                return changes.list.push(Change::Close(frontend));
            }
        };
        if plan.is_some_and(|plan| served.is_stale || served.terms != Terms::of(plan)) {
            changes.list.push(Change::Configure(frontend));
        }
        let is_frontend = |endpoint| self.is_frontend(&frontend, endpoint, desired);
        for (is_inside, pool) in served.pools() {
            let endpoints = match (plan, is_inside) {
                (Some(plan), false) => Some(&plan.endpoints),
                (Some(plan), true) => plan.inside.as_ref().map(|inside| &inside.endpoints),
                (None, _) => None,
            };
            let place = Place {
                frontend,
                is_inside,
            };
            let endpoints = endpoints.map_or(&[][..], |endpoints| endpoints);
            pool.compare(
                place,
                endpoints,
                &is_frontend,
                (end, now),
                &mut changes.list,
            );
        }
        let served = self.served.get_mut(&frontend);
        match (plan, served) {
            (Some(plan), Some(served)) => served.owner.clone_from(&plan.owner),
            (None, Some(served)) => _ = changes.left.insert(frontend, served.owner.clone()),
            (_, None) => {}
        }
    }

    /// Sets the timer of the next count.
    pub(super) fn wait_for_connections(&mut self, now: Duration) {
        let served = &self.served;
        let deadline = |frontend: &Frontend| served.get(frontend).and_then(Served::next_deadline);
        self.draining
            .retain(|frontend| deadline(frontend).is_some());
        let first = self.draining.iter().filter_map(deadline).min();
        let Some(first) = first else {
            return self.drains.reset();
        };
        if !self.drains.is_waiting(now) {
            self.drains.back_off(now);
        }
        self.drains.no_later_than(first);
    }
}

/// Returns how long a frontend that the plan lacks may keep its connections.
fn drain_time(planned: Planned<'_>, frontend: &Frontend, owner: &ServicePortName) -> Duration {
    let Some(service) = planned.snapshot.service(&owner.service) else {
        return Duration::ZERO;
    };
    // While the address stays local, this node cannot reach the machine that has it.
    let is_elsewhere = (planned.planner).is_elsewhere(&frontend.address, &owner.service);
    if frontend.protocol == Protocol::Tcp && !is_elsewhere {
        plan::drain(service, planned.config())
    } else {
        Duration::ZERO
    }
}
