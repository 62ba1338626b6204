//! One direction of a TCP connection.

use std::io::{self, Write as _};

use mio::net::TcpStream;
use rustix::net::{RecvFlags, recv};

use crate::kernel_pipe::KernelPipe;
use crate::transit::{BUFFER, Reading, Transit};

/// The first and the smallest number of bytes that are read at once. The bytes that a slow sink does not accept
/// wait in this process, so each step is about as large as the sink accepted last.
const SMALLEST_STEP: usize = 32 * 1024;

/// After a read of less than this, the source is not expected to have more.
const SMALL: usize = 8 * 1024;

/// A first write of at most this many bytes leaves at once in any case. Every path takes such a segment (RFC 9293,
/// 3.7.1).
const ONE_SEGMENT: usize = 536;

/// The number of reads of one direction before the next connection gets its turn.
const TURNS: usize = 4;

/// The state of one direction. Idle, it takes 48 bytes and owns no memory.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    waiting: Waiting,
    /// The number of bytes that are read at once. A large transfer reaches the largest step, [`BUFFER`].
    step: usize,
    written: FirstWrites,
    /// Whether the source may have bytes to read.
    pub(crate) source_is_ready: bool,
    /// Whether the sink may accept bytes.
    pub(crate) sink_is_ready: bool,
    /// Whether the kernel reported the source's FIN. A short read does not mean "drained" then: the end
    /// follows, and no further event would report it.
    pub(crate) is_closing: bool,
    /// Whether the source's end was read.
    has_ended: bool,
    /// Whether the end was passed on to the sink.
    pub(crate) is_done: bool,
}

/// The bytes that the sink has not accepted yet.
#[derive(Debug, Default)]
enum Waiting {
    #[default]
    Nothing,
    /// These bytes, from `sent` on.
    Bytes { bytes: Vec<u8>, sent: usize },
    /// The content of this kernel pipe.
    InKernel(KernelPipe),
}

impl Waiting {
    fn is_empty(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Bytes { bytes, sent } => *sent == bytes.len(),
            Self::InKernel(pipe) => pipe.is_empty(),
        }
    }

    /// Writes bytes to `sink`, and returns their number.
    fn give(&mut self, sink: &TcpStream) -> io::Result<usize> {
        match self {
            Self::Nothing => Ok(0),
            Self::Bytes { bytes, sent } => {
                let written = { sink }.write(&bytes[*sent..])?;
                *sent += written;
                Ok(written)
            }
            Self::InKernel(pipe) => pipe.drain(sink),
        }
    }
}

/// The writes that the sink has accepted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FirstWrites {
    #[default]
    Nothing,
    OneSegment,
    More,
}

/// The reason why a pipe stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It waits for an event of the source or of the sink.
    Waiting,
    /// It used up its turn and has more to do.
    Yielded,
    /// The source has ended and all its bytes are written, so the end must be passed on.
    Ended,
}

impl Pipe {
    /// Returns the pipe of a new connection: its sink accepts bytes, and the first event tells about its
    /// source.
    pub(crate) fn new() -> Self {
        Self {
            sink_is_ready: true,
            step: SMALLEST_STEP,
            ..Self::default()
        }
    }

    /// Returns a new pipe whose sink gets `bytes` before those of the source.
    pub(crate) fn beginning_with(bytes: Vec<u8>) -> Self {
        Self {
            waiting: Waiting::Bytes { bytes, sent: 0 },
            ..Self::new()
        }
    }

    /// Returns the number of bytes in memory that wait for the sink.
    pub(crate) fn held(&self) -> usize {
        match &self.waiting {
            Waiting::Bytes { bytes, sent } => bytes.len() - sent,
            Waiting::Nothing | Waiting::InKernel(_) => 0,
        }
    }

    /// Returns whether the kernel may hold bytes back until the sink's peer has acknowledged earlier ones, unless
    /// the sink has the option `TCP_NODELAY`.
    pub(crate) fn needs_nodelay(&self) -> bool {
        self.written == FirstWrites::More
    }

    fn count_written(&mut self, count: usize) {
        self.written = match (self.written, count) {
            (before, 0) => before,
            (FirstWrites::Nothing, ..=ONE_SEGMENT) => FirstWrites::OneSegment,
            _ => FirstWrites::More,
        };
    }

    /// Moves bytes from `source` to `sink` until one of them blocks.
    ///
    /// # Errors
    /// Those of the sockets. The connection is broken then.
    pub(crate) fn pump(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        transit: &mut Transit,
    ) -> io::Result<Progress> {
        for _ in 0..TURNS {
            if !self.flush(sink, transit)? {
                return Ok(Progress::Waiting);
            }
            if self.has_ended {
                return Ok(Progress::Ended);
            }
            // Nothing is read while the sink is full, so that TCP's window stops the sender.
            if !self.source_is_ready || !self.sink_is_ready {
                return Ok(Progress::Waiting);
            }
            let is_large = self.step == BUFFER;
            match is_large.then(|| transit.kernel_pipes.take()).flatten() {
                Some(pipe) => self.splice(source, pipe, transit)?,
                None => self.copy(source, sink, transit)?,
            }
        }
        Ok(Progress::Yielded)
    }

    /// Writes the waiting bytes to the sink. Returns whether none are left.
    fn flush(&mut self, sink: &TcpStream, transit: &mut Transit) -> io::Result<bool> {
        self.flush_by(|waiting| waiting.give(sink), transit)
    }

    fn flush_by(
        &mut self,
        give: impl FnMut(&mut Waiting) -> io::Result<usize>,
        transit: &mut Transit,
    ) -> io::Result<bool> {
        let before = self.held();
        let given = self.give_all(give);
        // After an error too: the sink may have accepted some of them before.
        transit.count(before, self.held());
        given?;
        let is_empty = self.waiting.is_empty();
        if is_empty {
            // A connection that becomes idle must not keep its buffer.
            self.discard(transit);
        }
        Ok(is_empty)
    }

    /// Writes the waiting bytes until none are left or the sink blocks.
    fn give_all(
        &mut self,
        mut give: impl FnMut(&mut Waiting) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut accepted = 0;
        while self.sink_is_ready && !self.waiting.is_empty() {
            match non_blocking(|| give(&mut self.waiting))? {
                Some(written) => {
                    self.count_written(written);
                    accepted += written;
                }
                None => self.block(accepted),
            }
        }
        Ok(())
    }

    /// Drops the bytes that wait for the sink.
    pub(crate) fn discard(&mut self, transit: &mut Transit) {
        transit.count(self.held(), 0);
        if let Waiting::InKernel(pipe) = std::mem::take(&mut self.waiting) {
            transit.kernel_pipes.put(pipe);
        }
    }

    /// Takes bytes into a kernel pipe. They are flushed next.
    fn splice(
        &mut self,
        source: &TcpStream,
        mut pipe: KernelPipe,
        transit: &mut Transit,
    ) -> io::Result<()> {
        let taken = non_blocking(|| pipe.fill(source));
        match taken {
            Ok(Some(0)) => self.has_ended = true,
            Ok(Some(taken)) => {
                if taken < SMALLEST_STEP {
                    // The transfer is no longer large.
                    self.step = SMALLEST_STEP;
                }
                self.waiting = Waiting::InKernel(pipe);
                return Ok(());
            }
            Ok(None) => self.source_is_ready = false,
            Err(_) => {}
        }
        transit.kernel_pipes.put(pipe);
        taken.map_or_else(|error| transit.kernel_pipes.excuse(error), |_| Ok(()))
    }

    /// Copies bytes from the source to the sink.
    fn copy(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        transit: &mut Transit,
    ) -> io::Result<()> {
        let reading = transit.reading();
        let flags = match reading {
            Reading::Take => RecvFlags::empty(),
            Reading::Look => RecvFlags::PEEK,
        };
        let buffer = &mut transit.buffer[..self.step];
        let Some(read) = non_blocking(|| Ok(recv(source, &mut *buffer, flags)?.1))? else {
            self.source_is_ready = false;
            return Ok(());
        };
        if read == 0 {
            self.has_ended = true;
            return Ok(());
        }
        // epoll(7): after a short read, an edge-triggered stream is drained. This saves the read
        // that would return EAGAIN, a quarter of the system calls of a small request. In a large
        // transfer more bytes came meanwhile, and a read costs less than to sleep and to be woken.
        if read < SMALL && !self.is_closing {
            self.source_is_ready = false;
        }
        let written = non_blocking(|| { sink }.write(&buffer[..read]))?.unwrap_or(0);
        self.count_written(written);
        if reading == Reading::Look && written > 0 {
            // The kernel throws the bytes away and leaves the buffer alone.
            recv(source, &mut buffer[..written], RecvFlags::TRUNC)?;
        }
        if written == read {
            if read == self.step {
                self.step = BUFFER.min(self.step * 2);
            }
            return Ok(());
        }
        self.block(written);
        match reading {
            Reading::Look => self.source_is_ready = true,
            Reading::Take => {
                let bytes = transit.buffer[written..read].to_vec();
                transit.count(0, bytes.len());
                self.waiting = Waiting::Bytes { bytes, sent: 0 };
            }
        }
        Ok(())
    }

    /// Waits for the sink, which accepted `accepted` bytes before it blocked. The next step is about as large.
    fn block(&mut self, accepted: usize) {
        self.sink_is_ready = false;
        if accepted > 0 {
            let step = accepted.next_power_of_two();
            self.step = step.clamp(SMALLEST_STEP, BUFFER);
        }
    }
}

/// Returns `None` if the socket would block.
fn non_blocking(mut request: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match request() {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::RelayLimits;

    /// Returns both ends of a connection.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        for end in [&one, &other] {
            end.set_nonblocking(true).unwrap();
        }
        (TcpStream::from_std(one), TcpStream::from_std(other))
    }

    /// A pipe between two connections whose far ends the test has.
    struct Line {
        sender: TcpStream,
        source: TcpStream,
        pipe: Pipe,
        sink: TcpStream,
        receiver: TcpStream,
        sent: usize,
        received: usize,
        /// Whether a kernel pipe had bytes that the sink did not accept.
        has_waited_in_kernel: bool,
    }

    fn byte(place: usize) -> u8 {
        ((place * 7) >> 3).to_le_bytes()[0]
    }

    impl Line {
        fn new() -> Self {
            let (sender, source) = connection();
            let (sink, receiver) = connection();
            Self {
                sender,
                source,
                pipe: Pipe::new(),
                sink,
                receiver,
                sent: 0,
                received: 0,
                has_waited_in_kernel: false,
            }
        }

        /// Sends and relays until nothing moves any more.
        fn fill(&mut self, transit: &mut Transit) {
            let mut idle = 0;
            while idle < 20 {
                let bytes: Vec<u8> = (self.sent..).take(300_000).map(byte).collect();
                let sent = { &self.sender }.write(&bytes).unwrap_or(0);
                self.sent += sent;
                idle = if sent == 0 { idle + 1 } else { 0 };
                self.pump(transit);
            }
        }

        fn pump(&mut self, transit: &mut Transit) {
            self.pipe.source_is_ready = true;
            self.pipe.sink_is_ready = true;
            self.pipe.pump(&self.source, &self.sink, transit).unwrap();
            self.has_waited_in_kernel |= matches!(self.pipe.waiting, Waiting::InKernel(_));
        }

        /// Receives everything that was sent.
        fn drain(&mut self, transit: &mut Transit) {
            let mut buffer = vec![0; 100_000];
            while self.received < self.sent {
                let read = { &self.receiver }.read(&mut buffer).unwrap_or(0);
                let expected = (self.received..self.received + read).map(byte);
                assert!(buffer[..read].iter().copied().eq(expected));
                self.received += read;
                self.pump(transit);
            }
        }
    }

    /// Returns what pipes share if `held` bytes may wait, in a process with so many descriptors.
    fn transit(held: usize, files: usize) -> Transit {
        Transit::new(&RelayLimits {
            workers: 1,
            held,
            files,
            ..RelayLimits::default()
        })
    }

    #[test]
    fn only_a_second_write_or_a_large_one_may_be_held_back() {
        let mut transit = transit(0, 0);
        for (steps, expected) in [
            (vec![1], false),
            (vec![ONE_SEGMENT], false),
            (vec![ONE_SEGMENT + 1], true),
            (vec![1, 1], true),
        ] {
            let mut line = Line::new();
            for step in &steps {
                assert!(!line.pipe.needs_nodelay(), "{steps:?}");
                { &line.sender }.write_all(&vec![b'x'; *step]).unwrap();
                line.pump(&mut transit);
            }
            // A read that finds nothing changes nothing.
            line.pump(&mut transit);
            assert_eq!(line.pipe.needs_nodelay(), expected, "{steps:?}");
        }
    }

    #[test]
    fn sinks_that_block_hold_no_more_than_is_permitted_and_one_step() {
        const HELD: usize = 100_000;
        let mut transit = transit(HELD, 0);
        let mut lines: Vec<Line> = (0..8).map(|_| Line::new()).collect();
        for line in &mut lines {
            line.fill(&mut transit);
            assert!(line.pipe.held() <= BUFFER);
        }
        let held: usize = lines.iter().map(|line| line.pipe.held()).sum();
        assert!((1..HELD + BUFFER).contains(&held), "{held}");
        assert_eq!(transit.held(), held);
        assert_eq!(
            transit.reading(),
            if held < HELD {
                Reading::Take
            } else {
                Reading::Look
            }
        );
        for line in &mut lines {
            line.drain(&mut transit);
        }
        assert_eq!(transit.held(), 0);
    }

    #[test]
    fn a_sink_that_fails_after_it_accepted_a_part_leaves_no_bytes_counted() {
        let mut transit = transit(0, 0);
        let mut pipe = Pipe::beginning_with(vec![b'x'; 10]);
        transit.count(0, pipe.held());
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        let mut answers = [Ok(4), Err(reset)].into_iter();
        let give = |waiting: &mut Waiting| {
            let written: usize = answers.next().unwrap()?;
            if let Waiting::Bytes { sent, .. } = waiting {
                *sent += written;
            }
            Ok(written)
        };
        assert!(pipe.flush_by(give, &mut transit).is_err());
        assert_eq!((transit.held(), pipe.held()), (6, 6));
        pipe.discard(&mut transit);
        assert_eq!(transit.held(), 0);
    }

    #[test]
    fn bytes_of_a_large_transfer_wait_in_a_kernel_pipe_until_the_sink_accepts_them() {
        let mut transit = transit(0, 64);
        let mut line = Line::new();
        // A transfer proves large only while the kernel delivers and accepts whole steps. On a busy machine, or
        // while its buffers are small, the sink may block before, and then bytes are copied.
        for _ in 0..100 {
            line.fill(&mut transit);
            line.drain(&mut transit);
            if line.has_waited_in_kernel {
                break;
            }
        }
        assert!(line.has_waited_in_kernel);
        assert!(matches!(line.pipe.waiting, Waiting::Nothing));
        assert!(transit.kernel_pipes.take().is_some());
        assert!(transit.kernel_pipes.take().is_none());
    }
}
