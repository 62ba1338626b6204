//! The daemon and the command line of ipvs-proxier.
//!
//! ```text
//!  manifests ──▶ api ──Event──▶ store ──▶ plan ──▶ diff ──▶ dataplane
//!    files to     objects to    Snapshot  Desired    Ops    Outcome per Op
//!    objects      the model               (pure)   (pure)   (syscalls)
//! ```
//!
//! Objects of the API server follow the same path; [`sources::watch`] then replaces `manifests`. [`sync`] runs
//! one round, from the plan to the dataplane. Bad input becomes a [`problem::Problem`], which affects
//! only its own object and never stops a round.
//! `ARCHITECTURE.md` has the map and the invariants.

#![expect(
    rustdoc::private_intra_doc_links,
    reason = "readers of this documentation read the source, too"
)]
#![expect(
    unnameable_types,
    reason = "`testing` names only the items that tests use"
)]

mod cli;
mod cluster;
mod daemon;
mod dataplane;
mod explain;
mod host;
mod observe;
mod plan;
mod reconcile;
mod sources;
pub mod testing;
mod util;

pub use cli::Cli;
pub use util::one_line::OneLine;
pub use util::panics::exit_on_panic;
