//! Connection thresholds and the overload mark.

use crate::error::Error;
use crate::options::Flavour;

/// The connection counts that set and clear the overload mark of a server.
///
/// Active and inactive connections both count. The default is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    upper: u32,
    lower: u32,
}

impl Thresholds {
    /// Returns thresholds that set the mark at `upper` connections and clear it below `lower`.
    ///
    /// `upper` 0 means no limit. `lower` 0 means three quarters of `upper`, rounded up.
    ///
    /// # Errors
    /// [`Error::Thresholds`] if `lower` is above `upper`.
    pub fn new(upper: u32, lower: u32) -> Result<Self, Error> {
        if lower > upper {
            return Err(Error::Thresholds { lower, upper });
        }
        Ok(Self { upper, lower })
    }

    /// Returns the upper threshold; 0 means no limit.
    pub fn upper(self) -> u32 {
        self.upper
    }

    /// Returns the lower threshold as given; 0 means three quarters of the upper one.
    pub fn lower(self) -> u32 {
        self.lower
    }

    fn effective_lower(self) -> u32 {
        if self.lower == 0 {
            self.upper - self.upper / 4
        } else {
            self.lower
        }
    }

    /// Returns the mark after a new connection raised the count to `connections` (`ip_vs_bind_dest`).
    ///
    /// [`Flavour::Total`] compares with `==`: only the connection that reaches the threshold sets the mark.
    /// A count that is already above the threshold does not set it.
    pub(crate) fn opened(self, flavour: Flavour, connections: u32, marked: bool) -> bool {
        if self.upper == 0 {
            return marked;
        }
        match flavour {
            Flavour::Total => marked || connections == self.upper,
            Flavour::Classic => marked || connections >= self.upper,
        }
    }

    /// Returns the mark after a connection ended and `connections` are left (`ip_vs_unbind_dest`).
    ///
    /// Without an upper threshold the caller's mark stays. The kernel never sets a mark in this case.
    pub(crate) fn closed(self, flavour: Flavour, connections: u32, marked: bool) -> bool {
        if self.upper == 0 {
            return marked;
        }
        match flavour {
            // Only the connection whose end takes the count below the lower threshold clears the mark.
            Flavour::Total if connections.checked_add(1) == Some(self.effective_lower()) => {
                connections >= self.upper
            }
            Flavour::Total => marked,
            Flavour::Classic if self.lower != 0 => marked && connections >= self.lower,
            Flavour::Classic => marked && 4 * u64::from(connections) >= 3 * u64::from(self.upper),
        }
    }

    /// Returns the mark after these thresholds replaced `previous` (`__ip_vs_update_dest`).
    pub(crate) fn replaced(
        self,
        flavour: Flavour,
        previous: Self,
        connections: u32,
        marked: bool,
    ) -> bool {
        if self == previous {
            return marked;
        }
        match flavour {
            // Older kernels clear the mark when the threshold rises, however many connections there are.
            Flavour::Classic => marked && self.upper != 0 && self.upper <= previous.upper,
            Flavour::Total if self.upper == 0 || connections < self.effective_lower() => false,
            Flavour::Total => marked || connections >= self.upper,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Flavour::{Classic, Total};

    /// Returns the connections that set the mark, and those left when the mark is cleared.
    fn span(flavour: Flavour, upper: u32, lower: u32) -> (u32, u32) {
        let thresholds = Thresholds::new(upper, lower).unwrap();
        let full = (1..)
            .find(|&count| thresholds.opened(flavour, count, false))
            .unwrap();
        let free = (0..full)
            .rev()
            .find(|&count| !thresholds.closed(flavour, count, true))
            .unwrap();
        (full, free)
    }

    #[test]
    fn marks_are_set_and_cleared_as_observed_on_6_1_and_7_2() {
        for flavour in [Total, Classic] {
            assert_eq!(span(flavour, 4, 0), (4, 2));
            assert_eq!(span(flavour, 4, 2), (4, 1));
            assert_eq!(span(flavour, 5, 0), (5, 3));
            assert_eq!(span(flavour, 3, 3), (3, 2));
            assert_eq!(span(flavour, 1, 0), (1, 0));
            assert_eq!(span(flavour, 8, 0), (8, 5));
        }
    }

    #[test]
    fn flavours_treat_a_changed_threshold_differently() {
        let four = Thresholds::new(4, 0).unwrap();
        let edited = |flavour, upper, connections| {
            Thresholds::new(upper, 0)
                .unwrap()
                .replaced(flavour, four, connections, true)
        };
        assert!(edited(Total, 5, 4));
        assert!(!edited(Classic, 5, 4));
        assert!(!edited(Total, 100, 4));
        assert!(!edited(Total, 0, 4));
        assert!(!edited(Classic, 0, 4));
        let three = Thresholds::new(3, 0).unwrap();
        let hundred = Thresholds::new(100, 0).unwrap();
        assert!(three.replaced(Total, hundred, 6, false));
        assert!(!three.replaced(Classic, hundred, 6, false));
        assert!(three.opened(Classic, 7, false));
    }

    #[test]
    fn a_lower_threshold_above_the_upper_one_is_rejected() {
        assert!(Thresholds::new(3, 4).is_err());
        assert!(Thresholds::new(0, 1).is_err());
    }

    #[test]
    fn without_a_limit_the_callers_mark_stays() {
        let none = Thresholds::default();
        for flavour in [Total, Classic] {
            assert!(none.closed(flavour, 0, true));
            assert!(!none.opened(flavour, u32::MAX, false));
        }
    }
}
