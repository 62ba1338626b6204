//! nf_tables: tables as values, their text in nft's syntax, and their netlink messages.
//!
//! ```text
//!   Table ──difference──▶ Vec<Command> ──message──▶ one transaction ──▶ kernel
//!     │ Display               │ Display               applied completely or not at all
//!     ▼                       ▼
//!   nft syntax              nft commands
//! ```
//!
//! [`RulesClient`], [`RulesWatch`], [`ForeignChains`] and [`RulesRemover`] have a netlink socket. Everything else is
//! plain data. A [`RulesClient`] changes one table, its own. [`ForeignChains`] inserts one rule into chains of
//! other programs that drop packets of Services. A [`RulesRemover`] removes what a program left.
//!
//! The module supports only the features that our rules need: family `inet`, sets and maps with
//! concatenated keys, networks, marks, NAT, rejection.
//!
//! In the kernel, see `net/netfilter/nf_tables_api.c`, `nfnetlink.c` and
//! `include/uapi/linux/netfilter/nf_tables.h`.

mod anonymous;
mod client;
mod command;
mod commit;
mod elements;
mod existing;
mod expression;
mod foreign_chains;
pub(crate) mod hash;
mod iptables_legacy;
mod key;
mod listing;
mod mark_chain;
mod message;
mod packed_map;
mod removal;
mod rule;
mod set;
mod sys;
mod table;
mod value;
mod watch;

pub use client::RulesClient;
pub(crate) use client::TransactionError;
pub use command::Command;
pub use elements::Element;
pub(crate) use foreign_chains::ForeignHook;
pub use foreign_chains::{ChainReport, ForeignChains, Treatment, Treatments};
pub(crate) use iptables_legacy::{LegacyTable, legacy_tables};
pub use key::Key;
pub(crate) use listing::{ChainName, list_chains};
pub use mark_chain::{MarkChains, MarkReport, Removal};
pub use message::transaction_length;
pub(crate) use removal::{Belongings, ProgramRules, RulesRemover, TableName};
pub(crate) use rule::{Match, NewMark, Reject, Relation, Rule, Selector, Statement, Verdict};
pub(crate) use set::{Set, SetKind};
pub use table::Table;
pub(crate) use table::{Chain, Hook};
pub(crate) use value::KeyType;
pub use value::Value;
pub use watch::{RulesWatch, Tampering};
