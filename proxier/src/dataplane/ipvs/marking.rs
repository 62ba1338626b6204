//! The firewall marks of this node: their key, and marks that another program has.
//!
//! A virtual server of a mark that the ledger lacks is foreign, whatever the plan says: it is never adopted,
//! changed or deleted. The frontends get another mark instead.

use crate::dataplane::ipvs::MarkChanges;
use crate::dataplane::{Dataplane, Failure};
use crate::filter::Filter;
use crate::plan::Changed;
use crate::sync::Proxier;

impl<D: Dataplane> Proxier<D> {
    /// Sets the key of the marks. Draws one if the ledger has none.
    ///
    /// # Errors
    /// If no key can be drawn.
    pub(crate) fn set_mark_key(&mut self) -> Result<MarkChanges, Failure> {
        let key = match self.ledger.mark_key() {
            Some(key) => key,
            None => {
                let key = self.dataplane.draw_mark_key()?;
                self.ledger.set_mark_key(key);
                key
            }
        };
        let avoided = self.filter().map_or(0, Filter::mark_bits);
        Ok(self.marks.set_key(key, avoided, self.planner.desired()))
    }

    /// Gives marks to the changed frontends, none of which another program has.
    ///
    /// # Cost
    /// A few system calls for each new mark.
    pub(crate) fn follow_marks(&mut self, changed: &Changed) -> MarkChanges {
        let desired = self.planner.desired();
        let mut changes = self.marks.follow(desired, &changed.frontends);
        loop {
            let planned = changes.servers.iter().copied();
            let mut planned = planned.filter(|key| self.marks.first_user(key).is_some());
            let foreign = planned.find(|key| {
                !self.ledger.owned().contains(key)
                    // Without an answer, the Op that creates the virtual server fails too.
                    && matches!(self.dataplane.virtual_server(key), Ok(Some(_)))
            });
            let Some(foreign) = foreign else {
                return changes;
            };
            changes.extend(self.marks.exclude(&foreign, desired));
        }
    }
}
