//! The result of a run of a scenario.

use serde::Serialize;

use super::histogram::Histogram;

/// The number of points of a curve over time.
pub(crate) const BINS: usize = 100;

/// What became of all connections that arrived: `arrived` is the sum of the other counts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fates {
    pub(crate) arrived: u64,
    /// Served to their end.
    pub(crate) completed: u64,
    /// Refused, because the scheduler picked no server.
    pub(crate) unserved: u64,
    /// Rejected by a server with too many connections.
    pub(crate) rejected: u64,
    /// Sent to a server that was down.
    pub(crate) unanswered: u64,
    /// Lost because the server went down.
    pub(crate) aborted: u64,
    /// Still open at the end of the run.
    pub(crate) still_open: u64,
}

impl Fates {
    fn merge(&mut self, other: &Self) {
        self.arrived += other.arrived;
        self.completed += other.completed;
        self.unserved += other.unserved;
        self.rejected += other.rejected;
        self.unanswered += other.unanswered;
        self.aborted += other.aborted;
        self.still_open += other.still_open;
    }

    /// Returns the share of connections that were not served to their end.
    pub(crate) fn lost_share(&self) -> f64 {
        let lost = self.unserved + self.rejected + self.unanswered + self.aborted;
        share(lost, self.arrived)
    }
}

/// The result of a run of a scenario, or of several runs together.
///
/// Latencies, loads and pairs are counted after the warm-up, connections from the start.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) fates: Fates,
    /// The time from arrival to end, of connections with work.
    pub(crate) latency: Histogram,
    /// The loads over time.
    pub(crate) bins: Vec<Loads>,
    /// The loads of all samples after the warm-up.
    pub(crate) loads: Loads,
    /// Consecutive connections of a client, without a change of the servers between them.
    pub(crate) undisturbed: Pairs,
    /// Consecutive connections of a client with such a change between them. A pair whose first
    /// server may get no connections is excluded: the client must move with every scheduler.
    pub(crate) after_change: Pairs,
    /// The number of present connections, integrated over time, in connection-seconds.
    pub(crate) area: f64,
    /// The sum of the times of all connections from arrival to end, in seconds.
    pub(crate) sojourn: f64,
}

impl Outcome {
    pub(crate) fn new() -> Self {
        Self {
            fates: Fates::default(),
            latency: Histogram::new(),
            bins: vec![Loads::default(); BINS],
            loads: Loads::default(),
            undisturbed: Pairs::default(),
            after_change: Pairs::default(),
            area: 0.0,
            sojourn: 0.0,
        }
    }

    /// Adds the result of another run.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.fates.merge(&other.fates);
        self.latency.merge(&other.latency);
        for (bin, more) in self.bins.iter_mut().zip(&other.bins) {
            bin.merge(more);
        }
        self.loads.merge(&other.loads);
        self.undisturbed.merge(other.undisturbed);
        self.after_change.merge(other.after_change);
        self.area += other.area;
        self.sojourn += other.sojourn;
    }
}

/// The distribution of the load over the servers that may get connections, sampled over time.
///
/// The load of a server is its number of connections per core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loads {
    samples: u32,
    spread: f64,
    peak: f64,
    busy: f64,
}

impl Loads {
    /// Adds a sample of the loads of all servers, unless all are 0.
    pub(crate) fn sample(&mut self, loads: impl Iterator<Item = f64> + Clone) {
        let (mut count, mut sum, mut greatest, mut busy) = (0.0, 0.0, 0.0_f64, 0.0);
        for load in loads.clone() {
            count += 1.0;
            sum += load;
            greatest = greatest.max(load);
            busy += f64::from(u8::from(load > 0.0));
        }
        // Without connections, the balance is undefined, so there is no sample.
        if sum <= 0.0 {
            return;
        }
        let mean = sum / count;
        let variance = loads.map(|load| (load - mean).powi(2)).sum::<f64>() / count;
        self.samples += 1;
        self.spread += variance.sqrt() / mean;
        self.peak += greatest / mean;
        self.busy += busy / count;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        self.spread += other.spread;
        self.peak += other.peak;
        self.busy += other.busy;
    }

    /// Returns the mean coefficient of variation; 0 if all loads are equal, `None` without samples.
    pub(crate) fn spread(&self) -> Option<f64> {
        self.mean(self.spread)
    }

    /// Returns the mean of the greatest load, divided by the mean load.
    pub(crate) fn peak(&self) -> Option<f64> {
        self.mean(self.peak)
    }

    /// Returns the mean share of servers that have a connection.
    pub(crate) fn busy(&self) -> Option<f64> {
        self.mean(self.busy)
    }

    fn mean(&self, sum: f64) -> Option<f64> {
        (self.samples > 0).then(|| sum / f64::from(self.samples))
    }
}

/// Pairs of consecutive connections of the same client, or to the same frontend address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pairs {
    pub(crate) all: u64,
    /// The pairs whose connections were sent to different servers.
    pub(crate) moved: u64,
}

impl Pairs {
    pub(crate) fn count(&mut self, moved: bool) {
        self.all += 1;
        self.moved += u64::from(moved);
    }

    fn merge(&mut self, other: Self) {
        self.all += other.all;
        self.moved += other.moved;
    }

    /// Returns the share of pairs that were sent to different servers; `None` without pairs.
    pub(crate) fn moved_share(self) -> Option<f64> {
        (self.all > 0).then(|| share(self.moved, self.all))
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_and_peak_of_samples_are_right() {
        let mut loads = Loads::default();
        assert_eq!(loads.spread(), None);
        loads.sample([0.0, 0.0].into_iter());
        assert_eq!(loads.spread(), None);
        loads.sample([1.0, 3.0, 1.0, 3.0].into_iter());
        assert_eq!(loads.spread(), Some(0.5));
        assert_eq!(loads.peak(), Some(1.5));
        loads.sample([0.0, 2.0].into_iter());
        assert_eq!(loads.busy(), Some(0.75));
    }

    #[test]
    fn moved_and_lost_connections_are_shares() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.moved_share(), None);
        pairs.count(true);
        pairs.count(false);
        assert_eq!(pairs.moved_share(), Some(0.5));
        let mut fates = Fates::default();
        assert_eq!(fates.lost_share(), 0.0);
        fates.arrived = 8;
        fates.aborted = 1;
        fates.unserved = 1;
        let mut twice = fates;
        twice.merge(&fates);
        assert_eq!(twice.lost_share(), 0.25);
    }
}
