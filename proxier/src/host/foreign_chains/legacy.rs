//! The tables `filter` of iptables-legacy: only an administrator can make them accept packets.

use std::fmt;

use super::accepted::Accepted;
use super::chain::ForeignHook;
use super::report::start_again;
use super::{Treatment, Treatments};
use crate::host::legacy_tables;

/// A table `filter` of iptables-legacy that is in use.
///
/// Prints with the commands that make its chains accept packets of Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyFilter {
    program: &'static str,
    treatments: Treatments,
}

/// Returns the tables in use in this thread's network namespace.
pub(super) fn in_use(treatments: Treatments) -> Vec<LegacyFilter> {
    let filters = legacy_tables()
        .into_iter()
        .filter(|table| table.name == "filter");
    filters
        .map(|table| LegacyFilter {
            program: table.program,
            treatments,
        })
        .collect()
}

impl fmt::Display for LegacyFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            program,
            treatments,
        } = self;
        write!(
            f,
            "the table filter of {program} is in use and cannot be read"
        )?;
        for hook in [ForeignHook::Forward, ForeignHook::Input] {
            let name = hook.iptables_chain();
            write!(f, "; if its chain {name} drops packets of Services, ")?;
            let accepted = treatments.accepted(hook);
            let needs_mark = accepted
                .iter()
                .any(|it| matches!(it, Accepted::Marked { .. }));
            if needs_mark && treatments.of(hook) == Treatment::Warn {
                write!(f, "{} and ", start_again(hook))?;
            }
            let commands = accepted.iter().map(|it| {
                let matches = it.iptables_match();
                let action = it.iptables_action(hook);
                format!("run `{program} {action} {name} {matches} -j ACCEPT`")
            });
            f.write_str(&commands.collect::<Vec<_>>().join(" and "))?;
        }
        f.write_str(
            "; if its chain OUTPUT drops packets for endpoints, accept the networks of Pods, nodes and Services in it",
        )
    }
}
