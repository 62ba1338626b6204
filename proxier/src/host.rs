//! What shares the machine with this program: kernel settings, other network programs, their rules, and what
//! kube-proxy left.

pub(crate) mod foreign_chains;
pub(crate) mod ipset;
mod iptables_legacy;
mod listing;
mod mark_chain;
pub(crate) mod neighbours;
pub(crate) mod predecessor;
mod removal;
mod routes;
pub(crate) mod sysctl;
pub(crate) mod trace;
pub(crate) mod way;
mod xt;

pub(crate) use foreign_chains::ForeignHook;
pub use foreign_chains::{ChainReport, ForeignChains, Treatment, Treatments};
pub(crate) use iptables_legacy::{LegacyTable, legacy_tables};
pub use listing::ChainName;
pub(crate) use listing::{has_nfnetlink, list_chains};
pub use mark_chain::{MarkChains, MarkReport, Removal};
pub(crate) use removal::{Belongings, ProgramRules, RulesRemover, TableName};
