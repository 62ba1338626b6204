//! nf_tables: tables as values, their text in nft's syntax, and their netlink messages.
//!
//! ```text
//!   Table ──difference──▶ Vec<Command> ──message──▶ one transaction ──▶ kernel
//!     │ Display               │ Display               applied completely or not at all
//!     ▼                       ▼
//!   nft syntax              nft commands
//! ```
//!
//! [`RulesClient`] and [`RulesWatch`] have a netlink socket. Everything else is plain data. A [`RulesClient`]
//! changes one table, its own. [`raw`] is for callers that write messages about tables of other programs.
//!
//! The crate supports only the features that our rules need: family `inet`, sets and maps with
//! concatenated keys, networks, marks, NAT (by maps of targets, too), rejection.
//!
//! In the kernel, see `net/netfilter/nf_tables_api.c`, `nfnetlink.c` and
//! `include/uapi/linux/netfilter/nf_tables.h`.

mod anonymous;
mod client;
mod command;
mod commit;
mod counted;
mod existing;
mod expression;
pub mod hash;
mod key;
mod learned;
mod message;
mod passage;
pub mod raw;
mod rule;
mod set;
pub mod sys;
mod table;
mod trace;
mod value;
mod watch;

pub use client::{RulesClient, TransactionError};
pub use command::Command;
pub use key::Key;
pub use message::transaction_length;
pub use passage::{End, Packet, Place};
pub use rule::{Match, NewMark, Reject, Relation, Rule, Selector, Statement, Verdict};
pub use set::{Element, Set, SetKind};
pub use table::{Chain, Hook, Table};
pub use trace::{Trace, Traced, TracedPacket, TracedVerdict};
pub use value::{KeyType, Value};
pub use watch::{RulesWatch, Tampering};
