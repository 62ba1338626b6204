//! Log lines as JSON, with the keys of Kubernetes' components (`--logging-format=json`).

use std::fmt::{self, Debug};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Formats an event as `{"ts":1795341639387.178,"caller":"sync/round.rs:40","level":"info","msg":"synced","v":0}`.
///
/// The keys `ts` (milliseconds since 1970), `caller`, `msg` and `v` are those of component-base. As there,
/// an error has no `v`. `level` is ours: component-base has no warnings. The event's fields follow.
pub(super) struct KubernetesJson;

impl<S, N> FormatEvent<S, N> for KubernetesJson
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let mut line = Map::new();
        line.insert("ts".to_owned(), milliseconds(SystemTime::now()).into());
        if let (Some(file), Some(number)) = (metadata.file(), metadata.line()) {
            let file = short(file);
            line.insert("caller".to_owned(), format!("{file}:{number}").into());
        }
        let level = metadata.level().as_str().to_lowercase();
        line.insert("level".to_owned(), level.into());
        if let Some(verbosity) = verbosity(*metadata.level()) {
            line.insert("v".to_owned(), verbosity.into());
        }
        line.insert("msg".to_owned(), fields.message.into());
        for (name, value) in fields.others {
            // A field cannot replace a key of the line.
            line.entry(name).or_insert(value);
        }
        writeln!(writer, "{}", Value::Object(line))
    }
}

/// Returns the last directory and the name of a source file, as component-base's `caller` has them.
fn short(file: &str) -> &str {
    let mut slashes = file.rmatch_indices('/');
    slashes.nth(1).map_or(file, |(at, _)| &file[at + 1..])
}

/// Returns the least `-v` that logs this level; `None` for errors.
fn verbosity(level: Level) -> Option<u32> {
    match level {
        Level::ERROR => None,
        Level::WARN | Level::INFO => Some(0),
        Level::DEBUG => Some(4),
        Level::TRACE => Some(5),
    }
}

fn milliseconds(at: SystemTime) -> f64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs_f64() * 1_000.0
}

/// The message and the other fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(String, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.others.push((field.name().to_owned(), value.into()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            _ => self.add(field, text),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.add(field, value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines that `work` logs.
    fn logged(work: impl FnOnce()) -> Vec<Value> {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .event_format(KubernetesJson)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, work);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn lines_have_the_keys_of_kubernetes_components() {
        let name = "a\"b\n";
        let lines = logged(|| {
            tracing::info!(changed = 3, failed = 0, "synced {name}");
            tracing::warn!("w");
            tracing::error!("e");
            tracing::debug!(v = 9, "d");
        });
        let [info, warn, error, debug] = &lines[..] else {
            panic!("{lines:?}");
        };
        let now = milliseconds(SystemTime::now());
        let ts = info["ts"].as_f64().unwrap();
        assert!((now - 60_000.0..=now).contains(&ts), "{ts}");
        assert_eq!(info["msg"], "synced a\"b\n");
        assert_eq!((&info["v"], &info["changed"]), (&0.into(), &3.into()));
        let caller = info["caller"].as_str().unwrap();
        assert!(caller.starts_with("logging/json.rs:"), "{caller}");
        assert_eq!((&warn["level"], &warn["v"]), (&"warn".into(), &0.into()));
        assert_eq!((&error["level"], error.get("v")), (&"error".into(), None));
        assert_eq!(debug["v"], 4, "a field replaces no key");
    }
}
