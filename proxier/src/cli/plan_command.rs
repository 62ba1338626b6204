//! The command `ipvs-proxier plan`.

use std::process::ExitCode;
use std::sync::mpsc::sync_channel;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::dataplane_flags::{DataplaneKind, PlannedDataplaneFlag};
use super::empty_kernel::EmptyKernel;
use super::{NodeFlags, Setup, StateFlags, json, print};
use crate::cluster::problem::Problem;
use crate::daemon::{Daemon, Periods};
use crate::dataplane::Dataplane;
use crate::dataplane::ipvs::filter;
use crate::dataplane::ipvs::ledger::{LedgerFile, Retired};
use crate::dataplane::ipvs::observed::Observed;
use crate::dataplane::ipvs::{InsideMarks, Ipvs, Kernel, NamedOp, Wanted};
use crate::dataplane::nftables::{self, Nftables};
use crate::explain::report::{self, JsonChanges, JsonFindings, JsonReport};
use crate::explain::shadow::{Compared, Comparison};
use crate::host::predecessor::nftables_mode::NftablesMode;
use crate::reconcile::{Preview, Proxier};
use crate::sources::message::QUEUE_LENGTH;
use crate::util::clock;

/// Flags of `plan`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    node: NodeFlags,

    #[command(flatten)]
    state: StateFlags,

    #[command(flatten)]
    dataplane: PlannedDataplaneFlag,

    /// State to compare the plan with.
    #[arg(long, value_enum, default_value_t)]
    against: Against,

    /// Print what the kernel's table gets wrong against the documentation of Kubernetes, whichever
    /// program wrote it, instead of what would change. Exit code: 0 without findings, 2 with findings, 1 on error.
    #[arg(long)]
    audit: bool,

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
    /// One sentence for each difference, with its reason, by Service.
    #[default]
    Text,
    /// The desired virtual servers and addresses, and the differences, as JSON.
    Json,
    /// One line for each change, in the order in which `run` makes them.
    Ops,
    /// The desired packet rules in the syntax of `nft -f`.
    Nft,
}

/// The flag that counts beside `--config`: the kubeconfig that kube-proxy's file names is in its Pod.
const BESIDE_FILE: &[&str] = &["kubeconfig"];

/// The exit code if there are changes or findings.
const CHANGES: u8 = 2;

/// The output of `--output json`.
#[derive(Debug, Serialize)]
struct JsonPlan {
    #[serde(flatten)]
    plan: JsonReport,
    #[serde(flatten)]
    changes: JsonChanges,
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (_, settings) = self.node.resolve(BESIDE_FILE)?;
        let mut setup = self.node.setup(settings)?;
        if self.audit && self.against == Against::Kernel {
            let theirs = NftablesMode::read();
            let theirs =
                theirs.context("kube-proxy's tables cannot be read, which needs CAP_NET_ADMIN")?;
            if let Some(theirs) = theirs {
                return self.audit_nftables_mode(&setup, &theirs);
            }
        }
        if self.dataplane.is_nftables(&setup.settings) {
            return self.print_nftables(&setup);
        }
        setup.plan.service_addresses = self.node.local_addresses()?;
        anyhow::ensure!(
            !self.audit || self.against == Against::Kernel,
            "--audit needs the table of a kernel, and --against=empty has none"
        );
        self.ensure_output_of_audit()?;
        match self.against {
            Against::Kernel => {
                let linux = self.node.open_kernel().and_then(|mut linux| {
                    linux.check_permission()?;
                    Ok(linux)
                });
                let linux = linux.context(
                    "the kernel's table cannot be read (--against=empty needs no privilege)",
                )?;
                self.print(self.ipvs(&setup, linux, self.state.file())?)
            }
            Against::Empty => {
                // An empty kernel has no virtual server that a ledger could name.
                let ledger = LedgerFile::new("/nonexistent");
                let mut proxier = self.ipvs(&setup, EmptyKernel::default(), ledger)?;
                // Node ports and preferred sources need addresses of the machine. Those of the Node object
                // replace them.
                let node = proxier.snapshot().node();
                let addresses = node.map(|node| node.addresses.iter().copied().collect());
                proxier.kernel().machine.addresses = addresses.unwrap_or_default();
                self.print(proxier)
            }
        }
    }

    fn ipvs<K: Kernel>(
        &self,
        setup: &Setup,
        kernel: K,
        ledger: LedgerFile,
    ) -> anyhow::Result<Proxier<Ipvs<K>>> {
        let ipvs = Ipvs::new(kernel, ledger)?
            .filtering(self.node.packets.config(&setup.settings)?)
            .excluding(setup.settings.exclude.clone());
        self.proxier(setup, ipvs, DataplaneKind::Ipvs)
    }

    /// Returns a proxier after it received its complete input.
    fn proxier<D: Dataplane>(
        &self,
        setup: &Setup,
        dataplane: D,
        kind: DataplaneKind,
    ) -> anyhow::Result<Proxier<D>> {
        let proxier = Proxier::of(dataplane, setup.plan.clone())
            .ignoring_external_ips(setup.settings.ignores_external_ips);
        let (sender, messages) = sync_channel(QUEUE_LENGTH);
        let watch = setup.follow(&self.node.source, kind, (None, sender))?;
        // A daemon that only listens: its gate decides when the input is complete, as for `run`.
        let mut daemon = Daemon::new(proxier, Periods::default(), watch);
        daemon.await_input(&messages)?;
        let mut proxier = daemon.into_proxier();
        anyhow::ensure!(
            proxier.may_start()?,
            "some manifests are unreadable, and an earlier run left virtual servers in the kernel: \
             `run` would change nothing until all manifests are readable: {}",
            problems(&proxier)
        );
        Ok(proxier)
    }

    /// Prints the changes of the table of maps.
    fn print_nftables(&self, setup: &Setup) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            self.against == Against::Kernel && !self.audit,
            "with the dataplane nftables, only the kernel's table can be compared, and --audit needs the tables of \
             kube-proxy's nftables mode, which do not exist"
        );
        self.node.ensure_no_local_addresses()?;
        let packets = self.node.packets.config(&setup.settings)?;
        let dataplane = Nftables::open(packets, &self.node.yield_devices)?;
        let mut proxier = self.proxier(setup, dataplane, DataplaneKind::Nftables)?;
        let changes = proxier.changes(clock::since_boot())?;
        let mut lines = Vec::new();
        (proxier.dataplane()).commands(proxier.planned(), &changes, &mut |line| {
            lines.push(line.to_string());
        });
        let problems = proxier.problems();
        if self.output != PlanOutput::Json {
            for problem in &problems {
                tracing::warn!("{problem}");
            }
        }
        let has_changes = !lines.is_empty();
        print(&match self.output {
            PlanOutput::Text | PlanOutput::Ops => {
                lines.iter().map(|line| format!("{line}\n")).collect()
            }
            PlanOutput::Nft => {
                let table = proxier.dataplane().table(proxier.planned());
                table.map_or_else(String::new, |it| it.named(nftables::TABLE).to_string())
            }
            PlanOutput::Json => json(&serde_json::json!({
                "changes": lines,
                "problems": problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
            }))?,
        })?;
        Ok(if has_changes {
            ExitCode::from(CHANGES)
        } else {
            ExitCode::SUCCESS
        })
    }

    fn ensure_output_of_audit(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.audit || matches!(self.output, PlanOutput::Text | PlanOutput::Json),
            "--audit has the outputs text and json"
        );
        Ok(())
    }

    /// Prints what kube-proxy's nftables mode gets wrong.
    fn audit_nftables_mode(
        &self,
        setup: &Setup,
        theirs: &NftablesMode,
    ) -> anyhow::Result<ExitCode> {
        self.ensure_output_of_audit()?;
        let packets = self.node.packets.config(&setup.settings)?;
        // It needs no more than the tables to be read: nf_tables, and the addresses of the machine.
        let dataplane = Nftables::open(packets, &self.node.yield_devices)?;
        let mut proxier = self.proxier(setup, dataplane, DataplaneKind::Nftables)?;
        proxier.changes(clock::since_boot())?;
        let no_marks = InsideMarks::default();
        let (observed, retired) = (Observed::default(), Retired::default());
        let view = Compared {
            snapshot: proxier.snapshot(),
            planner: proxier.planner(),
            wanted: Wanted::new(proxier.desired(), &no_marks),
            observed: &observed,
            retired: &retired,
        };
        let comparison = Comparison::of_nftables_mode(theirs, &view);
        self.print_findings(&comparison, &proxier.problems())
    }

    fn print_findings(
        &self,
        comparison: &Comparison,
        problems: &[Problem],
    ) -> anyhow::Result<ExitCode> {
        print(&match self.output {
            PlanOutput::Json => json(&JsonFindings::new(comparison, problems))?,
            _ => {
                problems
                    .iter()
                    .for_each(|problem| tracing::warn!("{problem}"));
                report::findings(comparison)
            }
        })?;
        Ok(match comparison.has_findings() {
            false => ExitCode::SUCCESS,
            true => ExitCode::from(CHANGES),
        })
    }

    fn print<K: Kernel>(&self, mut proxier: Proxier<Ipvs<K>>) -> anyhow::Result<ExitCode> {
        let preview = proxier.preview(clock::since_boot())?;
        let problems = proxier.problems();
        let comparison = compare(&preview, &proxier);
        if self.audit {
            return self.print_findings(&comparison, &problems);
        }
        // The JSON output lists them.
        if self.output != PlanOutput::Json {
            for problem in &problems {
                tracing::warn!("{problem}");
            }
        }
        let output = match self.output {
            PlanOutput::Text => report::changes(&comparison),
            PlanOutput::Ops => ops(&preview, &proxier),
            PlanOutput::Nft => nft(&proxier),
            PlanOutput::Json => json(&JsonPlan {
                plan: JsonReport::desired(proxier.wanted(), &problems),
                changes: (&comparison).into(),
            })?,
        };
        print(&output)?;
        Ok(match comparison.has_changes() {
            false => ExitCode::SUCCESS,
            true => ExitCode::from(CHANGES),
        })
    }
}

fn compare<K: Kernel>(preview: &Preview, proxier: &Proxier<Ipvs<K>>) -> Comparison {
    let view = Compared {
        snapshot: proxier.snapshot(),
        planner: proxier.planner(),
        wanted: proxier.wanted(),
        observed: proxier.observed(),
        retired: proxier.ledger().retired(),
    };
    let comparison = Comparison::new(&preview.ops, &view);
    match preview.changes_rules {
        true => comparison.writing_rules(&view),
        false => comparison,
    }
}

/// Returns the changes in order, with the names of their Services.
fn ops<K: Kernel>(preview: &Preview, proxier: &Proxier<Ipvs<K>>) -> String {
    let rules = match preview.changes_rules {
        true => format!("set packet rules: table inet {}\n", filter::TABLE),
        false => String::new(),
    };
    let named = |op| NamedOp::new(op, proxier.wanted(), proxier.ledger().owned());
    let lines = preview.ops.iter().map(|op| format!("{}\n", named(op)));
    rules + &lines.collect::<String>()
}

fn nft<K: Kernel>(proxier: &Proxier<Ipvs<K>>) -> String {
    let table = proxier
        .filter()
        .map(|filter| filter.table(proxier.wanted()));
    table.map_or_else(String::new, |table| table.named(filter::TABLE).to_string())
}

fn problems<D: Dataplane>(proxier: &Proxier<D>) -> String {
    let problems = proxier.problems();
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("; ")
}
