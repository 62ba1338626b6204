//! What the log says of rounds.

use std::collections::BTreeSet;

use ipvs_netlink::Error;

use crate::conntrack::Swept;
use crate::dataplane::Dataplane;
use crate::nftables::{Obstacle, Seen};
use crate::problem::Problem;
use crate::report::NamedOp;
use crate::sync::{Applied, Proxier};
use crate::sysctl;

/// A round with more Ops than this is summed up; the single Ops are there at level `debug`.
const TOLD_ONE_BY_ONE: usize = 50;

/// Remembers what was said, so that what lasts is said once.
#[derive(Debug, Default)]
pub(super) struct Journal {
    reported: Vec<Problem>,
    /// What was said of kernel settings.
    complaints: Vec<String>,
    /// What was said of chains of others.
    obstacles: BTreeSet<Obstacle>,
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
        let complaints = report.complaints();
        for complaint in &complaints {
            if !self.complaints.contains(complaint) {
                tracing::warn!("{complaint}");
            }
        }
        self.complaints = complaints;
    }

    /// Writes down which chains of others stood in the way, or do.
    pub(super) fn forwarding(&mut self, seen: Result<Seen, Error>) {
        let seen = match seen {
            Ok(seen) => seen,
            // The rules themselves say so if the kernel has no nf_tables at all.
            Err(error) => return tracing::debug!("seeing to forward chains: {error}"),
        };
        for chain in &seen.opened {
            tracing::info!(
                "{chain} drops what is forwarded: it has got a rule for the answers of endpoints"
            );
        }
        for chain in &seen.closed {
            tracing::info!("{chain}: our rule is removed");
        }
        for obstacle in seen.obstacles.difference(&self.obstacles) {
            tracing::warn!("{obstacle}");
        }
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
