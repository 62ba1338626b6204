//! The log lines of rounds and of checks.
//!
//! Everything that may fail again in the next round is a condition ([`LastingConditions`]).

use std::sync::Arc;
use std::time::Duration;

use tracing::Level;

use crate::cluster::problem::Problem;
use crate::dataplane::{Applied, Dataplane, Failure, Reason};
use crate::reconcile::Proxier;
use crate::util::conditions::{Coverage, LastingConditions};
use nftables::Tampering;

/// The maximum number of changes of a round that are logged at level `info`. If a round has more, all are logged at level
/// `debug`.
const MAX_LINES: usize = 50;

/// Writes log lines, and sums up the conditions that last. Each field is a source whose failures end together.
#[derive(Debug, Default)]
pub(super) struct RoundLog {
    problems: LastingConditions,
    /// The Problems as last logged.
    logged: Option<Arc<[Problem]>>,
    /// Failed changes.
    changes: LastingConditions,
    /// Failed writes of packet rules.
    rules: LastingConditions,
    /// Frontends that are not created without packet rules.
    held_back: LastingConditions,
    /// Failed sweeps of flows.
    flows: LastingConditions,
    /// Failed writes of the ledger.
    ledger: LastingConditions,
    /// Rounds that failed as a whole.
    rounds: LastingConditions,
    /// Manifests that cannot be read.
    manifests: LastingConditions,
    /// Changes by other programs and their repairs.
    events: LastingConditions,
}

impl RoundLog {
    /// Logs a round at `now`.
    pub(super) fn round<D: Dataplane>(
        &mut self,
        applied: &Applied<D::Changes>,
        proxier: &Proxier<D>,
        problems: &Arc<[Problem]>,
        now: Duration,
    ) {
        self.rounds.end(now);
        self.problems(problems, now);
        for scheduler in &applied.found_schedulers {
            tracing::info!("the kernel has the scheduler {scheduler} now; Services use it again");
        }
        let (repaired, is_change) = self.changes(applied, proxier, now);
        self.writes_beside_changes(applied, is_change, now);
        metrics::counter!("ipvs_proxier_repairs_total").increment(repaired as u64);
        let failed = applied.failures().count();
        let changed = applied.outcomes.len() - applied.outcomes.failures().count();
        // Repairs have a line that sums them up. One here would be in each round while another program undoes them.
        match changed > repaired {
            true => tracing::info!(changed, failed, repaired, "synced"),
            false => tracing::debug!(changed, failed, repaired, "synced"),
        }
    }

    /// Logs new and solved Problems. `problems` has all present Problems.
    pub(super) fn problems(&mut self, problems: &Arc<[Problem]>, now: Duration) {
        let is_logged = |logged: &Arc<[Problem]>| Arc::ptr_eq(logged, problems);
        if self.logged.as_ref().is_some_and(is_logged) {
            // A summary may be due.
            return self.problems.report(Coverage::Part, now).write();
        }
        self.logged = Some(problems.clone());
        let mut report = self.problems.report(Coverage::All, now);
        for problem in &**problems {
            report.add(Level::WARN, &problem.kind(), problem);
        }
        report.write();
    }

    /// Logs whether all manifests can be read.
    pub(super) fn manifests(&mut self, are_whole: bool, now: Duration) {
        let mut report = self.manifests.report(Coverage::All, now);
        if !are_whole {
            let text = "some manifests cannot be read; no object is deleted until they can";
            report.add(Level::WARN, "unreadable manifests", text);
        }
        report.write();
    }

    /// Logs that nothing is programmed while some manifests cannot be read.
    pub(super) fn refused_start(&mut self, problems: &Arc<[Problem]>, now: Duration) {
        let text = "some manifests cannot be read, and the kernel has state of an earlier process; \
                    nothing is programmed until all manifests can be read";
        let mut report = self.rounds.report(Coverage::All, now);
        report.add(Level::ERROR, "reasons to wait", text);
        report.write();
        self.problems(problems, now);
    }

    /// Logs a round that failed as a whole and is tried again after `pause`.
    pub(super) fn failed_round(&mut self, error: &str, pause: Duration, now: Duration) {
        let kind = "errors that prevented rounds";
        let mut report = self.rounds.report(Coverage::All, now);
        report.add(Level::ERROR, kind, format_args!("{error}; trying again"));
        report.write();
        tracing::debug!("trying again in {pause:?}");
    }

    /// Logs a change of our packet rules by another program.
    pub(super) fn tampering(&mut self, tampering: &Tampering, now: Duration) {
        let text = format_args!("packet rules: {tampering}; writing them again");
        let kind = "changes of our packet rules by other programs, each repaired";
        (self.events).add(Coverage::Events, Level::WARN, kind, text, now);
    }

    /// Logs the results of writing packet rules, of sweeping flows and of writing the ledger.
    ///
    /// `is_change` says whether the round made more than repairs.
    fn writes_beside_changes<C>(&mut self, applied: &Applied<C>, is_change: bool, now: Duration) {
        let attempt = |conditions: &mut LastingConditions, kind, failure: Option<String>| {
            let mut report = conditions.report(Coverage::All, now);
            if let Some(failure) = failure {
                report.add(Level::ERROR, kind, failure);
            }
            report.write();
        };
        if let Some(written) = &applied.rules {
            let failure = written.as_ref().err().map(ToString::to_string);
            attempt(&mut self.rules, "failures to write packet rules", failure);
        }
        let mut held_back = self.held_back.report(Coverage::All, now);
        for key in &applied.held_back {
            let text = format_args!(
                "{key} is not created: without packet rules it would serve clients that it must \
                 reject, or fail for some"
            );
            held_back.add(
                Level::ERROR,
                "frontends that need packet rules and are not created",
                text,
            );
        }
        held_back.write();
        if let Some(swept) = &applied.flows {
            let deleted = swept.as_ref().map_or(0, |it| it.deleted);
            if deleted > 0 {
                // As for `synced`.
                match is_change {
                    true => tracing::info!(deleted, "stale flows deleted"),
                    false => tracing::debug!(deleted, "stale flows deleted"),
                }
            }
            let failure = swept
                .as_ref()
                .err()
                .map(|it| format!("connection tracking: {it}"));
            attempt(&mut self.flows, "failures to delete stale flows", failure);
        }
        let unrecorded = applied.unrecorded.as_ref().map(|failure: &Failure| {
            format!(
                "cannot write the {failure}; a process that starts before this is fixed knows the new \
                 virtual servers only by the packet rules"
            )
        });
        attempt(&mut self.ledger, "failures to write the ledger", unrecorded);
    }

    /// Logs the changes of a round. Returns the number of repairs, and whether there was more than repairs.
    fn changes<D: Dataplane>(
        &mut self,
        applied: &Applied<D::Changes>,
        proxier: &Proxier<D>,
        now: Duration,
    ) -> (usize, bool) {
        let is_short = applied.outcomes.len() <= MAX_LINES;
        let coverage = match applied.has_tried_all {
            true => Coverage::All,
            false => Coverage::Part,
        };
        let mut failures = self.changes.report(coverage, now);
        let mut events = self.events.report(Coverage::Events, now);
        let (mut repaired, mut is_change) = (0, applied.outcomes.is_empty());
        let dataplane = proxier.dataplane();
        dataplane.report(proxier.planned(), applied, &mut |change| {
            is_change |= change.reason == Reason::Plan;
            match (change.outcome, change.reason) {
                (Ok(()), Reason::SummedDrift) => repaired += change.count,
                (Ok(()), Reason::Drift) => {
                    repaired += change.count;
                    let text = format_args!("repaired drift: {}", change.line);
                    let kind = format!("Ops `{}` that repaired drift", words(change.kind));
                    events.add(Level::WARN, &kind, text);
                }
                (Ok(()), Reason::Plan) if is_short => tracing::info!("{}", change.line),
                (Ok(()), Reason::Plan) => tracing::debug!("{}", change.line),
                (Err(failure), _) => {
                    failures.add(Level::ERROR, &failure_kind(change.kind, failure), failure);
                }
            }
        });
        if let Some(line) = dataplane.repairs(applied) {
            let kind = "repairs of service addresses and their device";
            events.add(Level::WARN, kind, line);
        }
        failures.write();
        events.write();
        (repaired, is_change)
    }
}

/// Returns the kind of a failed change: what it does and the error.
fn failure_kind(kind: &str, failure: &Failure) -> String {
    let verb = words(kind);
    match failure.errno {
        Some(errno) => format!("failed Ops `{verb}`: {}", std::io::Error::from(errno)),
        None => format!("Ops `{verb}` whose answer is lost"),
    }
}

fn words(kind: &str) -> String {
    kind.replace('_', " ")
}
