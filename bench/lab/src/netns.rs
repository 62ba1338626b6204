//! Network namespaces.
//!
//! A namespace belongs to a thread. `/proc/self` shows the main thread's, `/proc/thread-self` the
//! calling thread's.

use std::{
    any::Any,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd},
    panic::resume_unwind,
    process, thread,
};

use nix::sched::CloneFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::netlink;

/// A network namespace. It exists at least as long as this value.
#[derive(Debug)]
pub(crate) struct Namespace {
    file: File,
}

impl Namespace {
    /// Returns the namespace of the calling thread.
    pub(crate) fn current() -> io::Result<Self> {
        let file = File::open("/proc/thread-self/ns/net")?;
        Ok(Self { file })
    }

    /// Creates a namespace with `lo` up.
    pub(crate) fn new() -> io::Result<Self> {
        on_thread("namespace", enter_new, Self::current)?
    }

    /// Returns a path by which other processes can open the namespace, valid while this value
    /// exists.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", process::id(), self.file.as_raw_fd())
    }

    /// Moves the calling thread into this namespace.
    pub(crate) fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }
}

/// Moves the calling thread into a new namespace whose only device is `lo`, up.
pub(crate) fn enter_new() -> io::Result<()> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNET)?;
    netlink::bring_loopback_up()
}

/// Runs `enter`, then `body`, on a new thread called `name`.
///
/// If `body` panics, the caller panics with the same value.
pub(crate) fn on_thread<T: Send>(
    name: &str,
    enter: impl FnOnce() -> io::Result<()> + Send,
    body: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let result: Result<_, Box<dyn Any + Send>> = thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn_scoped(scope, || enter().map(|()| body()))?;
        Ok::<_, io::Error>(thread.join())
    })?;
    result.unwrap_or_else(|panic| resume_unwind(panic))
}
