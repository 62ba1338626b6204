//! The command `ipvs-proxier plan`.

use std::process::ExitCode;
use std::sync::mpsc::sync_channel;

use clap::{Args, ValueEnum};

use super::dataplane_flags::DataplaneKind;
use super::{NodeFlags, Setup, StateFlags, json, print};
use crate::clock;
use crate::daemon::{Daemon, Periods, QUEUE_LENGTH};
use crate::dataplane::Dataplane;
use crate::dataplane::fake::FakeKernel;
use crate::filter::{self, Filter};
use crate::ledger::LedgerFile;
use crate::op::Op;
use crate::report::{JsonReport, NamedOp};
use crate::sync::{Preview, Proxier};

/// Flags of `plan`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    node: NodeFlags,

    #[command(flatten)]
    state: StateFlags,

    /// State to compare the plan with.
    #[arg(long, value_enum, default_value_t)]
    against: Against,

    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    output: PlanOutput,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Against {
    /// The kernel of this machine; needs CAP_NET_ADMIN.
    #[default]
    Kernel,
    /// A kernel without virtual servers, on a machine with the addresses of the Node object.
    Empty,
}

/// The format of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum PlanOutput {
    /// One line for each change.
    #[default]
    Text,
    /// The desired virtual servers and addresses as JSON.
    Json,
    /// The desired packet rules in the syntax of `nft -f`.
    Nft,
}

/// The exit code if there are changes.
const CHANGES: u8 = 2;

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let resolved = self.node.resolve()?;
        let setup = self.node.setup(&resolved)?;
        match self.against {
            Against::Kernel => {
                let linux = self.node.open_kernel()?;
                self.print(self.proxier(&setup, linux, self.state.file())?)
            }
            Against::Empty => {
                // No earlier run owns anything in an empty kernel.
                let ledger = LedgerFile::new("/nonexistent");
                let mut proxier = self.proxier(&setup, FakeKernel::default(), ledger)?;
                // Node ports and preferred sources need addresses of the machine; the Node object's
                // stand in for them.
                let node = proxier.snapshot().node();
                let addresses = node.map(|node| node.addresses.iter().copied().collect());
                proxier.dataplane().machine.addresses = addresses.unwrap_or_default();
                self.print(proxier)
            }
        }
    }

    /// Returns a proxier after it received its complete input.
    fn proxier<D: Dataplane>(
        &self,
        setup: &Setup,
        dataplane: D,
        ledger: LedgerFile,
    ) -> anyhow::Result<Proxier<D>> {
        let proxier = Proxier::new(dataplane, setup.plan.clone(), ledger)?
            .filtering(self.node.packets.config(&setup.settings)?)
            .excluding(setup.settings.exclude.clone())
            .ignoring_external_ips(setup.settings.ignores_external_ips);
        let (sender, messages) = sync_channel(QUEUE_LENGTH);
        let watch = setup.follow(&self.node.source, DataplaneKind::Ipvs, sender)?;
        let mut daemon = Daemon::new(proxier, Periods::default(), watch);
        anyhow::ensure!(
            daemon.listen(&messages),
            "the input ended before all objects arrived"
        );
        let mut proxier = daemon.into_proxier();
        anyhow::ensure!(
            proxier.may_start()?,
            "some manifests are unreadable, and an earlier run left virtual servers in the kernel: \
             `run` would change nothing until all manifests are readable: {}",
            problems(&proxier)
        );
        Ok(proxier)
    }

    fn print<D: Dataplane>(&self, mut proxier: Proxier<D>) -> anyhow::Result<ExitCode> {
        let Preview { ops, changes_rules } = proxier.preview(clock::since_boot())?;
        let problems = proxier.problems();
        match self.output {
            PlanOutput::Json => print(&json(&JsonReport::desired(proxier.desired(), &problems))?)?,
            PlanOutput::Nft => print(&proxier.filter().map_or_else(String::new, nft))?,
            PlanOutput::Text => {
                for problem in &problems {
                    tracing::warn!("{problem}");
                }
                if changes_rules {
                    print(&format!("set packet rules: table inet {}\n", filter::TABLE))?;
                }
                print(&text(&ops, &proxier))?;
            }
        }
        Ok(if ops.is_empty() && !changes_rules {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(CHANGES)
        })
    }
}

fn text<D: Dataplane>(ops: &[Op], proxier: &Proxier<D>) -> String {
    let named = |op| NamedOp::new(op, proxier.desired(), proxier.ledger().owned());
    ops.iter().map(|op| format!("{}\n", named(op))).collect()
}

fn nft(filter: &Filter) -> String {
    filter.table().named(filter::TABLE).to_string()
}

fn problems<D: Dataplane>(proxier: &Proxier<D>) -> String {
    let problems = proxier.problems();
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("; ")
}
