//! The clock of everything that outlives a process.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// When this process looked at the clock first: by the process's own clock, and since boot.
static FIRST_LOOK: LazyLock<(Instant, Duration)> = LazyLock::new(|| {
    let uptime = rustix::system::sysinfo().uptime;
    // The kernel counts it from 0 upwards.
    let since_boot = u64::try_from(uptime).unwrap_or_default();
    (Instant::now(), Duration::from_secs(since_boot))
});

/// The time since the kernel was started. It never goes back, and means the same, to the second, to
/// the process that is started next.
pub fn since_boot() -> Duration {
    let (looked_at, since_boot) = *FIRST_LOOK;
    since_boot + looked_at.elapsed()
}
