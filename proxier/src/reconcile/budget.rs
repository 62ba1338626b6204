//! How much of the dataplane's counters is read at a time.

use crate::plan::frontend::Frontend;

/// The most frontends of a Service that are read.
const MOST_OF_A_SERVICE: usize = 64;

/// The most of all Services that one reading reads: tenants choose the numbers. A frontend costs a request for each of its
/// lists of endpoints, and each endpoint a message in the answer. Changes of Services wait meanwhile.
const MOST: Budget = Budget {
    frontends: 1_024,
    endpoints: 20_000,
};

/// What is left of a reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    frontends: usize,
    /// Each counts once per frontend, and again for clients inside the cluster.
    endpoints: usize,
}

impl Budget {
    /// Returns the budget of a reading.
    pub(super) fn whole() -> Self {
        MOST
    }

    /// Returns the frontends to read of a Service that has `frontends`: the first ones that a whole budget suffices for;
    /// `None` if what is left does not suffice.
    pub(super) fn take<'a>(
        &mut self,
        frontends: &'a [Frontend],
        endpoints_of: impl Fn(&Frontend) -> usize,
    ) -> Option<&'a [Frontend]> {
        let (mut count, mut endpoints) = (0, 0);
        // Always the same ones, because their totals are compared with those of the reading before.
        for frontend in frontends.iter().take(MOST_OF_A_SERVICE) {
            let more = endpoints + endpoints_of(frontend);
            if more > MOST.endpoints {
                break;
            }
            (count, endpoints) = (count + 1, more);
        }
        *self = Self {
            frontends: self.frontends.checked_sub(count)?,
            endpoints: self.endpoints.checked_sub(endpoints)?,
        };
        Some(&frontends[..count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::Protocol;

    #[test]
    fn a_reading_is_bounded_by_frontends_and_by_endpoints_and_no_service_blocks_others() {
        let frontends: Vec<Frontend> = (1..=100)
            .map(|port| Frontend {
                address: [10, 96, 0, 1].into(),
                protocol: Protocol::Tcp,
                port,
            })
            .collect();
        // The Services, each with the number of its frontends and of the endpoints of each, and how many are read.
        type Services<'a> = &'a [(usize, usize, Option<usize>)];
        let cases: [(&str, Services<'_>); 4] = [
            ("few", &[(2, 3, Some(2)), (1, 3, Some(1))]),
            ("at most 64 of a Service", &[(100, 1, Some(64))]),
            (
                "at most 20,000 endpoints",
                &[(10, 1_500, Some(10)), (10, 1_000, None)],
            ),
            (
                "more than all",
                &[
                    (10, 9_000, Some(2)),
                    (1, 20_001, Some(0)),
                    (1, 2_000, Some(1)),
                ],
            ),
        ];
        for (case, services) in cases {
            let mut left = Budget::whole();
            for &(count, endpoints, read) in services {
                let taken = left.take(&frontends[..count], |_| endpoints);
                assert_eq!(
                    taken.map(<[_]>::len),
                    read,
                    "{case}: {count} of {endpoints}"
                );
            }
        }
        let mut left = Budget::whole();
        for _ in 0..16 {
            assert!(left.take(&frontends, |_| 1).is_some());
        }
        assert_eq!(left.take(&frontends, |_| 1), None);
    }
}
