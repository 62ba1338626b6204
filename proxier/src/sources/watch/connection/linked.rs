//! The server of a link, which a failure may blame.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::RequestFailure;

/// The server of a link. Clones are the same value.
#[derive(Clone, Debug)]
pub(in crate::sources::watch) struct LinkedServer {
    /// The number of servers of the configuration, of which this is one.
    servers: usize,
    is_left: Arc<AtomicBool>,
}

impl LinkedServer {
    /// Returns one of so many.
    pub(super) fn of(servers: usize) -> Self {
        Self {
            servers,
            is_left: Arc::default(),
        }
    }

    /// After a failure: if another server may answer instead, the next request goes there.
    pub(in crate::sources::watch) fn blame(&self, failure: &RequestFailure) {
        if self.has_others() && failure.concerns_server() {
            self.is_left.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether another server is to be asked.
    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    /// Returns whether the configuration names other servers, too.
    pub(super) fn has_others(&self) -> bool {
        self.servers > 1
    }

    /// Returns whether both are of one link.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.is_left, &other.is_left)
    }
}
