//! Kernel pipes, through which large transfers pass without a copy in this process (`splice`).
//!
//! Only large transfers: wake-ups cost most of a transfer, and pipes of 1 MiB have few, but a small request would need two
//! descriptors and more calls. `bench relay` compares the sizes.

use std::io;
use std::os::fd::OwnedFd;

use mio::net::TcpStream;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// The size of a pipe in bytes: the maximum that Linux permits without privileges (`pipe-max-size`).
///
/// With the 64 KiB of an ordinary pipe, the steps of a transfer are so small that copying costs less.
const CAPACITY: usize = 1 << 20;

/// The maximum number of pipes of a worker. If none is free, bytes are copied.
const MOST: usize = 16;

/// A process may have one pipe for this number of permitted descriptors. A pipe has two.
const FILES_PER_PIPE: usize = 64;

/// Bytes in the kernel that left a source and have not reached a sink yet.
#[derive(Debug)]
pub(crate) struct KernelPipe {
    read: OwnedFd,
    write: OwnedFd,
    length: usize,
}

impl KernelPipe {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&write, CAPACITY)?;
        Ok(Self {
            read,
            write,
            length: 0,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Moves bytes from `source` into the empty pipe, and returns their number.
    pub(crate) fn fill(&mut self, source: &TcpStream) -> io::Result<usize> {
        let taken = splice(source, None, &self.write, None, CAPACITY, FLAGS)?;
        self.length += taken;
        Ok(taken)
    }

    /// Moves bytes to `sink`, and returns their number.
    pub(crate) fn drain(&mut self, sink: &TcpStream) -> io::Result<usize> {
        let given = splice(&self.read, None, sink, None, self.length, FLAGS)?;
        self.length -= given;
        Ok(given)
    }
}

const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);

/// The kernel pipes of a worker. A connection has one only while bytes are in it.
#[derive(Debug)]
pub(crate) struct KernelPipes {
    free: Vec<KernelPipe>,
    /// The number of pipes that may still be created.
    room: usize,
}

impl KernelPipes {
    /// Returns the pipes of each of `workers` in a process that may have `files` descriptors.
    pub(crate) fn new(files: usize, workers: usize) -> Self {
        Self {
            free: Vec::new(),
            room: MOST.min(files / FILES_PER_PIPE / workers.max(1)),
        }
    }

    /// Returns an empty pipe, if one is left.
    pub(crate) fn take(&mut self) -> Option<KernelPipe> {
        self.free.pop().or_else(|| {
            self.room = self.room.checked_sub(1)?;
            // The user has too many pages in pipes, or no descriptor is left. Later attempts would probably fail
            // too, and copying always works.
            KernelPipe::new().inspect_err(|_| self.give_up()).ok()
        })
    }

    /// Returns a pipe to the worker. Closes a pipe with bytes in it.
    pub(crate) fn put(&mut self, pipe: KernelPipe) {
        match pipe.is_empty() {
            true => self.free.push(pipe),
            // Its bytes would reach the next connection that uses the pipe.
            false => self.room += 1,
        }
    }

    /// Creates no more pipes.
    fn give_up(&mut self) {
        self.room = 0;
    }

    /// Returns an error of [`KernelPipe::fill`], except if it means that the kernel cannot splice. After such an
    /// error, bytes are always copied.
    pub(crate) fn excuse(&mut self, error: io::Error) -> io::Result<()> {
        match Errno::from_io_error(&error) {
            Some(Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
                self.free.clear();
                self.give_up();
                Ok(())
            }
            _ => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_few_pipes_and_replaces_those_that_end_with_bytes() {
        let mut pipes = KernelPipes::new(FILES_PER_PIPE * 3 * 2, 2);
        let mut taken: Vec<KernelPipe> = std::iter::from_fn(|| pipes.take()).collect();
        assert_eq!(taken.len(), 3);
        let mut used = taken.pop().unwrap();
        used.length = 1;
        pipes.put(used);
        assert!(pipes.free.is_empty());
        taken.extend(pipes.take());
        assert_eq!(taken.len(), 3);
        taken.drain(..).for_each(|pipe| pipes.put(pipe));
        assert_eq!(pipes.free.len(), 3);
    }

    #[test]
    fn without_splice_there_are_no_pipes_and_other_errors_are_not_excused() {
        let mut pipes = KernelPipes::new(20_000, 1);
        let pipe = pipes.take().unwrap();
        pipes.put(pipe);
        assert!(pipes.excuse(Errno::CONNRESET.into()).is_err());
        assert!(pipes.take().is_some());
        assert!(pipes.excuse(Errno::INVAL.into()).is_ok());
        assert!(pipes.take().is_none());
    }
}
