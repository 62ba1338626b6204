//! wrr without walking over servers whose turn it is not.

use std::time::Duration;

use crate::error::Error;
use crate::kernel::indexed::bitmap::Bitmap;
use crate::kernel::indexed::weights::Weights;
use crate::kernel::wrr::Rounds;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::{Server, ServerId};
use crate::servers::Servers;

/// Weighted round robin that knows who takes part in the round.
///
/// Every listed server has a seat; seats are in list order. `round` has the seats of the servers that
/// the current level asks. Levels go down within a cycle, so servers only join, until the next cycle.
///
/// # Cost
/// Every server joins once per cycle, in which it is picked at least once unless it is overloaded: a
/// pick takes amortised constant time as long as no large part of the servers is overloaded. Levels at
/// which nobody takes part are skipped at once. A change of a server takes O(log n), and finding the
/// greatest common divisor again when the last server of a weight has gone. A change of connection
/// counts takes constant time. About 25 bytes per server.
#[derive(Clone, Debug)]
pub(in crate::kernel) struct IndexedWrr {
    rounds: Rounds,
    level: i32,
    /// The seat of the server picked last; `None` before the first of the list.
    position: Option<usize>,

    weights: Weights,
    /// Seat of each listed server, by [`ServerId::index`].
    seats: Vec<u32>,
    /// Who sits there; not up to date for empty seats.
    sitters: Vec<u32>,
    /// The seat of the first of the list; those before it are empty.
    first: usize,

    /// Servers that are not overloaded and whose weight is at least `joined`.
    round: Bitmap,
    /// `None`: nobody has joined.
    joined: Option<i32>,
    /// The greatest weight that has not joined; 0: none.
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
            sitters: Vec::new(),
            first: 0,
            round: Bitmap::new(0),
            joined: None,
            next_to_join: 0,
        }
    }
}

impl IndexedWrr {
    /// Seats every server, and as many empty seats before them.
    fn seat_all(&mut self, servers: &Servers) {
        const FEWEST: usize = 64;
        let count = (2 * servers.len()).max(FEWEST);
        self.seats.clear();
        self.seats.resize(servers.slots(), 0);
        self.sitters.clear();
        self.sitters.resize(count, 0);
        self.first = count - servers.len();
        for ((id, _), seat) in servers.iter().zip(self.first..) {
            self.sit(id, seat);
        }
        self.round = Bitmap::new(count);
        self.start_over();
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "slots have 32 bits, and there are at most twice as many seats as servers"
    )]
    fn sit(&mut self, id: ServerId, seat: usize) {
        self.seats[id.index()] = seat as u32;
        self.sitters[seat] = id.slot;
    }

    /// A server is the new first of the list.
    fn seat_first(&mut self, servers: &Servers, id: ServerId) {
        let Some(seat) = self.first.checked_sub(1) else {
            self.seat_all(servers);
            return;
        };
        self.first = seat;
        if self.seats.len() < servers.slots() {
            self.seats.resize(servers.slots(), 0);
        }
        self.sit(id, seat);
    }

    /// Nobody takes part.
    fn start_over(&mut self) {
        self.round.clear();
        self.joined = None;
        self.next_to_join = self.weights.greatest();
    }

    /// Lets those and only those take part whom `level` asks.
    fn ask(&mut self, servers: &Servers, level: i32) {
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

    /// Whether it takes part may have changed, though nobody joins or leaves.
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

    fn found(&mut self, servers: &Servers, seat: usize) -> Option<ServerId> {
        self.position = Some(seat);
        servers.id(self.sitters[seat])
    }

    /// Goes down to the level before the next one at which somebody could join, or before the last.
    fn skip_levels(&mut self) {
        let Rounds { step, .. } = self.rounds;
        let next = self.next_to_join.max(step);
        if self.level > next {
            self.level -= (self.level - next - 1) / step * step;
        }
    }

    /// Goes on with the next rounds until somebody takes part, or everybody has been asked.
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
            self.ask(servers, self.level);
            let next = self.round.next(from);
            let stop_ahead = stop.filter(|&stop| from <= stop);
            match (next, stop_ahead) {
                (Some(next), Some(stop)) if next <= stop => return self.found(servers, next),
                (Some(next), None) => return self.found(servers, next),
                (_, Some(stop)) => {
                    self.position = Some(stop);
                    return None;
                }
                (None, None) => {}
            }
            from = 0;
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
    /// As [`Wrr`](super::super::Wrr), with a look at the round instead of a walk over the list.
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let from = self.position.map_or(0, |last| last + 1);
        // Nearly always, the round goes on.
        if self.joined == Some(self.level)
            && let Some(next) = self.round.next(from)
        {
            return self.found(servers, next);
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
