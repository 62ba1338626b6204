//! The parts of the plan that one Service required, so that they can be withdrawn.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use crate::plan::service::Requirements;
use crate::problem::Problem;

/// The parts of the plan that one Service required.
#[derive(Clone, Debug)]
pub(super) enum Footprint {
    /// One virtual server at an address that is local for it, and nothing else. Nearly all Services have
    /// such a footprint, which needs no memory of its own.
    Single([ipvs::ServiceKey; 1]),
    Other(Box<FootprintParts>),
}

/// The parts of any footprint.
#[derive(Clone, Debug)]
pub(super) struct FootprintParts {
    keys: Box<[ipvs::ServiceKey]>,
    addresses: Box<[IpAddr]>,
    pub(super) local_endpoints: Box<[IpAddr]>,
    pub(super) health_port: Option<u16>,
    pub(super) problems: Box<[Problem]>,
    /// The addresses that other machines have.
    elsewhere: Box<[IpAddr]>,
}

impl Footprint {
    /// Returns the footprint of `requirements`. Takes all from them that only the footprint needs.
    pub(super) fn take(requirements: &mut Requirements) -> Self {
        let addresses = std::mem::take(&mut requirements.addresses);
        let local_endpoints = std::mem::take(&mut requirements.local_endpoints);
        let problems = std::mem::take(&mut requirements.problems);
        let health_port = requirements.health_check.as_ref().map(|&(port, _)| port);
        if let [(key, _)] = requirements.servers[..]
            && let Some(address) = key.address()
            && addresses == [address]
            && local_endpoints.is_empty()
            && problems.is_empty()
            && health_port.is_none()
        {
            return Self::Single([key]);
        }
        let servers = requirements.servers.iter();
        Self::Other(Box::new(FootprintParts {
            keys: servers.map(|&(key, _)| key).collect(),
            addresses: addresses.into(),
            local_endpoints: local_endpoints.into_iter().collect(),
            health_port,
            problems: problems.into(),
            elsewhere: std::mem::take(&mut requirements.elsewhere).into(),
        }))
    }

    pub(super) fn keys(&self) -> &[ipvs::ServiceKey] {
        match self {
            Self::Single(key) => key,
            Self::Other(parts) => &parts.keys,
        }
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let (single, others) = match self {
            Self::Single([key]) => (key.address(), &[][..]),
            Self::Other(parts) => (None, &*parts.addresses),
        };
        single.into_iter().chain(others.iter().copied())
    }

    /// Returns whether the plan of the Service may change with the knowledge of who has the addresses `changed`.
    pub(super) fn concerns(&self, changed: &BTreeSet<IpAddr>) -> bool {
        let elsewhere = self.parts().map_or(&[][..], |parts| &parts.elsewhere);
        let mut addresses = self.addresses().chain(elsewhere.iter().copied());
        addresses.any(|address| changed.contains(&address))
    }

    /// Returns whether `address` is one of the Service that another machine has.
    pub(super) fn is_elsewhere(&self, address: &IpAddr) -> bool {
        let parts = self.parts();
        parts.is_some_and(|parts| parts.elsewhere.contains(address))
    }

    /// Returns all parts; `None` if there are only a virtual server and its address.
    pub(super) fn parts(&self) -> Option<&FootprintParts> {
        match self {
            Self::Single(_) => None,
            Self::Other(parts) => Some(parts),
        }
    }
}
