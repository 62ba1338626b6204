//! The counts of all workers.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, counter, gauge};

/// Counts of all workers since the start.
#[derive(Debug)]
pub struct Statistics {
    connected: Tally,
    refused: Tally,
    over_share: Tally,
    hidden: Tally,
    exhausted: Tally,
    held_back: Tally,
    listener_files: Gauge,
    connection_files: Gauge,
}

/// A count that tests read and a scrape shows.
#[derive(Debug)]
struct Tally {
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

    fn add(&self) {
        self.value.fetch_add(1, Ordering::Relaxed);
        self.metric.increment(1);
    }

    fn get(&self) -> u64 {
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

    pub(crate) fn connected(&self) {
        self.connected.add();
    }

    pub(crate) fn refused(&self) {
        self.refused.add();
    }

    pub(crate) fn over_share(&self) {
        self.over_share.add();
    }

    pub(crate) fn hidden(&self) {
        self.hidden.add();
    }

    pub(crate) fn exhausted(&self) {
        self.exhausted.add();
    }

    pub(crate) fn held_back(&self) {
        self.held_back.add();
    }

    pub(crate) fn listening(&self, change: f64) {
        self.listener_files.increment(change);
    }

    pub(crate) fn connecting(&self, change: f64) {
        self.connection_files.increment(change);
    }

    /// Returns the number of connections that reached an endpoint.
    pub fn connections(&self) -> u64 {
        self.connected.get()
    }

    /// Returns the number of clients that were reset because no endpoint accepted them.
    pub fn refusals(&self) -> u64 {
        self.refused.get()
    }

    /// Returns the number of clients that were reset because they had their share of connections.
    pub fn over_shares(&self) -> u64 {
        self.over_share.get()
    }

    /// Returns how often an endpoint of this node did not answer to a client's address, so that it was tried from
    /// this node's.
    pub fn hidden_clients(&self) -> u64 {
        self.hidden.get()
    }

    /// Returns how often the process had no descriptor left.
    pub fn exhaustions(&self) -> u64 {
        self.exhausted.get()
    }

    /// Returns how often accepting paused because a frontend had its share of connections.
    pub fn pauses(&self) -> u64 {
        self.held_back.get()
    }
}
