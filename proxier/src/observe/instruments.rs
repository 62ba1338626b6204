//! Every metric: name, type, labels, buckets and help, and the recorder that keeps their values.
//!
//! `docs/metrics.md` explains them; a test compares it with [`table::ALL`]. Other modules record values
//! with the macros of the crate `metrics`, which cost nothing without a recorder. The counters of
//! virtual servers are not here: [`crate::observe::traffic`] reads them from the kernel at each scrape.

mod process;
mod table;

use std::fmt::Write as _;
use std::time::SystemTime;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use table::ALL;
pub(crate) use table::{FAMILIES, Instrument, InstrumentKind, family_name};

/// Why the recorder could not be installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    /// The table of metrics is invalid.
    #[error("metrics: {0}")]
    Table(#[from] BuildError),
    /// This process has a recorder already.
    #[error("metrics: this process has a recorder already")]
    Installed,
}

/// Renders the recorded values.
#[derive(Clone, Debug)]
pub(crate) struct Exporter {
    handle: PrometheusHandle,
    started: SystemTime,
}

/// Makes this process record metrics.
///
/// # Errors
/// If it does already.
pub(crate) fn install(started: SystemTime) -> Result<Exporter, InstallError> {
    let recorder = builder()?.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|_| InstallError::Installed)?;
    describe();
    Ok(Exporter { handle, started })
}

impl Exporter {
    /// Returns an exporter to which no module records.
    #[cfg(test)]
    pub(crate) fn local() -> Self {
        Self {
            handle: builder().unwrap().build_recorder().handle(),
            started: SystemTime::now(),
        }
    }

    /// Returns all values in Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        process::record(self.started);
        let mut text = self.handle.render();
        process::write_cpu(&mut text);
        text
    }

    /// Moves samples of histograms into their buckets.
    ///
    /// The recorder keeps each sample (16 bytes) until this or [`Exporter::render`], so it must be called
    /// regularly: perhaps no server scrapes this process.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in ALL {
        if let InstrumentKind::Histogram(buckets) = metric.kind {
            let name = Matcher::Full(metric.name.to_owned());
            builder = builder.set_buckets_for_metric(name, &buckets())?;
        }
    }
    Ok(builder)
}

/// Appends the lines that precede the series of `metric`.
pub(crate) fn write_head(text: &mut String, metric: &Instrument) {
    let kind = match metric.kind {
        InstrumentKind::Counter => "counter",
        InstrumentKind::Gauge => "gauge",
        InstrumentKind::Histogram(_) => "histogram",
    };
    let Instrument { name, help, .. } = metric;
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Describes all metrics, and sets those with known labels to 0: a missing series looks like a
/// missing program.
fn describe() {
    for metric in ALL {
        let name = metric.name;
        match metric.kind {
            InstrumentKind::Counter => metrics::describe_counter!(name, metric.help),
            InstrumentKind::Gauge => metrics::describe_gauge!(name, metric.help),
            InstrumentKind::Histogram(_) => metrics::describe_histogram!(name, metric.help),
        }
        for labels in metric.known {
            match metric.kind {
                InstrumentKind::Counter => metrics::counter!(name, *labels).increment(0),
                InstrumentKind::Gauge => metrics::gauge!(name, *labels).increment(0.0),
                InstrumentKind::Histogram(_) => drop(metrics::histogram!(name, *labels)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rows of the page's tables: name, type, labels.
    fn documented() -> Vec<(String, String, String)> {
        let page = include_str!("../../docs/metrics.md");
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        let cell = |text: &str| text.trim().replace('`', "");
        rows.map(|row| {
            let cells: Vec<&str> = row.split('|').collect();
            (cell(cells[1]), cell(cells[2]), cell(cells[3]))
        })
        .collect()
    }

    #[test]
    fn the_page_lists_every_metric_with_type_and_labels() {
        let mut listed: Vec<_> = ALL
            .iter()
            .chain(process::METRICS)
            .chain(crate::observe::traffic::METRICS)
            .map(|metric| {
                let kind = match metric.kind {
                    InstrumentKind::Counter => "counter",
                    InstrumentKind::Gauge => "gauge",
                    InstrumentKind::Histogram(_) => "histogram",
                };
                let labels = metric.labels.join(", ");
                (metric.name.to_owned(), kind.to_owned(), labels)
            })
            .collect();
        listed.sort();
        let mut documented = documented();
        documented.sort();
        assert_eq!(documented, listed);
    }

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        for metric in ALL
            .iter()
            .chain(process::METRICS)
            .chain(crate::observe::traffic::METRICS)
        {
            let name = metric.name;
            // kube-proxy has gauges that end in `_total`; their names must stay.
            if !name.starts_with("kubeproxy_") {
                let is_counter = matches!(metric.kind, InstrumentKind::Counter);
                assert_eq!(name.ends_with("_total"), is_counter, "{name}");
            }
            assert!(
                !metric.help.ends_with('.') && !metric.help.is_empty(),
                "{name}"
            );
            for labels in metric.known {
                let names: Vec<_> = labels.iter().map(|(name, _)| *name).collect();
                assert_eq!(names, metric.labels, "{name}");
            }
        }
    }

    #[test]
    fn every_known_series_is_there_before_anything_happens() {
        let recorder = builder().unwrap().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            describe();
            process::record(SystemTime::now());
        });
        handle.run_upkeep();
        let mut text = handle.render();
        process::write_cpu(&mut text);
        for series in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.001\"} 0",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv6\",le=\"16.384\"} 0",
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0\"} 0",
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"300\"} 0",
            "kubeproxy_proxy_healthz_total{code=\"200\"} 0",
            "ipvs_proxier_ops_total{op=\"add_destination\",result=\"failure\"} 0",
            "# TYPE process_cpu_seconds_total counter",
            "# TYPE process_resident_memory_bytes gauge",
        ] {
            assert!(text.contains(series), "{series}: {text}");
        }
    }
}
