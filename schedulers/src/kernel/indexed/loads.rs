//! lc, wlc, sed and nq with an index.

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

/// A scheduler that picks the server with the least of something, ties going to the newest.
pub(in crate::kernel) trait Rule: Scheduler + Copy + Default {
    type Key: Key + fmt::Debug + Send;

    /// The key of an eligible server. `rank` is less for newer servers, and unique.
    fn key(server: &Server, flavour: Flavour, rank: u32) -> Self::Key;

    /// Whether the kernel's arithmetic treats this server so that there is no order: then the
    /// servers are scanned.
    fn is_out_of_order(server: &Server, flavour: Flavour) -> bool;
}

/// A rule with the least server known at all times.
///
/// # Cost
/// A pick takes constant time; every change of one server, its connection counts included, takes
/// O(log n). 40 bytes per server (up to twice that, the tree's leaves being a power of two).
#[derive(Clone, Debug)]
pub(in crate::kernel) struct Indexed<R: Rule> {
    rule: R,
    tournament: Tournament<R::Key>,
    /// By [`ServerId::index`].
    places: Vec<Place>,
    /// The rank of the newest server; ranks go down.
    newest: u32,
    /// How many servers are out of order.
    out_of_order: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    rank: u32,
    is_out_of_order: bool,
}

impl<R: Rule> Default for Indexed<R> {
    fn default() -> Self {
        Self {
            rule: R::default(),
            tournament: Tournament::new(),
            places: Vec::new(),
            newest: u32::MAX,
            out_of_order: 0,
        }
    }
}

impl<R: Rule> Indexed<R> {
    fn rebuild(&mut self, servers: &Servers) {
        self.tournament.reset(servers.slots());
        self.places.clear();
        self.places.resize(servers.slots(), Place::default());
        self.out_of_order = 0;
        self.newest = u32::MAX;
        // `u32::MAX` is nobody's rank, and there are fewer slots than other ranks.
        let ranks = (0..u32::MAX).rev();
        let listed: Vec<ServerId> = servers.iter().map(|(id, _)| id).collect();
        for (&id, rank) in listed.iter().rev().zip(ranks) {
            self.places[id.index()].rank = rank;
            self.newest = rank;
            self.update(servers, id);
        }
    }

    fn update(&mut self, servers: &Servers, id: ServerId) {
        let Some(place) = self.places.get_mut(id.index()) else {
            return;
        };
        let flavour = servers.flavour();
        let listed = servers.listed(id);
        let is_out_of_order = listed.is_some_and(|server| R::is_out_of_order(server, flavour));
        if is_out_of_order != place.is_out_of_order {
            place.is_out_of_order = is_out_of_order;
            if is_out_of_order {
                self.out_of_order += 1;
            } else {
                self.out_of_order -= 1;
            }
        }
        let key = match listed {
            Some(server) if server.is_eligible() => R::key(server, flavour, place.rank),
            _ => R::Key::NONE,
        };
        self.tournament.set(id.slot, key);
    }
}

impl<R: Rule> Scheduler for Indexed<R> {
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId> {
        if self.out_of_order > 0 {
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
            // All ranks have been used, by servers that are gone.
            self.rebuild(servers);
            return;
        };
        self.newest = rank;
        if self.places.len() < servers.slots() {
            self.places.resize(servers.slots(), Place::default());
        }
        self.places[server.index()].rank = rank;
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

/// Least load first, then the newest: both in one number.
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

/// Least cost per weight first, then the newest.
///
/// Compared crosswise as the kernel does, which is exact: both factors have 32 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::kernel) struct Ratio {
    cost: i32,
    /// Above 0, except of [`Key::NONE`].
    weight: i32,
    rank: u32,
}

impl Key for Ratio {
    /// Infinite.
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

/// A scan never begins with weight 0, but goes on to it when its cost has overflowed.
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

    /// Idle servers are all equal, and less than others.
    fn key(server: &Server, _: Flavour, rank: u32) -> Ratio {
        let (cost, weight) = match server.active {
            0 => (0, 1),
            _ => (expected(server), server.weight),
        };
        Ratio { cost, weight, rank }
    }

    /// An overflow makes a busy server look less than idle.
    fn is_out_of_order(server: &Server, _: Flavour) -> bool {
        server.is_eligible() && expected(server) <= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Family;
    use crate::thresholds::Thresholds;

    /// After four billion additions.
    #[test]
    fn ranks_begin_again_when_they_are_used_up() {
        let mut servers = Servers::new(Family::V4, Flavour::Total);
        let mut lc = Indexed::<Lc>::default();
        lc.bound(&servers, Duration::ZERO).unwrap();
        lc.newest = 2;
        for port in 1..=5 {
            let address = ([10, 0, 0, 1], port).into();
            let id = servers.add(address, 1, Thresholds::default()).unwrap();
            lc.added(&servers, id);
            // The newest of equal ones, before and after.
            let winner = lc.tournament.winner();
            assert_eq!(winner.and_then(|slot| servers.id(slot)), Some(id));
        }
        assert_eq!(lc.newest, u32::MAX - 5);
    }
}
