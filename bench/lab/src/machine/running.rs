//! One job in a running machine.

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

/// What a job does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It wrote to its output.
    Stdout(Vec<u8>),
    /// It wrote to its error output.
    Stderr(Vec<u8>),
    /// It ended, with the status a shell would name: 128 + n after signal n.
    Exit(u32),
}

/// A job that was started. Dropping it leaves the job alone and its output unheard.
#[derive(Debug)]
pub struct Running {
    id: u32,
    line: Arc<Line>,
    events: Receiver<Event>,
    /// Given out once, to the one who feeds the job.
    credit: Option<Receiver<u32>>,
}

/// The writing end of a job's stdin.
#[derive(Debug)]
pub struct Input {
    job: u32,
    line: Arc<Line>,
    credit: Receiver<u32>,
    /// Bytes sent that the job has not taken yet.
    ahead: usize,
}

/// What can be done to a job from anywhere.
#[derive(Clone, Debug)]
pub struct Control {
    job: u32,
    line: Arc<Line>,
}

/// Why no event came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The time is up; the job still runs.
    Timeout,
    /// The kernel is gone.
    Dead,
}

impl Running {
    /// Listens to job `id`; `None` when the kernel is gone.
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

    /// Waits for the next event until `deadline`, or as long as it takes.
    ///
    /// # Errors
    ///
    /// The deadline has passed, or the kernel has died.
    pub fn next(&self, deadline: Option<Instant>) -> Result<Event, Silence> {
        let Some(deadline) = deadline else {
            return self.events.recv().map_err(|_| Silence::Dead);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        self.events.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Silence::Timeout,
            RecvTimeoutError::Disconnected => Silence::Dead,
        })
    }

    /// The job's stdin; `None` when it was asked for before.
    pub fn input(&mut self) -> Option<Input> {
        let credit = self.credit.take()?;
        Some(Input {
            job: self.id,
            line: Arc::clone(&self.line),
            credit,
            ahead: 0,
        })
    }

    /// Says that the job's stdin is empty.
    ///
    /// # Errors
    ///
    /// The kernel is gone.
    pub fn close_input(&self) -> io::Result<()> {
        self.line.send(&Frame::new(self.id, Kind::Stdin, []))
    }

    /// A handle for other threads.
    pub fn control(&self) -> Control {
        Control {
            job: self.id,
            line: Arc::clone(&self.line),
        }
    }
}

impl Control {
    /// Kills the job and all processes of its group; its [`Event::Exit`] still comes.
    ///
    /// # Errors
    ///
    /// The kernel is gone.
    pub fn kill(&self) -> io::Result<()> {
        self.line.send(&Frame::new(self.job, Kind::Kill, []))
    }

    /// Tells the terminal of the job that it has a new size.
    ///
    /// # Errors
    ///
    /// The kernel is gone.
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
    /// Copies `from` to the job until it ends, no faster than the job reads.
    ///
    /// # Errors
    ///
    /// `from` cannot be read, or the job is gone.
    pub fn copy(mut self, from: &mut impl Read) -> io::Result<()> {
        let mut piece = [0; CHUNK];
        loop {
            while self.ahead + CHUNK > WINDOW {
                self.settle()?;
            }
            let length = from.read(&mut piece)?;
            // An empty piece is the end of file, here as on the line.
            let frame = Frame::new(self.job, Kind::Stdin, &piece[..length]);
            self.line.send(&frame)?;
            if length == 0 {
                return Ok(());
            }
            self.ahead += length;
        }
    }

    /// Waits until the job has taken some of what it was sent.
    fn settle(&mut self) -> io::Result<()> {
        let taken = self.credit.recv();
        let taken = taken.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.ahead = self.ahead.saturating_sub(taken as usize);
        Ok(())
    }
}

/// Bytes of input that the guest holds for a job that does not read.
const WINDOW: usize = 4 * CHUNK;
/// Events that wait for the reader of a job; 16 KiB each at most.
const EVENTS_AHEAD: usize = 64;
