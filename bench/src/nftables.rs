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

use crate::figures::Repetition;
use crate::inside;
use crate::process::tool;

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

/// The medians in seconds and the ratios between them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    kernel: String,
    services: u32,
    rounds: u32,
    whole_secs: f64,
    whole_nft_secs: f64,
    element_secs: f64,
    element_nft_secs: f64,
    read_secs: f64,
    read_nft_secs: f64,
    /// Time of `nft -f` with the whole table divided by ours.
    times_whole: f64,
    /// Time of `nft -f` with one element divided by ours.
    times_element: f64,
    /// Time of `nft list` divided by ours.
    times_read: f64,
    /// Bytes of the whole transaction per Service.
    bytes_per_service: f64,
    /// The same for half as many Services; equal if the size grows linearly.
    bytes_per_service_of_half: f64,
}

/// The times of one program in one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    whole: Duration,
    element: Duration,
    read: Duration,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        inside::run("2048M", || {
            self.repetition.print(&self.measure()?, Figures::table)
        })
    }

    fn measure(&self) -> anyhow::Result<Figures> {
        let names = [
            "whole",
            "element",
            "read",
            "nft whole",
            "nft element",
            "nft read",
        ];
        let [whole, element, read, whole_nft, element_nft, read_nft] =
            self.repetition.medians(names, || {
                let ours = lab::in_fresh_network(|| self.ours())??;
                let nft = lab::in_fresh_network(|| self.nft())??;
                Ok([
                    ours.whole,
                    ours.element,
                    ours.read,
                    nft.whole,
                    nft.element,
                    nft.read,
                ])
            })?;
        let bytes = |services: u32| -> anyhow::Result<f64> {
            let table = Rules::new(services).table();
            let length = transaction_length(TABLE, table.creation())?;
            Ok(precise(length) / f64::from(services))
        };
        Ok(Figures {
            kernel: lab::kernel_release(),
            services: self.services,
            rounds: self.repetition.rounds,
            whole_secs: whole,
            whole_nft_secs: whole_nft,
            element_secs: element,
            element_nft_secs: element_nft,
            read_secs: read,
            read_nft_secs: read_nft,
            times_whole: whole_nft / whole,
            times_element: element_nft / element,
            times_read: read_nft / read,
            bytes_per_service: bytes(self.services)?,
            bytes_per_service_of_half: bytes(self.services / 2)?,
        })
    }

    fn ours(&self) -> anyhow::Result<Round> {
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
        Ok(Round {
            whole,
            element,
            read,
        })
    }

    fn nft(&self) -> anyhow::Result<Round> {
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
        Ok(Round {
            whole,
            element,
            read,
        })
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

/// Converts a number of bytes to `f64` without rounding: a `u32` fits the mantissa.
fn precise(bytes: usize) -> f64 {
    u32::try_from(bytes).map_or(f64::INFINITY, f64::from)
}

impl Figures {
    fn table(&self) -> String {
        let Self {
            services,
            rounds,
            kernel,
            ..
        } = self;
        format!(
            "rules of {services} services, Linux {kernel}, median of {rounds}\n\n\
             {:>16}  {:>10}  {:>10}\n\
             {:>16}  {:>8.1}ms  {:>8.1}ms   {:.1} times faster (target 5)\n\
             {:>16}  {:>8.2}ms  {:>8.2}ms   {:.1} times faster (target 5)\n\
             {:>16}  {:>8.1}ms  {:>8.1}ms   {:.1} times faster\n\n\
             transaction: {:.1} bytes per service; {:.1} for half as many services\n",
            "",
            "ours",
            "nft",
            "whole",
            self.whole_secs * 1e3,
            self.whole_nft_secs * 1e3,
            self.times_whole,
            "element",
            self.element_secs * 1e3,
            self.element_nft_secs * 1e3,
            self.times_element,
            "read",
            self.read_secs * 1e3,
            self.read_nft_secs * 1e3,
            self.times_read,
            self.bytes_per_service,
            self.bytes_per_service_of_half,
        )
    }
}
