//! Failures of list and watch requests.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use rustls::CertificateError;
use rustls::pki_types::UnixTime;
use serde::Deserialize;

use super::backoff::Reach;
use super::body::{NotAList, TooLong};
use super::object::EncodedObject;
use super::redaction;
use crate::cluster::api::FromProtobuf;
use crate::cluster::api::protobuf::Fields;

/// Why a list or watch request failed.
#[derive(Debug)]
pub(super) enum RequestFailure {
    /// The kubeconfig, a certificate or a credential is missing or invalid.
    Configuration(String),
    /// The server's host refused the connection, or no route leads to it.
    NoServer(String),
    /// No response for another reason, as when name resolution or TLS failed.
    Unreachable(String),
    /// The server sent no byte for this long.
    Silent(Duration),
    /// The connection broke in the middle of a response.
    Cut(String),
    /// The server returned an error, as the response or as a watch's `ERROR` event.
    Refused(ApiRefusal),
    /// The response does not follow the API.
    Malformed(String),
    /// The server sent a resource version that is older than one that it sent before: both of them.
    Reversed { sent: String, known: String },
}

impl From<TooLong> for RequestFailure {
    fn from(error: TooLong) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<NotAList> for RequestFailure {
    fn from(error: NotAList) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// An error that the server returned: the parts of `meta.k8s.io/v1` `Status` that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ApiRefusal {
    /// The HTTP status code.
    pub(super) code: u16,
    /// The machine-readable reason, such as `Expired`.
    pub(super) reason: String,
    /// The human-readable message.
    pub(super) message: String,
    /// After how long the server accepts another attempt.
    pub(super) retry_after: Option<Duration>,
    /// Whether the details name the cause `ResourceVersionTooLarge`.
    has_newer_version_cause: bool,
}

impl ApiRefusal {
    /// The longest message that is kept, in bytes.
    const MAX_MESSAGE: usize = 300;

    /// Parses a `Status` object from the body of a response or from an `ERROR` event.
    ///
    /// `code` is the HTTP status of the response. It is `None` for an event, whose `Status` has a code.
    /// Parsing cannot fail: text of another form, such as an HTTP proxy's error page, becomes the
    /// message.
    pub(super) fn read(
        code: Option<u16>,
        body: EncodedObject<'_>,
        retry_after: Option<Duration>,
    ) -> Self {
        let status: StatusObject = body.decode().unwrap_or_default();
        let details = status.details.unwrap_or_default();
        let message = match status.message {
            Some(message) => message,
            None => String::from_utf8_lossy(body.bytes()).trim().to_owned(),
        };
        let mut causes = details.causes.unwrap_or_default().into_iter();
        // In Go's types, 0 stands for an absent value.
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

    /// Returns whether the requested resource version or `continue` token has expired.
    pub(super) fn is_gone(&self) -> bool {
        self.code == 410 || ["Expired", "Gone"].contains(&self.reason.as_str())
    }

    /// Returns whether the server has not reached the requested resource version: it was restored
    /// from a backup, or its cache lags.
    pub(super) fn is_too_new(&self) -> bool {
        // Servers before 1.20 send no cause, only this message.
        self.has_newer_version_cause || self.message.contains("Too large resource version")
    }

    /// Returns whether the server rejected our credentials.
    pub(super) fn is_unauthorized(&self) -> bool {
        self.code == 401
    }

    /// Returns whether the server lacks the resource or denies access to it.
    pub(super) fn is_withheld(&self) -> bool {
        [403, 404].contains(&self.code)
    }

    /// Returns whether the server rejected the request's parameters.
    pub(super) fn is_invalid(&self) -> bool {
        [400, 422].contains(&self.code)
    }
}

impl RequestFailure {
    /// The errors of `connect` by which a host or a router answers, not a server.
    const NO_SERVER: [io::ErrorKind; 3] = [
        io::ErrorKind::ConnectionRefused,
        io::ErrorKind::HostUnreachable,
        io::ErrorKind::NetworkUnreachable,
    ];

    /// Returns an error's message with those of all its sources, without credentials.
    pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
        if let Some(reason) = redaction::reason(error) {
            return shorten(reason);
        }
        let mut text = own_text(error);
        let mut next = error.source();
        while let Some(source) = next {
            let cause = own_text(source);
            // Many errors already contain the text of their source.
            if !text.ends_with(&cause) {
                text.push_str(": ");
                text.push_str(&cause);
            }
            next = source.source();
        }
        shorten(text)
    }

    /// Returns the failure of a watch's `ERROR` event with the object `status`.
    pub(super) fn refused_midway(status: EncodedObject<'_>) -> Self {
        Self::Refused(ApiRefusal::read(None, status, None))
    }

    /// Returns the server's error, if the server returned one.
    pub(super) fn refusal(&self) -> Option<&ApiRefusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Returns the failure of a request without a response.
    pub(super) fn without_response(error: &(dyn Error + 'static)) -> Self {
        let why = Self::chain(error);
        let mut sources = std::iter::successors(Some(error), |&error| error.source());
        let is_refused = sources.any(|error| {
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            kind.is_some_and(|kind| Self::NO_SERVER.contains(&kind))
        });
        if is_refused {
            Self::NoServer(why)
        } else {
            Self::Unreachable(why)
        }
    }

    /// Returns the point at which the request failed.
    pub(super) fn reach(&self) -> Reach {
        match self {
            Self::NoServer(_) => Reach::NoServer,
            _ => Reach::Server,
        }
    }

    /// Returns after how long the server accepts another attempt.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.refusal()?.retry_after
    }

    /// Returns whether a working server rejected this request, for example because the client has no
    /// permission for it.
    ///
    /// Status 408, 429 and those above 499 are faults of the server, which all clients see.
    pub(super) fn is_rejection(&self) -> bool {
        let code = self.refusal().map_or(0, |refusal| refusal.code);
        (400..500).contains(&code) && ![408, 429].contains(&code)
    }

    /// Returns whether to read the configuration again, because a new address, certificate or credential
    /// may help.
    pub(super) fn concerns_connection(&self) -> bool {
        match self {
            Self::Configuration(_) | Self::NoServer(_) | Self::Unreachable(_) | Self::Silent(_) => {
                true
            }
            Self::Refused(refusal) => refusal.is_unauthorized(),
            Self::Cut(_) | Self::Malformed(_) | Self::Reversed { .. } => false,
        }
    }

    /// Returns whether another server may answer instead: this one, or the way to it, is down, broken or busy.
    pub(super) fn concerns_server(&self) -> bool {
        match self {
            // A server that lost the key of its tokens knows nobody, while the others do.
            Self::Refused(refusal) => {
                refusal.code >= 500 || refusal.code == 429 || refusal.is_unauthorized()
            }
            Self::NoServer(_)
            | Self::Unreachable(_)
            | Self::Silent(_)
            | Self::Cut(_)
            | Self::Malformed(_) => true,
            Self::Configuration(_) | Self::Reversed { .. } => false,
        }
    }

    /// Returns whether the request probably reached no API server.
    pub(super) fn lacks_server(&self) -> bool {
        match self {
            // A load balancer without an API server. The refusals of an API server have a reason.
            Self::Refused(refusal) => {
                [502, 503].contains(&refusal.code) && refusal.reason.is_empty()
            }
            Self::Malformed(_) | Self::Reversed { .. } => false,
            Self::Configuration(_)
            | Self::NoServer(_)
            | Self::Unreachable(_)
            | Self::Silent(_)
            | Self::Cut(_) => true,
        }
    }
}

/// Returns an error's text without its sources. rustls counts seconds since 1970; ours has the date.
fn own_text(error: &(dyn Error + 'static)) -> String {
    let inner = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    let tls = inner
        .and_then(|inner| inner.downcast_ref())
        .or_else(|| error.downcast_ref());
    match tls {
        Some(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => {
            format!("the server's certificate expired at {}", date(*not_after))
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before,
            ..
        })) => format!(
            "the server's certificate is not valid before {}; is the node's clock right?",
            date(*not_before)
        ),
        _ => error.to_string(),
    }
}

fn date(time: UnixTime) -> humantime::Rfc3339Timestamp {
    // The last second that has a text.
    let secs = time.as_secs().min(253_402_300_799);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(secs))
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(why) => f.write_str(why),
            Self::NoServer(why) | Self::Unreachable(why) => write!(f, "no connection: {why}"),
            Self::Silent(bound) => write!(f, "no data for {} s", bound.as_secs()),
            Self::Cut(why) => write!(f, "connection lost: {why}"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Malformed(why) => write!(f, "malformed response: {why}"),
            Self::Reversed { sent, known } => write!(
                f,
                "the server sent resource version {sent} after {known}, as after the restore of a backup"
            ),
        }
    }
}

/// Formats as `410 Expired: too old resource version: 1 (7)`.
impl fmt::Display for ApiRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.reason.is_empty() {
            write!(f, " {}", self.reason)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        if self.is_unauthorized() {
            f.write_str(
                "; the token or the client certificate is missing, expired or not of this cluster",
            )?;
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
struct StatusObject {
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

#[derive(Default, Deserialize)]
struct Cause {
    reason: Option<String>,
}

impl<'a> FromProtobuf<'a> for StatusObject {
    const FIELDS: Fields<'a, Self> = &[
        (3, |it, field| {
            field.string(it.message.get_or_insert_default())
        }),
        (4, |it, field| {
            field.string(it.reason.get_or_insert_default())
        }),
        (5, |it, field| {
            field.merge(it.details.get_or_insert_default())
        }),
        (6, |it, field| {
            it.code = u16::try_from(field.number()?).ok();
            Ok(())
        }),
    ];
}

impl<'a> FromProtobuf<'a> for Details {
    const FIELDS: Fields<'a, Self> = &[
        (4, |it, field| field.push(it.causes.get_or_insert_default())),
        (5, |it, field| {
            it.retry_after_seconds = u64::try_from(field.number()?).ok();
            Ok(())
        }),
    ];
}

impl<'a> FromProtobuf<'a> for Cause {
    // The field is called `type` in Go.
    const FIELDS: Fields<'a, Self> = &[(1, |it, field| {
        field.string(it.reason.get_or_insert_default())
    })];
}

fn shorten(mut text: String) -> String {
    if text.len() > ApiRefusal::MAX_MESSAGE {
        let mut end = ApiRefusal::MAX_MESSAGE;
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
    use api_server::messages::Encode as _;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

    use super::*;

    #[test]
    fn api_errors_are_classified() {
        let expired = br#"{"kind":"Status","status":"RequestFailure","code":410,"reason":"Expired",
            "message":"too old resource version: 1 (7)"}"#;
        let read = |code, body, retry_after| {
            ApiRefusal::read(code, EncodedObject::Json(body), retry_after)
        };
        let refusal = read(None, expired, None);
        assert!(refusal.is_gone() && !refusal.is_too_new() && !refusal.is_invalid());
        let text = RequestFailure::Refused(refusal).to_string();
        assert_eq!(text, "410 Expired: too old resource version: 1 (7)");

        let too_new = br#"{"code":504,"reason":"Timeout","message":"Timeout: x",
            "details":{"causes":[{"reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1}}"#;
        let refusal = read(Some(504), too_new, None);
        assert!(refusal.is_too_new() && !refusal.is_gone());
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
        let message = serde_json::from_slice::<Status>(too_new).unwrap().encode();
        let message = EncodedObject::Protobuf(&message);
        assert_eq!(ApiRefusal::read(None, message, None), refusal);

        let page = "<html>é".repeat(1_000);
        let refusal = read(Some(502), page.as_bytes(), Some(Duration::from_secs(9)));
        assert_eq!(refusal.code, 502);
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(9)));
        assert!(refusal.message.len() < 310 && refusal.message.starts_with("<html>"));
        // A field of the wrong type does not hide the status code.
        let refusal = read(Some(401), br#"{"code":"x"}"#, None);
        assert!(refusal.is_unauthorized());
    }

    #[test]
    fn a_certificate_out_of_time_is_described_with_its_date() {
        let at = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
        let (time, not_after) = (at(1_795_000_000), at(1_577_923_200));
        for (fault, expected) in [
            (
                CertificateError::ExpiredContext { time, not_after },
                "the server's certificate expired at 2020-01-02T00:00:00Z",
            ),
            (
                CertificateError::NotValidYetContext {
                    time,
                    not_before: at(u64::MAX),
                },
                "the server's certificate is not valid before 9999-12-31T23:59:59Z; is the node's clock right?",
            ),
        ] {
            // As the libraries for TLS and HTTP wrap it.
            let error = io::Error::other(rustls::Error::InvalidCertificate(fault));
            assert_eq!(RequestFailure::chain(&error), expected);
            let error = anyhow::Error::new(error).context("client error (Connect)");
            let text = RequestFailure::without_response(error.as_ref()).to_string();
            assert_eq!(
                text,
                format!("no connection: client error (Connect): {expected}")
            );
        }
    }
}
