//! Deletes connection-tracking entries that lead to removed endpoints.
//!
//! IPVS creates an entry in the kernel's connection tracking for each flow. A UDP client that keeps
//! sending keeps its entry alive, and its packets then go to the removed endpoint, or to none. A TCP
//! client notices the failure and opens a new connection, so only UDP and SCTP flows are deleted.
//!
//! ```text
//!   Ops, Desired ──▶ Stale ──▶ ConntrackClient::sweep: one pass over the table, then deletions
//!   Ops, time ──▶ Strays ──┘   (IPVS only)
//! ```

mod client;
mod flow;
mod stale;
mod sys;

pub use client::{ConntrackClient, Swept};
pub use flow::Flow;
pub use stale::Stale;
