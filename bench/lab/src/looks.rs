//! Waits that count looks instead of time.
//!
//! A host that is busy, or stands still, delays the looks as it delays what they wait for. So the number of looks that a
//! wait needs depends less on the host than its time does: beside another test program and two busy loops kube-proxy
//! programmed a node in 508 s and 14 looks, and kube-apiserver started in 251 s and 423 looks instead of 20 s and 88.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// No wait gives up before this time, which is long for most of what a test waits for.
const LEAST_TIME: Duration = Duration::from_secs(100);

/// No wait gives up before it has looked so often.
const FEWEST_LOOKS: u32 = 1_000;

/// Looks again and again until `look` returns a value, with a pause of `pause` after each look.
///
/// Returns `None` after at least 100 s and 1,000 looks without a value: what the wait waits for hangs. So a wait for a
/// program that needs a minute on an idle host pauses for half a second.
pub fn await_some<T>(pause: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    let mut looks = 0;
    loop {
        let found = look();
        looks += 1;
        if found.is_some() || is_over(looks, begin.elapsed()) {
            return found;
        }
        sleep(pause);
    }
}

/// Like [`await_some`], looks again and again until `is_true` returns true. Returns `false` if that never happens.
#[must_use]
pub fn await_true(pause: Duration, mut is_true: impl FnMut() -> bool) -> bool {
    await_some(pause, || is_true().then_some(())).is_some()
}

/// Returns whether a wait gives up after so many looks and this time.
fn is_over(looks: u32, elapsed: Duration) -> bool {
    looks >= FEWEST_LOOKS && elapsed >= LEAST_TIME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_the_first_value() {
        let mut looks = 0..;
        let third = await_some(Duration::ZERO, || looks.next().filter(|&look| look == 2));
        assert_eq!(third, Some(2));
    }

    #[test]
    fn a_wait_gives_up_after_its_time_and_its_looks() {
        assert!(is_over(FEWEST_LOOKS, LEAST_TIME));
        assert!(!is_over(FEWEST_LOOKS - 1, 10 * LEAST_TIME));
        assert!(!is_over(10 * FEWEST_LOOKS, LEAST_TIME / 2));
    }
}
