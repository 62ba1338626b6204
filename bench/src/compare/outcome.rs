//! What one run of a scenario came to.

use super::histogram::Histogram;

/// How many points a curve over time has.
pub(crate) const BINS: usize = 100;

/// What one run of a scenario came to, or several runs together.
///
/// Latencies, loads and kinship are counted after the warm-up, the fates of connections from the
/// start: `arrived` = `completed` + `unserved` + `turned_away` + `unanswered` + `broken` + `staying`.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Connections that came.
    pub(crate) arrived: u64,
    /// Served to their end.
    pub(crate) completed: u64,
    /// The scheduler had no server for them.
    pub(crate) unserved: u64,
    /// Their server had too many connections.
    pub(crate) turned_away: u64,
    /// Their server was down.
    pub(crate) unanswered: u64,
    /// Their server went down while it had them.
    pub(crate) broken: u64,
    /// Still there at the end.
    pub(crate) staying: u64,
    /// From arrival to end, of connections that need work.
    pub(crate) latency: Histogram,
    /// The curves.
    pub(crate) bins: Vec<Loads>,
    /// All of it after the warm-up.
    pub(crate) loads: Loads,
    /// Pairs of akin connections with no change of the list between them.
    pub(crate) undisturbed: Pairs,
    /// Pairs with a change between them that did not concern the first one's server.
    pub(crate) across_change: Pairs,
    /// Connections that there were at each moment, integrated over time, in connection-seconds.
    pub(crate) area: f64,
    /// Time that connections spent here, summed up one by one, in seconds.
    pub(crate) sojourn: f64,
}

impl Outcome {
    pub(crate) fn new() -> Self {
        Self {
            arrived: 0,
            completed: 0,
            unserved: 0,
            turned_away: 0,
            unanswered: 0,
            broken: 0,
            staying: 0,
            latency: Histogram::new(),
            bins: vec![Loads::default(); BINS],
            loads: Loads::default(),
            undisturbed: Pairs::default(),
            across_change: Pairs::default(),
            area: 0.0,
            sojourn: 0.0,
        }
    }

    /// Adds what another run came to.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.arrived += other.arrived;
        self.completed += other.completed;
        self.unserved += other.unserved;
        self.turned_away += other.turned_away;
        self.unanswered += other.unanswered;
        self.broken += other.broken;
        self.staying += other.staying;
        self.latency.merge(&other.latency);
        for (bin, more) in self.bins.iter_mut().zip(&other.bins) {
            bin.merge(more);
        }
        self.loads.merge(&other.loads);
        self.undisturbed.merge(other.undisturbed);
        self.across_change.merge(other.across_change);
        self.area += other.area;
        self.sojourn += other.sojourn;
    }

    /// The share of connections that were not served to their end although they could have been.
    pub(crate) fn lost_share(&self) -> f64 {
        let lost = self.unserved + self.turned_away + self.unanswered + self.broken;
        share(lost, self.arrived)
    }
}

/// How loads were spread over the servers that may get connections, sampled again and again.
///
/// A load is connections per core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loads {
    samples: u32,
    spread: f64,
    peak: f64,
    busy: f64,
}

impl Loads {
    /// Takes a sample of all servers' loads; without any load there is nothing to compare.
    pub(crate) fn sample(&mut self, loads: impl Iterator<Item = f64> + Clone) {
        let (mut count, mut sum, mut greatest, mut busy) = (0.0, 0.0, 0.0_f64, 0.0);
        for load in loads.clone() {
            count += 1.0;
            sum += load;
            greatest = greatest.max(load);
            busy += f64::from(u8::from(load > 0.0));
        }
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

    /// The coefficient of variation, on average over time; 0: all equal. Nothing without samples.
    pub(crate) fn spread(&self) -> Option<f64> {
        self.mean(self.spread)
    }

    /// The greatest load in mean loads, on average over time.
    pub(crate) fn peak(&self) -> Option<f64> {
        self.mean(self.peak)
    }

    /// The share of servers that have a connection, on average over time.
    pub(crate) fn busy(&self) -> Option<f64> {
        self.mean(self.busy)
    }

    fn mean(&self, sum: f64) -> Option<f64> {
        (self.samples > 0).then(|| sum / f64::from(self.samples))
    }
}

/// Pairs of connections that would like to meet the same server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pairs {
    pub(crate) all: u64,
    /// Those where the second met another one.
    pub(crate) parted: u64,
}

impl Pairs {
    pub(crate) fn count(&mut self, parted: bool) {
        self.all += 1;
        self.parted += u64::from(parted);
    }

    fn merge(&mut self, other: Self) {
        self.all += other.all;
        self.parted += other.parted;
    }

    /// The share of pairs that were parted; nothing without pairs.
    pub(crate) fn parted_share(self) -> Option<f64> {
        (self.all > 0).then(|| share(self.parted, self.all))
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
    fn spread_and_peak_of_a_sample() {
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
    fn pairs_and_losses_are_shares() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.parted_share(), None);
        pairs.count(true);
        pairs.count(false);
        assert_eq!(pairs.parted_share(), Some(0.5));
        let mut outcome = Outcome::new();
        assert_eq!(outcome.lost_share(), 0.0);
        outcome.arrived = 8;
        outcome.broken = 1;
        outcome.unserved = 1;
        let mut twice = outcome.clone();
        twice.merge(&outcome);
        assert_eq!(twice.lost_share(), 0.25);
    }
}
