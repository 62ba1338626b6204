//! `ipvs-proxier plan`.

use std::process::ExitCode;
use std::sync::mpsc::sync_channel;

use clap::{Args, ValueEnum};

use super::{NodeFlags, StateFlags, json, print};
use crate::clock;
use crate::daemon::{Daemon, Periods, WAITING_NEWS};
use crate::dataplane::Dataplane;
use crate::dataplane::fake::FakeKernel;
use crate::dataplane::linux::Linux;
use crate::op::Op;
use crate::packets::Packets;
use crate::report::{NamedOp, Report};
use crate::rules;
use crate::state_file::StateFile;
use crate::sync::Proxier;

/// Flags of `plan`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    node: NodeFlags,

    #[command(flatten)]
    state: StateFlags,

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
                let nothing = StateFile::new("/nonexistent");
                let mut proxier = self.proxier(FakeKernel::default(), nothing)?;
                let node = proxier.snapshot().node();
                let addresses = node.map(|node| node.addresses.iter().copied().collect());
                proxier.dataplane().machine.addresses = addresses.unwrap_or_default();
                self.print(proxier)
            }
        }
    }

    /// A proxier that has been told everything.
    fn proxier<D: Dataplane>(
        &self,
        dataplane: D,
        state_file: StateFile,
    ) -> anyhow::Result<Proxier<D>> {
        let proxier = Proxier::new(dataplane, self.node.config()?, state_file)?
            .filtering(self.node.packets.config());
        let (sender, news) = sync_channel(WAITING_NEWS);
        let watch = self.node.source.follow(self.node.node_name()?, sender)?;
        let mut daemon = Daemon::new(proxier, Periods::default(), watch);
        anyhow::ensure!(daemon.listen(&news), "nobody told what there is");
        Ok(daemon.into_proxier())
    }

    fn print<D: Dataplane>(&self, mut proxier: Proxier<D>) -> anyhow::Result<ExitCode> {
        let ops = proxier.plan(clock::since_boot())?;
        let problems = proxier.problems();
        let rules_change = proxier.packets().is_some_and(|rules| !rules.is_in_step());
        match self.output {
            Output::Json => print(&json(&Report::desired(proxier.desired(), &problems))?)?,
            Output::Nft => print(&proxier.packets().map_or_else(String::new, nft))?,
            Output::Text => {
                for problem in &problems {
                    tracing::warn!("{problem}");
                }
                if rules_change {
                    print(&format!("set packet rules: table inet {}\n", rules::TABLE))?;
                }
                print(&text(&ops, &proxier))?;
            }
        }
        Ok(if ops.is_empty() && !rules_change {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(CHANGES)
        })
    }
}

fn text<D: Dataplane>(ops: &[Op], proxier: &Proxier<D>) -> String {
    let named = |op| NamedOp::new(op, proxier.desired(), proxier.owned());
    ops.iter().map(|op| format!("{}\n", named(op))).collect()
}

fn nft(packets: &Packets) -> String {
    packets.table().named(rules::TABLE).to_string()
}
