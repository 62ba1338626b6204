//! The kernel settings, such as `net.ipv4.ip_forward`.

use std::time::Duration;

use tracing::Level;

use super::{Chore, Round};
use crate::dataplane::{Dataplane, Extent};
use crate::host::sysctl::{Keeper, Report, Roots, Setting};
use crate::util::conditions::{Coverage, LastingConditions};

/// Writes the settings before the first round, and checks them before each resync.
#[derive(Debug)]
pub(crate) struct KernelSettings {
    keeper: Keeper,
    /// Settings that cannot be written.
    conditions: LastingConditions,
    /// Changes by other programs, and their repairs.
    events: LastingConditions,
}

impl KernelSettings {
    pub(crate) fn new(settings: Vec<Setting>) -> Self {
        Self {
            keeper: Keeper::new(Roots::default(), settings),
            conditions: LastingConditions::default(),
            events: LastingConditions::default(),
        }
    }

    /// Logs a check at `now`, in time since boot.
    fn log(&mut self, report: &Report, now: Duration) {
        for (setting, before) in &report.written {
            match before {
                Some(before) => tracing::info!("set {setting}, was {before}"),
                None => tracing::info!("set {setting}"),
            }
        }
        let mut events = self.events.report(Coverage::Events, now);
        for (setting, before) in &report.restored {
            let was = before.as_ref();
            let was = was.map_or_else(String::new, |before| format!(", was {before}"));
            let text = format_args!("restored {setting}{was}; IPVS needs it");
            events.add(Level::WARN, "restored kernel settings", text);
        }
        for (setting, found) in &report.changed {
            let text = format_args!(
                "{} was changed to {found} and stays so; at the start it was set to {}",
                setting.file,
                setting.value.number()
            );
            events.add(Level::WARN, "changes of kernel settings", text);
        }
        events.write();
        let mut failures = self.conditions.report(Coverage::All, now);
        for warning in &report.warnings() {
            let kind = "kernel settings that cannot be written";
            failures.add(Level::WARN, kind, warning);
        }
        failures.write();
    }
}

impl<D: Dataplane> Chore<D> for KernelSettings {
    fn before(&mut self, extent: Extent, now: Duration) {
        if extent == Extent::All {
            let report = self.keeper.check();
            self.log(&report, now);
        }
    }

    fn after(&mut self, _round: &Round<'_, D>) {}
}
