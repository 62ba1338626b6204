//! The clock of deadlines that outlive the process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since boot.
///
/// It never decreases, is the same in all processes, and counts the time of a suspended machine. A deadline in the ledger
/// therefore stays valid across restarts, and changes of the wall clock do not move it.
pub fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is negative.
    let secs = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(secs, nanos)
}
