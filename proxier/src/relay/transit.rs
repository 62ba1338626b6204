//! The values that all pipes of a worker share: a buffer, kernel pipes, and the limit of bytes that wait for
//! slow sinks.

use super::RelayLimits;
use super::kernel_pipe::KernelPipes;

/// The maximum number of bytes that are read at once.
///
/// Each write wakes the receiver, and each read makes the sender write again. These wake-ups cost more than
/// the copying, so a large transfer has large steps.
pub(super) const BUFFER: usize = 256 * 1024;

/// The buffer and the kernel pipes of a worker.
#[derive(Debug)]
pub(super) struct Transit {
    pub(super) buffer: Box<[u8]>,
    pub(super) kernel_pipes: KernelPipes,
    /// The number of bytes in this process's memory that wait for their sinks.
    held: usize,
    /// The limit of `held`. One more step may exceed it.
    most_held: usize,
}

/// How bytes are read from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The bytes leave the source.
    Take,
    /// The source keeps the bytes until the sink has accepted them, which costs one more system call.
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
        // In this order, because `held` includes `before`: the difference alone may be negative.
        self.held = self.held + after - before;
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Returns how pipes read. If too many bytes wait for slow sinks, sources keep their bytes.
    pub(super) fn reading(&self) -> Reading {
        match self.held < self.most_held {
            true => Reading::Take,
            false => Reading::Look,
        }
    }
}
