//! The plan of frontends apart from their endpoints: who may connect, and options.

use std::collections::{BTreeMap, BTreeSet};

use ipvs_netlink as ipvs;

use crate::cluster::model::Networks;
use crate::plan::RelayOptions;

/// The terms of all frontends, by the key of their virtual server.
#[derive(Debug, Default)]
pub(super) struct AllTerms {
    terms: BTreeMap<ipvs::ServiceKey, Terms>,
    /// The frontends that use each firewall mark.
    marked: BTreeMap<ipvs::ServiceKey, BTreeSet<ipvs::ServiceKey>>,
}

/// The terms of a frontend.
#[derive(Debug)]
pub(super) struct Terms {
    /// The clients that may connect; `None` if all may.
    pub(super) sources: Option<Networks>,
    /// The virtual server of clients inside the cluster, if they have one.
    pub(super) inside: Option<ipvs::ServiceKey>,
    pub(super) options: RelayOptions,
}

impl AllTerms {
    pub(super) fn get(&self, key: &ipvs::ServiceKey) -> Option<&Terms> {
        self.terms.get(key)
    }

    /// Returns the frontends that use the virtual server `key`: itself, or those with its firewall mark.
    pub(super) fn users(&self, key: &ipvs::ServiceKey) -> Vec<ipvs::ServiceKey> {
        match key {
            ipvs::ServiceKey::Mark { .. } => {
                let users = self.marked.get(key).into_iter().flatten();
                users.copied().collect()
            }
            _ => vec![*key],
        }
    }

    pub(super) fn set(&mut self, key: ipvs::ServiceKey, terms: Terms) {
        // The previous terms may name another mark.
        self.remove(&key);
        if let Some(mark) = terms.inside {
            self.marked.entry(mark).or_default().insert(key);
        }
        self.terms.insert(key, terms);
    }

    pub(super) fn remove(&mut self, key: &ipvs::ServiceKey) {
        let Some(mark) = self.terms.remove(key).and_then(|terms| terms.inside) else {
            return;
        };
        if let Some(users) = self.marked.get_mut(&mark) {
            users.remove(key);
            if users.is_empty() {
                self.marked.remove(&mark);
            }
        }
    }
}
