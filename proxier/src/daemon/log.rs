//! The log lines of rounds and of checks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipvs_netlink::Error;

use crate::conntrack::Swept;
use crate::dataplane::Dataplane;
use crate::nftables::{DroppingChain, ForwardChain, ForwardReport};
use crate::problem::Problem;
use crate::report::NamedOp;
use crate::sync::{Applied, Proxier};
use crate::sysctl;

/// The most Ops of a round that are logged at level `info`. The Ops of a longer one are logged at
/// level `debug`.
const MAX_LINES: usize = 50;

/// The time after an insertion of our rule in which the next one, into the same chain, is logged at
/// level `debug`: another program keeps removing the rule.
const REINSERTION: Duration = Duration::from_secs(600);

/// Writes log lines. A condition that lasts is logged once.
#[derive(Debug, Default)]
pub(super) struct RoundLog {
    /// The Problems that were reported.
    problems: Vec<Problem>,
    /// The warnings about kernel settings that were reported.
    setting_warnings: Vec<String>,
    /// The forward chains whose policy was reported.
    dropping: BTreeSet<DroppingChain>,
    /// The failures at forward chains that were reported.
    forward_failures: BTreeSet<String>,
    /// The forward chains that got our rule within [`REINSERTION`], and when.
    inserted: BTreeMap<ForwardChain, Duration>,
    /// The programs of iptables-legacy that were reported.
    legacy_programs: Vec<&'static str>,
}

impl RoundLog {
    /// Logs a round. Returns whether all of it took effect.
    pub(super) fn round<D: Dataplane>(&mut self, applied: &Applied, proxier: &Proxier<D>) -> bool {
        self.report_problems(proxier);
        report_writes_beside_ops(applied);
        let repaired = report_ops(applied, proxier);
        metrics::counter!("ipvs_proxier_repairs_total").increment(repaired);
        let failed = applied.failures().count();
        let outcomes = applied.outcomes.iter();
        let changed = outcomes.filter(|outcome| outcome.is_ok()).count();
        if changed > 0 || failed > 0 {
            tracing::info!(changed, failed, repaired, "synced");
        }
        failed == 0
    }

    /// Logs the kernel settings that were written or changed, and those that could not be written.
    pub(super) fn settings(&mut self, report: &sysctl::Report) {
        for (setting, before) in &report.written {
            match before {
                Some(before) => tracing::info!("set {setting}, was {before}"),
                None => tracing::info!("set {setting}"),
            }
        }
        for (setting, before) in &report.restored {
            match before {
                Some(before) => tracing::warn!("restored {setting}, was {before}; IPVS needs it"),
                None => tracing::warn!("restored {setting}; IPVS needs it"),
            }
        }
        for (setting, found) in &report.changed {
            tracing::warn!(
                "{} was changed to {found} and stays so; at the start it was set to {}",
                setting.file,
                setting.value.number()
            );
        }
        let warnings = report.warnings();
        for warning in &warnings {
            if !self.setting_warnings.contains(warning) {
                tracing::warn!("{warning}");
            }
        }
        self.setting_warnings = warnings;
    }

    /// Logs a check of the forward chains at `now`, in time since boot.
    pub(super) fn forwarding(&mut self, report: Result<ForwardReport, Error>, now: Duration) {
        let report = match report {
            Ok(report) => report,
            Err(error) => return self.forward_failures([error.to_string()].into()),
        };
        self.inserted.retain(|_, last| now < *last + REINSERTION);
        for chain in report.inserted {
            let words = "drops forwarded packets by its policy; inserted our rule for the answers of \
                         endpoints";
            match self.inserted.contains_key(&chain) {
                false => tracing::info!("{chain} {words}"),
                true => tracing::debug!("{chain} {words} again"),
            }
            self.inserted.insert(chain, now);
        }
        for chain in &report.removed {
            tracing::info!("{chain}: removed our rule");
        }
        for chain in report.dropping.difference(&self.dropping) {
            tracing::warn!("{chain}");
        }
        self.forward_failures(report.failures);
        for program in &report.legacy_programs {
            if !self.legacy_programs.contains(program) {
                tracing::warn!(
                    "the table filter of {program} is in use and cannot be read; if its chain FORWARD \
                     drops the answers of endpoints, run `{program} -I FORWARD -m conntrack --ctstate \
                     ESTABLISHED,RELATED -j ACCEPT`"
                );
            }
        }
        self.dropping = report.dropping;
        self.legacy_programs = report.legacy_programs;
    }

    fn forward_failures(&mut self, failures: BTreeSet<String>) {
        for failure in failures.difference(&self.forward_failures) {
            tracing::warn!("checking forward chains: {failure}; trying again");
        }
        self.forward_failures = failures;
    }

    fn report_problems<D: Dataplane>(&mut self, proxier: &Proxier<D>) {
        let problems = proxier.problems();
        for problem in &problems {
            if self.problems.binary_search(problem).is_err() {
                tracing::warn!("{problem}");
            }
        }
        self.problems = problems;
    }
}

/// Logs the results of writing packet rules, of sweeping flows and of writing the ledger.
fn report_writes_beside_ops(applied: &Applied) {
    match &applied.rules {
        Some(Ok(())) => tracing::debug!("packet rules written"),
        Some(Err(failure)) => tracing::error!("{failure}"),
        None => {}
    }
    match &applied.flows {
        Some(Ok(Swept { deleted: 0, .. })) | None => {}
        Some(Ok(Swept { deleted, .. })) => tracing::info!(deleted, "stale flows deleted"),
        Some(Err(failure)) => tracing::error!("connection tracking: {failure}"),
    }
    if let Some(failure) = &applied.unrecorded {
        tracing::error!(
            "cannot write the {failure}; a restart before this is fixed would leave the new virtual \
             servers unmanaged"
        );
    }
}

/// Logs the Ops of a round. Returns the number of repairs.
fn report_ops<D: Dataplane>(applied: &Applied, proxier: &Proxier<D>) -> u64 {
    let is_short = applied.ops.len() <= MAX_LINES;
    let mut repaired = 0;
    for (op, outcome) in applied.ops.iter().zip(&applied.outcomes) {
        let named = NamedOp::new(op, proxier.desired(), proxier.ledger().owned());
        match outcome {
            Ok(()) if applied.is_repair(op) => {
                repaired += 1;
                tracing::warn!("repaired drift: {named}");
            }
            Ok(()) if is_short => tracing::info!("{named}"),
            Ok(()) => tracing::debug!("{named}"),
            Err(failure) => tracing::error!("{failure}"),
        }
    }
    repaired
}
