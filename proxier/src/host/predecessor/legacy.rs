//! kube-proxy's chains in the tables of iptables-legacy.
//!
//! Netlink does not reach them. Their interface is `getsockopt` and `setsockopt` with one block of
//! memory per table, in which rules refer to each other by offset. This program does not use that interface:
//!
//! * `setsockopt` replaces the whole table. Rules that another program adds between the read and the
//!   write would be lost; iptables prevents that only among programs that take `/run/xtables.lock`,
//!   a file of the host.
//! * The offsets of all rules of the table change with the first removed one, in a layout that differs
//!   between processors, and no safe library has these socket options: it would be the only `unsafe` code
//!   here.
//! * A node needs the removal once, and each iptables-legacy has the tool for it.
//!
//! So the program logs which tables are in use and which command removes the chains. It starts no child
//! process.

use std::fmt;

use super::names;
use crate::host::legacy_tables;

/// An iptables-legacy whose tables may have kube-proxy's chains.
///
/// Prints as the command that removes these chains and the rules to them. Without such chains, the command
/// changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LegacyProgram {
    name: &'static str,
}

/// The table in which kube-proxy has chains in the IPVS mode.
pub(crate) const IPVS_MODE: &[&str] = &["nat"];

/// The tables in which kube-proxy has a chain in the iptables mode, which has no other sign of its rules.
pub(crate) const IPTABLES_MODE: &[&str] = &["mangle", "nat", "filter"];

/// Returns the programs that have all these tables in this thread's network namespace.
pub(crate) fn programs_with(tables: &[&str]) -> Vec<LegacyProgram> {
    let in_use = legacy_tables();
    let has = |name: &str, table: &str| {
        in_use
            .iter()
            .any(|it| it.program == name && it.name == table)
    };
    let mut names: Vec<&str> = in_use.iter().map(|it| it.program).collect();
    names.dedup();
    names.retain(|name| tables.iter().all(|table| has(name, table)));
    names
        .into_iter()
        .map(|name| LegacyProgram { name })
        .collect()
}

impl fmt::Display for LegacyProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = self.name;
        let lines = names::saved_lines();
        // With `-w` it waits for another program that holds the lock; without it, it fails.
        write!(
            f,
            "{program}-save | grep -vE '{lines}' | {program}-restore -w"
        )
    }
}
