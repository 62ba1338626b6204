//! wrr without a scan over servers that do not take part in the round.

use std::time::Duration;

use crate::error::Error;
use crate::kernel::indexed::bitmap::Bitmap;
use crate::kernel::indexed::weights::Weights;
use crate::kernel::wrr::Rounds;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::{Server, ServerId};
use crate::servers::Servers;

/// Weighted round robin that keeps the set of servers in the current round.
///
/// Every listed server has a seat, a number in list order. `round` has the seats of the servers that take
/// part at the current level. Levels only decrease within a cycle, so servers only join a round, and
/// leave it when the next cycle starts.
///
/// # Cost
/// In each cycle a server joins once and, unless it is overloaded, is picked at least once. So a pick takes
/// amortised constant time if few servers are overloaded. Levels at which no server takes part are
/// skipped at once. A change of a server takes O(log n), plus the greatest common divisor if the server
/// was the last one of its weight. A change of connection counts takes constant time. About 25 bytes per
/// server.
#[derive(Clone, Debug)]
pub(in crate::kernel) struct IndexedWrr {
    rounds: Rounds,
    level: i32,
    /// The seat of the last pick; `None` before the first server of the list.
    position: Option<usize>,

    weights: Weights,
    /// The seat of each listed server, by [`ServerId::index`].
    seats: Vec<u32>,
    /// The slot of the server on each seat; outdated for empty seats.
    slots: Vec<u32>,
    /// The seat of the first server of the list; the seats below it are empty.
    first: usize,

    /// The seats of the servers that are not overloaded and whose weight is at least `joined`.
    round: Bitmap,
    /// The lowest level whose servers have joined; `None` before the first.
    joined: Option<i32>,
    /// The greatest weight whose servers have not joined; 0 if there is none.
    next_to_join: i32,
}

impl Default for IndexedWrr {
    fn default() -> Self {
        Self {
            rounds: Rounds::new(0, 0),
            level: 0,
            position: None,
            weights: Weights::default(),
            seats: Vec::new(),
            slots: Vec::new(),
            first: 0,
            round: Bitmap::new(0),
            joined: None,
            next_to_join: 0,
        }
    }
}

impl IndexedWrr {
    /// Gives every server a seat, above an equal number of empty seats for servers added later.
    fn seat_all(&mut self, servers: &Servers) {
        const FEWEST: usize = 64;
        // New servers get seats below the first one. With as many free seats as servers, moving all
        // servers costs amortised constant time per addition.
        let count = (2 * servers.len()).max(FEWEST);
        self.seats.clear();
        self.seats.resize(servers.slots(), 0);
        self.slots.clear();
        self.slots.resize(count, 0);
        self.first = count - servers.len();
        for ((id, _), seat) in servers.iter().zip(self.first..) {
            self.set_seat(id, seat);
        }
        self.round = Bitmap::new(count);
        self.start_over();
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "slots have 32 bits, and there are at most twice as many seats as servers"
    )]
    fn set_seat(&mut self, id: ServerId, seat: usize) {
        self.seats[id.index()] = seat as u32;
        self.slots[seat] = id.slot;
    }

    /// Gives a seat to a server that was added at the head of the list.
    fn seat_first(&mut self, servers: &Servers, id: ServerId) {
        let Some(seat) = self.first.checked_sub(1) else {
            self.seat_all(servers);
            return;
        };
        self.first = seat;
        if self.seats.len() < servers.slots() {
            self.seats.resize(servers.slots(), 0);
        }
        self.set_seat(id, seat);
    }

    /// Removes all servers from the round.
    fn start_over(&mut self) {
        self.round.clear();
        self.joined = None;
        self.next_to_join = self.weights.greatest();
    }

    /// Adds the servers of `level` to the round, after removing all if the level has increased.
    fn join_down_to(&mut self, servers: &Servers, level: i32) {
        // The level rises only when a cycle starts again.
        if self.joined.is_some_and(|joined| joined < level) {
            self.start_over();
        }
        while self.next_to_join >= level.max(1) {
            let weight = self.next_to_join;
            for slot in self.weights.group(weight) {
                let is_overloaded = servers
                    .id(slot)
                    .and_then(|id| servers.listed(id))
                    .is_none_or(Server::is_overloaded);
                if !is_overloaded {
                    self.round.insert(self.seats[slot as usize] as usize);
                }
            }
            self.next_to_join = self.weights.greatest_below(weight);
        }
        self.joined = Some(level);
    }

    /// Adds or removes one server whose weight or overload mark may have changed.
    fn update_round(&mut self, id: ServerId, server: Option<&Server>) {
        let Some(&seat) = self.seats.get(id.index()) else {
            return;
        };
        let takes_part = server.is_some_and(|server| {
            let has_joined = self.joined.is_some_and(|joined| server.weight >= joined);
            has_joined && server.weight > 0 && !server.overloaded
        });
        if takes_part {
            self.round.insert(seat as usize);
        } else {
            self.round.remove(seat as usize);
        }
    }

    fn changed(&mut self) {
        self.position = None;
        self.rounds = Rounds::new(self.weights.divisor(), self.weights.greatest());
        self.level = self.rounds.level_after_change(self.level);
        self.next_to_join = match self.joined {
            None => self.weights.greatest(),
            Some(joined) => self.weights.greatest_below(joined),
        };
    }

    fn picked(&mut self, servers: &Servers, seat: usize) -> Option<ServerId> {
        self.position = Some(seat);
        servers.id(self.slots[seat])
    }

    /// Lowers the level to one step above the next level with a new server, or above the lowest level.
    fn skip_levels(&mut self) {
        let Rounds { step, .. } = self.rounds;
        let next = self.next_to_join.max(step);
        if self.level > next {
            self.level -= (self.level - next - 1) / step * step;
        }
    }

    /// Continues with the next rounds until a server is found or all were rejected at the lowest level.
    fn pick_in_next_round(&mut self, servers: &Servers, mut from: usize) -> Option<ServerId> {
        let Rounds { top, step } = self.rounds;
        if top == 0 {
            return None;
        }
        let last = self.position;
        let mut stop = None;
        let mut is_last_round = false;
        let mut has_restarted = false;
        loop {
            self.join_down_to(servers, self.level);
            let next = self.round.next(from);
            // The scan ends at the last pick in the second round at the lowest level, see `Wrr::pick`.
            let stop_ahead = stop.filter(|&stop| from <= stop);
            match (next, stop_ahead) {
                (Some(next), Some(stop)) if next <= stop => return self.picked(servers, next),
                (Some(next), None) => return self.picked(servers, next),
                (_, Some(stop)) => {
                    self.position = Some(stop);
                    return None;
                }
                (None, None) => {}
            }
            from = 0;
            // With weights such as 2147483647 and 1 there are billions of empty levels.
            if self.round.is_empty() {
                self.skip_levels();
            }
            self.level -= step;
            if self.level <= 0 {
                self.level = top;
                if is_last_round || last.is_none() {
                    self.position = None;
                    return None;
                }
                has_restarted = true;
            }
            is_last_round = self.level <= step;
            if is_last_round && has_restarted {
                stop = last;
            }
        }
    }
}

impl Scheduler for IndexedWrr {
    /// Picks as [`Wrr`](super::super::Wrr) does, by a search in the round instead of a scan.
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let from = self.position.map_or(0, |last| last + 1);
        // The fast path, taken by nearly all picks: the round has a server after the last pick.
        if self.joined == Some(self.level)
            && let Some(next) = self.round.next(from)
        {
            return self.picked(servers, next);
        }
        self.pick_in_next_round(servers, from)
    }

    fn bound(&mut self, servers: &Servers, _: Duration) -> Result<(), Error> {
        self.weights.clear();
        for (id, server) in servers {
            self.weights.set(id.slot, server.weight);
        }
        self.seat_all(servers);
        self.changed();
        self.level = self.rounds.top;
        Ok(())
    }

    fn added(&mut self, servers: &Servers, id: ServerId) {
        self.seat_first(servers, id);
        self.updated(servers, id);
    }

    fn removed(&mut self, _: &Servers, id: ServerId, _: Option<ServerId>) {
        self.weights.set(id.slot, 0);
        self.update_round(id, None);
        self.changed();
    }

    fn updated(&mut self, servers: &Servers, id: ServerId) {
        let server = servers.listed(id);
        self.weights
            .set(id.slot, server.map_or(0, |server| server.weight));
        self.update_round(id, server);
        self.changed();
    }

    fn counted(&mut self, servers: &Servers, id: ServerId) {
        if let Some(server) = servers.listed(id) {
            self.update_round(id, Some(server));
        }
    }
}
