//! `ipvs-proxier plan`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::{NodeFlags, Output, StateFlags, json, print};
use crate::clock;
use crate::dataplane::Dataplane;
use crate::dataplane::fake::FakeKernel;
use crate::dataplane::linux::Linux;
use crate::manifests::Loaded;
use crate::op::Op;
use crate::plan::Machine;
use crate::problem::Problem;
use crate::report::{NamedOp, Report};
use crate::state_file::StateFile;
use crate::store::Event;
use crate::sync::{Input, Proxier};

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
                self.finish(linux, self.state.file(), events, problems)
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
        unread: Vec<Problem>,
    ) -> anyhow::Result<ExitCode> {
        let mut proxier = Proxier::new(dataplane, self.node.config()?, state_file)?;
        proxier.take(events, Input::given(&unread));
        let ops = proxier.plan(clock::since_boot())?;
        let mut problems = proxier.problems();
        problems.extend(unread);
        problems.sort();
        match self.output {
            Output::Json => print(&json(&Report::desired(proxier.desired(), &problems))?)?,
            Output::Text => {
                for problem in &problems {
                    tracing::warn!("{problem}");
                }
                print(&text(&ops, &proxier))?;
            }
        }
        Ok(if ops.is_empty() {
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

/// The machine as its Node object describes it.
fn node_machine(events: &[Event]) -> Machine {
    let addresses = events.iter().flat_map(|event| match event {
        Event::Node(node) => node.addresses.as_slice(),
        _ => &[],
    });
    Machine {
        addresses: addresses.copied().collect(),
        ..Machine::default()
    }
}
