//! A dataplane with a relay for the frontends that the kernel cannot serve: node ports at loopback addresses.
//!
//! ```text
//!  Frontend::needs_relay ─┬─ no ──▶ main
//!                         └─ yes ─▶ relay
//! ```
//!
//! Both get the whole plan, and each leaves out the frontends of the other.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::userspace::{self, Userspace};
use super::{Applied, AppliedChange, Counts, Dataplane, Extent, Failure, Planned, Serving, Tally};
use crate::cluster::problem::Problem;
use crate::cluster::store::Touched;
use crate::plan::frontend::Frontend;
use crate::plan::{Capabilities, Changed, Machine, Peers};

/// A dataplane, and perhaps a relay.
#[derive(Debug)]
pub(crate) struct Beside<D> {
    main: D,
    relay: Option<Userspace>,
}

/// The rounds of both.
#[derive(Debug)]
pub(crate) struct Both<C> {
    main: Applied<C>,
    relay: Applied<userspace::Changes>,
}

impl<D> Beside<D> {
    /// Returns `main`, and perhaps a relay for what it cannot serve.
    pub(crate) fn new(main: D, relay: Option<Userspace>) -> Self {
        Self {
            main,
            relay: relay.map(Userspace::beside_another),
        }
    }

    /// Ends the relay: waits until its connections have ended, for at most `patience`.
    pub(crate) fn stop(self, patience: Duration) {
        if let Some(relay) = self.relay {
            relay.stop(patience);
        }
    }
}

impl<D: Dataplane> Dataplane for Beside<D> {
    type Changes = Both<D::Changes>;

    fn machine(&mut self) -> Result<Machine, Failure> {
        self.main.machine()
    }

    fn peers(&mut self) -> Result<Peers, Failure> {
        self.main.peers()
    }

    fn capabilities(&self) -> &Capabilities {
        self.main.capabilities()
    }

    fn is_known(&self) -> bool {
        self.main.is_known()
    }

    fn has_own_state(&mut self, planned: Planned<'_>) -> Result<bool, Failure> {
        self.main.has_own_state(planned)
    }

    fn begin(
        &mut self,
        planned: Planned<'_>,
        touched: &Touched,
        extent: Extent,
        now: Duration,
    ) -> Result<(), Failure> {
        if let Some(relay) = &mut self.relay {
            relay.begin(planned, touched, extent, now)?;
        }
        self.main.begin(planned, touched, extent, now)
    }

    fn follow(&mut self, planned: Planned<'_>, changed: &Changed, now: Duration) -> bool {
        if let Some(relay) = &mut self.relay {
            relay.follow(planned, changed, now);
        }
        self.main.follow(planned, changed, now)
    }

    fn observe(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<bool, Failure> {
        if let Some(relay) = &mut self.relay {
            relay.observe(planned, extent, now)?;
        }
        self.main.observe(planned, extent, now)
    }

    fn retire(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<BTreeSet<IpAddr>, Failure> {
        if let Some(relay) = &mut self.relay {
            relay.retire(planned, extent, now)?;
        }
        self.main.retire(planned, extent, now)
    }

    fn changes(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<Self::Changes, Failure> {
        let main = Applied::of(self.main.changes(planned, extent, now)?);
        let relay = self.relay.as_mut();
        let relay = relay.map(|relay| relay.changes(planned, extent, now));
        let relay = Applied::of(relay.transpose()?.unwrap_or_default());
        Ok(Both { main, relay })
    }

    fn apply(
        &mut self,
        planned: Planned<'_>,
        Both { main, relay }: Self::Changes,
        extent: Extent,
        now: Duration,
    ) -> Applied<Self::Changes> {
        let main = self.main.apply(planned, main.changes, extent, now);
        let relay = match &mut self.relay {
            Some(own) => own.apply(planned, relay.changes, extent, now),
            None => relay,
        };
        let mut outcomes = main.outcomes.clone();
        outcomes.append(relay.outcomes.clone());
        Applied {
            rules: main.rules.clone(),
            flows: main.flows.clone(),
            outcomes,
            unrecorded: main.unrecorded.clone(),
            has_tried_all: main.has_tried_all && (self.relay.is_none() || relay.has_tried_all),
            held_back: main.held_back.clone(),
            found_schedulers: main.found_schedulers.clone(),
            changes: Both { main, relay },
        }
    }

    fn report(
        &self,
        planned: Planned<'_>,
        applied: &Applied<Self::Changes>,
        each: &mut dyn FnMut(AppliedChange<'_>),
    ) {
        let Both { main, relay } = &applied.changes;
        self.main.report(planned, main, each);
        if let Some(own) = &self.relay {
            own.report(planned, relay, each);
        }
    }

    fn repairs(&self, applied: &Applied<Self::Changes>) -> Option<String> {
        self.main.repairs(&applied.changes.main)
    }

    fn counts(&self, planned: Planned<'_>) -> Counts {
        let main = self.main.counts(planned);
        let relay = self.relay.as_ref().map(|relay| relay.counts(planned));
        let relay = relay.unwrap_or_default();
        Counts {
            frontends: main.frontends + relay.frontends,
            draining: main.draining + relay.draining,
        }
    }

    fn destinations(&self, planned: Planned<'_>) -> usize {
        let relay = self.relay.as_ref();
        self.main.destinations(planned) + relay.map_or(0, |relay| relay.destinations(planned))
    }

    fn serving(&self, frontend: &Frontend) -> Serving {
        match &self.relay {
            Some(relay) if frontend.needs_relay() => relay.serving(frontend),
            _ => self.main.serving(frontend),
        }
    }

    fn has_written_rules(&self) -> bool {
        self.main.has_written_rules()
    }

    fn answers(&mut self, frontends: &[Frontend]) -> Result<Option<Tally>, Failure> {
        self.main.answers(frontends)
    }

    fn next_due(&self) -> Option<Duration> {
        let relay = self.relay.as_ref().and_then(Dataplane::next_due);
        self.main.next_due().into_iter().chain(relay).min()
    }

    fn problems_of_node(&self, planned: Planned<'_>) -> Vec<Problem> {
        self.main.problems_of_node(planned)
    }

    fn problems(&self, planned: Planned<'_>) -> Vec<Problem> {
        let mut problems = self.main.problems(planned);
        let relay = self.relay.iter();
        problems.extend(relay.flat_map(|relay| relay.problems(planned)));
        problems
    }

    fn problems_revision(&self) -> u64 {
        let relay = self.relay.as_ref();
        self.main.problems_revision() + relay.map_or(0, Dataplane::problems_revision)
    }

    /// A relay that cannot listen concerns processes of this node only.
    fn refusal(&self, planned: Planned<'_>) -> Option<String> {
        self.main.refusal(planned)
    }

    fn distrust_rules(&mut self) {
        self.main.distrust_rules();
    }

    fn distrust_addresses(&mut self) {
        self.main.distrust_addresses();
    }

    fn finds_changed_rules(&mut self) -> bool {
        self.main.finds_changed_rules()
    }
}
