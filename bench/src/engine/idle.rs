//! Measures an idle node: resyncs that find no difference, and what the kernel's part of them costs.

use std::fs::File;
use std::io::Read as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ipvs_netlink::{Client, listing};
use proxier::testing::daemon::Periods;
use proxier::testing::dataplane::Dataplane as _;
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::plan::ServiceAddresses;

use super::cluster::Cluster;
use super::node::Node;
use super::{Flags, daemon};

/// Maximum CPU time of an idle node, in millionths of a processor.
const MAX_SHARE: u128 = 1_000;

/// The kinds of resyncs repeat after this time at 10,000 x 10. One of them reads everything over
/// netlink.
const CYCLE: Duration = Duration::from_secs(140 * 60);

/// The number of measurements, of which the shortest counts: other programs of the host only add
/// time.
const TIMES: usize = 2;

/// Durations, each the shortest of several.
///
/// None of the work waits, so on an idle machine these are CPU times. User-Mode Linux counts CPU time in
/// ticks of 10 ms, which is too coarse.
#[derive(Clone, Debug)]
pub(crate) struct Idle {
    /// The resyncs of a [`CYCLE`], none of which finds a difference.
    pub(crate) resyncs: Vec<Duration>,
    /// Reading `/proc/net/ip_vs` without looking at its content.
    pub(crate) listing: Duration,
    /// Reading all virtual servers over netlink.
    pub(crate) dump: Duration,
    /// Reading the service addresses.
    pub(crate) addresses: Duration,
}

impl Idle {
    /// Returns the share of a processor that the resyncs take, in millionths.
    fn share(&self) -> u128 {
        let all: Duration = self.resyncs.iter().sum();
        all.as_nanos() * 1_000_000 / CYCLE.as_nanos()
    }
}

/// Programs `cluster` into the network namespace of the calling thread and makes resyncs.
pub(crate) fn measure(cluster: Cluster) -> anyhow::Result<Idle> {
    let mut node = Node::start(Linux::open(ServiceAddresses::Routes)?, cluster)?;
    let mut linux = Linux::open(ServiceAddresses::Routes)?;
    let mut client = Client::open()?;
    Ok(Idle {
        resyncs: cycle(&mut node)?,
        listing: shortest(read_listing)?,
        dump: shortest(|| Ok(client.walk([], |_, _| {})?))?,
        addresses: shortest(|| linux.addresses().map(drop).context("reading addresses"))?,
    })
}

/// Returns the durations of the resyncs of a cycle.
fn cycle(node: &mut Node<Linux>) -> anyhow::Result<Vec<Duration>> {
    let period = Periods::default().sync;
    let mut resyncs = vec![Duration::MAX; usize::try_from(CYCLE.as_secs() / period.as_secs())?];
    for _ in 0..TIMES {
        for least in &mut resyncs {
            node.wait(period);
            let start = Instant::now();
            node.read_back()?;
            *least = start.elapsed().min(*least);
        }
    }
    Ok(resyncs)
}

/// Returns the shortest duration of `work`.
fn shortest(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..TIMES {
        let start = Instant::now();
        work()?;
        shortest = shortest.min(start.elapsed());
    }
    Ok(shortest)
}

fn read_listing() -> anyhow::Result<()> {
    let mut file = File::open(listing::PATH)?;
    let mut buffer = vec![0; 64 * 1024];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

impl Flags {
    /// Prints the durations at each size.
    pub(super) fn idle(&self, exceeded: &mut Vec<String>) -> anyhow::Result<()> {
        println!(
            "an idle node, {} endpoints per Service, Linux {}: resyncs in the default period that find no \
             difference, their share of a processor (limit: 0.1 %), and what they read\n\n{:>8}  {:>9}  \
             {:>22}  {:>13}  {:>12}  {:>9}",
            self.endpoints,
            lab::kernel_release(),
            "services",
            "share",
            "shortest, longest",
            "/proc/.../ip_vs",
            "netlink dump",
            "routes",
        );
        for &services in &self.idle_services {
            let idle = lab::in_fresh_network(|| {
                daemon::add_node_address()?;
                measure(self.cluster(services))
            })??;
            let share = idle.share();
            let (least, most) = (idle.resyncs.iter().min(), idle.resyncs.iter().max());
            println!(
                "{services:>8}  {:>4}.{:03} %  {:>8} us, {:>6} ms  {:>12} ms  {:>9} ms  {:>6} ms",
                share / 10_000,
                share % 10_000 / 10,
                least.map_or(0, Duration::as_micros),
                most.map_or(0, Duration::as_millis),
                idle.listing.as_millis(),
                idle.dump.as_millis(),
                idle.addresses.as_millis(),
            );
            if share > MAX_SHARE && !cfg!(debug_assertions) {
                exceeded.push(format!(
                    "an idle node with {services} Services takes more than 0.1 % of a processor"
                ));
            }
        }
        println!();
        Ok(())
    }
}
