//! Weighted round robin.

use std::time::Duration;

use crate::error::Error;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `wrr`: the servers in turn, heavier ones in more rounds.
///
/// *Formula*: let g be the greatest common divisor of the weights above 0, and m the greatest weight. A
/// cycle has one round for each level: m − (g − 1), then g less, and so on down to 1. A round visits in
/// list order the servers that are not overloaded and whose weight is at least the level.
///
/// Every change of a server restarts the round, even if the change has no effect. The level then depends
/// on the previous one: servers added one by one start at the level of the first one's weight.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_wrr.c`, `ip_vs_wrr_schedule`, `ip_vs_wrr_init_svc`,
/// `ip_vs_wrr_dest_changed`; Linux 6.1.192, the same in 7.2.
///
/// *Complexity*: one step per pick and one per server that is skipped; most are skipped at the upper
/// levels if few servers are heavy. If only light servers are eligible, each level above their weights
/// costs a scan of the list: billions of steps for weights such as 2147483647 and 1. A change reads every
/// weight. [`Implementation::Indexed`](crate::Implementation::Indexed) avoids both.
///
/// *When to use*: unequal servers, connections that cost about the same.
#[derive(Clone, Debug)]
pub struct Wrr {
    /// The last pick; `None` before the first server of the list.
    position: Option<ServerId>,
    /// The least weight that takes part in this round (the kernel's `cw`).
    level: i32,
    rounds: Rounds,
}

/// The levels of a cycle, which depend on the weights of all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rounds {
    /// The level of the first round (`mw`); 0 if no server has a weight.
    pub(super) top: i32,
    /// The difference between levels (`di`).
    pub(super) step: i32,
}

impl Rounds {
    /// Computes the levels; `step` is the greatest common divisor of the weights, 0 if there are none.
    pub(super) fn new(step: i32, greatest: i32) -> Self {
        let step = step.max(1);
        Self {
            top: greatest.max(0) - (step - 1),
            step,
        }
    }

    /// Returns the level after a change of servers, given the level before.
    ///
    /// The kernel keeps the level instead of restarting the cycle (`ip_vs_wrr_dest_changed`), so picks
    /// depend on the order of changes.
    pub(super) fn level_after_change(self, level: i32) -> i32 {
        if level > self.top || level == 0 {
            self.top
        } else if self.step > 1 {
            // Levels are 1 more than a multiple of the step.
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

/// Returns the greatest common divisor of two numbers, neither of them negative.
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

impl Scheduler for Wrr {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let Rounds { top, step } = self.rounds;
        if top == 0 {
            return None;
        }
        let last = self.position;
        let mut from = last;
        // The search ends when every server was rejected at the lowest level. If the search started in
        // the middle of the list, that takes a second round at this level, up to the last pick
        // (`stop` in `ip_vs_wrr_schedule`).
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

    fn changed(&mut self, servers: &Servers) {
        self.position = None;
        self.rounds = Rounds::of(servers);
        self.level = self.rounds.level_after_change(self.level);
    }
}
