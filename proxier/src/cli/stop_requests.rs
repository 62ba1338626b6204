//! Requests to stop, however much waits in the daemon's queue.

use std::sync::mpsc::{SyncSender, TrySendError};

use crate::sources::message::Message;

/// Sends requests to stop to the daemon.
#[derive(Debug)]
pub(super) struct StopRequests {
    listener: SyncSender<Message>,
    /// Whether a request waits for room in the queue.
    is_waiting: bool,
}

impl StopRequests {
    pub(super) fn new(listener: SyncSender<Message>) -> Self {
        Self {
            listener,
            is_waiting: false,
        }
    }

    /// Requests a stop. Returns false if the daemon will not receive it, so that the process should exit at once.
    ///
    /// A daemon whose queue is full is busy and not stuck, and a relay ends its connections only if it is asked. The
    /// second request for which there is no room returns false.
    pub(super) fn send(&mut self) -> bool {
        match self.listener.try_send(Message::Stop) {
            Ok(()) => true,
            Err(TrySendError::Full(stop)) if !self.is_waiting => {
                self.is_waiting = true;
                let listener = self.listener.clone();
                // In a thread of its own, so that the next signal is not delayed. It fails if the daemon has stopped.
                std::thread::spawn(move || drop(listener.send(stop)));
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn a_full_queue_gets_the_request_and_a_second_one_ends_the_process() {
        let (sender, messages) = sync_channel(1);
        let mut requests = StopRequests::new(sender.clone());
        sender.send(Message::MachineChanged).unwrap();
        assert!(requests.send());
        assert!(!requests.send());
        assert!(matches!(messages.recv(), Ok(Message::MachineChanged)));
        assert!(matches!(messages.recv(), Ok(Message::Stop)));
        // The queue has room again.
        assert!(requests.send());
        drop(messages);
        assert!(!requests.send());
    }
}
