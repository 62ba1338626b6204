//! Writing the packet rules.
//!
//! If the generation of the kernel and the fingerprint of our rules are the recorded ones, the kernel has exactly our
//! rules. Otherwise our table is read back and its differences are written. It is not replaced: while the kernel commits a
//! replacement, the old chains still run, but their maps are already empty, so permitted packets are rejected.

use std::time::Duration;

use super::{Kernel, Wanted};
use crate::dataplane::Failure;
use crate::dataplane::ipvs::filter::{Content, Filter, FilterConfig, Fingerprint};
use crate::dataplane::ipvs::ledger::{Ledger, WrittenRules};
use crate::util::timer::Timer;

/// The packet rules, and when a refused write is tried again.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) filter: Filter,
    pub(super) retry: Timer,
}

impl Rules {
    pub(super) fn new(config: FilterConfig) -> Self {
        Self {
            filter: Filter::new(config),
            retry: Timer::retry(),
        }
    }

    /// Returns the fingerprint of the rules that the ledger names, if the kernel has these.
    ///
    /// If the generation is the recorded one, no program has changed any rule since our last write. The
    /// check costs two requests; reading the rules of 10,000 Services back takes 50 ms.
    pub(super) fn recorded(
        &self,
        kernel: &mut impl Kernel,
        ledger: &Ledger,
    ) -> Result<Option<Fingerprint>, Failure> {
        let generation = kernel.rules_generation()?;
        let written = ledger.rules();
        let written = written.filter(|written| generation == Some(written.generation));
        Ok(written.map(|written| written.fingerprint))
    }

    /// Writes the pending rules in one transaction and records them in the ledger.
    ///
    /// `None` if no rules are pending, or if a refused write is not yet due again.
    pub(super) fn write(
        &mut self,
        kernel: &mut impl Kernel,
        wanted: Wanted<'_>,
        ledger: &mut Ledger,
        now: Duration,
    ) -> Option<Result<(), Failure>> {
        if self.retry.is_waiting(now) {
            return None;
        }
        let Some(write) = self.filter.pending(wanted) else {
            // A resync may find that the kernel has the rules of a write that failed.
            self.retry.reset();
            return None;
        };
        let fingerprint = write.fingerprint;
        let written = match write.content {
            Content::Commands(commands) => {
                kernel.change_rules(&commands, &|| self.filter.table(wanted))
            }
            Content::Table(table) => kernel.replace_rules(&table),
        };
        match written {
            Ok(generation) => {
                self.filter.written(fingerprint);
                self.retry.reset();
                if let Some(generation) = generation {
                    ledger.set_rules(WrittenRules {
                        generation,
                        fingerprint,
                    });
                }
                Some(Ok(()))
            }
            Err(failure) => {
                // The answer may be lost although the kernel committed, so the next write reads the table.
                self.filter.distrust();
                self.retry.back_off(now);
                Some(Err(failure))
            }
        }
    }
}
