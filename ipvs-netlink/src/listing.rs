//! The virtual servers as `/proc/net/ip_vs` lists them.
//!
//! ```text
//! TCP  0A600001:0050 wlc  persistent 1080000 FFFFFFFF
//!   -> 0A800002:1F90      Masq    1      3          0
//! ```
//!
//! One pass over the file shows every virtual server with its destinations. A dump needs three system
//! calls per virtual server. The file lacks the scheduler flags other than one-packet scheduling, the
//! persistence engine, thresholds and tunnel parameters, so equal listings do not prove equal
//! configurations. The format is that of `ip_vs_info_seq_show`, the same on Linux 6.1 and 7.2.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::time::{ClockId, clock_getres};

use crate::destination::{Destination, DestinationKey, Forwarding};
use crate::name::SchedulerName;
use crate::service::{ClientMask, Protocol, Service, ServiceFlags, ServiceKey};
use netlink::Family;

/// The file of the calling thread's network namespace.
pub const PATH: &str = "/proc/thread-self/net/ip_vs";

/// The key of a listed virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedKey {
    /// A virtual server with an address.
    Address(ServiceKey),
    /// A firewall mark. The file does not show its address family.
    Mark(u32),
}

/// A listed virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedService {
    /// The key.
    pub key: ListedKey,
    /// The scheduler; `None`: the virtual server has no scheduler.
    pub scheduler: Option<SchedulerName>,
    /// Whether the file shows one-packet scheduling. It never does for IPv6 addresses.
    pub is_one_packet: bool,
    /// The client affinity, if any.
    pub persistence: Option<ListedPersistence>,
}

/// The client affinity of a listed virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedPersistence {
    /// The timeout in kernel ticks, of which a second has `CONFIG_HZ`.
    pub timeout_ticks: u32,
    /// The mask for IPv4. For IPv6, the prefix length in the opposite byte order.
    pub mask: u32,
}

/// A listed destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedDestination {
    /// The key within its virtual server.
    pub key: DestinationKey,
    /// The forwarding method. The file shows unknown methods and [`Forwarding::Bypass`] as
    /// [`Forwarding::Masquerade`].
    pub forwarding: Forwarding,
    /// The weight.
    pub weight: u32,
}

impl ListedService {
    /// Returns whether the file lists `service` like this, if a second has `ticks_per_second`.
    pub fn shows(&self, service: &Service, ticks_per_second: u32) -> bool {
        let is_key = match (self.key, service.key) {
            (ListedKey::Mark(listed), ServiceKey::Mark { mark, .. }) => listed == mark,
            (ListedKey::Address(listed), key) => listed == key,
            (ListedKey::Mark(_), ServiceKey::Address { .. }) => false,
        };
        // `ip_vs_info_seq_show` prints `ops` for marks and IPv4 addresses only.
        let hides_one_packet =
            matches!(service.key, ServiceKey::Address { address, .. } if address.is_ipv6());
        let is_one_packet = service.flags.contains(ServiceFlags::ONE_PACKET) && !hides_one_packet;
        let persistence = service.flags.contains(ServiceFlags::PERSISTENT).then(|| {
            ListedPersistence {
                // The kernel multiplies in 32 bits too (`ip_vs_genl_parse_service`).
                timeout_ticks: service.timeout_secs.wrapping_mul(ticks_per_second),
                mask: match service.client_mask {
                    ClientMask::V4(mask) => mask,
                    // The kernel prints `ntohl` of the native prefix length.
                    ClientMask::V6(prefix) => u32::from_be(prefix),
                },
            }
        });
        is_key
            && self.scheduler == service.scheduler
            && self.is_one_packet == is_one_packet
            && self.persistence == persistence
    }
}

impl ListedDestination {
    /// Returns whether the file lists `destination` like this.
    pub fn shows(&self, destination: &Destination) -> bool {
        let forwarding = match destination.forwarding {
            Forwarding::Bypass | Forwarding::Other(_) => Forwarding::Masquerade,
            shown => shown,
        };
        self.key == destination.key
            && self.weight == destination.weight
            && self.forwarding == forwarding
    }
}

/// Returns the kernel's ticks per second (`CONFIG_HZ`).
///
/// The coarse clocks advance once per tick. `sysconf(_SC_CLK_TCK)` is always 100, whatever the kernel's
/// configuration.
pub fn ticks_per_second() -> u32 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    // 3,333,333 ns are 300 ticks per second, so the quotient is rounded.
    let nanos = tick.tv_sec * 1_000_000_000 + tick.tv_nsec;
    u32::try_from((1_000_000_000 + nanos / 2) / nanos.max(1)).unwrap_or_default()
}

/// Calls `each` with every listed virtual server and its destinations, newest first.
///
/// Stops when `each` returns `false`, and returns `false` then. `each` may reorder the destinations.
///
/// The file may omit virtual servers, so one that is not listed may exist. Linux 6.1 has one table for all
/// network namespaces: `ip_vs_info_seq_next` counts the virtual servers of all of them, and each further
/// read skips that number of own ones (`ip_vs_info_array`). Linux 7.2 may list some twice and omit as many
/// others while it moves them to a larger table.
///
/// # Errors
/// That of `source`; [`io::ErrorKind::InvalidData`] for a line that is not one of the kernel's.
pub fn walk(
    source: impl Read,
    mut each: impl FnMut(&ListedService, &mut Vec<ListedDestination>) -> bool,
) -> io::Result<bool> {
    // The kernel returns at most a page per read (`seq_read_iter`).
    let mut source = BufReader::with_capacity(8 * 1024, source);
    let mut line = Vec::new();
    let mut service: Option<ListedService> = None;
    let mut destinations = Vec::new();
    let mut is_heading = true;
    loop {
        line.clear();
        if source.read_until(b'\n', &mut line)? == 0 {
            let is_whole = service.is_none_or(|service| each(&service, &mut destinations));
            return Ok(is_whole);
        }
        match read_line(&line) {
            Some(Line::Heading) if is_heading => {}
            Some(Line::Destination(destination)) if service.is_some() => {
                destinations.push(destination);
            }
            Some(Line::Service(next)) => {
                is_heading = false;
                if let Some(service) = service.replace(next)
                    && !each(&service, &mut destinations)
                {
                    return Ok(false);
                }
                destinations.clear();
            }
            _ => {
                let text = String::from_utf8_lossy(&line).into_owned();
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
    }
}

/// A line of the file.
enum Line {
    Heading,
    Service(ListedService),
    Destination(ListedDestination),
}

fn read_line(line: &[u8]) -> Option<Line> {
    let line = line.strip_suffix(b"\n")?;
    if let Some(rest) = line.strip_prefix(b"  -> ") {
        return match rest.starts_with(b"RemoteAddress:") {
            true => Some(Line::Heading),
            false => read_destination(rest).map(Line::Destination),
        };
    }
    match line.starts_with(b"IP Virtual Server") || line.starts_with(b"Prot ") {
        true => Some(Line::Heading),
        false => read_service(line).map(Line::Service),
    }
}

fn read_destination(line: &[u8]) -> Option<ListedDestination> {
    let mut words = words(line);
    let (address, port) = read_address(words.next()?)?;
    let forwarding = match words.next()? {
        b"Masq" => Forwarding::Masquerade,
        b"Local" => Forwarding::Local,
        b"Tunnel" => Forwarding::Tunnel,
        b"Route" => Forwarding::Route,
        _ => return None,
    };
    let weight = read_decimal(words.next()?)?;
    // The numbers of connections, which change all the time, are not read.
    Some(ListedDestination {
        key: DestinationKey { address, port },
        forwarding,
        weight,
    })
}

fn read_service(line: &[u8]) -> Option<ListedService> {
    let mut words = words(line);
    let key = match words.next()? {
        b"FWM" => ListedKey::Mark(read_hex(words.next()?, 8)?),
        protocol => {
            let protocol = match protocol {
                b"TCP" => Protocol::Tcp,
                b"UDP" => Protocol::Udp,
                b"SCTP" => Protocol::Sctp,
                other => {
                    let number = read_decimal(other.strip_prefix(b"IP_")?)?;
                    Protocol::from(u16::try_from(number).ok()?)
                }
            };
            let (address, port) = read_address(words.next()?)?;
            ListedKey::Address(ServiceKey::Address {
                protocol,
                address,
                port,
            })
        }
    };
    let scheduler = match words.next()? {
        b"none" => None,
        name => Some(SchedulerName::new(std::str::from_utf8(name).ok()?).ok()?),
    };
    let mut next = words.next();
    let is_one_packet = next == Some(b"ops");
    if is_one_packet {
        next = words.next();
    }
    let persistence = match next {
        None => None,
        Some(b"persistent") => Some(ListedPersistence {
            timeout_ticks: read_decimal(words.next()?)?,
            mask: read_hex(words.next()?, 8)?,
        }),
        Some(_) => return None,
    };
    Some(ListedService {
        key,
        scheduler,
        is_one_packet,
        persistence,
    })
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty())
}

/// Reads `0A600001:0050` or `[fd00:0000:0000:0000:0000:0000:0000:0001]:0050`.
fn read_address(word: &[u8]) -> Option<(IpAddr, u16)> {
    let (address, port) = word.split_at_checked(word.len().checked_sub(5)?)?;
    let port = read_hex(port.strip_prefix(b":")?, 4)?;
    let address = match address.strip_prefix(b"[") {
        None => Ipv4Addr::from(read_hex(address, 8)?).into(),
        Some(rest) => {
            let mut groups = rest.strip_suffix(b"]")?.split(|&byte| byte == b':');
            let mut segments = [0; 8];
            for segment in &mut segments {
                *segment = u16::try_from(read_hex(groups.next()?, 4)?).ok()?;
            }
            if groups.next().is_some() {
                return None;
            }
            Ipv6Addr::from(segments).into()
        }
    };
    Some((address, u16::try_from(port).ok()?))
}

/// Reads exactly `length` hexadecimal digits, at most 8.
fn read_hex(word: &[u8], length: usize) -> Option<u32> {
    let add = |sum: u32, &byte: &u8| Some(sum << 4 | char::from(byte).to_digit(16)?);
    (word.len() == length)
        .then(|| word.iter().try_fold(0, add))
        .flatten()
}

/// Reads a number that the kernel prints as a signed one; `None` if it is negative.
fn read_decimal(word: &[u8]) -> Option<u32> {
    let add = |sum: u32, &byte: &u8| {
        let digit = char::from(byte).to_digit(10)?;
        sum.checked_mul(10)?.checked_add(digit)
    };
    (!word.is_empty())
        .then(|| word.iter().try_fold(0, add))
        .flatten()
}

impl ListedKey {
    /// Returns the keys that the file shows like this one: a mark has one key of each family.
    pub fn candidates(self) -> impl Iterator<Item = ServiceKey> {
        let keys = match self {
            Self::Address(key) => [Some(key), None],
            Self::Mark(mark) => {
                let key = |family| Some(ServiceKey::Mark { family, mark });
                [key(Family::V4), key(Family::V6)]
            }
        };
        keys.into_iter().flatten()
    }
}
