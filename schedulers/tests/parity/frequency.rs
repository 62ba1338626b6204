//! Picks of `twos`, which draws random numbers: compares frequencies.
//!
//! The state of the servers at a pick determines how likely each of them is picked. Two sums over all picks
//! of a trace are compared with these probabilities: the log-likelihood of the picked servers, and how
//! often the first, second, .. server of the list was picked. Both are sums of many small independent
//! terms, so chance explains a deviation of a few standard deviations only.

use anyhow::{Context as _, Result, ensure};
use schedulers::{Server, ServerId, Servers};

use crate::parity::replay::{Mode, Replay};
use crate::trace::{Event, Scenario, Trace};

/// Chance exceeds this number of standard deviations once in 1.7 million sums; a trace has about 30.
const TOO_FAR: f64 = 5.0;

/// A sum with less variance is not close to a normal distribution, and is not checked.
const ENOUGH: f64 = 20.0;

/// A sum of observed values, of expected values, and of their variance.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    observed: f64,
    expected: f64,
    variance: f64,
}

impl Sum {
    fn add(&mut self, observed: f64, expected: f64, variance: f64) {
        self.observed += observed;
        self.expected += expected;
        self.variance += variance;
    }

    /// Returns the difference of observed and expected in standard deviations.
    fn deviation(self) -> f64 {
        (self.observed - self.expected) / self.variance.sqrt()
    }
}

/// The picks of the kernel, or of the crate.
#[derive(Debug, Default)]
struct Tally {
    surprise: Sum,
    positions: Vec<Sum>,
}

impl Tally {
    /// Counts a pick of `answer`, given the chances of all servers, which add up to 1.
    fn note(&mut self, chances: &[(ServerId, f64)], answer: ServerId) -> Result<()> {
        let position = chances.iter().position(|(id, _)| *id == answer);
        let position = position.context("the picked server was not eligible")?;
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
        ensure!(chance > 0.0, "the picked server had no chance");
        self.surprise.add(-chance.ln(), mean, square - mean * mean);
        Ok(())
    }

    /// Checks how far the picks deviate from the chances.
    ///
    /// # Errors
    /// The picks deviate by more than [`TOO_FAR`].
    fn judge(&self) -> Result<()> {
        let far = |sum: &Sum| sum.variance > ENOUGH && sum.deviation().abs() > TOO_FAR;
        ensure!(!far(&self.surprise), "log-likelihood: {:?}", self.surprise);
        for (position, sum) in self.positions.iter().enumerate() {
            ensure!(!far(sum), "server number {position} of the list: {sum:?}");
        }
        Ok(())
    }
}

/// Compares the kernel's and the crate's picks with the chances, and returns their number.
///
/// # Errors
/// The kernel or the crate deviates too far.
pub(crate) fn compare(trace: &Trace, mode: Mode) -> Result<usize> {
    let (mut kernels, mut ours) = (Tally::default(), Tally::default());
    let mut compared = 0;
    for (number, scenario) in trace.scenarios.iter().enumerate() {
        compared += play(trace, scenario, mode, &mut kernels, &mut ours)
            .with_context(|| format!("scenario {number}"))?;
    }
    kernels.judge().context("the kernel's picks")?;
    ours.judge().context("the crate's picks")?;
    Ok(compared)
}

fn play(
    trace: &Trace,
    scenario: &Scenario,
    mode: Mode,
    kernels: &mut Tally,
    ours: &mut Tally,
) -> Result<usize> {
    let mut replay = Replay::new(trace, scenario, mode)?;
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
                // Both must refuse exactly if no server is eligible.
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

/// Returns the chance of each eligible server, in list order (`ip_vs_twos_schedule`).
///
/// Two servers are drawn by weight, and the less loaded one is picked.
fn chances(servers: &Servers) -> Vec<(ServerId, f64)> {
    let some = || servers.iter().filter(|(_, server)| server.is_eligible());
    let weights: i32 = some().map(|(_, server)| weight(server)).sum();
    // The numbers are 0 to the sum of the weights, both included; the extra one is the first server's.
    let numbers = f64::from(weights) + 1.0;
    let mut drawn = Vec::new();
    for (index, (id, server)) in some().enumerate() {
        let extra = f64::from(u8::from(index == 0));
        drawn.push((id, server, (f64::from(weight(server)) + extra) / numbers));
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
