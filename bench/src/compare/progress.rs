//! How many cells are complete, and how long the rest takes.

use std::time::Instant;

use crate::report::progress::StatusLine;

/// The progress of a comparison on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    all: usize,
    start: Instant,
    line: StatusLine,
}

impl Progress {
    pub(crate) fn new(all: usize) -> Self {
        Self {
            all,
            start: Instant::now(),
            line: StatusLine::new(),
        }
    }

    /// Prints that `done` cells are complete, unless the last message is recent.
    pub(crate) fn show(&self, done: usize) {
        self.line.show(|| {
            let elapsed = self.start.elapsed().as_secs_f64();
            let left = elapsed / done.max(1) as f64 * self.all.saturating_sub(done) as f64;
            format!(
                "{done} of {} cells, {elapsed:.0} s, about {left:.0} s left (Ctrl-C keeps the complete \
                 cells)",
                self.all
            )
        });
    }

    /// Clears the line on the terminal.
    pub(crate) fn end(&self) {
        self.line.end();
    }
}
