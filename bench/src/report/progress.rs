//! Progress messages on standard error.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Prints how far a measurement is: on a terminal in one line that is overwritten, otherwise a line
/// every few seconds.
#[derive(Debug)]
pub(crate) struct StatusLine {
    is_terminal: bool,
    last: Mutex<Option<Instant>>,
}

impl StatusLine {
    pub(crate) fn new() -> Self {
        Self {
            is_terminal: stderr().is_terminal(),
            last: Mutex::new(None),
        }
    }

    /// Prints `line`, unless the last message is recent.
    pub(crate) fn show(&self, line: impl FnOnce() -> String) {
        let pause = Duration::from_millis(if self.is_terminal { 200 } else { 5_000 });
        let mut last = self.last.lock().expect("no thread panics holding it");
        if last.is_some_and(|last| last.elapsed() < pause) {
            return;
        }
        *last = Some(Instant::now());
        let line = line();
        // The run continues even if standard error is closed.
        let _ = if self.is_terminal {
            write!(stderr(), "\r{line}\x1b[K")
        } else {
            writeln!(stderr(), "{line}")
        };
    }

    /// Clears the line on the terminal.
    pub(crate) fn end(&self) {
        if self.is_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
