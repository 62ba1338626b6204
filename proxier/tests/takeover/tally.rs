//! The results of the clients' connections.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

use lab::net::Answer;

/// The answers and failures so far, of all clients.
#[derive(Default)]
pub(crate) struct Tally {
    answered: AtomicUsize,
    /// The datagrams of the present phase that were not answered.
    unanswered: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

/// Whether a question may remain unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// TCP repeats what is lost.
    Stream,
    /// A datagram in flight may be lost: this many in a phase.
    Datagram(usize),
}

impl Tally {
    /// Counts the answer to a question; `what` describes it.
    pub(crate) fn count(
        &self,
        transport: Transport,
        answer: &Answer,
        is_right: bool,
        what: impl FnOnce() -> String,
    ) {
        if is_right {
            self.answered.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let (Transport::Datagram(limit), Answer::Timeout) = (transport, answer)
            && self.unanswered.fetch_add(1, Ordering::Relaxed) < limit
        {
            return;
        }
        self.fail(format!("{}: {answer}", what()));
    }

    /// Counts a failure, with the time in the form of the programs' logs.
    pub(crate) fn fail(&self, what: String) {
        let now = humantime::format_rfc3339_millis(SystemTime::now());
        self.failures.lock().unwrap().push(format!("{now} {what}"));
    }

    /// Ends a phase. Prints the number of answers since `before`, and the time since then.
    pub(crate) fn end(&self, phase: &str, before: (usize, Instant)) {
        let lost = self.unanswered.swap(0, Ordering::Relaxed);
        let answered = self.answered() - before.0;
        let secs = before.1.elapsed().as_secs();
        eprintln!("{phase}: {answered} answers in {secs} s, {lost} datagrams lost");
    }

    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Asserts that every question had the right answer.
    #[track_caller]
    pub(crate) fn assert_nothing_was_lost(&self) {
        let failures = self.failures.lock().unwrap();
        assert!(
            failures.is_empty(),
            "{} answered; {} lost:\n{}",
            self.answered(),
            failures.len(),
            failures.join("\n")
        );
    }
}
