//! The plan of frontends apart from their endpoints: admissions and options.

use std::collections::{BTreeMap, BTreeSet};

use ipvs_netlink as ipvs;

use crate::plan::{Admission, RelayOptions};

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
    pub(super) admission: Admission,
    pub(super) options: RelayOptions,
}

impl AllTerms {
    pub(super) fn get(&self, key: &ipvs::ServiceKey) -> Option<&Terms> {
        self.terms.get(key)
    }

    /// Returns the virtual server of clients inside the cluster at the frontend `key`, if they have one.
    pub(super) fn mark(&self, key: &ipvs::ServiceKey) -> Option<ipvs::ServiceKey> {
        mark_of(key, self.terms.get(key)?)
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
        if let Some(mark) = mark_of(&key, &terms) {
            self.marked.entry(mark).or_default().insert(key);
        }
        self.terms.insert(key, terms);
    }

    pub(super) fn remove(&mut self, key: &ipvs::ServiceKey) {
        let removed = self.terms.remove(key);
        let Some(mark) = removed.and_then(|terms| mark_of(key, &terms)) else {
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

fn mark_of(key: &ipvs::ServiceKey, terms: &Terms) -> Option<ipvs::ServiceKey> {
    let mark = terms.admission.inside.as_ref()?.mark;
    let family = key.family();
    Some(ipvs::ServiceKey::Mark { family, mark })
}
