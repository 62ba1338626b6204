//! The messages between host and guest.
//!
//! All messages share one byte stream: a socket on the host, a serial line in the guest. Each
//! message is a frame with the number of its job, so each job has its own stdin, stdout and stderr,
//! and the end of a job's stdin does not end the line.
//!
//! ```text
//!  job: u32 | kind: u8 | length: u32 | body        little endian
//! ```

use std::io::{self, ErrorKind, Read};

/// The longest body of a frame; a reader rejects a longer one as garbage on the line.
pub(crate) const MAX_BODY: usize = 1 << 20;

/// The bytes of frames that the host may have sent and the guest has not read.
///
/// The guest's terminal holds 4096 bytes and stops the line when it is nearly full. User-Mode Linux
/// never starts a stopped line again (its `reactivate_fd` does nothing since it uses epoll), so the
/// host must never fill the terminal.
pub(crate) const LINE_WINDOW: usize = 3072;

/// The longest piece of a job's stdin, stdout or stderr in one frame.
pub(crate) const CHUNK: usize = 16 * 1024;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The number of its job, chosen by the host; 0 for the machine itself.
    pub(crate) job: u32,
    /// Its meaning.
    pub(crate) kind: Kind,
    /// The content that the kind describes.
    pub(crate) body: Vec<u8>,
}

/// The meaning of a [`Frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Guest: the agent accepts jobs; the body is a [`Greeting`](crate::machine::Greeting).
    Ready = 1,
    /// Host: run this [`Job`](crate::job::Job).
    Start = 2,
    /// Host: input of the job; empty at end of file.
    Stdin = 3,
    /// Host: the terminal's size changed; a [`TerminalSize`](crate::job::TerminalSize).
    Resize = 4,
    /// Host: kill the job's process group.
    Kill = 5,
    /// Host: write all files back and switch off.
    PowerOff = 6,
    /// Guest: the job has read this many bytes of input; one `u32`.
    Taken = 7,
    /// Guest: output of the job.
    Stdout = 8,
    /// Guest: error output of the job.
    Stderr = 9,
    /// Guest: the job ended; one `u32`, its exit status as a shell reports it.
    Exit = 10,
    /// Guest: the agent has read this many bytes from the serial line; one `u32`.
    Received = 11,
    /// Guest: nothing. A guest that cannot send has lost its host.
    Alive = 12,
}

impl Frame {
    pub(crate) fn new(job: u32, kind: Kind, body: impl Into<Vec<u8>>) -> Self {
        Self {
            job,
            kind,
            body: body.into(),
        }
    }

    /// Reads the next frame; `None` if the other side has closed the line.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; 9];
        match from.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [j0, j1, j2, j3, kind, l0, l1, l2, l3] = header;
        let kind = Kind::from_byte(kind).ok_or_else(|| garbage("unknown kind"))?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_BODY {
            return Err(garbage("too long"));
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body)?;
        Ok(Some(Self {
            job: u32::from_le_bytes([j0, j1, j2, j3]),
            kind,
            body,
        }))
    }

    /// Returns the bytes of the frame.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        let length = u32::try_from(self.body.len())
            .ok()
            .filter(|&length| length as usize <= MAX_BODY)
            .ok_or_else(|| {
                io::Error::new(ErrorKind::InvalidInput, "too much for one frame (1 MiB)")
            })?;
        let mut bytes = Vec::with_capacity(9 + self.body.len());
        bytes.extend(self.job.to_le_bytes());
        bytes.push(self.kind as u8);
        bytes.extend(length.to_le_bytes());
        bytes.extend(&self.body);
        Ok(bytes)
    }

    /// Returns the number in the body of [`Kind::Taken`], [`Kind::Exit`] and [`Kind::Received`].
    pub(crate) fn number(&self) -> io::Result<u32> {
        let bytes = self.body.as_slice().try_into();
        bytes
            .map(u32::from_le_bytes)
            .map_err(|_| garbage("not a number"))
    }
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [Kind; 12] = [
            Kind::Ready,
            Kind::Start,
            Kind::Stdin,
            Kind::Resize,
            Kind::Kill,
            Kind::PowerOff,
            Kind::Taken,
            Kind::Stdout,
            Kind::Stderr,
            Kind::Exit,
            Kind::Received,
            Kind::Alive,
        ];
        ALL.into_iter().find(|&kind| kind as u8 == byte)
    }
}

fn garbage(what: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("garbage on the serial line: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_frames_equal_the_encoded_ones() {
        let frames = [
            Frame::new(0, Kind::Ready, "7.2.12"),
            Frame::new(7, Kind::Stdin, ""),
            Frame::new(u32::MAX, Kind::Stdout, vec![0, 3, 4, 13, 10, 255]),
            Frame::new(2, Kind::Exit, 137_u32.to_le_bytes()),
        ];
        let mut line = Vec::new();
        for frame in &frames {
            line.extend(frame.encode().unwrap());
        }
        let mut line = line.as_slice();
        for frame in frames {
            assert_eq!(Frame::read(&mut line).unwrap(), Some(frame));
        }
        assert_eq!(Frame::read(&mut line).unwrap(), None);
    }

    #[test]
    fn malformed_frames_are_errors() {
        let mut unknown: &[u8] = &[0, 0, 0, 0, 99, 0, 0, 0, 0];
        assert!(Frame::read(&mut unknown).is_err());
        let mut endless: &[u8] = &[0, 0, 0, 0, 8, 255, 255, 255, 255];
        assert!(Frame::read(&mut endless).is_err());
        let mut cut: &[u8] = &[0, 0, 0, 0, 8, 2, 0, 0, 0, 1];
        assert!(Frame::read(&mut cut).is_err());
        assert!(
            Frame::new(1, Kind::Start, vec![0; MAX_BODY + 1])
                .encode()
                .is_err()
        );
    }
}
