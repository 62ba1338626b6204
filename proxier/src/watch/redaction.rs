//! The reasons of failures without the credentials that errors of libraries quote.

use std::error::Error;
use std::process::Output;

use kube::client::AuthError;
use kube::config::KubeconfigError;

use crate::yaml;

/// Returns the reason of an error whose own text quotes a kubeconfig or the output of a credential plugin;
/// `None` for an error whose text has no credential.
pub(super) fn reason(error: &(dyn Error + 'static)) -> Option<String> {
    let mut chain = std::iter::successors(Some(error), |&error| error.source());
    chain.find_map(|error| {
        if let Some(KubeconfigError::Parse(error)) = error.downcast_ref() {
            return Some(invalid("a kubeconfig", yaml::place(error)));
        }
        match error.downcast_ref()? {
            AuthError::AuthExecRun { out, .. } => Some(failed_plugin(out)),
            AuthError::AuthExecParse(error) => Some(invalid(
                "the output of the credential plugin",
                yaml::place(error),
            )),
            _ => None,
        }
    })
}

/// The parser's own reason may contain any value of the text.
fn invalid(what: &str, place: Option<(u64, u64)>) -> String {
    let place = place.map_or_else(String::new, |(line, column)| {
        format!(" at line {line}, column {column}")
    });
    format!("{what} is invalid{place}; its text may have credentials, so it is not logged")
}

/// The standard output is the credential. Standard error is meant for logs.
fn failed_plugin(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    match errors.trim() {
        "" => format!("the credential plugin failed: {}", output.status),
        errors => format!("the credential plugin failed: {}: {errors}", output.status),
    }
}
