//! Waits that count looks instead of time.
//!
//! A host that is busy, or stands still, delays the looks as it delays what they wait for. So the number of looks that a
//! wait needs depends less on the host than its time does: beside another test program and two busy loops the start of
//! kube-apiserver took 251 s instead of 20, but 423 looks instead of 88.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// No wait gives up before this time.
const LEAST_TIME: Duration = Duration::from_secs(200);

/// No wait needs more looks than this to give up, whatever its pause: each look may take seconds.
const ENOUGH_LOOKS: u128 = 1000;

/// Looks again and again until `look` returns a value, with a pause of `pause` after each look.
///
/// Returns `None` after 200 s without a value, and at least as many looks as there are pauses in that time, up to 1,000:
/// what the wait waits for hangs.
pub fn await_some<T>(pause: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    let mut looks = 0;
    loop {
        let found = look();
        looks += 1;
        if found.is_some() || is_over(pause, looks, begin.elapsed()) {
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
fn is_over(pause: Duration, looks: u32, elapsed: Duration) -> bool {
    let pauses = LEAST_TIME.as_nanos() / pause.as_nanos().max(1);
    elapsed >= LEAST_TIME && u128::from(looks) >= pauses.min(ENOUGH_LOOKS)
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
        let (long, short) = (Duration::from_secs(2), Duration::from_millis(5));
        assert!(is_over(long, 100, LEAST_TIME));
        assert!(!is_over(long, 99, 10 * LEAST_TIME));
        assert!(is_over(short, 1_000, LEAST_TIME));
        assert!(!is_over(short, 999, 10 * LEAST_TIME));
        assert!(!is_over(short, 30_000, LEAST_TIME - short));
        assert!(is_over(Duration::ZERO, 1_000, LEAST_TIME));
    }
}
