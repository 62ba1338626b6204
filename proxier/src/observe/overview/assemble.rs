//! The view from facts, as a pure function.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::census::{Census, Known};
use super::counters::{CounterTable, Counts};
use super::directory::{Detail, EndpointDetail, Entry, FrontendDetail};
use super::history::Past;
use super::model::*;
use super::query::Query;
use crate::cluster::model::TrafficPolicy;
use crate::cluster::problem::Problem;
use crate::observe::health::{ApiView, Facts, HealthVerdict};

/// The most Problems of the head.
const MAX_PROBLEMS: usize = 20;

/// The facts of the head.
#[derive(Clone, Debug)]
pub(crate) struct HeadFacts {
    /// The name of the node.
    pub(crate) node: String,
    /// The dataplane, as `--dataplane` names it.
    pub(crate) mode: &'static str,
    /// When the process began.
    pub(crate) started: SystemTime,
    /// The present time.
    pub(crate) wall: SystemTime,
    /// The facts about health.
    pub(crate) facts: Facts,
    /// The verdict about them.
    pub(crate) verdict: HealthVerdict,
    /// The view of the API server.
    pub(crate) api: ApiView,
    /// What rounds did.
    pub(crate) past: Past,
}

/// What the view is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'a> {
    /// The facts of the head.
    pub(crate) head: &'a HeadFacts,
    /// All Services.
    pub(crate) census: &'a Census,
    /// The Service that was asked for.
    pub(crate) detail: Option<&'a Detail>,
    /// The counters of what is visible.
    pub(crate) visible: &'a CounterTable,
    /// What the view lacks, and why.
    pub(crate) notes: &'a [String],
    /// Where the counters are.
    pub(crate) source: &'a str,
    /// The present time since boot.
    pub(crate) now: Duration,
}

/// A Service port that the query selects.
#[derive(Debug)]
pub(crate) struct Selected<'a> {
    pub(super) known: &'a Known,
    faults: Vec<String>,
}

/// The Service ports that a query selects.
#[derive(Debug)]
pub(crate) struct Selection<'a> {
    /// Those of the part that was asked for, in order.
    pub(crate) rows: Vec<Selected<'a>>,
    wrong: usize,
    matching: usize,
}

/// Selects Service ports of a census, whose order is that of the query.
pub(crate) fn select<'a>(census: &'a Census, problems: &[Problem], query: &Query) -> Selection<'a> {
    let mut of_service = BTreeMap::<&str, usize>::new();
    for problem in problems {
        if let Some(service) = problem.object.strip_prefix("Service ") {
            *of_service.entry(service).or_default() += 1;
        }
    }
    let mut selection = Selection {
        rows: Vec::new(),
        wrong: 0,
        matching: 0,
    };
    for known in &census.services {
        // Nearly no node has a Problem, and a name costs an allocation.
        let problems = match of_service.is_empty() {
            true => 0,
            false => (of_service.get(&*known.name.service.to_string()).copied()).unwrap_or(0),
        };
        let is_wrong = problems > 0 || !known.entry.unserved.is_empty();
        selection.wrong += usize::from(is_wrong);
        if query.only_wrong && !is_wrong || !matches(known, &query.filter) {
            continue;
        }
        if selection.matching >= query.first && selection.rows.len() < query.rows {
            selection.rows.push(Selected {
                known,
                faults: faults(&known.entry, problems),
            });
        }
        selection.matching += 1;
    }
    selection
}

fn faults(entry: &Entry, problems: usize) -> Vec<String> {
    let mut faults: Vec<String> = entry.unserved.iter().map(ToString::to_string).collect();
    match problems {
        0 => {}
        1 => faults.push("1 problem".to_owned()),
        more => faults.push(format!("{more} problems")),
    }
    faults
}

/// Returns whether a row contains the `filter`: in its name, in a frontend, or as a state.
fn matches(Known { name, entry, .. }: &Known, filter: &str) -> bool {
    if filter.is_empty() {
        return true;
    }
    if filter == "state:draining" {
        return entry.draining > 0;
    }
    let mut frontends = entry.frontends.iter();
    name.to_string().contains(filter)
        || frontends.any(|it| it.frontend.to_string().to_lowercase().contains(filter))
}

/// Returns the view.
pub(crate) fn overview(parts: Parts<'_>, selection: &Selection<'_>, query: &Query) -> Overview {
    let Parts {
        head,
        census,
        detail,
        visible,
        ..
    } = parts;
    let row = |Selected { known, faults }: &Selected<'_>| {
        let Known {
            name,
            entry,
            counts,
        } = known;
        let mut keys = entry.frontends.iter().flat_map(|frontend| frontend.keys());
        let counts = match keys.any(|key| visible.contains_key(&key)) {
            true => Census::counts(entry, visible),
            false => *counts,
        };
        let first = entry.frontends.first();
        ServiceRow {
            namespace: name.service.namespace().to_owned(),
            name: name.service.name().to_owned(),
            port: name.port.to_string(),
            frontend: first.map_or_else(String::new, |it| it.frontend.to_string()),
            frontends: entry.frontends.len(),
            endpoints: entry.endpoints,
            draining: entry.draining,
            traffic: counts.into(),
            faults: faults.clone(),
        }
    };
    let problems = &head.past.problems;
    Overview {
        head: head_view(parts),
        services: ServiceList {
            total: census.services.len(),
            wrong: selection.wrong,
            matching: selection.matching,
            first: query.first.min(selection.matching),
            rows: selection.rows.iter().map(row).collect(),
        },
        service: detail.map(|detail| service_view(detail, visible, problems, parts.now)),
        changes: (head.past.changes.iter().rev())
            .map(|change| ChangeView {
                time: time(change.at),
                cause: change.cause.clone(),
                change: change.what.clone(),
                times: change.times,
            })
            .collect(),
    }
}

fn head_view(parts: Parts<'_>) -> Head {
    let Parts { head, census, .. } = parts;
    let (verdict, past) = (&head.verdict, &head.past);
    let reasons = verdict.causes().map(str::to_owned).collect();
    let since = |time: SystemTime| head.wall.duration_since(time).unwrap_or_default();
    let updated = head.facts.updated.filter(|_| head.facts.has_round);
    let failure = census.failure.iter();
    let failure = failure.map(|why| format!("the counters cannot be read: {why}"));
    Head {
        node: head.node.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mode: head.mode.to_owned(),
        time: time(head.wall),
        uptime_seconds: since(head.started).as_secs(),
        is_healthy: verdict.is_healthy(),
        reasons,
        api_age_seconds: head.api.age.map(|age| age.as_secs()),
        last_round_seconds: updated.map(|updated| since(updated).as_secs()),
        round_millis: millis(past.took),
        rounds: past.rounds,
        failed_rounds: past.failed_rounds,
        repairs: past.repairs,
        frontends: past.counts.frontends,
        draining: past.counts.draining,
        problem_count: past.problems.len(),
        problems: (past.problems.iter().take(MAX_PROBLEMS))
            .map(ToString::to_string)
            .collect(),
        notes: parts.notes.iter().cloned().chain(failure).collect(),
        census: CensusView {
            counters: parts.source.to_owned(),
            age_millis: millis(parts.now.saturating_sub(census.at)),
            cost_millis: (census.cost.as_secs_f64() * 100_000.0).round() / 100.0,
            interval_millis: millis(census.interval()),
        },
    }
}

fn service_view(
    detail: &Detail,
    visible: &CounterTable,
    problems: &[Problem],
    now: Duration,
) -> ServiceView {
    let object = format!("Service {}", detail.service);
    let own = problems.iter().filter(|problem| problem.object == object);
    ServiceView {
        namespace: detail.service.namespace().to_owned(),
        name: detail.service.name().to_owned(),
        problems: own.take(MAX_PROBLEMS).map(ToString::to_string).collect(),
        frontends: (detail.frontends.iter())
            .map(|frontend| frontend_view(frontend, visible, now))
            .collect(),
        left_out_frontends: detail.left_out_frontends,
        left_out: detail.left_out,
    }
}

fn frontend_view(frontend: &FrontendDetail, visible: &CounterTable, now: Duration) -> FrontendView {
    let server = visible.get(&frontend.key);
    let counts = |endpoint: &EndpointDetail| {
        let counts = server.and_then(|server| server.endpoints.get(&endpoint.address));
        counts.copied().unwrap_or_default()
    };
    let counted: Vec<(&EndpointDetail, Counts)> = (frontend.endpoints.iter())
        .map(|endpoint| (endpoint, counts(endpoint)))
        .collect();
    // Those that get no new connections take no part.
    let in_rotation = || (counted.iter()).filter(|(endpoint, _)| endpoint.reason.is_none());
    let rate_sum: f64 = in_rotation().filter_map(|(_, counts)| counts.rate).sum();
    let open = |counts: &Counts| counts.active.unwrap_or(0) + counts.inactive.unwrap_or(0);
    let open_sum: u64 = in_rotation().map(|(_, counts)| open(counts)).sum();
    let weight = |endpoint: &EndpointDetail| f64::from(endpoint.weight.unwrap_or(0));
    let weights: f64 = in_rotation().map(|(endpoint, _)| weight(endpoint)).sum();
    let view = |(endpoint, counts): &(&EndpointDetail, Counts)| {
        let location = endpoint.location.as_deref();
        let name =
            |name: Option<&std::sync::Arc<str>>| name.map_or_else(String::new, ToString::to_string);
        let is_chosen = endpoint.reason.is_none();
        let share = match (rate_sum > 0.0, open_sum > 0) {
            (true, _) => counts.rate.map(|rate| rate / rate_sum),
            (false, true) => Some(open(counts) as f64 / open_sum as f64),
            (false, false) => None,
        };
        EndpointView {
            address: endpoint.address,
            node: name(location.and_then(|it| it.node.as_ref())),
            zone: name(location.and_then(|it| it.zone.as_ref())),
            weight: endpoint.weight,
            is_new: endpoint.is_new,
            traffic: (*counts).into(),
            share: share.filter(|_| is_chosen),
            fair_share: (is_chosen && weights > 0.0).then(|| weight(endpoint) / weights),
            out_of_rotation: endpoint.reason.map(str::to_owned),
            drain_seconds: endpoint
                .until
                .map(|until| until.saturating_sub(now).as_secs()),
        }
    };
    FrontendView {
        frontend: frontend.frontend.to_string(),
        port: frontend.port.to_string(),
        field: frontend.kind.field().to_owned(),
        clients: frontend.clients.to_owned(),
        policy: match frontend.policy {
            TrafficPolicy::Cluster => "Cluster",
            TrafficPolicy::Local => "Local",
        }
        .to_owned(),
        scheduler: frontend.balancing.scheduler.to_string(),
        affinity_seconds: frontend.balancing.affinity_secs,
        fault: frontend.unserved.map(str::to_owned),
        traffic: server.map(|server| server.all).unwrap_or_default().into(),
        endpoints: counted.iter().map(view).collect(),
    }
}

impl From<Counts> for Traffic {
    fn from(counts: Counts) -> Self {
        let round = |rate: f64| (rate * 100.0).round() / 100.0;
        Self {
            active: counts.active,
            inactive: counts.inactive,
            connections: counts.total,
            connection_rate: counts.rate.map(round),
            bytes: counts.bytes,
            byte_rate: counts.byte_rate.map(round),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time to the second, in UTC.
fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
