//! The connections of IPVS, as `/proc/net/ip_vs_conn` lists them.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::cluster::model::Protocol;

/// A connection of IPVS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) protocol: Protocol,
    /// The client; port 0 of the entry that keeps a client at its endpoint.
    pub(crate) client: SocketAddr,
    /// The address that the client uses. A firewall mark instead of it is no address.
    pub(crate) frontend: SocketAddr,
    pub(crate) endpoint: SocketAddr,
    /// The kernel's word, as `ESTABLISHED`.
    pub(crate) state: String,
    /// After how many seconds without a packet the kernel forgets it.
    pub(crate) seconds_left: u64,
}

/// Returns the first `most` connections for which `is_wanted` is true.
///
/// # Cost
/// The kernel writes and this reads a line for each connection.
///
/// # Errors
/// If the file cannot be read. A kernel without IPVS has none.
pub(crate) fn connections(
    most: usize,
    is_wanted: impl Fn(&Connection) -> bool,
) -> io::Result<Vec<Connection>> {
    let mut lines = match File::open("/proc/thread-self/net/ip_vs_conn") {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    let mut line = String::new();
    while found.len() < most && lines.read_line(&mut line)? > 0 {
        found.extend(read(&line).filter(&is_wanted));
        line.clear();
    }
    Ok(found)
}

/// Reads a line; `None` for the heading, and for other protocols.
fn read(line: &str) -> Option<Connection> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let protocol = Protocol::ALL
        .into_iter()
        .find(|it| it.to_string() == name)?;
    let mut socket = || {
        let address = address(words.next()?)?;
        let port = u16::from_str_radix(words.next()?, 16).ok()?;
        Some(SocketAddr::new(address, port))
    };
    let (client, frontend, endpoint) = (socket()?, socket()?, socket()?);
    Some(Connection {
        protocol,
        client,
        frontend,
        endpoint,
        state: words.next()?.to_owned(),
        seconds_left: words.next()?.parse().ok()?,
    })
}

fn address(word: &str) -> Option<IpAddr> {
    match word.contains(':') {
        true => word.parse().ok(),
        false => {
            let number = u32::from_str_radix(word, 16).ok()?;
            Some(Ipv4Addr::from(number).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_families_are_read() {
        let read =
            |line| read(line).map(|it| (it.client, it.frontend, it.endpoint, it.seconds_left));
        let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(
            read("Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData"),
            None
        );
        assert_eq!(
            read("TCP CB007109 C350 AC120002 7582 0AF40102 1F90 ESTABLISHED     899"),
            Some((
                socket("203.0.113.9:50000"),
                socket("172.18.0.2:30082"),
                socket("10.244.1.2:8080"),
                899
            ))
        );
        assert_eq!(
            read(
                "UDP fd00:0000:0000:0000:0000:0000:0000:0001 0035 fd00:0000:0000:0000:0000:0000:0000:0002 0035 \
                  fd00:0000:0000:0000:0000:0000:0000:0003 1F90 UDP             299"
            ),
            Some((
                socket("[fd00::1]:53"),
                socket("[fd00::2]:53"),
                socket("[fd00::3]:8080"),
                299
            ))
        );
        assert_eq!(read("TCP CB007109 C350"), None);
    }
}
