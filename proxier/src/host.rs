//! What this program shares a machine with: the rules of other programs in the packet filter.

pub(crate) mod foreign_chains;
mod iptables_legacy;
mod listing;
mod mark_chain;
mod removal;

pub(crate) use foreign_chains::ForeignHook;
pub use foreign_chains::{ChainReport, ForeignChains, Treatment, Treatments};
pub(crate) use iptables_legacy::{LegacyTable, legacy_tables};
pub(crate) use listing::{ChainName, list_chains};
pub use mark_chain::{MarkChains, MarkReport, Removal};
pub(crate) use removal::{Belongings, ProgramRules, RulesRemover, TableName};
