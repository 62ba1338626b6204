//! Runs a node's daemon in this process, with time that the caller advances.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use proxier::testing::daemon::{Daemon, Message, Meter, Periods, Publisher};
use proxier::testing::dataplane::ipvs::{Ipvs, Kernel};
use proxier::testing::filter::FilterConfig;
use proxier::testing::ledger::LedgerFile;
use proxier::testing::plan::PlanConfig;
use proxier::testing::store::{Event, Interner, Update};
use proxier::testing::sync::Proxier;
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, NODE, parse_slice};
use crate::process;

/// The rounds that an added and later removed endpoint causes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    /// A slice gains an endpoint: the daemon adds a destination.
    Added,
    /// A slice loses an endpoint: the destination gets weight 0 and drains.
    Drained,
    /// The draining destination has no connections: the daemon deletes it.
    Deleted,
}

impl Step {
    pub(crate) const ALL: [Self; 3] = [Self::Added, Self::Drained, Self::Deleted];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Drained => "drained",
            Self::Deleted => "deleted",
        }
    }
}

/// A daemon that has programmed a cluster; the caller advances its time.
pub(crate) struct Node<K: Kernel> {
    daemon: Daemon<Ipvs<K>>,
    interner: Interner,
    now: Duration,
    state: PathBuf,
}

impl<K: Kernel> Node<K> {
    /// Programs `cluster` into `dataplane`.
    pub(crate) fn start(kernel: K, cluster: Cluster) -> anyhow::Result<Self> {
        let config = PlanConfig {
            node_name: NODE.into(),
            ..PlanConfig::default()
        };
        let state = process::temporary("state");
        let proxier = Proxier::new(kernel, config, LedgerFile::new(&state))?
            .filtering(FilterConfig::default());
        let periods = Periods {
            // So long that only `read_back` starts a resync.
            sync: Duration::from_secs(1_000_000),
            min_sync: Duration::ZERO,
        };
        let mut node = Self {
            daemon: Daemon::new(proxier, periods, None)
                .doing(Publisher::default())
                .doing(Meter::default()),
            interner: Interner::default(),
            now: Duration::from_secs(1_000),
            state,
        };
        for event in cluster.events(&mut node.interner)? {
            node.daemon.receive(Message::Event(event));
        }
        node.round().context("programming the cluster")?;
        Ok(node)
    }

    /// Passes a slice to the daemon, as JSON from the watch, and runs a round.
    pub(crate) fn receive(&mut self, slice: &[u8]) -> anyhow::Result<()> {
        let parsed = parse_slice(slice, &mut self.interner)?;
        let event = Event::EndpointSlices(Update::Apply(parsed));
        self.daemon.receive(Message::Event(event));
        self.round()
    }

    /// Advances the time.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    /// Runs a round at the current time.
    pub(crate) fn round(&mut self) -> anyhow::Result<()> {
        ensure!(self.daemon.act(self.now), "an Op failed");
        Ok(())
    }

    /// Runs a resync.
    pub(crate) fn read_back(&mut self) -> anyhow::Result<()> {
        self.daemon.receive(Message::MachineChanged);
        self.round()
    }
}

impl<K: Kernel> Drop for Node<K> {
    fn drop(&mut self) {
        // An error leaves only a file in the directory for temporary files.
        let _ = std::fs::remove_file(&self.state);
    }
}

/// The time after which the connections of a draining destination are counted again.
const COUNTED_AGAIN: Duration = Duration::from_secs(1);

/// Measures steps.
pub(crate) trait Observer {
    /// Runs `work`, which performs `step`, and measures it.
    fn observe(
        &mut self,
        step: Step,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()>;
}

/// Adds and removes an endpoint `times` times, each time at another Service.
pub(crate) fn change<K: Kernel>(
    node: &mut Node<K>,
    cluster: Cluster,
    times: u32,
    observer: &mut impl Observer,
) -> anyhow::Result<()> {
    // A prime number spreads the changes over the cluster and repeats no Service early.
    const STRIDE: u32 = 7_919;
    for number in 0..times {
        let service = number.wrapping_mul(STRIDE) % cluster.services;
        let more = serde_json::to_vec(&cluster.slice(service, cluster.endpoints + 1))?;
        let less = serde_json::to_vec(&cluster.slice(service, cluster.endpoints))?;
        observer.observe(Step::Added, || added(node, &more))?;
        node.wait(COUNTED_AGAIN);
        observer.observe(Step::Drained, || drained(node, &less))?;
        node.wait(COUNTED_AGAIN);
        observer.observe(Step::Deleted, || deleted(node))?;
    }
    Ok(())
}

// Callgrind counts by function name, so each step is a function that is not inlined. Each function
// passes its own `Step` to `black_box`: otherwise the compiler would merge functions with equal
// code.

#[inline(never)]
fn added<K: Kernel>(node: &mut Node<K>, slice: &[u8]) -> anyhow::Result<()> {
    black_box(Step::Added);
    node.receive(slice)
}

#[inline(never)]
fn drained<K: Kernel>(node: &mut Node<K>, slice: &[u8]) -> anyhow::Result<()> {
    black_box(Step::Drained);
    node.receive(slice)
}

#[inline(never)]
fn deleted<K: Kernel>(node: &mut Node<K>) -> anyhow::Result<()> {
    black_box(Step::Deleted);
    node.round()
}
