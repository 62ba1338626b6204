//! The reasons of failures without the credentials that errors of libraries quote.

use std::error::Error;

use kube::config::KubeconfigError;

use crate::util::yaml;

/// Returns the reason of an error whose own text quotes a kubeconfig; `None` for an error whose text has no
/// credential.
pub(super) fn reason(error: &(dyn Error + 'static)) -> Option<String> {
    let mut chain = std::iter::successors(Some(error), |&error| error.source());
    chain.find_map(|error| match error.downcast_ref()? {
        KubeconfigError::Parse(error) => Some(yaml::without_text("a kubeconfig", error)),
        _ => None,
    })
}
