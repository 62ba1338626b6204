//! The clock of deadlines that outlive the process.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The first reading of the clock: as an [`Instant`], and as the time since boot.
static FIRST_LOOK: LazyLock<(Instant, Duration)> = LazyLock::new(|| {
    let uptime = rustix::system::sysinfo().uptime;
    // The uptime is never negative.
    let since_boot = u64::try_from(uptime).unwrap_or_default();
    (Instant::now(), Duration::from_secs(since_boot))
});

/// Returns the time since boot.
///
/// It never decreases. Two processes read times at most a second apart, because `sysinfo` counts
/// seconds. A deadline in the ledger therefore stays valid across restarts, and changes of the wall
/// clock do not move it.
pub fn since_boot() -> Duration {
    let (looked_at, since_boot) = *FIRST_LOOK;
    since_boot + looked_at.elapsed()
}
