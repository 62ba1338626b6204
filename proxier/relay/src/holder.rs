//! Finds the process that holds a port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::Transport;

/// The owner of a socket whose address no other socket can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The user of the socket.
    uid: u32,
    /// Its process and the name of the program; `None` if this process may not read it.
    process: Option<(u32, String)>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some((id, name)) => write!(f, "{name} (process {id})"),
            None => write!(f, "a process of user {}", self.uid),
        }
    }
}

impl Holder {
    /// Finds the socket at `address`, or at that port of all addresses.
    ///
    /// `None` if the kernel lists no such socket. A socket that is bound but does not listen is in no list.
    pub(crate) fn of(transport: Transport, address: SocketAddr) -> Option<Self> {
        // Several looks: the kernel continues the list of UDP sockets by position (`udp_seq_start`), so one that
        // closes between two reads hides another.
        let found = (0..LOOKS).find_map(|_| ListedSocket::find(transport, address))?;
        Some(Self {
            uid: found.uid,
            process: process_with(found.inode),
        })
    }
}

/// The number of looks for a socket.
const LOOKS: u32 = 3;

/// A line of `/proc/net/tcp` and its kin.
#[derive(Debug, PartialEq, Eq)]
struct ListedSocket {
    local: SocketAddr,
    /// The connection state of TCP; meaningless for UDP.
    state: u8,
    uid: u32,
    inode: u64,
}

/// The state of listening sockets (`TCP_LISTEN` in `include/net/tcp_states.h`).
const LISTENING: u8 = 10;

impl ListedSocket {
    fn find(transport: Transport, address: SocketAddr) -> Option<Self> {
        // Both files: a socket of both families is in the second one only, and takes IPv4 addresses
        // too.
        let files = match transport {
            Transport::Tcp => ["tcp", "tcp6"],
            Transport::Udp => ["udp", "udp6"],
        };
        files.into_iter().find_map(|file| {
            let list = std::fs::read_to_string(Path::new("/proc/net").join(file)).ok()?;
            let mut sockets = list.lines().skip(1).filter_map(Self::parse);
            sockets.find(|socket| socket.takes(transport, address))
        })
    }

    /// Parses a line: number, local address, remote address, state, queues, timer, retransmissions, user,
    /// timeout, inode, and more.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let local = words.nth(1)?;
        let state = words.nth(1)?;
        let uid = words.nth(3)?;
        let inode = words.nth(1)?;
        Some(Self {
            local: parse_address(local)?,
            state: u8::from_str_radix(state, 16).ok()?,
            uid: uid.parse().ok()?,
            inode: inode.parse().ok()?,
        })
    }

    fn takes(&self, transport: Transport, address: SocketAddr) -> bool {
        let is_same = self.local.ip().to_canonical() == address.ip();
        // Not an accepted connection, which has its listener's port, too.
        let is_bound = transport == Transport::Udp || self.state == LISTENING;
        is_bound
            && self.local.port() == address.port()
            && (is_same || self.local.ip().is_unspecified())
    }
}

/// Parses an address such as `0100007F:1F90`: words of 32 bits in the processor's byte order, and a port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |index: usize| {
        let digits = address.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let address: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut octets = [0; 16];
            for (index, part) in octets.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(index)?);
            }
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some((address, port).into())
}

/// Finds a process with a descriptor of the socket `inode`, among those that this process may read.
fn process_with(inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    let processes = Path::new("/proc").read_dir().ok()?;
    let ids = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for id in ids {
        let path = Path::new("/proc").join(u32::to_string(&id));
        let Ok(descriptors) = path.join("fd").read_dir() else {
            continue;
        };
        let mut targets = descriptors
            .flatten()
            .flat_map(|entry| entry.path().read_link());
        if targets.any(|target| target.as_os_str() == wanted.as_str()) {
            let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            return Some((id, name.trim_end().to_owned()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_parsed() {
        let line = "   3: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000   \
                    101        0 4242 1 0000000000000000 100 0 0 10 0";
        let socket = ListedSocket::parse(line).unwrap();
        #[cfg(target_endian = "little")]
        assert_eq!(socket.local, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(
            (socket.uid, socket.inode, socket.state),
            (101, 4242, LISTENING)
        );
        assert_eq!(
            ListedSocket::parse("  sl  local_address rem_address   st"),
            None
        );
    }

    #[test]
    fn the_holder_of_a_port_is_found() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        let holder = Holder::of(Transport::Tcp, address).unwrap();
        assert_eq!(holder.process.unwrap().0, std::process::id());
        let everywhere = std::net::UdpSocket::bind("[::]:0").unwrap();
        let port = everywhere.local_addr().unwrap().port();
        let other = SocketAddr::from(([127, 0, 0, 2], port));
        let holder = Holder::of(Transport::Udp, other).unwrap();
        assert!(
            holder
                .to_string()
                .ends_with(&format!("(process {})", std::process::id()))
        );
    }
}
