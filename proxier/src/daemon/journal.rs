//! What the log says of rounds.

use std::collections::BTreeSet;

use ipvs_netlink::Error;

use crate::conntrack::Swept;
use crate::dataplane::Dataplane;
use crate::nftables::Obstacle;
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

    /// Writes down which chains of others stand in the way.
    pub(super) fn obstacles(&mut self, found: Result<BTreeSet<Obstacle>, Error>) {
        match found {
            Ok(obstacles) => {
                for obstacle in obstacles.difference(&self.obstacles) {
                    tracing::warn!("{obstacle}");
                }
                self.obstacles = obstacles;
            }
            // The rules themselves say so if the kernel has no nf_tables at all.
            Err(error) => tracing::debug!("looking for chains that drop answers: {error}"),
        }
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
