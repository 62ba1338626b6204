//! lc, wlc, sed and nq with an index instead of a scan.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::kernel::indexed::tournament::{Key, Tournament};
use crate::kernel::sed::expected;
use crate::kernel::{Lc, Nq, Sed, Wlc};
use crate::options::Flavour;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::{Server, ServerId};
use crate::servers::Servers;

/// A scheduler that picks the server with the least key; the newest wins a tie.
pub(in crate::kernel) trait Rule: Scheduler + Copy + Default {
    type Key: Key + fmt::Debug + Send;

    /// Returns the key of an eligible server. `rank` is unique, and less for newer servers.
    fn key(server: &Server, flavour: Flavour, rank: u32) -> Self::Key;

    /// Returns whether the kernel's arithmetic overflows for this server.
    ///
    /// The kernel's comparison is then no total order. While one such server exists, picks scan the list.
    fn is_out_of_order(server: &Server, flavour: Flavour) -> bool;
}

/// A scheduler that keeps the server with the least key in a tournament tree.
///
/// # Cost
/// A pick takes constant time. Every change of a server, including its connection counts, takes O(log n).
/// 40 bytes per server, up to twice that because the number of leaves is a power of two.
#[derive(Clone, Debug)]
pub(in crate::kernel) struct Indexed<R: Rule> {
    rule: R,
    tournament: Tournament<R::Key>,
    /// The state of each server, by [`ServerId::index`].
    entries: Vec<Entry>,
    /// The rank of the newest server; the next one gets a lower rank.
    newest: u32,
    /// How many servers are out of order.
    out_of_order: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    rank: u32,
    is_out_of_order: bool,
}

impl<R: Rule> Default for Indexed<R> {
    fn default() -> Self {
        Self {
            rule: R::default(),
            tournament: Tournament::new(),
            entries: Vec::new(),
            newest: u32::MAX,
            out_of_order: 0,
        }
    }
}

impl<R: Rule> Indexed<R> {
    fn rebuild(&mut self, servers: &Servers) {
        self.tournament.reset(servers.slots());
        self.entries.clear();
        self.entries.resize(servers.slots(), Entry::default());
        self.out_of_order = 0;
        self.newest = u32::MAX;
        // No server gets the rank `u32::MAX`, and there are fewer slots than other ranks.
        let ranks = (0..u32::MAX).rev();
        let listed: Vec<ServerId> = servers.iter().map(|(id, _)| id).collect();
        for (&id, rank) in listed.iter().rev().zip(ranks) {
            self.entries[id.index()].rank = rank;
            self.newest = rank;
            self.update(servers, id);
        }
    }

    fn update(&mut self, servers: &Servers, id: ServerId) {
        let Some(entry) = self.entries.get_mut(id.index()) else {
            return;
        };
        let flavour = servers.flavour();
        let listed = servers.listed(id);
        let is_out_of_order = listed.is_some_and(|server| R::is_out_of_order(server, flavour));
        if is_out_of_order != entry.is_out_of_order {
            entry.is_out_of_order = is_out_of_order;
            if is_out_of_order {
                self.out_of_order += 1;
            } else {
                self.out_of_order -= 1;
            }
        }
        let key = match listed {
            Some(server) if server.is_eligible() => R::key(server, flavour, entry.rank),
            _ => R::Key::NONE,
        };
        self.tournament.set(id.slot, key);
    }
}

impl<R: Rule> Scheduler for Indexed<R> {
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId> {
        if self.out_of_order > 0 {
            // Overflowed loads have no total order, which the tree needs. The scan picks as the kernel.
            return self.rule.pick(servers, request);
        }
        servers.id(self.tournament.winner()?)
    }

    fn bound(&mut self, servers: &Servers, _: Duration) -> Result<(), Error> {
        self.rebuild(servers);
        Ok(())
    }

    fn added(&mut self, servers: &Servers, server: ServerId) {
        let Some(rank) = self.newest.checked_sub(1) else {
            // All ranks have been used, most of them by servers that no longer exist.
            self.rebuild(servers);
            return;
        };
        self.newest = rank;
        if self.entries.len() < servers.slots() {
            self.entries.resize(servers.slots(), Entry::default());
        }
        self.entries[server.index()].rank = rank;
        self.update(servers, server);
    }

    fn removed(&mut self, servers: &Servers, server: ServerId, _: Option<ServerId>) {
        self.update(servers, server);
    }

    fn updated(&mut self, servers: &Servers, server: ServerId) {
        self.update(servers, server);
    }

    fn counted(&mut self, servers: &Servers, server: ServerId) {
        self.update(servers, server);
    }
}

/// Load in the upper half, rank in the lower: one comparison orders by load, then newest first.
impl Key for u64 {
    const NONE: Self = Self::MAX;

    fn beats(self, other: Self) -> bool {
        self < other
    }
}

impl Rule for Lc {
    type Key = u64;

    fn key(server: &Server, flavour: Flavour, rank: u32) -> u64 {
        let load = server.overhead(flavour).cast_unsigned();
        u64::from(load) << 32 | u64::from(rank)
    }

    fn is_out_of_order(_: &Server, _: Flavour) -> bool {
        false
    }
}

/// Ordered by cost per weight, then newest first.
///
/// Compared crosswise like in the kernel. This is exact because all factors have 32 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::kernel) struct Ratio {
    cost: i32,
    /// Above 0, except in [`Key::NONE`].
    weight: i32,
    rank: u32,
}

impl Key for Ratio {
    /// An infinite ratio.
    const NONE: Self = Self {
        cost: 1,
        weight: 0,
        rank: u32::MAX,
    };

    fn beats(self, other: Self) -> bool {
        let mine = i64::from(self.cost) * i64::from(other.weight);
        let theirs = i64::from(other.cost) * i64::from(self.weight);
        mine < theirs || (mine == theirs && self.rank < other.rank)
    }
}

/// Returns whether the scan would prefer this server in spite of its weight 0.
///
/// The kernel's scan never starts with weight 0, but compares later servers without a check of the
/// weight, and a cost that overflowed to a negative number wins.
fn wins_without_weight(server: &Server, cost: i32) -> bool {
    server.weight == 0 && !server.overloaded && cost < 0
}

impl Rule for Wlc {
    type Key = Ratio;

    fn key(server: &Server, flavour: Flavour, rank: u32) -> Ratio {
        Ratio {
            cost: server.overhead(flavour),
            weight: server.weight,
            rank,
        }
    }

    fn is_out_of_order(server: &Server, flavour: Flavour) -> bool {
        wins_without_weight(server, server.overhead(flavour))
    }
}

impl Rule for Sed {
    type Key = Ratio;

    fn key(server: &Server, _: Flavour, rank: u32) -> Ratio {
        Ratio {
            cost: expected(server),
            weight: server.weight,
            rank,
        }
    }

    fn is_out_of_order(server: &Server, _: Flavour) -> bool {
        wins_without_weight(server, expected(server))
    }
}

impl Rule for Nq {
    type Key = Ratio;

    /// All idle servers have the same ratio 0, which is less than that of every busy server.
    fn key(server: &Server, _: Flavour, rank: u32) -> Ratio {
        let (cost, weight) = match server.active {
            0 => (0, 1),
            _ => (expected(server), server.weight),
        };
        Ratio { cost, weight, rank }
    }

    /// After an overflow the cost of a busy server is less than that of an idle one.
    fn is_out_of_order(server: &Server, _: Flavour) -> bool {
        server.is_eligible() && expected(server) <= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Family;
    use crate::thresholds::Thresholds;

    /// The ranks are used up after four billion additions; the test starts two before that.
    #[test]
    fn ranks_start_again_when_they_are_used_up() {
        let mut servers = Servers::new(Family::V4, Flavour::Total);
        let mut lc = Indexed::<Lc>::default();
        lc.bound(&servers, Duration::ZERO).unwrap();
        lc.newest = 2;
        for port in 1..=5 {
            let address = ([10, 0, 0, 1], port).into();
            let id = servers.add(address, 1, Thresholds::default()).unwrap();
            lc.added(&servers, id);
            // The newest of equal servers wins, before and after the ranks start again.
            let winner = lc.tournament.winner();
            assert_eq!(winner.and_then(|slot| servers.id(slot)), Some(id));
        }
        assert_eq!(lc.newest, u32::MAX - 5);
    }
}
