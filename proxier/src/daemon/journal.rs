//! What the log says of rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipvs_netlink::Error;

use crate::conntrack::Swept;
use crate::dataplane::Dataplane;
use crate::nftables::{ForwardChain, Obstacle, Seen};
use crate::problem::Problem;
use crate::report::NamedOp;
use crate::sync::{Applied, Proxier};
use crate::sysctl;

/// A round with more Ops than this is summed up; the single Ops are there at level `debug`.
const TOLD_ONE_BY_ONE: usize = 50;

/// A chain that gets our rule back within this time is fought for: that it does is said once.
const FIGHT: Duration = Duration::from_secs(600);

/// Remembers what was said, so that what lasts is said once.
#[derive(Debug, Default)]
pub(super) struct Journal {
    reported: Vec<Problem>,
    /// What was said of kernel settings.
    complaints: Vec<String>,
    /// What was said of chains of others.
    obstacles: BTreeSet<Obstacle>,
    /// What was said of looks at them that went wrong.
    failures: BTreeSet<String>,
    /// When they last got a rule of ours.
    opened: BTreeMap<ForwardChain, Duration>,
    /// Of whose tables was said that they cannot be read.
    unreadable: Vec<&'static str>,
}

impl Journal {
    /// Writes down a round. Answers whether all of it took effect.
    pub(super) fn write<D: Dataplane>(&mut self, applied: &Applied, proxier: &Proxier<D>) -> bool {
        self.report_problems(proxier);
        let is_short = applied.ops.len() <= TOLD_ONE_BY_ONE;
        let mut repaired: u64 = 0;
        match &applied.rules {
            Some(Ok(())) => tracing::debug!("packet rules set"),
            Some(Err(failure)) => tracing::error!("{failure}"),
            None => {}
        }
        match &applied.flows {
            Some(Ok(Swept { deleted: 0, .. })) | None => {}
            Some(Ok(Swept { deleted, .. })) => tracing::info!(deleted, "stale flows forgotten"),
            Some(Err(failure)) => tracing::error!("connection tracking: {failure}"),
        }
        if let Some(failure) = &applied.unrecorded {
            tracing::error!(
                "{failure}; until it can be written, a new process would take what is new for foreign"
            );
        }
        for (op, outcome) in applied.ops.iter().zip(&applied.outcomes) {
            let named = NamedOp::new(op, proxier.desired(), proxier.owned());
            match outcome {
                Ok(()) if applied.is_repair(op) => {
                    repaired += 1;
                    tracing::warn!("repaired what somebody else changed: {named}");
                }
                Ok(()) if is_short => tracing::info!("{named}"),
                Ok(()) => tracing::debug!("{named}"),
                Err(failure) => tracing::error!("{failure}"),
            }
        }
        metrics::counter!("ipvs_proxier_repairs_total").increment(repaired);
        let failed = applied.failures().count();
        let changed = applied
            .outcomes
            .iter()
            .filter(|outcome| outcome.is_ok())
            .count();
        if changed > 0 || failed > 0 {
            tracing::info!(changed, failed, repaired, "synced");
        }
        failed == 0
    }

    /// Writes down what became of kernel settings.
    pub(super) fn settings(&mut self, report: &sysctl::Report) {
        for (setting, before) in &report.written {
            match before {
                Some(before) => tracing::info!("set {setting}, was {before}"),
                None => tracing::info!("set {setting}"),
            }
        }
        let complaints = report.warnings();
        for complaint in &complaints {
            if !self.complaints.contains(complaint) {
                tracing::warn!("{complaint}");
            }
        }
        self.complaints = complaints;
    }

    /// Writes down which chains of others stood in the way, or do, at `now` in time since boot.
    pub(super) fn forwarding(&mut self, seen: Result<Seen, Error>, now: Duration) {
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) => return self.failed_to_see([error.to_string()].into()),
        };
        self.opened.retain(|_, last| now < *last + FIGHT);
        for chain in seen.opened {
            let words = "drops what is forwarded: it has got a rule for the answers of endpoints";
            match self.opened.contains_key(&chain) {
                false => tracing::info!("{chain} {words}"),
                true => tracing::debug!("{chain} {words} again"),
            }
            self.opened.insert(chain, now);
        }
        for chain in &seen.closed {
            tracing::info!("{chain}: our rule is removed");
        }
        for obstacle in seen.obstacles.difference(&self.obstacles) {
            tracing::warn!("{obstacle}");
        }
        self.failed_to_see(seen.failures);
        for program in &seen.unreadable {
            if !self.unreadable.contains(program) {
                tracing::warn!(
                    "the table filter of {program} is in use, which cannot be read: should its chain \
                     FORWARD drop the answers of endpoints, they pass after `{program} -I FORWARD -m \
                     conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT`"
                );
            }
        }
        self.obstacles = seen.obstacles;
        self.unreadable = seen.unreadable;
    }

    fn failed_to_see(&mut self, failures: BTreeSet<String>) {
        for failure in failures.difference(&self.failures) {
            tracing::warn!("seeing to forward chains: {failure}; trying again");
        }
        self.failures = failures;
    }

    fn report_problems<D: Dataplane>(&mut self, proxier: &Proxier<D>) {
        let problems = proxier.problems();
        for problem in &problems {
            if self.reported.binary_search(problem).is_err() {
                tracing::warn!("{problem}");
            }
        }
        self.reported = problems;
    }
}
