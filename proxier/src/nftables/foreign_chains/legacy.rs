//! The tables of iptables-legacy, which nf_tables does not list.

use std::fmt;

use super::Treatments;
use super::report::START_AGAIN;

/// The programs of iptables-legacy, each with the file in which the kernel lists its tables in use.
const PROGRAMS: [(&str, &str); 2] = [
    ("iptables-legacy", "/proc/thread-self/net/ip_tables_names"),
    ("ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names"),
];

/// A table `filter` of iptables-legacy that is in use. Netlink gives no access to it.
///
/// Prints with the commands that make its chains accept packets of Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyTable {
    program: &'static str,
    treatments: Treatments,
}

/// Returns the tables in use in this thread's network namespace.
pub(super) fn in_use(treatments: Treatments) -> Vec<LegacyTable> {
    let is_in_use = |names: &str| {
        // A kernel without iptables-legacy lacks the file.
        let names = std::fs::read_to_string(names).unwrap_or_default();
        names.lines().any(|name| name == "filter")
    };
    PROGRAMS
        .into_iter()
        .filter(|(_, names)| is_in_use(names))
        .map(|(program, _)| LegacyTable {
            program,
            treatments,
        })
        .collect()
}

impl fmt::Display for LegacyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            program,
            treatments,
        } = self;
        let [answers, frontends] = treatments
            .accepted()
            .map(|accepted| accepted.iptables_match());
        write!(
            f,
            "the table filter of {program} is in use and cannot be read; if its chain FORWARD drops the \
             answers of endpoints, run `{program} -I FORWARD {answers} -j ACCEPT`; if its chain INPUT drops \
             packets for frontends, "
        )?;
        if treatments.frontends == super::Treatment::Warn {
            write!(f, "{START_AGAIN} and ")?;
        }
        write!(f, "run `{program} -I INPUT {frontends} -j ACCEPT`")
    }
}
