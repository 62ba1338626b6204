//! Rates, from two readings of a counter.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::counters::{CounterTable, Counts};

/// A counter: of a frontend, or of one of its endpoints.
type Key = (ipvs::ServiceKey, Option<SocketAddr>);

/// The shortest time between two readings for a rate. IPVS counts anew every 2 s (`est_timer`), so a shorter time would give
/// nothing or twice the rate.
const SHORTEST: Duration = Duration::from_secs(4);

/// The time after which a reading is forgotten.
const LONGEST: Duration = Duration::from_secs(60);

/// The most counters that are remembered. One client sees some hundred at a time.
const MAX_COUNTERS: usize = 10_000;

/// The earlier readings of what was visible.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<Key, Series>);

/// The readings of a counter.
#[derive(Clone, Copy, Debug)]
struct Series {
    at: Duration,
    total: u64,
    bytes: Option<u64>,
    /// The rates between the readings before.
    rates: (Option<f64>, Option<f64>),
}

impl Rates {
    /// Sets the rates of all counts that were read at `now`, in time since boot, as far as an earlier reading is known.
    /// Others keep the kernel's estimate.
    pub(super) fn follow(&mut self, table: &mut CounterTable, now: Duration) {
        self.0.retain(|_, series| series.at + LONGEST > now);
        for (key, server) in table {
            self.rate((*key, None), &mut server.all, now);
            for (endpoint, counts) in &mut server.endpoints {
                self.rate((*key, Some(*endpoint)), counts, now);
            }
        }
    }

    /// Sets the rates of one counter.
    pub(super) fn rate(&mut self, key: Key, counts: &mut Counts, now: Duration) {
        let Some(total) = counts.total else {
            return;
        };
        let fresh = Series {
            at: now,
            total,
            bytes: counts.bytes,
            rates: (None, None),
        };
        let room = self.0.len() < MAX_COUNTERS;
        let Some(before) = self.0.get_mut(&key) else {
            if room {
                self.0.insert(key, fresh);
            }
            return;
        };
        // Another program may have created the virtual server anew, which begins at 0.
        if total < before.total {
            *before = fresh;
            return;
        }
        let time = now.saturating_sub(before.at);
        if time >= SHORTEST {
            let per_second =
                |before: u64, now: u64| now.saturating_sub(before) as f64 / time.as_secs_f64();
            let bytes = before.bytes.zip(counts.bytes);
            let rates = (
                Some(per_second(before.total, total)),
                bytes.map(|(before, now)| per_second(before, now)),
            );
            *before = Series { rates, ..fresh };
        }
        let (rate, byte_rate) = before.rates;
        counts.rate = rate.or(counts.rate);
        counts.byte_rate = byte_rate.or(counts.byte_rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (
        ipvs::ServiceKey::Mark {
            family: ipvs::Family::V4,
            mark: 1,
        },
        None,
    );

    #[test]
    fn rates_are_between_readings_that_are_far_enough_apart() {
        let mut rates = Rates::default();
        let mut read = |second, total, bytes| {
            let mut counts = Counts {
                total: Some(total),
                bytes: Some(bytes),
                rate: Some(7.0),
                ..Counts::default()
            };
            rates.rate(KEY, &mut counts, Duration::from_secs(second));
            (counts.rate, counts.byte_rate)
        };
        assert_eq!(
            read(100, 10, 1_000),
            (Some(7.0), None),
            "the kernel's estimate"
        );
        assert_eq!(read(102, 20, 1_000), (Some(7.0), None), "too early");
        assert_eq!(read(105, 30, 6_000), (Some(4.0), Some(1_000.0)));
        assert_eq!(
            read(106, 999, 9_000),
            (Some(4.0), Some(1_000.0)),
            "too early"
        );
        assert_eq!(read(115, 30, 6_000), (Some(0.0), Some(0.0)));
        assert_eq!(read(120, 5, 50), (Some(7.0), None), "counts anew");
        assert_eq!(read(130, 15, 50), (Some(1.0), Some(0.0)));
    }

    #[test]
    fn counters_that_nobody_looks_at_are_forgotten_and_their_number_is_bounded() {
        let mut rates = Rates::default();
        for mark in 0..2 * u32::try_from(MAX_COUNTERS).unwrap() {
            let family = ipvs::Family::V4;
            let key = (ipvs::ServiceKey::Mark { family, mark }, None);
            let mut counts = Counts {
                total: Some(1),
                ..Counts::default()
            };
            rates.rate(key, &mut counts, Duration::from_secs(100));
        }
        assert_eq!(rates.0.len(), MAX_COUNTERS);
        rates.follow(&mut CounterTable::new(), Duration::from_secs(160));
        assert_eq!(rates.0.len(), 0);
    }
}
