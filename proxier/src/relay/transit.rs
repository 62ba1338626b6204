//! What all pipes of a worker share: a buffer, kernel pipes, and the bound of what waits for slow sinks.

use super::RelayLimits;
use super::kernel_pipe::KernelPipes;

/// The bytes that are read at once, at most.
///
/// Each write wakes the receiver, and each read makes the sender write again. These wake-ups cost more than
/// the copying, so that a large transfer takes large steps.
pub(super) const BUFFER: usize = 256 * 1024;

/// The means of a worker by which bytes pass through it.
#[derive(Debug)]
pub(super) struct Transit {
    pub(super) buffer: Box<[u8]>,
    pub(super) kernel_pipes: KernelPipes,
    /// The bytes in memory of this process that wait for their sinks.
    held: usize,
    /// As many of them are permitted, and one step more.
    most_held: usize,
}

/// How bytes are read from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The source loses them.
    Take,
    /// The source keeps them until the sink has accepted them. That costs a system call more.
    Look,
}

impl Transit {
    pub(super) fn new(limits: &RelayLimits) -> Self {
        Self {
            buffer: vec![0; BUFFER].into(),
            kernel_pipes: KernelPipes::new(limits.files, limits.workers),
            held: 0,
            most_held: limits.held,
        }
    }

    /// Counts the bytes that wait in a pipe.
    pub(super) fn count(&mut self, before: usize, after: usize) {
        self.held = self.held + after - before;
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Returns how pipes read. When too many bytes wait for slow sinks, sources keep theirs.
    pub(super) fn reading(&self) -> Reading {
        match self.held < self.most_held {
            true => Reading::Take,
            false => Reading::Look,
        }
    }
}
