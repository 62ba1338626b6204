//! Questions to the daemon, which alone has the plan.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::directory::{Detail, Directory};
use crate::cluster::model::ObjectName;

/// The most questions that wait. More clients than that get no answer while the daemon is busy.
const MAX_WAITING: usize = 16;

/// What a client wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// Whether it needs all Services.
    pub(crate) needs_directory: bool,
    /// The Service whose frontends and endpoints it needs.
    pub(crate) service: Option<ObjectName>,
}

/// The daemon's answer.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// All Services, if they were asked for.
    pub(crate) directory: Option<Directory>,
    /// The Service that was asked for, if it is served.
    pub(crate) detail: Option<Detail>,
    /// How long the daemon needed for all Services.
    pub(crate) took: Duration,
}

/// The questions that wait for the daemon.
#[derive(Debug, Default)]
pub(crate) struct Desk(Mutex<Vec<(Question, oneshot::Sender<Told>)>>);

impl Desk {
    /// Asks the daemon. Returns `None` if too many questions wait.
    pub(crate) fn ask(&self, question: Question) -> Option<oneshot::Receiver<Told>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody waits for any more.
        waiting.retain(|(_, reply)| !reply.is_closed());
        if waiting.len() >= MAX_WAITING {
            return None;
        }
        let (reply, told) = oneshot::channel();
        waiting.push((question, reply));
        Some(told)
    }

    /// Answers all questions that wait.
    pub(crate) fn answer(&self, answer: impl Fn(&Question) -> Told) {
        // Out of the lock, so that no client waits for it while others are answered.
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (question, reply) in waiting {
            if !reply.is_closed() {
                // Fails if the client is gone.
                let _ = reply.send(answer(&question));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_of_clients_that_left_take_no_place() {
        let desk = Desk::default();
        let question = Question {
            needs_directory: true,
            service: None,
        };
        let waiting: Vec<_> = (0..MAX_WAITING)
            .map(|_| desk.ask(question.clone()).unwrap())
            .collect();
        assert!(desk.ask(question.clone()).is_none());
        drop(waiting);
        let mut told = desk.ask(question.clone()).unwrap();
        desk.answer(|asked| {
            assert_eq!(*asked, question);
            Told::default()
        });
        assert!(told.try_recv().is_ok());
    }
}
