//! The names of virtual servers, for the metrics of Services.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use ipvs_netlink as ipvs;

use super::{Wanted, WantedServer};
use crate::cluster::model::ServicePortName;
use crate::plan::FrontendKind;

/// The names of virtual servers. Rounds write the changes, and a scrape reads a copy.
///
/// If there are more virtual servers than the limit, those that have a name keep it: a tenant with many Services takes no
/// series from others.
#[derive(Debug)]
pub struct Owners {
    limit: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    owners: BTreeMap<ipvs::ServiceKey, Owner>,
    /// The number of planned virtual servers.
    planned: usize,
}

/// The Service port, the kind of frontend and the number of destinations of a virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The Service port.
    pub port: ServicePortName,
    /// The kind of frontend; `None` for clients inside the cluster (a firewall mark).
    pub kind: Option<FrontendKind>,
    /// The number of planned destinations.
    pub destinations: usize,
}

impl From<WantedServer<'_>> for Owner {
    fn from(server: WantedServer<'_>) -> Self {
        Self {
            port: server.owner().clone(),
            kind: server.kind,
            destinations: server.endpoints.len(),
        }
    }
}

impl Owners {
    /// Returns an empty table of names for at most `limit` virtual servers.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            known: Mutex::default(),
        }
    }

    /// Updates the names to the plan, which differs from that of the last call in `changed`. Only those of virtual servers
    /// that `may` have one are taken.
    pub fn follow(
        &self,
        changed: &BTreeSet<ipvs::ServiceKey>,
        planned: Wanted<'_>,
        may: impl Fn(&ipvs::ServiceKey) -> bool,
    ) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Known {
            owners,
            planned: count,
        } = &mut *known;
        *count = planned.len();
        // First, because they make room.
        for gone in changed
            .iter()
            .filter(|key| !planned.contains(key) || !may(key))
        {
            owners.remove(gone);
        }
        for key in changed.iter().filter(|key| may(key)) {
            if let Some(server) = planned.get(key)
                && (owners.len() < self.limit || owners.contains_key(key))
            {
                owners.insert(*key, server.into());
            }
        }
        let room = self.limit.min(*count).saturating_sub(owners.len());
        if room > 0 {
            let others = planned
                .iter()
                .filter(|(key, _)| may(key) && !owners.contains_key(key));
            let others = others.take(room).map(|(key, server)| (key, server.into()));
            let others: Vec<_> = others.collect();
            owners.extend(others);
        }
    }

    /// Returns a copy of all names.
    pub fn read(&self) -> BTreeMap<ipvs::ServiceKey, Owner> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.owners.clone()
    }

    /// Returns why some virtual servers have no name; `None` if all have one.
    pub fn lacking(&self) -> Option<TooMany> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = self.limit;
        (known.planned > limit).then_some(TooMany { limit })
    }

    /// Returns whether the operator permits no names at all.
    pub fn is_off(&self) -> bool {
        self.limit == 0
    }
}

/// There are more virtual servers, or frontends, than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "only {limit} virtual servers have series; there are more than --service-metrics-limit={limit}"
)]
pub struct TooMany {
    limit: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::Protocol;
    use crate::dataplane::ipvs::InsideMarks;
    use crate::plan::frontend::Frontend;
    use crate::plan::{Desired, example};

    #[test]
    fn there_are_names_up_to_the_limit() {
        let frontend = |last| Frontend {
            protocol: Protocol::Tcp,
            address: [10, 96, 0, last].into(),
            port: 80,
        };
        let key = |last| ipvs::ServiceKey::from(frontend(last));
        let marks = InsideMarks::default();
        let owners = Owners::new(2);
        let follow = |changed, planned: &[u8]| {
            let plans = planned
                .iter()
                .map(|last| (frontend(*last), example::cluster_ip(&[])));
            let desired = Desired {
                frontends: plans.collect(),
                ..Desired::default()
            };
            owners.follow(
                &[key(changed)].into(),
                Wanted::new(&desired, &marks),
                |other| *other != key(9),
            );
            let names: Vec<u8> = (0..10)
                .filter(|last| owners.read().contains_key(&key(*last)))
                .collect();
            (names, owners.lacking().is_some())
        };
        assert_eq!(follow(5, &[5]), (vec![5], false));
        assert_eq!(follow(6, &[5, 6]), (vec![5, 6], false));
        // Another one takes no name from those that have one, wherever it is in the order.
        assert_eq!(follow(1, &[1, 5, 6]), (vec![5, 6], true));
        assert_eq!(follow(5, &[1, 5, 6]), (vec![5, 6], true));
        assert_eq!(follow(6, &[1, 5]), (vec![1, 5], false));
        assert_eq!(follow(1, &[5]), (vec![5], false));
        assert_eq!(follow(9, &[5, 9]), (vec![5], false), "it may have no name");
        assert_eq!(follow(5, &[]), (vec![], false));
    }
}
