//! Comparisons.

use core::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8};
use core::cmp::Ordering;

/// The bytes that one instruction compares.
const PART: usize = size_of::<__m128i>();

/// The mask of two equal parts.
const EQUAL: i32 = 0xffff;

/// Compares `length` bytes: the first that differ decide. Returns a negative number if `one` is less, 0 if both are
/// equal, a positive number if `one` is greater.
///
/// # Safety
/// Both must be valid for reads of `length` bytes.
#[inline(always)]
pub(crate) unsafe fn compare(one: *const u8, other: *const u8, length: usize) -> i32 {
    // SAFETY: Each arm reads no more than the least of its lengths from each end.
    let ordering = unsafe {
        match length {
            0 => Ordering::Equal,
            1 => one.read().cmp(&other.read()),
            2..4 => compare_numbers(length, |at| (be_u16(one.add(at)), be_u16(other.add(at)))),
            4..8 => compare_numbers(length, |at| (be_u32(one.add(at)), be_u32(other.add(at)))),
            8..16 => compare_numbers(length, |at| (be_u64(one.add(at)), be_u64(other.add(at)))),
            _ => compare_parts(one, other, length),
        }
    };
    ordering as i32
}

/// Compares the numbers at both ends, which may overlap. In numbers whose first byte is the highest one, the first
/// byte that differs decides.
#[inline(always)]
fn compare_numbers<T: Ord>(length: usize, at: impl Fn(usize) -> (T, T)) -> Ordering {
    let (one, other) = at(0);
    one.cmp(&other).then_with(|| {
        let (one, other) = at(length - size_of::<T>());
        one.cmp(&other)
    })
}

/// # Safety
/// As [`compare`]; `length` must be at least [`PART`].
unsafe fn compare_parts(one: *const u8, other: *const u8, length: usize) -> Ordering {
    let end = length - PART;
    let mut at = 0;
    loop {
        // SAFETY: All parts begin at or before `end`.
        let mask = unsafe {
            let one = _mm_loadu_si128(one.add(at).cast());
            let other = _mm_loadu_si128(other.add(at).cast());
            _mm_movemask_epi8(_mm_cmpeq_epi8(one, other))
        };
        if mask != EQUAL {
            let at = at + mask.trailing_ones() as usize;
            // SAFETY: It is in this part.
            return unsafe { one.add(at).read().cmp(&other.add(at).read()) };
        }
        if at == end {
            return Ordering::Equal;
        }
        // The last part may overlap the one before, whose bytes are equal.
        at = (at + PART).min(end);
    }
}

/// # Safety
/// `at` must be valid for reads of 2 bytes.
#[inline(always)]
unsafe fn be_u16(at: *const u8) -> u16 {
    // SAFETY: As that of this function.
    u16::from_be(unsafe { at.cast::<u16>().read_unaligned() })
}

/// # Safety
/// `at` must be valid for reads of 4 bytes.
#[inline(always)]
unsafe fn be_u32(at: *const u8) -> u32 {
    // SAFETY: As that of this function.
    u32::from_be(unsafe { at.cast::<u32>().read_unaligned() })
}

/// # Safety
/// `at` must be valid for reads of 8 bytes.
#[inline(always)]
unsafe fn be_u64(at: *const u8) -> u64 {
    // SAFETY: As that of this function.
    u64::from_be(unsafe { at.cast::<u64>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_that_differ_decide() {
        for length in 0..=100 {
            for offset in [0, 1, 7] {
                let one = vec![0x80; length + offset + 1];
                let mut other = vec![0x80; length + offset + 1];
                // The byte behind the end is of no interest.
                other[offset + length] = 0;
                let compared = |other: &[u8]| {
                    // SAFETY: Both vectors have these bytes.
                    unsafe { compare(one[offset..].as_ptr(), other[offset..].as_ptr(), length) }
                };
                assert_eq!(compared(&other), 0, "{length} equal bytes");
                for first in 0..length {
                    for (byte, sign) in [(0x7f, 1), (0x00, 1), (0x81, -1), (0xff, -1)] {
                        let mut other = other.clone();
                        other[offset + first] = byte;
                        // Later bytes say the opposite.
                        let opposite = if sign > 0 { 0xff } else { 0x00 };
                        other[offset + first + 1..offset + length].fill(opposite);
                        let number = compared(&other).signum();
                        assert_eq!(number, sign, "{length} bytes, {first} equal");
                    }
                }
            }
        }
    }
}
