//! Finds the process that holds a port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::Transport;

/// The state of listening sockets (`TCP_LISTEN` in `include/net/tcp_states.h`).
const LISTENING: &str = "0A";

/// Describes the process whose socket is at `address`, or at that port of all addresses.
///
/// `None` if the kernel lists no such socket. A socket that is bound but does not listen is in no list.
pub(crate) fn holder(transport: Transport, address: SocketAddr) -> Option<String> {
    let port = address.port();
    let hosts = match address.ip() {
        IpAddr::V4(ip) => vec![
            ip.into(),
            Ipv4Addr::UNSPECIFIED.into(),
            ip.to_ipv6_mapped().into(),
            Ipv6Addr::UNSPECIFIED.into(),
        ],
        IpAddr::V6(ip) => vec![IpAddr::V6(ip), Ipv6Addr::UNSPECIFIED.into()],
    };
    let hosts: Vec<String> = (hosts.into_iter())
        .map(|host| format!("{}:{port:04X}", words(host)))
        .collect();
    // Both files: a socket of both families is in the second one only, and takes IPv4 addresses too.
    let files = match transport {
        Transport::Tcp => ["tcp", "tcp6"],
        Transport::Udp => ["udp", "udp6"],
    };
    files.into_iter().find_map(|file| {
        let list = std::fs::read_to_string(Path::new("/proc/net").join(file)).ok()?;
        list.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, local, _, state, _, _, _, user, _, inode, ..] = fields[..] else {
                return None;
            };
            // Not an accepted connection, which has its listener's port, too.
            let is_bound = transport == Transport::Udp || state == LISTENING;
            (is_bound && hosts.iter().any(|host| host == local))
                .then(|| process_with(inode).unwrap_or_else(|| format!("a process of user {user}")))
        })
    })
}

/// Returns an address as the kernel lists it: words of 32 bits in the processor's byte order.
fn words(address: IpAddr) -> String {
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let (words, _) = octets.as_chunks();
    let words = words.iter().map(|&word| u32::from_ne_bytes(word));
    words.map(|word| format!("{word:08X}")).collect()
}

/// Describes a process with a descriptor of the socket `inode`, among those that this process may read.
fn process_with(inode: &str) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    let mut processes = Path::new("/proc").read_dir().ok()?.flatten();
    processes.find_map(|entry| {
        let id: u32 = entry.file_name().to_str()?.parse().ok()?;
        let descriptors = entry.path().join("fd").read_dir().ok()?.flatten();
        let mut targets = descriptors.flat_map(|entry| entry.path().read_link());
        targets.find(|target| target.as_os_str() == wanted.as_str())?;
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        Some(format!("{} (process {id})", name.trim_end()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_port_is_found() {
        let process = format!("(process {})", std::process::id());
        let is_found = |transport, address| {
            holder(transport, address).is_some_and(|holder| holder.ends_with(&process))
        };
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let held = std::net::TcpListener::bind(host).unwrap();
            assert!(is_found(Transport::Tcp, held.local_addr().unwrap()));
        }
        // Of both families, at all addresses.
        let everywhere = std::net::UdpSocket::bind("[::]:0").unwrap();
        let port = everywhere.local_addr().unwrap().port();
        let other = SocketAddr::from(([127, 0, 0, 2], port));
        assert!(is_found(Transport::Udp, other));
    }
}
