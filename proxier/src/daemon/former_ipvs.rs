//! The way from IPVS to another dataplane on a live node.
//!
//! The new dataplane serves new connections from its first round on, because it translates them before IPVS sees them.
//! The virtual servers of an earlier process stay *retired*, and their addresses local, until their connections have
//! ended or the drain time is over. So no connection is lost.

use std::time::Duration;

use tracing::Level;

use super::{Chore, Round};
use crate::cluster::store::{Snapshot, Touched};
use crate::dataplane::ipvs::filter::{Filter, FilterConfig};
use crate::dataplane::ipvs::ledger::LedgerFile;
use crate::dataplane::ipvs::{Changes, InsideMarks, Ipvs, Kernel, Wanted};
use crate::dataplane::{Applied, Dataplane, Extent, Failure, Planned};
use crate::host::predecessor::signs;
use crate::plan::{Changed, Desired, Machine, PlanConfig, Planner};
use crate::util::conditions::{Coverage, LastingConditions};
use crate::util::timer::Timer;

#[cfg(test)]
mod tests;

/// Removes the IPVS state of an earlier process, or of kube-proxy.
#[derive(Debug)]
pub(crate) struct FormerIpvs<K> {
    /// `None` when nothing is left, as `ipvs`.
    file: Option<LedgerFile>,
    ipvs: Option<Ipvs<K>>,
    /// Plans no frontend, so that all virtual servers are retired.
    planner: Planner,
    /// Packet rules without frontends; `None` when they are written.
    rules: Option<nftables::Table>,
    /// The ports of kube-proxy's servers, if the virtual servers may be kube-proxy's. They are left alone while it seems
    /// to run.
    kube_proxy_ports: Option<Vec<u16>>,
    /// The wait after a failure.
    retry: Timer,
    /// Failures that last.
    failures: LastingConditions,
}

impl<K: Kernel> FormerIpvs<K> {
    /// Returns the state that `ipvs` may have. `file` is its ledger.
    pub(crate) fn new(
        ipvs: Ipvs<K>,
        file: LedgerFile,
        plan: PlanConfig,
        rules: FilterConfig,
    ) -> Self {
        let marks = InsideMarks::default();
        let nothing = Desired::default();
        Self {
            file: Some(file),
            ipvs: Some(ipvs.leaving()),
            planner: Planner::new(plan),
            rules: Some(Filter::new(rules).table(Wanted::new(&nothing, &marks))),
            kube_proxy_ports: None,
            retry: Timer::retry(),
            failures: LastingConditions::default(),
        }
    }

    /// Retires the virtual servers that kube-proxy left, too. `ports` are those of its servers.
    #[must_use]
    pub(crate) fn with_kube_proxys(mut self, ports: Vec<u16>) -> Self {
        self.kube_proxy_ports = Some(ports);
        self
    }

    /// Retires what is left. Removes the table and the ledger after the last virtual server.
    fn retire(
        &mut self,
        snapshot: &Snapshot,
        machine: &Machine,
        desired: &Desired,
        extent: Extent,
        now: Duration,
    ) -> Result<(), Failure> {
        let Some(ipvs) = &mut self.ipvs else {
            return Ok(());
        };
        // The old rules refuse what the new dataplane serves: they know the plan of the earlier process only.
        if extent == Extent::All
            && let Some(rules) = &self.rules
        {
            ipvs.kernel.replace_rules(rules)?;
            self.rules = None;
        }
        let inherits = self.kube_proxy_ports.is_some().then_some(desired);
        let planner = &mut self.planner;
        let applied = round(ipvs, planner, (snapshot, machine), inherits, extent, now)?;
        let is_done = extent == Extent::All
            && applied.outcomes.is_empty()
            && ipvs.ledger().retired().is_empty();
        if is_done {
            ipvs.kernel.delete_rules()?;
            tracing::info!("nothing of the dataplane ipvs is left");
            self.ipvs = None;
            if let Some(Err(error)) = self.file.take().map(LedgerFile::remove) {
                tracing::warn!("{error}");
            }
        }
        Ok(())
    }
}

/// Makes a round with a plan without frontends. What kube-proxy left belongs to the Services that `inherits` has.
fn round<K: Kernel>(
    ipvs: &mut Ipvs<K>,
    planner: &mut Planner,
    (snapshot, machine): (&Snapshot, &Machine),
    inherits: Option<&Desired>,
    extent: Extent,
    now: Duration,
) -> Result<Applied<Changes>, Failure> {
    let planned = Planned {
        snapshot,
        machine,
        planner,
    };
    ipvs.begin(planned, &Touched::All, extent, now)?;
    ipvs.follow(planned, &Changed::default(), now);
    ipvs.observe(planned, extent, now)?;
    if let Some(desired) = inherits {
        ipvs.own_inherited(desired);
    }
    let kept = ipvs.retire(planned, extent, now)?;
    let changed = planner.keep_addresses(kept, snapshot);
    let planned = Planned {
        snapshot,
        machine,
        planner,
    };
    ipvs.follow(planned, &changed, now);
    let changes = ipvs.changes(planned, extent, now)?;
    let applied = ipvs.apply(planned, changes, extent, now);
    ipvs.report(planned, &applied, &mut |change| match change.outcome {
        Ok(()) => tracing::debug!("former dataplane: {}", change.line),
        Err(failure) => tracing::warn!("former dataplane: {failure}"),
    });
    Ok(applied)
}

impl<K: Kernel, D: Dataplane> Chore<D> for FormerIpvs<K> {
    fn due(&self) -> Option<Duration> {
        let due = self.ipvs.as_ref()?.next_due()?;
        Some(self.retry.due().map_or(due, |retry| retry.max(due)))
    }

    /// After rounds that wrote the new dataplane's rules only: until it serves, the former one must.
    fn after(&mut self, round: &Round<'_, D>) {
        let due = self.ipvs.as_ref().and_then(Dataplane::next_due);
        let serves = round.result.is_ok() && round.proxier.dataplane().has_written_rules();
        if !round.is_due(due) || self.retry.is_waiting(round.now) {
            return;
        }
        // The removal of kube-proxy's leftovers warns.
        if !serves
            || self
                .kube_proxy_ports
                .as_deref()
                .and_then(signs::find)
                .is_some()
        {
            // What is due must not stay due: it would cause round after round.
            self.retry.back_off(round.now);
            return;
        }
        let is_known = self.ipvs.as_ref().is_some_and(Dataplane::is_known);
        let extent = if is_known { round.extent } else { Extent::All };
        let (snapshot, machine) = (round.proxier.snapshot(), round.proxier.machine());
        let desired = round.proxier.desired();
        let retired = self.retire(snapshot, machine, desired, extent, round.now);
        let mut report = self.failures.report(Coverage::All, round.now);
        match retired {
            Ok(()) => self.retry.reset(),
            Err(failure) => {
                self.retry.back_off(round.now);
                let text = format_args!("former dataplane: {failure}; trying again");
                report.add(Level::WARN, "failures to retire the former dataplane", text);
            }
        }
        report.write();
    }
}
