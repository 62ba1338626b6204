//! Steps about the kernel's tables: whether they are as the plan wants them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;
use nftables::End;

use super::Asked;
use super::finding::{NO_RULES, NOT_IN_KERNEL, UNLIKE_PLAN};
use super::passage::Arrival;
use super::step::{Outcome, Seen, Step};
use crate::dataplane::ipvs::Wanted;
use crate::dataplane::ipvs::ledger::Drains;
use crate::dataplane::ipvs::observed::Observed;

/// The command that shows all differences.
const NEXT: &str = "ipvs-proxier plan";

/// The kernel's IPVS, beside what is wanted.
#[derive(Clone, Copy)]
pub(crate) struct KernelIpvs<'a> {
    pub(crate) wanted: Wanted<'a>,
    pub(crate) observed: &'a Observed,
    pub(crate) drains: &'a Drains,
    /// Whether the kernel has our packet rules, and whether they are those of the plan.
    pub(crate) rules: RulesState,
    pub(crate) now: Duration,
}

/// The state of the packet rules beside IPVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RulesState {
    /// Those of the plan.
    AsPlanned,
    /// Ours, but not those of the plan.
    Other,
    /// Missing, and another program has the device `kube-ipvs0`, as kube-proxy does: its rules serve.
    OfPredecessor,
    /// Missing.
    Missing,
}

impl KernelIpvs<'_> {
    /// Returns the steps about a question.
    pub(crate) fn steps(&self, asked: &Asked) -> Vec<Step> {
        let plan = self.wanted.desired().frontends.get(&asked.frontend);
        let Some(plan) = plan else {
            return Vec::new();
        };
        let is_local = self.observed.has_address(asked.frontend.address)
            || !self
                .wanted
                .desired()
                .addresses
                .contains_key(&asked.frontend.address);
        let mut steps = Vec::new();
        if !is_local {
            let what = format!("no route or device makes {} local", asked.frontend.address);
            let step = Step::new(what, "the plan asks for it", Seen::Kernel);
            steps.push(step.finding(&NOT_IN_KERNEL, outcome(asked), NEXT));
        }
        steps.push(self.server(asked));
        match self.rules {
            RulesState::AsPlanned => {}
            RulesState::Other => {
                let what = "the packet rules are not those of the plan";
                let because =
                    "the table inet ipvs-proxier has other rules; were these flags those of `run`?";
                let step = Step::new(what, because, Seen::Kernel);
                steps.push(step.finding(&UNLIKE_PLAN, Outcome::Answered, NEXT));
            }
            RulesState::OfPredecessor => {
                let what = "another program's packet rules decide who is admitted and masqueraded";
                let because =
                    "another program made kube-ipvs0, and the table inet ipvs-proxier is missing";
                steps.push(Step::new(what, because, Seen::Kernel));
            }
            RulesState::Missing => {
                let outcome = match plan.needs_rules() {
                    true => Outcome::Unknown,
                    false => Outcome::Answered,
                };
                let what = "the packet rules are missing, which admit clients and masquerade";
                let because = "the kernel has no table inet ipvs-proxier";
                let step = Step::new(what, because, Seen::Kernel);
                steps.push(step.finding(&NO_RULES, outcome, NEXT));
            }
        }
        steps
    }

    /// Returns the key of the virtual server that serves the client.
    pub(crate) fn key(&self, asked: &Asked) -> ipvs::ServiceKey {
        let address = ipvs::ServiceKey::from(asked.frontend);
        let marked = self.wanted.inside(&asked.frontend);
        marked.filter(|_| asked.passed.has_mark).unwrap_or(address)
    }

    /// Compares the virtual server with the plan's.
    fn server(&self, asked: &Asked) -> Step {
        let key = self.key(asked);
        let name = match key {
            ipvs::ServiceKey::Mark { mark, .. } => format!("firewall mark {mark:#x}"),
            _ => asked.frontend.to_string(),
        };
        let Some(found) = self.observed.virtual_servers.get(&key) else {
            let step = Step::new(
                format!("the kernel has no virtual server {name}"),
                "another program deleted it, or no proxy has made it yet",
                Seen::Kernel,
            );
            return step.finding(&NOT_IN_KERNEL, outcome(asked), NEXT);
        };
        let wanted = self.wanted.get(&key);
        let mut details = Vec::new();
        let mut unlike = Vec::new();
        let planned: BTreeMap<SocketAddr, u32> = wanted
            .iter()
            .flat_map(|it| it.endpoints.iter())
            .map(|it| ((it.address, it.port).into(), it.weight.into()))
            .collect();
        for destination in found.destinations.iter() {
            let to = SocketAddr::new(destination.key.address, destination.key.port);
            let weight = destination.weight;
            details.push(
                match (planned.get(&to), self.drains.get(&key, &destination.key)) {
                    (None, Some(drain)) => {
                        let left = drain.deadline.saturating_sub(self.now).as_secs();
                        format!("{to} drains: no new connections, open ones end within {left} s")
                    }
                    (None, None) if weight > 0 => {
                        unlike.push(format!("{to} has weight {weight} and is no endpoint"));
                        format!("{to} weight {weight}, not in the plan")
                    }
                    (Some(wanted), _) if *wanted != weight => {
                        unlike.push(format!("{to} has weight {weight} instead of {wanted}"));
                        format!("{to} weight {weight}, {wanted} in the plan")
                    }
                    _ => format!("{to} weight {weight}"),
                },
            );
        }
        let known: BTreeSet<SocketAddr> = found
            .destinations
            .iter()
            .map(|it| SocketAddr::new(it.key.address, it.key.port))
            .collect();
        for missing in planned.keys().filter(|it| !known.contains(it)) {
            unlike.push(format!("the destination {missing} is missing"));
            details.push(format!("{missing} is missing"));
        }
        let definition = wanted.map(|it| it.definition());
        if let Some(definition) = definition.filter(|it| *it != found.definition) {
            let name = |it: Option<ipvs::SchedulerName>| {
                it.map_or_else(|| "another".to_owned(), |it| it.to_string())
            };
            let (found, wanted) = (found.definition.scheduler, definition.scheduler);
            unlike.push(match found == wanted {
                true => "affinity or flags of the virtual server differ".to_owned(),
                false => format!(
                    "the scheduler is {} instead of {}",
                    name(found),
                    name(wanted)
                ),
            });
        }
        let what = match unlike.first() {
            None => format!("the virtual server {name} is as planned"),
            Some(first) => format!("the virtual server {name} is unlike the plan: {first}"),
        };
        let step = Step::new(what, "", Seen::Kernel).with_details(details);
        if unlike.is_empty() {
            return step;
        }
        step.finding(&UNLIKE_PLAN, outcome(asked), NEXT)
    }
}

/// Returns what a client sees that arrives so.
fn outcome(asked: &Asked) -> Outcome {
    match &asked.passed.arrival {
        Arrival::Endpoint(_) => Outcome::Answered,
        Arrival::Ended(End::Dropped(_)) | Arrival::Leaves => Outcome::Dropped,
        Arrival::Ended(End::Rejected(_)) | Arrival::NoDestination | Arrival::Process => {
            Outcome::Refused
        }
    }
}

/// The endpoints of a frontend in the kernel's table of maps.
pub(crate) type KernelEndpoints = BTreeSet<SocketAddr>;

/// Compares the endpoints of the kernel's table of maps with the plan's. `served` has those of each frontend; `None` if
/// the kernel has no table.
pub(crate) fn maps(
    asked: &Asked,
    served: Option<&KernelEndpoints>,
    planned: &KernelEndpoints,
) -> Step {
    let frontend = asked.frontend;
    let Some(served) = served else {
        let what = format!("the kernel's maps have no endpoint of {frontend}");
        let step = Step::new(what, "the table inet ipvs-proxier-maps", Seen::Kernel);
        return match planned.is_empty() {
            true => step,
            false => step.finding(&NOT_IN_KERNEL, Outcome::Dropped, NEXT),
        };
    };
    let details = served.iter().map(|it| format!("{it}")).collect();
    if served == planned {
        let what = format!("the kernel's maps have the endpoints of {frontend}");
        return Step::new(what, "", Seen::Kernel).with_details(details);
    }
    let what = format!("the kernel's maps have other endpoints of {frontend} than the plan");
    let step = Step::new(what, "", Seen::Kernel).with_details(details);
    step.finding(&UNLIKE_PLAN, Outcome::Answered, NEXT)
}

/// Returns the step about the time after which an idle connection is forgotten.
pub(crate) fn idle(asked: &Asked, seconds: u64, because: &str) -> Step {
    let protocol = asked.frontend.protocol;
    let what = format!("the kernel forgets a {protocol} connection that is idle for {seconds} s");
    let keepalives =
        "a later packet of it belongs to no connection; keepalives prevent that".to_owned();
    Step::new(what, because, Seen::Kernel).with_details(vec![keepalives])
}
