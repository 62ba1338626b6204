//! Responses and their bodies.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use tokio::sync::mpsc;

use crate::CannedResponse;
use crate::form::Encoding;

/// A body whose pieces arrive through a channel.
pub(crate) struct BodyReceiver {
    receiver: mpsc::Receiver<Piece>,
}

/// A piece of a body; `Err` breaks the connection.
pub(crate) type Piece = Result<Bytes, Broken>;

/// The size from which a piece of a long body is sent.
pub(crate) const PIECE_SIZE: usize = 128 * 1024;

/// How many pieces of a body may wait for the client. With 16, two lists took 6 MB more at once, and their page
/// faults delayed the client in the lab.
const WAITING_PIECES: usize = 2;

/// The error that breaks the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the test breaks the connection")
    }
}

impl std::error::Error for Broken {}

impl Body for BodyReceiver {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let piece = self.receiver.poll_recv(context);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Returns a body and the sender of its pieces.
pub(crate) fn body_channel() -> (mpsc::Sender<Piece>, BodyReceiver) {
    let (sender, receiver) = mpsc::channel(WAITING_PIECES);
    (sender, BodyReceiver { receiver })
}

/// Returns a complete response.
pub(crate) fn whole(
    status: StatusCode,
    media_type: &'static str,
    body: Vec<u8>,
) -> Response<BodyReceiver> {
    let (sender, pieces) = body_channel();
    // Cannot fail: the channel is new and has room.
    let _ = sender.try_send(Ok(body.into()));
    with_head(status, media_type, pieces)
}

/// Returns a response with the body `pieces`.
pub(crate) fn with_head(
    status: StatusCode,
    media_type: &'static str,
    pieces: BodyReceiver,
) -> Response<BodyReceiver> {
    let mut response = Response::new(pieces);
    *response.status_mut() = status;
    let media_type = HeaderValue::from_static(media_type);
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}

/// Returns an error response with a `Status` object.
pub(crate) fn refusal(encoding: Encoding, status: Status) -> Response<BodyReceiver> {
    let code = status.code.and_then(|code| u16::try_from(code).ok());
    let code = code.and_then(|code| StatusCode::from_u16(code).ok());
    let code = code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    whole(code, encoding.content_type(), encoding.status(status))
}

/// Returns a `Status` object of a failure.
pub(crate) fn status_object(code: u16, message: &str) -> Status {
    let reason = match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    Status {
        status: Some("Failure".into()),
        message: Some(message.into()),
        reason: Some(reason.into()),
        code: Some(code.into()),
        ..Status::default()
    }
}

/// Returns the `Status` object for a resource version that the server has not reached.
pub(crate) fn too_large(asked: u64, current: u64) -> Status {
    let message = format!("Too large resource version: {asked}, current: {current}");
    let cause = StatusCause {
        reason: Some("ResourceVersionTooLarge".into()),
        message: Some(message.clone()),
        field: None,
    };
    Status {
        details: Some(StatusDetails {
            causes: Some(vec![cause]),
            retry_after_seconds: Some(1),
            ..StatusDetails::default()
        }),
        ..status_object(504, &format!("Timeout: {message}"))
    }
}

/// Returns the response that a test defined.
pub(crate) fn canned(canned: CannedResponse) -> Response<BodyReceiver> {
    let (sender, pieces) = body_channel();
    tokio::spawn(async move {
        // Fails if the client closes the connection before it has read everything.
        let _ = sender.send(Ok(canned.body.into())).await;
        if canned.breaks_connection {
            // Gives hyper time to send the body before the connection breaks.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = sender.send(Err(Broken)).await;
        }
    });
    let status = StatusCode::from_u16(canned.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = with_head(status, "application/json", pieces);
    for (name, value) in canned.headers {
        let name = hyper::header::HeaderName::try_from(name);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
