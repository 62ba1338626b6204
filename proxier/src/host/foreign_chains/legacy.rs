//! The tables `filter` of iptables-legacy: only an administrator can make them accept packets.

use std::fmt;

use super::Treatments;
use super::report::START_AGAIN;
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
        write!(
            f,
            "run `{program} -I INPUT {frontends} -j ACCEPT`; if its chain OUTPUT drops packets for endpoints, \
             accept the networks of Pods, nodes and Services in it"
        )
    }
}
