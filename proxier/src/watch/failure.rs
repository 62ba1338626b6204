//! Why an attempt to list or watch ended.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;

/// Why an attempt to list or watch ended before its time.
#[derive(Debug)]
pub(super) enum Failure {
    /// The kubeconfig, a certificate or a credential cannot be used.
    Configuration(String),
    /// No answer: name resolution, connection, TLS.
    Unreachable(String),
    /// No answer, or not a byte more of one, for this long.
    Silent(Duration),
    /// The connection broke in the middle of an answer.
    Cut(String),
    /// The server refused, at once or in the middle of a watch.
    Refused(Refusal),
    /// The answer is not what the API promises.
    Malformed(String),
}

/// What the server said when it refused: the parts of a `meta.k8s.io/v1` `Status` that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The HTTP status code.
    pub(super) code: u16,
    /// The reason in one word, such as `Expired`.
    pub(super) reason: String,
    /// The message for people.
    pub(super) message: String,
    /// How long the server wants to be left alone.
    pub(super) retry_after: Option<Duration>,
    /// Whether the server says that it has not reached the asked resource version.
    has_newer_version_cause: bool,
}

impl Refusal {
    /// The longest message that is kept, in bytes.
    const MAX_MESSAGE: usize = 300;

    /// Reads the body of an answer with status `code`, which may be anything, or the object of an
    /// `ERROR` event, whose own code counts when `code` is `None`.
    pub(super) fn read(code: Option<u16>, body: &[u8], retry_after: Option<Duration>) -> Self {
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        let details = status.details.unwrap_or_default();
        let message = match status.message {
            Some(message) => message,
            None => String::from_utf8_lossy(body).trim().to_owned(),
        };
        let mut causes = details.causes.unwrap_or_default().into_iter();
        let asked = details.retry_after_seconds.filter(|&secs| secs > 0);
        Self {
            code: code.or(status.code).unwrap_or(0),
            reason: status.reason.unwrap_or_default(),
            message: shorten(message),
            retry_after: retry_after.or_else(|| asked.map(Duration::from_secs)),
            has_newer_version_cause: causes
                .any(|cause| cause.reason.as_deref() == Some("ResourceVersionTooLarge")),
        }
    }

    /// The history since the asked resource version is gone (compaction, an expired `continue`).
    pub(super) fn is_gone(&self) -> bool {
        self.code == 410 || ["Expired", "Gone"].contains(&self.reason.as_str())
    }

    /// The asked resource version is one that the server has not reached: it was restored from a
    /// backup, or lags.
    pub(super) fn is_too_new(&self) -> bool {
        // Servers before 1.20 say it in the message only.
        self.has_newer_version_cause || self.message.contains("Too large resource version")
    }

    /// The server does not know our credentials.
    pub(super) fn is_unauthorized(&self) -> bool {
        self.code == 401
    }

    /// The server has no such resource, or we may not read it.
    pub(super) fn is_withheld(&self) -> bool {
        [403, 404].contains(&self.code)
    }

    /// The server does not understand the request.
    pub(super) fn is_invalid(&self) -> bool {
        [400, 422].contains(&self.code)
    }
}

impl Failure {
    /// An I/O or protocol error with all that led to it.
    pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            let cause = source.to_string();
            // Many errors repeat their source in their own text.
            if !text.ends_with(&cause) {
                text.push_str(": ");
                text.push_str(&cause);
            }
            next = source.source();
        }
        shorten(text)
    }

    /// The server ended a watch; `json` is the object of its `ERROR` event.
    pub(super) fn refused_midway(json: &[u8]) -> Self {
        Self::Refused(Refusal::read(None, json, None))
    }

    /// The refusal, if it is one.
    pub(super) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// How long the server wants to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.refusal()?.retry_after
    }

    /// Whether another way to the server (address, certificate, credential) may help, so that the
    /// configuration is to be read again.
    pub(super) fn concerns_connection(&self) -> bool {
        match self {
            Self::Configuration(_) | Self::Unreachable(_) | Self::Silent(_) => true,
            Self::Refused(refusal) => refusal.is_unauthorized(),
            Self::Cut(_) | Self::Malformed(_) => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(why) => f.write_str(why),
            Self::Unreachable(why) => write!(f, "no connection: {why}"),
            Self::Silent(bound) => write!(f, "silent for {} s", bound.as_secs()),
            Self::Cut(why) => write!(f, "connection lost: {why}"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Malformed(why) => write!(f, "malformed answer: {why}"),
        }
    }
}

/// `410 Expired: too old resource version: 1 (7)`
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.reason.is_empty() {
            write!(f, " {}", self.reason)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
struct Status {
    code: Option<u16>,
    reason: Option<String>,
    message: Option<String>,
    details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    retry_after_seconds: Option<u64>,
    causes: Option<Vec<Cause>>,
}

#[derive(Deserialize)]
struct Cause {
    reason: Option<String>,
}

fn shorten(mut text: String) -> String {
    if text.len() > Refusal::MAX_MESSAGE {
        let mut end = Refusal::MAX_MESSAGE;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart() {
        let expired = br#"{"kind":"Status","status":"Failure","code":410,"reason":"Expired",
            "message":"too old resource version: 1 (7)"}"#;
        let refusal = Refusal::read(None, expired, None);
        assert!(refusal.is_gone() && !refusal.is_too_new() && !refusal.is_invalid());
        let text = Failure::Refused(refusal).to_string();
        assert_eq!(text, "410 Expired: too old resource version: 1 (7)");

        let too_new = br#"{"code":504,"reason":"Timeout","message":"Timeout: x",
            "details":{"causes":[{"reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1}}"#;
        let refusal = Refusal::read(Some(504), too_new, None);
        assert!(refusal.is_too_new() && !refusal.is_gone());
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));

        let page = "<html>é".repeat(1_000);
        let refusal = Refusal::read(Some(502), page.as_bytes(), Some(Duration::from_secs(9)));
        assert_eq!(refusal.code, 502);
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(9)));
        assert!(refusal.message.len() < 310 && refusal.message.starts_with("<html>"));
        // Types that are not as promised cost only what they hold.
        let refusal = Refusal::read(Some(401), br#"{"code":"x"}"#, None);
        assert!(refusal.is_unauthorized());
    }
}
