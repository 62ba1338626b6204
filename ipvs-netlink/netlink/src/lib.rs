//! Blocking netlink sockets.
//!
//! ```text
//!   Writer ──▶ Batch ──▶ Transport ──▶ kernel     many requests in one send, an answer per failure
//!   Attribute ◀──────────────┘           │
//!   Attribute ◀──────── Listener ◀───────┘        notifications of multicast groups
//! ```
//!
//! IPVS, nf_tables, connection tracking, ipsets, routes and addresses use these sockets, each with its own
//! messages. All calls block and need no async runtime: the kernel executes requests inside `sendmsg(2)`, so
//! an asynchronous call would have nothing to wait for.

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod attr;
pub mod batch;
pub mod error;
mod family;
pub mod listener;
pub mod transport;

pub use error::{Error, Refusal, Result};
pub use family::Family;
pub use netlink_packet_core::{
    NLA_F_NESTED, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE,
};
pub use rustix::io::Errno;
