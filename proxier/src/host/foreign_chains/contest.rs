//! Programs that put their rules behind ours, where ours is the last of its chain.
//!
//! Felix appends its rules if `chainInsertMode` is `Append`, and restores that order. Two programs that both want to be the
//! last would move their rules for ever. So ours moves less and less often, and then stays out of the chain for a while: in
//! front of a network policy, it would permit what that denies. A program that only adds a rule now and then is no such program;
//! one that does so each time within [`SOON`] of our move cannot be told from one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::chain::ForeignChain;

/// The most moves in one contest.
const MOST_MOVES: u32 = 6;

/// The time from the first move to the second. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The time after a move in which a contest goes on if rules come behind ours again. It is longer than the longest pause,
/// and than the 90 s after which Felix restores its order by default.
const SOON: Duration = Duration::from_secs(120);

/// The time that our rule stays out of the chain.
const REST: Duration = Duration::from_secs(600);

/// What our rule may do in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Go to its end.
    Move,
    /// Stay where it is until a later check.
    Wait,
    /// Leave it.
    Rest,
}

/// The contests of all chains.
#[derive(Debug, Default)]
pub(super) struct Contests(BTreeMap<ForeignChain, Contest>);

#[derive(Debug)]
struct Contest {
    moves: u32,
    /// In time since boot.
    moved: Duration,
}

impl Contests {
    /// Returns what our rule may do at `now`, in time since boot, if rules of others are behind it (`is_displaced`), or if it is
    /// missing.
    pub(super) fn turn(&mut self, chain: &ForeignChain, is_displaced: bool, now: Duration) -> Turn {
        self.0.retain(|_, it| it.goes_on(now));
        let Some(contest) = self.0.get_mut(chain) else {
            if is_displaced {
                let (moves, moved) = (1, now);
                self.0.insert(chain.clone(), Contest { moves, moved });
            }
            return Turn::Move;
        };
        if contest.moves > MOST_MOVES {
            return Turn::Rest;
        }
        if !is_displaced {
            return Turn::Move;
        }
        if now.saturating_sub(contest.moved) < FIRST_PAUSE * 2_u32.pow(contest.moves - 1) {
            return Turn::Wait;
        }
        contest.moves += 1;
        contest.moved = now;
        match contest.moves {
            ..=MOST_MOVES => Turn::Move,
            _ => Turn::Rest,
        }
    }
}

impl Contest {
    fn goes_on(&self, now: Duration) -> bool {
        let end = match self.moves {
            ..=MOST_MOVES => SOON,
            _ => REST,
        };
        now.saturating_sub(self.moved) < end
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::ForeignHook;
    use super::*;

    #[test]
    fn our_rule_moves_less_and_less_often_and_then_rests() {
        let chain = ForeignChain::new(ForeignHook::Forward, "ip", "filter", "FORWARD");
        let other = ForeignChain::new(ForeignHook::Forward, "ip6", "filter", "FORWARD");
        let mut contests = Contests::default();
        // Another program puts its rules behind ours at once, each time, for an hour.
        let mut moves = Vec::new();
        let mut rested = 0;
        for secs in 0..3_600 {
            match contests.turn(&chain, true, Duration::from_secs(secs)) {
                Turn::Move => moves.push(secs),
                Turn::Wait => {}
                Turn::Rest => rested += 1,
            }
        }
        assert_eq!(moves[..7], [0, 1, 3, 7, 15, 31, 663]);
        assert_eq!(moves.len(), 36);
        assert!(rested > 3_000, "{rested}");
        // Neither another chain nor a rule that is only missing is part of it.
        let end = Duration::from_secs(3_600);
        assert_eq!(contests.turn(&other, true, end), Turn::Move);
        let mut calm = Contests::default();
        for secs in 0..100 {
            let now = Duration::from_secs(secs);
            assert_eq!(calm.turn(&chain, false, now), Turn::Move);
        }
    }

    #[test]
    fn only_rules_that_come_soon_after_each_move_are_a_contest() {
        let chain = ForeignChain::new(ForeignHook::Forward, "ip", "filter", "FORWARD");
        // A program appends a rule each so many seconds for an hour.
        let rests = |period: usize| {
            let mut contests = Contests::default();
            let times = (0..3_600).step_by(period);
            let turns = times.map(|secs| contests.turn(&chain, true, Duration::from_secs(secs)));
            turns.filter(|turn| *turn == Turn::Rest).count()
        };
        // The refresh of Felix.
        assert!(rests(90) > 10);
        assert_eq!(rests(130), 0);
        // Neither do several bursts add up.
        let mut contests = Contests::default();
        for burst in 0..10 {
            for secs in 0..10 {
                let now = Duration::from_secs(burst * 200 + secs);
                assert_ne!(contests.turn(&chain, true, now), Turn::Rest);
            }
        }
    }
}
