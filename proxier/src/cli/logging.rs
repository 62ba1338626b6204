//! The program's log.

use std::fmt::{self, Debug};
use std::io::IsTerminal as _;

use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format::{self, FormatFields, Writer};

use crate::cli::config::{LogFormat, Logging};
use crate::util::one_line::OneLine;

mod json;

use json::KubernetesJson;

/// The log settings of commands without log flags.
pub(super) const DEFAULT: Logging = Logging {
    format: LogFormat::Text,
    verbosity: 0,
};

/// Starts to write log lines to standard error. Only the first call has an effect.
///
/// The environment variable `RUST_LOG` overrides the verbosity.
pub(super) fn start(logging: Logging) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(logging.filter()));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Standard output is for results: `plan -o json` and `status` must stay parseable.
        .with_writer(std::io::stderr)
        // It would write them to standard error, too, and panic if that is a closed pipe.
        .log_internal_errors(false)
        .with_target(false);
    // Fails if a log was started before.
    let _ = match logging.format {
        LogFormat::Text => builder
            .fmt_fields(fields())
            .with_ansi(std::io::stderr().is_terminal())
            .try_init(),
        LogFormat::Json => builder.event_format(KubernetesJson).try_init(),
    };
}

/// Returns the format of an event's message and fields in the text format: `message name=value name=value`.
///
/// JSON escapes all texts; here [`OneLine`] does, because messages quote other programs.
fn fields() -> impl for<'a> FormatFields<'a> + 'static {
    let write = |writer: &mut Writer<'_>, field: &Field, value: &dyn Debug| -> fmt::Result {
        let value = OneLine(format_args!("{value:?}"));
        match field.name() {
            "message" => write!(writer, "{value}"),
            name => write!(writer, "{name}={value}"),
        }
    };
    format::debug_fn(write).delimited(" ")
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_text_of_another_program_stays_in_its_line() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(fields())
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let message = "too old\n2026-11-28T00:00:00Z ERROR forged\u{1b}[2J";
            tracing::warn!(changed = 3, name = %message, text = "a\n", "again: {message}");
            tracing::info!("plain");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let escaped = r"too old\n2026-11-28T00:00:00Z ERROR forged\u{1b}[2J";
        let first = format!(" WARN again: {escaped} changed=3 name={escaped} text=\"a\\n\"");
        assert_eq!(text, format!("{first}\n INFO plain\n"));
    }
}
