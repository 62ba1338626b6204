//! What is known of a server that the kernel does not show: whether it is overloaded.
//!
//! The kernel keeps a flag per destination (`IP_VS_DEST_F_OVERLOAD`), which its schedulers read and
//! nobody outside sees. It moves with the destination's connections, so following every one of them
//! gives it; each pick puts that to the test.

use crate::trace::{Connections, Flavour, Limits};

/// The load of one destination object, over its whole life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    flavour: Flavour,
    limits: Limits,
    connections: Connections,
    is_overloaded: bool,
}

impl Load {
    /// A destination that was just made.
    pub(crate) fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            limits: Limits::default(),
            connections: Connections::default(),
            is_overloaded: false,
        }
    }

    /// What the kernel last said of its connections.
    pub(crate) fn connections(&self) -> Connections {
        self.connections
    }

    /// Whether schedulers pass it over.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.is_overloaded
    }

    /// One connection came, and these are the connections now (`ip_vs_bind_dest`).
    pub(crate) fn bind(&mut self, now: Connections) {
        self.connections = now;
        let total = total(now);
        let upper = self.limits.upper;
        let is_full = match self.flavour {
            Flavour::Total => total == upper && total >= self.recovery(),
            Flavour::Classic => total >= upper,
        };
        self.is_overloaded |= upper != 0 && is_full;
    }

    /// Connections ended, and these are left (`ip_vs_unbind_dest`, once for each).
    pub(crate) fn release(&mut self, now: Connections) {
        let before = total(self.connections);
        self.connections = now;
        for left in (total(now)..before).rev() {
            self.release_one(left);
        }
    }

    fn release_one(&mut self, left: u32) {
        let Limits { upper, lower } = self.limits;
        match self.flavour {
            Flavour::Total if left + 1 == self.recovery() => self.is_overloaded = left >= upper,
            Flavour::Total => {}
            Flavour::Classic => {
                let has_recovered = match (lower, upper) {
                    (0, 0) => true,
                    (0, upper) => u64::from(left) * 4 < u64::from(upper) * 3,
                    (lower, _) => left < lower,
                };
                self.is_overloaded &= !has_recovered;
            }
        }
    }

    /// The destination is written, with these thresholds (`__ip_vs_update_dest`).
    pub(crate) fn write(&mut self, limits: Limits) {
        let before = self.limits;
        self.limits = limits;
        let upper = limits.upper;
        match self.flavour {
            Flavour::Total if before == limits => {}
            Flavour::Total => {
                let total = total(self.connections);
                if upper == 0 || total < self.recovery() {
                    self.is_overloaded = false;
                } else if total >= upper {
                    self.is_overloaded = true;
                }
            }
            Flavour::Classic => self.is_overloaded &= upper != 0 && upper <= before.upper,
        }
    }

    /// The number of connections below which an overloaded server recovers; 0 without thresholds.
    fn recovery(&self) -> u32 {
        match self.limits {
            Limits { upper, lower: 0 } => upper - upper / 4,
            Limits { lower, .. } => lower,
        }
    }
}

fn total(connections: Connections) -> u32 {
    connections.active + connections.inactive
}
