//! The periods of rounds.

use std::time::Duration;

/// The periods of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// The time from one resync to the next (`ipvs.syncPeriod`).
    pub sync: Duration,
    /// The shortest time from a round to the next round for a change (`ipvs.minSyncPeriod`). 0 programs
    /// each change at once.
    pub min_sync: Duration,
}

/// The defaults of kube-proxy.
impl Default for Periods {
    fn default() -> Self {
        Self {
            sync: Duration::from_secs(30),
            min_sync: Duration::from_secs(1),
        }
    }
}
