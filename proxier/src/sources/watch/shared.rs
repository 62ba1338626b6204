//! The connection, the queue and the interner of all followers.

use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc;

use super::connection::Connection;
use super::encoding::{AcceptHeaders, Encoding};
use super::resource::Resource;
use super::{Timeouts, WatchMessage};
use crate::cluster::store::Interner;

/// The values that all followers share.
pub(super) struct Shared {
    pub(super) connection: Connection,
    /// The preferred encoding of responses.
    pub(super) encoding: Encoding,
    pub(super) timeouts: Timeouts,
    pub(super) messages: mpsc::Sender<WatchMessage>,
    pub(super) interner: Mutex<Interner>,
}

impl Shared {
    /// Returns the `Accept` headers of requests for a kind.
    pub(super) fn accept<R: Resource>(&self) -> AcceptHeaders {
        R::FORM.accept(self.encoding)
    }

    /// Calls `work` with the interner.
    pub(super) fn with_interner<T>(&self, work: impl FnOnce(&mut Interner) -> T) -> T {
        let mut interner = self.interner.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut interner)
    }

    /// Sends a message to the daemon.
    pub(super) async fn send(&self, message: WatchMessage) {
        if self.messages.send(message).await.is_err() {
            // The receiver is dropped after `forward` returned, so `follow` drops this future next.
            std::future::pending::<()>().await;
        }
    }
}
