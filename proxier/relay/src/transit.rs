//! The values that all pipes of a worker share: a buffer, kernel pipes, and the limit of bytes that wait for
//! slow sinks.
//!
//! Above that limit, bytes are looked at and sent, and only then taken from the source (`MSG_PEEK`), so that the kernel
//! holds what the sink does not accept, and TCP's window stops the sender.

use crate::RelayLimits;
use crate::kernel_pipe::KernelPipes;

/// The maximum number of bytes that are read at once.
///
/// Each write wakes the receiver, and each read makes the sender write again. These wake-ups cost more than
/// the copying, so a large transfer has large steps.
pub(crate) const BUFFER: usize = 256 * 1024;

/// The buffer and the kernel pipes of a worker.
#[derive(Debug)]
pub(crate) struct Transit {
    pub(crate) buffer: Box<[u8]>,
    pub(crate) kernel_pipes: KernelPipes,
    /// The number of bytes in this process's memory that wait for their sinks.
    held: usize,
    /// The limit of `held`. One more step may exceed it.
    most_held: usize,
}

/// How bytes are read from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The bytes leave the source.
    Take,
    /// The source keeps the bytes until the sink has accepted them, which costs one more system call.
    Look,
}

impl Transit {
    pub(crate) fn new(limits: &RelayLimits) -> Self {
        Self {
            buffer: vec![0; BUFFER].into(),
            kernel_pipes: KernelPipes::new(limits.files, limits.workers),
            held: 0,
            most_held: limits.held,
        }
    }

    /// Counts the bytes that wait in a pipe.
    pub(crate) fn count(&mut self, before: usize, after: usize) {
        // In this order, because `held` includes `before`: the difference alone may be negative.
        self.held = self.held + after - before;
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Returns how pipes read. If too many bytes wait for slow sinks, sources keep their bytes.
    pub(crate) fn reading(&self) -> Reading {
        match self.held < self.most_held {
            true => Reading::Take,
            false => Reading::Look,
        }
    }
}
