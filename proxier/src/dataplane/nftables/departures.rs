//! The connections of endpoints that left their frontends.
//!
//! The kernel keeps a connection at its endpoint as long as its entry in connection tracking exists. Entries of UDP and SCTP
//! are deleted at once, because a client that keeps sending would keep its entry for ever; those without an answer a moment
//! later, because the answer may be on its way. TCP connections may continue until a
//! deadline, or until their Service is deleted; then the client's next packet goes to another endpoint, which resets it.
//!
//! Deadlines are in memory. A new process finds the connections of endpoints that left before, and their time begins again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::drains::{Drain, Drains, Left};
use crate::cluster::model::{ObjectName, Protocol};
use crate::cluster::store::{Snapshot, Touched};
use crate::dataplane::conntrack::{Stale, Sweeper, Swept};
use crate::dataplane::{Failure, Planned};
use crate::plan::frontend::Frontend;
use crate::plan::{self, Changed, Desired, FrontendPlan};
use crate::util::timer::Timer;

/// The pause after a failed sweep.
const RETRY: Duration = Duration::from_secs(5);

/// How long answers may be on their way.
const ANSWER: Duration = Duration::from_secs(1);

/// The shortest time between two sweeps for ended drains. Each reads all TCP connections.
const PAUSE: Duration = Duration::from_secs(5);

/// The number of drains at which a resync looks for those without connections. Most end long before their deadline.
const MANY: usize = 1_000;

/// The most drains that are kept between rounds, because a tenant can make any number of them. So many take a few megabytes,
/// and are far more than rolling updates leave.
const MOST: usize = 16_384;

/// The shortest time between two reads of all TCP connections for too many drains.
const LOOK: Duration = Duration::from_secs(10);

/// The connections that departures left.
#[derive(Debug)]
pub(super) struct Departures {
    /// The UDP and SCTP frontends that may have entries of other endpoints than their plan has.
    unswept: BTreeSet<Frontend>,
    /// Those of them whose unanswered entries are swept later, and when.
    unanswered: BTreeMap<Frontend, Duration>,
    /// The TCP endpoints that left and may keep their connections.
    drains: Drains,
    /// When ended drains are swept next, at the earliest.
    next_ended: Duration,
    /// When too many drains are compared with the connections next, at the earliest.
    next_look: Duration,
    retry: Timer,
}

impl Default for Departures {
    fn default() -> Self {
        Self {
            unswept: BTreeSet::new(),
            unanswered: BTreeMap::new(),
            drains: Drains::default(),
            next_ended: Duration::ZERO,
            next_look: Duration::ZERO,
            retry: Timer::doubling(RETRY, RETRY),
        }
    }
}

impl Departures {
    /// Returns the number of endpoints that may keep their connections for now.
    pub(super) fn draining(&self) -> usize {
        self.drains.len()
    }

    /// Returns the endpoints that left a frontend and may keep their connections, and until when.
    pub(super) fn of(&self, frontend: &Frontend) -> impl Iterator<Item = (SocketAddr, Duration)> {
        self.drains.of(frontend)
    }

    /// Follows a change of the plan.
    pub(super) fn follow(&mut self, planned: Planned<'_>, changed: &Changed, now: Duration) {
        for frontend in &changed.frontends {
            let before = changed.before.frontends.get(frontend);
            let endpoints = before.into_iter().flat_map(endpoints).collect();
            let service = before.map(|plan| &plan.owner.service);
            self.note(planned, *frontend, endpoints, service, now);
        }
    }

    /// Notes the endpoints that `frontend` had, which belonged to `service`.
    pub(super) fn note(
        &mut self,
        planned: Planned<'_>,
        frontend: Frontend,
        before: BTreeSet<SocketAddr>,
        service: Option<&ObjectName>,
        now: Duration,
    ) {
        // Most frontends of a first plan.
        if frontend.protocol == Protocol::Tcp && before.is_empty() && self.drains.is_empty() {
            return;
        }
        let plan = planned.desired().frontends.get(&frontend);
        let after: BTreeSet<SocketAddr> = plan.into_iter().flat_map(endpoints).collect();
        let mut left = before.difference(&after).peekable();
        if frontend.protocol != Protocol::Tcp {
            // Clients may have sent packets to a frontend without endpoints; these have entries, too.
            if before.is_empty() || left.peek().is_some() {
                self.unswept.insert(frontend);
            }
            return;
        }
        if left.peek().is_some() {
            let service = service.or_else(|| plan.map(|plan| &plan.owner.service));
            let drain = Drain {
                until: now + time(planned, plan, service),
                service: service.cloned(),
                was_open: false,
            };
            for endpoint in left {
                self.drains.insert((frontend, *endpoint), drain.clone());
            }
        }
        if !self.drains.is_empty() {
            for endpoint in after {
                self.drains.remove(&(frontend, endpoint));
            }
        }
    }

    /// Begins the drains of endpoints that left planned frontends before this process began and have connections.
    ///
    /// # Cost
    /// A dump of all TCP connections.
    pub(super) fn find(&mut self, sweeper: &mut Sweeper, planned: Planned<'_>, now: Duration) {
        let frontends = &planned.desired().frontends;
        let found = sweeper.each_connection(|flow| {
            let (frontend, endpoint) = (flow.frontend(), flow.reply.source);
            let is_translated = endpoint != flow.original.destination;
            if let Some(plan) = frontends.get(&frontend).filter(|_| is_translated)
                && !endpoints(plan).any(|it| it == endpoint)
            {
                let left = (frontend, endpoint);
                if !self.drains.contains(&left) {
                    let drain = Drain {
                        until: now + plan.profile.drain,
                        service: Some(plan.owner.service.clone()),
                        was_open: true,
                    };
                    self.drains.insert(left, drain);
                }
            }
        });
        if let Err(failure) = found {
            // They continue without a deadline.
            tracing::debug!("{failure}");
        }
    }

    /// Forgets drains without connections, if there are [`MANY`].
    pub(super) fn forget_ended(&mut self, sweeper: &mut Sweeper) {
        if self.drains.len() >= MANY {
            self.look(|drains| open(drains, sweeper));
        }
    }

    /// Forgets drains, if there are too many: first those without connections, then what exceeds [`MOST`].
    ///
    /// # Cost
    /// A dump of all TCP connections if there are too many, but not within [`LOOK`] of the last one.
    pub(super) fn limit(&mut self, sweeper: &mut Sweeper, now: Duration) {
        self.limit_to(|drains| open(drains, sweeper), now);
    }

    fn limit_to(&mut self, open: impl FnOnce(&Drains) -> Found, now: Duration) {
        if self.drains.len() <= MOST {
            return;
        }
        if self.next_look <= now {
            self.next_look = now + LOOK;
            self.look(open);
        }
        // Whether the connections could be read or not.
        self.drains.limit(MOST);
    }

    fn look(&mut self, open: impl FnOnce(&Drains) -> Found) {
        match open(&self.drains) {
            Ok(open) => self.drains.keep_open(&open),
            Err(failure) => tracing::debug!("{failure}"),
        }
    }

    /// Ends the drains of deleted Services. `touched` are the Services that events touched.
    pub(super) fn end_orphans(&mut self, snapshot: &Snapshot, touched: &Touched, now: Duration) {
        if self.drains.is_empty() || !snapshot.may_have_deleted(touched) {
            return;
        }
        self.drains.end(|it| !snapshot.has_service(it), now);
    }

    /// Deletes the entries of endpoints that left; `None` if there can be none.
    pub(super) fn sweep(
        &mut self,
        sweeper: &mut Sweeper,
        desired: &Desired,
        now: Duration,
    ) -> Option<Result<Swept, Failure>> {
        if self.retry.is_waiting(now) {
            return None;
        }
        let mut stale = Stale::default();
        let is_late = |since: &Duration| *since + ANSWER <= now;
        let late = self.unanswered.iter().filter(|(_, since)| is_late(since));
        let late = late.map(|(frontend, _)| frontend);
        for frontend in self.unswept.iter().chain(late) {
            let plan = desired.frontends.get(frontend);
            stale.keep_only(*frontend, plan.into_iter().flat_map(endpoints));
        }
        for frontend in &self.unswept {
            stale.wait_for_answers(*frontend);
        }
        let sweeps_ended = self.next_ended <= now;
        if sweeps_ended {
            for (frontend, endpoint) in self.drains.ended(now) {
                stale.end(frontend, endpoint);
            }
        }
        if stale.is_empty() {
            return None;
        }
        let swept = sweeper.sweep(&stale);
        if let Ok(swept) = &swept {
            self.unanswered.retain(|_, since| !is_late(since));
            let unswept = std::mem::take(&mut self.unswept).into_iter();
            if swept.spared > 0 {
                self.unanswered
                    .extend(unswept.map(|frontend| (frontend, now)));
            }
            if sweeps_ended && self.drains.remove_ended(now) {
                self.next_ended = now + PAUSE;
            }
            self.retry.reset();
        } else {
            self.retry.back_off(now);
        }
        Some(swept)
    }

    /// Returns when the next sweep is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let ended = self.drains.first_deadline();
        let ended = ended.map(|until| until.max(self.next_ended));
        let unanswered = self.unanswered.values().min();
        let unanswered = unanswered.map(|since| *since + ANSWER);
        let next = [ended, unanswered].into_iter().flatten().min();
        // After a failure, all wait.
        match (next, self.retry.due()) {
            (Some(next), Some(retry)) => Some(next.max(retry)),
            (next, retry) => next.or(retry),
        }
    }
}

/// The drains that have connections.
type Found = Result<BTreeSet<Left>, Failure>;

/// Returns which of `drains` have connections.
fn open(drains: &Drains, sweeper: &mut Sweeper) -> Found {
    let mut open = BTreeSet::new();
    sweeper.each_connection(|flow| {
        let left = (flow.frontend(), flow.reply.source);
        if drains.contains(&left) {
            open.insert(left);
        }
    })?;
    Ok(open)
}

/// Returns how long endpoints that left a frontend may keep their connections.
fn time(
    planned: Planned<'_>,
    plan: Option<&FrontendPlan>,
    service: Option<&ObjectName>,
) -> Duration {
    let config = planned.config();
    match (plan, service) {
        (Some(plan), _) => plan.profile.drain,
        (None, None) => config.drain,
        (None, Some(service)) if !planned.snapshot.has_service(service) => Duration::ZERO,
        (None, Some(service)) => {
            let service = planned.snapshot.service(service);
            service.map_or(config.drain, |service| plan::drain(service, config))
        }
    }
}

/// Returns all endpoints of a frontend, some twice.
fn endpoints(plan: &FrontendPlan) -> impl Iterator<Item = SocketAddr> {
    let inside = plan.inside.iter().flat_map(|inside| &*inside.endpoints);
    let all = plan.endpoints.iter().chain(inside);
    all.map(|it| SocketAddr::new(it.address, it.port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::nftables::drains::example;

    /// Adds as many drains as fit, twice, as if all endpoints of a large Service were replaced.
    fn replace_all(departures: &mut Departures, first: u32) {
        for number in first..first + 2 * u32::try_from(MOST).unwrap() {
            let (left, drain) = example(number);
            departures.drains.insert(left, drain);
        }
    }

    #[test]
    fn too_many_drains_are_compared_with_the_connections_and_then_limited() {
        let secs = Duration::from_secs;
        let mut departures = Departures::default();
        let open: BTreeSet<Left> = (0..100).map(|number| example(number * 7).0).collect();
        replace_all(&mut departures, 0);
        departures.limit_to(|_| Ok(open.clone()), secs(100));
        assert_eq!(departures.draining(), 100);
        // No second look within ten seconds, but the limit holds, and those with connections stay.
        let look = |_: &Drains| -> Found { panic!("looked too early") };
        for round in 1..10 {
            replace_all(&mut departures, 100_000 * u32::try_from(round).unwrap());
            departures.limit_to(look, secs(100 + round));
            assert_eq!(departures.draining(), MOST);
            assert!(open.iter().all(|left| departures.drains.contains(left)));
        }
        // Nor if the connections cannot be read.
        replace_all(&mut departures, 2_000_000);
        let mut looks = 0;
        let failing = |_: &Drains| {
            looks += 1;
            Err(Failure::from(std::io::Error::other("no memory")))
        };
        departures.limit_to(failing, secs(110));
        assert_eq!((looks, departures.draining()), (1, MOST));
        assert!(open.iter().all(|left| departures.drains.contains(left)));
        // At the limit, nothing is read.
        departures.limit_to(look, secs(1_000));
        assert_eq!(departures.next_due(), Some(secs(3_600)));
    }
}
