//! How to go on after what happened.

use super::failure::Failure;
use super::query::Since;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// All objects have to be fetched.
    List(Since),
    /// All changes up to this resource version were told.
    Watch(String),
}

impl Next {
    /// What to do next when this failed.
    ///
    /// A watch goes on where it was, unless the server has forgotten that place or a change may
    /// have been missed.
    pub(super) fn after(self, failure: &Failure) -> Self {
        let is_malformed = matches!(failure, Failure::Malformed(_));
        let refusal = failure.refusal();
        let is_too_new = refusal.is_some_and(|refusal| refusal.is_too_new());
        let is_refused = refusal.is_some_and(|refusal| refusal.is_gone() || refusal.is_invalid());
        match self {
            _ if is_too_new => Self::List(Since::Newest),
            // The state to list is gone, be it between two pages.
            Self::List(_) if is_refused => Self::List(Since::Newest),
            Self::Watch(version) if is_refused || is_malformed => Self::List(Since::Seen(version)),
            next => next,
        }
    }
}

/// Whether a streaming list that failed so may do so because the server cannot stream.
pub(super) fn blames_stream(failure: &Failure) -> bool {
    match failure {
        Failure::Silent(_) | Failure::Cut(_) | Failure::Malformed(_) => true,
        Failure::Refused(refusal) => refusal.is_invalid(),
        Failure::Configuration(_) | Failure::Unreachable(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::failure::Refusal;
    use super::*;

    fn refused(code: u16, body: &str) -> Failure {
        Failure::Refused(Refusal::read(Some(code), body.as_bytes(), None))
    }

    #[test]
    fn a_list_follows_only_where_the_watch_cannot_go_on() {
        let watch = || Next::Watch("7".into());
        let seen = || Next::List(Since::Seen("7".into()));
        let newest = || Next::List(Since::Newest);
        let cut = Failure::Cut("reset".into());
        let silent = Failure::Silent(Duration::from_secs(1));
        let too_new = r#"{"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
        let malformed = Failure::Malformed("x".into());
        for (before, failure, after) in [
            (watch(), cut, watch()),
            (watch(), silent, watch()),
            (watch(), refused(500, ""), watch()),
            (watch(), refused(401, ""), watch()),
            (watch(), refused(410, ""), seen()),
            (watch(), refused(504, r#"{"reason":"Expired"}"#), seen()),
            (watch(), refused(400, ""), seen()),
            (watch(), refused(504, too_new), newest()),
            (watch(), malformed, seen()),
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
    fn only_what_a_server_without_streams_does_is_blamed_on_streams() {
        assert!(blames_stream(&refused(422, "")));
        assert!(blames_stream(&Failure::Silent(Duration::ZERO)));
        assert!(!blames_stream(&refused(503, "")));
        assert!(!blames_stream(&Failure::Unreachable("x".into())));
    }
}
