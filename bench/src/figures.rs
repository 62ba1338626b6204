//! Repeats, summarises and prints measurements.

use std::time::Duration;

use clap::{Args, value_parser};
use serde::Serialize;

/// Flags of a measurement that is repeated, by default `ROUNDS` times.
#[derive(Args, Debug)]
pub(crate) struct Repetition<const ROUNDS: u32> {
    /// Number of rounds; the report shows the medians.
    #[arg(long, default_value_t = ROUNDS, value_parser = value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,

    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl<const ROUNDS: u32> Repetition<ROUNDS> {
    /// Returns the median of each time that `round` measures, in seconds.
    ///
    /// A round measures all of them, so that a slow phase of the machine concerns all. `names` are their
    /// names in the progress on standard error.
    pub(crate) fn medians<const N: usize>(
        &self,
        names: [&str; N],
        mut round: impl FnMut() -> anyhow::Result<[Duration; N]>,
    ) -> anyhow::Result<[f64; N]> {
        let mut samples = names.map(|_| Vec::new());
        for number in 1..=self.rounds {
            eprint!("round {number} of {}:", self.rounds);
            for ((samples, name), time) in samples.iter_mut().zip(names).zip(round()?) {
                eprint!(" {name} {time:.3?}");
                samples.push(time);
            }
            eprintln!();
        }
        Ok(samples.map(median))
    }

    /// Prints `figures` as JSON, or as the text that `table` returns.
    pub(crate) fn print<F: Serialize>(
        &self,
        figures: &F,
        table: impl FnOnce(&F) -> String,
    ) -> anyhow::Result<()> {
        print(figures, self.json, table)
    }
}

/// Returns the median of `times` in seconds. `times` must not be empty.
pub(crate) fn median(times: impl IntoIterator<Item = Duration>) -> f64 {
    let mut times: Vec<Duration> = times.into_iter().collect();
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

/// Prints `figures` as JSON, or as the text that `table` returns.
pub(crate) fn print<F: Serialize>(
    figures: &F,
    json: bool,
    table: impl FnOnce(&F) -> String,
) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(figures)?);
    } else {
        print!("{}", table(figures));
    }
    Ok(())
}
