//! The shape of a page of metrics: names, types, labels, buckets.

use std::collections::{BTreeMap, BTreeSet};

/// What a dashboard or an alert depends on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
    /// The upper bounds of a histogram.
    buckets: BTreeSet<String>,
}

/// The metrics of kube-proxy that this program does not have: those of the Go runtime and of Go libraries,
/// and of what it does in another way.
const MISSING: [&str; 0] = [];

/// Asserts that each metric of ours with a name of kube-proxy has its type, labels and buckets, and that
/// none is missing but [`MISSING`].
#[track_caller]
pub(super) fn compare(ours: &str, theirs: &str) {
    let (ours, theirs) = (shape(ours), shape(theirs));
    let own = |name: &&String| name.starts_with("ipvs_proxier_");
    for (name, metric) in ours.iter().filter(|(name, _)| !own(name)) {
        assert_eq!(Some(metric), theirs.get(name), "{name}: ours, theirs");
    }
    let missing = theirs.keys().filter(|name| !ours.contains_key(*name));
    let missing: Vec<&String> = missing.collect();
    assert_eq!(missing, MISSING);
}

fn shape(page: &str) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut last = String::new();
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            last = name.to_owned();
            metrics.entry(last.clone()).or_default().kind = kind.to_owned();
        } else if line.starts_with(&last) && !last.is_empty() {
            let metric = metrics.get_mut(&last).unwrap();
            for (label, value) in labels(line) {
                match label {
                    "le" => metric.buckets.insert(value.to_owned()),
                    label => metric.labels.insert(label.to_owned()),
                };
            }
        }
    }
    metrics
}

/// Returns the labels of a sample with their values, which contain neither quotes nor commas here.
fn labels(sample: &str) -> impl Iterator<Item = (&str, &str)> {
    let labels = sample
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let labels = labels.map_or("", |(labels, _)| labels);
    labels.split("\",").filter_map(|label| {
        let (name, value) = label.split_once("=\"")?;
        Some((name, value.trim_end_matches('"')))
    })
}
