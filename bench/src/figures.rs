//! Repeats and summarises measurements, and formats their figures.

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
    json: bool,
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
                samples.push(time.as_secs_f64());
            }
            eprintln!();
        }
        Ok(samples.map(|samples| median(samples).unwrap_or_default()))
    }

    /// Prints `figures` as JSON, or as the text that `table` returns.
    pub(crate) fn print<F: Serialize>(
        &self,
        figures: &F,
        table: impl FnOnce(&F) -> String,
    ) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(figures)?);
        } else {
            print!("{}", table(figures));
        }
        Ok(())
    }
}

/// Returns the middle value, or the lower of two.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

/// Formats a figure with about three digits.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        100.0.. => thousands(value),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

/// Formats a whole number with a comma after every three digits.
pub(crate) fn thousands(number: impl std::fmt::Display) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let is_boundary = index > 0 && (digits.len() - index).is_multiple_of(3);
        if is_boundary && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_few_digits_and_commas() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(12_345_678), "12,345,678");
        assert_eq!(thousands(-123.4), "-123");
        assert_eq!(short(0.0), "0");
        assert_eq!(short(0.0873), "0.087");
        assert_eq!(short(1.0), "1.00");
        assert_eq!(short(12.34), "12.3");
        assert_eq!(short(1_234.56), "1,235");
    }

    #[test]
    fn the_median_is_a_measured_value() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(1.0));
        assert_eq!(median([]), None);
    }
}
