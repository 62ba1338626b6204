//! What is sent back, and its body.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;
use tokio::sync::mpsc;

use crate::Canned;

/// A body: all at once, or piece by piece.
pub(crate) struct Pieces {
    receiver: mpsc::Receiver<Piece>,
}

/// A piece of a body; `Err` breaks the connection.
pub(crate) type Piece = Result<Bytes, Broken>;

/// The answer breaks off here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the test breaks the answer off")
    }
}

impl std::error::Error for Broken {}

impl Body for Pieces {
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

/// A body that is sent through the other end.
pub(crate) fn pieces() -> (mpsc::Sender<Piece>, Pieces) {
    let (sender, receiver) = mpsc::channel(16);
    (sender, Pieces { receiver })
}

/// An answer with JSON that is complete.
pub(crate) fn json(status: StatusCode, body: String) -> Response<Pieces> {
    let (sender, pieces) = pieces();
    // The channel is new and has room.
    let _ = sender.try_send(Ok(body.into()));
    with_head(status, pieces)
}

/// An answer whose body is still to come.
pub(crate) fn with_head(status: StatusCode, pieces: Pieces) -> Response<Pieces> {
    let mut response = Response::new(pieces);
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// A refusal: a `Status` object.
pub(crate) fn refusal(code: u16, message: &str) -> Response<Pieces> {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(status, status_object(code, message))
}

/// A `Status` object that says no.
pub(crate) fn status_object(code: u16, message: &str) -> String {
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
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    })
    .to_string()
}

/// The server has not reached the resource version that was asked for.
pub(crate) fn too_large(asked: u64, current: u64) -> String {
    let message = format!("Too large resource version: {asked}, current: {current}");
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": format!("Timeout: {message}"),
        "reason": "Timeout",
        "details": {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": message}],
            "retryAfterSeconds": 1,
        },
        "code": 504,
    })
    .to_string()
}

/// The answer that a test prescribed.
pub(crate) fn canned(canned: Canned) -> Response<Pieces> {
    let (sender, pieces) = pieces();
    tokio::spawn(async move {
        // The client may be gone before it has read everything.
        let _ = sender.send(Ok(canned.body.into())).await;
        if canned.breaks_off {
            // Long enough for the first part to be on its way.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = sender.send(Err(Broken)).await;
        }
    });
    let status = StatusCode::from_u16(canned.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = with_head(status, pieces);
    for (name, value) in canned.headers {
        let name = hyper::header::HeaderName::try_from(name);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
