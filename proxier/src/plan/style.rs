//! How a Service wants its virtual servers: what its annotations say, or else the operator.

use std::time::Duration;

use ipvs_netlink as ipvs;

use super::context::Context;
use crate::model::{Annotations, SchedulerFlags, Service, Weights};
use crate::problem::Problem;

const SCHEDULER: &str = "metadata.annotations[ipvs-proxier.io/scheduler]";
const SCHEDULER_FLAGS: &str = "metadata.annotations[ipvs-proxier.io/scheduler-flags]";
const WEIGHTS: &str = "metadata.annotations[ipvs-proxier.io/weights]";
const TOPOLOGY_KEYS: &str = "metadata.annotations[ipvs-proxier.io/topology-keys]";
const IDLE_TIMEOUT: &str = "metadata.annotations[ipvs-proxier.io/idle-timeout]";

/// What all virtual servers of a Service have in common.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Style {
    scheduler: ipvs::SchedulerName,
    flags: ipvs::ServiceFlags,
    affinity_secs: Option<u32>,
    /// How long a removed destination may keep its connections.
    pub(super) drain: Duration,
}

impl Style {
    /// The style of `service`; what cannot be had of it is added to `problems`.
    pub(super) fn of(
        service: &Service,
        context: &Context<'_>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let none = Annotations::default();
        let wishes = service.annotations.as_deref().unwrap_or(&none);
        let mut complain = |field, value: &str, message: String| {
            let object = format_args!("Service {}", service.name);
            problems.push(Problem::new(object, field, value, message));
        };
        let scheduler = match wishes.scheduler.as_deref() {
            None => context.scheduler,
            Some(wanted) => context.usable_scheduler(wanted).unwrap_or_else(|| {
                let message = format!(
                    "is a scheduler that this kernel has not; {} is used",
                    context.scheduler
                );
                complain(SCHEDULER, wanted, message);
                context.scheduler
            }),
        };
        let name = scheduler.as_str();
        let flags = match wishes.scheduler_flags {
            Some(flags) if is_hashing(name) => chosen_flags(flags),
            // The scheduler that the flags were for is not there, and that was said.
            Some(_) if wishes.scheduler.is_some() => default_flags(name),
            Some(_) => {
                let message = "is for the schedulers sh and mh only; ignored, as the cluster's \
                               default is another one and ipvs-proxier.io/scheduler is not given";
                complain(SCHEDULER_FLAGS, name, message.to_owned());
                default_flags(name)
            }
            None => default_flags(name),
        };
        let weights = wishes.weights.as_ref();
        if !heeds_weights(name) && weights.is_some_and(is_uneven) {
            let message = "is a scheduler that heeds no weight but 0; give ipvs-proxier.io/scheduler \
                           one that does, such as wrr or wlc";
            complain(WEIGHTS, name, message.to_owned());
        }
        let place = context.place();
        for &key in wishes.topology_keys.iter().flatten() {
            if let Some(missing) = place.lacks(key) {
                let message = format!(
                    "cannot be followed before {missing} can be read; all endpoints count as near"
                );
                complain(TOPOLOGY_KEYS, key.as_str(), message);
            }
        }
        if let Some(secs) = wishes.idle_timeout_secs {
            let message = "is not heeded: the kernel has one such time for all connections of the \
                           node and none per Service";
            complain(IDLE_TIMEOUT, &secs.to_string(), message.to_owned());
        }
        let drain = wishes.drain_secs.map(u64::from).map(Duration::from_secs);
        Self {
            scheduler,
            flags,
            affinity_secs: service.affinity_secs,
            drain: drain.unwrap_or(context.config.drain),
        }
    }

    /// The virtual server at `key`.
    pub(super) fn service(&self, key: ipvs::ServiceKey) -> ipvs::Service {
        let mut service = ipvs::Service::new(key, self.scheduler);
        service.flags = service.flags | self.flags;
        if let Some(seconds) = self.affinity_secs {
            service.flags = service.flags | ipvs::ServiceFlags::PERSISTENT;
            service.timeout_secs = seconds;
        }
        service
    }
}

/// The schedulers that hash clients. All others have no flags.
fn is_hashing(scheduler: &str) -> bool {
    matches!(scheduler, "sh" | "mh")
}

fn chosen_flags(flags: SchedulerFlags) -> ipvs::ServiceFlags {
    let mut bits = ipvs::ServiceFlags::NONE;
    if flags.fallback {
        bits = bits | ipvs::ServiceFlags::SCHED1;
    }
    if flags.port {
        bits = bits | ipvs::ServiceFlags::SCHED2;
    }
    bits
}

/// kube-proxy's rule: Maglev hashes source address and port (`--ipvs-scheduler=mh`).
fn default_flags(scheduler: &str) -> ipvs::ServiceFlags {
    match scheduler {
        "mh" => ipvs::ServiceFlags::SCHED2,
        _ => ipvs::ServiceFlags::NONE,
    }
}

/// Whether the share of a destination depends on its weight. The others only pass over weight 0
/// (`ip_vs_rr.c`, `ip_vs_lc.c`, `ip_vs_dh.c`, Linux 6.1). Of schedulers that nobody here knows the best
/// is assumed.
fn heeds_weights(scheduler: &str) -> bool {
    !matches!(scheduler, "rr" | "lc" | "dh")
}

/// Whether there are two different weights beside 0.
fn is_uneven(weights: &Weights) -> bool {
    let addresses = weights.addresses.iter().map(|&(_, weight)| weight);
    let named = weights.nodes.iter().chain(&weights.zones);
    let rules = addresses.chain(named.map(|&(_, weight)| weight));
    let mut all = rules.chain([weights.default]).filter(|&weight| weight > 0);
    let first = all.next();
    all.any(|weight| Some(weight) != first)
}
