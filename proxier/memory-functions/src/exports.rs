//! The names under which compiled code calls the functions.

use core::ffi::c_int;

use crate::compare::compare;
use crate::copy::copy;

/// Copies `length` bytes from `from` to `to`, and returns `to`.
///
/// # Safety
/// `from` must be valid for reads of `length` bytes, `to` for writes.
// SAFETY: It does what C demands of this name, and more: both may overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: As that of this function.
    unsafe { copy(to, from, length) };
    to
}

/// Copies `length` bytes from `from` to `to`, which may overlap, and returns `to`.
///
/// # Safety
/// `from` must be valid for reads of `length` bytes, `to` for writes.
// SAFETY: It does what C demands of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: As that of this function.
    unsafe { copy(to, from, length) };
    to
}

/// Compares `length` bytes: the first that differ decide. Returns a negative number if `one` is less, 0 if both are
/// equal, a positive number if `one` is greater.
///
/// # Safety
/// Both must be valid for reads of `length` bytes.
// SAFETY: It does what C demands of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, length: usize) -> c_int {
    // SAFETY: As that of this function.
    unsafe { compare(one, other, length) }
}

/// Returns 0 if `length` bytes are equal, and another number if not.
///
/// # Safety
/// Both must be valid for reads of `length` bytes.
// SAFETY: It does what POSIX demanded of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, length: usize) -> c_int {
    // SAFETY: As that of this function.
    unsafe { compare(one, other, length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_are_those_of_c() {
        let from = *b"one and two";
        let mut to = [0; 11];
        let start = to.as_mut_ptr();
        // SAFETY: All arrays have these bytes.
        unsafe {
            assert_eq!(memcpy(start, from.as_ptr(), 7), start);
            assert_eq!(&to, b"one and\0\0\0\0");
            assert_eq!(memmove(start, from.as_ptr(), 11), start);
            assert_eq!(to, from);
            assert_eq!(memmove(start.add(4), start, 7), start.add(4));
            assert_eq!(&to, b"one one and");
            assert!(memcmp(start, from.as_ptr(), 11) > 0 && memcmp(from.as_ptr(), start, 11) < 0);
            assert_eq!(memcmp(start, from.as_ptr(), 4), 0);
            assert_eq!(bcmp(start, from.as_ptr(), 4), 0);
            assert_ne!(bcmp(start, from.as_ptr(), 5), 0);
        }
    }
}
