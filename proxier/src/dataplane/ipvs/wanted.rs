//! The virtual servers that the plan asks for.
//!
//! ```text
//!  frontend ─┬─ endpoints ─▶ virtual server at its address
//!            └─ inside ────▶ virtual server of a firewall mark, one for all frontends of a Service port
//! ```
//!
//! Nothing is kept: each value is computed from the plan when it is needed. Only the marks have a memory.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use super::InsideMarks;
use crate::cluster::model::{Family, ServicePortName};
use crate::dataplane::ipvs::definition::ServerDefinition;
use crate::plan::frontend::Frontend;
use crate::plan::{Balancing, Desired, Endpoints, FrontendKind, FrontendPlan, has_endpoint};

/// The plan in the terms of IPVS.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    desired: &'a Desired,
    marks: &'a InsideMarks,
}

/// A virtual server that the plan asks for.
#[derive(Clone, Copy, Debug)]
pub struct WantedServer<'a> {
    /// The frontend that it serves; of a firewall mark, one of those.
    pub plan: &'a FrontendPlan,
    /// The kind of its frontend; `None` for a firewall mark.
    pub kind: Option<FrontendKind>,
    /// Its endpoints.
    pub endpoints: &'a Endpoints,
    balancing: &'a Balancing,
    family: Family,
}

/// Parts of the kernel's state, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelParts {
    /// Virtual servers.
    pub virtual_servers: BTreeSet<ipvs::ServiceKey>,
    /// Service addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether the carrier is one of the parts.
    pub carrier: bool,
}

impl<'a> Wanted<'a> {
    /// Returns `desired` in the terms of IPVS.
    pub fn new(desired: &'a Desired, marks: &'a InsideMarks) -> Self {
        Self { desired, marks }
    }

    /// Returns the plan.
    pub fn desired(self) -> &'a Desired {
        self.desired
    }

    /// Returns the virtual server `key`; `None` if the plan does not ask for it.
    pub fn get(self, key: &ipvs::ServiceKey) -> Option<WantedServer<'a>> {
        match *key {
            ipvs::ServiceKey::Mark { family, .. } => {
                let frontend = self.marks.first_user(key)?;
                WantedServer::inside(self.desired.frontends.get(frontend)?, family)
            }
            _ => {
                let frontend = Frontend::of(key).filter(|it| !it.needs_relay())?;
                let plan = self.desired.frontends.get(&frontend)?;
                Some(WantedServer::at(plan, key.family()))
            }
        }
    }

    /// Returns whether the plan asks for the virtual server `key`.
    pub fn contains(self, key: &ipvs::ServiceKey) -> bool {
        self.get(key).is_some()
    }

    /// Returns every virtual server, those of firewall marks last.
    pub fn iter(self) -> impl Iterator<Item = (ipvs::ServiceKey, WantedServer<'a>)> {
        let frontends = self.desired.frontends.iter();
        let frontends = frontends.filter(|(frontend, _)| !frontend.needs_relay());
        let frontends = frontends.map(|(frontend, plan)| {
            let key = ipvs::ServiceKey::from(*frontend);
            (key, WantedServer::at(plan, key.family()))
        });
        let marks = self.marks.keys();
        frontends.chain(marks.filter_map(move |key| Some((key, self.get(&key)?))))
    }

    /// Returns the key of every virtual server.
    pub fn keys(self) -> impl Iterator<Item = ipvs::ServiceKey> + 'a {
        let frontends = self.desired.frontends.keys();
        let frontends = frontends.filter(|frontend| !frontend.needs_relay());
        let frontends = frontends.map(|frontend| ipvs::ServiceKey::from(*frontend));
        frontends.chain(self.marks.keys())
    }

    /// Returns the number of virtual servers.
    pub fn len(self) -> usize {
        let relayed = self.desired.needing_relay().count();
        self.desired.frontends.len() - relayed + self.marks.len()
    }

    /// Returns whether the plan asks for no virtual server.
    pub fn is_empty(self) -> bool {
        self.desired.frontends.is_empty()
    }

    /// Returns the virtual server of clients inside the cluster at `frontend`, if they have one.
    pub fn inside(self, frontend: &Frontend) -> Option<ipvs::ServiceKey> {
        self.marks.of(frontend)
    }

    /// Returns the marks of clients inside the cluster.
    pub(crate) fn marks(self) -> &'a InsideMarks {
        self.marks
    }

    /// Returns the virtual servers that must not exist without packet rules, and their addresses.
    pub fn needing_rules(self) -> (BTreeSet<ipvs::ServiceKey>, BTreeSet<IpAddr>) {
        let needing = self.desired.frontends.iter();
        let needing = needing.filter(|(_, plan)| plan.needs_rules());
        let (keys, addresses): (BTreeSet<_>, BTreeSet<_>) = needing
            .map(|(frontend, _)| (ipvs::ServiceKey::from(*frontend), frontend.address))
            .unzip();
        (keys, addresses)
    }
}

impl<'a> WantedServer<'a> {
    fn at(plan: &'a FrontendPlan, family: Family) -> Self {
        Self {
            plan,
            kind: Some(plan.profile.kind),
            endpoints: &plan.endpoints,
            balancing: &plan.profile.balancing,
            family,
        }
    }

    /// Returns the virtual server for clients inside the cluster; `None` if the plan does not distinguish them.
    fn inside(plan: &'a FrontendPlan, family: Family) -> Option<Self> {
        let inside = plan.inside.as_deref()?;
        Some(Self {
            plan,
            kind: None,
            endpoints: &inside.endpoints,
            balancing: &inside.balancing,
            family,
        })
    }

    /// Returns the Service port that it serves.
    pub fn owner(&self) -> &'a ServicePortName {
        &self.plan.owner
    }

    /// Returns its scheduler, flags and affinity.
    pub fn definition(&self) -> ServerDefinition {
        let Balancing {
            scheduler,
            flags,
            affinity_secs,
        } = self.balancing;
        let mut bits = ipvs::ServiceFlags::NONE;
        for (is_set, flag) in [
            (flags.fallback, ipvs::ServiceFlags::SCHED1),
            (flags.port, ipvs::ServiceFlags::SCHED2),
            // IPVS calls session affinity persistence.
            (affinity_secs.is_some(), ipvs::ServiceFlags::PERSISTENT),
        ] {
            if is_set {
                bits = bits | flag;
            }
        }
        ServerDefinition {
            // The dataplane lacks a scheduler whose name IPVS cannot have, so no plan has one.
            scheduler: ipvs::SchedulerName::new(scheduler).ok(),
            flags: bits,
            timeout_secs: affinity_secs.unwrap_or_default(),
            client_mask: ipvs::ClientMask::host(self.family),
            engine: None,
        }
    }

    /// Returns whether it has this destination.
    pub fn has_destination(&self, key: &ipvs::DestinationKey) -> bool {
        has_endpoint(self.endpoints, key.address, key.port)
    }
}
