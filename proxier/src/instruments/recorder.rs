//! Keeps the values of all series, and renders them in Prometheus' text format.
//!
//! Not the crate `metrics-exporter-prometheus`: its clock (`quanta`) calibrates itself in a busy loop of up to
//! 200 ms when the process starts, and its histograms keep each sample until a task moves it.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{
    Counter, Gauge, GaugeFn as _, HistogramFn, Key, KeyName, Metadata, SharedString, Unit,
};

use super::table::{ALL, InstrumentKind};
use super::write_head;

/// The values of all series.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorder {
    series: Arc<Mutex<BTreeMap<Key, Series>>>,
}

/// The value of a series.
#[derive(Clone, Debug)]
enum Series {
    Counter(Arc<AtomicU64>),
    /// The bits of an `f64`.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Histogram>),
}

/// The samples of a series.
#[derive(Debug)]
struct Histogram {
    /// The upper bounds of the buckets, in order.
    bounds: Vec<f64>,
    /// The number of samples in each bucket, and above all bounds.
    counts: Vec<AtomicU64>,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

impl Recorder {
    /// Appends all series of the metrics in the table.
    pub(super) fn render(&self, text: &mut String) {
        let all = self.lock();
        for metric in ALL {
            let mut series = all
                .iter()
                .filter(|(key, _)| key.name() == metric.name)
                .peekable();
            if series.peek().is_some() {
                write_head(text, metric);
            }
            for (key, value) in series {
                // Writing to a String cannot fail.
                let _ = value.render(text, key);
            }
        }
    }

    /// Returns the series `key`; creates it if there is none.
    fn series(&self, key: &Key, create: impl FnOnce() -> Series) -> Series {
        let mut all = self.lock();
        match all.get(key) {
            Some(series) => series.clone(),
            None => all.entry(key.clone()).or_insert_with(create).clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Series>> {
        // The map is consistent after every statement.
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl metrics::Recorder for Recorder {
    // The table has the descriptions.
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.series(key, || Series::Counter(Arc::default())) {
            Series::Counter(value) => Counter::from_arc(value),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.series(key, || Series::Gauge(Arc::default())) {
            Series::Gauge(value) => Gauge::from_arc(value),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> metrics::Histogram {
        match self.series(key, || Series::Histogram(Histogram::of(key.name()).into())) {
            Series::Histogram(samples) => metrics::Histogram::from_arc(samples),
            _ => metrics::Histogram::noop(),
        }
    }
}

impl Series {
    fn render(&self, text: &mut String, key: &Key) -> fmt::Result {
        let (name, labels) = (key.name(), labels(key));
        let set = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{labels}}}"),
        };
        match self {
            Self::Counter(value) => writeln!(text, "{name}{set} {}", load(value)),
            Self::Gauge(value) => writeln!(text, "{name}{set} {}", f64::from_bits(load(value))),
            Self::Histogram(samples) => samples.render(text, name, &labels, &set),
        }
    }
}

impl Histogram {
    /// Returns a histogram without samples, with the buckets of this metric.
    fn of(name: &str) -> Self {
        let metric = ALL.iter().find(|metric| metric.name == name);
        let bounds = match metric.map(|metric| metric.kind) {
            Some(InstrumentKind::Histogram(bounds)) => bounds(),
            _ => Vec::new(),
        };
        Self {
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            bounds,
            sum: AtomicU64::new(0.0_f64.to_bits()),
        }
    }

    fn render(&self, text: &mut String, name: &str, labels: &str, set: &str) -> fmt::Result {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        let bounds = self.bounds.iter().map(|bound| bound.to_string());
        let bounds = bounds.chain(std::iter::once("+Inf".to_owned()));
        for (bound, samples) in bounds.zip(&self.counts) {
            count += load(samples);
            writeln!(
                text,
                "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}"
            )?;
        }
        let sum = f64::from_bits(load(&self.sum));
        writeln!(text, "{name}_sum{set} {sum}\n{name}_count{set} {count}")
    }
}

impl HistogramFn for Histogram {
    fn record(&self, value: f64) {
        // A bound is the greatest value of its bucket.
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.increment(value);
    }
}

fn load(value: &AtomicU64) -> u64 {
    value.load(Ordering::Relaxed)
}

/// Returns the labels of a series as Prometheus writes them, without braces.
fn labels(key: &Key) -> String {
    let escaped = |value: &str| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        value.replace('\n', "\\n")
    };
    let labels = key.labels();
    let labels: Vec<String> = labels
        .map(|label| format!("{}=\"{}\"", label.key(), escaped(label.value())))
        .collect();
    labels.join(",")
}

#[cfg(test)]
mod tests {
    use metrics::{counter, gauge, histogram};

    use super::*;

    fn rendered(record: impl FnOnce()) -> String {
        let recorder = Recorder::default();
        metrics::with_local_recorder(&recorder, record);
        let mut text = String::new();
        recorder.render(&mut text);
        text
    }

    #[test]
    fn a_sample_counts_in_every_bucket_that_reaches_it() {
        let text = rendered(|| {
            let samples = || histogram!("rest_client_request_duration_seconds", "verb" => "GET");
            samples().record(0.025);
            samples().record(0.03);
            samples().record(61.0);
        });
        let series = "rest_client_request_duration_seconds";
        for line in [
            "_bucket{verb=\"GET\",le=\"0.005\"} 0",
            "_bucket{verb=\"GET\",le=\"0.025\"} 1",
            "_bucket{verb=\"GET\",le=\"0.1\"} 2",
            "_bucket{verb=\"GET\",le=\"60\"} 2",
            "_bucket{verb=\"GET\",le=\"+Inf\"} 3",
            "_sum{verb=\"GET\"} 61.055",
            "_count{verb=\"GET\"} 3",
        ] {
            assert!(
                text.contains(&format!("{series}{line}\n")),
                "{line}: {text}"
            );
        }
    }

    #[test]
    fn labels_are_escaped_and_make_different_series() {
        let text = rendered(|| {
            gauge!("ipvs_proxier_problems", "object" => "a\"b\\c\n").set(1.5);
            gauge!("ipvs_proxier_problems", "object" => "b").set(2.0);
            counter!("ipvs_proxier_repairs_total").increment(2);
            counter!("ipvs_proxier_repairs_total").increment(3);
        });
        for line in [
            "ipvs_proxier_problems{object=\"a\\\"b\\\\c\\n\"} 1.5\n",
            "ipvs_proxier_problems{object=\"b\"} 2\n",
            "# TYPE ipvs_proxier_repairs_total counter\nipvs_proxier_repairs_total 5\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn a_series_keeps_its_type() {
        let text = rendered(|| {
            counter!("ipvs_proxier_repairs_total").increment(2);
            gauge!("ipvs_proxier_repairs_total").set(9.0);
            histogram!("ipvs_proxier_repairs_total").record(9.0);
        });
        assert!(text.ends_with("\nipvs_proxier_repairs_total 2\n"), "{text}");
    }
}
