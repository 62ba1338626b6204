//! A bound on the open connections of a group of servers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::AbortHandle;

/// The open connections of a group of servers, the oldest first.
///
/// A new connection is always accepted. If there are too many then, the oldest one is closed. If the pool
/// refused new connections instead, a client that opens connections and sends nothing would keep all other
/// clients out until its time limit. Here, such a client displaces its own connections, because a probe ends
/// long before its connection is the oldest.
#[derive(Clone, Debug)]
pub(super) struct ConnectionPool {
    limit: usize,
    open: Arc<Mutex<VecDeque<AbortHandle>>>,
}

impl ConnectionPool {
    /// Returns a pool for at most `limit` connections.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            open: Arc::default(),
        }
    }

    /// Adds the task of a new connection, and ends the oldest if there are too many.
    pub(super) fn add(&self, connection: AbortHandle) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|connection| !connection.is_finished());
        open.push_back(connection);
        while open.len() > self.limit
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
    }
}
