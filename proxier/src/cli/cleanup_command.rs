//! `ipvs-proxier cleanup`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{ExcludeFlags, ServiceAddresses, StateFlags};
use crate::clock;
use crate::dataplane::Dataplane as _;
use crate::dataplane::linux::Linux;
use crate::nftables::{Forwarding, Treatment};
use crate::plan::{NodePortAddresses, PlanConfig};
use crate::report::NamedOp;
use crate::sync::Proxier;

/// Flags of `cleanup`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    state: StateFlags,

    /// How service addresses were made local.
    #[arg(long, value_enum, default_value_t)]
    service_addresses: ServiceAddresses,

    #[command(flatten)]
    exclude: ExcludeFlags,
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let linux = Linux::open(self.service_addresses.into())?;
        let nothing = PlanConfig {
            node_name: "".into(),
            scheduler: "rr".parse()?,
            node_port_addresses: NodePortAddresses::default(),
            service_addresses: self.service_addresses.into(),
            drain: Duration::ZERO,
        };
        let mut proxier = Proxier::new(linux, nothing, self.state.file())?
            .excluding(self.exclude.ipvs_exclude_cidrs);
        // Without input, the plan is empty, and everything owned is stale.
        let applied = proxier.resync(clock::since_boot())?;
        let outcomes = applied.ops.iter().zip(&applied.outcomes);
        for (op, _) in outcomes.filter(|(_, outcome)| outcome.is_ok()) {
            tracing::info!(
                "{}",
                NamedOp::new(op, proxier.desired(), proxier.ledger().owned())
            );
        }
        for failure in applied.failures() {
            tracing::error!("{failure}");
        }
        if applied.failures().next().is_some() {
            return Ok(ExitCode::FAILURE);
        }
        proxier.dataplane().delete_rules()?;
        for chain in Forwarding::open(Treatment::Warn)?.remove_rules()? {
            tracing::info!("{chain}: removed our rule");
        }
        self.state.file().remove()?;
        Ok(ExitCode::SUCCESS)
    }
}
