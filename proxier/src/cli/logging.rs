//! The program's log.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, Logging};

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
        .with_target(false);
    // Fails if a log was started before.
    let _ = match logging.format {
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .try_init(),
        LogFormat::Json => builder.event_format(KubernetesJson).try_init(),
    };
}
