//! The schedulers of the plan that the kernel has or lacks.
//!
//! A virtual server whose scheduler is missing cannot be added, nor can its destinations: with 10,000
//! Services of 10 endpoints, 110,000 Ops would fail. So the kernel is asked once for each scheduler
//! before the Ops that need it, and the planner replaces those it lacks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink::SchedulerName;

use super::Kernel;
use crate::plan::{Changed, Desired};
use crate::util::timer::Timer;

/// The time after which the kernel is asked again for a missing scheduler, whose module may be loaded then.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// The maximum number of missing schedulers. Further new names count as missing without a question.
///
/// For each unknown name the kernel starts `modprobe`, and each user who may edit a Service can invent
/// names. Linux 7.2 has 14 schedulers.
const MAX_MISSING: usize = 64;

/// The schedulers that the kernel has, and timers. [`crate::plan::Capabilities`] has the missing ones.
#[derive(Debug)]
pub(super) struct Schedulers {
    available: BTreeSet<Arc<str>>,
    /// Schedulers that were missing before; no round has reported them yet.
    found: Vec<Arc<str>>,
    /// When the kernel is asked again for the missing ones.
    ask_again: Timer,
    /// When a round is due because an Op failed for lack of a scheduler.
    again: Timer,
}

impl Default for Schedulers {
    fn default() -> Self {
        Self {
            available: BTreeSet::new(),
            found: Vec::new(),
            ask_again: Timer::doubling(ASK_AGAIN, ASK_AGAIN),
            again: Timer::retry(),
        }
    }
}

impl Schedulers {
    /// Asks the kernel for the schedulers in `changed` that it was not asked for yet.
    ///
    /// Adds those that the kernel lacks to `missing`. Returns whether it lacks any.
    pub(super) fn ask(
        &mut self,
        kernel: &mut impl Kernel,
        desired: &Desired,
        changed: &Changed,
        missing: &mut BTreeSet<Arc<str>>,
        now: Duration,
    ) -> bool {
        let plans = changed.frontends.iter();
        let plans = plans.filter_map(|frontend| desired.frontends.get(frontend));
        let wanted = plans.flat_map(|plan| {
            let inside = plan.inside.iter().map(|inside| &inside.balancing);
            inside.chain([&plan.profile.balancing])
        });
        let wanted = wanted.map(|balancing| &balancing.scheduler);
        let is_new = |name: &&Arc<str>| !self.available.contains(*name) && !missing.contains(*name);
        let new: BTreeSet<Arc<str>> = wanted.filter(is_new).cloned().collect();
        let before = missing.len();
        for name in new {
            let is_missing =
                missing.len() >= MAX_MISSING || has_scheduler(kernel, &name) == Some(false);
            // Without an answer, the Ops show whether the kernel has the scheduler.
            match is_missing {
                true => missing.insert(name),
                false => self.available.insert(name),
            };
        }
        let has_news = missing.len() > before;
        if has_news {
            self.wait(now);
        }
        has_news
    }

    /// When due, asks the kernel again for `missing`, and removes those that it has now.
    pub(super) fn ask_again(
        &mut self,
        kernel: &mut impl Kernel,
        missing: &mut BTreeSet<Arc<str>>,
        now: Duration,
    ) {
        if !self.ask_again.is_due(now) {
            return;
        }
        // `lacks` adds names without a limit.
        let asked = missing.iter().take(MAX_MISSING);
        let found: Vec<Arc<str>> = asked
            .filter(|name| has_scheduler(kernel, name) == Some(true))
            .cloned()
            .collect();
        for name in &found {
            missing.remove(name);
            self.available.insert(name.clone());
        }
        self.found.extend(found);
        self.ask_again.reset();
        if !missing.is_empty() {
            self.wait(now);
        }
    }

    /// Returns the schedulers that [`Schedulers::ask_again`] found since the last call.
    pub(super) fn take_found(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.found)
    }

    /// Records that an Op failed at `now` because the kernel lacks `name`. Returns whether that is new.
    ///
    /// The kernel could not answer the question, or the module was unloaded since.
    pub(super) fn lacks(
        &mut self,
        name: &str,
        missing: &mut BTreeSet<Arc<str>>,
        now: Duration,
    ) -> bool {
        // Otherwise `ask` would not ask for it again when it is loaded.
        self.available.remove(name);
        let is_new = missing.insert(name.into());
        if is_new {
            self.again.no_later_than(now);
            self.wait(now);
        }
        is_new
    }

    /// Clears the timer of the next round, because a round begins.
    pub(super) fn begin_round(&mut self) {
        self.again.clear();
    }

    /// Returns when a round is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let timers = [self.again.due(), self.ask_again.due()];
        timers.into_iter().flatten().min()
    }

    /// Sets the timer of the next questions if it is not set.
    fn wait(&mut self, now: Duration) {
        if self.ask_again.due().is_none() {
            self.ask_again.back_off(now);
        }
    }
}

/// Returns whether the dataplane has the scheduler `name`; `None` if it cannot tell.
fn has_scheduler(kernel: &mut impl Kernel, name: &str) -> Option<bool> {
    match SchedulerName::new(name) {
        Ok(name) => kernel.has_scheduler(name).ok().flatten(),
        // No dataplane has a scheduler with such a name.
        Err(_) => Some(false),
    }
}
