//! The command `ipvs-proxier status`.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::{Output, ServiceAddressesFlag, StateFlags, json, print};
use crate::dataplane::ipvs::ledger::Ledger;
use crate::dataplane::ipvs::linux::Linux;
use crate::dataplane::ipvs::observed::LocalAddresses;
use crate::dataplane::nftables;
use crate::explain::report::{self, JsonFrontend, JsonReport, KernelTable, table};
use crate::host::neighbours::{self, Neighbour, Traces};
use crate::plan::ServiceAddresses;
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
    /// IPVS, if the kernel has it.
    #[serde(flatten)]
    kernel: Option<JsonReport>,
    /// The idle timeouts of IPVS, if the kernel has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeouts: Option<JsonTimeouts>,
    /// The dataplane nftables, if its table exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    maps: Option<Vec<JsonFrontend>>,
    neighbours: Vec<Neighbour>,
}

/// The times after which IPVS forgets an idle connection, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonTimeouts {
    tcp_seconds: u32,
    tcp_fin_seconds: u32,
    udp_seconds: u32,
}

impl JsonTimeouts {
    fn text(self) -> String {
        let Self {
            tcp_seconds,
            tcp_fin_seconds,
            udp_seconds,
        } = self;
        format!(
            "\nIPVS forgets idle connections: TCP after {tcp_seconds} s ({tcp_fin_seconds} s after FIN), UDP after \
             {udp_seconds} s\n"
        )
    }
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let form = self.service_addresses.local()?;
        let maps = nftables::served()?;
        let observed = match Linux::open(form) {
            Ok(mut linux) => {
                let ledger = Ledger::open(self.state.file())?;
                let observed = KernelTable::read(&mut linux, ledger.owned())?;
                let timeouts = linux.ipvs_timeouts()?;
                let timeouts = JsonTimeouts {
                    tcp_seconds: timeouts.tcp_secs,
                    tcp_fin_seconds: timeouts.tcp_fin_secs,
                    udp_seconds: timeouts.udp_secs,
                };
                Some((observed, ledger, timeouts))
            }
            // A node with the dataplane nftables may lack IPVS.
            Err(_) if maps.is_some() && !self.state.shows_ipvs()? => None,
            Err(failure) => return Err(failure.into()),
        };
        let nothing = LocalAddresses::default();
        let local = observed.as_ref().map_or(&nothing, |(it, ..)| &it.local);
        // Packets that the maps translate do not reach IPVS.
        let form = maps.as_ref().map_or(form, |_| ServiceAddresses::None);
        let neighbours = neighbours::recognise(&Traces::read(local)?, form);
        print(&match self.output {
            Output::Json => json(&JsonStatus {
                kernel: (observed.as_ref()).map(|(it, ledger, _)| JsonReport::observed(it, ledger)),
                timeouts: (observed.as_ref()).map(|(.., timeouts)| *timeouts),
                maps: maps.as_ref().map(report::json_maps),
                neighbours,
            })?,
            Output::Text => {
                let maps = maps.as_ref().map_or_else(String::new, report::maps);
                let now = clock::since_boot();
                let ipvs = observed
                    .map(|(it, ledger, timeouts)| table(&it, &ledger, now) + &timeouts.text());
                maps + &ipvs.unwrap_or_default() + &neighbours::text(&neighbours)
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
