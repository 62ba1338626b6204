//! A blocking netlink socket for any netlink family.
//!
//! ```text
//! Batch ──send──▶ kernel executes every request inside sendmsg(2)
//!       ◀─recv─── an error per failed request, an acknowledgement of the last
//! ```
//!
//! The kernel always answers a failed request, but a successful one only if its `NLM_F_ACK` is set
//! (`netlink_rcv_skb`). Only the last request of a datagram sets it. When its answer arrives, every
//! earlier request without an answer has succeeded.
//!
//! Acknowledging every request would lose answers: the kernel queues all of them before `sendmsg`
//! returns, and the default receive buffer (212,992 bytes) has room for 277 on Linux 6.1 and 237 on
//! 7.2.

use std::convert::identity;
use std::os::fd::AsFd as _;

use netlink_packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP,
    NetlinkBuffer,
};
use netlink_sys::{Socket, SocketAddr};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, recvfrom};

use crate::attr::{Writer, attributes};
use crate::batch::{Batch, HEADER};
use crate::error::{Error, Refusal, Result};

pub use netlink_sys::protocols;

/// The maximum number of requests per datagram.
///
/// About 50 requests amortise the cost of the system calls. If all 128 fail, their answers still
/// fit the default receive buffer (896 bytes each on Linux 7.2).
pub const REQUESTS_PER_SEND: usize = 128;

/// The maximum size of a datagram, below the default send buffer (212,992 bytes).
const BYTES_PER_SEND: usize = 64 * 1024;

/// The size of the buffer for one received datagram.
///
/// The kernel fills datagrams of a dump up to 32 KiB (`netlink_recvmsg`); single messages of all
/// families that we use are shorter.
const RECEIVE_BUFFER: usize = 64 * 1024;

/// The requested size of the socket's receive queue; granted in full only with CAP_NET_ADMIN.
///
/// If every request of a large transaction fails, the answers exceed the default size.
const SOCKET_BUFFER: usize = 4 * 1024 * 1024;

/// The maximum number of attempts of a dump that changes interrupt.
pub const DUMP_TRIES: u32 = 5;

/// `NLMSGERR_ATTR_MSG`, the text of an extended acknowledgement.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// A netlink socket that sends requests and waits for the answers.
#[derive(Debug)]
pub struct Transport {
    socket: Socket,
    /// The last received datagram.
    buffer: Vec<u8>,
    sequence: u32,
    /// Memory that [`Transport::request`], `query` and `dump` reuse for their request.
    scratch: Batch,
}

/// The result of one request.
pub type Answer = std::result::Result<(), RequestError>;

/// Why a request failed or has an unknown result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestError {
    /// The kernel rejected the request.
    Refused(Refusal),
    /// The kernel dropped its answer; it may have executed the request.
    Lost,
}

impl RequestError {
    /// Converts to an [`Error`] whose message begins with `doing`, for example `adding a route`.
    pub fn doing(self, doing: impl std::fmt::Display) -> Error {
        match self {
            Self::Refused(refusal) => Error::refused(doing, refusal),
            Self::Lost => Error::AnswersLost,
        }
    }
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The message type (`nlmsg_type`).
    pub kind: u16,
    /// The bytes after the netlink header.
    pub payload: &'a [u8],
}

impl Transport {
    /// Opens a socket of `protocol` (one of [`protocols`]) in the caller's network namespace.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open(protocol: isize) -> Result<Self> {
        let failed = |source| Error::Socket {
            doing: "opening a netlink socket",
            source,
        };
        let mut socket = Socket::new(protocol).map_err(failed)?;
        // Bound now: an unbound socket gets its port only at the first send, and `port` is needed
        // before.
        socket.bind_auto().map_err(failed)?;
        // The kernel adds a text to an error, and quotes only the header of the rejected request.
        socket.set_ext_ack(true).map_err(failed)?;
        socket.set_cap_ack(true).map_err(failed)?;
        // SO_RCVBUFFORCE needs CAP_NET_ADMIN; SO_RCVBUF grants at most net.core.rmem_max.
        use rustix::net::sockopt;
        if sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER)
                .map_err(Error::socket("setting the receive buffer"))?;
        }
        Ok(Self {
            socket,
            // Not filled with zeros: the part that no datagram needs takes no resident memory.
            buffer: Vec::with_capacity(RECEIVE_BUFFER),
            sequence: 0,
            scratch: Batch::new(),
        })
    }

    /// Makes the kernel apply the filters in the headers of route requests (`NETLINK_GET_STRICT_CHK`).
    ///
    /// Kernels before 4.20 lack the option and return unfiltered dumps, so callers filter too.
    pub fn filter_dumps(&self) {
        let _ = self.socket.set_netlink_get_strict_chk(true);
    }

    /// Sends all requests of `batch` and returns their results in the same order.
    ///
    /// A failing request does not stop the following ones. A datagram carries at most 128 requests
    /// and, unless a single request is larger, 64 KiB.
    ///
    /// # Errors
    /// If the socket fails. Which requests were executed is unknown then.
    pub fn run(&mut self, batch: &mut Batch) -> Result<Vec<Answer>> {
        let mut answers = vec![Ok(()); batch.len()];
        let mut first = 0;
        while first < batch.len() {
            let end = chunk_end(batch, first);
            self.run_chunk(batch, first, &mut answers[first..end])?;
            first = end;
        }
        Ok(answers)
    }

    /// Sends all requests of `batch` in one datagram and returns the rejected ones.
    ///
    /// For families that execute a datagram as one transaction (nf_tables). Only the request at
    /// index `acknowledged` asks for an acknowledgement. An empty result means that the transaction
    /// was committed. The rejected requests are in the order of the kernel's answers.
    ///
    /// # Errors
    /// If the socket fails; [`Error::AnswersLost`] if no answer arrived, so that the result of the
    /// transaction is unknown.
    pub fn run_whole(
        &mut self,
        batch: &mut Batch,
        acknowledged: usize,
    ) -> Result<Vec<(usize, RequestError)>> {
        let count = batch.len();
        let first = self.next_sequence(count);
        for index in 0..count {
            let number = first.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX));
            batch.number(index, number, index == acknowledged);
        }
        self.ensure_send_buffer(batch.bytes.len())?;
        self.send(&batch.bytes)?;
        let mut refused = Vec::new();
        let mut is_acknowledged = false;
        // The kernel queued all answers before `send` returned, so an empty queue is the end.
        while self.receive_queued()? {
            for message in messages(&self.buffer, first, count) {
                let (index, message) = message?;
                match acknowledgement(&message)? {
                    Some(Ok(())) => is_acknowledged |= index == acknowledged,
                    Some(Err(error)) => refused.push((index, error)),
                    None => {}
                }
            }
        }
        if refused.is_empty() && !is_acknowledged {
            return Err(Error::AnswersLost);
        }
        Ok(refused)
    }

    /// Returns the port number of the socket, which notifications about its requests carry.
    pub fn port(&self) -> u32 {
        let mut address = SocketAddr::new(0, 0);
        match self.socket.get_address(&mut address) {
            Ok(()) => address.port_number(),
            // 0 is the kernel's port, which no socket has.
            Err(_) => 0,
        }
    }

    /// Sends one request and waits for its acknowledgement.
    ///
    /// # Errors
    /// [`Error::Refused`] if the kernel rejects the request, with a message that begins with
    /// `doing`; otherwise the failure of the socket.
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        doing: &str,
        body: impl FnOnce(&mut Writer<'_>),
    ) -> Result<()> {
        let mut batch = self.single(kind, flags, body)?;
        let answers = self.run(&mut batch);
        self.scratch = batch;
        answers?
            .pop()
            .unwrap_or(Ok(()))
            .map_err(|answer| answer.doing(doing))
    }

    /// Sends one request, waits for the message that answers it and decodes it with `read`.
    ///
    /// # Errors
    /// Those of [`Transport::request`] and of `read`.
    pub fn query<T>(
        &mut self,
        kind: u16,
        doing: &str,
        body: impl FnOnce(&mut Writer<'_>),
        read: impl FnOnce(Message<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut batch = self.single(kind, 0, body)?;
        let first = self.next_sequence(1);
        // Without NLM_F_ACK: the data are the answer, and an acknowledgement behind them would stay
        // queued.
        batch.number(0, first, false);
        self.send(&batch.bytes)?;
        self.scratch = batch;
        loop {
            self.receive()?;
            let answer = messages(&self.buffer, first, 1).next();
            if let Some((_, message)) = answer.transpose()? {
                if let Some(result) = acknowledgement(&message)? {
                    // An acknowledgement instead of the data means that the kernel dropped the
                    // data.
                    let error = result.err().unwrap_or(RequestError::Lost);
                    return Err(error.doing(doing));
                }
                return read(message.into());
            }
        }
    }

    /// Requests a dump and calls `each` with `collected` and every message.
    ///
    /// If the kernel marks the dump as interrupted by changes (`NLM_F_DUMP_INTR`), the dump is
    /// repeated, with up to 5 attempts in all. `clear` is called before every attempt and must
    /// empty `collected`. Returns the bytes of all datagrams with messages for `each`.
    ///
    /// # Errors
    /// Those of [`Transport::request`]; [`Error::DumpInterrupted`]; [`Error::AnswersLost`]; the
    /// first error of `each`. After an error of `each` the rest of the dump is read and discarded.
    pub fn dump<T>(
        &mut self,
        kind: u16,
        doing: &str,
        body: impl Fn(&mut Writer<'_>),
        clear: impl Fn(&mut T),
        collected: &mut T,
        mut each: impl FnMut(&mut T, Message<'_>) -> Result<()>,
    ) -> Result<usize> {
        for _ in 0..DUMP_TRIES {
            clear(collected);
            let each = |message: Message<'_>| each(collected, message);
            if let Dump::Complete { bytes } = self.dump_once(kind, doing, &body, each)? {
                return Ok(bytes);
            }
        }
        Err(Error::DumpInterrupted { tries: DUMP_TRIES })
    }

    /// Requests a dump and returns what `read` finds in its messages, in their order.
    ///
    /// # Errors
    /// Those of [`Transport::dump`].
    pub fn list<T>(
        &mut self,
        kind: u16,
        doing: &str,
        body: impl Fn(&mut Writer<'_>),
        read: impl Fn(&[u8]) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        let each = |found: &mut Vec<T>, message: Message<'_>| {
            found.extend(read(message.payload)?);
            Ok(())
        };
        self.dump(kind, doing, body, Vec::clear, &mut found, each)?;
        Ok(found)
    }

    fn dump_once(
        &mut self,
        kind: u16,
        doing: &str,
        body: impl FnOnce(&mut Writer<'_>),
        mut each: impl FnMut(Message<'_>) -> Result<()>,
    ) -> Result<Dump> {
        let mut batch = self.single(kind, NLM_F_DUMP, body)?;
        let sequence = self.next_sequence(1);
        batch.number(0, sequence, false);
        self.send(&batch.bytes)?;
        self.scratch = batch;
        let mut bytes = 0;
        let mut is_interrupted = false;
        let mut result = Ok(());
        // After an error of `each` the rest is still read: the kernel rejects the next dump of this
        // socket with EBUSY while one is unfinished.
        loop {
            self.receive()?;
            for (place, message) in messages(&self.buffer, sequence, 1).enumerate() {
                let (_, message) = message?;
                is_interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
                if let Some(end) = end_of_dump(&message)? {
                    end.map_err(|error| error.doing(doing))?;
                    return result.map(|()| match is_interrupted {
                        true => Dump::Interrupted,
                        false => Dump::Complete { bytes },
                    });
                }
                if place == 0 {
                    bytes += self.buffer.len();
                }
                if message.message_type() != NLMSG_NOOP
                    && result.is_ok()
                    && let Err(error) = each(message.into())
                {
                    result = Err(error);
                }
            }
        }
    }

    fn run_chunk(&mut self, batch: &mut Batch, first: usize, answers: &mut [Answer]) -> Result<()> {
        let count = answers.len();
        let sequence = self.next_sequence(count);
        for index in 0..count {
            // Sequence numbers wrap around; `count` is at most `REQUESTS_PER_SEND`.
            let number = sequence.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX));
            batch.number(first + index, number, index + 1 == count);
        }
        let (start, end) = (batch.start(first), batch.ends[first + count - 1]);
        self.send(&batch.bytes[start..end])?;
        let mut answered = vec![false; count];
        loop {
            match self.receive() {
                Err(Error::AnswersLost) => {
                    self.read_queued(sequence, answers, &mut answered);
                    for (answer, _) in answers.iter_mut().zip(&answered).filter(|(_, got)| !**got) {
                        *answer = Err(RequestError::Lost);
                    }
                    return Ok(());
                }
                other => other?,
            }
            record(&self.buffer, sequence, answers, &mut answered)?;
            if answered.last() == Some(&true) {
                return Ok(());
            }
        }
    }

    /// Records the answers that are still queued after the kernel dropped some.
    ///
    /// Does not wait: the kernel queued every answer before `send` returned.
    fn read_queued(&mut self, sequence: u32, answers: &mut [Answer], answered: &mut [bool]) {
        while self.receive_queued().is_ok_and(identity) {
            // Requests with a malformed answer count as unanswered.
            let _ = record(&self.buffer, sequence, answers, answered);
        }
    }

    /// Returns a batch with one request, in the memory of the previous one.
    fn single(
        &mut self,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Writer<'_>),
    ) -> Result<Batch> {
        let mut batch = std::mem::take(&mut self.scratch);
        batch.clear();
        batch.push(kind, flags, body)?;
        Ok(batch)
    }

    /// Reserves `count` consecutive sequence numbers and returns the first.
    fn next_sequence(&mut self, count: usize) -> u32 {
        let first = self.sequence;
        self.sequence = first.wrapping_add(u32::try_from(count).unwrap_or(u32::MAX));
        first
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        let failed = |source| Error::Socket {
            doing: "sending to the kernel",
            source,
        };
        // With connect(2) the kernel would also check the privileges of the process that opened
        // the socket (`__netlink_ns_capable`). With an address per datagram it checks only those
        // of the sender.
        let kernel = SocketAddr::new(0, 0);
        let sent = self.socket.send_to(bytes, &kernel, 0).map_err(failed)?;
        if sent == bytes.len() {
            Ok(())
        } else {
            Err(Error::malformed("the kernel took only part of a datagram"))
        }
    }

    /// Enlarges the send buffer if a datagram of `length` bytes may not fit.
    fn ensure_send_buffer(&self, length: usize) -> Result<()> {
        use rustix::net::sockopt;
        if length <= BYTES_PER_SEND {
            return Ok(());
        }
        // `netlink_sendmsg` rejects datagrams above the buffer size less 32 bytes with EMSGSIZE.
        // SO_SNDBUF sets twice the requested size, so this always suffices when it is granted.
        let wanted = length + BYTES_PER_SEND;
        if sockopt::set_socket_send_buffer_size_force(&self.socket, wanted).is_err() {
            sockopt::set_socket_send_buffer_size(&self.socket, wanted)
                .map_err(Error::socket("setting the send buffer"))?;
        }
        Ok(())
    }

    /// Receives a queued datagram; returns whether there was one.
    fn receive_queued(&mut self) -> Result<bool> {
        self.receive_with(RecvFlags::DONTWAIT)
    }

    /// Waits for a datagram from the kernel.
    fn receive(&mut self) -> Result<()> {
        match self.receive_with(RecvFlags::empty())? {
            true => Ok(()),
            false => Err(Error::malformed("a blocking receive returned no datagram")),
        }
    }

    fn receive_with(&mut self, flags: RecvFlags) -> Result<bool> {
        loop {
            // MSG_TRUNC returns the datagram's true length; without it a datagram that was cut
            // looks whole.
            let flags = flags | RecvFlags::TRUNC;
            self.buffer.clear();
            let room = spare_capacity(&mut self.buffer);
            let (_, length, sender) = match recvfrom(self.socket.as_fd(), room, flags) {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::NOBUFS) => return Err(Error::AnswersLost),
                other => other.map_err(Error::socket("receiving from the kernel"))?,
            };
            // Any process may send a datagram to this socket; only the kernel's port is 0.
            let from_kernel = sender
                .and_then(|sender| SocketAddrNetlink::try_from(sender).ok())
                .is_some_and(|sender| sender.pid() == 0);
            if !from_kernel {
                continue;
            }
            if length > self.buffer.len() {
                return Err(Error::Truncated {
                    length,
                    buffer: self.buffer.len(),
                });
            }
            return Ok(true);
        }
    }
}

/// How a dump without errors ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dump {
    /// With the bytes of its datagrams.
    Complete {
        bytes: usize,
    },
    Interrupted,
}

type Received<'a> = NetlinkBuffer<&'a [u8]>;

impl<'a> From<Received<'a>> for Message<'a> {
    fn from(message: Received<'a>) -> Self {
        Self {
            kind: message.message_type(),
            payload: message.payload(),
        }
    }
}

/// Returns the index after the last request of the datagram that begins with request `first`.
fn chunk_end(batch: &Batch, first: usize) -> usize {
    let start = batch.start(first);
    let most = batch.len().min(first + REQUESTS_PER_SEND);
    let fitting = batch.ends[first..most].partition_point(|&end| end - start <= BYTES_PER_SEND);
    // A request above BYTES_PER_SEND is sent alone; without the minimum the caller would loop
    // forever.
    first + fitting.max(1)
}

/// Returns the messages of a datagram that answer one of `count` requests.
///
/// Each message has the index of its request. The requests have the sequence numbers from `first`
/// on. Other messages are skipped: they answer earlier requests and stayed unread after a failure.
fn messages(
    datagram: &[u8],
    first: u32,
    count: usize,
) -> impl Iterator<Item = Result<(usize, Received<'_>)>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        loop {
            if rest.len() < HEADER {
                return None;
            }
            let Ok(message) = NetlinkBuffer::new_checked(rest) else {
                rest = &[];
                return Some(Err(Error::malformed(
                    "a message is longer than its datagram",
                )));
            };
            let length = message.length() as usize;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            let index = message.sequence_number().wrapping_sub(first) as usize;
            if index < count {
                return Some(Ok((index, message)));
            }
        }
    })
}

/// Records the answers in `datagram`; the requests have the sequence numbers from `sequence` on.
fn record(
    datagram: &[u8],
    sequence: u32,
    answers: &mut [Answer],
    answered: &mut [bool],
) -> Result<()> {
    for message in messages(datagram, sequence, answers.len()) {
        let (index, message) = message?;
        if let Some(answer) = acknowledgement(&message)? {
            answers[index] = answer;
            answered[index] = true;
        }
    }
    Ok(())
}

/// Decodes a datagram as answers and as parts of a dump; returns the ends of dumps.
///
/// For the fuzz targets, which have no socket.
#[doc(hidden)]
pub fn decode_datagram(datagram: &[u8], first: u32, count: usize) -> Vec<Answer> {
    let mut answers = vec![Ok(()); count];
    // A malformed message ends both passes; the messages before it are decoded.
    let _ = record(datagram, first, &mut answers, &mut vec![false; count]);
    messages(datagram, first, count)
        .map_while(Result::ok)
        .filter_map(|(_, message)| end_of_dump(&message).ok().flatten())
        .collect()
}

/// Returns the result of a dump if `message` is its end, else `None`.
fn end_of_dump(message: &Received<'_>) -> Result<Option<Answer>> {
    if message.message_type() != NLMSG_DONE {
        return acknowledgement(message);
    }
    // A dump that fails after its first message ends with the error in NLMSG_DONE (`netlink_dump`).
    let code = message.payload().first_chunk();
    let code = code.map_or(0, |code| i32::from_ne_bytes(*code));
    Ok(Some(answer(code, message, 4)))
}

/// Returns the result in an `NLMSG_ERROR` message; `None` for other messages.
fn acknowledgement(message: &Received<'_>) -> Result<Option<Answer>> {
    if message.message_type() != NLMSG_ERROR {
        return Ok(None);
    }
    let payload = message.payload();
    let code = payload.first_chunk().map(|code| i32::from_ne_bytes(*code));
    let code = code.ok_or(Error::malformed("an error message has no error number"))?;
    // After the number the kernel quotes the whole request, or only its header if `NLM_F_CAPPED` is
    // set (`netlink_ack`). The attributes follow the quotation.
    let request = payload.get(4..).unwrap_or_default();
    let quoted = match request
        .first_chunk()
        .map(|length| u32::from_ne_bytes(*length))
    {
        Some(length) if message.flags() & NLM_F_CAPPED == 0 => length as usize,
        _ => HEADER,
    };
    let skip = quoted.saturating_add(4).next_multiple_of(4);
    Ok(Some(answer(code, message, skip)))
}

/// Converts `code` (0 or a negated errno) to an answer.
///
/// The kernel's text, if any, is in an attribute after the first `skip` bytes of the payload.
fn answer(code: i32, message: &Received<'_>, skip: usize) -> Answer {
    if code == 0 {
        return Ok(());
    }
    let mut detail = None;
    if message.flags() & NLM_F_ACK_TLVS != 0 {
        let extended = message.payload().get(skip..).unwrap_or_default();
        detail = attributes(extended)
            .map_while(Result::ok)
            .find(|attribute| attribute.kind == NLMSGERR_ATTR_MSG)
            .and_then(|attribute| attribute.string().ok())
            .map(Box::from);
    }
    // `MAX_ERRNO` is 4095. Other values are not errnos, and `Errno` cannot represent them.
    let errno = match code.saturating_neg() {
        number @ 1..=4095 => Errno::from_raw_os_error(number),
        _ => Errno::PROTO,
    };
    Err(RequestError::Refused(Refusal { errno, detail }))
}
