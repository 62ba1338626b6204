//! One blocking netlink socket, for any netlink family.
//!
//! ```text
//! Batch ──send──▶ kernel executes every request inside sendmsg(2)
//!       ◀─recv─── an error for each that failed, an acknowledgement of the last
//! ```
//!
//! A failing request is always answered, a succeeding one only when it asks. So only the last
//! request of a datagram asks: an answer before its own names a failure, and silence means success.
//! Answers nobody reads fill the socket's buffer (about 237 of them do by default, and further ones
//! are lost), which is the other reason for asking rarely.

use std::os::fd::AsFd as _;

use netlink_packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP,
    NetlinkBuffer,
};
use netlink_sys::{Socket, SocketAddr};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, recvfrom};

use crate::attr::{Writer, attributes};
use crate::batch::{Batch, HEADER};
use crate::error::{Error, Refusal, Result};

pub use netlink_sys::protocols;

/// Requests per datagram: beyond some 50 nothing is gained, and even if all of them fail the answers
/// fit the default receive buffer (128 x 896 bytes).
pub(crate) const REQUESTS_PER_SEND: usize = 128;

/// Bytes per datagram, well below the default send buffer.
const BYTES_PER_SEND: usize = 64 * 1024;

/// The kernel fills datagrams of a dump up to 32 KiB; other families' single messages stay below.
const RECEIVE_BUFFER: usize = 64 * 1024;

/// What we ask the kernel to queue for us; granted in full only with CAP_NET_ADMIN.
const SOCKET_BUFFER: usize = 4 * 1024 * 1024;

/// How often a dump is repeated that changes interrupted.
pub(crate) const DUMP_TRIES: u32 = 5;

/// `NLMSGERR_ATTR_MSG`, the text of an extended acknowledgement.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// A netlink socket that waits for the answers to what it asks.
#[derive(Debug)]
pub struct Transport {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
    scratch: Batch,
}

/// What became of one request.
pub type Answer = std::result::Result<(), NoAnswer>;

/// Why a request did not (certainly) succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoAnswer {
    /// The kernel did not execute it.
    Refused(Refusal),
    /// Whether the kernel executed it is unknown: its answer was dropped.
    Lost,
}

impl NoAnswer {
    /// The same with what was being done.
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
    /// Its type.
    pub kind: u16,
    /// Everything after its header.
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
        socket.bind_auto().map_err(failed)?;
        socket.set_ext_ack(true).map_err(failed)?;
        socket.set_cap_ack(true).map_err(failed)?;
        // Without privilege the plain option grants what the system's limit allows.
        use rustix::net::sockopt;
        if sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER)
                .map_err(Error::socket("setting the receive buffer"))?;
        }
        Ok(Self {
            socket,
            buffer: vec![0; RECEIVE_BUFFER],
            sequence: 0,
            scratch: Batch::new(),
        })
    }

    /// Sends all requests of `batch`, in as few datagrams as is wise, and tells of each what became
    /// of it, in order.
    ///
    /// # Errors
    /// When the socket fails; how far the kernel got is unknown then.
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

    /// Sends all requests of `batch` in one datagram, for families that carry a datagram out as one
    /// transaction (nf_tables), and gives the requests that were refused, in the kernel's order.
    ///
    /// Request `acknowledged` is the one that the kernel is asked to acknowledge. None refused means
    /// that all were carried out.
    ///
    /// # Errors
    /// When the socket fails; [`Error::AnswersLost`] when the kernel's answer, and so what it did, is
    /// unknown.
    pub fn run_whole(
        &mut self,
        batch: &mut Batch,
        acknowledged: usize,
    ) -> Result<Vec<(usize, NoAnswer)>> {
        let count = batch.len();
        let first = self.next_sequence(count);
        for index in 0..count {
            let number = first.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX));
            batch.address(index, number, index == acknowledged);
        }
        self.make_room(batch.bytes.len())?;
        self.send(&batch.bytes)?;
        let mut refused = Vec::new();
        let mut is_acknowledged = false;
        // The kernel carried it out inside the send, so that all answers are there.
        while let Some(length) = self.receive_waiting()? {
            for message in messages(&self.buffer[..length], first, count) {
                let (place, message) = message?;
                match acknowledgement(&message)? {
                    Some(Ok(())) => is_acknowledged |= place == acknowledged,
                    Some(Err(answer)) => refused.push((place, answer)),
                    None => {}
                }
            }
        }
        if refused.is_empty() && !is_acknowledged {
            return Err(Error::AnswersLost);
        }
        Ok(refused)
    }

    /// The number by which the kernel names this socket in notifications.
    pub fn port(&self) -> u32 {
        let mut address = SocketAddr::new(0, 0);
        match self.socket.get_address(&mut address) {
            Ok(()) => address.port_number(),
            // No socket has the kernel's own number.
            Err(_) => 0,
        }
    }

    /// Sends one request that is answered by an acknowledgement only.
    ///
    /// # Errors
    /// The refusal as [`Error::Refused`], with `doing` as its words; or the socket's failure.
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

    /// Sends one request that is answered by one message, which `read` takes apart.
    ///
    /// # Errors
    /// As [`Transport::request`], and those of `read`.
    pub fn query<T>(
        &mut self,
        kind: u16,
        doing: &str,
        body: impl FnOnce(&mut Writer<'_>),
        read: impl FnOnce(Message<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut batch = self.single(kind, 0, body)?;
        let first = self.next_sequence(1);
        batch.address(0, first, false);
        self.send(&batch.bytes)?;
        self.scratch = batch;
        loop {
            let length = self.receive()?;
            let answers = messages(&self.buffer[..length], first, 1).next();
            if let Some((_, message)) = answers.transpose()? {
                if let Some(answer) = acknowledgement(&message)? {
                    let refusal = answer.err().unwrap_or(NoAnswer::Lost);
                    return Err(refusal.doing(doing));
                }
                return read(message.into());
            }
        }
    }

    /// Sends one request that is answered by any number of messages, each of which `each` gets
    /// together with `collected`.
    ///
    /// A dump that the kernel marks as interrupted by changes is repeated a few times; so `clear` is
    /// called before every attempt, to drop what was collected so far.
    ///
    /// # Errors
    /// As [`Transport::request`]; [`Error::DumpInterrupted`]; [`Error::AnswersLost`]; those of
    /// `each`, which do not stop the dump from being read to its end.
    pub fn dump<T>(
        &mut self,
        kind: u16,
        doing: &str,
        body: impl Fn(&mut Writer<'_>),
        clear: impl Fn(&mut T),
        collected: &mut T,
        mut each: impl FnMut(&mut T, Message<'_>) -> Result<()>,
    ) -> Result<()> {
        for _ in 0..DUMP_TRIES {
            clear(collected);
            let each = |message: Message<'_>| each(collected, message);
            if self.dump_once(kind, doing, &body, each)? == Dump::Whole {
                return Ok(());
            }
        }
        Err(Error::DumpInterrupted { tries: DUMP_TRIES })
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
        batch.address(0, sequence, false);
        self.send(&batch.bytes)?;
        self.scratch = batch;
        let mut result = Ok(Dump::Whole);
        loop {
            let length = self.receive()?;
            for message in messages(&self.buffer[..length], sequence, 1) {
                let (_, message) = message?;
                if message.flags() & NLM_F_DUMP_INTR != 0 && result.is_ok() {
                    result = Ok(Dump::Interrupted);
                }
                if let Some(end) = end_of_dump(&message)? {
                    return match end {
                        Ok(()) => result,
                        Err(answer) => Err(answer.doing(doing)),
                    };
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
            // Wrapping, as sequence numbers do; `count` is small.
            let number = sequence.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX));
            batch.address(first + index, number, index + 1 == count);
        }
        let (start, end) = (batch.start(first), batch.ends[first + count - 1]);
        self.send(&batch.bytes[start..end])?;
        let mut answered = vec![false; count];
        loop {
            let length = match self.receive() {
                Err(Error::AnswersLost) => {
                    self.drain(sequence, answers, &mut answered);
                    for (answer, _) in answers.iter_mut().zip(&answered).filter(|(_, got)| !**got) {
                        *answer = Err(NoAnswer::Lost);
                    }
                    return Ok(());
                }
                other => other?,
            };
            note(&self.buffer[..length], sequence, answers, &mut answered)?;
            if answered.last() == Some(&true) {
                return Ok(());
            }
        }
    }

    /// Takes what answers there are without waiting: the kernel queued all of them inside the send.
    fn drain(&mut self, sequence: u32, answers: &mut [Answer], answered: &mut [bool]) {
        while let Ok((length, _, _)) = recvfrom(
            self.socket.as_fd(),
            &mut self.buffer[..],
            RecvFlags::DONTWAIT,
        ) {
            // What cannot be understood stays unanswered.
            let _ = note(&self.buffer[..length], sequence, answers, answered);
        }
    }

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

    /// The first of `count` sequence numbers that no earlier request of this socket has.
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
        // The address is given here and not by connect(2): the kernel then checks the sender's
        // privileges only, not those of whoever opened the socket.
        let kernel = SocketAddr::new(0, 0);
        let sent = self.socket.send_to(bytes, &kernel, 0).map_err(failed)?;
        if sent == bytes.len() {
            Ok(())
        } else {
            Err(Error::malformed("a send was cut short"))
        }
    }

    /// Sees to it that a datagram of `length` bytes may be sent.
    fn make_room(&self, length: usize) -> Result<()> {
        use rustix::net::sockopt;
        if length <= BYTES_PER_SEND {
            return Ok(());
        }
        // The kernel keeps 32 bytes for itself, and grants twice what it is asked for.
        let wanted = length + BYTES_PER_SEND;
        if sockopt::set_socket_send_buffer_size_force(&self.socket, wanted).is_err() {
            sockopt::set_socket_send_buffer_size(&self.socket, wanted)
                .map_err(Error::socket("setting the send buffer"))?;
        }
        Ok(())
    }

    /// Takes a datagram that is there already; answers its length.
    fn receive_waiting(&mut self) -> Result<Option<usize>> {
        self.receive_with(RecvFlags::DONTWAIT)
    }

    /// Waits for a datagram from the kernel; answers its length.
    fn receive(&mut self) -> Result<usize> {
        let received = self.receive_with(RecvFlags::empty())?;
        received.ok_or(Error::malformed("a socket that waits did not"))
    }

    fn receive_with(&mut self, flags: RecvFlags) -> Result<Option<usize>> {
        loop {
            let flags = flags | RecvFlags::TRUNC;
            let received = recvfrom(self.socket.as_fd(), &mut self.buffer[..], flags);
            let (_, length, sender) = match received {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::NOBUFS) => return Err(Error::AnswersLost),
                other => other.map_err(Error::socket("receiving from the kernel"))?,
            };
            // Any process may send to our port; only the kernel has port 0.
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
            return Ok(Some(length));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dump {
    Whole,
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

/// Where the datagram that begins with request `first` ends.
fn chunk_end(batch: &Batch, first: usize) -> usize {
    let start = batch.start(first);
    let most = batch.len().min(first + REQUESTS_PER_SEND);
    let fitting = batch.ends[first..most].partition_point(|&end| end - start <= BYTES_PER_SEND);
    first + fitting.max(1)
}

/// The messages of a datagram that answer one of `count` requests numbered from `first`, with the
/// request's place. Others are left out: answers that an earlier failure left unread.
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
                return Some(Err(Error::malformed("a message overruns its datagram")));
            };
            let length = message.length() as usize;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            let place = message.sequence_number().wrapping_sub(first) as usize;
            if place < count {
                return Some(Ok((place, message)));
            }
        }
    })
}

/// Notes the answers in a datagram to requests numbered from `sequence`.
fn note(
    datagram: &[u8],
    sequence: u32,
    answers: &mut [Answer],
    answered: &mut [bool],
) -> Result<()> {
    for message in messages(datagram, sequence, answers.len()) {
        let (place, message) = message?;
        if let Some(answer) = acknowledgement(&message)? {
            answers[place] = answer;
            answered[place] = true;
        }
    }
    Ok(())
}

/// Takes a datagram apart in every way that this module does, for the fuzz targets.
#[doc(hidden)]
pub fn examine(datagram: &[u8], first: u32, count: usize) -> Vec<Answer> {
    let mut answers = vec![Ok(()); count];
    // A broken message ends both; what came before it counts.
    let _ = note(datagram, first, &mut answers, &mut vec![false; count]);
    messages(datagram, first, count)
        .map_while(Result::ok)
        .filter_map(|(_, message)| end_of_dump(&message).ok().flatten())
        .collect()
}

/// How a dump ended, when `message` is its end.
fn end_of_dump(message: &Received<'_>) -> Result<Option<Answer>> {
    if message.message_type() != NLMSG_DONE {
        return acknowledgement(message);
    }
    // A dump can fail after it began: the error is in its end.
    let code = message.payload().first_chunk();
    let code = code.map_or(0, |code| i32::from_ne_bytes(*code));
    Ok(Some(answer(code, message, 4)))
}

/// What an error message says; `None` for any other message.
fn acknowledgement(message: &Received<'_>) -> Result<Option<Answer>> {
    if message.message_type() != NLMSG_ERROR {
        return Ok(None);
    }
    let payload = message.payload();
    let code = payload.first_chunk().map(|code| i32::from_ne_bytes(*code));
    let code = code.ok_or(Error::malformed("an error message without its number"))?;
    // After the number comes the request's header, and its content unless that was left out.
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

/// What `code` (0 or a negated error number) stands for, with the words that the kernel put into
/// attributes after the first `skip` bytes of the payload.
fn answer(code: i32, message: &Received<'_>, skip: usize) -> Answer {
    if code == 0 {
        return Ok(());
    }
    let mut detail = None;
    if message.flags() & NLM_F_ACK_TLVS != 0 {
        let words = message.payload().get(skip..).unwrap_or_default();
        detail = attributes(words)
            .map_while(Result::ok)
            .find(|attribute| attribute.kind == NLMSGERR_ATTR_MSG)
            .and_then(|attribute| attribute.string().ok())
            .map(Box::from);
    }
    // The kernel numbers errors 1 to 4095; anything else is nonsense from another source.
    let errno = match code.saturating_neg() {
        number @ 1..=4095 => Errno::from_raw_os_error(number),
        _ => Errno::PROTO,
    };
    Err(NoAnswer::Refused(Refusal { errno, detail }))
}
