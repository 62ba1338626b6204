//! `ipvs-proxier plan`.

use std::process::ExitCode;
use std::sync::mpsc::sync_channel;

use clap::{Args, ValueEnum};

use super::{ExcludeFlags, NodeFlags, StateFlags, json, print};
use crate::clock;
use crate::daemon::{Daemon, Periods, QUEUE_LENGTH};
use crate::dataplane::Dataplane;
use crate::dataplane::fake::FakeKernel;
use crate::dataplane::linux::Linux;
use crate::filter::{self, Filter};
use crate::ledger::LedgerFile;
use crate::op::Op;
use crate::report::{NamedOp, Report};
use crate::sync::{Preview, Proxier};

/// Flags of `plan`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    node: NodeFlags,

    #[command(flatten)]
    state: StateFlags,

    #[command(flatten)]
    exclude: ExcludeFlags,

    /// What the plan is compared with.
    #[arg(long, value_enum, default_value_t)]
    against: Against,

    /// How the plan is printed.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Against {
    /// This machine's kernel; needs CAP_NET_ADMIN.
    #[default]
    Kernel,
    /// A kernel without any virtual server, on a machine with the addresses of the Node object.
    Empty,
}

/// How a plan is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// What would change, a line each.
    #[default]
    Text,
    /// All virtual servers and addresses, for programs.
    Json,
    /// The packet rules as `nft -f` reads them.
    Nft,
}

/// Something would change.
const CHANGES: u8 = 2;

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self.against {
            Against::Kernel => {
                let linux = Linux::open(self.node.service_addresses.into())?;
                self.print(self.proxier(linux, self.state.file())?)
            }
            Against::Empty => {
                let nothing = LedgerFile::new("/nonexistent");
                let mut proxier = self.proxier(FakeKernel::default(), nothing)?;
                let node = proxier.snapshot().node();
                let addresses = node.map(|node| node.addresses.iter().copied().collect());
                proxier.dataplane().machine.addresses = addresses.unwrap_or_default();
                self.print(proxier)
            }
        }
    }

    /// Returns a proxier with complete input.
    fn proxier<D: Dataplane>(
        &self,
        dataplane: D,
        ledger: LedgerFile,
    ) -> anyhow::Result<Proxier<D>> {
        let proxier = Proxier::new(dataplane, self.node.config()?, ledger)?
            .filtering(self.node.packets.config())
            .excluding(self.exclude.ipvs_exclude_cidrs.clone());
        let (sender, messages) = sync_channel(QUEUE_LENGTH);
        let watch = self.node.source.follow(self.node.node_name()?, sender)?;
        let mut daemon = Daemon::new(proxier, Periods::default(), watch);
        anyhow::ensure!(
            daemon.listen(&messages),
            "the input ended before it was complete"
        );
        let mut proxier = daemon.into_proxier();
        anyhow::ensure!(
            proxier.may_start()?,
            "some manifests cannot be read, and the kernel has state of ours: `run` would change \
             nothing until all of them can be read: {}",
            problems(&proxier)
        );
        Ok(proxier)
    }

    fn print<D: Dataplane>(&self, mut proxier: Proxier<D>) -> anyhow::Result<ExitCode> {
        let Preview { ops, changes_rules } = proxier.preview(clock::since_boot())?;
        let problems = proxier.problems();
        match self.output {
            Output::Json => print(&json(&Report::desired(proxier.desired(), &problems))?)?,
            Output::Nft => print(&proxier.filter().map_or_else(String::new, nft))?,
            Output::Text => {
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
