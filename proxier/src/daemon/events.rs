//! The daemon's reports as Events of the API server.

use std::sync::Arc;
use std::time::SystemTime;

use super::{Chore, Round};
use crate::cluster::problem::Problem;
use crate::dataplane::{Dataplane, Failure};
use crate::observe::serve::BindFailures;
use crate::sources::events::{self, Notice};
use crate::sources::watch::Watch;

/// The present failures of this node, and the time of its start.
#[derive(Debug)]
pub(crate) struct Reporter {
    starting: Notice,
    /// Why a round failed as a whole.
    round: Option<Notice>,
    /// Why the packet rules were refused.
    rules: Option<Notice>,
    /// Why a change was refused.
    ops: Option<Notice>,
    /// The Problems and the notices about this node of the last report.
    reported: Option<(Arc<[Problem]>, Vec<Notice>)>,
    /// The addresses at which an HTTP server cannot listen.
    bind_failures: Arc<BindFailures>,
}

impl Reporter {
    /// Returns a reporter that reports these failures too.
    pub(crate) fn new(bind_failures: Arc<BindFailures>) -> Self {
        Self {
            starting: Notice::starting(SystemTime::now()),
            round: None,
            rules: None,
            ops: None,
            reported: None,
            bind_failures,
        }
    }

    /// Reports the present failures and these Problems.
    fn report(&self, watch: &Watch, problems: &[Problem]) {
        let own = self.own().into_iter();
        watch.report(own.chain(events::notices(problems)));
    }

    /// Returns the notices about this node.
    fn own(&self) -> Vec<Notice> {
        let failures = [&self.round, &self.rules, &self.ops].into_iter().flatten();
        let own = std::iter::once(&self.starting).chain(failures).cloned();
        own.chain(self.bind_failures.notices()).collect()
    }
}

impl<D: Dataplane> Chore<D> for Reporter {
    fn after(&mut self, round: &Round<'_, D>) {
        let Some(watch) = round.watch.filter(|watch| watch.writes_events()) else {
            return;
        };
        let (applied, problems) = match round.result {
            Ok(applied) => (applied, &round.problems),
            Err(why) => {
                self.round = Some(Notice::node("FailedRound", "Program", why));
                self.report(watch, &[]);
                self.reported = None;
                return;
            }
        };
        self.round = None;
        // `None` means that no write was due, so an earlier refusal still holds.
        if let Some(written) = &applied.rules {
            self.rules = refusal("RefusedRules", written.as_ref().err());
        }
        let first = applied.outcomes.failures().next();
        // A round without the failed changes does not show whether they still fail.
        if first.is_some() || applied.has_tried_all {
            self.ops = refusal("RefusedChange", first);
        }
        let own = self.own();
        let is_known = self
            .reported
            .as_ref()
            .is_some_and(|(known, reported)| Arc::ptr_eq(known, problems) && *reported == own);
        if !is_known {
            self.report(watch, problems);
            self.reported = Some((problems.clone(), own));
        }
    }

    fn end(&mut self, watch: &Watch) {
        self.report(watch, &[]);
    }
}

fn refusal(reason: &'static str, failure: Option<&Failure>) -> Option<Notice> {
    failure.map(|failure| Notice::node(reason, "Program", &failure.to_string()))
}
