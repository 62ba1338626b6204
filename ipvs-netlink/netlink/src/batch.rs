//! Encodes many requests for one datagram.

use netlink_packet_core::NLM_F_REQUEST;

use crate::attr::Writer;
use crate::error::{Error, Result};

/// The size of a netlink header (`struct nlmsghdr`).
pub(crate) const HEADER: usize = 16;

/// Encoded requests, in the order in which the kernel executes them.
///
/// [`Batch::clear`] keeps the memory for the next batch.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) bytes: Vec<u8>,
    /// The end of each request in `bytes`.
    pub(crate) ends: Vec<usize>,
}

impl Batch {
    /// Returns an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a request with message type `kind` and the content that `body` writes.
    ///
    /// `flags` are those of the operation (`NLM_F_CREATE`, `NLM_F_EXCL`, ..). `NLM_F_REQUEST` is
    /// added here and `NLM_F_ACK` by the transport.
    ///
    /// # Errors
    /// [`Error::TooLong`] if an attribute exceeds 65,535 bytes. The batch is unchanged then.
    pub fn push(
        &mut self,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Writer<'_>),
    ) -> Result<()> {
        let start = self.bytes.len();
        // The length is filled in below and the sequence number at the send. The port stays 0: the
        // kernel takes it from the socket.
        let mut header = [0; HEADER];
        put(&mut header, 4, &kind.to_ne_bytes());
        put(&mut header, 6, &(flags | NLM_F_REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&header);
        let mut writer = Writer::new(&mut self.bytes);
        body(&mut writer);
        let too_long = writer.finish();
        let length = u32::try_from(self.bytes.len() - start);
        match (too_long, length) {
            (None, Ok(length)) => {
                put(&mut self.bytes, start, &length.to_ne_bytes());
                self.ends.push(self.bytes.len());
                Ok(())
            }
            (attribute, _) => {
                self.bytes.truncate(start);
                Err(Error::TooLong {
                    attribute: attribute.unwrap_or_default(),
                })
            }
        }
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether the batch has no requests.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes all requests.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Returns the encoded requests.
    ///
    /// Sequence numbers and `NLM_F_ACK` are set when the batch is sent, or by
    /// [`Batch::number_from`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Numbers the requests from `first` on and sets `NLM_F_ACK` in the last.
    ///
    /// Only for callers that send the batch without [`crate::transport`].
    pub fn number_from(&mut self, first: u32) {
        let count = self.len();
        for (index, sequence) in (0..count).zip((0..).map(|n: u32| first.wrapping_add(n))) {
            self.number(index, sequence, index + 1 == count);
        }
    }

    /// Returns the start of request `index` in `bytes`.
    pub(crate) fn start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Sets the sequence number of request `index` and sets or clears its `NLM_F_ACK`.
    pub(crate) fn number(&mut self, index: usize, sequence: u32, acknowledge: bool) {
        use netlink_packet_core::NLM_F_ACK;
        let start = self.start(index);
        let mut flags = u16::from_ne_bytes([self.bytes[start + 6], self.bytes[start + 7]]);
        flags = if acknowledge {
            flags | NLM_F_ACK
        } else {
            flags & !NLM_F_ACK
        };
        put(&mut self.bytes, start + 6, &flags.to_ne_bytes());
        put(&mut self.bytes, start + 8, &sequence.to_ne_bytes());
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
