//! The parts of the plan that one Service required, so that they can be withdrawn.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::cluster::problem::Problem;
use crate::plan::frontend::Frontend;
use crate::plan::service::Requirements;

/// The parts of the plan that one Service required.
#[derive(Clone, Debug)]
pub(super) struct Footprint {
    pub(super) frontends: Box<[Frontend]>,
    pub(super) addresses: Box<[IpAddr]>,
    pub(super) local_endpoints: Box<[IpAddr]>,
    pub(super) health_port: Option<u16>,
    pub(super) problems: Box<[Problem]>,
    /// The addresses that other machines have.
    pub(super) elsewhere: Box<[IpAddr]>,
}

impl Footprint {
    /// Returns the footprint of `requirements`. Takes all from them that only the footprint needs.
    pub(super) fn take(requirements: &mut Requirements) -> Self {
        let frontends = requirements.frontends.iter();
        let health_check = requirements.health_check.as_ref();
        Self {
            frontends: frontends.map(|&(frontend, _)| frontend).collect(),
            health_port: health_check.map(|&(port, _)| port),
            addresses: std::mem::take(&mut requirements.addresses).into(),
            local_endpoints: std::mem::take(&mut requirements.local_endpoints)
                .into_iter()
                .collect(),
            problems: std::mem::take(&mut requirements.problems).into(),
            elsewhere: std::mem::take(&mut requirements.elsewhere).into(),
        }
    }

    /// Returns whether the plan of the Service may change with the knowledge of who has the addresses `changed`.
    pub(super) fn concerns(&self, changed: &BTreeSet<IpAddr>) -> bool {
        let mut addresses = self.addresses.iter().chain(&self.elsewhere);
        addresses.any(|address| changed.contains(address))
    }
}
