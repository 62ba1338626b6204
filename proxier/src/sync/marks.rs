//! The firewall marks of this node: their key, and marks that another program has.
//!
//! A virtual server of a mark that the ledger lacks is foreign, whatever the plan says: it is never adopted,
//! changed or deleted. The plan gets another mark instead.

use ipvs_netlink as ipvs;

use super::Proxier;
use crate::dataplane::{Dataplane, Failure};
use crate::filter::Filter;
use crate::marks::Marks;
use crate::plan::Changed;

impl<D: Dataplane> Proxier<D> {
    /// Moves the marks out of the machine, for the next one. Draws their key if the ledger has none.
    ///
    /// # Errors
    /// If no key can be drawn.
    pub(super) fn take_marks(&mut self) -> Result<Marks, Failure> {
        let key = match self.ledger.mark_key() {
            Some(key) => key,
            None => {
                let key = self.dataplane.draw_mark_key()?;
                self.ledger.set_mark_key(key);
                key
            }
        };
        let avoided = self.filter().map_or(0, Filter::mark_bits);
        let mut marks = std::mem::take(&mut self.machine.marks);
        marks.set(key, avoided);
        Ok(marks)
    }

    /// Excludes the marks that several Service ports have, and the foreign ones among `changed`.
    ///
    /// Returns whether the plan must be made again.
    ///
    /// # Cost
    /// A few system calls for each new mark.
    pub(super) fn exclude_marks(&mut self, changed: &Changed) -> bool {
        let mut excluded: Vec<u32> = self.planner.contested_marks().collect();
        for key in &changed.virtual_servers {
            let is_planned = self.planner.desired().virtual_servers.contains_key(key);
            if let ipvs::ServiceKey::Mark { mark, .. } = *key
                && is_planned
                && !self.ledger.owned().contains(key)
                // Without an answer, the Op that creates the virtual server fails too.
                && let Ok(Some(_)) = self.dataplane.virtual_server(key)
            {
                excluded.push(mark);
            }
        }
        let excluded = excluded.into_iter();
        excluded.fold(false, |any, mark| self.machine.marks.exclude(mark) | any)
    }
}
