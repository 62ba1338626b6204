//! The names of virtual servers, for the metrics of Services.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use ipvs_netlink as ipvs;

use super::{Wanted, WantedServer};
use crate::cluster::model::ServicePortName;
use crate::plan::FrontendKind;

/// The names of virtual servers. Rounds write the changes, and a scrape reads a copy.
///
/// Empty while there are more virtual servers than the limit, so that a large node needs no memory for
/// series that it does not have.
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

    /// Updates the names to the plan, which differs from that of the last call in `changed`.
    pub fn follow(&self, changed: &BTreeSet<ipvs::ServiceKey>, planned: Wanted<'_>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut known.planned, planned.len());
        if planned.len() > self.limit {
            known.owners = BTreeMap::new();
        } else if before > self.limit {
            // Changes above the limit were not followed.
            let all = planned.iter().map(|(key, server)| (key, server.into()));
            known.owners = all.collect();
        } else {
            for key in changed {
                match planned.get(key) {
                    Some(server) => known.owners.insert(*key, server.into()),
                    None => known.owners.remove(key),
                };
            }
        }
    }

    /// Returns a copy of all names.
    ///
    /// # Errors
    /// The reason why there are none: there are more virtual servers than the limit.
    pub fn read(&self) -> Result<BTreeMap<ipvs::ServiceKey, Owner>, TooMany> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.planned <= self.limit {
            true => Ok(known.owners.clone()),
            false => Err(TooMany {
                planned: known.planned,
                limit: self.limit,
            }),
        }
    }

    /// Returns whether the operator permits no names at all.
    pub fn is_off(&self) -> bool {
        self.limit == 0
    }
}

/// There are more virtual servers, or frontends, than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("each metric would have {planned} series, above --service-metrics-limit={limit}")]
pub struct TooMany {
    planned: usize,
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
        let owners = Owners::new(1);
        let follow = |changed, planned: &[u8]| {
            let plans = planned
                .iter()
                .map(|last| (frontend(*last), example::cluster_ip(&[])));
            let desired = Desired {
                frontends: plans.collect(),
                ..Desired::default()
            };
            owners.follow(&[key(changed)].into(), Wanted::new(&desired, &marks));
        };
        follow(1, &[1]);
        assert!(owners.read().unwrap().contains_key(&key(1)));
        follow(2, &[1, 2]);
        let why = owners.read().unwrap_err().to_string();
        assert_eq!(
            why,
            "each metric would have 2 series, above --service-metrics-limit=1"
        );
        follow(2, &[1]);
        assert_eq!(owners.read().unwrap().len(), 1, "the names are back");
        follow(1, &[]);
        assert_eq!(owners.read().unwrap().len(), 0);
    }
}
