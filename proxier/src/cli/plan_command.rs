//! The command `ipvs-proxier plan`.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::dataplane_flags::DataplaneKind;
use super::planned::{Against, PlannedFlags};
use super::{Setup, json, print};
use crate::cluster::problem::Problem;
use crate::dataplane::ipvs::filter;
use crate::dataplane::ipvs::ledger::Retired;
use crate::dataplane::ipvs::observed::Observed;
use crate::dataplane::ipvs::{InsideMarks, Ipvs, Kernel, NamedOp, Wanted};
use crate::dataplane::nftables;
use crate::explain::report::{self, JsonChanges, JsonFindings, JsonReport};
use crate::explain::shadow::{Compared, Comparison};
use crate::host::predecessor::nftables_mode::NftablesMode;
use crate::reconcile::{Preview, Proxier};
use crate::util::clock;

/// Flags of `plan`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    planned: PlannedFlags,

    /// Print what the kernel's table gets wrong against the documentation of Kubernetes, whichever
    /// program wrote it, instead of what would change. Exit code: 0 without findings, 2 with findings, 1 on error.
    #[arg(long)]
    audit: bool,

    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    output: PlanOutput,
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
        let planned = &self.planned;
        let mut setup = planned.setup()?;
        if self.audit && planned.against == Against::Kernel {
            let theirs = NftablesMode::read();
            let theirs =
                theirs.context("kube-proxy's tables cannot be read, which needs CAP_NET_ADMIN")?;
            if let Some(theirs) = theirs {
                return self.audit_nftables_mode(&setup, &theirs);
            }
        }
        planned.place_addresses(&mut setup)?;
        match planned.kind(&setup) {
            DataplaneKind::Ipvs => {}
            DataplaneKind::Nftables => return self.print_nftables(&setup),
            DataplaneKind::Userspace => {
                anyhow::bail!(
                    "--dataplane=userspace: a relay keeps no state with which a plan could be compared"
                )
            }
        }
        anyhow::ensure!(
            !self.audit || planned.against == Against::Kernel,
            "--audit needs the table of a kernel, and --against=empty has none"
        );
        self.ensure_output_of_audit()?;
        match planned.against {
            Against::Kernel => self.print(planned.on_kernel(&setup)?),
            Against::Empty => self.print(planned.on_empty_kernel(&setup)?),
        }
    }

    /// Prints the changes of the table of maps.
    fn print_nftables(&self, setup: &Setup) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            self.planned.against == Against::Kernel && !self.audit,
            "with the dataplane nftables, only the kernel's table can be compared, and --audit needs the tables of \
             kube-proxy's nftables mode, which do not exist"
        );
        let mut proxier = self.planned.on_nftables(setup)?;
        let changes = proxier.changes(clock::since_boot())?;
        let mut lines = Vec::new();
        (proxier.dataplane()).commands(proxier.planned(), &changes, &mut |line| {
            lines.push(line.to_string());
        });
        let problems = proxier.problems();
        self.warn_of(&problems);
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
        // It needs no more than the tables to be read: nf_tables, and the addresses of the machine.
        let mut proxier = self.planned.on_nftables(setup)?;
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

    /// Logs the problems, unless the output lists them.
    fn warn_of(&self, problems: &[Problem]) {
        if self.output != PlanOutput::Json {
            for problem in problems {
                tracing::warn!("{problem}");
            }
        }
    }

    fn print_findings(
        &self,
        comparison: &Comparison,
        problems: &[Problem],
    ) -> anyhow::Result<ExitCode> {
        self.warn_of(problems);
        print(&match self.output {
            PlanOutput::Json => json(&JsonFindings::new(comparison, problems))?,
            _ => report::findings(comparison),
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
        self.warn_of(&problems);
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
