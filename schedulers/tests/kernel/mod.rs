//! A running kernel: its virtual servers are made, driven by sockets, and written down.

use std::time::Instant;

pub(crate) mod dice;
pub(crate) mod director;
pub(crate) mod doors;
pub(crate) mod flavour;
pub(crate) mod ledger;
pub(crate) mod lives;
pub(crate) mod plan;
pub(crate) mod play;
pub(crate) mod setup;

/// The time. The crate has no clock, and its lints see to it; kernels have one.
#[expect(clippy::disallowed_methods, reason = "see above")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
