//! Weighted round robin.

use std::time::Duration;

use crate::error::Error;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `wrr`: the servers in turn, heavier ones in more rounds.
///
/// *Formula*: with g the greatest common divisor of the weights above 0 and m the greatest weight, one
/// round each for the levels m − (g − 1), then g less, and so on down to 1; a round visits in list
/// order the servers that are not overloaded and whose weight is at least the level.
///
/// Every change of a server, even one that changes nothing, starts the round over, at a level that
/// depends on the one before: servers added one by one begin at the level of the first one's weight.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_wrr.c`, `ip_vs_wrr_schedule`, `ip_vs_wrr_init_svc`,
/// `ip_vs_wrr_dest_changed`; Linux 6.1.192, the same in 7.2.
///
/// *Complexity*: one step per pick and one per server that is passed over: most of them at the upper
/// levels when few servers are heavy. While only light servers are left, every level above them costs
/// a walk over the list: billions of steps for weights such as 2147483647 and 1. A change reads
/// every weight. [`Implementation::Indexed`](crate::Implementation::Indexed) has neither.
///
/// *When to use*: unequal servers, connections that cost about the same.
#[derive(Clone, Debug)]
pub struct Wrr {
    /// The server picked last; `None` before the first of the list.
    position: Option<ServerId>,
    /// The weight that it takes in this round.
    level: i32,
    rounds: Rounds,
}

/// What the weights of all servers say about the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rounds {
    /// The level of the first round; 0: no server has a weight.
    pub(super) top: i32,
    /// By how much levels differ.
    pub(super) step: i32,
}

impl Rounds {
    /// `step` is the greatest common divisor of the weights, 0 if there are none.
    pub(super) fn new(step: i32, greatest: i32) -> Self {
        let step = step.max(1);
        Self {
            top: greatest.max(0) - (step - 1),
            step,
        }
    }

    /// The level after a change of servers, which was `level` before.
    pub(super) fn level_after_change(self, level: i32) -> i32 {
        if level > self.top || level == 0 {
            self.top
        } else if self.step > 1 {
            level / self.step * self.step + 1
        } else {
            level
        }
    }

    fn of(servers: &Servers) -> Self {
        let weights = servers.iter().map(|(_, server)| server.weight);
        let (step, greatest) = weights.fold((0, 0), |(step, greatest), weight| {
            (gcd(step, weight), greatest.max(weight))
        });
        Self::new(step, greatest)
    }
}

/// The greatest common divisor of numbers not below 0; 0 divides nothing.
pub(super) fn gcd(mut a: i32, mut b: i32) -> i32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Default for Wrr {
    fn default() -> Self {
        Self {
            position: None,
            level: 0,
            rounds: Rounds::new(0, 0),
        }
    }
}

impl Wrr {
    fn changed(&mut self, servers: &Servers) {
        self.position = None;
        self.rounds = Rounds::of(servers);
        self.level = self.rounds.level_after_change(self.level);
    }
}

impl Scheduler for Wrr {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let Rounds { top, step } = self.rounds;
        if top == 0 {
            return None;
        }
        let last = self.position;
        let mut from = last;
        // Giving up: all servers have been asked at the lowest level. If that round began in the
        // middle of the list, the next one at this level ends where it began.
        let mut stop = None;
        let mut is_last_round = false;
        let mut has_restarted = false;
        loop {
            for (id, server) in servers.after(from) {
                if !server.overloaded && server.weight >= self.level {
                    self.position = Some(id);
                    return Some(id);
                }
                if Some(id) == stop {
                    self.position = Some(id);
                    return None;
                }
            }
            from = None;
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
            if is_last_round && has_restarted && last.is_some() {
                stop = last;
            }
        }
    }

    fn bound(&mut self, servers: &Servers, _: Duration) -> Result<(), Error> {
        self.position = None;
        self.rounds = Rounds::of(servers);
        self.level = self.rounds.top;
        Ok(())
    }

    fn added(&mut self, servers: &Servers, _: ServerId) {
        self.changed(servers);
    }

    fn removed(&mut self, servers: &Servers, _: ServerId, _: Option<ServerId>) {
        self.changed(servers);
    }

    fn updated(&mut self, servers: &Servers, _: ServerId) {
        self.changed(servers);
    }
}
