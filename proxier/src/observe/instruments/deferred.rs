//! A recorder that keeps what it is told until the recorder of `metrics-exporter-prometheus` is built.
//!
//! To build that one takes up to 200 ms where a look at the clock is a system call, because its clock
//! measures the processor's counter first. The first programming of a node must not wait for this.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Level, Metadata,
    Recorder, SharedString, Unit,
};

/// A recorder which registers each series with another one, as soon as that one is built.
pub(super) struct DeferredRecorder<R>(pub(super) Arc<Deferred<R>>);

/// The metadata of series that are registered later. No recorder of this program reads them.
const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

impl<R: Recorder + Send + Sync + 'static> DeferredRecorder<R> {
    /// Returns a series that `register` registers when the recorder is built.
    fn defer<S: Send + Sync + 'static>(
        &self,
        register: impl FnOnce(&R) -> S + Send + 'static,
    ) -> Arc<Deferred<S>> {
        let series = Arc::new(Deferred::default());
        let deferred = series.clone();
        self.0
            .call(move |recorder| deferred.begin(register(recorder)));
        series
    }
}

impl<R: Recorder + Send + Sync + 'static> Recorder for DeferredRecorder<R> {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.0
            .call(move |recorder| recorder.describe_counter(key, unit, help));
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.0
            .call(move |recorder| recorder.describe_gauge(key, unit, help));
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.0
            .call(move |recorder| recorder.describe_histogram(key, unit, help));
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        if let Some(recorder) = self.0.get() {
            return recorder.register_counter(key, metadata);
        }
        let key = key.clone();
        Counter::from_arc(self.defer(move |recorder| recorder.register_counter(&key, &METADATA)))
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        if let Some(recorder) = self.0.get() {
            return recorder.register_gauge(key, metadata);
        }
        let key = key.clone();
        Gauge::from_arc(self.defer(move |recorder| recorder.register_gauge(&key, &METADATA)))
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        if let Some(recorder) = self.0.get() {
            return recorder.register_histogram(key, metadata);
        }
        let key = key.clone();
        let series = self.defer(move |recorder| recorder.register_histogram(&key, &METADATA));
        Histogram::from_arc(series)
    }
}

impl CounterFn for Deferred<Counter> {
    fn increment(&self, value: u64) {
        self.call(move |counter| counter.increment(value));
    }

    fn absolute(&self, value: u64) {
        self.call(move |counter| counter.absolute(value));
    }
}

impl GaugeFn for Deferred<Gauge> {
    fn increment(&self, value: f64) {
        self.call(move |gauge| gauge.increment(value));
    }

    fn decrement(&self, value: f64) {
        self.call(move |gauge| gauge.decrement(value));
    }

    fn set(&self, value: f64) {
        self.call(move |gauge| gauge.set(value));
    }
}

impl HistogramFn for Deferred<Histogram> {
    fn record(&self, value: f64) {
        self.call(move |histogram| histogram.record(value));
    }
}

/// A value that does not exist yet, and the calls of it, in order.
pub(super) struct Deferred<T> {
    value: OnceLock<T>,
    calls: Mutex<Vec<Call<T>>>,
}

type Call<T> = Box<dyn FnOnce(&T) + Send>;

impl<T> Default for Deferred<T> {
    fn default() -> Self {
        Self {
            value: OnceLock::new(),
            calls: Mutex::default(),
        }
    }
}

impl<T> Deferred<T> {
    /// Makes the kept calls, and from now on each call at once.
    pub(super) fn begin(&self, value: T) {
        loop {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            if calls.is_empty() {
                // Fails only if the value began before.
                let _ = self.value.set(value);
                return;
            }
            let kept = std::mem::take(&mut *calls);
            // No other thread may wait for the calls, because this one may have the lowest priority. Later calls
            // cannot overtake them: they are kept too.
            drop(calls);
            for call in kept {
                call(&value);
            }
        }
    }

    fn get(&self) -> Option<&T> {
        self.value.get()
    }

    fn call(&self, call: impl FnOnce(&T) + Send + 'static) {
        if let Some(value) = self.get() {
            return call(value);
        }
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        match self.get() {
            Some(value) => call(value),
            None => calls.push(Box::new(call)),
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics::{counter, gauge, histogram, with_local_recorder};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn values_before_the_recorder_are_kept_in_order() {
        let deferred = Arc::default();
        let recorder = DeferredRecorder(Arc::clone(&deferred));
        let prometheus = PrometheusBuilder::new().build_recorder();
        let handle = prometheus.handle();
        with_local_recorder(&recorder, || {
            metrics::describe_counter!("early", "Early.");
            let early = counter!("early");
            let level = gauge!("level", "of" => "test");
            early.increment(2);
            level.set(5.0);
            level.set(3.0);
            histogram!("seconds").record(0.5);
            counter!("early").increment(1);
            deferred.begin(prometheus);
            // Through a handle that is older than the recorder, and through a new one.
            early.increment(10);
            level.decrement(1.0);
            counter!("early").increment(100);
        });
        let text = handle.render();
        for line in [
            "# HELP early Early.",
            "early 113",
            "level{of=\"test\"} 2",
            "seconds_count 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
    }
}
