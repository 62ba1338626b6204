//! Bodies in Kubernetes' protobuf.
//!
//! ```text
//! a list:      magic, Unknown { raw: List { metadata, item, item, ... } }
//! a watch:     length, WatchEvent { type, object: magic, Unknown { raw: object } }, length, ...
//! an object:   magic, Unknown { raw: object }
//! ```

use super::{KEPT, MAX_ENVELOPE, MAX_OBJECT, NotAList, TooLong};
use crate::cluster::api::protobuf::{FieldContent, FieldHead, ProtobufError, first_field};

/// The first bytes of each message that is not part of another one.
const MAGIC: [u8; 4] = *b"k8s\0";

/// The number of `raw` in `runtime.Unknown`, the envelope.
const RAW: u32 = 2;

/// Returns the object in the envelope that follows the magic number.
pub(in crate::sources::watch) fn unwrap_object(bytes: &[u8]) -> Result<&[u8], ProtobufError> {
    let envelope = bytes.strip_prefix(&MAGIC).ok_or(ProtobufError::Magic)?;
    first_field(envelope, RAW)
}

/// Splits a list into its items while its bytes arrive.
///
/// Buffers only the incomplete item and the list's metadata. The splitter finds the end of an item by
/// its length and does not parse it, so a malformed item affects no other item. An item larger than
/// [`MAX_OBJECT`] is truncated.
#[derive(Debug, Default)]
pub(in crate::sources::watch) struct ItemSplitter {
    place: Place,
    /// The bytes of the magic number, or of the head of a field, that is incomplete.
    head: Vec<u8>,
    /// The length of the list's fields whose heads have not arrived; `None` before the list.
    list: Option<u64>,
    /// The bytes of the item that is incomplete.
    item: Vec<u8>,
    /// The list's metadata.
    metadata: Vec<u8>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// The magic number.
    #[default]
    Magic,
    /// The head of a field: of the list or, around it, of the envelope.
    Head,
    /// The content of a field, of which this number of bytes has not arrived.
    Content(Purpose, u64),
}

/// The use of the content of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Item,
    Metadata,
    Skipped,
}

impl ItemSplitter {
    /// Consumes the next bytes of the response and calls `each` with every item they complete.
    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), NotAList> {
        loop {
            // Before the check for the end: content of length 0 needs no byte.
            if let Place::Content(purpose, left) = self.place {
                let here = usize::try_from(left).unwrap_or(usize::MAX);
                let (content, rest) = bytes.split_at(here.min(bytes.len()));
                bytes = rest;
                self.place = match left.saturating_sub(content.len() as u64) {
                    0 => Place::Head,
                    left => Place::Content(purpose, left),
                };
                self.consume(purpose, content, &mut each);
            }
            if bytes.is_empty() {
                return Ok(());
            }
            match self.place {
                Place::Magic => self.take_magic(&mut bytes)?,
                Place::Head => self.take_head(&mut bytes)?,
                Place::Content(..) => {}
            }
        }
    }

    /// Returns the list's metadata.
    pub(super) fn finish(self) -> Result<Vec<u8>, NotAList> {
        if self.place != Place::Head || !self.head.is_empty() || self.list != Some(0) {
            return Err(NotAList("ends too early"));
        }
        Ok(self.metadata)
    }

    /// Uses a piece of the content of a field. `place` is already that of the next byte.
    fn consume(&mut self, purpose: Purpose, content: &[u8], each: &mut impl FnMut(&[u8])) {
        let is_complete = self.place == Place::Head;
        match purpose {
            Purpose::Skipped => {}
            Purpose::Metadata => self.metadata.extend_from_slice(content),
            Purpose::Item if is_complete && self.item.is_empty() => each(content),
            Purpose::Item => {
                // The byte above the limit shows the reader of the item that it was too large.
                let room = (MAX_OBJECT + 1).saturating_sub(self.item.len());
                let kept = content.get(..room).unwrap_or(content);
                self.item.extend_from_slice(kept);
                if is_complete {
                    each(&self.item);
                    self.item.clear();
                    self.item.shrink_to(KEPT);
                }
            }
        }
    }

    fn take_byte(&mut self, bytes: &mut &[u8]) {
        if let Some((&byte, rest)) = bytes.split_first() {
            self.head.push(byte);
            *bytes = rest;
        }
    }

    fn take_magic(&mut self, bytes: &mut &[u8]) -> Result<(), NotAList> {
        self.take_byte(bytes);
        if !MAGIC.starts_with(&self.head) {
            return Err(NotAList("no magic number of Kubernetes' protobuf"));
        }
        if self.head.len() == MAGIC.len() {
            self.head.clear();
            self.place = Place::Head;
        }
        Ok(())
    }

    /// Takes a byte of the head of a field. Heads have 2 to 4 bytes, so one by one is fast enough.
    fn take_head(&mut self, bytes: &mut &[u8]) -> Result<(), NotAList> {
        self.take_byte(bytes);
        match FieldHead::take(&mut self.head.as_slice()) {
            Err(ProtobufError::Cut) => Ok(()),
            Err(_) => Err(NotAList("a malformed field")),
            Ok(head) => {
                let length = self.head.len() as u64;
                self.head.clear();
                self.begin(head, length)
            }
        }
    }

    /// Begins the content of a field with a head of `length` bytes.
    fn begin(&mut self, head: FieldHead, length: u64) -> Result<(), NotAList> {
        let content = match head.content {
            FieldContent::Varint(_) => 0,
            FieldContent::Bytes(length) | FieldContent::Fixed(length) => length,
        };
        let is_bytes = matches!(head.content, FieldContent::Bytes(_));
        let Some(left) = self.list.filter(|&left| left > 0) else {
            // A field of the envelope.
            if is_bytes && head.number == RAW && self.list.is_none() {
                self.list = Some(content);
            } else {
                self.place = Place::Content(Purpose::Skipped, content);
            }
            return Ok(());
        };
        let left = left.checked_sub(length);
        let left = left.and_then(|left| left.checked_sub(content));
        self.list = Some(left.ok_or(NotAList("a field is longer than the list"))?);
        let purpose = match head.number {
            1 if is_bytes => Purpose::Metadata,
            2 if is_bytes => Purpose::Item,
            _ => Purpose::Skipped,
        };
        if purpose == Purpose::Metadata
            && content.saturating_add(self.metadata.len() as u64) > MAX_ENVELOPE as u64
        {
            return Err(NotAList("its metadata is too long"));
        }
        self.place = Place::Content(purpose, content);
        Ok(())
    }
}

/// Splits a watch into frames while its bytes arrive.
///
/// Buffers only the incomplete frame. All other frames stay where they arrived.
#[derive(Debug, Default)]
pub(in crate::sources::watch) struct FrameSplitter {
    /// The frame that is incomplete, or that was returned last, with its length.
    partial: Vec<u8>,
    /// Whether `partial` was returned.
    is_returned: bool,
}

impl FrameSplitter {
    /// Takes the next complete frame off the front of `rest`.
    ///
    /// Returns `None` if the rest is an incomplete one, which is kept.
    pub(super) fn next<'a, 'b: 'a>(
        &'a mut self,
        rest: &mut &'b [u8],
    ) -> Result<Option<&'a [u8]>, TooLong> {
        if std::mem::take(&mut self.is_returned) {
            self.partial.clear();
            self.partial.shrink_to(KEPT);
        }
        if self.partial.is_empty()
            && let Some((head, after)) = rest.split_first_chunk()
            && let Some((frame, after)) = after.split_at_checked(frame_length(*head)?)
        {
            *rest = after;
            return Ok(Some(frame));
        }
        self.keep(rest, size_of::<u32>());
        let Some((head, _)) = self.partial.split_first_chunk() else {
            return Ok(None);
        };
        let whole = size_of::<u32>() + frame_length(*head)?;
        self.keep(rest, whole);
        self.is_returned = self.partial.len() == whole;
        let frame = self.partial.get(size_of::<u32>()..);
        Ok(frame.filter(|_| self.is_returned))
    }

    /// Moves bytes from `rest` to the incomplete frame until it has `whole` bytes.
    fn keep(&mut self, rest: &mut &[u8], whole: usize) {
        let missing = whole.saturating_sub(self.partial.len());
        let (kept, after) = rest.split_at(missing.min(rest.len()));
        self.partial.extend_from_slice(kept);
        *rest = after;
    }
}

/// Returns the length of the frame that follows `head`.
fn frame_length(head: [u8; 4]) -> Result<usize, TooLong> {
    let length = usize::try_from(u32::from_be_bytes(head)).map_err(|_| TooLong)?;
    if length > 2 * MAX_OBJECT {
        return Err(TooLong);
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a field with bytes; lengths below 128 only.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).unwrap();
        [&[number << 3 | 2, length], bytes].concat()
    }

    /// Returns a list with two items, an empty one, and fields that are skipped.
    fn list() -> Vec<u8> {
        let fields = [
            field(1, b"\x12\x015"),
            field(2, b"one"),
            // A varint, 8 bytes and 4 bytes.
            b"\x50\xff\x01".to_vec(),
            b"\x59abcdefgh".to_vec(),
            b"\x5dabcd".to_vec(),
            field(2, b""),
            field(2, b"two"),
        ];
        let envelope = [
            field(1, b"\x0a\x02v1"),
            field(2, &fields.concat()),
            field(3, b""),
            field(4, b""),
        ];
        [MAGIC.to_vec(), envelope.concat()].concat()
    }

    fn split(bytes: &[u8], size: usize) -> Result<(Vec<Vec<u8>>, Vec<u8>), NotAList> {
        let mut splitter = ItemSplitter::default();
        let mut items = Vec::new();
        for bytes in bytes.chunks(size) {
            splitter.push(bytes, |item| items.push(item.to_vec()))?;
        }
        Ok((items, splitter.finish()?))
    }

    fn frames(bytes: &[u8], size: usize) -> Result<Vec<Vec<u8>>, TooLong> {
        let mut splitter = FrameSplitter::default();
        let mut frames = Vec::new();
        for mut rest in bytes.chunks(size) {
            while let Some(frame) = splitter.next(&mut rest)? {
                frames.push(frame.to_vec());
            }
            assert!(rest.is_empty());
        }
        Ok(frames)
    }

    #[test]
    fn items_are_split_wherever_chunks_end() {
        let list = list();
        for size in 1..list.len() + 1 {
            let (items, metadata) = split(&list, size).unwrap();
            let expected = [b"one".as_slice(), b"", b"two"];
            assert_eq!(items, expected, "pieces of {size}");
            assert_eq!(metadata, b"\x12\x015");
        }
    }

    #[test]
    fn a_response_that_is_not_a_list_is_rejected() {
        let list = list();
        for end in 0..list.len() - 4 {
            let error = split(&list[..end], 3).unwrap_err();
            assert_eq!(error, NotAList("ends too early"), "{end} bytes");
        }
        for (bytes, why) in [
            (
                b"{\"kind\"".as_slice(),
                "no magic number of Kubernetes' protobuf",
            ),
            (b"k8s\0\x07", "a malformed field"),
            (
                b"k8s\0\x12\x04\x12\x7fab",
                "a field is longer than the list",
            ),
            (
                b"k8s\0\x12\x01\x12\x01ab",
                "a field is longer than the list",
            ),
            (
                b"k8s\0\x12\x83\x80\x80\x08\x0a\x80\x80\x80\x01",
                "its metadata is too long",
            ),
        ] {
            assert_eq!(split(bytes, 2).unwrap_err(), NotAList(why));
        }
        // A Status instead of a list has no item and no resource version.
        let status = [MAGIC.as_slice(), &field(2, &field(3, b"no"))].concat();
        assert_eq!(split(&status, 5), Ok((vec![], vec![])));
    }

    #[test]
    fn an_item_above_the_limit_is_truncated() {
        let mut splitter = ItemSplitter::default();
        let mut lengths = Vec::new();
        let piece = vec![b'x'; 1 << 20];
        // The item has 20 MiB, the list 7 bytes more.
        splitter
            .push(b"k8s\0\x12\x87\x80\x80\x0a\x12\x80\x80\x80\x0a", |_| ())
            .unwrap();
        for _ in 0..20 {
            splitter
                .push(&piece, |item| lengths.push(item.len()))
                .unwrap();
        }
        let end = b"\x12\x00";
        splitter.push(end, |item| lengths.push(item.len())).unwrap();
        assert_eq!(lengths, [MAX_OBJECT + 1, 0]);
        assert!(splitter.item.capacity() <= KEPT);
        assert!(splitter.finish().is_ok());
    }

    #[test]
    fn frames_are_split_wherever_chunks_end() {
        let bytes = b"\0\0\0\x03one\0\0\0\0\0\0\0\x01x\0\0\0\x0aunfinishe";
        for size in 1..bytes.len() + 1 {
            let expected = [b"one".as_slice(), b"", b"x"];
            assert_eq!(frames(bytes, size).unwrap(), expected, "pieces of {size}");
        }
    }

    #[test]
    fn only_an_incomplete_frame_is_kept() {
        let mut splitter = FrameSplitter::default();
        let bytes = [b"\0\x10\0\0".as_slice(), &vec![b'x'; 1 << 20], b"\0\0"].concat();
        for start in [0, 2, 2] {
            // From the second time on, the bytes end the length that the first ones began.
            let mut rest = &bytes[start..];
            assert_eq!(splitter.next(&mut rest).unwrap().unwrap().len(), 1 << 20);
            assert_eq!(splitter.next(&mut rest).unwrap(), None);
            assert_eq!(splitter.partial, b"\0\0");
            splitter.partial = b"\0\x10".to_vec();
            assert!(splitter.partial.capacity() <= KEPT);
        }
    }

    #[test]
    fn an_endless_frame_is_rejected() {
        assert_eq!(frames(b"\x02\0\0\0x", 2), Ok(vec![]));
        assert_eq!(frames(b"\x02\0\0\x01x", 2), Err(TooLong));
        assert_eq!(frames(b"HTTP", 9), Err(TooLong));
    }

    proptest! {
        /// Any bytes in any pieces yield the same, and no panic.
        #[test]
        fn pieces_do_not_matter(
            head in prop::sample::select(vec![0_usize, 4, 6, 12]),
            tail in prop::collection::vec(any::<u8>(), 0..60),
            size in 1_usize..9,
        ) {
            let bytes = [&list()[..head], &tail].concat();
            prop_assert_eq!(split(&bytes, size), split(&bytes, 100));
            prop_assert_eq!(frames(&bytes, size), frames(&bytes, 100));
            let _ = unwrap_object(&bytes);
        }
    }
}
