//! The entries that lblc and lblcr keep per frontend address, and their expiry.

use std::net::IpAddr;
use std::time::Duration;

use crate::kernel::hash::{fold, hash32};
use crate::options::{Family, LocalityLimit};

/// Entries by frontend address.
///
/// Kernel: `struct ip_vs_lblc_table`, `ip_vs_lblc_check_expire`, `ip_vs_lblc_full_check`, and their
/// counterparts in lblcr; Linux 6.1.192.
///
/// # Structure
/// Chains by hash, as in the kernel, because a partial collection ends after a whole chain. The order
/// within a chain does not matter.
///
/// # Cost
/// Finding an entry takes constant time up to some thousands of entries. Memory is allocated only when a
/// chain grows beyond its greatest length so far.
#[derive(Clone, Debug)]
pub(super) struct Cache<T> {
    chains: Vec<Vec<Entry<T>>>,
    /// The kernel's `entries`, which may exceed the real number ([`LocalityLimit::Unbounded`]).
    counted: usize,
    limit: LocalityLimit,
    /// How long an unused entry is kept.
    expiration: Duration,
    last_use: Duration,
    /// The time at which the timer fires next.
    next_collection: Duration,
    /// The kernel's `counter`: 1 plus how often the timer fired since the last full collection.
    /// Partial collections do not count.
    round: u32,
    /// The last chain of the last partial collection.
    rover: usize,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    address: IpAddr,
    used: Duration,
    value: T,
}

/// The kernel's table has 1024 chains (`CONFIG_IP_VS_LBLC_TAB_BITS`).
const CHAIN_BITS: u32 = 10;
/// How often the kernel's timer fires (`CHECK_EXPIRE_INTERVAL`).
const INTERVAL: Duration = Duration::from_secs(60);
/// Every 30th round is a full collection (`COUNT_FOR_FULL_EXPIRATION`).
const FULL_ROUND: u32 = 30;
/// More entries than this start partial collections (`max_size`).
const MANY: usize = 16 << CHAIN_BITS;
/// With this many entries no further address is remembered.
const TOO_MANY: usize = MANY * 3 / 2;
/// A partial collection removes entries unused for this long (`ENTRY_TIMEOUT`).
const EARLY: Duration = Duration::from_secs(6 * 60);

impl<T> Cache<T> {
    pub(super) fn new(expiration: Duration, limit: LocalityLimit) -> Self {
        Self {
            chains: (0..1 << CHAIN_BITS).map(|_| Vec::new()).collect(),
            counted: 0,
            limit,
            expiration,
            last_use: Duration::ZERO,
            next_collection: INTERVAL,
            round: 1,
            rover: 0,
        }
    }

    /// Starts the timer at `now`.
    pub(super) fn start(&mut self, now: Duration) {
        self.last_use = now;
        self.next_collection = now.saturating_add(INTERVAL);
    }

    /// Returns the entry of `address` and marks it as used now.
    pub(super) fn get(&mut self, family: Family, address: IpAddr, now: Duration) -> Option<&mut T> {
        self.last_use = now;
        let chain = &mut self.chains[chain_of(family, address)];
        let entry = chain.iter_mut().find(|entry| entry.address == address)?;
        entry.used = now;
        Some(&mut entry.value)
    }

    /// Replaces the entry of `address`, if any, by `value`.
    pub(super) fn replace(&mut self, family: Family, address: IpAddr, now: Duration, value: T) {
        let chain = &mut self.chains[chain_of(family, address)];
        if let Some(index) = chain.iter().position(|entry| entry.address == address) {
            chain.swap_remove(index);
            // Kernels before 6.1.191 do not subtract the replaced entry.
            if self.limit == LocalityLimit::Bounded {
                self.counted -= 1;
            }
        }
        self.insert(family, address, now, value);
    }

    /// Adds an entry for an address that has none, unless the table is full.
    pub(super) fn insert(&mut self, family: Family, address: IpAddr, now: Duration, value: T) {
        if self.limit == LocalityLimit::Bounded && self.counted >= TOO_MANY {
            return;
        }
        self.last_use = now;
        self.chains[chain_of(family, address)].push(Entry {
            address,
            used: now,
            value,
        });
        self.counted += 1;
    }

    /// Returns all entries.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let entries = self.chains.iter_mut().flatten();
        entries.map(|entry| &mut entry.value)
    }

    /// Removes what the timer would have removed until `now`. Every pick calls this first.
    ///
    /// The kernel's timer runs once a minute, also without picks. This crate has no clock, so the next pick
    /// runs all rounds since the last one. If the timer and a pick are due at the same moment, the pick
    /// precedes.
    pub(super) fn collect(&mut self, now: Duration) {
        while self.next_collection < now {
            // Without partial collections only the last full collection has an effect, so a pause of a
            // day costs one step instead of 1440.
            if self.counted <= MANY {
                self.collect_full_rounds(now);
                return;
            }
            let at = self.next_collection;
            self.next_collection = at.saturating_add(INTERVAL);
            let before = self.counted;
            if self.round.is_multiple_of(FULL_ROUND) {
                self.collect_all(at);
                self.round = 1;
            } else {
                self.collect_some(at);
            }
            let is_anything_young = at.saturating_sub(self.last_use) < EARLY;
            if self.counted == before && !is_anything_young {
                // The remaining entries exist only in `counted`, which no later round corrects.
                self.next_collection = last_round(at, now).saturating_add(INTERVAL);
                return;
            }
        }
    }

    /// Runs all full collections until `now` at once.
    ///
    /// Only the last one is run: it also removes what the earlier ones would have removed.
    fn collect_full_rounds(&mut self, now: Duration) {
        let last = last_round(self.next_collection, now);
        let after_first = (last - self.next_collection).as_secs() / INTERVAL.as_secs();
        let rounds = u64::from(self.round) + after_first;
        let since_full = rounds % u64::from(FULL_ROUND);
        if rounds >= u64::from(FULL_ROUND) {
            self.collect_all(last - seconds(since_full * INTERVAL.as_secs()));
        }
        self.round = u32::try_from(since_full).unwrap_or_default() + 1;
        self.next_collection = last.saturating_add(INTERVAL);
    }

    fn collect_all(&mut self, now: Duration) {
        for chain in 0..self.chains.len() {
            self.collect_chain(chain, now, self.expiration);
        }
    }

    fn collect_some(&mut self, now: Duration) {
        // As `ip_vs_lblc_check_expire`: 4/3 of the excess, and at most half of the size.
        let goal = ((self.counted - MANY) * 4 / 3).min(MANY / 2);
        let mut collected = 0;
        for _ in 0..self.chains.len() {
            // Starts after the chain where the last round stopped, so that every chain gets its
            // turn.
            self.rover = (self.rover + 1) % self.chains.len();
            collected += self.collect_chain(self.rover, now, EARLY);
            if collected >= goal {
                return;
            }
        }
    }

    fn collect_chain(&mut self, chain: usize, now: Duration, age: Duration) -> usize {
        let chain = &mut self.chains[chain];
        let before = chain.len();
        chain.retain(|entry| now.saturating_sub(entry.used) < age);
        let collected = before - chain.len();
        self.counted -= collected;
        collected
    }
}

/// Returns the last time before `now` at which a timer fires that first fires at `first`.
fn last_round(first: Duration, now: Duration) -> Duration {
    const NANOSECOND: Duration = Duration::from_nanos(1);
    // A request at the very time of a round comes first, so only earlier rounds count.
    let rounds = (now - first - NANOSECOND).as_secs() / INTERVAL.as_secs();
    first + seconds(rounds * INTERVAL.as_secs())
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn chain_of(family: Family, address: IpAddr) -> usize {
    hash32(fold(family, address), CHAIN_BITS)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const DAY: Duration = seconds(86_400);

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from(number).into()
    }

    fn filled(limit: LocalityLimit, count: u32, used: u64) -> Cache<()> {
        let mut cache = Cache::new(DAY, limit);
        for number in 0..count {
            cache.insert(Family::V4, address(number), seconds(used), ());
        }
        cache
    }

    fn len(cache: &Cache<()>) -> usize {
        cache.chains.iter().map(Vec::len).sum()
    }

    #[test]
    fn an_unused_entry_is_removed_by_the_half_hourly_collection() {
        let mut cache = filled(LocalityLimit::Bounded, 1, 0);
        cache.insert(Family::V4, address(1), seconds(100), ());
        cache.collect(seconds(86_400));
        assert_eq!(len(&cache), 2);
        // After 48 half hours only the first entry is a day old.
        cache.collect(seconds(86_401));
        assert_eq!(len(&cache), 1);
        cache.collect(seconds(86_400 + 1_800));
        assert_eq!(len(&cache), 1);
        cache.collect(seconds(86_400 + 1_801));
        assert_eq!(len(&cache), 0);
    }

    #[test]
    fn rounds_run_at_once_equal_rounds_run_one_by_one() {
        for end in (0..20_000).step_by(777) {
            let mut at_once = filled(LocalityLimit::Bounded, 10, 0);
            at_once.expiration = seconds(3_600);
            let mut one_by_one = at_once.clone();
            at_once.collect(seconds(end));
            for now in 0..=end {
                one_by_one.collect(seconds(now));
            }
            assert_eq!(len(&at_once), len(&one_by_one));
            assert_eq!(at_once.round, one_by_one.round);
            assert_eq!(at_once.next_collection, one_by_one.next_collection);
        }
    }

    #[test]
    fn many_entries_are_collected_early() {
        let mut cache = filled(LocalityLimit::Bounded, 17_000, 0);
        cache.collect(seconds(360));
        assert_eq!(len(&cache), 17_000);
        cache.collect(seconds(361));
        // The goal is 4/3 of the excess, 821; a chain is always collected whole.
        let collected = 17_000 - len(&cache);
        assert!((821..850).contains(&collected), "{collected}");
        // Partial rounds do not count; otherwise this would be round 7.
        assert_eq!(cache.round, 1);
    }

    #[test]
    fn the_number_of_entries_is_limited_since_6_1_191() {
        assert_eq!(len(&filled(LocalityLimit::Bounded, 25_000, 0)), 24_576);
        assert_eq!(len(&filled(LocalityLimit::Unbounded, 25_000, 0)), 25_000);
    }

    #[test]
    fn kernels_before_6_1_191_count_a_replaced_entry_twice() {
        let counted = |limit| {
            let mut cache = filled(limit, 3, 0);
            cache.replace(Family::V4, address(1), seconds(1), ());
            assert_eq!(len(&cache), 3);
            cache.counted
        };
        assert_eq!(counted(LocalityLimit::Bounded), 3);
        assert_eq!(counted(LocalityLimit::Unbounded), 4);
    }

    #[test]
    fn a_long_pause_between_picks_is_collected_quickly() {
        for limit in [LocalityLimit::Bounded, LocalityLimit::Unbounded] {
            let mut cache = filled(limit, 20_000, 0);
            cache.counted += 100_000;
            cache.collect(Duration::MAX);
            assert_eq!(len(&cache), 0);
        }
    }
}
