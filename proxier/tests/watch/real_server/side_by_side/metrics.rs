//! The metrics of two programs: names, types, labels and buckets.

use std::collections::{BTreeMap, BTreeSet};

/// What dashboards and alerts depend on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Metric {
    kind: String,
    /// The labels of its samples, `le` of buckets included; with the values of [`SAME_VALUES`].
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// The labels whose values are the same in both programs.
const SAME_VALUES: [&str; 4] = ["host", "ip_family", "le", "traffic_policy"];

/// Beginnings of the names of kube-proxy's metrics that this program does not have, and why.
const MISSING: [(&str, &str); 10] = [
    ("go_", "the program is not written in Go"),
    ("kubernetes_", "ipvs_proxier_build_info has the version"),
    ("rest_client_", "details of client-go"),
    ("aggregator_", LIBRARY),
    ("apiserver_", LIBRARY),
    ("cardinality_", LIBRARY),
    ("hidden_", "there are no hidden metrics"),
    ("disabled_", "no metric can be disabled"),
    ("registered_", "there is no registry that grows"),
    ("process_", "limits and network traffic of the whole node"),
];

const LIBRARY: &str = "kube-proxy has it from a library and never changes it";

/// Metrics of this program that kube-proxy's page does not have, besides `ipvs_proxier_*`, and why.
const ADDED: [(&str, &str); 2] = [
    ("process_threads", "in place of go_threads"),
    (
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        "kube-proxy's has no sample before the first failure",
    ),
];

/// Asserts that the pages of both programs have the same metrics, except for [`MISSING`] and [`ADDED`].
#[track_caller]
pub(super) fn compare(ours: &str, theirs: &str) {
    let (ours, theirs) = (metrics(ours), metrics(theirs));
    let mut differences = Vec::new();
    for (name, theirs) in &theirs {
        match ours.get(name) {
            Some(ours) if ours != theirs => {
                differences.push(format!("{name}: ours {ours:?}, theirs {theirs:?}"));
            }
            Some(_) => {}
            None if MISSING.iter().any(|(start, _)| name.starts_with(start)) => {}
            None => differences.push(format!("{name} is missing")),
        }
    }
    for name in ours.keys().filter(|name| !theirs.contains_key(*name)) {
        let is_known = ADDED.iter().any(|(added, _)| added == name);
        if !is_known && !name.starts_with("ipvs_proxier_") {
            differences.push(format!("{name} is not one of kube-proxy"));
        }
    }
    for (start, _) in MISSING {
        let is_missing = |name: &String| name.starts_with(start) && !ours.contains_key(name);
        if !theirs.keys().any(is_missing) {
            differences.push(format!("{start}: kube-proxy has no such metric"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let both = theirs.keys().filter(|name| ours.contains_key(*name));
    assert!(both.clone().count() > 15, "{:?}", both.collect::<Vec<_>>());
}

/// Parses a page of Prometheus' text format.
fn metrics(page: &str) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut last = "";
    for line in page.lines() {
        if let Some(header) = line.strip_prefix("# TYPE ") {
            let (name, kind) = header.split_once(' ').unwrap();
            last = name;
            metrics.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#')
            && let Some(metric) = metrics.get_mut(last)
        {
            for (label, value) in labels(line) {
                let values = metric.labels.entry(label.to_owned()).or_default();
                if SAME_VALUES.contains(&label) {
                    values.insert(value.to_owned());
                }
            }
        }
    }
    metrics
}

/// Returns the labels of a sample with their values, none of which contains a brace or a quote.
fn labels(sample: &str) -> impl Iterator<Item = (&str, &str)> {
    let labels = sample.split_once('{');
    let labels = labels.and_then(|(_, rest)| rest.split_once('}'));
    let labels = labels.map_or("", |(labels, _)| labels).split("\",");
    labels.filter_map(|label| {
        let (name, value) = label.split_once("=\"")?;
        Some((name, value.trim_end_matches('"')))
    })
}
