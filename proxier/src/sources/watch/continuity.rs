//! Whether the server still has the history that a follower knows.

use std::time::{Duration, Instant};

use super::failure::RequestFailure;

/// What speaks against resuming a watch at the version where the last one ended.
///
/// After the restore of a backup, the server has another history from the backup's version on. A watch at a version of
/// the old history gets no error: kube-apiserver sends nothing until it has passed the version (`process` in
/// `cache_watcher.go`), and newer changes after that. It cannot have been restored while it was reached, so only
/// failures raise doubts:
///
/// * After an outage, the server may have passed the version already. Only a list finds what changed.
/// * After a shorter failure, the first watch is short, and the bookmark that precedes its end removes the doubt.
#[derive(Debug, Default)]
pub(super) struct Continuity {
    /// Since when no request has reached a server; `None` if the last one did.
    lost: Option<Instant>,
    /// Whether no event and no bookmark has arrived since the last failure.
    is_doubtful: bool,
    /// How often the server withheld the kind since then.
    withheld: u32,
}

impl Continuity {
    /// The number of rejections that a server may send while it starts. With the backoff, they take about a minute.
    const MAX_WITHHELD: u32 = 7;

    /// Records a failure at `now`.
    pub(super) fn fail(&mut self, failure: &RequestFailure, now: Instant) {
        self.is_doubtful = true;
        if failure.lacks_server() {
            self.lost.get_or_insert(now);
        }
    }

    /// Records that a server accepted a request.
    pub(super) fn reach(&mut self) {
        self.lost = None;
    }

    /// Records that the server withholds the kind. Returns whether it probably goes on doing so.
    ///
    /// A server that starts rejects requests until it has read the roles, so the first attempts after a failure prove
    /// nothing.
    pub(super) fn withhold(&mut self) -> bool {
        self.withheld = self.withheld.saturating_add(1);
        !self.is_doubtful || self.withheld > Self::MAX_WITHHELD
    }

    /// Records that the server has our version. Returns whether that was doubtful.
    pub(super) fn confirm(&mut self) -> bool {
        self.withheld = 0;
        std::mem::take(&mut self.is_doubtful)
    }

    /// Returns whether the server may lack our version.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// Returns whether no server has been reached for `outage` at `now`.
    pub(super) fn is_broken(&self, outage: Duration, now: Instant) -> bool {
        (self.lost).is_some_and(|lost| now.saturating_duration_since(lost) >= outage)
    }
}

#[cfg(test)]
mod tests {
    use super::super::failure::ApiRefusal;
    use super::super::object::EncodedObject;
    use super::*;

    fn refused(code: u16, body: &str) -> RequestFailure {
        let body = EncodedObject::Json(body.as_bytes());
        RequestFailure::Refused(ApiRefusal::read(Some(code), body, None))
    }

    #[test]
    fn a_server_may_withhold_a_kind_while_it_starts() {
        let mut continuity = Continuity::default();
        assert!(continuity.withhold(), "without a failure before");
        continuity.confirm();
        continuity.fail(&RequestFailure::Cut("reset".into()), Instant::now());
        for _ in 0..Continuity::MAX_WITHHELD {
            assert!(!continuity.withhold());
        }
        assert!(continuity.withhold());
    }

    #[test]
    fn only_an_outage_without_a_server_breaks_the_continuity() {
        let busy = || refused(429, r#"{"reason": "TooManyRequests"}"#);
        let failing = || refused(503, r#"{"reason": "ServiceUnavailable"}"#);
        let no_backend = || refused(503, "<html>no server is available</html>");
        let gone = || RequestFailure::NoServer("refused".into());
        let cut = || RequestFailure::Cut("reset".into());
        for (failures, is_broken) in [
            (vec![busy(), busy()], false),
            (vec![failing(), failing()], false),
            (vec![no_backend(), no_backend()], true),
            (vec![gone(), gone()], true),
            (vec![cut(), gone()], true),
            // A server that starts refuses requests at first.
            (vec![gone(), busy()], true),
        ] {
            let (start, outage) = (Instant::now(), Duration::from_secs(5));
            let mut continuity = Continuity::default();
            let mut now = start;
            for failure in &failures {
                continuity.fail(failure, now);
                assert!(!continuity.is_broken(outage, now), "{failures:?}");
                now += Duration::from_secs(4);
            }
            assert_eq!(continuity.is_broken(outage, now), is_broken, "{failures:?}");
            assert!(continuity.is_doubtful());
            continuity.reach();
            assert!(!continuity.is_broken(outage, now) && continuity.is_doubtful());
            assert!(continuity.confirm() && !continuity.confirm());
        }
    }
}
