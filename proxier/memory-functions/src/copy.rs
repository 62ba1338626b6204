//! Copies.

use core::arch::x86_64::__m128i;
use core::mem::MaybeUninit;

/// The bytes that one instruction copies. A program may copy bytes without a value, such as the padding of a struct.
type Part = MaybeUninit<__m128i>;

const PART: usize = size_of::<Part>();

/// The parts that a step of a loop copies.
const STEP_PARTS: usize = 4;

const STEP: usize = STEP_PARTS * PART;

/// Copies `length` bytes from `from` to `to`, which may overlap.
///
/// # Safety
/// `from` must be valid for reads of `length` bytes, `to` for writes.
#[inline(always)]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: Each arm copies no more than the least of its lengths from each end.
    unsafe {
        match length {
            0 => {}
            1 => copy_ends::<u8>(to, from, length),
            2..4 => copy_ends::<u16>(to, from, length),
            4..8 => copy_ends::<u32>(to, from, length),
            8..16 => copy_ends::<u64>(to, from, length),
            16..=32 => copy_part_ends::<1>(to, from, length),
            33..=64 => copy_part_ends::<2>(to, from, length),
            65..=128 => copy_part_ends::<4>(to, from, length),
            // True for a target in front of its source, too: the difference is then a number near `usize::MAX`.
            _ if to.addr().wrapping_sub(from.addr()) >= length => copy_forwards(to, from, length),
            _ => copy_backwards(to, from, length),
        }
    }
}

/// Copies a `T` from each end. Both are read before one is written, so an overlap does no harm.
///
/// # Safety
/// As [`copy`]; `length` must be at least the size of `T`, and at most twice of it to copy all.
#[inline(always)]
unsafe fn copy_ends<T>(to: *mut u8, from: *const u8, length: usize) {
    let end = length - size_of::<T>();
    // SAFETY: Both are within the length.
    unsafe {
        let first = from.cast::<MaybeUninit<T>>().read_unaligned();
        let last = from.add(end).cast::<MaybeUninit<T>>().read_unaligned();
        to.cast::<MaybeUninit<T>>().write_unaligned(first);
        to.add(end).cast::<MaybeUninit<T>>().write_unaligned(last);
    }
}

/// Copies `N` parts from each end, as [`copy_ends`].
///
/// # Safety
/// As [`copy_ends`].
#[inline(always)]
unsafe fn copy_part_ends<const N: usize>(to: *mut u8, from: *const u8, length: usize) {
    let end = length - N * PART;
    // SAFETY: Both are within the length.
    unsafe {
        let first = read::<N>(from);
        let last = read::<N>(from.add(end));
        write(to, &first);
        write(to.add(end), &last);
    }
}

/// Copies from the first byte on. `to` must not be behind `from` in the same bytes.
///
/// # Safety
/// As [`copy`]; `length` must be at least [`STEP`].
unsafe fn copy_forwards(to: *mut u8, from: *const u8, length: usize) {
    let end = length - STEP;
    // SAFETY: All steps begin at or before `end`.
    unsafe {
        // Before the loop, which may overwrite it.
        let last = read::<STEP_PARTS>(from.add(end));
        let mut at = 0;
        while at < end {
            write(to.add(at), &read::<STEP_PARTS>(from.add(at)));
            at += STEP;
        }
        write(to.add(end), &last);
    }
}

/// Copies from the last byte on. `to` must not be in front of `from` in the same bytes.
///
/// # Safety
/// As [`copy`]; `length` must be at least [`STEP`].
unsafe fn copy_backwards(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: All steps end at or after `STEP`.
    unsafe {
        // Before the loop, which may overwrite it.
        let first = read::<STEP_PARTS>(from);
        let mut end = length;
        while end > STEP {
            end -= STEP;
            write(to.add(end), &read::<STEP_PARTS>(from.add(end)));
        }
        write(to, &first);
    }
}

/// # Safety
/// `from` must be valid for reads of `N` parts.
#[inline(always)]
unsafe fn read<const N: usize>(from: *const u8) -> [Part; N] {
    let mut parts = [const { Part::uninit() }; N];
    // No iterator: the compiler does not put its functions in line here.
    let mut index = 0;
    while index < N {
        // SAFETY: The index is below `N`.
        parts[index] = unsafe { from.add(index * PART).cast::<Part>().read_unaligned() };
        index += 1;
    }
    parts
}

/// # Safety
/// `to` must be valid for writes of `N` parts.
#[inline(always)]
unsafe fn write<const N: usize>(to: *mut u8, parts: &[Part; N]) {
    let mut index = 0;
    while index < N {
        // SAFETY: The index is below `N`.
        unsafe {
            to.add(index * PART)
                .cast::<Part>()
                .write_unaligned(parts[index])
        };
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths around each arm and each number of steps.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..=300).chain([511, 512, 513, 4_095, 4_096, 4_097])
    }

    fn numbered(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index % 251) as u8).collect()
    }

    #[test]
    fn a_copy_has_all_bytes_and_no_more() {
        for length in lengths() {
            for (to_at, from_at) in [(0, 0), (1, 0), (0, 3), (7, 9), (15, 16)] {
                let from = numbered(length + 32);
                let mut to = vec![0xff; length + 64];
                let mut expected = to.clone();
                expected[to_at..to_at + length].copy_from_slice(&from[from_at..from_at + length]);
                // SAFETY: Both vectors have these bytes.
                unsafe { copy(to[to_at..].as_mut_ptr(), from[from_at..].as_ptr(), length) };
                assert_eq!(to, expected, "{length} bytes from {from_at} to {to_at}");
            }
        }
    }

    #[test]
    fn a_move_within_the_same_bytes_is_that_of_a_copy_of_them() {
        for length in lengths() {
            for distance in [0, 1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 200] {
                for (to, from) in [(distance, 0), (0, distance)] {
                    let mut bytes = numbered(length + distance);
                    let mut expected = bytes.clone();
                    expected.copy_within(from..from + length, to);
                    let start = bytes.as_mut_ptr();
                    // SAFETY: The vector has both ranges.
                    unsafe { copy(start.add(to), start.add(from), length) };
                    assert_eq!(bytes, expected, "{length} bytes from {from} to {to}");
                }
            }
        }
    }
}
