//! The firewall marks of this node: their key, and marks that another program has.
//!
//! A virtual server of a mark that the ledger lacks is foreign, whatever the plan says: it is never adopted,
//! changed or deleted. The frontends get another mark instead.

use super::{Ipvs, Kernel, MarkChanges};
use crate::dataplane::{Failure, Planned};
use crate::plan::Changed;

impl<K: Kernel> Ipvs<K> {
    /// Sets the key of the marks. Draws one if the ledger has none.
    ///
    /// # Errors
    /// If no key can be drawn.
    pub(super) fn set_mark_key(&mut self, planned: Planned<'_>) -> Result<MarkChanges, Failure> {
        let key = match self.ledger.mark_key() {
            Some(key) => key,
            None => {
                let key = self.kernel.draw_mark_key()?;
                self.ledger.set_mark_key(key);
                key
            }
        };
        let avoided = self
            .rules
            .as_ref()
            .map_or(0, |rules| rules.filter.mark_bits());
        Ok(self.marks.set_key(key, avoided, planned.desired()))
    }

    /// Gives marks to the changed frontends, none of which another program has.
    ///
    /// # Cost
    /// A few system calls for each new mark.
    pub(super) fn follow_marks(&mut self, planned: Planned<'_>, changed: &Changed) -> MarkChanges {
        let desired = planned.desired();
        let mut changes = self.marks.follow(desired, &changed.frontends);
        loop {
            let marks = changes.servers.iter().copied();
            let mut marks = marks.filter(|key| self.marks.first_user(key).is_some());
            let foreign = marks.find(|key| {
                !self.ledger.owned().contains(key)
                    // Without an answer, the Op that creates the virtual server fails too.
                    && matches!(self.kernel.virtual_server(key), Ok(Some(_)))
            });
            let Some(foreign) = foreign else {
                return changes;
            };
            changes.extend(self.marks.exclude(&foreign, desired));
        }
    }
}
