//! The cost of a system call, and waits that are scaled by it.
//!
//! A system call in User-Mode Linux is a hand-over between two processes of the host, so its cost
//! shows how fast the lab is now: on the same host it was 23 microseconds in one hour and 130 to 225
//! in another. Tests scale their waits and time limits by [`patience`].

use std::{
    array, env,
    sync::OnceLock,
    time::{Duration, Instant},
};

use rustix::process::getppid;

/// The cost of a system call on an idle host, kernel 6.1; 7.2 needs about half of it.
pub const NORMAL_SYSCALL_COST: Duration = Duration::from_micros(23);

/// The cost above which a machine prints a warning when it boots.
pub(crate) const BAD_SYSCALL_COST: Duration = Duration::from_micros(3 * 23);

/// The variable with the cost that the machine of a test measured when it booted, in nanoseconds.
pub(crate) const VARIABLE: &str = "LAB_SYSCALL_COST";

/// Returns the cost of a system call here.
///
/// It is the higher of two measurements: at the boot of the machine, and at the first call in this
/// process.
pub fn syscall_cost() -> Duration {
    static COST: OnceLock<Duration> = OnceLock::new();
    *COST.get_or_init(|| {
        let at_boot = env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
        measure().max(at_boot.map_or(Duration::ZERO, Duration::from_nanos))
    })
}

/// Returns `duration` scaled up by the cost of a system call relative to
/// [`NORMAL_SYSCALL_COST`].
///
/// The result is at least `duration` and at most ten times as long: a test that needs more hangs.
pub fn patience(duration: Duration) -> Duration {
    scaled(duration, syscall_cost())
}

pub(crate) fn scaled(duration: Duration, cost: Duration) -> Duration {
    duration.mul_f64(cost.div_duration_f64(NORMAL_SYSCALL_COST).clamp(1.0, 10.0))
}

/// Measures the cost of a system call; takes about 25 ms on an idle host.
pub(crate) fn measure() -> Duration {
    // The median ignores a single disturbance. A batch takes longer than a time slice of the host
    // (3 ms), so it includes the time that a busy host gives to other processes.
    let mut batches: [Duration; 5] = array::from_fn(|_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            // One of the cheapest system calls. Unlike the process's own id, its result is never
            // cached.
            let _parent = getppid();
        }
        start.elapsed() / CALLS
    });
    batches.sort();
    batches[batches.len() / 2]
}

/// System calls in a batch.
const CALLS: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_the_cost_within_bounds() {
        let second = Duration::from_secs(1);
        let scaled = |micros| scaled(second, Duration::from_micros(micros));
        assert_eq!(scaled(0), second);
        assert_eq!(scaled(23), second);
        assert_eq!(scaled(46), 2 * second);
        assert_eq!(scaled(5_000), 10 * second);
    }
}
