//! The counts of all workers.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, counter, gauge};

/// Counts of all workers since the start.
#[derive(Debug)]
pub struct Statistics {
    /// Connections that reached an endpoint.
    pub connected: Tally,
    /// Clients that were reset because no endpoint accepted them.
    pub refused: Tally,
    /// Clients that were reset because they had their share of connections.
    pub over_share: Tally,
    /// Endpoints of this node that did not answer to a client's address, so that they were tried from this node's.
    pub hidden: Tally,
    /// Pauses because the process had no descriptor left.
    pub exhausted: Tally,
    /// Pauses of accepting because a frontend had its share of connections.
    pub held_back: Tally,
    pub(crate) listener_files: Gauge,
    pub(crate) connection_files: Gauge,
}

/// A count that tests read and a scrape shows.
#[derive(Debug)]
pub struct Tally {
    value: AtomicU64,
    metric: Counter,
}

impl Tally {
    fn new(metric: Counter) -> Self {
        Self {
            value: AtomicU64::new(0),
            metric,
        }
    }

    pub(crate) fn add(&self) {
        self.value.fetch_add(1, Ordering::Relaxed);
        self.metric.increment(1);
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

impl Statistics {
    /// Returns counts of 0 for a process with this limit of descriptors.
    pub(crate) fn new(limit: usize) -> Self {
        let connections = |result| {
            Tally::new(counter!("ipvs_proxier_relay_connections_total", "result" => result))
        };
        let pauses =
            |reason| Tally::new(counter!("ipvs_proxier_relay_pauses_total", "reason" => reason));
        let files = |of| gauge!("ipvs_proxier_relay_files", "of" => of);
        gauge!("ipvs_proxier_relay_files_limit").set(limit as f64);
        Self {
            connected: connections("connected"),
            refused: connections("refused"),
            over_share: connections("over_share"),
            hidden: Tally::new(counter!("ipvs_proxier_relay_hidden_clients_total")),
            exhausted: pauses("exhausted"),
            held_back: pauses("share"),
            listener_files: files("listeners"),
            connection_files: files("connections"),
        }
    }
}
