//! The results of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clients::Connections;
use super::limit::Limit;
use super::scenario::Scenario;
use super::tap::Counts;
use super::way::Way;
use crate::process::{Cpu, Memory};

/// The results of one proxy in one scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) scenario: Scenario,
    pub(crate) subject: String,
    /// Starts at 1.
    pub(crate) round: u32,
    /// The API server: `own` or `real`.
    pub(crate) api: String,
    /// The release of the kernel.
    pub(crate) kernel: String,
    pub(crate) start: Option<Start>,
    pub(crate) steps: Vec<Step>,
    /// Resident memory in KiB over the seconds since the start.
    pub(crate) memory: Vec<(f64, u64)>,
    /// Whether the first programming took longer than its time limit. That is a result, not a failure.
    #[serde(default)]
    pub(crate) is_late: bool,
    /// Failures, and figures that could not be measured.
    pub(crate) notes: Vec<String>,
}

/// The first programming. All times are in seconds from the start of the process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Until the first netlink request.
    #[serde(default)]
    pub(crate) first_request_secs: Option<f64>,
    /// Until the API server has sent the lists; `None` for an API server that does not tell.
    #[serde(default)]
    pub(crate) lists_secs: Option<f64>,
    /// Until the largest transaction of packet rules is sent.
    #[serde(default)]
    pub(crate) rules_secs: Option<f64>,
    /// Until the first virtual server is sent after these rules.
    #[serde(default)]
    pub(crate) first_server_secs: Option<f64>,
    /// Until the request for the last endpoint.
    pub(crate) programmed_secs: f64,
    /// Until the last request of the first programming, of those that the limit repeats.
    pub(crate) settled_secs: f64,
    /// Until a client on the node can connect to `default/kubernetes`.
    pub(crate) api_service_secs: Option<f64>,
    /// The time that the same requests take alone; `None` if the kernel refused them.
    #[serde(default)]
    pub(crate) limit: Option<Limit>,
    /// Page faults of the process.
    #[serde(default)]
    pub(crate) page_faults: Option<u64>,
    pub(crate) cost: Cost,
}

/// A phase after the first programming.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) phase: super::scenario::Phase,
    pub(crate) cost: Cost,
    /// The number of changes of objects.
    pub(crate) changes: u32,
    /// Time from a change in the API to the netlink message that programs it.
    pub(crate) latency: Option<Latency>,
    /// The number of changes for which the proxy sent no request.
    pub(crate) missed: usize,
    /// Seconds from the end of a disturbance until the kernel had all changes.
    pub(crate) caught_up_secs: Option<f64>,
    /// Clients' connections and their failures; `None` if the phase has no clients.
    #[serde(default)]
    pub(crate) connections: Option<Connections>,
    /// The times of clients; `None` unless the phase measures them.
    #[serde(default)]
    pub(crate) way: Option<Way>,
    /// Whether the kernel's virtual servers have exactly the endpoints of the API.
    pub(crate) is_correct: Option<bool>,
}

/// The cost of a phase.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// The duration of the phase.
    pub(crate) secs: f64,
    pub(crate) cpu: Cpu,
    /// The CPU time of the API server and of the measurement, which share the processor.
    pub(crate) server_cpu: f64,
    pub(crate) messages: Counts,
    /// At the end of the phase; the peak is that of the phase.
    pub(crate) memory: Memory,
}

impl Step {
    /// Returns a phase in which nothing was measured yet.
    pub(crate) fn new(phase: super::scenario::Phase) -> Self {
        Self {
            phase,
            cost: Cost::default(),
            changes: 0,
            latency: None,
            missed: 0,
            caught_up_secs: None,
            connections: None,
            way: None,
            is_correct: None,
        }
    }
}

/// Percentiles, in milliseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
    /// The value at every hundredth of all changes, from 0 to 100.
    pub(crate) distribution: Vec<f64>,
}

impl Latency {
    /// Returns the percentiles of `latencies`, if there are any.
    pub(crate) fn of(mut latencies: Vec<Duration>) -> Option<Self> {
        latencies.sort();
        let last = latencies.len().checked_sub(1)?;
        let at = |hundredth: usize| {
            let position = (last * hundredth).div_ceil(100);
            latencies[position].as_secs_f64() * 1e3
        };
        Some(Self {
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: at(100),
            distribution: (0..=100).map(at).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let millis = (1..=200).rev().map(Duration::from_millis).collect();
        let latency = Latency::of(millis).unwrap();
        assert!((latency.max - 200.0).abs() < 1e-9);
        assert!((latency.p50 - 101.0).abs() < 1e-9);
        assert_eq!(latency.distribution.len(), 101);
        assert!(Latency::of(Vec::new()).is_none());
    }
}
