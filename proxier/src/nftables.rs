//! nf_tables: tables as values, as nft prints them and as the kernel takes them.
//!
//! ```text
//!   Table ──difference──▶ Vec<Command> ──message──▶ one transaction ──▶ kernel
//!     │ Display               │ Display               applied as a whole or not at all
//!     ▼                       ▼
//!   nft syntax              nft commands
//! ```
//!
//! [`Client`], [`Watch`] and [`Forwarding`] talk to the kernel. Everything else is plain data, built,
//! compared and printed without a socket. A [`Client`] changes one table, its own. [`Forwarding`]
//! inserts one rule into forward chains of other programs.
//!
//! The module supports what our rules need: family `inet`, sets and maps with concatenated keys,
//! networks, marks, masquerade, rejection.
//!
//! In the kernel, see `net/netfilter/nf_tables_api.c`, `nfnetlink.c` and
//! `include/uapi/linux/netfilter/nf_tables.h`.

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
