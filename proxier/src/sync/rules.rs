//! Writing the packet rules.

use std::time::Duration;

use crate::dataplane::{Dataplane, Failure};
use crate::filter::{Filter, FilterConfig, Write};
use crate::ledger::{Ledger, WrittenRules};
use crate::timer::Timer;

/// The filter, and when rules that the kernel refused are written again.
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

    /// Compares the number of the present state of all packet rules with the one in the ledger: the
    /// rules are trusted if no program, we included, has changed any since.
    pub(super) fn check(
        &mut self,
        dataplane: &mut impl Dataplane,
        ledger: &Ledger,
    ) -> Result<(), Failure> {
        match (dataplane.rules_generation()?, ledger.rules()) {
            (Some(now), Some(written)) if now == written.generation => {
                self.filter.trust(written.fingerprint);
            }
            _ => self.filter.distrust(),
        }
        Ok(())
    }

    /// Writes what the kernel lacks, in one transaction, and records it; `None` if there is nothing
    /// to write, or if a refused write is not yet due again.
    pub(super) fn write(
        &mut self,
        dataplane: &mut impl Dataplane,
        ledger: &mut Ledger,
        now: Duration,
    ) -> Option<Result<(), Failure>> {
        if self.retry.is_waiting(now) {
            return None;
        }
        let Some(write) = self.filter.pending() else {
            // A resync may find that the kernel has the rules of a write that failed.
            self.retry.reset();
            return None;
        };
        let table = match write {
            Write::Commands(commands) => dataplane.change_rules(self.filter.table(), &commands),
            Write::Table => dataplane.replace_rules(self.filter.table()),
        };
        match table {
            Ok(generation) => {
                self.filter.written();
                self.retry.reset();
                if let Some(generation) = generation {
                    ledger.set_rules(WrittenRules {
                        generation,
                        fingerprint: self.filter.fingerprint(),
                    });
                }
                Some(Ok(()))
            }
            Err(failure) => {
                self.filter.distrust();
                self.retry.back_off(now);
                Some(Err(failure))
            }
        }
    }
}
