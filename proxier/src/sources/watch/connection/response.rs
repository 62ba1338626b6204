//! Responses, read as they arrive.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use http::{Response, StatusCode, header};
use hyper::body::{Body as _, Bytes};
use kube::client::Body;
use tokio::time::timeout;

use super::super::encoding::Encoding;
use super::super::failure::{ApiRefusal, RequestFailure};
use super::super::object::EncodedObject;
use super::{LinkedServer, cause};

/// The longest error response that is read, in bytes.
const MAX_ERROR_BODY: usize = 64 << 10;

/// A response whose body is still arriving.
pub(in crate::sources::watch) struct ResponseStream {
    encoding: Encoding,
    retry_after: Option<Duration>,
    server: LinkedServer,
    body: Body,
}

impl ResponseStream {
    pub(super) fn new(response: Response<Body>, server: LinkedServer) -> Self {
        // HTTP also allows a date here, but the API server always sends seconds.
        let retry_after = response.headers().get(header::RETRY_AFTER);
        let secs = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Self {
            encoding: Encoding::of_response(response.headers()),
            retry_after: secs.map(Duration::from_secs),
            server,
            body: response.into_body(),
        }
    }

    /// Returns the server that sends it.
    pub(in crate::sources::watch) fn server(&self) -> &LinkedServer {
        &self.server
    }

    /// Returns the encoding of the body.
    pub(in crate::sources::watch) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns the next bytes of the body, or `None` at its end. Fails if none arrive for `bound`.
    pub(in crate::sources::watch) async fn next(
        &mut self,
        bound: Duration,
    ) -> Result<Option<Bytes>, RequestFailure> {
        loop {
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
            let frame = timeout(bound, frame).await;
            match frame.map_err(|_| RequestFailure::Silent(bound))? {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(RequestFailure::Cut(RequestFailure::chain(cause(&error))));
                }
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// Returns the rest of the body; fails if it is longer than `most` bytes.
    pub(in crate::sources::watch) async fn text(
        &mut self,
        most: usize,
        bound: Duration,
    ) -> Result<Vec<u8>, RequestFailure> {
        let mut text = Vec::new();
        while let Some(piece) = self.next(bound).await? {
            text.extend_from_slice(&piece);
            if text.len() > most {
                return Err(RequestFailure::Malformed("the body is too long".into()));
            }
        }
        Ok(text)
    }

    /// Reads the error of a response with this status.
    pub(super) async fn refusal(mut self, status: StatusCode, bound: Duration) -> ApiRefusal {
        // If the body does not arrive, the status code alone is enough to choose the next request.
        let text = self.text(MAX_ERROR_BODY, bound).await.unwrap_or_default();
        let body = EncodedObject::of_body(self.encoding, &text);
        ApiRefusal::read(Some(status.as_u16()), body, self.retry_after)
    }
}
