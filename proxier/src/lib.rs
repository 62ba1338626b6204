//! The daemon and the command line of ipvs-proxier.
//!
//! ```text
//!  sources ──Event──▶ cluster ──▶ plan ──▶ dataplane ──▶ the kernel, or a relay
//!  API server,        Snapshot    Desired   Changes
//!  files
//! ```
//!
//! [`reconcile`] makes the rounds, from the plan to the dataplane; the [`daemon`] decides when. Bad input becomes a
//! [`Problem`](cluster::problem::Problem), which affects only its own object and never stops a round.
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
