//! The host's end of the serial line.

use std::{
    collections::HashMap,
    io::{self, BufReader, ErrorKind, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, SyncSender},
    },
    time::Duration,
};

use super::{Greeting, lock, running::Event};
use crate::wire::{Frame, Kind, LINE_WINDOW};

/// Sends frames, and passes received frames to their jobs.
#[derive(Debug)]
pub(super) struct Line {
    socket: UnixStream,
    /// Locked while a frame is sent, so that frames are not interleaved.
    sending: Mutex<()>,
    /// The receivers by job; `None` after the kernel has ended.
    ports: Mutex<Option<HashMap<u32, Port>>>,
    /// Bytes that may be sent now; `None` after the kernel has ended.
    room: Mutex<Option<usize>>,
    more_room: Condvar,
    /// Whether the guest sent nothing for too long.
    is_silent: AtomicBool,
}

/// The channels for the frames of one job.
#[derive(Debug)]
pub(super) struct Port {
    /// Bounded: a slow reader slows the job down instead of filling memory.
    pub(super) events: SyncSender<Event>,
    pub(super) taken: Sender<u32>,
}

impl Line {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            sending: Mutex::new(()),
            ports: Mutex::new(Some(HashMap::new())),
            room: Mutex::new(Some(LINE_WINDOW)),
            more_room: Condvar::new(),
            is_silent: AtomicBool::new(false),
        }
    }

    /// Returns whether [`listen`](Self::listen) ended because the guest sent nothing for too long.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Sends one frame, no faster than the guest reads.
    pub(super) fn send(&self, frame: &Frame) -> io::Result<()> {
        let bytes = frame.encode()?;
        let _turn = lock(&self.sending);
        let mut socket = &self.socket;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let now = self.take_room(rest.len())?;
            let (first, others) = rest.split_at(now);
            socket.write_all(first)?;
            rest = others;
        }
        Ok(())
    }

    /// Opens a port for `job`; returns `false` if the kernel has ended.
    pub(super) fn listen_to(&self, job: u32, port: Port) -> bool {
        match &mut *lock(&self.ports) {
            Some(ports) => {
                ports.insert(job, port);
                true
            }
            None => false,
        }
    }

    pub(super) fn forget(&self, job: u32) {
        if let Some(ports) = &mut *lock(&self.ports) {
            ports.remove(&job);
        }
    }

    /// Passes the guest's frames to their jobs until the line ends, or until no frame arrives for
    /// `silence`.
    pub(super) fn listen(
        &self,
        socket: UnixStream,
        silence: Duration,
        ready: &Sender<Greeting>,
    ) -> io::Result<()> {
        socket.set_read_timeout(Some(silence))?;
        let mut socket = BufReader::new(socket);
        let mut next = || {
            let read = Frame::read(&mut socket);
            // The error of a read timeout.
            let is_silent = |error: &io::Error| error.kind() == ErrorKind::WouldBlock;
            if read.as_ref().is_err_and(is_silent) {
                self.is_silent.store(true, Ordering::Relaxed);
            }
            read
        };
        while let Some(frame) = next()? {
            let event = match frame.kind {
                Kind::Ready => {
                    let greeting = Greeting::decode(&frame.body)
                        .ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
                    // `Machine::boot` may have stopped waiting at its time limit.
                    let _late = ready.send(greeting);
                    continue;
                }
                Kind::Received => {
                    self.give_room(frame.number()? as usize);
                    continue;
                }
                Kind::Taken => {
                    if let Some(taken) = self.port(frame.job, |port| port.taken.clone()) {
                        let _ended = taken.send(frame.number()?);
                    }
                    continue;
                }
                Kind::Stdout => Event::Stdout(frame.body),
                Kind::Stderr => Event::Stderr(frame.body),
                Kind::Exit => Event::Exit(frame.number()?),
                Kind::Alive
                | Kind::Start
                | Kind::Stdin
                | Kind::Resize
                | Kind::Kill
                | Kind::PowerOff => continue,
            };
            if let Some(events) = self.port(frame.job, |port| port.events.clone()) {
                // Fails if the owner dropped the job.
                let _dropped = events.send(event);
            }
        }
        Ok(())
    }

    /// Closes the line. [`listen`](Self::listen) still reads the received frames, then returns.
    pub(super) fn hang_up(&self) {
        let _gone = self.socket.shutdown(Shutdown::Both);
    }

    /// Wakes all threads that wait for a frame or for room to send, with an error.
    pub(super) fn close(&self) {
        *lock(&self.ports) = None;
        *lock(&self.room) = None;
        self.more_room.notify_all();
    }

    fn port<T>(&self, job: u32, part: impl FnOnce(&Port) -> T) -> Option<T> {
        lock(&self.ports).as_ref()?.get(&job).map(part)
    }

    /// Waits for room for at least one byte and at most `wanted`.
    fn take_room(&self, wanted: usize) -> io::Result<usize> {
        let room = lock(&self.room);
        let mut room = self
            .more_room
            .wait_while(room, |room| *room == Some(0))
            .unwrap_or_else(PoisonError::into_inner);
        let Some(room) = room.as_mut() else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        let taken = wanted.min(*room);
        *room -= taken;
        Ok(taken)
    }

    fn give_room(&self, bytes: usize) {
        if let Some(room) = &mut *lock(&self.room) {
            *room = (*room + bytes).min(LINE_WINDOW);
        }
        self.more_room.notify_all();
    }
}
