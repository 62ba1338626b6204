//! A node's daemon in this process, with the time passed in, and the changes it is shown.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use proxier::daemon::{Daemon, News, Periods};
use proxier::dataplane::Dataplane;
use proxier::packets;
use proxier::plan::{Config, NodePortAddresses, ServiceAddresses};
use proxier::state_file::StateFile;
use proxier::store::{Event, Interner, Update};
use proxier::sync::Proxier;
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, NODE, parse_slice};

/// The steps of an endpoint's life that cost something.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    /// A slice has an endpoint more: it becomes a destination.
    Comes,
    /// A slice has an endpoint less: the destination gets weight 0 and drains.
    Goes,
    /// The destination has no connection left: it is deleted.
    Forgotten,
}

impl Step {
    pub(crate) const ALL: [Self; 3] = [Self::Comes, Self::Goes, Self::Forgotten];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Comes => "comes",
            Self::Goes => "goes",
            Self::Forgotten => "forgotten",
        }
    }
}

/// How [`NODE`] is planned where a removed destination may drain so long.
pub(crate) fn config(drain: Duration) -> anyhow::Result<Config> {
    Ok(Config {
        node_name: NODE.into(),
        scheduler: "rr".parse()?,
        node_port_addresses: NodePortAddresses::parse(std::iter::empty())?,
        service_addresses: ServiceAddresses::Routes,
        drain,
    })
}

/// A daemon that has programmed a cluster.
pub(crate) struct Node<D> {
    daemon: Daemon<D>,
    interner: Interner,
    now: Duration,
    state: PathBuf,
}

impl<D: Dataplane> Node<D> {
    /// Programs `cluster` into `dataplane`.
    pub(crate) fn start(dataplane: D, cluster: Cluster) -> anyhow::Result<Self> {
        let config = config(Duration::from_secs(3_600))?;
        let state = super::temporary("state");
        let proxier = Proxier::new(dataplane, config, StateFile::new(&state))?
            .filtering(packets::Config::default());
        let periods = Periods {
            // Read back when asked to only.
            sync: Duration::from_secs(1_000_000),
            min_sync: Duration::ZERO,
        };
        let mut node = Self {
            daemon: Daemon::new(proxier, periods, None),
            interner: Interner::default(),
            now: Duration::from_secs(1_000),
            state,
        };
        for event in cluster.events(&mut node.interner)? {
            node.daemon.take(News::Event(event));
        }
        node.round().context("programming the cluster")?;
        Ok(node)
    }

    /// Shows the daemon a slice, as JSON from the watch, and lets it act.
    pub(crate) fn hear(&mut self, slice: &[u8]) -> anyhow::Result<()> {
        let parsed = parse_slice(slice, &mut self.interner)?;
        let event = Event::EndpointSlices(Update::Apply(parsed));
        self.daemon.take(News::Event(event));
        self.round()
    }

    /// Lets as much time pass as a destination without connections drains.
    pub(crate) fn wait(&mut self) {
        self.now += Duration::from_secs(1);
    }

    /// Lets the daemon act.
    pub(crate) fn round(&mut self) -> anyhow::Result<()> {
        ensure!(self.daemon.act(self.now), "an operation failed");
        Ok(())
    }

    /// Makes everything be read back and compared.
    pub(crate) fn read_back(&mut self) -> anyhow::Result<()> {
        self.daemon.take(News::MachineChanged);
        self.round()
    }
}

impl<D> Drop for Node<D> {
    fn drop(&mut self) {
        // A file in a directory for temporary files.
        let _ = std::fs::remove_file(&self.state);
    }
}

/// Somebody who wants to know when a step begins and ends.
pub(crate) trait Observer {
    fn observe(
        &mut self,
        step: Step,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()>;
}

/// Lets an endpoint come and go `times` times, each at another Service.
pub(crate) fn live<D: Dataplane>(
    node: &mut Node<D>,
    cluster: Cluster,
    times: u32,
    observer: &mut impl Observer,
) -> anyhow::Result<()> {
    // Spread over the whole cluster: a prime, so that no Service comes twice soon.
    const STRIDE: u32 = 7_919;
    for number in 0..times {
        let service = number.wrapping_mul(STRIDE) % cluster.services;
        let more = cluster.slice(service, cluster.endpoints + 1).to_string();
        let less = cluster.slice(service, cluster.endpoints).to_string();
        observer.observe(Step::Comes, || comes(node, more.as_bytes()))?;
        node.wait();
        observer.observe(Step::Goes, || goes(node, less.as_bytes()))?;
        node.wait();
        observer.observe(Step::Forgotten, || forgotten(node))?;
    }
    Ok(())
}

// Functions of their own, so that a profiler can tell them apart by name; each with its own word, or
// the compiler makes equal ones the same.

#[inline(never)]
fn comes<D: Dataplane>(node: &mut Node<D>, slice: &[u8]) -> anyhow::Result<()> {
    black_box(Step::Comes);
    node.hear(slice)
}

#[inline(never)]
fn goes<D: Dataplane>(node: &mut Node<D>, slice: &[u8]) -> anyhow::Result<()> {
    black_box(Step::Goes);
    node.hear(slice)
}

#[inline(never)]
fn forgotten<D: Dataplane>(node: &mut Node<D>) -> anyhow::Result<()> {
    black_box(Step::Forgotten);
    node.round()
}
