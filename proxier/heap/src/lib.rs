//! The allocator of the static program: dlmalloc for small blocks, mappings for large ones.
//!
//! dlmalloc's memory comes in pieces of a sixteenth of what it has, 64 KiB to 1 MiB, and nearly all of it is used. A piece
//! arrives with its pages (`MAP_POPULATE` of mmap(2)), so a first programming of a large cluster has a call of the kernel
//! for 16 pages or more instead of a page fault for each. The lock is the standard library's, whose free case is two
//! instructions in line; that of dlmalloc's own global allocator is two calls of pthread functions.
//!
//! A large block is a mapping of its own, with its pages. Most are long vectors that live for one round: they grow without
//! a copy, and leave no hole between small blocks.
//!
//! The code is unsafe, because that is the interface of an allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::Dlmalloc;
use rustix::mm::MremapFlags;

mod mapping;

use mapping::{PAGE, PagesExist};

/// The least size by which dlmalloc grows, in bytes. It asks for more only for a block of nearly this size or more: the
/// buffer of a socket, most of which may never be used.
const GRANULE: usize = 64 << 10;

/// The part of its memory by which dlmalloc grows. On average, half as much is not used yet.
const GROWTH: usize = 16;

/// The most by which dlmalloc grows for a small block, in bytes.
const MAX_PIECE: usize = 1 << 20;

/// The smallest size of a large block, in bytes.
const LARGE: usize = 128 << 10;

/// A heap.
pub struct Heap(Mutex<Dlmalloc<Pages>>);

impl Heap {
    /// Returns an empty heap.
    #[expect(
        clippy::new_without_default,
        reason = "a default could not be a static"
    )]
    pub const fn new() -> Self {
        Self(Mutex::new(Dlmalloc::new_with_allocator(Pages::new())))
    }

    fn lock(&self) -> MutexGuard<'_, Dlmalloc<Pages>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a block of this size and alignment is large.
fn is_large(size: usize, align: usize) -> bool {
    size >= LARGE && align <= PAGE
}

// SAFETY: dlmalloc does what the trait demands, and the lock gives it to one thread at a time. A mapping is aligned to a
// page, and its size is the block's. The layout of a block tells which of the two it is of.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout.size(), layout.align()) {
            return mapping::map(layout.size(), PagesExist::AtOnce);
        }
        // SAFETY: dlmalloc demands what the trait demands of the caller; so below.
        unsafe { self.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout.size(), layout.align()) {
            // SAFETY: The block is a mapping of this size.
            unsafe { mapping::unmap(block, layout.size()) };
            return;
        }
        // SAFETY: See above.
        unsafe { self.lock().free(block, layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout.size(), layout.align()) {
            // Its user wants zeros, so it need not write all of it soon.
            return mapping::map(layout.size(), PagesExist::WhenUsed);
        }
        // SAFETY: See above.
        unsafe { self.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (old_size, align) = (layout.size(), layout.align());
        match (is_large(old_size, align), is_large(size, align)) {
            // SAFETY: See above.
            (false, false) => unsafe { self.lock().realloc(block, old_size, align, size) },
            (true, true) => {
                // SAFETY: The block is a mapping of this size, which its user lends for the change.
                unsafe {
                    let moved = mapping::remap(block, old_size, size, MremapFlags::MAYMOVE);
                    if !moved.is_null() && size > old_size {
                        mapping::populate(moved, old_size, size);
                    }
                    moved
                }
            }
            _ => {
                // SAFETY: The trait demands of the caller that the size fits the alignment. Both blocks have the bytes
                // that are copied, and are not the same.
                unsafe {
                    let new = self.alloc(Layout::from_size_align_unchecked(size, align));
                    if !new.is_null() {
                        ptr::copy_nonoverlapping(block, new, old_size.min(size));
                        self.dealloc(block, layout);
                    }
                    new
                }
            }
        }
    }
}

/// The kernel's memory.
struct Pages {
    /// The bytes that dlmalloc has.
    mapped: Cell<usize>,
}

impl Pages {
    const fn new() -> Self {
        Self {
            mapped: Cell::new(0),
        }
    }

    /// Returns the size of the next piece, of which dlmalloc needs `size` bytes.
    fn piece(&self, size: usize) -> usize {
        let growth = self.mapped.get() / GROWTH / GRANULE * GRANULE;
        growth.clamp(size, MAX_PIECE)
    }

    /// Frees `size` bytes. Returns whether the kernel did.
    ///
    /// # Safety
    /// As of [`mapping::unmap`].
    unsafe fn unmap(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: As demanded of the caller.
        let is_free = unsafe { mapping::unmap(at, size) };
        if is_free {
            self.mapped.set(self.mapped.get() - size);
        }
        is_free
    }
}

// SAFETY: A mapping is no other's memory, all zeros, and stays until it is unmapped.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let (size, pages) = match size <= GRANULE {
            true => (self.piece(size), PagesExist::AtOnce),
            false => (size, PagesExist::WhenUsed),
        };
        let start = mapping::map(size, pages);
        if !start.is_null() {
            self.mapped.set(self.mapped.get() + size);
        }
        (start, size, 0)
    }

    fn remap(&self, at: *mut u8, old_size: usize, new_size: usize, can_move: bool) -> *mut u8 {
        let flags = match can_move {
            true => MremapFlags::MAYMOVE,
            false => MremapFlags::empty(),
        };
        // SAFETY: The mapping is dlmalloc's.
        let moved = unsafe { mapping::remap(at, old_size, new_size, flags) };
        if !moved.is_null() {
            self.mapped.set(self.mapped.get() - old_size + new_size);
        }
        moved
    }

    fn free_part(&self, at: *mut u8, old_size: usize, new_size: usize) -> bool {
        // SAFETY: The mapping is dlmalloc's, which no longer uses this part.
        unsafe { self.unmap(at.add(new_size), old_size - new_size) }
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: The mapping is dlmalloc's, which no longer uses it.
        unsafe { self.unmap(at, size) }
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    /// That of dlmalloc's own. A kernel with larger pages refuses to unmap a part of one, and dlmalloc keeps it.
    fn page_size(&self) -> usize {
        PAGE
    }
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
    fn pieces_grow_with_the_heap() {
        use dlmalloc::Allocator as _;
        let pages = Pages::new();
        let pieces: Vec<_> = (0..120).map(|_| pages.alloc(GRANULE)).collect();
        assert!(pieces.is_sorted_by_key(|&(_, size, _)| size));
        assert_eq!(pieces[0].1, GRANULE);
        assert_eq!(pieces[119].1, MAX_PIECE);
        // A large request gets what it asks for.
        let (buffer, size, _) = pages.alloc(2 * GRANULE);
        assert_eq!(size, 2 * GRANULE);
        assert!(pages.free_part(buffer, size, GRANULE) && pages.free(buffer, GRANULE));
        for (start, size, _) in pieces {
            assert!(pages.free(start, size));
        }
        assert_eq!(pages.mapped.into_inner(), 0);
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

    #[test]
    fn large_blocks_keep_their_content_while_they_grow_and_shrink() {
        let heap = Heap::new();
        let sizes = [
            100,
            LARGE - 1,
            LARGE,
            3 * LARGE + 5,
            20 * LARGE,
            2 * LARGE,
            LARGE - 7,
            LARGE + 1,
        ];
        for align in [1, 16, PAGE, 4 * PAGE] {
            let mut block = Block::new(&heap, 64, align, 9);
            for size in sizes {
                block.resize(&heap, size);
            }
            block.free(&heap);
        }
    }

    #[test]
    fn a_large_block_is_given_back_to_the_kernel() {
        let heap = Heap::new();
        // More than other tests use meanwhile. Zeroed, because it takes no memory of the machine then.
        const SIZE: usize = 2 << 30;
        let layout = Layout::from_size_align(SIZE, 16).unwrap();
        let before = mapped();
        // SAFETY: The size is not 0.
        let start = unsafe { heap.alloc_zeroed(layout) };
        assert!(!start.is_null() && mapped() > before + SIZE * 3 / 4);
        // SAFETY: The block is of this heap, with this layout.
        unsafe { heap.dealloc(start, layout) };
        assert!(mapped() < before + SIZE * 3 / 4);
    }

    #[test]
    fn large_blocks_have_their_pages_unless_they_are_zeroed() {
        let heap = Heap::new();
        let faults_of = |start: *mut u8, size: usize| {
            let before = page_faults();
            // SAFETY: The block has this size.
            unsafe { start.write_bytes(7, size) };
            page_faults() - before
        };
        let layout = |size| Layout::from_size_align(size, 16).unwrap();
        let (size, larger) = (4 * LARGE, 9 * LARGE);
        // SAFETY: The sizes are not 0, and the blocks are of this heap.
        unsafe {
            let start = heap.alloc(layout(size));
            assert!(faults_of(start, size) < 20);
            let grown = heap.realloc(start, layout(size), larger);
            assert!(faults_of(grown, larger) < 20);
            heap.dealloc(grown, layout(larger));
            let zeroed = heap.alloc_zeroed(layout(size));
            assert!(faults_of(zeroed, size) > size as u64 / 8192);
            heap.dealloc(zeroed, layout(size));
        }
    }

    /// Returns the bytes that this process has mapped: `VmSize` of proc(5).
    fn mapped() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
        let kibibytes = size.unwrap().split_whitespace().next().unwrap();
        kibibytes.parse::<usize>().unwrap() << 10
    }

    /// Returns the page faults of this thread without a read from a disk: field 10 of proc(5).
    fn page_faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        rest.split_whitespace().nth(7).unwrap().parse().unwrap()
    }
}
