//! `bench addresses`: makes addresses local on the device `kube-ipvs0`, compared with `lo`.
//!
//! Each round measures both forms of local routes and both families, each in its own network
//! namespace, from the first Op to the kernel's last answer; the carrier is created before.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::{Args, value_parser};
use proxier::testing::dataplane::Dataplane as _;
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::op::Op;
use proxier::testing::plan::ServiceAddresses;
use serde::Serialize;

use crate::figures::Repetition;
use crate::inside;

/// Flags of `bench addresses`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Number of addresses of each family.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..))]
    addresses: u32,

    #[command(flatten)]
    repetition: Repetition<5>,
}

/// The medians in seconds and the ratios between them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    kernel: String,
    addresses: u32,
    rounds: u32,
    v4: Family,
    v6: Family,
}

/// The medians of one family.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Family {
    carrier_secs: f64,
    loopback_secs: f64,
    /// Time on the carrier divided by the time on `lo`.
    times: f64,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        inside::run("1024M", || {
            let figures = Figures {
                kernel: lab::kernel_release(),
                addresses: self.addresses,
                rounds: self.repetition.rounds,
                v4: self.measure(|index| Ipv4Addr::from(0x0a60_0001 + index).into())?,
                v6: self
                    .measure(|index| Ipv6Addr::from((0xfd00 << 112) + u128::from(index)).into())?,
            };
            self.repetition.print(&figures, Figures::table)
        })
    }

    fn measure(&self, address: impl Fn(u32) -> IpAddr) -> anyhow::Result<Family> {
        let addresses: Vec<IpAddr> = (0..self.addresses).map(address).collect();
        let measure = |form| lab::in_fresh_network(|| add(form, &addresses))?;
        let names = ["kube-ipvs0", "lo"];
        let [carrier_secs, loopback_secs] = self.repetition.medians(names, || {
            Ok([
                measure(ServiceAddresses::Routes)?,
                measure(ServiceAddresses::Loopback)?,
            ])
        })?;
        Ok(Family {
            carrier_secs,
            loopback_secs,
            times: carrier_secs / loopback_secs,
        })
    }
}

/// Returns the time in which all addresses become local.
fn add(form: ServiceAddresses, addresses: &[IpAddr]) -> anyhow::Result<Duration> {
    let mut linux = Linux::open(form)?;
    if form.use_carrier() {
        linux.apply(&[Op::AddCarrier]);
    }
    let ops = addresses
        .iter()
        .map(|&address| Op::AddAddress(address, None));
    let ops: Vec<Op> = ops.collect();
    let start = Instant::now();
    let outcomes = linux.apply(&ops);
    let took = start.elapsed();
    let failed = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
    ensure!(failed.is_none(), "{failed:?}");
    let found = linux.addresses()?.addresses.len();
    ensure!(found == addresses.len(), "{found} addresses are local");
    Ok(took)
}

impl Figures {
    fn table(&self) -> String {
        let mut text = format!(
            "{} local routes of each family, Linux {}, median of {} rounds\n\n{:<8}{:>12}{:>12}{:>8}\n",
            self.addresses, self.kernel, self.rounds, "", "kube-ipvs0", "lo", "ratio"
        );
        for (name, family) in [("IPv4", &self.v4), ("IPv6", &self.v6)] {
            let Family {
                carrier_secs,
                loopback_secs,
                times,
            } = family;
            text +=
                &format!("{name:<8}{carrier_secs:>10.3} s{loopback_secs:>10.3} s{times:>8.2}\n");
        }
        text
    }
}
