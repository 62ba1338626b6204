//! Summarises and prints measurements.

use std::time::Duration;

use serde::Serialize;

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
