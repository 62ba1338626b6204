//! The wait of a command that ends, such as `plan` and `run --once`: no API server is worth waiting for ever.

use std::ops::ControlFlow;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::Daemon;
use crate::dataplane::Dataplane;
use crate::sources::message::Message;
use crate::sources::watch::{KindStatus, Watch};

/// How long a command waits for an API server that sends nothing, if a request has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time from one look at the state of the requests to the next.
const LOOK: Duration = Duration::from_millis(100);

/// Why the input did not become complete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoInput {
    /// A stop was requested, or the source of the input ended.
    #[error("the input ended before all objects arrived")]
    Ended,
    /// The API server answered that this node may not read its objects.
    #[error("the API server rejects this node's requests: {0}")]
    Rejected(String),
    /// Requests fail, and the API server has sent nothing for this long.
    #[error("nothing from the API server for {} s: {why}", silence.as_secs())]
    Silent {
        /// How long.
        silence: Duration,
        /// The last failure.
        why: String,
    },
}

impl<D: Dataplane> Daemon<D> {
    /// Receives messages until the input is complete, so that a round may be made.
    ///
    /// # Errors
    /// At once if the API server rejects a request for Services or EndpointSlices, and after [`PATIENCE`] if requests
    /// fail and nothing arrives. A large list may take as long as it needs.
    pub(crate) fn await_input(&mut self, messages: &Receiver<Message>) -> Result<(), NoInput> {
        let start = Instant::now();
        loop {
            match self.hear(messages, LOOK) {
                ControlFlow::Break(true) => return Ok(()),
                ControlFlow::Break(false) => return Err(NoInput::Ended),
                ControlFlow::Continue(()) => {}
            }
            let Some(status) = self.watch.as_ref().map(Watch::status) else {
                continue;
            };
            for kind in [&status.services, &status.endpoint_slices] {
                check(kind, start)?;
            }
        }
    }
}

fn check(kind: &KindStatus, start: Instant) -> Result<(), NoInput> {
    if let Some(rejection) = &kind.rejection {
        return Err(NoInput::Rejected(rejection.clone()));
    }
    let silence = kind.heard.unwrap_or(start).elapsed();
    match &kind.failed {
        Some((_, why)) if !kind.is_synced() && silence >= PATIENCE => Err(NoInput::Silent {
            silence,
            why: why.clone(),
        }),
        _ => Ok(()),
    }
}
