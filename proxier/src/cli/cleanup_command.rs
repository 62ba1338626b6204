//! The command `ipvs-proxier cleanup`.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{ExcludeFlags, ServiceAddressesFlag, StateFlags};
use crate::clock;
use crate::dataplane::Dataplane as _;
use crate::dataplane::linux::Linux;
use crate::ledger::LedgerLock;
use crate::nftables::{ForeignChains, MarkChains, Removal, Treatment, Treatments};
use crate::plan::{NodePortAddresses, PlanConfig, ServiceAddresses};
use crate::report::NamedOp;
use crate::sync::Proxier;

/// The maximum number of remaining virtual servers that the error message names.
const SAMPLES: usize = 10;

/// Flags of `cleanup`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    pub(super) state: StateFlags,

    /// How `run` made service addresses local.
    #[arg(long, value_enum, default_value_t)]
    pub(super) service_addresses: ServiceAddressesFlag,

    #[command(flatten)]
    pub(super) exclude: ExcludeFlags,
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let lock = self.state.lock()?;
        let mut linux = Linux::open(self.service_addresses.into())?;
        let has_traces = linux.rules_generation()?.is_some() || linux.addresses()?.have_ours();
        let lacks_ledger = !self.state.state_file.exists();
        let config = PlanConfig {
            node_name: "".into(),
            scheduler: "rr".parse()?,
            node_port_addresses: NodePortAddresses::default(),
            has_localhost_node_ports: false,
            // The only plan that needs no carrier. Addresses of all forms are deleted.
            service_addresses: ServiceAddresses::Loopback,
            drain: Duration::ZERO,
        };
        let mut proxier = Proxier::new(linux, config, self.state.file())?
            .excluding(self.exclude.ipvs_exclude_cidrs.clone());
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
        // Rules are recognised by their comments, so the treatments are irrelevant.
        let treatments = Treatments {
            answers: Treatment::Warn,
            frontends: Treatment::Warn,
            frontend_mark: 0,
        };
        for chain in ForeignChains::open(treatments)?.remove_rules()? {
            tracing::info!("removed our accept rule from {chain}");
        }
        // Rules are recognised by their comments, so the mark is irrelevant.
        for (chain, removal) in MarkChains::open(0)?.remove()? {
            match removal {
                Removal::NotOurs => {}
                Removal::Removed => tracing::info!("removed {chain}"),
                Removal::InUse => tracing::warn!(
                    "{chain} stays: a rule of another program jumps to it; it sets the masquerade bit,                      and no rule of this program masquerades any more"
                ),
            }
        }
        // Only now, after all deletions: the ledger is the only record of owned virtual servers, and
        // a second `cleanup` after a failure needs it.
        self.state.file().remove()?;
        lock.map_or(Ok(()), LedgerLock::remove)?;
        // Rules or addresses without a ledger: an earlier run was here, and its record is lost.
        if has_traces && lacks_ledger {
            return self.check_left(proxier.dataplane());
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Fails if virtual servers are left: without the ledger, some of them may be ours.
    fn check_left(&self, linux: &mut Linux) -> anyhow::Result<ExitCode> {
        let mut left = BTreeSet::new();
        linux.virtual_servers(&mut |found| _ = left.insert(found.server.service.key))?;
        if left.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        let samples: Vec<String> = left.iter().take(SAMPLES).map(ToString::to_string).collect();
        tracing::error!(
            "{} does not exist, so the owners of the {} virtual servers that remain are unknown \
             ({}{}); delete those of Services with ipvsadm",
            self.state.state_file.display(),
            left.len(),
            samples.join(", "),
            if left.len() > SAMPLES { ", .." } else { "" },
        );
        Ok(ExitCode::FAILURE)
    }
}
