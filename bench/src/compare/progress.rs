//! Progress messages on standard error.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Prints how many cells are complete: on a terminal in one line that is overwritten, otherwise a line
/// every few seconds.
#[derive(Debug)]
pub(crate) struct Progress {
    all: usize,
    start: Instant,
    is_terminal: bool,
    last: Mutex<Option<Instant>>,
}

impl Progress {
    pub(crate) fn new(all: usize) -> Self {
        Self {
            all,
            start: Instant::now(),
            is_terminal: stderr().is_terminal(),
            last: Mutex::new(None),
        }
    }

    /// Prints that `done` cells are complete, unless the last message is recent.
    pub(crate) fn show(&self, done: usize) {
        let pause = Duration::from_millis(if self.is_terminal { 200 } else { 5_000 });
        let mut last = self.last.lock().expect("no thread panics holding it");
        if last.is_some_and(|last| last.elapsed() < pause) {
            return;
        }
        *last = Some(Instant::now());
        let elapsed = self.start.elapsed().as_secs_f64();
        let left = elapsed / done.max(1) as f64 * self.all.saturating_sub(done) as f64;
        let line = format!(
            "{done} of {} cells, {elapsed:.0} s, about {left:.0} s left (Ctrl-C keeps the complete cells)",
            self.all
        );
        // The run goes on even if standard error is closed.
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
