//! The last datagrams that opened flows.
//!
//! An endpoint that refuses a datagram has not read it, so another endpoint may get it. A ring of bytes holds as
//! many datagrams as fit: a refusal arrives soon, and clients that never get an answer must not take memory.

/// The memory of a worker for datagrams, in bytes. Four of the longest fit.
const LENGTH: usize = 256 * 1024;

/// The last datagrams that opened flows.
#[derive(Debug)]
pub(crate) struct RecentDatagrams {
    bytes: Box<[u8]>,
    /// The number of bytes that were ever taken.
    end: u64,
}

/// The place of a datagram, which later datagrams may have overwritten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramPlace {
    /// The number of bytes that were taken before it.
    start: u64,
    length: usize,
}

impl RecentDatagrams {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; LENGTH].into(),
            end: 0,
        }
    }

    /// Copies a datagram over the oldest ones. `None` if it is too long.
    pub(crate) fn keep(&mut self, datagram: &[u8]) -> Option<DatagramPlace> {
        let capacity = self.bytes.len();
        let mut at = self.index(self.end);
        if at + datagram.len() > capacity {
            // A datagram lies in one piece.
            self.end += (capacity - at) as u64;
            at = 0;
        }
        let place = DatagramPlace {
            start: self.end,
            length: datagram.len(),
        };
        let space = self.bytes.get_mut(at..at + datagram.len())?;
        space.copy_from_slice(datagram);
        self.end += datagram.len() as u64;
        Some(place)
    }

    /// Returns the datagram; `None` if later ones have taken its place.
    pub(crate) fn get(&self, place: DatagramPlace) -> Option<&[u8]> {
        if self.end - place.start > self.bytes.len() as u64 {
            return None;
        }
        let at = self.index(place.start);
        self.bytes.get(at..at + place.length)
    }

    /// Returns the index of the byte before which `count` bytes were taken.
    fn index(&self, count: u64) -> usize {
        let index = count % self.bytes.len() as u64;
        usize::try_from(index).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_kept_whole_until_later_ones_take_its_place() {
        let mut recent = RecentDatagrams {
            bytes: vec![0; 10].into(),
            end: 0,
        };
        let place = |recent: &mut RecentDatagrams, text: &str| recent.keep(text.as_bytes());
        let first = place(&mut recent, "abcd").unwrap();
        let empty = place(&mut recent, "").unwrap();
        let second = place(&mut recent, "efgh").unwrap();
        assert_eq!(recent.get(first), Some(&b"abcd"[..]));
        assert_eq!(recent.get(empty), Some(&b""[..]));
        assert_eq!(recent.get(second), Some(&b"efgh"[..]));
        // It does not fit behind the second one.
        let third = place(&mut recent, "ijkl").unwrap();
        assert_eq!(recent.get(first), None);
        assert_eq!(recent.get(second), Some(&b"efgh"[..]));
        assert_eq!(recent.get(third), Some(&b"ijkl"[..]));
        assert!(place(&mut recent, "longer than all").is_none());
        let whole = place(&mut recent, "0123456789").unwrap();
        assert_eq!(recent.get(third), None);
        assert_eq!(recent.get(whole), Some(&b"0123456789"[..]));
    }
}
