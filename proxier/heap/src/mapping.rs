//! Memory of the kernel: mmap(2) and its relatives.

use std::ffi::c_void;
use std::ptr;

use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
};

/// The size of a page where a mapping is split. A kernel with larger pages refuses that.
pub(crate) const PAGE: usize = 4096;

/// Whether the pages of a mapping exist at once, or each after a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PagesExist {
    AtOnce,
    WhenUsed,
}

/// Returns a new mapping of zeros; null if the kernel refuses.
pub(crate) fn map(size: usize, pages: PagesExist) -> *mut u8 {
    let flags = match pages {
        PagesExist::AtOnce => MapFlags::PRIVATE | MapFlags::POPULATE,
        PagesExist::WhenUsed => MapFlags::PRIVATE,
    };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: The kernel chooses a free address.
    or_null(unsafe { mmap_anonymous(ptr::null_mut(), size, access, flags) })
}

/// Changes the size of a mapping. Returns its new address; null if the kernel refuses, and then it stays.
///
/// # Safety
/// `at` is a mapping of `old_size` bytes, and nothing refers to a part that it loses or, if it can move, to any.
pub(crate) unsafe fn remap(
    at: *mut u8,
    old_size: usize,
    new_size: usize,
    flags: MremapFlags,
) -> *mut u8 {
    // SAFETY: As demanded of the caller.
    or_null(unsafe { mremap(at.cast(), old_size, new_size, flags) })
}

/// Makes the pages of a mapping exist from `from` on.
///
/// # Safety
/// `at` is a mapping of `size` bytes.
pub(crate) unsafe fn populate(at: *mut u8, from: usize, size: usize) {
    let from = from.next_multiple_of(PAGE).min(size);
    // Refused by Linux before 5.14: then the pages exist when they are used.
    // SAFETY: The range is in the mapping, and its bytes stay as they are.
    let _ = unsafe { madvise(at.add(from).cast(), size - from, Advice::LinuxPopulateWrite) };
}

/// Frees `size` bytes. Returns whether the kernel did.
///
/// # Safety
/// They are whole pages of a mapping, and nothing refers to them.
pub(crate) unsafe fn unmap(at: *mut u8, size: usize) -> bool {
    // SAFETY: As demanded of the caller.
    unsafe { munmap(at.cast(), size).is_ok() }
}

fn or_null(mapped: rustix::io::Result<*mut c_void>) -> *mut u8 {
    mapped.map_or(ptr::null_mut(), <*mut c_void>::cast)
}
