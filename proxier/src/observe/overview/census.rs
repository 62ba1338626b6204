//! A look at all Services, made seldom enough to cost little.

use std::collections::BTreeSet;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::counters::{CounterTable, Counts, ServerCounts};
use super::directory::{Directory, Entry};
use super::query::Sort;
use crate::cluster::model::ServicePortName;

/// The shortest time between two.
const SHORTEST: Duration = Duration::from_secs(2);

/// The part of a processor that they take at most: one in so many.
const SHARE: u32 = 200;

/// What a census needs to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    /// The names of Services.
    #[default]
    Names,
    /// Their traffic.
    Traffic,
    /// Their open connections, too.
    Connections,
}

impl From<Sort> for Depth {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Name => Self::Names,
            Sort::New | Sort::Bytes => Self::Traffic,
            Sort::Connections => Self::Connections,
        }
    }
}

/// All Services and their counters at one time.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// The Services, in the order of `sort`.
    pub(crate) services: Vec<Known>,
    sort: Sort,
    /// The counters, as far as the order demands.
    pub(crate) table: CounterTable,
    /// Why the counters are missing.
    pub(crate) failure: Option<String>,
    /// When it was made, in time since boot.
    pub(crate) at: Duration,
    /// How long it took.
    pub(crate) cost: Duration,
}

/// A Service port.
#[derive(Debug)]
pub(crate) struct Known {
    /// Its name.
    pub(crate) name: ServicePortName,
    /// What the daemon told.
    pub(crate) entry: Entry,
    /// The counts of all its frontends.
    pub(crate) counts: Counts,
}

impl Census {
    /// Returns a census at `at`, in time since boot, without counters.
    pub(crate) fn new(directory: Directory, at: Duration) -> Self {
        let known = |(name, entry)| Known {
            name,
            entry,
            counts: Counts::default(),
        };
        Self {
            services: directory.0.into_iter().map(known).collect(),
            sort: Sort::Name,
            at,
            ..Self::default()
        }
    }

    /// Takes the counters, and adds what a relay counts.
    pub(crate) fn count(&mut self, table: CounterTable) {
        self.table = table;
        for known in &mut self.services {
            for frontend in &known.entry.frontends {
                if let Some(all) = frontend.relayed {
                    let counts = ServerCounts {
                        all,
                        ..ServerCounts::default()
                    };
                    self.table.insert(frontend.frontend.into(), counts);
                }
            }
            known.counts = Self::counts(&known.entry, &self.table);
        }
    }

    /// Puts the Services into an order. Nearly all looks want that of the look before.
    pub(crate) fn order(&mut self, sort: Sort) {
        if std::mem::replace(&mut self.sort, sort) == sort {
            return;
        }
        let key = |known: &Known| {
            let counts = known.counts;
            let open = counts.active.unwrap_or(0) + counts.inactive.unwrap_or(0);
            // Where nothing has rates, the busiest so far is first.
            let total = counts.total.unwrap_or(0);
            // Rates are not negative, so their bits have their order.
            let rate = |rate: Option<f64>| rate.unwrap_or(0.0).to_bits();
            match sort {
                Sort::New => (rate(counts.rate), total, open),
                Sort::Bytes => (rate(counts.byte_rate), counts.bytes.unwrap_or(0), open),
                Sort::Connections => (open, total, 0),
                Sort::Name => (0, 0, 0),
            }
        };
        (self.services).sort_by(|one, other| {
            key(other)
                .cmp(&key(one))
                .then_with(|| one.name.cmp(&other.name))
        });
    }

    /// Returns the shortest time until the next one.
    pub(crate) fn interval(&self) -> Duration {
        SHORTEST.max(self.cost * SHARE)
    }

    /// Returns whether another one is due at `now`.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) >= self.interval()
    }

    /// Returns the keys of all counters.
    pub(super) fn keys(&self) -> BTreeSet<ipvs::ServiceKey> {
        let frontends = self
            .services
            .iter()
            .flat_map(|known| &known.entry.frontends);
        frontends.flat_map(|frontend| frontend.keys()).collect()
    }

    /// Returns the counts of a Service port: those of its frontends, each once.
    pub(super) fn counts(entry: &Entry, table: &CounterTable) -> Counts {
        let keys = entry.frontends.iter().flat_map(|frontend| frontend.keys());
        // All frontends of a port share the virtual server of clients inside.
        let keys: BTreeSet<_> = keys.collect();
        let mut sum = Counts::default();
        for server in keys.iter().filter_map(|key| table.get(key)) {
            sum += server.all;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_census_takes_less_than_one_two_hundredth_of_a_processor() {
        let census = |millis| Census {
            cost: Duration::from_millis(millis),
            at: Duration::from_secs(100),
            ..Census::default()
        };
        assert_eq!(census(1).interval(), Duration::from_secs(2));
        assert_eq!(census(50).interval(), Duration::from_secs(10));
        assert!(!census(50).is_over(Duration::from_secs(109)));
        assert!(census(50).is_over(Duration::from_secs(110)));
    }
}
