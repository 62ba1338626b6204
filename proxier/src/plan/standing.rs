//! What this node itself learnt of endpoints, beside the objects of the API.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::PlanConfig;
use crate::cluster::model::{ObjectName, Service};

/// The endpoints that should get fewer new connections than the objects of the API say.
///
/// Times are not in it: whoever keeps it decides when an endpoint enters and leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standings {
    /// The new endpoints of Services with slow start.
    new: Marked,
    /// The endpoints of Services with passive health that do not answer.
    silent: Marked,
}

/// Endpoints of Services.
type Marked = Arc<BTreeMap<ObjectName, Arc<BTreeSet<IpAddr>>>>;

impl Standings {
    /// Replaces the new endpoints of a Service.
    pub fn set_new(&mut self, service: &ObjectName, endpoints: BTreeSet<IpAddr>) {
        set(&mut self.new, service, endpoints);
    }

    /// Replaces the silent endpoints of a Service.
    pub fn set_silent(&mut self, service: &ObjectName, endpoints: BTreeSet<IpAddr>) {
        set(&mut self.silent, service, endpoints);
    }

    /// Returns the silent endpoints of a Service.
    pub(crate) fn silent_of(&self, service: &ObjectName) -> Option<&BTreeSet<IpAddr>> {
        self.silent.get(service).map(|it| &**it)
    }

    /// Returns the number of silent endpoints.
    pub(crate) fn count_silent(&self) -> usize {
        self.silent.values().map(|it| it.len()).sum()
    }

    /// Returns the new endpoints of a Service.
    pub(crate) fn new_of(&self, service: &ObjectName) -> Option<&BTreeSet<IpAddr>> {
        self.new.get(service).map(|it| &**it)
    }

    /// Returns the Services of which the two differ.
    ///
    /// # Cost
    /// Linear in the Services with entries; nothing if the two share their memory.
    pub(super) fn differences(&self, other: &Self) -> Vec<ObjectName> {
        if Arc::ptr_eq(&self.new, &other.new) && Arc::ptr_eq(&self.silent, &other.silent) {
            return Vec::new();
        }
        let marked = [&self.new, &self.silent, &other.new, &other.silent].into_iter();
        let names: BTreeSet<&ObjectName> = marked.flat_map(|marked| marked.keys()).collect();
        let of = |it: &Self, name| (it.new.get(name).cloned(), it.silent.get(name).cloned());
        let differing = names
            .into_iter()
            .filter(|name| of(self, *name) != of(other, *name));
        differing.cloned().collect()
    }
}

fn set(marked: &mut Marked, service: &ObjectName, endpoints: BTreeSet<IpAddr>) {
    let known = marked.get(service).map(|it| &**it);
    if known == Some(&endpoints) || known.is_none() && endpoints.is_empty() {
        return;
    }
    let marked = Arc::make_mut(marked);
    match endpoints.is_empty() {
        true => marked.remove(service),
        false => marked.insert(service.clone(), Arc::new(endpoints)),
    };
}

/// The schedulers with which slow start has no effect: those that ignore weights, those that always pick the heaviest, those
/// for which a weight is a limit, and sh, of whose 256 slots large weights would leave some endpoints none.
const WITHOUT: [&str; 6] = ["rr", "lc", "dh", "fo", "ovf", "sh"];

/// The beginning of a message about one of them.
pub(super) const UNHEEDED: &str =
    "is a scheduler that cannot start endpoints slowly; new endpoints have their whole weights";

/// Returns whether the scheduler that `service` asks for can start endpoints slowly.
///
/// That it asks for, not that it gets: the weights of a plan must not depend on what a kernel lacks.
pub(super) fn heeds_slow_start(service: &Service, config: &PlanConfig) -> bool {
    let own = service.annotations.as_deref();
    let own = own.and_then(|annotations| annotations.scheduler.as_deref());
    can_start_slowly(own.unwrap_or(&config.scheduler))
}

/// Returns whether a new endpoint gets fewer connections from this scheduler.
pub(super) fn can_start_slowly(scheduler: &str) -> bool {
    !WITHOUT.contains(&scheduler)
}

/// Returns how long new endpoints of `service` have smaller weights; `None`: never.
pub(crate) fn slow_start(service: &Service, config: &PlanConfig) -> Option<Duration> {
    let annotations = service.annotations.as_deref();
    let secs = annotations.and_then(|annotations| annotations.slow_start_secs);
    let own = secs.map(|secs| Duration::from_secs(secs.into()));
    let wanted = own.or(config.slow_start).filter(|it| !it.is_zero());
    wanted.filter(|_| heeds_slow_start(service, config))
}
