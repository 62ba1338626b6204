//! `bench shield`: the cost of a connection through IPVS, with the shield of frontends and without.
//!
//! A Pod connects over TCP to a cluster IP, and the server closes the connection at once. Batches of
//! connections alternate between two tables, the second of which lacks the chains `shield-*`. The lab has
//! one processor and neither side waits, so the time of a batch is the processor's time, apart from what
//! other programs of the host take. The median of the ratios of neighbouring batches is free of that.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::{Args, value_parser};
use ipvs_netlink as ipvs;
use lab::net::Cluster;
use nftables::{Command, RulesClient, Table};
use proxier::testing::filter::{FilterConfig, Ruleset, TABLE};
use proxier::testing::frontend::Frontend;
use proxier::testing::model::Protocol;
use serde::Serialize;

use crate::figures::{Repetition, median};
use crate::inside;
use crate::nftables::admission;

/// The cluster IP to which the Pod connects.
const SERVICE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), 80);
/// The server, on pod1.
const ENDPOINT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 244, 1, 2)), 8090);

/// Flags of `bench shield`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Number of frontends in the packet rules.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u16).range(1..))]
    services: u16,

    /// Connections of a batch.
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(1..))]
    connections: u32,

    /// A round is a pair of batches.
    #[command(flatten)]
    repetition: Repetition<400>,
}

/// The medians.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    kernel: String,
    services: u16,
    rounds: u32,
    connections: u32,
    with_secs: f64,
    without_secs: f64,
    /// Median of the time of a batch with the shield divided by that of the next one without.
    ratio: f64,
    /// Half of the ratios are between these.
    quartiles: [f64; 2],
}

/// The commands between the two tables.
struct Switch {
    client: RulesClient,
    add: Vec<Command>,
    remove: Vec<Command>,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        inside::run("1024M", || {
            // Only the first network namespace has this setting. Each connection leaves an entry for 10 s.
            std::fs::write("/proc/sys/net/netfilter/nf_conntrack_max", "1000000")
                .context("raising the number of tracked connections")?;
            let figures = lab::in_fresh_network(|| self.measure())??;
            self.repetition.print(&figures, Figures::table)
        })
    }

    fn measure(&self) -> anyhow::Result<Figures> {
        let cluster = Cluster::conformance();
        program_ipvs()?;
        let service = format!("{}/32", SERVICE.ip());
        cluster
            .node
            .exec(&["ip", "route", "add", "local", &service, "dev", "lo"]);
        let mut switch = Switch::new(self.services)?;

        let (is_over, is_listening) = (AtomicBool::new(false), AtomicBool::new(false));
        let times = std::thread::scope(|scope| {
            let server = scope.spawn(|| cluster.pod1.run(|| serve(&is_listening, &is_over)));
            while !is_listening.load(Ordering::Acquire) && !server.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let times = self.batches(&cluster, &mut switch);
            is_over.store(true, Ordering::Release);
            // Wakes the server.
            let _last = cluster.pod3.run(|| TcpStream::connect(ENDPOINT));
            match server.join() {
                Ok(served) => served.and(times),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        let mut ratios: Vec<f64> = times
            .iter()
            .map(|(with, without)| with.as_secs_f64() / without.as_secs_f64())
            .collect();
        ratios.sort_by(f64::total_cmp);
        let at = |quarter: usize| ratios[(ratios.len() - 1) * quarter / 4];
        let each = |batch: f64| batch / f64::from(self.connections);
        Ok(Figures {
            kernel: lab::kernel_release(),
            services: self.services,
            rounds: self.repetition.rounds,
            connections: self.connections,
            with_secs: each(median(times.iter().map(|it| it.0))),
            without_secs: each(median(times.iter().map(|it| it.1))),
            ratio: at(2),
            quartiles: [at(1), at(3)],
        })
    }

    /// Returns the times of the batches with and without the shield.
    fn batches(
        &self,
        cluster: &Cluster,
        switch: &mut Switch,
    ) -> anyhow::Result<Vec<(Duration, Duration)>> {
        let mut times = Vec::new();
        for round in 0..self.repetition.rounds {
            // Alternate the order too: a slow change of speed must not favour one of them.
            let with_first = round % 2 == 0;
            let mut batch = |with: bool| -> anyhow::Result<Duration> {
                if with {
                    return cluster.pod3.run(|| self.batch());
                }
                switch.client.apply(&switch.remove)?;
                let spent = cluster.pod3.run(|| self.batch());
                switch.client.apply(&switch.add)?;
                spent
            };
            let first = batch(with_first)?;
            let second = batch(!with_first)?;
            times.push(if with_first {
                (first, second)
            } else {
                (second, first)
            });
        }
        Ok(times)
    }

    /// Returns the time of the connections of a batch.
    fn batch(&self) -> anyhow::Result<Duration> {
        let start = Instant::now();
        for _ in 0..self.connections {
            let mut stream = TcpStream::connect(SERVICE).context("connecting to the Service")?;
            stream.read(&mut [0]).context("waiting for the end")?;
        }
        Ok(start.elapsed())
    }
}

impl Switch {
    /// Writes the table with the shield.
    fn new(services: u16) -> anyhow::Result<Self> {
        let mut rules = Ruleset::new(&FilterConfig::default(), None);
        for number in 0..services {
            let [high, low] = number.to_be_bytes();
            let address = match number {
                0 => SERVICE.ip(),
                _ => IpAddr::from([10, 97, high, low]),
            };
            let frontend = Frontend {
                address,
                protocol: Protocol::Tcp,
                port: SERVICE.port(),
            };
            rules.set_frontend(frontend, Some(admission()));
            rules.add_service_address(address);
        }
        let whole = rules.table();
        let mut client = RulesClient::open(TABLE)?;
        client.replace(whole)?;
        let shields = |table: &Table| -> Table {
            let chains = table.chains.iter();
            let chains = chains.filter(|(name, _)| name.starts_with("shield-"));
            Table {
                sets: table.sets.clone(),
                chains: chains
                    .map(|(name, it)| (name.clone(), it.clone()))
                    .collect(),
                arp: None,
            }
        };
        let mut without = shields(whole);
        let with = without.clone();
        // The sets stay: rules of other chains refer to them.
        without.chains.clear();
        ensure!(with.chains.len() == 2, "the table has no shield");
        Ok(Self {
            client,
            add: without.difference(&with),
            remove: with.difference(&without),
        })
    }
}

/// Creates the virtual server.
fn program_ipvs() -> anyhow::Result<()> {
    let key = ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Tcp,
        address: SERVICE.ip(),
        port: SERVICE.port(),
    };
    let mut client = ipvs::Client::open()?;
    client.add_service(&ipvs::Service::new(key, "rr".parse()?))?;
    client.add_destination(&key, &ipvs::Destination::new(ENDPOINT.into(), 1))?;
    // Without connection tracking, no NAT chain sees packets of IPVS.
    std::fs::write("/proc/sys/net/ipv4/vs/conntrack", "1").context("setting vs/conntrack")
}

/// Accepts connections and closes them at once.
fn serve(is_listening: &AtomicBool, is_over: &AtomicBool) -> anyhow::Result<()> {
    let listener = TcpListener::bind(ENDPOINT).context("listening on pod1")?;
    is_listening.store(true, Ordering::Release);
    while !is_over.load(Ordering::Acquire) {
        drop(listener.accept()?);
    }
    Ok(())
}

impl Figures {
    fn table(&self) -> String {
        let [low, high] = self.quartiles;
        format!(
            "{} pairs of {} connections at {} frontends, Linux {}\n\n\
             {:>12}  {:>8.1} us a connection\n\
             {:>12}  {:>8.1} us a connection\n\
             {:>12}  {:>8.4} (half of the pairs between {low:.4} and {high:.4}; limit 1.02)\n",
            self.rounds,
            self.connections,
            self.services,
            self.kernel,
            "with shield",
            self.with_secs * 1e6,
            "without",
            self.without_secs * 1e6,
            "ratio",
            self.ratio,
        )
    }
}
