//! Measures a resync that finds no difference, and its parts.

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

/// Maximum duration of a resync, in percent of that of reading the tables without comparing them.
const MAX_RESYNC_PERCENT: u32 = 150;

/// The number of resyncs.
const TIMES: usize = 5;

/// Durations, each the shortest of several.
///
/// None of the work waits, so on an idle machine these are CPU times. User-Mode Linux counts CPU time in
/// ticks of 10 ms, which is too coarse.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    /// A resync that finds no difference.
    pub(crate) resync: Duration,
    /// Reading `/proc/net/ip_vs` without looking at its content.
    pub(crate) listing: Duration,
    /// Reading all virtual servers over netlink.
    pub(crate) dump: Duration,
    /// Reading the service addresses.
    pub(crate) addresses: Duration,
}

/// Programs `cluster` into the network namespace of the calling thread and makes resyncs.
pub(crate) fn measure(cluster: Cluster) -> anyhow::Result<Idle> {
    let mut node = Node::start(Linux::open(ServiceAddresses::Routes)?, cluster)?;
    let mut linux = Linux::open(ServiceAddresses::Routes)?;
    let mut client = Client::open()?;
    Ok(Idle {
        resync: times(|| node.read_back())?,
        listing: times(read_listing)?,
        dump: times(|| Ok(client.walk(|_, _| {})?))?,
        addresses: times(|| linux.addresses().map(drop).context("reading addresses"))?,
    })
}

/// Returns the shortest duration of `work`.
fn times(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
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
        let period = Periods::default().sync;
        println!(
            "duration of a resync that finds no difference, {} endpoints per Service, Linux {} (limit: \
             {MAX_RESYNC_PERCENT} % of reading /proc/net/ip_vs and the routes)\n\n{:>8}  {:>9}  {:>13}  \
             {:>12}  {:>9}  {:>10}",
            self.endpoints,
            lab::kernel_release(),
            "services",
            "resync",
            "/proc/.../ip_vs",
            "netlink dump",
            "routes",
            "of a core",
        );
        for &services in &self.idle_services {
            let idle = lab::in_fresh_network(|| {
                daemon::add_node_address()?;
                measure(self.cluster(services))
            })??;
            let least = idle.listing + idle.addresses;
            println!(
                "{services:>8}  {:>6} ms  {:>12} ms  {:>9} ms  {:>6} ms  {:>8.3} %",
                idle.resync.as_millis(),
                idle.listing.as_millis(),
                idle.dump.as_millis(),
                idle.addresses.as_millis(),
                100.0 * idle.resync.as_secs_f64() / period.as_secs_f64(),
            );
            if idle.resync * 100 > least * MAX_RESYNC_PERCENT && !cfg!(debug_assertions) {
                exceeded.push(format!(
                    "a resync at {services} Services costs more than {MAX_RESYNC_PERCENT} % of reading \
                     the tables"
                ));
            }
        }
        println!();
        Ok(())
    }
}
