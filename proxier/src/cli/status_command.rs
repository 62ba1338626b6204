//! The command `ipvs-proxier status`.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::{Output, ServiceAddressesFlag, StateFlags, json, print};
use crate::dataplane::ipvs::ledger::Ledger;
use crate::dataplane::ipvs::linux::Linux;
use crate::explain::report::{JsonReport, KernelTable, table};
use crate::host::neighbours::{self, Neighbour, Traces};
use crate::util::clock;

/// Flags of `status`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    state: StateFlags,

    /// How `run` made service addresses local.
    #[arg(long, value_enum, default_value_t)]
    service_addresses: ServiceAddressesFlag,

    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// The output of `status --output json`.
#[derive(Debug, Serialize)]
struct JsonStatus {
    #[serde(flatten)]
    kernel: JsonReport,
    neighbours: Vec<Neighbour>,
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let form = self.service_addresses.local()?;
        let mut linux = Linux::open(form)?;
        let ledger = Ledger::open(self.state.file())?;
        let observed = KernelTable::read(&mut linux, ledger.owned())?;
        let neighbours = neighbours::recognise(&Traces::read(&observed.local)?, form);
        print(&match self.output {
            Output::Json => json(&JsonStatus {
                kernel: JsonReport::observed(&observed, &ledger),
                neighbours,
            })?,
            Output::Text => {
                let kernel = table(&observed, &ledger, clock::since_boot());
                kernel + &neighbours::text(&neighbours)
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
