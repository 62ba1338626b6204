//! The monitor of packet rules, which starts after the first round.
//!
//! While a program listens, the kernel makes a notification for each element that a transaction adds, in a
//! buffer of a page, and keeps them all until the commit. The first transaction adds elements for every
//! frontend, and the monitor would ignore each notification, because it is about our own change.

use std::fmt;

use crate::dataplane::Dataplane;
use crate::reconcile::Proxier;

/// A monitor that has not started yet.
pub(super) struct RulesMonitor(pub(super) Box<dyn FnOnce() + Send>);

impl RulesMonitor {
    /// Starts the monitor. Returns whether another program changed any rule since our last write, of which
    /// there is no notification.
    pub(super) fn start<D: Dataplane>(self, proxier: &mut Proxier<D>) -> bool {
        (self.0)();
        proxier.dataplane_mut().finds_changed_rules()
    }
}

impl fmt::Debug for RulesMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesMonitor").finish_non_exhaustive()
    }
}
