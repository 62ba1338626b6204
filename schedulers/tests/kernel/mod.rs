//! A running kernel: creates virtual servers, sends traffic through sockets, records the picks.

use std::time::Instant;

pub(crate) mod connection;
pub(crate) mod director;
pub(crate) mod flavour;
pub(crate) mod load;
pub(crate) mod plan;
pub(crate) mod play;
pub(crate) mod random;
pub(crate) mod setup;
pub(crate) mod sockets;

/// Returns the time. The crate must not read clocks; its tests may.
#[expect(
    clippy::disallowed_methods,
    reason = "the crate has no clock, its tests have one"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
