//! `bench netlink`: programs and reads a large IPVS table.
//!
//! Each round programs the same table in three ways:
//!
//! * *limit*: the same messages in the same batches, encoded before the measurement starts;
//! * *ipvs-netlink*: [`Client::apply`], encoding included;
//! * *ipvsadm*: `ipvsadm -R` with the same rules.
//!
//! It reads the table in two ways: [`Client::table`] and `ipvsadm -Ln`.

use std::fs::File;
use std::io::Write as _;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::{Args, value_parser};
use ipvs_netlink::{Change, Client, Destination, DestinationKey, Protocol, Service, ServiceKey};
use serde::Serialize;

use crate::figures::Repetition;
use crate::inside;
use crate::process::tool;
use crate::report::table::Table;

mod limit;

/// Flags of `bench netlink`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Number of virtual servers.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..))]
    services: u32,

    /// Destinations per virtual server.
    #[arg(long, default_value_t = 10)]
    destinations: u32,

    #[command(flatten)]
    repetition: Repetition<3>,
}

/// What is measured, each with the place of ipvs-netlink's way to do it.
const WORKS: [(&str, usize); 5] = [
    ("program: limit", 1),
    ("program: ipvs-netlink", 1),
    ("program: ipvsadm -R", 1),
    ("read: ipvs-netlink", 3),
    ("read: ipvsadm -Ln", 3),
];

/// The figures of a run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    kernel: String,
    services: u32,
    destinations_each: u32,
    rounds: u32,
    /// One for each of [`WORKS`].
    works: [Work; 5],
}

/// The median time, and how many times that of ipvs-netlink it is. For the limit, 1 means that encoding costs nothing.
#[derive(Debug, Serialize)]
struct Work {
    name: &'static str,
    secs: f64,
    times: f64,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        inside::run("2048M", || {
            self.repetition.print(&self.measure()?, Figures::table)
        })
    }

    fn measure(&self) -> anyhow::Result<Figures> {
        let changes = table(self.services, self.destinations);
        let rules = std::env::temp_dir().join(format!("bench-rules-{}", std::process::id()));
        std::fs::write(&rules, rules_of(&changes)).context("writing the rules for ipvsadm")?;

        let names = WORKS.map(|(name, _)| name);
        let medians = self.repetition.medians(names, || {
            let (limit, _) = self.program(|client| limit::program(client.family(), &changes))?;
            let (ours, [read, list]) = self.program(|client| apply(client, &changes))?;
            let restore = |_: &mut Client| ipvsadm("-R", Stdio::from(File::open(&rules)?));
            let (restore, _) = self.program(restore)?;
            Ok([limit, ours, restore, read, list])
        })?;
        std::fs::remove_file(&rules).context("removing the rules for ipvsadm")?;
        Ok(Figures {
            kernel: lab::kernel_release(),
            services: self.services,
            destinations_each: self.destinations,
            rounds: self.repetition.rounds,
            works: std::array::from_fn(|at| {
                let ((name, ours), secs) = (WORKS[at], medians[at]);
                let times = secs / medians[ours];
                Work { name, secs, times }
            }),
        })
    }

    /// Programs an empty table, reads it back and checks the number of entries.
    ///
    /// Each run has its own network namespace. The kernel keeps deleted destinations in the
    /// namespace's trash for 2 to 3 minutes, and every new destination searches all of it
    /// (`ip_vs_trash_get_dest`): a shared namespace would slow down each later run.
    fn program(
        &self,
        program: impl FnOnce(&mut Client) -> anyhow::Result<Duration> + Send,
    ) -> anyhow::Result<(Duration, [Duration; 2])> {
        let measured = lab::in_fresh_network(|| {
            let mut client = Client::open()?;
            let taken = program(&mut client)?;
            Ok((taken, self.read(&mut client)?))
        })?;
        // The kernel frees the namespace in the background (`cleanup_net`), which would disturb the
        // next measurement.
        std::thread::sleep(Duration::from_secs(2));
        measured
    }

    /// Returns the times in which ipvs-netlink and ipvsadm read the whole table.
    fn read(&self, client: &mut Client) -> anyhow::Result<[Duration; 2]> {
        let start = Instant::now();
        let table = client.table()?;
        let ours = start.elapsed();
        let destinations: usize = table
            .iter()
            .map(|(_, destinations)| destinations.len())
            .sum();
        let expected = u64::from(self.services) * u64::from(self.destinations);
        ensure!(
            table.len() == self.services as usize,
            "the kernel lists {} services, expected {}",
            table.len(),
            self.services
        );
        ensure!(
            destinations as u64 == expected,
            "the kernel lists {destinations} destinations, expected {expected}"
        );
        Ok([ours, ipvsadm("-Ln", Stdio::null())?])
    }
}

/// Returns the changes that create a table: each virtual server, then its destinations.
fn table(services: u32, destinations: u32) -> Vec<Change> {
    let scheduler = "rr".parse().expect("a scheduler's name");
    let mut changes = Vec::new();
    for service in 0..services {
        let key = key(service);
        changes.push(Change::AddService(Service::new(key, scheduler)));
        for destination in 0..destinations {
            let number = service.wrapping_mul(destinations).wrapping_add(destination);
            // 10.128.0.0/9 has 8 million addresses.
            let address = (0x0a80_0000_u32 | (number & 0x007f_ffff)).to_be_bytes();
            let server = DestinationKey {
                address: address.into(),
                port: 8080,
            };
            changes.push(Change::AddDestination(key, Destination::new(server, 1)));
        }
    }
    changes
}

/// Returns the key of virtual server number `service`, in 10.96.0.0/12.
fn key(service: u32) -> ServiceKey {
    let address = (0x0a60_0000_u32 | (service & 0x000f_ffff)).to_be_bytes();
    ServiceKey::Address {
        protocol: Protocol::Tcp,
        address: address.into(),
        port: 80,
    }
}

fn apply(client: &mut Client, changes: &[Change]) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let outcomes = client.apply(changes)?;
    let taken = start.elapsed();
    outcomes
        .into_iter()
        .collect::<Result<(), _>>()
        .map_err(|error| *error)?;
    Ok(taken)
}

/// Runs `ipvsadm`, discards its output and returns the time.
fn ipvsadm(flag: &str, input: Stdio) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let status = tool("ipvsadm")
        .arg(flag)
        .stdin(input)
        .stdout(Stdio::null())
        .status()
        .context("running ipvsadm (install the package ipvsadm)")?;
    ensure!(status.success(), "ipvsadm {flag}: {status}");
    Ok(start.elapsed())
}

/// Formats `changes` as input of `ipvsadm -R`.
fn rules_of(changes: &[Change]) -> Vec<u8> {
    let mut rules = Vec::new();
    for change in changes {
        // Writing to memory cannot fail.
        let _ = match change {
            Change::AddService(Service {
                key: ServiceKey::Address { address, port, .. },
                ..
            }) => {
                writeln!(rules, "-A -t {address}:{port} -s rr")
            }
            Change::AddDestination(ServiceKey::Address { address, port, .. }, server) => {
                writeln!(
                    rules,
                    "-a -t {address}:{port} -r {} -m -w {}",
                    server.key, server.weight
                )
            }
            _ => Ok(()),
        };
    }
    rules
}

impl Figures {
    fn table(&self) -> String {
        let mut table = Table::new(["", "time", "of ipvs-netlink's"]);
        for work in &self.works {
            let (secs, times) = (format!("{:.3} s", work.secs), format!("{:.2}", work.times));
            table.row([work.name, &*secs, &*times]);
        }
        format!(
            "{} services x {} destinations, Linux {}, median of {}\n\n{}\n\
             targets: limit at least 0.85, ipvsadm -R at least 8, ipvsadm -Ln at least 3\n",
            self.services,
            self.destinations_each,
            self.kernel,
            self.rounds,
            table.text(),
        )
    }
}
