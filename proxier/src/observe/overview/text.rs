//! The view as text: the pieces that the page and the terminal share, and the whole for `top --once`.

use std::fmt::Write as _;

use super::model::{EndpointView, FrontendView, Head, Overview, ServiceRow, ServiceView, Traffic};
use crate::util::one_line::OneLine;

/// Returns a number in few characters: `1234`, `12.3k`, `4.5M`.
pub(crate) fn short(number: f64) -> String {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let (mut value, mut unit) = (number, 0);
    while value >= 9_999.5 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    match unit {
        0 if value == value.trunc() => format!("{value:.0}"),
        0 => format!("{value:.1}"),
        _ => format!("{value:.1}{}", UNITS[unit]),
    }
}

/// Returns a number, or `-` where nothing counts.
pub(crate) fn count(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| short(number as f64))
}

/// Returns a rate, or `-` where nothing counts.
pub(crate) fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), short)
}

/// Returns a share in percent, or `-`.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0))
}

/// Returns a time in few characters: `45s`, `12m`, `3h05m`.
pub(crate) fn duration(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns whether the proxy is healthy, in a word.
pub(crate) fn health(head: &Head) -> &'static str {
    match (head.is_healthy, head.reasons.is_empty()) {
        (true, true) => "healthy",
        (true, false) => "healthy, but",
        (false, _) => "UNHEALTHY",
    }
}

/// Returns the facts of the head, each with its name.
pub(crate) fn facts(head: &Head) -> Vec<(&'static str, String)> {
    let ago = |seconds: Option<u64>, never: &str| {
        seconds.map_or_else(
            || never.to_owned(),
            |seconds| format!("{} ago", duration(seconds)),
        )
    };
    let rounds = match head.failed_rounds {
        0 => head.rounds.to_string(),
        failed => format!("{} and {failed} failed", head.rounds),
    };
    let census = &head.census;
    vec![
        ("API", ago(head.api_age_seconds, "manifests")),
        (
            "last round",
            format!(
                "{} ({} ms)",
                ago(head.last_round_seconds, "none yet"),
                head.round_millis
            ),
        ),
        ("rounds", rounds),
        ("frontends", head.frontends.to_string()),
        ("draining", head.draining.to_string()),
        ("repairs", head.repairs.to_string()),
        ("problems", head.problem_count.to_string()),
        ("up", duration(head.uptime_seconds)),
        (
            "order",
            format!(
                "from {}, {} ago, took {} ms",
                census.counters,
                duration(census.age_millis / 1_000),
                census.cost_millis
            ),
        ),
    ]
}

/// Returns the name of a Service port.
pub(crate) fn name(row: &ServiceRow) -> String {
    match &*row.port {
        "" => format!("{}/{}", row.namespace, row.name),
        port => format!("{}/{}:{port}", row.namespace, row.name),
    }
}

/// Returns the frontends of a Service port: the first, and the number of the others.
pub(crate) fn frontends(row: &ServiceRow) -> String {
    match row.frontends {
        0 | 1 => row.frontend.clone(),
        more => format!("{} +{}", row.frontend, more - 1),
    }
}

/// Returns the faults of a Service port, and its drains.
pub(crate) fn state(row: &ServiceRow) -> String {
    let mut state = row.faults.join("; ");
    if row.draining > 0 {
        let separator = if state.is_empty() { "" } else { "; " };
        let _ = write!(state, "{separator}{} draining", row.draining);
    }
    state
}

/// Returns the numbers of connections and bytes, in the order of [`TRAFFIC`].
pub(crate) fn traffic(traffic: &Traffic) -> [String; 4] {
    [
        count(traffic.active),
        count(traffic.inactive),
        rate(traffic.connection_rate),
        rate(traffic.byte_rate),
    ]
}

/// The names of the columns of [`traffic`].
pub(crate) const TRAFFIC: [&str; 4] = ["active", "inactive", "new/s", "bytes/s"];

/// Returns a frontend as one line.
pub(crate) fn frontend(frontend: &FrontendView) -> String {
    let port = match &*frontend.port {
        "" => String::new(),
        port => format!(" port {port}"),
    };
    let affinity = frontend.affinity_seconds;
    let affinity = affinity.map(|seconds| format!(", affinity {seconds}s"));
    let fault = frontend.fault.iter().map(|fault| format!(": {fault}"));
    format!(
        "{}{port} ({}), clients: {}, policy {}, {}{}{}",
        frontend.frontend,
        frontend.field,
        frontend.clients,
        frontend.policy,
        frontend.scheduler,
        affinity.unwrap_or_default(),
        fault.collect::<String>()
    )
}

/// Returns whether an endpoint gets new connections, and why not.
pub(crate) fn rotation(endpoint: &EndpointView) -> String {
    let reason = endpoint.out_of_rotation.as_deref();
    match (reason, endpoint.drain_seconds) {
        (None, _) if endpoint.is_new => "new, so with less weight (slow start)".to_owned(),
        (None, _) => "in rotation".to_owned(),
        (Some(reason), None) => reason.to_owned(),
        (Some(reason), Some(left)) => {
            format!("{reason}; draining, at most {} left", duration(left))
        }
    }
}

/// Returns the columns of an endpoint, in the order of [`ENDPOINT`].
pub(crate) fn endpoint(endpoint: &EndpointView) -> Vec<String> {
    let weight = endpoint.weight.map(u64::from);
    let [active, inactive, new, bytes] = traffic(&endpoint.traffic);
    let or_dash = |text: &str| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text.to_owned()
        }
    };
    vec![
        endpoint.address.to_string(),
        or_dash(&endpoint.node),
        or_dash(&endpoint.zone),
        count(weight),
        active,
        inactive,
        new,
        bytes,
        percent(endpoint.share),
        percent(endpoint.fair_share),
        rotation(endpoint),
    ]
}

/// The names of the columns of [`endpoint`].
pub(crate) const ENDPOINT: [&str; 11] = [
    "endpoint", "node", "zone", "weight", "active", "inactive", "new/s", "bytes/s", "share",
    "fair", "state",
];

/// Returns what is left out of a Service, if anything is.
pub(crate) fn left_out(service: &ServiceView) -> Option<String> {
    match (service.left_out_frontends, service.left_out) {
        (0, 0) => None,
        (0, endpoints) => Some(format!("{endpoints} endpoints are left out")),
        (frontends, endpoints) => Some(format!(
            "{frontends} frontends and {endpoints} endpoints of the others are left out"
        )),
    }
}

/// Returns the view as text. No text of an object can control the terminal.
pub(crate) fn page(view: &Overview) -> String {
    let mut text = String::new();
    let mut line = |words: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", OneLine(words.trim_end()));
    };
    let head = &view.head;
    line(&format!(
        "ipvs-proxier {} on {}, {}: {} {}",
        head.version,
        head.node,
        head.mode,
        health(head),
        head.reasons.join("; ")
    ));
    let facts = facts(head).into_iter();
    let facts = facts.map(|(name, value)| format!("{name} {value}"));
    line(&facts.collect::<Vec<_>>().join(", "));
    for note in &head.notes {
        line(&format!("note: {note}"));
    }
    for problem in &head.problems {
        line(&format!("problem: {problem}"));
    }
    let list = &view.services;
    line("");
    line(&format!(
        "{} Service ports, {} with a fault; {} match, from {}:",
        list.total, list.wrong, list.matching, list.first
    ));
    let header = TRAFFIC.map(str::to_owned);
    line(&service_line(
        "Service",
        "frontend",
        "endpoints",
        &header,
        "state",
    ));
    for row in &list.rows {
        let endpoints = row.endpoints.to_string();
        line(&service_line(
            &name(row),
            &frontends(row),
            &endpoints,
            &traffic(&row.traffic),
            &state(row),
        ));
    }
    if let Some(service) = &view.service {
        line("");
        line(&format!("Service {}/{}:", service.namespace, service.name));
        for problem in &service.problems {
            line(&format!("problem: {problem}"));
        }
        for it in &service.frontends {
            line(&frontend(it));
            line(&endpoint_line(&ENDPOINT.map(str::to_owned)));
            it.endpoints
                .iter()
                .for_each(|it| line(&endpoint_line(&endpoint(it))));
        }
        if let Some(words) = left_out(service) {
            line(&words);
        }
    }
    line("");
    line("Last changes:");
    for change in &view.changes {
        let times = match change.times {
            1 => String::new(),
            times => format!(" ({times} times)"),
        };
        line(&format!(
            "{} {}{times} [{}]",
            change.time, change.change, change.cause
        ));
    }
    text
}

fn service_line(
    name: &str,
    frontend: &str,
    endpoints: &str,
    traffic: &[String; 4],
    state: &str,
) -> String {
    let [active, inactive, new, bytes] = traffic;
    format!(
        "{name:<40} {frontend:<28} {endpoints:>9} {active:>8} {inactive:>8} {new:>8} {bytes:>8}  {state}"
    )
}

fn endpoint_line(columns: &[String]) -> String {
    let mut line = String::new();
    for (column, width) in columns.iter().zip([24, 16, 12, 6, 8, 8, 8, 8, 5, 5, 0]) {
        let _ = write!(line, "  {column:<width$}");
    }
    line
}
