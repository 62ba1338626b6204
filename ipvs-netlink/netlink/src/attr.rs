//! A writer and a reader of netlink attributes, for every netlink family.
//!
//! Numbers are in host byte order, except in methods whose name ends with `_be`.

use netlink_packet_core::{NLA_F_NESTED, NLA_HEADER_SIZE, NlasIterator};

use crate::error::Error;

/// The size of an attribute's length and kind (`struct nlattr`), which its length includes.
const HEADER: u16 = 4;

/// Appends attributes to a message.
///
/// The length field of an attribute is set after its value is written. It has 16 bits; if an
/// attribute is longer than 65,535 bytes, [`crate::batch::Batch::push`] rejects the message.
#[derive(Debug)]
pub struct Writer<'a> {
    bytes: &'a mut Vec<u8>,
    too_long: Option<u16>,
}

impl<'a> Writer<'a> {
    /// Returns a writer that appends to `bytes`, whose length must be a multiple of 4.
    pub(crate) fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self {
            bytes,
            too_long: None,
        }
    }

    /// Appends the fixed header of a netlink family, padded to a multiple of 4.
    pub fn header(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.align();
    }

    /// Appends an attribute with the bytes `value`.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        let start = self.begin(kind);
        self.bytes.extend_from_slice(value);
        self.end(start, kind);
    }

    /// Appends an 8-bit attribute.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.word(kind, 1, [value, 0, 0, 0]);
    }

    /// Appends a 16-bit attribute.
    pub fn u16(&mut self, kind: u16, value: u16) {
        let [first, second] = value.to_ne_bytes();
        self.word(kind, 2, [first, second, 0, 0]);
    }

    /// Appends a 16-bit attribute in network byte order.
    pub fn u16_be(&mut self, kind: u16, value: u16) {
        self.u16(kind, value.to_be());
    }

    /// Appends a 32-bit attribute.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.word(kind, 4, value.to_ne_bytes());
    }

    /// Appends a 32-bit attribute in network byte order.
    pub fn u32_be(&mut self, kind: u16, value: u32) {
        self.u32(kind, value.to_be());
    }

    /// Appends a 64-bit attribute.
    pub fn u64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Appends a string attribute with a final NUL, which `NLA_NUL_STRING` requires.
    pub fn string(&mut self, kind: u16, value: &str) {
        let start = self.begin(kind);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.end(start, kind);
    }

    /// Appends an attribute that contains the attributes that `content` writes.
    pub fn nested(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        // Strict parsers (`nla_parse_nested`, Linux 5.2) reject a nested attribute without the
        // flag.
        let start = self.begin(kind | NLA_F_NESTED);
        content(self);
        self.end(start, kind);
    }

    /// Returns the number of the first attribute that was too long, if any.
    pub(crate) fn finish(self) -> Option<u16> {
        self.too_long
    }

    /// Appends an attribute whose value is the first `length` bytes of `value`; the others are 0, its padding.
    ///
    /// One copy of a known length, which needs no call. A start writes a million attributes, most of them short.
    fn word(&mut self, kind: u16, length: u16, value: [u8; 4]) {
        let [length_first, length_second] = (HEADER + length).to_ne_bytes();
        let [kind_first, kind_second] = kind.to_ne_bytes();
        let [first, second, third, fourth] = value;
        self.bytes.extend_from_slice(&[
            length_first,
            length_second,
            kind_first,
            kind_second,
            first,
            second,
            third,
            fourth,
        ]);
    }

    fn begin(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        let [first, second] = kind.to_ne_bytes();
        self.bytes.extend_from_slice(&[0, 0, first, second]);
        start
    }

    fn end(&mut self, start: usize, kind: u16) {
        match u16::try_from(self.bytes.len() - start) {
            Ok(length) => self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.too_long = self.too_long.or(Some(kind)),
        }
        self.align();
    }

    fn align(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }
}

/// An attribute of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The number, without the flag bits for nesting and byte order.
    pub kind: u16,
    /// The value without padding.
    pub value: &'a [u8],
}

/// Returns the attributes in `bytes`, in order.
///
/// # Errors
/// If an attribute is malformed, its item is an error and the last item.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = Result<Attribute<'_>, Error>> {
    NlasIterator::new(bytes).map(|item| match item {
        Ok(attribute) => {
            // `NlaBuffer::value` borrows from the buffer, which ends here: slice the message.
            let whole: &[u8] = attribute.into_inner();
            let length = usize::from(u16::from_ne_bytes([whole[0], whole[1]]));
            let kind =
                u16::from_ne_bytes([whole[2], whole[3]]) & netlink_packet_core::NLA_TYPE_MASK;
            Ok(Attribute {
                kind,
                value: &whole[NLA_HEADER_SIZE..length],
            })
        }
        Err(_) => Err(Error::malformed("an attribute is longer than its message")),
    })
}

/// Returns the first attribute of `attributes` with number `kind`.
///
/// # Errors
/// The first malformed attribute before it.
pub fn find<'a>(
    attributes: impl IntoIterator<Item = Result<Attribute<'a>, Error>>,
    kind: u16,
) -> Result<Option<Attribute<'a>>, Error> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(Some(attribute));
        }
    }
    Ok(None)
}

impl<'a> Attribute<'a> {
    /// Returns the value as an 8-bit number.
    ///
    /// All number methods read the first bytes of a longer value, as the kernel does.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the value is shorter than the number.
    pub fn u8(&self) -> Result<u8, Error> {
        self.array().map(u8::from_ne_bytes)
    }

    /// Returns the value as a 16-bit number.
    ///
    /// # Errors
    /// As [`Attribute::u8`].
    pub fn u16(&self) -> Result<u16, Error> {
        self.array().map(u16::from_ne_bytes)
    }

    /// Returns the value as a 16-bit number in network byte order.
    ///
    /// # Errors
    /// As [`Attribute::u8`].
    pub fn u16_be(&self) -> Result<u16, Error> {
        self.array().map(u16::from_be_bytes)
    }

    /// Returns the value as a 32-bit number.
    ///
    /// # Errors
    /// As [`Attribute::u8`].
    pub fn u32(&self) -> Result<u32, Error> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Returns the value as a 32-bit number in network byte order.
    ///
    /// # Errors
    /// As [`Attribute::u8`].
    pub fn u32_be(&self) -> Result<u32, Error> {
        self.array().map(u32::from_be_bytes)
    }

    /// Returns the value as a 64-bit number.
    ///
    /// The value may be unaligned: attributes are aligned to 4 bytes only.
    ///
    /// # Errors
    /// As [`Attribute::u8`].
    pub fn u64(&self) -> Result<u64, Error> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Returns the value as text up to its first NUL.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the text is not UTF-8.
    pub fn string(&self) -> Result<&'a str, Error> {
        let end = self
            .value
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(self.value.len());
        std::str::from_utf8(&self.value[..end])
            .map_err(|_| Error::malformed("a string attribute is not UTF-8"))
    }

    /// Returns the attributes nested in the value.
    pub fn nested(&self) -> impl Iterator<Item = Result<Attribute<'a>, Error>> + use<'a> {
        attributes(self.value)
    }

    /// Returns the first `N` bytes of the value.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the value is shorter.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], Error> {
        let bytes = self.value.first_chunk::<N>();
        bytes
            .copied()
            .ok_or_else(|| Error::malformed("an attribute is shorter than its type"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_attributes_are_read_back() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        writer.u8(1, 7);
        writer.nested(2, |inner| {
            inner.string(3, "wlc");
            inner.u16_be(4, 443);
        });
        assert_eq!(writer.finish(), None);
        assert_eq!(bytes.len(), 8 + 4 + 8 + 8);
        let read: Vec<_> = attributes(&bytes).map(Result::unwrap).collect();
        assert_eq!((read[0].kind, read[0].u8().unwrap()), (1, 7));
        let inner: Vec<_> = read[1].nested().map(Result::unwrap).collect();
        assert_eq!(inner[0].string().unwrap(), "wlc");
        assert_eq!((inner[1].kind, inner[1].u16_be().unwrap()), (4, 443));
        assert!(inner[1].u32().is_err());
    }

    #[test]
    fn an_attribute_longer_than_its_length_field_is_reported() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        writer.nested(5, |inner| {
            inner.bytes(1, &[0; 40_000]);
            inner.bytes(1, &[0; 40_000]);
        });
        assert_eq!(writer.finish(), Some(5));
    }

    #[test]
    fn a_malformed_attribute_ends_the_iteration() {
        let read: Vec<_> = attributes(&[9, 0, 1, 0, 1]).collect();
        assert!(matches!(read[..], [Err(_)]));
        assert!(
            attributes(&[3, 0, 1, 0])
                .next()
                .is_some_and(|item| item.is_err())
        );
    }
}
