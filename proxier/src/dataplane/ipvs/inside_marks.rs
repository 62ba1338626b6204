//! The firewall marks of frontends where clients inside the cluster reach other endpoints than clients outside.
//!
//! At one address, clients inside the cluster and outside reach different endpoints, and IPVS finds a virtual server by
//! address or by mark only. It compares marks before addresses, so whoever chooses the mark of a Service chooses which
//! packets of others it takes: marks come from a random key.

use std::collections::{BTreeMap, BTreeSet};

use ipvs_netlink as ipvs;

use crate::cluster::model::{Protocol, ServicePortName};
use crate::dataplane::ipvs::marks::{MarkKey, Marks};
use crate::plan::frontend::Frontend;
use crate::plan::{Desired, FrontendPlan};

/// The marks of all frontends of a plan. The frontends of a Service port have one mark for each family.
#[derive(Clone, Debug, Default)]
pub struct InsideMarks {
    marks: Marks,
    frontends: BTreeMap<Frontend, ipvs::ServiceKey>,
    /// The frontends of each mark.
    users: BTreeMap<ipvs::ServiceKey, BTreeSet<Frontend>>,
}

/// The changes of marks by a change of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkChanges {
    /// The virtual servers of marks that may differ.
    pub servers: BTreeSet<ipvs::ServiceKey>,
    /// The frontends whose mark may differ, each with the virtual server of its earlier mark.
    pub frontends: BTreeMap<Frontend, Option<ipvs::ServiceKey>>,
}

impl MarkChanges {
    /// Adds the changes of `other`, which came later.
    pub(crate) fn extend(&mut self, other: Self) {
        self.servers.extend(other.servers);
        for (frontend, before) in other.frontends {
            self.frontends.entry(frontend).or_insert(before);
        }
    }
}

impl InsideMarks {
    /// Returns the virtual server of the mark of `frontend`, if it has one.
    pub fn of(&self, frontend: &Frontend) -> Option<ipvs::ServiceKey> {
        self.frontends.get(frontend).copied()
    }

    /// Returns the virtual server of each mark.
    pub fn keys(&self) -> impl Iterator<Item = ipvs::ServiceKey> + '_ {
        self.users.keys().copied()
    }

    /// Returns the number of virtual servers of marks.
    pub(crate) fn len(&self) -> usize {
        self.users.len()
    }

    /// Returns the first frontend of a mark. All frontends of a mark have the same endpoints for clients inside.
    pub fn first_user(&self, key: &ipvs::ServiceKey) -> Option<&Frontend> {
        self.users.get(key)?.first()
    }

    /// Returns the frontends with `mark`, of both families.
    pub(crate) fn users(&self, mark: u32) -> impl Iterator<Item = &Frontend> {
        let keys = [ipvs::Family::V4, ipvs::Family::V6];
        let keys = keys.map(|family| ipvs::ServiceKey::Mark { family, mark });
        let users = keys.into_iter().filter_map(|key| self.users.get(&key));
        users.flatten()
    }

    /// Returns every frontend with a mark.
    pub(crate) fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.frontends.keys()
    }

    /// Gives a frontend the mark that it is told, for tests of packet rules; `None` takes it away.
    pub fn assign(&mut self, frontend: Frontend, mark: Option<u32>) -> MarkChanges {
        let family = frontend.family();
        let key = mark.map(|mark| ipvs::ServiceKey::Mark { family, mark });
        let mut changes = MarkChanges::default();
        self.replace(frontend, key, &mut changes);
        changes
    }

    /// Returns whether `mark` is or was a mark of the Service port ([`Marks::may_be_of`]).
    pub(crate) fn may_be_of(
        &self,
        mark: u32,
        owner: &ServicePortName,
        protocol: Protocol,
        family: ipvs::Family,
    ) -> bool {
        self.marks.may_be_of(mark, owner, protocol, family)
    }

    /// Follows a change of the plan.
    pub(crate) fn follow(
        &mut self,
        desired: &Desired,
        changed: &BTreeSet<Frontend>,
    ) -> MarkChanges {
        self.set_all(changed.iter().copied(), desired)
    }

    /// Gives the frontends of the mark of `key` another mark, because another program has a virtual server with it.
    pub(crate) fn exclude(&mut self, key: &ipvs::ServiceKey, desired: &Desired) -> MarkChanges {
        if let ipvs::ServiceKey::Mark { mark, .. } = *key {
            self.marks.exclude(mark);
        }
        // The mark may also be that of a Service port of the other family.
        let all: Vec<Frontend> = self.frontends.keys().copied().collect();
        self.set_all(all, desired)
    }

    /// Sets the key from which marks are computed, and the bits that none may have.
    pub(crate) fn set_key(&mut self, key: MarkKey, avoided: u32, desired: &Desired) -> MarkChanges {
        if !self.marks.set(key, avoided) {
            return MarkChanges::default();
        }
        let all: Vec<Frontend> = self.frontends.keys().copied().collect();
        self.set_all(all, desired)
    }

    /// Computes the marks of `frontends` again. Two Service ports with one mark both get another.
    fn set_all(
        &mut self,
        frontends: impl IntoIterator<Item = Frontend>,
        desired: &Desired,
    ) -> MarkChanges {
        let mut changes = MarkChanges::default();
        for frontend in frontends {
            self.set(frontend, desired.frontends.get(&frontend), &mut changes);
        }
        let is_contested = |key: &&ipvs::ServiceKey| self.is_contested(key, desired);
        if let Some(contested) = changes.servers.iter().find(is_contested).copied() {
            // Each pass excludes another mark, so the passes end.
            changes.extend(self.exclude(&contested, desired));
        }
        changes
    }

    fn set(&mut self, frontend: Frontend, plan: Option<&FrontendPlan>, changes: &mut MarkChanges) {
        let is_inside = |plan: &&FrontendPlan| plan.inside.is_some();
        let family = frontend.family();
        let key = plan.filter(is_inside).map(|plan| ipvs::ServiceKey::Mark {
            family,
            mark: self.marks.of(&plan.owner, frontend.protocol, family),
        });
        self.replace(frontend, key, changes);
    }

    fn replace(
        &mut self,
        frontend: Frontend,
        key: Option<ipvs::ServiceKey>,
        changes: &mut MarkChanges,
    ) {
        let before = match key {
            Some(key) => self.frontends.insert(frontend, key),
            None => self.frontends.remove(&frontend),
        };
        // Its endpoints may differ even if it has the same mark.
        changes.servers.extend(before.into_iter().chain(key));
        if before == key {
            return;
        }
        changes.frontends.entry(frontend).or_insert(before);
        if let Some(before) = before
            && let Some(users) = self.users.get_mut(&before)
        {
            users.remove(&frontend);
            if users.is_empty() {
                self.users.remove(&before);
            }
        }
        if let Some(key) = key {
            self.users.entry(key).or_default().insert(frontend);
        }
    }

    /// Returns whether two Service ports have the mark of `key`.
    fn is_contested(&self, key: &ipvs::ServiceKey, desired: &Desired) -> bool {
        let users = self.users.get(key).into_iter().flatten();
        let mut owners = users.filter_map(|frontend| {
            let plan = desired.frontends.get(frontend)?;
            Some((&plan.owner, frontend.protocol))
        });
        let first = owners.next();
        owners.any(|owner| Some(owner) != first)
    }
}
