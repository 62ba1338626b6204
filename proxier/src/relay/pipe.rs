//! One direction of a TCP connection.

use std::io::{self, Read as _, Write as _};

use mio::net::TcpStream;

/// The bytes that are read at once, at most. A worker has one buffer of this size for all its connections.
///
/// Each write wakes the receiver, and each read makes the sender write again. These wake-ups cost more than
/// the copying, so that a large transfer takes large steps.
pub(super) const BUFFER: usize = 256 * 1024;

/// The bytes that are read at once in the beginning, and from then on at least. The bytes that a slow sink
/// does not accept wait in this process, so a step is as large as the sink accepted lately.
const SMALLEST_STEP: usize = 32 * 1024;

/// After a read of less than this, the source is not expected to have more.
const SMALL: usize = 8 * 1024;

/// The reads of one direction before other connections get their turn.
const TURNS: usize = 4;

/// The state of one direction. Idle, it takes 40 bytes and owns no memory.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    /// Bytes that the sink did not accept yet, from `sent` on.
    pending: Vec<u8>,
    sent: usize,
    /// The bytes that are read at once.
    step: usize,
    /// Whether the source may have bytes to read.
    pub(super) source_is_ready: bool,
    /// Whether the sink may accept bytes.
    pub(super) sink_is_ready: bool,
    /// Whether the kernel reported the source's FIN. A short read does not mean "drained" then: the end
    /// follows, and no further event would report it.
    pub(super) is_closing: bool,
    /// Whether the source's end was read.
    has_ended: bool,
    /// Whether the end was passed on to the sink.
    pub(super) is_done: bool,
}

/// The reason why a pipe stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for an event of the source or of the sink.
    Waiting,
    /// It used up its turn and has more to do.
    Yielded,
    /// The source has ended, and all its bytes are written: the end must be passed on.
    Ended,
}

impl Pipe {
    /// Returns the pipe of a new connection: its sink accepts bytes, and the first event tells about its
    /// source.
    pub(super) fn new() -> Self {
        Self {
            sink_is_ready: true,
            step: SMALLEST_STEP,
            ..Self::default()
        }
    }

    /// Returns a new pipe whose sink gets `bytes` before those of the source.
    pub(super) fn beginning_with(bytes: Vec<u8>) -> Self {
        Self {
            pending: bytes,
            ..Self::new()
        }
    }

    /// Returns whether the sink still lacks bytes that the pipe has.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Moves bytes from `source` to `sink` until one of them blocks.
    ///
    /// # Errors
    /// Those of the sockets. The connection is broken then.
    pub(super) fn pump(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        buffer: &mut [u8],
    ) -> io::Result<Progress> {
        for _ in 0..TURNS {
            if !self.flush(sink)? {
                return Ok(Progress::Waiting);
            }
            if self.has_ended {
                return Ok(Progress::Ended);
            }
            // Without room at the sink nothing is read: TCP's window stops the sender.
            if !self.source_is_ready || !self.sink_is_ready {
                return Ok(Progress::Waiting);
            }
            let step = &mut buffer[..self.step];
            let Some(read) = non_blocking(|| { source }.read(step))? else {
                self.source_is_ready = false;
                return Ok(Progress::Waiting);
            };
            if read == 0 {
                self.has_ended = true;
                continue;
            }
            // epoll(7): after a short read, an edge-triggered stream is drained. This saves the read
            // that would return EAGAIN, a quarter of the system calls of a small request. In a large
            // transfer more bytes came meanwhile, and a read costs less than to sleep and to be woken.
            if read < SMALL && !self.is_closing {
                self.source_is_ready = false;
            }
            let written = non_blocking(|| { sink }.write(&buffer[..read]))?.unwrap_or(0);
            if written < read {
                self.sink_is_ready = false;
                self.pending.extend_from_slice(&buffer[written..read]);
                self.step = written.next_power_of_two().clamp(SMALLEST_STEP, BUFFER);
            } else if read == self.step {
                self.step = BUFFER.min(self.step * 2);
            }
        }
        Ok(Progress::Yielded)
    }

    /// Writes pending bytes. Returns whether none are left.
    fn flush(&mut self, sink: &TcpStream) -> io::Result<bool> {
        while self.sent < self.pending.len() {
            if !self.sink_is_ready {
                return Ok(false);
            }
            match non_blocking(|| { sink }.write(&self.pending[self.sent..]))? {
                Some(written) => self.sent += written,
                None => self.sink_is_ready = false,
            }
        }
        if self.sent > 0 {
            // A connection that becomes idle must not keep its buffer.
            self.pending = Vec::new();
            self.sent = 0;
        }
        Ok(true)
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
