//! The comparison of what is served with the plan, and the wait for connections of what leaves it.
//!
//! A frontend that an edit of its Service removed drains all its endpoints. It closes when its last connection has ended,
//! or at its deadline; at once if its Service is deleted.

use std::time::Duration;

use super::Userspace;
use super::change::{Change, Changes, FrontendChange, Place};
use super::served::Served;
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
        let drain = drain_time(planned, &frontend, &served.plan.owner);
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
        let mut push = |change| changes.list.push(Change::Frontend(frontend, change));
        let Some(served) = self.served.get(&frontend) else {
            plan.into_iter().for_each(|_| push(FrontendChange::Open));
            return;
        };
        let end = match (plan, served.leaving) {
            (Some(plan), _) => now + plan.profile.drain,
            (None, Some(deadline)) => deadline,
            (None, None) => now,
        };
        let is_configured = plan.is_none_or(|plan| served.is_configured_as(plan));
        if !is_configured {
            push(FrontendChange::Configure);
        }
        if plan.is_none() && served.leaving.is_none() {
            push(FrontendChange::Close);
        } else {
            let is_frontend = |endpoint| self.is_frontend(&frontend, endpoint, desired);
            for (is_inside, pool) in served.pools() {
                let place = Place {
                    frontend,
                    is_inside,
                };
                let planned = plan.map_or(&[][..], |plan| match (is_inside, &plan.inside) {
                    (false, _) => &plan.endpoints,
                    (true, Some(inside)) => &inside.endpoints,
                    (true, None) => &[],
                });
                pool.compare(place, planned, &is_frontend, (end, now), &mut changes.list);
            }
        }
        match (plan, self.served.get_mut(&frontend)) {
            (Some(plan), Some(served)) if is_configured => served.plan.clone_from(plan),
            (None, Some(served)) => _ = changes.left.insert(frontend, served.plan.owner.clone()),
            _ => {}
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
