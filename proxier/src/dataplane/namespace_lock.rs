//! The lock of a network namespace: one process at a time programs its kernel objects.
//!
//! Two processes with different ledgers would delete each other's virtual servers and routes. The lock of the ledger does
//! not keep them apart, because each has a file of its own. The lock is an abstract Unix socket: its name belongs
//! to the network namespace, as the objects do, and the kernel frees it whenever the process ends.
//!
//! Any process of the namespace could take the name first, also one of a Pod with the host's network. So the
//! name counts as the lock only if a privileged user, or this program's own, has it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    shutdown, socket_with,
};
use rustix::process::geteuid;

/// The name of the socket.
const NAME: &str = "ipvs-proxier";

/// How often to try. Another process may have bound the name and not listen yet, or be about to end.
const ATTEMPTS: u32 = 20;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// The most connections that wait. A thread accepts them at once.
const BACKLOG: i32 = 128;

/// The lock of this network namespace, held until it is dropped.
#[derive(Debug)]
pub(crate) struct NamespaceLock {
    /// `None` if the lock cannot be used.
    socket: Option<Arc<OwnedFd>>,
}

/// The error of acquiring the lock: another process holds it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{holder} runs on this node already and holds the abstract Unix socket {name:?} of this network namespace; \
     stop it first"
)]
pub(crate) struct HeldNamespace {
    holder: String,
    name: String,
}

impl NamespaceLock {
    /// Acquires the lock.
    ///
    /// If it cannot be used, because an unprivileged process has the name, the result is a lock that keeps no other
    /// process away, and a line of the log says so: such a process must not stop the proxy.
    ///
    /// # Errors
    /// If another process holds it.
    pub(crate) fn acquire() -> Result<Self, HeldNamespace> {
        Self::acquire_name(NAME)
    }

    fn acquire_name(name: &str) -> Result<Self, HeldNamespace> {
        let why = match Self::try_acquire(name) {
            Ok(Taken::Ours(socket)) => {
                return Ok(Self {
                    socket: Some(socket),
                });
            }
            Ok(Taken::Lock(holder)) => {
                return Err(HeldNamespace {
                    holder,
                    name: name.to_owned(),
                });
            }
            Ok(Taken::Squatted(holder)) => format!("{holder} has it, which is no ipvs-proxier"),
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            "the abstract Unix socket {name:?} of this network namespace cannot be the lock: {why}; continuing \
             without it: a second ipvs-proxier with another --state-file will not be detected"
        );
        Ok(Self { socket: None })
    }

    fn try_acquire(name: &str) -> io::Result<Taken> {
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let mut last = Errno::ADDRINUSE;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            let socket = socket(SocketFlags::empty())?;
            match bind(&socket, &address) {
                Ok(()) => {
                    listen(&socket, BACKLOG)?;
                    return Ok(Taken::Ours(keep(socket)?));
                }
                Err(Errno::ADDRINUSE) => {}
                Err(error) => return Err(error.into()),
            }
            // Without waiting: an unprivileged process may let connections wait for ever.
            let socket = self::socket(SocketFlags::NONBLOCK)?;
            match connect(&socket, &address) {
                Ok(()) => return Taken::by(&socket),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }
}

impl Drop for NamespaceLock {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            // Ends the thread, whose socket is the same. If it fails, the end of the process frees the name.
            let _ = shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}

/// Who has the name.
enum Taken {
    /// This process.
    Ours(Arc<OwnedFd>),
    /// Another process of a user who may hold the lock.
    Lock(String),
    /// A process of another user.
    Squatted(String),
}

impl Taken {
    /// Asks the kernel which process listens at the other end of `socket`.
    fn by(socket: &OwnedFd) -> io::Result<Self> {
        // Not rustix: its process numbers cannot be 0, which is that of a process in another process namespace.
        let peer = nix::sys::socket::getsockopt(socket, PeerCredentials)?;
        let holder = match peer.pid() {
            0 => "another process".to_owned(),
            pid => format!("process {pid}"),
        };
        let uid = peer.uid();
        Ok(match [0, geteuid().as_raw()].contains(&uid) {
            true => Self::Lock(holder),
            false => Self::Squatted(format!("{holder} of user {uid}")),
        })
    }
}

fn socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Accepts the connections of other processes that look who holds the lock.
///
/// Otherwise each would stay in the queue after its end, and when that is full, no process could look any more.
fn keep(socket: OwnedFd) -> io::Result<Arc<OwnedFd>> {
    let socket = Arc::new(socket);
    let accepting = socket.clone();
    let thread = std::thread::Builder::new().name("namespace lock".to_owned());
    thread.spawn(move || {
        loop {
            match accept_with(&accepting, SocketFlags::CLOEXEC) {
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                // The lock was dropped.
                Err(Errno::INVAL) => return,
                // For example without a free descriptor.
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    })?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use rustix::thread::set_thread_uid;

    use super::*;

    /// Returns a name that no other test has.
    fn name(test: &str) -> String {
        format!("ipvs-proxier test {} {test}", std::process::id())
    }

    /// Binds `name` as another user would, and keeps it while the result lives.
    fn bind_as_nobody(name: &str, backlog: Option<i32>) -> OwnedFd {
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let bound = move || {
            // Of this thread only.
            set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
            let socket = socket(SocketFlags::empty()).unwrap();
            bind(&socket, &address).unwrap();
            if let Some(backlog) = backlog {
                listen(&socket, backlog).unwrap();
            }
            socket
        };
        std::thread::spawn(bound).join().unwrap()
    }

    #[test]
    fn one_process_at_a_time_holds_the_lock() {
        let name = name("held");
        let lock = NamespaceLock::acquire_name(&name).unwrap();
        // More often than connections fit into the queue.
        for _ in 0..2 * BACKLOG {
            let error = NamespaceLock::acquire_name(&name).unwrap_err().to_string();
            let number = std::process::id();
            let start = format!("process {number} runs on this node already and holds");
            assert!(error.starts_with(&start), "{error}");
        }
        drop(lock);
        let again = NamespaceLock::acquire_name(&name).unwrap();
        assert!(again.socket.is_some());
    }

    #[test]
    fn another_user_cannot_hold_the_lock() {
        if !geteuid().is_root() {
            return;
        }
        for (what, backlog) in [("listens", Some(128)), ("binds", None), ("waits", Some(0))] {
            let name = name(what);
            let squatter = bind_as_nobody(&name, backlog);
            if what == "waits" {
                // The queue has room for one connection more than its length.
                let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
                let waiting = socket(SocketFlags::NONBLOCK).unwrap();
                connect(&waiting, &address).unwrap();
            }
            let lock = NamespaceLock::acquire_name(&name).unwrap();
            assert!(lock.socket.is_none(), "{what}");
            drop(squatter);
            let lock = NamespaceLock::acquire_name(&name).unwrap();
            assert!(lock.socket.is_some(), "{what}");
        }
    }
}
