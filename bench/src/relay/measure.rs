//! The measurements of each relay.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::contestant::{Contestant, Running};
use super::endpoints::{self, DATAGRAMS, ECHO, SOURCE};
use super::load::connections::Connections;
use super::load::datagrams::{Datagrams, QUESTIONS, STREAMS};
use super::load::requests::Requests;
use super::load::transfers::Transfers;
use super::load::{Latency, Load, idle, latency};

/// The first part of a measurement, which does not count: connections are opened, buffers grow.
const WARM_UP: Duration = Duration::from_millis(250);

/// The kind of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Task {
    /// Requests on kept connections.
    Requests,
    /// New connections with one request each.
    Connections,
    /// Large transfers.
    Transfers,
    /// Datagrams of many clients.
    Questions,
    /// Many datagrams of a few clients.
    Streams,
}

impl Task {
    pub(super) const ALL: [Self; 5] = [
        Self::Requests,
        Self::Connections,
        Self::Transfers,
        Self::Questions,
        Self::Streams,
    ];

    pub(super) fn suits(self, contestant: Contestant) -> bool {
        !matches!(self, Self::Questions | Self::Streams) || contestant.has_datagrams()
    }

    fn port(self) -> u16 {
        match self {
            Self::Requests | Self::Connections => ECHO,
            Self::Transfers => SOURCE,
            Self::Questions | Self::Streams => DATAGRAMS,
        }
    }

    fn start(self, address: SocketAddrV4) -> anyhow::Result<Box<dyn Load>> {
        Ok(match self {
            Self::Requests => Box::new(Requests::start(address)?),
            Self::Connections => Box::new(Connections::start(address)?),
            Self::Transfers => Box::new(Transfers::start(address)?),
            Self::Questions => Box::new(Datagrams::start(address, QUESTIONS)?),
            Self::Streams => Box::new(Datagrams::start(address, STREAMS)?),
        })
    }
}

/// The work of a relay in one measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Requests, connections, bytes or datagrams.
    pub(super) units: u64,
    pub(super) time: Duration,
    /// The CPU time of the relay.
    pub(super) cpu: Duration,
}

/// Gives `task` to a relay for `length`.
pub(super) fn work(running: &Running, task: Task, length: Duration) -> anyhow::Result<Work> {
    let address = SocketAddrV4::new(running.contestant().address(), task.port());
    let mut load = task.start(address)?;
    load.run(WARM_UP)?;
    let (start, before) = (Instant::now(), running.cpu()?);
    let units = load.run(length)?;
    Ok(Work {
        units,
        time: start.elapsed(),
        cpu: running.cpu()?.saturating_sub(before),
    })
}

/// Returns the latency of a request through a relay; `None`: directly to an endpoint.
pub(super) fn latency_of(
    contestant: Option<Contestant>,
    length: Duration,
) -> anyhow::Result<Latency> {
    let address = contestant.map_or(endpoints::ADDRESSES[0], Contestant::address);
    latency(SocketAddrV4::new(address, ECHO), length)
}

/// Returns the resident memory of a relay per idle connection, in bytes.
pub(super) fn memory(running: &Running, connections: usize) -> anyhow::Result<f64> {
    let address = SocketAddrV4::new(running.contestant().address(), ECHO);
    let before = running.resident()?;
    let after = idle::hold(address, connections, || running.resident())?;
    let more = u32::try_from(after.saturating_sub(before) / 1_024)?;
    Ok(f64::from(more) * 1_024.0 / f64::from(u32::try_from(connections)?))
}
