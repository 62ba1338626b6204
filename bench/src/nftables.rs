//! `bench nftables`: programs the packet rules of a large cluster, compared with `nft -f`.
//!
//! Each round measures both programs, each in its own network namespace:
//!
//! * *whole*: create the table of all Services in one transaction;
//! * *element*: add one frontend to that table;
//! * *read*: read the whole table back, as a resync does when another program changed rules (for
//!   nft: `nft list`).
//!
//! The time includes encoding: it begins with the rules in memory (for nft: with their text) and
//! ends when the kernel has committed them.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, value_parser};
use nftables::{Command, RulesClient, Table, transaction_length};
use proxier::testing::dataplane::ipvs::{InsideMarks, MarkChanges, Wanted};
use proxier::testing::filter::{Content, Filter, FilterConfig, TABLE};
use proxier::testing::frontend::Frontend;
use proxier::testing::model::Protocol;
use proxier::testing::plan::{Changed, Desired, example};
use serde::Serialize;

use crate::figures::{Repetition, short};
use crate::inside;
use crate::process::tool;
use crate::report::table;

/// Flags of `bench nftables`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Number of Services, each with one cluster IP.
    // Half of them are programmed too.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(2..))]
    services: u32,

    #[command(flatten)]
    repetition: Repetition<5>,
}

/// What is measured, in the order of a round.
const WORKS: [&str; 3] = ["whole", "element", "read"];

/// The figures of a run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    kernel: String,
    services: u32,
    rounds: u32,
    /// One for each of [`WORKS`].
    works: [Work; 3],
    /// Bytes of the whole transaction per Service.
    bytes_per_service: f64,
    /// The same for half as many Services; equal if the size grows linearly.
    bytes_per_service_of_half: f64,
}

/// The medians of both programs, in seconds, and the ratio between them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Work {
    name: &'static str,
    ours_secs: f64,
    nft_secs: f64,
    /// Time of `nft` divided by ours.
    times: f64,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        inside::run("2048M", || {
            self.repetition.print(&self.measure()?, Figures::table)
        })
    }

    fn measure(&self) -> anyhow::Result<Figures> {
        let names = [WORKS, WORKS.map(|_| "nft")].concat();
        let names: [&str; 6] = std::array::from_fn(|at| names[at]);
        let medians = self.repetition.medians(names, || {
            let [whole, element, read] = lab::in_fresh_network(|| self.ours())??;
            let nft = lab::in_fresh_network(|| self.nft())??;
            Ok([whole, element, read, nft[0], nft[1], nft[2]])
        })?;
        let bytes = |services: u32| -> anyhow::Result<f64> {
            let table = Rules::new(services).table();
            let length = transaction_length(TABLE, table.creation())?;
            Ok(length as f64 / f64::from(services))
        };
        Ok(Figures {
            kernel: lab::kernel_release(),
            services: self.services,
            rounds: self.repetition.rounds,
            works: std::array::from_fn(|at| Work {
                name: WORKS[at],
                ours_secs: medians[at],
                nft_secs: medians[at + 3],
                times: medians[at + 3] / medians[at],
            }),
            bytes_per_service: bytes(self.services)?,
            bytes_per_service_of_half: bytes(self.services / 2)?,
        })
    }

    fn ours(&self) -> anyhow::Result<[Duration; 3]> {
        let mut rules = Rules::new(self.services);
        let mut client = RulesClient::open(TABLE)?;
        let table = rules.table();
        let start = Instant::now();
        client.replace(&table)?;
        let whole = start.elapsed();

        let start = Instant::now();
        client.apply(&rules.add(frontend(self.services))?)?;
        let element = start.elapsed();
        let table = rules.table();

        // A read that finds a difference would also write, and its time would not be comparable.
        let generation = client.generation();
        let start = Instant::now();
        client.restore(&table)?;
        let read = start.elapsed();
        ensure!(
            client.generation() == generation,
            "reading the table back changed the rules"
        );
        check(self.services + 1)?;
        Ok([whole, element, read])
    }

    fn nft(&self) -> anyhow::Result<[Duration; 3]> {
        let mut rules = Rules::new(self.services);
        let text = rules.table().named(TABLE).to_string();
        let start = Instant::now();
        nft(&text)?;
        let whole = start.elapsed();

        let text: String = rules
            .add(frontend(self.services))?
            .iter()
            .map(|command: &Command| format!("{}\n", command.in_table(TABLE)))
            .collect();
        let start = Instant::now();
        nft(&text)?;
        let element = start.elapsed();

        let start = Instant::now();
        list(&["table", "inet", TABLE])?;
        let read = start.elapsed();
        check(self.services + 1)?;
        Ok([whole, element, read])
    }
}

/// Packet rules of cluster IPs whose endpoints all serve.
struct Rules {
    filter: Filter,
    desired: Desired,
    marks: InsideMarks,
}

impl Rules {
    /// Returns the rules of the first frontends. They count as written.
    fn new(services: u32) -> Self {
        let mut rules = Self {
            filter: Filter::new(FilterConfig::default()),
            desired: Desired::default(),
            marks: InsideMarks::default(),
        };
        let plan = example::cluster_ip(&[]);
        for frontend in (0..services).map(frontend) {
            rules.desired.frontends.insert(frontend, plan.clone());
            rules.desired.addresses.insert(frontend.address, None);
        }
        let wanted = Wanted::new(&rules.desired, &rules.marks);
        if let Some(write) = rules.filter.pending(wanted) {
            rules.filter.written(write.fingerprint);
        }
        rules
    }

    fn table(&self) -> Table {
        let wanted = Wanted::new(&self.desired, &self.marks);
        self.filter.table(wanted)
    }

    /// Adds a frontend. Returns the commands that write it.
    fn add(&mut self, frontend: Frontend) -> anyhow::Result<Vec<Command>> {
        self.desired
            .frontends
            .insert(frontend, example::cluster_ip(&[]));
        let changed = Changed {
            frontends: [frontend].into(),
            ..Changed::default()
        };
        let wanted = Wanted::new(&self.desired, &self.marks);
        (self.filter).follow(wanted, &changed, &MarkChanges::default(), None);
        match self.filter.pending(wanted).map(|write| write.content) {
            Some(Content::Commands(commands)) => Ok(commands),
            _ => bail!("the frontend changes no rule"),
        }
    }
}

/// Returns the frontend of Service number `number`; its address is in 10.96.0.0/12.
fn frontend(number: u32) -> Frontend {
    let address = Ipv4Addr::from(0x0a60_0000 | (number & 0x000f_ffff));
    Frontend {
        address: IpAddr::V4(address),
        protocol: Protocol::Tcp,
        port: 443,
    }
}

/// Runs `nft -f -`.
fn nft(text: &str) -> anyhow::Result<()> {
    let mut child = tool("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("running nft (install the package nftables)")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes())?;
    }
    let status = child.wait()?;
    ensure!(status.success(), "nft -f: {status}");
    Ok(())
}

/// Runs `nft list`.
fn list(what: &[&str]) -> anyhow::Result<String> {
    let output = tool("nft")
        .arg("list")
        .args(what)
        .output()
        .context("running nft")?;
    ensure!(output.status.success(), "nft list: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Fails if the kernel does not have `expected` frontends.
fn check(expected: u32) -> anyhow::Result<()> {
    let listed = list(&["set", "inet", TABLE, "frontends-4"])?;
    let found = listed.matches(" . tcp . ").count();
    ensure!(
        found == expected as usize,
        "the kernel has {found} frontends, expected {expected}"
    );
    Ok(())
}

impl Figures {
    fn table(&self) -> String {
        let mut table = table::Table::new(["", "ours", "nft", ""]);
        for work in &self.works {
            let millis = |secs: f64| format!("{} ms", short(secs * 1e3));
            let times = format!("{:.1} times faster", work.times);
            let name = work.name.to_owned();
            table.row([name, millis(work.ours_secs), millis(work.nft_secs), times]);
        }
        format!(
            "rules of {} services, Linux {}, median of {}\n\n{}\n\
             transaction: {:.1} bytes per service; {:.1} for half as many services\n",
            self.services,
            self.kernel,
            self.rounds,
            table.text(),
            self.bytes_per_service,
            self.bytes_per_service_of_half,
        )
    }
}
