//! The program in Prometheus: kube-proxy's alerts and dashboard, and those of `deploy/`.

#[path = "monitoring/prometheus.rs"]
mod prometheus;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use api_server::CannedResponse;
use lab::net::Cluster;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::daemon::Daemon;
use super::{AT_ONCE, serving};
use prometheus::{Prometheus, Sample};

/// The expressions of kubernetes-mixin's dashboard for kube-proxy (aa38e2b), each with the reason if it
/// has no data here. `SELECTED` stands for the labels that the dashboard selects by.
const KUBE_PROXY: [(&str, Option<&str>); 15] = [
    ("sum(up{SELECTED})", None),
    (
        "sum(rate(kubeproxy_sync_proxy_rules_duration_seconds_count{SELECTED}[5m]))",
        None,
    ),
    (
        "histogram_quantile(0.99, rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{SELECTED}[5m]))",
        None,
    ),
    (
        "sum(rate(kubeproxy_network_programming_duration_seconds_count{SELECTED}[5m]))",
        None,
    ),
    (
        "histogram_quantile(0.99, sum(rate(\
         kubeproxy_network_programming_duration_seconds_bucket{SELECTED}[5m])) by (instance, le))",
        None,
    ),
    (
        "sum(rate(rest_client_requests_total{SELECTED, code=~\"2..\"}[5m]))",
        None,
    ),
    (
        "sum(rate(rest_client_requests_total{SELECTED, code=~\"3..\"}[5m]))",
        None,
    ),
    (
        "sum(rate(rest_client_requests_total{SELECTED, code=~\"4..\"}[5m]))",
        None,
    ),
    (
        "sum(rate(rest_client_requests_total{SELECTED, code=~\"5..\"}[5m]))",
        None,
    ),
    (
        "histogram_quantile(0.99, sum(rate(\
         rest_client_request_duration_seconds_bucket{SELECTED, verb=\"POST\"}[5m])) by (verb, url, le))",
        None,
    ),
    (
        "histogram_quantile(0.99, sum(rate(\
         rest_client_request_duration_seconds_bucket{SELECTED, verb=\"GET\"}[5m])) by (verb, url, le))",
        None,
    ),
    ("process_resident_memory_bytes{SELECTED}", None),
    ("rate(process_cpu_seconds_total{SELECTED}[5m])", None),
    (
        "go_goroutines{SELECTED}",
        Some("the program is not written in Go"),
    ),
    // The dashboard's list of instances.
    (
        "kubeproxy_network_programming_duration_seconds_bucket{SELECTED}",
        None,
    ),
];

const SELECTED: &str = "cluster=\"\", job=\"kube-proxy\", instance=~\".*\"";

/// Returns a path in `deploy/chart/monitoring`.
fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/chart/monitoring")
        .join(name)
}

/// Returns a folder with `alerts.yaml`, the rules of `deploy/` as Prometheus reads them, and the files
/// beside this one.
fn rules() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let rule = std::fs::read_to_string(deployed("prometheusrule.yaml")).unwrap();
    let rule: Value = serde_saphyr::from_str(&rule).unwrap();
    write("alerts.yaml", &rule["spec"].to_string());
    write(
        "alerts.test.yaml",
        include_str!("monitoring/alerts.test.yaml"),
    );
    write(
        "mixin.yaml",
        include_str!("monitoring/kube-proxy-mixin.yaml"),
    );
    folder
}

/// Returns the panels of the dashboard in `deploy/`, without the headings of rows.
fn panels() -> Vec<Value> {
    let dashboard = std::fs::read_to_string(deployed("dashboard.json")).unwrap();
    let mut dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut panels = std::mem::take(dashboard["panels"].as_array_mut().unwrap());
    panels.retain(|panel| panel["type"] != "row");
    panels
}

/// Returns the expressions of a panel.
fn expressions(panel: &Value) -> impl Iterator<Item = &str> {
    let targets = panel["targets"].as_array().unwrap();
    targets
        .iter()
        .map(|target| target["expr"].as_str().unwrap())
}

#[test]
fn monitoring_has_valid_alerts_that_fire_when_they_should() {
    let folder = rules();
    for arguments in [
        &["check", "rules", "--lint-fatal", "alerts.yaml"][..],
        &["test", "rules", "alerts.test.yaml"],
    ] {
        let output = Command::new("promtool")
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .expect("promtool, of Debian's package prometheus");
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn monitoring_uses_documented_metrics_only() {
    let documented = include_str!("../../docs/metrics.md");
    let mut text = std::fs::read_to_string(deployed("prometheusrule.yaml")).unwrap();
    for panel in panels() {
        text.extend(expressions(&panel).map(|expression| format!("{expression}\n")));
    }
    let is_part = |next: char| next.is_ascii_alphanumeric() || next == '_';
    let is_metric = |word: &&str| {
        let prefixes = ["ipvs_proxier_", "kubeproxy_", "process_", "rest_client_"];
        prefixes.iter().any(|prefix| word.starts_with(prefix))
    };
    let words = text.split(|next| !is_part(next)).filter(is_metric);
    let metrics: BTreeSet<&str> = words
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
        .collect();
    assert!(metrics.len() > 20, "{metrics:?}");
    for metric in metrics {
        assert!(documented.contains(&format!("| `{metric}` |")), "{metric}");
    }
}

#[test]
fn monitoring_dashboard_has_complete_panels_that_do_not_overlap() {
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in panels() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        assert!(
            !panel["description"].as_str().unwrap().is_empty(),
            "{title}"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].is_string(),
            "{title}"
        );
        assert!(expressions(&panel).count() > 0, "{title}");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title}");
        for column in place("x")..place("x") + place("w") {
            for line in place("y")..place("y") + place("h") {
                assert!(cells.insert((column, line)), "{title}");
            }
        }
    }
}

fn canned(status: u16, body: &str) -> CannedResponse {
    CannedResponse {
        status,
        headers: Vec::new(),
        body: body.into(),
        breaks_connection: false,
    }
}

/// The alert that the edits of [`work`] bring near: after 30 minutes it would fire.
const OF_EDITS: &str = "IpvsProxierProblems";

/// The alerts that a failed scrape brings near: after 15 minutes without a good one they would fire.
const OF_SCRAPES: [&str; 2] = ["KubeProxyDown", "KubeProxyInstanceUnreachable"];

/// The pause between two rounds of [`work`].
const PAUSE: Duration = Duration::from_secs(1);

/// Makes a change of endpoints, a connection, and requests to the API server.
fn work(daemon: &Daemon, cluster: &Cluster, round: usize) {
    let endpoints = [&[(1, 2)][..], &[(1, 2), (1, 3)]][round % 2];
    daemon.endpoints_changed_now(endpoints);
    assert!(cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_some());
    // New requests, as after a change of the control plane.
    if round.is_multiple_of(5) {
        daemon.api.break_connections();
    }
    // A mistake in the Node becomes an Event: the only objects that the program creates. That of a Service is delayed by
    // up to five minutes.
    if round % 5 == 2 {
        daemon.api.apply(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
            "status": {"addresses": [
                {"type": "InternalIP", "address": "172.18.0.2"},
                {"type": "ExternalIP", "address": format!("198.51.100.{round}/32")},
            ]},
        }));
    }
}

/// Returns the `expressions` without a present sample, or with a sample that is not a number.
fn without_data<'a>(server: &Prometheus, expressions: &[&'a str]) -> Vec<&'a str> {
    let has_data = |expression: &str| {
        let samples = server.query(expression);
        !samples.is_empty() && samples.iter().all(|sample| !sample.value.is_nan())
    };
    let missing = expressions.iter().copied();
    missing.filter(|expression| !has_data(expression)).collect()
}

#[test]
fn monitoring_of_kube_proxy_shows_this_program() {
    lab::test(|| {
        let (cluster, mut daemon, _connections) = serving(&AT_ONCE);
        // The dashboard counts answers by the first digit of their status.
        for status in [302, 404, 500] {
            daemon
                .api
                .respond_next("/api/v1/services", canned(status, "{}"));
        }
        let folder = rules();
        let [ours, theirs] = ["alerts.yaml", "mixin.yaml"].map(|name| folder.path().join(name));
        let server = Prometheus::start(&[&ours, &theirs]);
        let is_quiet = || server.query("ALERTS").is_empty();
        daemon.eventually("Prometheus scrapes", || {
            server.query("up == 1").len() == 1 && is_quiet()
        });
        let quiet = Instant::now();

        let theirs: Vec<String> = KUBE_PROXY
            .iter()
            .filter(|(_, why_empty)| why_empty.is_none())
            .map(|(expression, _)| expression.replace("SELECTED", SELECTED))
            .collect();
        let panels = panels();
        let ours: Vec<String> = panels
            .iter()
            .flat_map(expressions)
            .map(|expression| {
                let expression = expression.replace("$__rate_interval", "30s");
                let expression = expression.replace("$instance", ".*");
                expression.replace("$job", "kube-proxy")
            })
            .collect();
        let all: Vec<&str> = theirs.iter().chain(&ours).map(String::as_str).collect();
        let mut missing = all.clone();
        let mut round = 0;
        let have_data = lab::await_true(PAUSE, || {
            work(&daemon, &cluster, round);
            round += 1;
            missing = without_data(&server, &all);
            missing.is_empty()
        });
        assert!(have_data, "no data: {missing:#?}");
        // An alert is in this series as soon as its condition is true, before its delay.
        let since = quiet.elapsed().as_secs();
        let alerts = server.query(&format!("count_over_time(ALERTS[{since}s])"));
        // A standstill of the machine may end a scrape at its time limit. The sample has the time at which the
        // scrape began, which may be before `quiet`.
        let samples = server.query("min_over_time(up[1h])");
        let is_lost = samples.iter().any(|sample| sample.value == 0.0);
        let is_expected = |alert: &Sample| {
            let label = |name: &str| alert.labels[name].as_str().unwrap();
            let (name, state) = (label("alertname"), label("alertstate"));
            state == "pending" && (name == OF_EDITS || is_lost && OF_SCRAPES.contains(&name))
        };
        assert!(alerts.iter().all(is_expected), "{alerts:?}");

        // The same alerts notice when the program ends, so their silence before proves something.
        daemon.terminate();
        for alert in OF_SCRAPES {
            let series = format!("ALERTS{{alertname=\"{alert}\"}}");
            daemon.eventually(alert, || !server.query(&series).is_empty());
        }
        let labels = &server.query("up")[0].labels;
        assert_eq!(labels["instance"], "node-a", "{labels}");
    });
}
