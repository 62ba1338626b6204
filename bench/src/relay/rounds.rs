//! Runs the rounds and records their figures.

use std::time::Duration;

use super::Flags;
use super::contestant::{Contestant, Running};
use super::figures::{Better, Figure, Target};
use super::measure::{self, Task};

/// A microsecond in seconds.
const MICRO: f64 = 1e-6;

/// The running relays, and the figures that do not belong to a load.
#[derive(Debug)]
pub(super) struct Rounds {
    running: Vec<Running>,
    latencies: [Figure; 2],
    memory: Figure,
}

/// The two figures of a load.
#[derive(Debug)]
struct LoadFigures {
    task: Task,
    rate: Figure,
    cost: Figure,
    /// The factors by which rate and cost are divided for display.
    scale: (f64, f64),
}

impl LoadFigures {
    fn new(task: Task) -> Self {
        let rate = |limit| Target {
            better: Better::More,
            peer: Some(limit),
            barest: None,
            absolute: None,
        };
        let cost = Target {
            better: Better::Less,
            peer: Some(1.0),
            barest: Some(1.1),
            absolute: None,
        };
        let figures = |of: &'static str, unit, limit, cost_of: &'static str, cost_unit| {
            (
                Figure::new(of, unit, rate(limit)),
                Figure::new(cost_of, cost_unit, cost),
            )
        };
        let ((rate, cost), scale) = match task {
            Task::Requests => (
                figures("requests", "1/s", 1.0, "CPU of a request", "us"),
                (1.0, MICRO),
            ),
            Task::Connections => (
                figures("connections", "1/s", 1.0, "CPU of a connection", "us"),
                (1.0, MICRO),
            ),
            Task::Transfers => (
                figures("large transfers", "MB/s", 1.0, "CPU of a gigabyte", "ms"),
                (1e6, 1e-12),
            ),
            Task::Questions => (
                figures(
                    "datagrams, 64 clients",
                    "1/s",
                    1.5,
                    "CPU of such a datagram",
                    "us",
                ),
                (1.0, MICRO),
            ),
            Task::Streams => (
                figures(
                    "datagrams, 4 streams",
                    "1/s",
                    1.5,
                    "CPU of such a datagram",
                    "us",
                ),
                (1.0, MICRO),
            ),
        };
        Self {
            task,
            rate,
            cost,
            scale,
        }
    }

    fn measure(&mut self, running: &Running, length: Duration) -> anyhow::Result<()> {
        let work = measure::work(running, self.task, length)?;
        // Exact up to 2^53.
        let units = work.units as f64;
        let (rate, cost) = self.scale;
        let contestant = running.contestant();
        self.rate
            .record(contestant, units / work.time.as_secs_f64() / rate);
        self.cost
            .record(contestant, work.cpu.as_secs_f64() / units / cost);
        Ok(())
    }
}

impl Rounds {
    pub(super) fn new(running: Vec<Running>) -> Self {
        let less = |absolute| Target {
            better: Better::Less,
            peer: None,
            barest: None,
            absolute,
        };
        Self {
            running,
            latencies: ["added latency, median", "added latency, 99 %"]
                .map(|name| Figure::new(name, "us", less(None))),
            memory: Figure::new("memory of an idle connection", "bytes", less(Some(1_024.0))),
        }
    }

    /// Runs all rounds, and returns the figures.
    pub(super) fn run(mut self, flags: &Flags, idle: usize) -> anyhow::Result<Vec<Figure>> {
        let length = Duration::from_secs_f64(flags.seconds);
        // Measured first: later, a relay would reuse the memory of earlier connections.
        for running in &self.running {
            eprintln!("{}: {idle} idle connections", running.contestant());
            let bytes = measure::memory(running, idle)?;
            self.memory.record(running.contestant(), bytes);
        }
        let mut loads: Vec<LoadFigures> =
            flags.loads.iter().copied().map(LoadFigures::new).collect();
        for round in 0..flags.rounds {
            eprintln!("round {} of {}", round + 1, flags.rounds);
            let places = self.running.len();
            let order = (0..places).map(|place| (place + round) % places);
            for load in &mut loads {
                for place in order.clone() {
                    let running = &self.running[place];
                    if load.task.suits(running.contestant()) {
                        load.measure(running, length)?;
                    }
                }
            }
            self.add_latencies(length / 4)?;
        }
        let mut figures = Vec::new();
        for load in loads {
            figures.extend([load.cost, load.rate]);
        }
        figures.extend(self.latencies);
        figures.push(self.memory);
        Ok(figures)
    }

    fn add_latencies(&mut self, length: Duration) -> anyhow::Result<()> {
        let direct = measure::latency_of(None, length)?;
        for running in &self.running {
            let contestant: Contestant = running.contestant();
            let latency = measure::latency_of(Some(contestant), length)?;
            let [median, p99] = &mut self.latencies;
            for (figure, with, without) in [
                (median, latency.median, direct.median),
                (p99, latency.p99, direct.p99),
            ] {
                let added = with.as_secs_f64() - without.as_secs_f64();
                figure.record(contestant, added / MICRO);
            }
        }
        Ok(())
    }
}
