//! The next request of a follower.

use super::failure::RequestFailure;
use super::query::Since;

/// The next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// List all objects.
    List(Since),
    /// Watch changes after this resource version.
    Watch(String),
}

impl Next {
    /// Returns the request that follows when this one failed with `failure`.
    ///
    /// A watch resumes at its version, unless the server no longer has the version or the follower may
    /// have missed a change. A server that sends not even bookmarks may be waiting for the version.
    pub(super) fn after(self, failure: &RequestFailure) -> Self {
        let has_missed = matches!(
            failure,
            RequestFailure::Malformed(_) | RequestFailure::Silent(_)
        );
        let refusal = failure.refusal();
        let is_too_new = refusal.is_some_and(|refusal| refusal.is_too_new());
        let is_refused = refusal.is_some_and(|refusal| refusal.is_gone() || refusal.is_invalid());
        match self {
            // A server that was restored from a backup may never reach the version.
            _ if is_too_new || matches!(failure, RequestFailure::Reversed { .. }) => {
                Self::List(Since::Newest)
            }
            // The version of the list has expired, perhaps between two pages.
            Self::List(_) if is_refused => Self::List(Since::Newest),
            next if is_refused || has_missed => next.listed(),
            next => next,
        }
    }

    /// Returns a list of a state that is not older than the version of this watch.
    pub(super) fn listed(self) -> Self {
        match self {
            Self::Watch(version) => Self::List(Since::Seen(version)),
            list @ Self::List(_) => list,
        }
    }

    /// Fails if the server answers this request with a version that is older than ours.
    ///
    /// Versions are compared as KEP-5504 defines it. Those of a server with other ones are not compared.
    pub(super) fn check(&self, sent: &str) -> Result<(), RequestFailure> {
        let known = match self {
            Self::Watch(known) | Self::List(Since::Seen(known)) => known,
            Self::List(Since::Any | Since::Newest) => return Ok(()),
        };
        match (sent.parse::<u128>(), known.parse::<u128>()) {
            (Ok(number), Ok(least)) if number < least => Err(RequestFailure::Reversed {
                sent: sent.to_owned(),
                known: known.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// Returns whether `failure` may mean that the server cannot stream lists.
pub(super) fn blames_stream(failure: &RequestFailure) -> bool {
    match failure {
        RequestFailure::Silent(_) | RequestFailure::Cut(_) | RequestFailure::Malformed(_) => true,
        RequestFailure::Refused(refusal) => refusal.is_invalid(),
        RequestFailure::Configuration(_)
        | RequestFailure::NoServer(_)
        | RequestFailure::Unreachable(_)
        | RequestFailure::Reversed { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::failure::ApiRefusal;
    use super::super::object::EncodedObject;
    use super::*;

    fn refused(code: u16, body: &str) -> RequestFailure {
        let body = EncodedObject::Json(body.as_bytes());
        RequestFailure::Refused(ApiRefusal::read(Some(code), body, None))
    }

    fn reversed(sent: &str) -> RequestFailure {
        Next::Watch("7".into()).check(sent).unwrap_err()
    }

    #[test]
    fn a_list_follows_only_if_the_watch_cannot_resume() {
        let watch = || Next::Watch("7".into());
        let seen = || Next::List(Since::Seen("7".into()));
        let newest = || Next::List(Since::Newest);
        let cut = RequestFailure::Cut("reset".into());
        let silent = RequestFailure::Silent(Duration::from_secs(1));
        let too_new = r#"{"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
        let malformed = RequestFailure::Malformed("x".into());
        for (before, failure, after) in [
            (watch(), cut, watch()),
            (watch(), silent, seen()),
            (watch(), refused(500, ""), watch()),
            (watch(), refused(401, ""), watch()),
            (watch(), refused(410, ""), seen()),
            (watch(), refused(504, r#"{"reason":"Expired"}"#), seen()),
            (watch(), refused(400, ""), seen()),
            (watch(), refused(504, too_new), newest()),
            (watch(), malformed, seen()),
            (watch(), reversed("6"), newest()),
            (seen(), reversed("6"), newest()),
            (seen(), refused(504, too_new), newest()),
            (seen(), refused(410, ""), newest()),
            (seen(), refused(429, ""), seen()),
            (newest(), refused(503, ""), newest()),
        ] {
            assert_eq!(
                before.clone().after(&failure),
                after,
                "{before:?} {failure}"
            );
        }
    }

    #[test]
    fn versions_that_are_numbers_are_compared() {
        let (watch, seen) = (Next::Watch("99".into()), Since::Seen("99".into()));
        for next in [watch, Next::List(seen)] {
            for sent in ["99", "100", "", "x", "12-3"] {
                assert!(next.check(sent).is_ok(), "{sent}");
            }
            assert!(next.check("98").is_err());
        }
        let opaque = Next::Watch("b".into());
        assert!(opaque.check("1").is_ok() && opaque.check("a").is_ok());
        assert!(Next::List(Since::Newest).check("1").is_ok());
    }

    #[test]
    fn only_failures_of_a_server_without_streaming_lists_switch_to_pages() {
        assert!(blames_stream(&refused(422, "")));
        assert!(blames_stream(&RequestFailure::Silent(Duration::ZERO)));
        assert!(!blames_stream(&refused(503, "")));
        assert!(!blames_stream(&RequestFailure::Unreachable("x".into())));
    }
}
