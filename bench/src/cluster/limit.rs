//! The limit of the first programming: all that a proxy sent to the kernel, sent again by a program that
//! does nothing else.
//!
//! ```text
//!  proxy ──requests──▶ kernel         Recording ──the same requests──▶ kernel, a new namespace
//!              │                          ▲
//!              └── tap: those for changes ┘
//! ```
//!
//! So the limit has the same virtual servers, destinations, addresses and packet rules, in the same order,
//! whatever proxy sent them. Requests that only read are left out. Adjacent requests share datagrams of
//! [`MOST_REQUESTS`], and only the last asks for an answer; a transaction of packet rules stays one datagram.
//! All bytes are prepared before the measurement, and the tap listens as it did to the proxy.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use netlink_sys::{Socket, SocketAddr, protocols};
use nix::sys::socket::MsgFlags;
use serde::{Deserialize, Serialize};

use super::datagram::{HEADER, messages};

/// Requests per datagram; `ipvs-netlink` sends the same number.
const MOST_REQUESTS: usize = 128;

/// A datagram of several requests has at most this many bytes.
const MOST_BYTES: usize = 64 << 10;

/// How many times the limit is measured. One alone varies by a quarter on a shared host.
const LIMITS: usize = 3;

/// The room that is requested for a datagram and for its answers, in bytes.
const ROOM: usize = 16 << 20;

/// The sizes of `struct nlmsghdr`, and of it together with `struct nfgenmsg`.
const NETFILTER_HEADER: usize = 20;

const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const GENL_ID_CTRL: u16 = 16;
/// `NFNL_MSG_BATCH_BEGIN`, the first message of a transaction.
const BATCH_BEGIN: u16 = 16;
/// An attribute that no message of nfnetlink has, so that the kernel skips it.
const NO_ATTRIBUTE: u16 = 0x3fff;

/// A part of a node's state in the kernel, by the netlink protocol that programs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// IPVS: virtual servers and destinations.
    Servers,
    /// Service addresses, as routes or on a device.
    Addresses,
    /// nftables, and iptables with its backend.
    Rules,
}

impl Part {
    fn protocol(self) -> isize {
        match self {
            Self::Servers => protocols::NETLINK_GENERIC,
            Self::Addresses => protocols::NETLINK_ROUTE,
            Self::Rules => protocols::NETLINK_NETFILTER,
        }
    }
}

/// The bytes of one `send` with requests for changes.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) part: Part,
    /// Since 1970.
    pub(super) time: Duration,
    bytes: Vec<u8>,
}

impl Request {
    /// Returns the request in these bytes; `None` if its first message only reads.
    pub(super) fn of(protocol: u16, bytes: &[u8], time: Duration) -> Option<Self> {
        let kind = word(bytes, 4)?;
        let part = match isize::try_from(protocol).ok()? {
            protocols::NETLINK_GENERIC => {
                // The family of families only reads; proxies use no other one.
                let command = *bytes.get(HEADER)?;
                let is_change = kind != GENL_ID_CTRL && matches!(command, 1..=3 | 5..=7);
                is_change.then_some(Part::Servers)?
            }
            // Of four types for each kind of object, the third reads (`RTM_GETLINK` is 18).
            protocols::NETLINK_ROUTE => (kind >= 16 && kind % 4 != 2).then_some(Part::Addresses)?,
            protocols::NETLINK_NETFILTER => (kind == BATCH_BEGIN).then_some(Part::Rules)?,
            _ => return None,
        };
        let bytes = bytes.to_vec();
        Some(Self { part, time, bytes })
    }
}

/// The requests of a proxy, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Recording(Vec<Request>);

impl Recording {
    pub(super) fn push(&mut self, request: Request) {
        self.0.push(request);
    }

    /// Returns the time of the largest transaction of packet rules.
    pub(super) fn most_rules(&self) -> Option<Duration> {
        let rules = self.0.iter().filter(|it| it.part == Part::Rules);
        rules.max_by_key(|it| it.bytes.len()).map(|it| it.time)
    }

    /// Returns the time of the last request of those that the limit repeats.
    pub(super) fn last(&self) -> Option<Duration> {
        self.0.iter().map(|it| it.time).max()
    }

    /// Returns the time of the first request for virtual servers after [`Self::most_rules`].
    pub(super) fn first_server(&self) -> Option<Duration> {
        let rules = self.most_rules().unwrap_or_default();
        let servers = self.0.iter().filter(|it| it.part == Part::Servers);
        servers.map(|it| it.time).find(|&at| at >= rules)
    }

    /// Measures the limit several times, each in a new network namespace with what `prepare` returns. Returns the
    /// one in the middle.
    ///
    /// # Errors
    /// Those of `prepare`, of the namespaces and of [`Self::replay`].
    pub(super) fn limit<T>(
        &self,
        prepare: impl Fn() -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Limit> {
        let mut limits = Vec::new();
        for _ in 0..LIMITS {
            limits.push(lab::in_fresh_network(|| {
                let _prepared = prepare()?;
                self.replay()
            })??);
            // The kernel frees the namespace in the background, which would disturb what comes next.
            std::thread::sleep(Duration::from_secs(2));
        }
        limits.sort_by(|one, other| one.all().total_cmp(&other.all()));
        let middle = limits.into_iter().nth(LIMITS / 2);
        middle.context("the limit was not measured")
    }

    /// Sends all requests in the network namespace of the calling thread, and measures each part.
    ///
    /// # Errors
    /// If the kernel refuses more than one request and a hundredth of a part, or any transaction.
    fn replay(&self) -> anyhow::Result<Limit> {
        let datagrams = merge(&self.0);
        let mut servers = Writer::new(Part::Servers)?;
        let mut addresses = Writer::new(Part::Addresses)?;
        let mut rules = Writer::new(Part::Rules)?;
        for datagram in &datagrams {
            let writer = match datagram.part {
                Part::Servers => &mut servers,
                Part::Addresses => &mut addresses,
                Part::Rules => &mut rules,
            };
            writer.send(datagram)?;
        }
        Ok(Limit {
            servers_secs: servers.finish()?,
            addresses_secs: addresses.finish()?,
            rules_secs: rules.finish()?,
        })
    }
}

/// The seconds in which the kernel takes each part of a node's state.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Limit {
    pub(crate) servers_secs: f64,
    pub(crate) addresses_secs: f64,
    pub(crate) rules_secs: f64,
}

impl Limit {
    pub(crate) fn all(&self) -> f64 {
        self.servers_secs + self.addresses_secs + self.rules_secs
    }
}

/// A datagram that is ready to be sent.
struct Datagram {
    part: Part,
    bytes: Vec<u8>,
    requests: usize,
}

/// Prepares requests: joins adjacent ones of a part, except transactions.
fn merge(requests: &[Request]) -> Vec<Datagram> {
    let mut datagrams: Vec<Datagram> = Vec::new();
    for request in requests {
        if request.part == Part::Rules {
            let mut bytes = request.bytes.clone();
            forget_generation(&mut bytes);
            let requests = messages(&bytes).count();
            datagrams.push(Datagram {
                part: Part::Rules,
                bytes,
                requests,
            });
            continue;
        }
        for place in messages(&request.bytes) {
            let message = &request.bytes[place];
            match datagrams.last_mut() {
                Some(last)
                    if last.part == request.part
                        && last.requests < MOST_REQUESTS
                        && last.bytes.len() + message.len() <= MOST_BYTES =>
                {
                    last.bytes.extend_from_slice(message);
                    last.requests += 1;
                }
                _ => datagrams.push(Datagram {
                    part: request.part,
                    bytes: message.to_vec(),
                    requests: 1,
                }),
            }
        }
    }
    let joined = datagrams.iter_mut().filter(|it| it.part != Part::Rules);
    joined.for_each(|it| acknowledge_last(&mut it.bytes));
    datagrams
}

/// Makes the last message the only one that asks for an answer.
fn acknowledge_last(bytes: &mut [u8]) {
    let places: Vec<_> = messages(bytes).collect();
    for &Range { start, end } in &places {
        let is_last = end == bytes.len();
        let flags = word(bytes, start + 6).unwrap_or_default() & !NLM_F_ACK;
        put(
            bytes,
            start + 6,
            flags | if is_last { NLM_F_ACK } else { 0 },
        );
    }
}

/// Removes the generation for which a transaction was made: that of a new namespace is another one.
fn forget_generation(bytes: &mut [u8]) {
    let length = bytes.first_chunk().map(|it| u32::from_ne_bytes(*it));
    if length.is_some_and(|length| length as usize > NETFILTER_HEADER) {
        put(bytes, NETFILTER_HEADER + 2, NO_ATTRIBUTE);
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*word))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
}

/// The socket that writes one part.
struct Writer {
    part: Part,
    socket: Socket,
    answer: Vec<u8>,
    requests: usize,
    refused: usize,
    taken: Duration,
}

impl Writer {
    fn new(part: Part) -> anyhow::Result<Self> {
        let mut socket = Socket::new(part.protocol())?;
        socket.bind_auto()?;
        socket.set_cap_ack(true)?;
        rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, ROOM)?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, ROOM)?;
        Ok(Self {
            part,
            socket,
            answer: vec![0; MOST_BYTES],
            requests: 0,
            refused: 0,
            taken: Duration::ZERO,
        })
    }

    fn send(&mut self, datagram: &Datagram) -> anyhow::Result<()> {
        let kernel = SocketAddr::new(0, 0);
        let start = Instant::now();
        let sent = self.socket.send_to(&datagram.bytes, &kernel, 0);
        sent.with_context(|| format!("sending {:?}", self.part))?;
        // The kernel queued all answers before `send` returned.
        while let Ok(length) = self
            .socket
            .recv(&mut &mut self.answer[..], MsgFlags::MSG_DONTWAIT.bits())
        {
            let is_error = word(&self.answer, 4) == Some(NLMSG_ERROR);
            let is_refusal = self.answer[HEADER..length]
                .iter()
                .take(4)
                .any(|&it| it != 0);
            self.refused += usize::from(is_error && is_refusal);
        }
        self.taken += start.elapsed();
        self.requests += datagram.requests;
        Ok(())
    }

    /// Returns the seconds of all sends.
    fn finish(self) -> anyhow::Result<f64> {
        let Self {
            part,
            requests,
            refused,
            ..
        } = self;
        // A proxy may probe the kernel with a request that the kernel refuses, as ours does.
        let tolerated = match part {
            Part::Rules => 0,
            Part::Servers | Part::Addresses => 1 + requests / 100,
        };
        ensure!(
            refused <= tolerated,
            "the kernel refused {refused} of {requests} requests of the limit ({part:?})"
        );
        Ok(self.taken.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + body.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn request(protocol: u16, bytes: &[u8]) -> Option<Request> {
        Request::of(protocol, bytes, Duration::ZERO)
    }

    #[test]
    fn requests_that_only_read_are_left_out() {
        assert!(request(0, &message(26, 1, &[0; 12])).is_none());
        assert!(request(12, &message(0xa10, 1, &[0; 4])).is_none());
        assert!(request(16, &message(30, 1, &[4, 1, 0, 0])).is_none());
        let added = request(16, &message(30, 1, &[1, 1, 0, 0])).unwrap();
        assert_eq!(added.part, Part::Servers);
    }

    #[test]
    fn adjacent_requests_share_a_datagram_and_one_answer() {
        let route = message(24, 5, &[7; 13]);
        let requests: Vec<Request> = (0..200).filter_map(|_| request(0, &route)).collect();
        let datagrams = merge(&requests);
        let sizes: Vec<usize> = datagrams.iter().map(|it| it.requests).collect();
        assert_eq!(sizes, [128, 72]);
        let bytes = &datagrams[1].bytes;
        let flags = messages(bytes).map(|place| word(bytes, place.start + 6));
        let asking: Vec<usize> = (0..)
            .zip(flags)
            .filter(|(_, flags)| flags.unwrap() & NLM_F_ACK != 0)
            .map(|(index, _)| index)
            .collect();
        assert_eq!(asking, [71]);
    }

    #[test]
    fn a_transaction_stays_whole_and_loses_its_generation() {
        let mut bytes = message(BATCH_BEGIN, 1, &[0, 0, 0, 10, 8, 0, 1, 0, 0, 0, 0, 9]);
        bytes.extend(message(0xa00, 5, &[1, 0, 0, 0]));
        let datagrams = merge(&vec![request(12, &bytes).unwrap(); 2]);
        assert_eq!(datagrams.len(), 2);
        assert_eq!(datagrams[0].requests, 2);
        assert_eq!(word(&datagrams[0].bytes, 22), Some(NO_ATTRIBUTE));
    }
}
