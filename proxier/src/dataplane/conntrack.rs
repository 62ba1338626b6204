//! Deletes connection-tracking entries that lead to removed endpoints.
//!
//! The kernel's connection tracking has an entry for each flow. A UDP client that keeps
//! sending keeps its entry alive, and its packets then go to the removed endpoint, or to none. A TCP
//! client notices the failure and opens a new connection, so with IPVS only UDP and SCTP flows are deleted. Without IPVS
//! the entry is all that keeps a TCP connection at a removed endpoint, so its deletion ends a drain.

mod client;
mod flow;
mod stale;
mod sweeper;
mod sys;

pub use client::{ConntrackClient, Swept};
pub use flow::Flow;
pub use stale::Stale;
pub(crate) use sweeper::Sweeper;
