//! Which of several servers a follower asks next, and when.

use std::time::Duration;

use super::connection::LinkedServer;
use super::failure::RequestFailure;

/// What a follower remembers of servers.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The server of the last response.
    last: Option<LinkedServer>,
    /// The number of refusals in a row that named the time of another attempt.
    asked: usize,
}

impl Turns {
    /// Notes that this server has begun to answer.
    pub(super) fn answers(&mut self, server: &LinkedServer) {
        self.last = Some(server.clone());
        self.asked = 0;
    }

    /// Notes a failure, perhaps in the middle of a response. Returns how long to wait because a server asked for it: when
    /// each of `servers` has.
    pub(super) fn fail(&mut self, failure: &RequestFailure, servers: usize) -> Option<Duration> {
        if let Some(last) = &self.last {
            last.blame(failure);
        }
        let asked = failure.retry_after()?;
        self.asked += 1;
        self.asked.is_multiple_of(servers).then_some(asked)
    }
}
