//! The body of an answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

use crate::observe::traffic::{Displaced, TrafficText};

/// A text, and the traffic of Services behind it, which is made in pieces while the client reads.
#[derive(Debug)]
pub(super) struct AnswerBody {
    text: Bytes,
    traffic: Option<TrafficText>,
}

impl AnswerBody {
    /// Returns the body with `traffic` behind `text`.
    pub(super) fn with_traffic(text: Bytes, traffic: Option<TrafficText>) -> Self {
        Self { text, traffic }
    }
}

impl<T: Into<Bytes>> From<T> for AnswerBody {
    fn from(text: T) -> Self {
        Self::with_traffic(text.into(), None)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Displaced;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Displaced>>> {
        let piece = match self.text.is_empty() {
            false => Some(Ok(std::mem::take(&mut self.text))),
            true => {
                let traffic = self.traffic.as_mut().and_then(Iterator::next);
                traffic.map(|piece| piece.map(Bytes::from))
            }
        };
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_empty() && self.traffic.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.traffic {
            None => SizeHint::with_exact(self.text.len() as u64),
            Some(_) => SizeHint::default(),
        }
    }
}
