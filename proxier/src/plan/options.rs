//! The options of a Service's frontends: its annotations, or the operator's defaults.

use std::time::Duration;

use super::context::Context;
use super::standing::{UNHEEDED, heeds_slow_start};
use super::{Balancing, PlanConfig, RelayOptions};
use crate::cluster::model::{Annotations, SchedulerFlags, Service, TrafficPolicy, Weights};
use crate::cluster::problem::Problem;

const SCHEDULER: &str = "metadata.annotations[ipvs-proxier.io/scheduler]";
const SCHEDULER_FLAGS: &str = "metadata.annotations[ipvs-proxier.io/scheduler-flags]";
const WEIGHTS: &str = "metadata.annotations[ipvs-proxier.io/weights]";
const SLOW_START: &str = "metadata.annotations[ipvs-proxier.io/slow-start]";
const PASSIVE_HEALTH: &str = "metadata.annotations[ipvs-proxier.io/passive-health]";
const MAX_CONNECTIONS: &str = "metadata.annotations[ipvs-proxier.io/max-connections]";
const TOPOLOGY_KEYS: &str = "metadata.annotations[ipvs-proxier.io/topology-keys]";

/// The options that all frontends of a Service share.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServiceOptions {
    pub(super) balancing: Balancing,
    /// Affinity without a timeout: a scheduler that hashes clients' addresses. For where the dataplane has no other.
    hashing: Balancing,
    /// How long a removed endpoint may keep its connections.
    pub(super) drain: Duration,
    pub(super) relay: RelayOptions,
    /// The most connections of an endpoint at one virtual server; 0 for no limit.
    pub(super) most_connections: u16,
}

impl ServiceOptions {
    /// Returns the options of `service`; appends unusable annotations to `problems`.
    pub(super) fn of(
        service: &Service,
        context: &Context<'_>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let none = Annotations::default();
        let annotations = service.annotations.as_deref().unwrap_or(&none);
        let mut report = |field, value: &str, message: String| {
            let object = format_args!("Service {}", service.name);
            problems.push(Problem::new(object, field, value, message));
        };
        let scheduler = match annotations.scheduler.as_deref() {
            None => context.scheduler.clone(),
            Some(wanted) => context.usable_scheduler(wanted).unwrap_or_else(|| {
                let message = format!(
                    "is a scheduler that this node's dataplane lacks; {} is used instead",
                    context.scheduler
                );
                report(SCHEDULER, wanted, message);
                context.scheduler.clone()
            }),
        };
        let name = &*scheduler;
        let flags = match annotations.scheduler_flags {
            Some(flags) if is_hashing(name) => flags,
            // The kernel lacks the requested scheduler. That problem is reported above; a second
            // one about its flags would only distract.
            Some(_) if annotations.scheduler.is_some() => default_flags(name),
            Some(_) => {
                let message = "is a scheduler without flags, so that these are ignored; request sh or \
                               mh with ipvs-proxier.io/scheduler";
                report(SCHEDULER_FLAGS, name, message.to_owned());
                default_flags(name)
            }
            None => default_flags(name),
        };
        let weights = annotations.weights.as_ref();
        if weights.is_some_and(|weights| ignores_weights(name, weights)) {
            let message = format!(
                "{IGNORED}; request one that uses them with ipvs-proxier.io/scheduler, such as wrr or wlc"
            );
            report(WEIGHTS, name, message);
        }
        if annotations.slow_start_secs.is_some_and(|secs| secs > 0)
            && !heeds_slow_start(service, context.config)
        {
            let message = format!(
                "{UNHEEDED}; request one that can with ipvs-proxier.io/scheduler, such as twos, wlc or mh"
            );
            report(SLOW_START, name, message);
        }
        if let Some(count) = annotations.passive_health
            && context.capabilities.lacks_answers
        {
            let message = "needs the dataplane ipvs, which counts the answers of endpoints; it has no effect on this node";
            report(PASSIVE_HEALTH, &count.to_string(), message.to_owned());
        }
        let topology = context.topology();
        for (key, _) in weights.into_iter().flat_map(|weights| &weights.near) {
            if let Some(missing) = topology.missing_objects(*key) {
                report(WEIGHTS, key.as_str(), no_object_matches(missing));
            }
        }
        for &key in annotations.topology_keys.iter().flatten() {
            if let Some(missing) = topology.missing_objects(key) {
                let message = format!(
                    "cannot be evaluated before the proxy can read {missing}; until then all endpoints \
                     match"
                );
                report(TOPOLOGY_KEYS, key.as_str(), message);
            }
        }
        // Maglev first: a change of one endpoint moves few other clients.
        let mut hashing = ["mh", "sh"].into_iter();
        let hashing = hashing.find_map(|name| context.usable_scheduler(name));
        let needs_hashing = service.affinity_secs.is_some()
            && service.external_policy == TrafficPolicy::Local
            && !context.capabilities.has_full_affinity;
        if hashing.is_none() && needs_hashing {
            let message = "needs the scheduler mh or sh for clients inside the cluster at frontends with \
                           externalTrafficPolicy Local, and this node's dataplane lacks both; these clients have no \
                           affinity there";
            report("spec.sessionAffinity", "ClientIP", message.to_owned());
        }
        let mut most_connections = annotations.most_connections.unwrap_or_default();
        if most_connections > 0 && context.capabilities.ignores_limits {
            let message = "has no effect: the dataplane nftables counts no connections of endpoints; IPVS and the \
                           relay do";
            let value = most_connections.to_string();
            report(MAX_CONNECTIONS, &value, message.to_owned());
            most_connections = 0;
        }
        let relay = RelayOptions::of(service, annotations, context.capabilities, &mut report);
        Self {
            hashing: Balancing {
                scheduler: hashing.unwrap_or_else(|| scheduler.clone()),
                flags: SchedulerFlags::default(),
                affinity_secs: None,
            },
            balancing: Balancing {
                scheduler,
                flags,
                affinity_secs: service.affinity_secs,
            },
            drain: drain(service, context.config),
            relay,
            most_connections,
        }
    }

    /// Returns how connections are spread where affinity with a timeout may not be available.
    pub(super) fn without_timeout(&self, context: &Context<'_>) -> &Balancing {
        let has_affinity = self.balancing.affinity_secs.is_some();
        if has_affinity && !context.capabilities.has_full_affinity {
            &self.hashing
        } else {
            &self.balancing
        }
    }
}

/// Returns how long the TCP connections of `service` may continue at an endpoint or a frontend that it
/// no longer has.
pub(crate) fn drain(service: &Service, config: &PlanConfig) -> Duration {
    let annotations = service.annotations.as_deref();
    let secs = annotations.and_then(|annotations| annotations.drain_secs);
    secs.map_or(config.drain, |secs| Duration::from_secs(secs.into()))
}

/// Returns whether the scheduler hashes clients; all others have no flags.
fn is_hashing(scheduler: &str) -> bool {
    matches!(scheduler, "sh" | "mh")
}

/// Returns the flags of a Service without annotation.
///
/// As with kube-proxy, Maglev hashes the source port, too (`--ipvs-scheduler=mh`).
fn default_flags(scheduler: &str) -> SchedulerFlags {
    SchedulerFlags {
        fallback: false,
        port: scheduler == "mh",
    }
}

/// The beginning of a message about a scheduler that ignores weights.
pub(super) const IGNORED: &str = "is a scheduler that ignores all weights but 0";

/// Returns whether the scheduler ignores differences of these weights.
///
/// `rr`, `lc` and `dh` only skip weight 0 (`ip_vs_rr.c`, `ip_vs_lc.c`, `ip_vs_dh.c`, Linux 6.1). An unknown
/// scheduler is assumed to use weights: a missing problem harms less than a wrong one.
pub(super) fn ignores_weights(scheduler: &str, weights: &Weights) -> bool {
    matches!(scheduler, "rr" | "lc" | "dh") && is_uneven(weights)
}

/// Returns the message about a location in weights that cannot be evaluated.
pub(super) fn no_object_matches(missing: &str) -> String {
    format!(
        "cannot be evaluated before the proxy can read {missing}; until then only endpoints on this node match"
    )
}

/// Returns whether two weights above 0 differ.
fn is_uneven(weights: &Weights) -> bool {
    let addresses = weights.addresses.iter().map(|&(_, weight)| weight);
    let named = weights.nodes.iter().chain(&weights.zones);
    let near = weights.near.iter().map(|&(_, weight)| weight);
    let rules = addresses
        .chain(named.map(|&(_, weight)| weight))
        .chain(near);
    let mut all = rules.chain([weights.default]).filter(|&weight| weight > 0);
    let first = all.next();
    all.any(|weight| Some(weight) != first)
}
