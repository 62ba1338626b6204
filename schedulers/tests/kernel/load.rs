//! The overload mark of a server, which the kernel does not show.
//!
//! The kernel keeps it as a flag of the destination (`IP_VS_DEST_F_OVERLOAD`). It depends on the
//! connections only, so it is computed here from each of them. Every pick tests the result.

use crate::trace::{Connections, Flavour, Limits};

/// The connection counts and the overload mark of a destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    flavour: Flavour,
    limits: Limits,
    connections: Connections,
    is_overloaded: bool,
}

impl Load {
    /// A destination that was just created.
    pub(crate) fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            limits: Limits::default(),
            connections: Connections::default(),
            is_overloaded: false,
        }
    }

    /// Returns the counts last read from the kernel.
    pub(crate) fn connections(&self) -> Connections {
        self.connections
    }

    /// Returns whether schedulers skip the server.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.is_overloaded
    }

    /// Sets the counts after one new connection (`ip_vs_bind_dest`).
    pub(crate) fn bind(&mut self, now: Connections) {
        self.connections = now;
        let total = total(now);
        let upper = self.limits.upper;
        let is_full = match self.flavour {
            // Newer kernels set the mark only with the connection that reaches the threshold.
            Flavour::Total => total == upper && total >= self.recovery(),
            Flavour::Classic => total >= upper,
        };
        self.is_overloaded |= upper != 0 && is_full;
    }

    /// Sets the counts after connections ended (`ip_vs_unbind_dest`, once for each).
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

    /// Sets the thresholds (`__ip_vs_update_dest`).
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

    /// Returns the number below which the mark is cleared; 0 without thresholds.
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
