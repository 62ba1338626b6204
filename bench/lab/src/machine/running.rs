//! A running job, seen from the host.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::Instant,
};

use super::line::{Line, Port};
use crate::{
    job::TerminalSize,
    wire::{CHUNK, Frame, Kind},
};

/// An output or the end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The job wrote to its stdout, or to its terminal.
    Stdout(Vec<u8>),
    /// The job wrote to its stderr.
    Stderr(Vec<u8>),
    /// The job ended with this status, 128 + n after signal n.
    Exit(u32),
}

/// A started job. Dropping this discards the job's output and does not stop the job.
#[derive(Debug)]
pub struct Running {
    id: u32,
    line: Arc<Line>,
    events: Receiver<Event>,
    /// Moved into the job's only [`Input`].
    credit: Option<Receiver<u32>>,
}

/// The writing end of a job's stdin.
#[derive(Debug)]
pub struct Input {
    job: u32,
    line: Arc<Line>,
    credit: Receiver<u32>,
    /// Bytes that were sent and that the job has not read yet.
    ahead: usize,
}

/// A handle that other threads use to control a job.
#[derive(Clone, Debug)]
pub struct Control {
    job: u32,
    line: Arc<Line>,
}

/// Why no event was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEvent {
    /// The deadline has passed; the job still runs.
    Timeout,
    /// The kernel has ended.
    KernelEnded,
}

impl Running {
    /// Returns the job `id`; `None` if the kernel has ended.
    pub(super) fn new(id: u32, line: &Arc<Line>) -> Option<Self> {
        let (events, incoming) = mpsc::sync_channel(EVENTS_AHEAD);
        let (taken, credit) = mpsc::channel();
        line.listen_to(id, Port { events, taken }).then(|| Self {
            id,
            line: Arc::clone(line),
            events: incoming,
            credit: Some(credit),
        })
    }

    /// Waits for the next event until `deadline`, or for ever if it is `None`.
    ///
    /// # Errors
    ///
    /// The deadline has passed, or the kernel has ended.
    pub fn next(&self, deadline: Option<Instant>) -> Result<Event, NoEvent> {
        let Some(deadline) = deadline else {
            return self.events.recv().map_err(|_| NoEvent::KernelEnded);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        self.events.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoEvent::Timeout,
            RecvTimeoutError::Disconnected => NoEvent::KernelEnded,
        })
    }

    /// Returns the job's stdin; `None` after the first call.
    pub fn input(&mut self) -> Option<Input> {
        let credit = self.credit.take()?;
        Some(Input {
            job: self.id,
            line: Arc::clone(&self.line),
            credit,
            ahead: 0,
        })
    }

    /// Closes the job's stdin.
    ///
    /// # Errors
    ///
    /// The kernel has ended.
    pub fn close_input(&self) -> io::Result<()> {
        self.line.send(&Frame::new(self.id, Kind::Stdin, []))
    }

    /// Returns a handle for other threads.
    pub fn control(&self) -> Control {
        Control {
            job: self.id,
            line: Arc::clone(&self.line),
        }
    }
}

impl Control {
    /// Kills the job and all processes of its group. [`Event::Exit`] follows.
    ///
    /// # Errors
    ///
    /// The kernel has ended.
    pub fn kill(&self) -> io::Result<()> {
        self.line.send(&Frame::new(self.job, Kind::Kill, []))
    }

    /// Sets the size of the job's terminal.
    ///
    /// # Errors
    ///
    /// The kernel has ended.
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        self.line
            .send(&Frame::new(self.job, Kind::Resize, size.encode()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.line.forget(self.id);
    }
}

impl Input {
    /// Copies `from` to the job until `from` ends, no faster than the job reads.
    ///
    /// # Errors
    ///
    /// `from` cannot be read, or the job has ended.
    pub fn copy(mut self, from: &mut impl Read) -> io::Result<()> {
        let mut piece = [0; CHUNK];
        loop {
            while self.ahead + CHUNK > WINDOW {
                self.settle()?;
            }
            let length = from.read(&mut piece)?;
            // A read of length 0 is the end of file, and so is an empty frame.
            let frame = Frame::new(self.job, Kind::Stdin, &piece[..length]);
            self.line.send(&frame)?;
            if length == 0 {
                return Ok(());
            }
            self.ahead += length;
        }
    }

    /// Waits until the job has read some of its input.
    fn settle(&mut self) -> io::Result<()> {
        let taken = self.credit.recv();
        let taken = taken.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.ahead = self.ahead.saturating_sub(taken as usize);
        Ok(())
    }
}

/// The bytes of input that the guest queues for a job that does not read.
const WINDOW: usize = 4 * CHUNK;
/// The events that are queued for the reader of a job, 16 KiB each at most.
const EVENTS_AHEAD: usize = 64;
