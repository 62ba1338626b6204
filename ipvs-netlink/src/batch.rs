//! Many requests for one send.

use netlink_packet_core::NLM_F_REQUEST;

use crate::attr::Writer;
use crate::error::{Error, Result};

/// The length of a message's header (`struct nlmsghdr`).
pub(crate) const HEADER: usize = 16;

/// Requests in the order in which the kernel will execute them, encoded one after the other.
///
/// Reusable: [`Batch::clear`] keeps the memory.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) bytes: Vec<u8>,
    /// Where each request ends.
    pub(crate) ends: Vec<usize>,
}

impl Batch {
    /// A batch without requests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a request of type `kind` with the content that `body` writes.
    ///
    /// `flags` are those of the operation (`NLM_F_CREATE`, `NLM_F_EXCL`, ..); the transport adds the
    /// rest.
    ///
    /// # Errors
    /// [`Error::TooLong`] when an attribute does not fit; the batch is as before then.
    pub fn push(
        &mut self,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Writer<'_>),
    ) -> Result<()> {
        let start = self.bytes.len();
        // Length, sequence number and port are filled in later, the last one by the kernel.
        self.bytes.extend_from_slice(&[0; HEADER]);
        put(&mut self.bytes, start + 4, &kind.to_ne_bytes());
        put(
            &mut self.bytes,
            start + 6,
            &(flags | NLM_F_REQUEST).to_ne_bytes(),
        );
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

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes all requests.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The encoded requests; sequence numbers and the flag that asks for an acknowledgement are
    /// filled in when they are sent, or by [`Batch::number_from`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Prepares the requests to be sent by other means than [`crate::transport`]: numbers them from
    /// `first` on and asks for an acknowledgement of the last.
    pub fn number_from(&mut self, first: u32) {
        let count = self.len();
        for (index, sequence) in (0..count).zip((0..).map(|n: u32| first.wrapping_add(n))) {
            self.address(index, sequence, index + 1 == count);
        }
    }

    /// Where request `index` starts.
    pub(crate) fn start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Numbers request `index` and asks for an acknowledgement of it, or not.
    pub(crate) fn address(&mut self, index: usize, sequence: u32, acknowledge: bool) {
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
