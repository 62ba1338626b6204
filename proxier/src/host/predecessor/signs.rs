//! Signs that kube-proxy runs in this network namespace.
//!
//! kube-proxy has no lock. A container sees processes of the host only with `hostPID`, but it always sees
//! the listeners of its network namespace. Both programs listen at the two ports of one configuration, so
//! sockets of this process do not count.

use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The state of a listening socket in `/proc/net/tcp` (`TCP_LISTEN`).
const LISTENING: &str = "0A";

/// The files that list the TCP sockets of this thread's network namespace.
const SOCKETS: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// The name of this program's processes.
const OWN_NAME: &str = "ipvs-proxier";

/// A sign that kube-proxy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// A process of this name in this network namespace.
    Process(u32),
    /// Another process listens at a port of kube-proxy.
    Listener(u16),
}

/// Returns the first sign; `ports` are those of kube-proxy's servers.
pub(crate) fn find(ports: &[u16]) -> Option<Sign> {
    process().or_else(|| listener(ports))
}

fn process() -> Option<Sign> {
    let id = |folder: PathBuf| folder.file_name()?.to_str()?.parse().ok();
    processes("kube-proxy").find_map(id).map(Sign::Process)
}

/// Returns the folders of the visible processes of this name in this network namespace.
fn processes(name: &str) -> impl Iterator<Item = PathBuf> {
    // A kube-proxy in another network namespace, such as a kind node's, serves another node.
    let ours = std::fs::read_link("/proc/thread-self/ns/net").ok();
    let folders = std::fs::read_dir("/proc").into_iter().flatten();
    let folders = folders.filter_map(|entry| Some(entry.ok()?.path()));
    folders.filter(move |folder| {
        let comm = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
        let is_here = || match std::fs::read_link(folder.join("ns/net")) {
            Ok(it) => Some(it) == ours,
            // A process that has ended is in no namespace. One whose namespace must not be read may be in this one.
            Err(error) => error.kind() != ErrorKind::NotFound,
        };
        comm.trim_end() == name && is_here()
    })
}

fn listener(ports: &[u16]) -> Option<Sign> {
    let own = own_sockets();
    SOCKETS.iter().find_map(|path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let foreign = text
            .lines()
            .filter_map(listening)
            .filter(|(_, inode)| !own.contains(inode));
        let mut at_ports = foreign.map(|(port, _)| port);
        at_ports
            .find(|port| ports.contains(port))
            .map(Sign::Listener)
    })
}

/// Returns the inodes of the sockets of this program: of this process, and of others that are visible.
fn own_sockets() -> BTreeSet<u64> {
    let this = std::iter::once(PathBuf::from("/proc/self"));
    // During an update the process of the old Pod may still listen at the same ports.
    let folders = this.chain(processes(OWN_NAME));
    let entries = folders.flat_map(|folder| std::fs::read_dir(folder.join("fd")));
    let targets = entries
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let inode = |target: PathBuf| {
        let text = target.to_str()?.strip_prefix("socket:[")?;
        text.strip_suffix(']')?.parse().ok()
    };
    targets.filter_map(inode).collect()
}

/// Returns port and inode of a listening socket in a line of `/proc/net/tcp`.
fn listening(line: &str) -> Option<(u16, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let (_, port) = local.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (*state == LISTENING).then_some((port, inode.parse().ok()?))
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(id) => write!(f, "process {id} is called kube-proxy"),
            Self::Listener(port) => write!(f, "another process listens at port {port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_from_the_kernels_table() {
        let line = "   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0";
        assert_eq!(listening(line), Some((10249, 4242)));
        assert_eq!(listening(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listening("  sl  local_address rem_address   st"), None);
        assert_eq!(listening(""), None);
    }

    #[test]
    fn a_listener_of_this_process_is_no_sign() {
        let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = own.local_addr().unwrap().port();
        assert_eq!(listener(&[port]), None);
    }
}
