//! `ipvs-proxier plan`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::{NodeFlags, Output, StateFlags, completeness, json, print};
use crate::dataplane::Dataplane;
use crate::dataplane::fake::FakeKernel;
use crate::dataplane::linux::Linux;
use crate::manifests::Loaded;
use crate::owned::StateFile;
use crate::plan::Machine;
use crate::report::{NamedOp, Report};
use crate::store::Event;
use crate::sync::{Proxier, Round};

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

/// Something would change.
const CHANGES: u8 = 2;

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let Loaded { events, problems } = self.node.load()?;
        match self.against {
            Against::Kernel => {
                let linux = Linux::open(self.node.service_addresses.into())?;
                let state_file = StateFile::new(&self.state.state_file);
                self.finish(linux, state_file, events, problems)
            }
            Against::Empty => {
                let kernel = FakeKernel {
                    machine: node_machine(&events),
                    ..FakeKernel::default()
                };
                self.finish(kernel, StateFile::new("/nonexistent"), events, problems)
            }
        }
    }

    fn finish<D: Dataplane>(
        &self,
        dataplane: D,
        state_file: StateFile,
        events: Vec<Event>,
        mut problems: Vec<crate::problem::Problem>,
    ) -> anyhow::Result<ExitCode> {
        let mut proxier = Proxier::new(dataplane, self.node.config()?, state_file)?;
        proxier.take(events, completeness(&problems));
        let mut round = proxier.plan()?;
        round.problems.append(&mut problems);
        round.problems.sort();
        match self.output {
            Output::Json => print(&json(&Report::desired(&round.desired, &round.problems))?)?,
            Output::Text => {
                for problem in &round.problems {
                    tracing::warn!("{problem}");
                }
                print(&text(&round, &proxier))?;
            }
        }
        Ok(if round.ops.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(CHANGES)
        })
    }
}

fn text<D: Dataplane>(round: &Round, proxier: &Proxier<D>) -> String {
    let named = |op| NamedOp::new(op, &round.desired, proxier.owned());
    round
        .ops
        .iter()
        .map(|op| format!("{}\n", named(op)))
        .collect()
}

/// The machine as its Node object describes it.
fn node_machine(events: &[Event]) -> Machine {
    let addresses = events.iter().flat_map(|event| match event {
        Event::Node(node) => node.addresses.as_slice(),
        _ => &[],
    });
    Machine {
        addresses: addresses.copied().collect(),
    }
}
