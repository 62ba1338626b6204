//! A bound on the open connections of a group of servers.
//!
//! A new connection displaces the oldest one. If a full server refused new ones, clients that send nothing would keep
//! every probe out for 30 s. Only a connection that has read what its socket had, and waits for its client, is displaced:
//! in a burst, the oldest one may be a probe's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The open connections of a group of servers, the oldest first.
///
/// If there are too many, the oldest one that waits for its client is closed. If the pool refused new connections
/// instead, a client that opens connections and sends nothing would keep all other clients out until its time limit.
/// A connection whose request may wait in its socket had no turn yet, and is never closed: a probe gets its answer,
/// however many connections arrive with it.
#[derive(Clone, Debug)]
pub(super) struct ConnectionPool {
    limit: usize,
    open: Arc<Mutex<VecDeque<OpenConnection>>>,
    /// Tells that a connection has ended or begun to wait for its client.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct OpenConnection {
    task: AbortHandle,
    phase: Arc<AtomicU8>,
}

/// What a connection does. The numbers are those in its [`Turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// Its task has not read from the socket yet.
    New,
    /// A request is being answered.
    Answering,
    /// The client has not sent a request, or does not read the answer.
    Waiting,
    Ended,
}

/// The place of a connection in its pool, which its task tells what it does. Dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Turn {
    phase: Arc<AtomicU8>,
    changed: Arc<Notify>,
}

impl ConnectionPool {
    /// Returns a pool for at most `limit` connections.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            open: Arc::default(),
            changed: Arc::default(),
        }
    }

    /// Waits until there is room for a connection. Ends the oldest one that waits for its client, if there is no room.
    pub(super) async fn make_room(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Before the look, so that no change between the two is lost.
            changed.as_mut().enable();
            if self.has_room() {
                return;
            }
            changed.await;
        }
    }

    fn has_room(&self) -> bool {
        let mut open = self.lock();
        open.retain(|connection| !connection.is(Phase::Ended));
        if open.len() < self.limit {
            return true;
        }
        let waiting = open.iter().position(|it| it.is(Phase::Waiting));
        let oldest = waiting.and_then(|index| open.remove(index));
        oldest.map(|oldest| oldest.task.abort()).is_some()
    }

    /// Adds a connection, which `start` begins to serve.
    pub(super) fn add(&self, start: impl FnOnce(Turn) -> AbortHandle) {
        let phase = Arc::new(AtomicU8::new(Phase::New as u8));
        let turn = Turn {
            phase: phase.clone(),
            changed: self.changed.clone(),
        };
        let task = start(turn);
        self.lock().push_back(OpenConnection { task, phase });
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<OpenConnection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnection {
    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }
}

impl Turn {
    /// Notes that a request has arrived.
    pub(super) fn begin(&self) {
        self.enter(Phase::Answering);
    }

    /// Notes that the answer is made.
    pub(super) fn end(&self) {
        self.enter(Phase::Waiting);
    }

    /// Notes that the connection has read what its socket had when it was accepted.
    pub(super) fn had_first(&self) {
        if self.phase.load(Ordering::Relaxed) == Phase::New as u8 {
            self.enter(Phase::Waiting);
        }
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        if phase != Phase::Answering {
            self.changed.notify_waiters();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.enter(Phase::Ended);
    }
}
