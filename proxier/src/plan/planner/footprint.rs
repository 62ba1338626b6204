//! The parts of the plan that one Service required, so that they can be withdrawn.

use std::collections::BTreeSet;
use std::net::IpAddr;

use smallvec::SmallVec;

use crate::cluster::problem::Problem;
use crate::plan::frontend::Frontend;
use crate::plan::service::Requirements;

/// The parts of the plan that one Service required.
#[derive(Clone, Debug)]
pub(super) struct Footprint {
    /// Most Services have one frontend and one address.
    pub(super) frontends: SmallVec<[Frontend; 1]>,
    pub(super) addresses: SmallVec<[IpAddr; 1]>,
    /// `None` for most Services, which are many.
    rare: Option<Box<RareParts>>,
}

/// The parts that few Services require.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RareParts {
    pub(super) local_endpoints: Vec<IpAddr>,
    pub(super) health_port: Option<u16>,
    pub(super) problems: Vec<Problem>,
    /// The addresses that other machines have.
    pub(super) elsewhere: Vec<IpAddr>,
}

impl Footprint {
    /// Returns the footprint of `requirements`. Takes all from them that only the footprint needs.
    pub(super) fn take(requirements: &mut Requirements) -> Self {
        let frontends = requirements.frontends.iter();
        let health_check = requirements.health_check.as_ref();
        let local_endpoints = std::mem::take(&mut requirements.local_endpoints);
        let rare = RareParts {
            local_endpoints: local_endpoints.into_iter().collect(),
            health_port: health_check.map(|&(port, _)| port),
            problems: std::mem::take(&mut requirements.problems),
            elsewhere: std::mem::take(&mut requirements.elsewhere),
        };
        Self {
            frontends: frontends.map(|&(frontend, _)| frontend).collect(),
            addresses: requirements.addresses.drain(..).collect(),
            rare: (rare != RareParts::default()).then(|| Box::new(rare)),
        }
    }

    /// Returns the parts that few Services require.
    pub(super) fn rare(&self) -> &RareParts {
        static NONE: RareParts = RareParts {
            local_endpoints: Vec::new(),
            health_port: None,
            problems: Vec::new(),
            elsewhere: Vec::new(),
        };
        self.rare.as_deref().unwrap_or(&NONE)
    }

    /// Returns whether the plan of the Service may change with the knowledge of who has the addresses `changed`.
    pub(super) fn concerns(&self, changed: &BTreeSet<IpAddr>) -> bool {
        let mut addresses = self.addresses.iter().chain(&self.rare().elsewhere);
        addresses.any(|address| changed.contains(address))
    }
}
