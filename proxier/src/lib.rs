//! The daemon and the command line of ipvs-proxier.
//!
//! ```text
//!  manifests ──▶ api ──Event──▶ store ──▶ plan ──▶ diff ──▶ dataplane
//!    files to     objects to    Snapshot  Desired  Vec<Op>  Outcome per Op
//!    objects      the model               (pure)   (pure)   (syscalls)
//! ```
//!
//! [`sync`] is one round of it. What is wrong with the input is a [`problem::Problem`] and stops
//! nothing. `ARCHITECTURE.md` has the map and the invariants.

pub mod api;
pub mod cli;
pub mod clock;
pub mod conntrack;
pub mod daemon;
pub mod dataplane;
pub mod diff;
pub mod filter;
pub mod follow;
pub mod frontend;
pub mod ledger;
pub mod manifests;
pub mod model;
pub mod nftables;
pub mod observed;
pub mod op;
mod packed;
pub mod plan;
pub mod problem;
pub mod report;
pub mod retry;
pub mod store;
pub mod sync;
pub mod sysctl;
pub mod timer;
pub mod watch;
