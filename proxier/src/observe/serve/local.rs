//! The socket in the file system through which `top` asks this process.
//!
//! Only root can connect, so it may exist whether or not the network's servers do.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

use super::listener::{self, HttpService};

/// How many connections may wait for `accept`.
const BACKLOG: i32 = 16;

/// Serves at the socket `path` for ever.
pub(super) async fn run(path: PathBuf, service: HttpService) {
    match listen(&path) {
        Ok(listener) => {
            let _removed = RemovedAtEnd(path);
            listener::accept(listener, service).await;
        }
        Err(error) => {
            tracing::warn!("`top` cannot ask this process: {}: {error}", path.display());
            std::future::pending().await
        }
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    // A process that was killed left it. The lock of the state file ensures that no other one listens.
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Before it listens, so that no other user can have connected.
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket.into())
}

/// The file of a socket, which is removed when the process ends in order.
struct RemovedAtEnd(PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        // Another start replaces it, too.
        let _ = fs::remove_file(&self.0);
    }
}
