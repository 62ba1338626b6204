//! Forgetting connections whose endpoint is gone.
//!
//! IPVS leaves an entry in the kernel's connection tracking for each flow. A UDP client that keeps
//! sending keeps its flow alive, and with it the way to an endpoint that is gone, or to no endpoint
//! at all. TCP notices and connects again; UDP and SCTP flows have to be deleted.
//!
//! ```text
//!   Ops, Desired ──▶ Stale ──▶ Client::sweep: one pass over the table, then deletions
//!   Ops, time ──▶ Strays ──┘
//! ```

mod client;
mod flow;
mod stale;
mod strays;
mod sys;

pub use client::{Client, Swept};
pub use flow::{Flow, Tuple};
pub use stale::Stale;
pub use strays::Strays;
