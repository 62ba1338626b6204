//! The metrics of events and rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use metrics::{counter, gauge};

use super::{Chore, Round};
use crate::cluster::model::{Family, TrafficPolicy};
use crate::cluster::problem::Problem;
use crate::cluster::store::{Event, Update};
use crate::dataplane::{Applied, Dataplane, Extent};
use crate::observe::instruments::{FAMILIES, family_name};
use crate::plan::{Availability, Desired, Scope};
use crate::sources::message::Message;

mod series;

use series::{EventSeries, RoundSeries};

/// The maximum number of changes that wait for a round and are measured. It bounds memory while rounds fail.
const MAX_TRIGGERS: usize = 10_000;

/// Records the metrics of events and rounds.
#[derive(Debug)]
pub struct Meter {
    /// The latency of changes of endpoints before this time is not measured, because an earlier process
    /// may have programmed them. kube-proxy ignores them too.
    started: SystemTime,
    /// The family and time of each change of endpoints that waits for a round.
    triggers: Vec<(Family, SystemTime)>,
    service_changes: u64,
    slice_changes: u64,
    /// The number of Problems by kind of object. A kind stays when its last Problem is solved, so that its
    /// gauge becomes 0.
    problem_kinds: BTreeMap<String, usize>,
    of_events: EventSeries,
    of_rounds: RoundSeries,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            started: SystemTime::now(),
            triggers: Vec::new(),
            service_changes: 0,
            slice_changes: 0,
            problem_kinds: BTreeMap::new(),
            of_events: EventSeries::default(),
            of_rounds: RoundSeries::default(),
        }
    }
}

impl Meter {
    fn event(&mut self, event: &Event) {
        let series = &self.of_events;
        match event {
            Event::Services(update) => {
                let changes = size(update);
                self.service_changes += changes;
                series.services.total.increment(changes);
                series.services.pending.set(self.service_changes as f64);
            }
            Event::EndpointSlices(update) => {
                let changes = size(update);
                self.slice_changes += changes;
                series.slices.total.increment(changes);
                series.slices.pending.set(self.slice_changes as f64);
                // Only single changes: a relist also has objects that earlier rounds programmed.
                // The first endpoint tells the family, because a slice has only one.
                if let Update::Apply(parsed) = update
                    && let Some(slice) = &parsed.object
                    && let Some(changed) = parsed.changed.filter(|changed| *changed > self.started)
                    && let Some(endpoint) = slice.endpoints.first()
                    && self.triggers.len() < MAX_TRIGGERS
                {
                    self.triggers.push((endpoint.address.into(), changed));
                }
            }
            Event::Node(_) | Event::ServiceCidrs(_) | Event::Nodes(_) => {}
        }
        let now = since_epoch(SystemTime::now());
        for last_queued in series.last_queued.both() {
            last_queued.set(now);
        }
    }

    /// Records a round that did not fail as a whole.
    fn round<D: Dataplane>(&mut self, round: &Round<'_, D>, applied: &Applied<D::Changes>) {
        let (wall, proxier) = (SystemTime::now(), round.proxier);
        let series = &mut self.of_rounds;
        for duration in series.duration.both() {
            duration.record(round.took.as_secs_f64());
        }
        for last in series.last.both() {
            last.set(since_epoch(wall));
        }
        for (family, changed) in self.triggers.drain(..) {
            // Another machine's clock set `changed`. If it is ahead of ours, the latency counts as
            // 0.
            let latency = wall.duration_since(changed).unwrap_or_default();
            series.latency.of(family).record(latency.as_secs_f64());
        }
        (self.service_changes, self.slice_changes) = (0, 0);
        self.of_events.services.pending.set(0.0);
        self.of_events.slices.pending.set(0.0);
        let dataplane = proxier.dataplane();
        dataplane.report(proxier.planned(), applied, &mut |change| {
            let values = [change.kind, result(change.outcome.is_ok())];
            series.ops.with(values).increment(change.count as u64);
        });
        count_failures(applied);
        let desired = proxier.desired();
        let counts = dataplane.counts(proxier.planned());
        series.virtual_servers.set(counts.frontends as f64);
        let addresses = desired.addresses.len();
        series.service_addresses.set(addresses as f64);
        series.draining.set(counts.draining as f64);
        let silent = proxier.machine().standings.count_silent();
        series.silent.set(silent as f64);
        if round.extent == Extent::All {
            // A walk over the whole plan is cheap beside a resync, but not beside the round of one event.
            let destinations = dataplane.destinations(proxier.planned());
            gauge!("ipvs_proxier_destinations").set(destinations as f64);
            count_remote_only(desired);
            self.problems(&round.problems);
        }
    }

    /// Records the number of Problems of each kind of object.
    fn problems(&mut self, problems: &[Problem]) {
        self.problem_kinds.values_mut().for_each(|count| *count = 0);
        for problem in problems {
            // `Service default/web` is of kind Service. A Problem with a place in a file is of kind Manifest.
            let kind = match problem.object.split_once(' ') {
                Some((kind, _)) if kind.chars().all(char::is_alphabetic) => kind,
                _ if problem.object == "Configuration" => "Configuration",
                _ => "Manifest",
            };
            *self.problem_kinds.entry(kind.to_owned()).or_default() += 1;
        }
        for (kind, count) in &self.problem_kinds {
            gauge!("ipvs_proxier_problems", "object" => kind.clone()).set(*count as f64);
        }
    }
}

impl<D: Dataplane> Chore<D> for Meter {
    fn receive(&mut self, message: &Message) {
        match message {
            Message::Event(event) => self.event(event),
            Message::RulesChanged(tampering) if tampering.concerns_our_table() => {
                counter!("ipvs_proxier_rules_repairs_total").increment(1);
            }
            _ => {}
        }
    }

    fn after(&mut self, round: &Round<'_, D>) {
        let extent = match round.extent {
            Extent::All => "all",
            Extent::Pending => "pending",
        };
        let values = [extent, result(round.has_succeeded())];
        self.of_rounds.rounds.with(values).increment(1);
        match round.result {
            Ok(applied) => self.round(round, applied),
            Err(_) => counter!("ipvs_proxier_failures_total", "part" => "read").increment(1),
        }
    }
}

/// Records the Services with policy Local that have endpoints on other nodes only.
fn count_remote_only(desired: &Desired) {
    let mut remote_only = BTreeMap::new();
    for (frontend, plan) in &desired.frontends {
        let access = &plan.profile.access;
        if access.policy == TrafficPolicy::Local && access.endpoints == Availability::RemoteOnly {
            let policy = match access.scope {
                Scope::Internal => "internal",
                Scope::External | Scope::NodePort => "external",
            };
            let family = frontend.family();
            let services: &mut BTreeSet<_> = remote_only.entry((policy, family)).or_default();
            services.insert(&plan.owner.service);
        }
    }
    for policy in ["internal", "external"] {
        for family in FAMILIES {
            let count = remote_only.get(&(policy, family)).map_or(0, |it| it.len());
            gauge!(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "traffic_policy" => policy,
                "ip_family" => family_name(family)
            )
            .set(count as f64);
        }
    }
}

/// Returns how many objects an update names.
fn size<T>(update: &Update<T>) -> u64 {
    match update {
        Update::Apply(_) | Update::Delete(_) => 1,
        Update::Reset(all) => all.len() as u64,
        Update::Merge(some) => some.len() as u64,
    }
}

fn since_epoch(time: SystemTime) -> f64 {
    let time = time.duration_since(SystemTime::UNIX_EPOCH);
    time.unwrap_or_default().as_secs_f64()
}

/// Returns the value of label `result`.
fn result(is_ok: bool) -> &'static str {
    if is_ok { "success" } else { "failure" }
}

fn count_failures<C>(applied: &Applied<C>) {
    let fail = |part| counter!("ipvs_proxier_failures_total", "part" => part).increment(1);
    match applied.outcomes.failures().count() as u64 {
        0 => {}
        count => counter!("ipvs_proxier_failures_total", "part" => "ops").increment(count),
    }
    if let Some(Err(_)) = &applied.rules {
        fail("rules");
        for family in FAMILIES.map(family_name) {
            counter!(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                "ip_family" => family
            )
            .increment(1);
        }
    }
    match &applied.flows {
        Some(Ok(swept)) => {
            counter!("ipvs_proxier_flows_deleted_total").increment(swept.deleted as u64);
        }
        Some(Err(_)) => fail("flows"),
        None => {}
    }
    if applied.unrecorded.is_some() {
        fail("ledger");
    }
}
