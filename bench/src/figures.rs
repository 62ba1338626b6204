//! What measurements come to, and how it is printed.

use std::time::Duration;

use serde::Serialize;

/// The middle one of some times, of which there is at least one, in seconds.
pub(crate) fn median(times: impl IntoIterator<Item = Duration>) -> f64 {
    let mut times: Vec<Duration> = times.into_iter().collect();
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

/// Prints `figures` for programs, or the `table` of them for people.
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
