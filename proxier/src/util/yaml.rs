//! The limits of YAML documents, and their errors.

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, MessageFormatter as _, Options, UserMessageFormatter};

/// Returns the options of a parser for a document of `size` bytes.
///
/// A document without aliases has fewer nodes than bytes, so only an alias bomb reaches these limits. They
/// bound the expansion of aliases, no matter how large the text is.
pub(crate) fn limits(size: usize) -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 2 * size + 1000,
            max_nodes: size + 1000,
            max_total_scalar_bytes: size + (1 << 20),
            max_aliases: 1000,
            max_anchors: 1000,
            max_merge_keys: 1000,
            max_documents: 2,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
        },
        with_snippet: false,
    }
}

/// Parses a text that may have credentials; `what` names it in the reason of an error.
pub(crate) fn parse_secret<T: DeserializeOwned>(what: &str, text: &[u8]) -> Result<T, String> {
    serde_saphyr::from_slice_with_options(text, limits(text.len()))
        .map_err(|error| without_text(what, &error))
}

/// Explains an error in a text that may have credentials: the parser's own reason may quote any value of the text.
pub(crate) fn without_text(what: &str, error: &Error) -> String {
    let place = error.location().map_or_else(String::new, |place| {
        format!(" at line {}, column {}", place.line(), place.column())
    });
    format!("{what} is invalid{place}; its text may have credentials, so it is not logged")
}

/// Returns the line of an error, counted from 1, if it is known, and the reason.
pub(crate) fn explain(error: &Error) -> (Option<u64>, String) {
    let line = error.location().map(|place| place.line());
    let reason = UserMessageFormatter.format_message(error.without_snippet());
    (line, reason.into_owned())
}
