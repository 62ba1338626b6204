//! The messages of a netlink datagram.

use std::ops::Range;

/// The size of a netlink header.
pub(super) const HEADER: usize = 16;

/// Returns where each message of a datagram is, padding included; each has a whole header.
pub(super) fn messages(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let header = bytes.get(start..start + HEADER)?;
        let length = u32::from_ne_bytes(*header.first_chunk()?) as usize;
        // A length of 0 would loop for ever. A greater one than the rest occurs when a `send` did not fit into
        // the buffer.
        let end = start + length.max(HEADER).next_multiple_of(4);
        let place = start..end.min(bytes.len());
        start = place.end;
        Some(place)
    })
}
