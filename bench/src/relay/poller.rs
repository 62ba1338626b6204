//! An epoll set whose events carry a number.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// The maximum number of events per system call.
const EVENTS: usize = 256;

/// A set of sockets to wait for.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
}

/// The events of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// The number of the socket.
    pub(super) key: usize,
    pub(super) flags: EventFlags,
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll })
    }

    pub(super) fn add(&self, socket: impl AsFd, key: usize, flags: EventFlags) -> io::Result<()> {
        let data = EventData::new_u64(key.try_into().map_err(io::Error::other)?);
        Ok(epoll::add(&self.epoll, socket, data, flags)?)
    }

    /// Waits for events, and replaces those in `events`.
    pub(super) fn wait(&self, events: &mut Vec<Event>, patience: Duration) -> io::Result<()> {
        events.clear();
        events.reserve(EVENTS);
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        match epoll::wait(&self.epoll, spare_capacity(events), Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns what an event reports.
pub(super) fn ready(event: &Event) -> Ready {
    let (data, flags) = (event.data, event.flags);
    Ready {
        // `add` converted the key from this type.
        key: usize::try_from(data.u64()).unwrap_or(usize::MAX),
        flags,
    }
}
