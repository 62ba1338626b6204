//! The command `ipvs-proxier status`.

use std::process::ExitCode;

use clap::Args;

use super::{Output, ServiceAddressesFlag, StateFlags, json, print};
use crate::dataplane::linux::Linux;
use crate::ledger::Ledger;
use crate::report::{JsonReport, KernelTable, table};

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

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut linux = Linux::open(self.service_addresses.into())?;
        let observed = KernelTable::read(&mut linux)?;
        let ledger = Ledger::open(self.state.file())?;
        print(&match self.output {
            Output::Json => json(&JsonReport::observed(&observed))?,
            Output::Text => table(&observed, ledger.owned(), &linux.foreign_addresses()?),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
