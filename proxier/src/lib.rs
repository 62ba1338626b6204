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

mod api;
mod cli;
mod clock;
mod conditions;
mod conntrack;
mod daemon;
mod dataplane;
mod definition;
mod destinations;
mod diff;
mod explain;
mod filter;
mod frontend;
mod host;
mod ledger;
mod marks;
mod model;
mod namespace_lock;
mod observe;
mod observed;
mod one_line;
mod op;
mod packed;
mod panics;
mod plan;
mod problem;
mod retry;
mod sources;
mod split_map;
mod store;
mod sync;
pub mod testing;
mod timer;
mod yaml;

pub use cli::Cli;
pub use one_line::OneLine;
pub use panics::exit_on_panic;
