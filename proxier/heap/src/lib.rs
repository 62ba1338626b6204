//! The allocator of the static program: dlmalloc, which takes several pages at once from the kernel.
//!
//! Its memory comes in pieces of 64 KiB, and nearly all of it is used. So does the memory of long vectors. A piece arrives
//! with its pages (`MAP_POPULATE` of mmap(2)), so a first programming of a large cluster has a call of the kernel for 16
//! pages and more instead of a page fault for each. The lock is the standard library's, whose free case is two instructions in line; that of
//! dlmalloc's own global allocator is two calls of pthread functions.
//!
//! Its code is unsafe, because that is the interface of an allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::Dlmalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// The size by which dlmalloc grows, in bytes.
const GRANULE: usize = 64 << 10;

/// The pieces that arrive without their pages, in bytes. dlmalloc takes two granules for a block of a little less than one
/// or more: the buffer of a socket, most of which may never be used. A smaller piece has small blocks, a larger one the
/// elements of a long vector.
const WITHOUT_PAGES: RangeInclusive<usize> = GRANULE + 1..=2 * GRANULE;

/// A heap.
pub struct Heap(Mutex<Dlmalloc<Pages>>);

impl Heap {
    /// Returns an empty heap.
    #[expect(
        clippy::new_without_default,
        reason = "a default could not be a static"
    )]
    pub const fn new() -> Self {
        Self(Mutex::new(Dlmalloc::new_with_allocator(Pages)))
    }

    fn lock(&self) -> MutexGuard<'_, Dlmalloc<Pages>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: dlmalloc does what the trait demands, and the lock gives it to one thread at a time.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: dlmalloc demands what the trait demands of the caller; so below.
        unsafe { self.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: See above.
        unsafe { self.lock().free(block, layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: See above.
        unsafe { self.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let mut heap = self.lock();
        // SAFETY: See above.
        unsafe { heap.realloc(block, layout.size(), layout.align(), size) }
    }
}

/// The kernel's memory.
struct Pages;

// SAFETY: A mapping is no other's memory, all zeros, and stays until it is unmapped.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let pages = match WITHOUT_PAGES.contains(&size) {
            true => MapFlags::empty(),
            false => MapFlags::POPULATE,
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | pages;
        // SAFETY: The kernel chooses a free address.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), size, access, flags) };
        (or_null(mapped), size, 0)
    }

    fn remap(&self, at: *mut u8, old_size: usize, new_size: usize, can_move: bool) -> *mut u8 {
        let flags = match can_move {
            true => MremapFlags::MAYMOVE,
            false => MremapFlags::empty(),
        };
        // SAFETY: The mapping is dlmalloc's.
        or_null(unsafe { mremap(at.cast(), old_size, new_size, flags) })
    }

    fn free_part(&self, at: *mut u8, old_size: usize, new_size: usize) -> bool {
        // SAFETY: The mapping is dlmalloc's, which no longer uses this part.
        unsafe { munmap(at.add(new_size).cast(), old_size - new_size).is_ok() }
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: The mapping is dlmalloc's, which no longer uses it.
        unsafe { munmap(at.cast(), size).is_ok() }
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    /// That of dlmalloc's own. A kernel with larger pages refuses to unmap a part of one, and dlmalloc keeps it.
    fn page_size(&self) -> usize {
        4096
    }
}

fn or_null(mapped: rustix::io::Result<*mut c_void>) -> *mut u8 {
    mapped.map_or(ptr::null_mut(), <*mut c_void>::cast)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block that knows its content.
    struct Block {
        start: *mut u8,
        layout: Layout,
        byte: u8,
    }

    impl Block {
        fn new(heap: &Heap, size: usize, align: usize, byte: u8) -> Self {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: No size is 0.
            let start = unsafe { heap.alloc(layout) };
            assert!(!start.is_null() && start.addr().is_multiple_of(align));
            // SAFETY: The block has this size.
            unsafe { start.write_bytes(byte, size) };
            Self {
                start,
                layout,
                byte,
            }
        }

        fn check(&self, size: usize) {
            // SAFETY: The block has this size.
            let bytes = unsafe { std::slice::from_raw_parts(self.start, size) };
            assert!(bytes.iter().all(|&byte| byte == self.byte));
        }

        fn resize(&mut self, heap: &Heap, size: usize) {
            let kept = size.min(self.layout.size());
            // SAFETY: The block is of this heap, with this layout.
            self.start = unsafe { heap.realloc(self.start, self.layout, size) };
            assert!(!self.start.is_null());
            self.check(kept);
            self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
            // SAFETY: The block has this size.
            unsafe { self.start.write_bytes(self.byte, size) };
        }

        fn free(self, heap: &Heap) {
            self.check(self.layout.size());
            // SAFETY: The block is of this heap, with this layout.
            unsafe { heap.dealloc(self.start, self.layout) };
        }
    }

    #[test]
    fn blocks_of_many_threads_do_not_overlap() {
        static HEAP: Heap = Heap::new();
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                scope.spawn(move || {
                    let mut blocks = Vec::new();
                    for turn in 0..4_000_usize {
                        let number = turn * 31 + thread;
                        let size = 1 + number * number % if turn % 50 == 0 { 400_000 } else { 700 };
                        let byte = u8::try_from(number % 251).unwrap();
                        let mut block = Block::new(&HEAP, size, 1 << (number % 7), byte);
                        if number.is_multiple_of(3) {
                            block.resize(&HEAP, 1 + size * (number % 5) / 2);
                        }
                        blocks.push(block);
                        if blocks.len() > 300 {
                            blocks.swap_remove(number % blocks.len()).free(&HEAP);
                        }
                    }
                    blocks.into_iter().for_each(|block| block.free(&HEAP));
                });
            }
        });
    }

    #[test]
    fn a_zeroed_block_is_zero_although_its_memory_was_used() {
        let heap = Heap::new();
        for size in [24, 4_000, 70_000, 3 << 20] {
            Block::new(&heap, size, 16, 7).free(&heap);
            let layout = Layout::from_size_align(size, 16).unwrap();
            // SAFETY: The size is not 0.
            let start = unsafe { heap.alloc_zeroed(layout) };
            let block = Block {
                start,
                layout,
                byte: 0,
            };
            block.free(&heap);
        }
    }

    #[test]
    fn small_blocks_have_their_pages() {
        let heap = Heap::new();
        let layout = Layout::from_size_align(8 << 10, 16).unwrap();
        // SAFETY: The size is not 0.
        let blocks: Vec<_> = (0..512).map(|_| unsafe { heap.alloc(layout) }).collect();
        let before = page_faults();
        for block in blocks {
            // SAFETY: The block has this size.
            unsafe { block.write_bytes(7, layout.size()) };
        }
        // Each of the 1,024 pages has a fault without it.
        assert!(page_faults() - before < 50);
    }

    /// Returns the page faults of this thread without a read from a disk: field 10 of proc(5).
    fn page_faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        rest.split_whitespace().nth(7).unwrap().parse().unwrap()
    }
}
