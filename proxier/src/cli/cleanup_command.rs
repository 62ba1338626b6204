//! The command `ipvs-proxier cleanup`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{ServiceAddressesFlag, StateFlags};
use crate::clock;
use crate::dataplane::Dataplane as _;
use crate::dataplane::linux::Linux;
use crate::model::Cidr;
use crate::nftables::{Forwarding, Treatment};
use crate::plan::{NodePortAddresses, PlanConfig};
use crate::report::NamedOp;
use crate::sync::Proxier;

/// Flags of `cleanup`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    state: StateFlags,

    /// How `run` made service addresses local.
    #[arg(long, value_enum, default_value_t)]
    service_addresses: ServiceAddressesFlag,

    /// Keep virtual servers with an address in these ranges.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    ipvs_exclude_cidrs: Vec<Cidr>,
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let linux = Linux::open(self.service_addresses.into())?;
        let config = PlanConfig {
            node_name: "".into(),
            scheduler: "rr".parse()?,
            node_port_addresses: NodePortAddresses::default(),
            service_addresses: self.service_addresses.into(),
            drain: Duration::ZERO,
        };
        let mut proxier =
            Proxier::new(linux, config, self.state.file())?.excluding(self.ipvs_exclude_cidrs);
        // Without input the plan is empty, so that a resync deletes every owned object. The drain time
        // is irrelevant: virtual servers are deleted whole.
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
        // The rules come last: without guards and filters, a frontend that still exists would be open
        // to clients that it rejects.
        proxier.dataplane().delete_rules()?;
        for chain in Forwarding::open(Treatment::Warn)?.remove_rules()? {
            tracing::info!("removed our accept rule from {chain}");
        }
        // Kept after a failure: the ledger is the only record of the virtual servers that remain.
        self.state.file().remove()?;
        Ok(ExitCode::SUCCESS)
    }
}
