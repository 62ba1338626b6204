//! The frontends whose weights need more slots than a frontend gets.

use std::collections::BTreeSet;

use super::slots;
use crate::cluster::problem::Problem;
use crate::plan::frontend::Frontend;
use crate::plan::{Changed, Desired, FrontendPlan};

/// The field that has weights.
const WEIGHTS: &str = "metadata.annotations[ipvs-proxier.io/weights]";

/// The frontends with rounded shares.
#[derive(Debug, Default)]
pub(super) struct Rounded {
    frontends: BTreeSet<Frontend>,
    /// Increases when the Problems about them may have changed.
    pub(super) revision: u64,
}

impl Rounded {
    /// Follows a change of the plan.
    pub(super) fn follow(&mut self, desired: &Desired, changed: &Changed) {
        for frontend in &changed.frontends {
            let is_rounded = desired.frontends.get(frontend).is_some_and(is_rounded);
            let has_changed = match is_rounded {
                true => self.frontends.insert(*frontend),
                false => self.frontends.remove(frontend),
            };
            self.revision += u64::from(has_changed);
        }
    }

    /// Returns a Problem for each Service.
    pub(super) fn problems(&self, desired: &Desired) -> Vec<Problem> {
        let plans = self.frontends.iter();
        let plans = plans.filter_map(|frontend| desired.frontends.get(frontend));
        let services: BTreeSet<_> = plans.map(|plan| &plan.owner.service).collect();
        let problem = |service| {
            let message = "need more slots of nftables than a frontend gets (1,024, or fewer if the Service has more than 8 \
                           frontends), so the shares of the endpoints are rounded; smaller numbers, or such with a \
                           common divisor, are exact";
            Problem::new(format_args!("Service {service}"), WEIGHTS, "", message)
        };
        services.into_iter().map(problem).collect()
    }
}

fn is_rounded(plan: &FrontendPlan) -> bool {
    let budget = slots::budget(plan);
    let outside = slots::are_rounded(&plan.endpoints, &plan.profile.balancing, budget);
    let inside = plan.inside.as_ref();
    outside || inside.is_some_and(|it| slots::are_rounded(&it.endpoints, &it.balancing, budget))
}
