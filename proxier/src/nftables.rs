//! nf_tables: a table as a value, its text, and its way into the kernel.
//!
//! ```text
//!   Table ──diff──▶ Vec<Command> ──message──▶ one transaction ──▶ kernel
//!     │ Display        │ Display               all of it or nothing
//!     ▼                ▼
//!   nft syntax       nft commands
//! ```
//!
//! Everything is data that can be built, compared and printed without a socket; only [`Client`],
//! [`Watch`] and [`Forwarding`] talk to the kernel. A [`Client`] changes one table, its own, and
//! reads it back ([`Client::restore`]); [`Forwarding`] looks at forward chains of others and adds at
//! most one rule to each.
//! The vocabulary is what [`crate::rules`] needs: family `inet`, sets and maps of concatenated keys,
//! networks, marks, masquerade, rejection.
//!
//! The kernel side is `net/netfilter/nf_tables_api.c` and `nfnetlink.c`; numbers and layouts are those
//! of `include/uapi/linux/netfilter/nf_tables.h`.

mod anonymous;
mod client;
mod command;
mod existing;
mod expression;
mod forwarding;
pub mod hash;
mod message;
mod rule;
mod set;
mod sys;
mod table;
mod value;
mod watch;

pub use client::{Client, TransactionError};
pub use command::Command;
pub use forwarding::{DroppingChain, ForwardChain, ForwardReport, Forwarding, Treatment};
pub use message::transaction_length;
pub use rule::{Match, NewMark, Reject, Relation, Rule, Selector, Statement, Verdict};
pub use set::{Element, Key, Set, SetKind};
pub use table::{Chain, Hook, Table};
pub use value::{Type, Value};
pub use watch::{Tampering, Watch};
