//! Picks by lot: of `twos` only how often it picks what can be compared.
//!
//! From the servers as they are at a pick follows how likely each of them is. Two things are held
//! against that over all picks of a trace: how surprising the answers are on the whole (their
//! log-likelihood), and how often the answer was the first, second, .. of the list. Both are sums of
//! many small independent terms, so they deviate from what is expected by a few standard deviations at
//! most.

use anyhow::{Context as _, Result, ensure};
use schedulers::{Server, ServerId, Servers};

use crate::parity::replay::{Replay, Way};
use crate::trace::{Event, Scenario, Trace};

/// Standard deviations that a sum comes to by chance once in 1.7 million times; a trace has some 30.
const TOO_FAR: f64 = 5.0;

/// Positions in the list with less expected variance than this are no normal distribution.
const ENOUGH: f64 = 20.0;

/// A sum of what happened, of what was expected, and of its variance.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    happened: f64,
    expected: f64,
    variance: f64,
}

impl Sum {
    fn add(&mut self, happened: f64, expected: f64, variance: f64) {
        self.happened += happened;
        self.expected += expected;
        self.variance += variance;
    }

    /// How many standard deviations there are between what happened and what was expected.
    fn deviation(self) -> f64 {
        (self.happened - self.expected) / self.variance.sqrt()
    }
}

/// Somebody's answers.
#[derive(Debug, Default)]
struct Tally {
    surprise: Sum,
    positions: Vec<Sum>,
}

impl Tally {
    /// Notes that `answer` was picked where the servers had these chances, which add up to 1.
    fn note(&mut self, chances: &[(ServerId, f64)], answer: ServerId) -> Result<()> {
        let position = chances.iter().position(|(id, _)| *id == answer);
        let position = position.context("the answer is no server that could be picked")?;
        if self.positions.len() < chances.len() {
            self.positions.resize(chances.len(), Sum::default());
        }
        let (mut mean, mut square) = (0.0, 0.0);
        for (index, &(_, chance)) in chances.iter().enumerate() {
            let is_answer = f64::from(u8::from(index == position));
            self.positions[index].add(is_answer, chance, chance * (1.0 - chance));
            if chance > 0.0 {
                let surprise = -chance.ln();
                mean += chance * surprise;
                square += chance * surprise * surprise;
            }
        }
        let chance = chances[position].1;
        ensure!(chance > 0.0, "the answer was impossible");
        self.surprise.add(-chance.ln(), mean, square - mean * mean);
        Ok(())
    }

    /// # Errors
    /// Too much of it is no chance.
    fn judge(&self) -> Result<()> {
        let far = |sum: &Sum| sum.variance > ENOUGH && sum.deviation().abs() > TOO_FAR;
        ensure!(!far(&self.surprise), "surprise: {:?}", self.surprise);
        for (position, sum) in self.positions.iter().enumerate() {
            ensure!(!far(sum), "server {position} of the list: {sum:?}");
        }
        Ok(())
    }
}

/// How many answers of the kernel and the crate were held against the chances.
///
/// # Errors
/// One of them draws otherwise.
pub(crate) fn compare(trace: &Trace, way: Way) -> Result<usize> {
    let (mut kernels, mut ours) = (Tally::default(), Tally::default());
    let mut compared = 0;
    for (number, scenario) in trace.scenarios.iter().enumerate() {
        compared += play(trace, scenario, way, &mut kernels, &mut ours)
            .with_context(|| format!("scenario {number}"))?;
    }
    kernels.judge().context("the kernel's answers")?;
    ours.judge().context("the crate's answers")?;
    Ok(compared)
}

fn play(
    trace: &Trace,
    scenario: &Scenario,
    way: Way,
    kernels: &mut Tally,
    ours: &mut Tally,
) -> Result<usize> {
    let mut replay = Replay::new(trace, scenario, way)?;
    let mut compared = 0;
    for (index, event) in scenario.events.iter().enumerate() {
        let Event::Pick(pick, answer) = event else {
            replay.apply(event)?;
            continue;
        };
        let chances = chances(replay.balancer.servers());
        let kernels_answer = answer.map(|name| replay.id(name)).transpose()?;
        let answers = [
            (&mut *kernels, kernels_answer),
            (&mut *ours, replay.pick(pick)),
        ];
        for (tally, answer) in answers {
            match answer {
                // Refused exactly where no server may be picked.
                None => ensure!(chances.is_empty(), "event {index}: refused"),
                Some(answer) => tally
                    .note(&chances, answer)
                    .with_context(|| format!("event {index}"))?,
            }
        }
        compared += 1;
    }
    Ok(compared)
}

/// How likely each server that may be picked at all is to be picked, in the order of the list
/// (`ip_vs_twos_schedule`): two are drawn by weight, and the less loaded one wins.
fn chances(servers: &Servers) -> Vec<(ServerId, f64)> {
    let some = || servers.iter().filter(|(_, server)| server.is_eligible());
    let weights: i32 = some().map(|(_, server)| weight(server)).sum();
    // Both ends are drawn, and the first server gets the extra one.
    let lots = f64::from(weights) + 1.0;
    let mut drawn = Vec::new();
    for (index, (id, server)) in some().enumerate() {
        let extra = f64::from(u8::from(index == 0));
        drawn.push((id, server, (f64::from(weight(server)) + extra) / lots));
    }
    let mut chances: Vec<(ServerId, f64)> = drawn.iter().map(|&(id, ..)| (id, 0.0)).collect();
    for (first, &(_, one, chance_of_one)) in drawn.iter().enumerate() {
        for (second, &(_, other, chance_of_other)) in drawn.iter().enumerate() {
            let overhead = |server: &Server| server.overhead(servers.flavour());
            let other_wins = weight(other).wrapping_mul(overhead(one))
                > weight(one).wrapping_mul(overhead(other));
            let winner = if other_wins { second } else { first };
            chances[winner].1 += chance_of_one * chance_of_other;
        }
    }
    chances
}

fn weight(server: &Server) -> i32 {
    server.weight().cast_signed()
}
