//! Memory for a memtable's nodes: chunks from which any number of threads allocate by a bump, and
//! which are freed together.
//!
//! Owns every byte that it allocates until it is dropped; no byte is freed before. A small memtable
//! costs its first chunk, [`FIRST_CHUNK`] bytes; chunks grow with it, up to [`LARGEST_CHUNK`].
//!
//! This is a leaf module that may use `unsafe`. Invariants:
//! 1. Each pointer in `chunks` came from `alloc` with the layout beside it, and is freed once, in
//!    `drop`. Large chunks are pages.
//! 2. `current` points to the head of one of these chunks; a chunk never moves.
//! 3. A range is allocated at most once: `fetch_add` on `used` gives every caller its own start,
//!    and a start whose range does not fit is given up.
#![allow(unsafe_code)]

use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use basalt_fs::{PAGES_FROM, Pages};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Bytes of the first chunk.
const FIRST_CHUNK: usize = 2 << 10;
/// Bytes of the largest chunk that several allocations share.
pub(super) const LARGEST_CHUNK: usize = 1 << 20;
/// Every allocation starts at a multiple of this.
pub(super) const ALIGN: usize = 8;

/// The head at the start of each shared chunk.
#[repr(C)]
struct ChunkHead {
    /// Bytes of the chunk, this head included. Written once, before the chunk becomes `current`.
    size: usize,
    /// Bytes allocated, this head included. Exceeds `size` if callers found the chunk full.
    used: AtomicUsize,
}

const HEAD: usize = size_of::<ChunkHead>();

enum Chunk {
    Allocated(NonNull<u8>, Layout),
    Mapped { _pages: Pages },
}

/// The chunks of a memtable, see the module.
pub(super) struct Arena {
    current: AtomicPtr<ChunkHead>,
    chunks: Mutex<Vec<Chunk>>,
    memory: AtomicUsize,
}

// SAFETY: the chunks belong to the arena alone; shared state is reached through atomics and the
// lock.
unsafe impl Send for Arena {}
// SAFETY: as above; `alloc` is the only shared operation on chunk memory and goes through `used`.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes an arena with its first chunk.
    pub(super) fn new() -> Arena {
        let mut chunks = Vec::new();
        let first = shared_chunk(FIRST_CHUNK, &mut chunks);
        Arena {
            current: AtomicPtr::new(first),
            chunks: Mutex::new(chunks),
            memory: AtomicUsize::new(FIRST_CHUNK),
        }
    }

    /// Allocates `size` bytes (not 0), aligned to [`ALIGN`], not initialised, valid until the arena
    /// is dropped.
    pub(super) fn alloc(&self, size: usize) -> NonNull<u8> {
        assert!(
            size > 0 && size <= isize::MAX as usize / 2,
            "arena allocation of {size} bytes"
        );
        let size = size.next_multiple_of(ALIGN);
        // Acquire pairs with the Release store in `alloc_slow`: the writes of the head's `size` and
        // `used` are visible.
        match bump(self.current.load(Ordering::Acquire), size) {
            Some(p) => p,
            None => self.alloc_slow(size),
        }
    }

    #[cold]
    fn alloc_slow(&self, size: usize) -> NonNull<u8> {
        let mut chunks = self.chunks.lock();
        // Relaxed: `current` changes only under the lock that is held here.
        let current = self.current.load(Ordering::Relaxed);
        if let Some(p) = bump(current, size) {
            return p;
        }
        // The next chunk is at most a quarter of the memory so far: all bytes of the chunks, used
        // or not, count towards a full memtable.
        let next = (self.memory() / 8)
            .next_power_of_two()
            .clamp(FIRST_CHUNK, LARGEST_CHUNK);
        if size > (next - HEAD) / 4 {
            // The allocation gets its own chunk, so that neither this chunk nor the rest of the
            // current one is wasted.
            let p = raw_chunk(size, &mut chunks);
            self.memory.fetch_add(size, Ordering::Relaxed);
            return p;
        }
        let chunk = shared_chunk(next, &mut chunks);
        self.memory.fetch_add(next, Ordering::Relaxed);
        let p = bump(chunk, size).expect("a fresh chunk holds a quarter of itself");
        // Release: a thread that loads the pointer sees the head that `shared_chunk` wrote.
        self.current.store(chunk, Ordering::Release);
        p
    }

    /// Returns the bytes of all chunks.
    pub(super) fn memory(&self) -> usize {
        // Relaxed: this is a statistic, and no memory is read because of it.
        self.memory.load(Ordering::Relaxed)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for chunk in self.chunks.get_mut().drain(..) {
            if let Chunk::Allocated(ptr, layout) = chunk {
                // SAFETY: invariant 1; no other thread holds the arena any more.
                unsafe { dealloc(ptr.as_ptr(), layout) };
            }
        }
    }
}

fn raw_chunk(size: usize, chunks: &mut Vec<Chunk>) -> NonNull<u8> {
    if size >= PAGES_FROM {
        let pages = Pages::new(size);
        let start = pages.start();
        chunks.push(Chunk::Mapped { _pages: pages });
        return start;
    }
    let layout = Layout::from_size_align(size, 16).expect("chunk size fits");
    // SAFETY: no chunk is empty.
    let Some(ptr) = NonNull::new(unsafe { alloc(layout) }) else {
        handle_alloc_error(layout)
    };
    chunks.push(Chunk::Allocated(ptr, layout));
    ptr
}

fn shared_chunk(size: usize, chunks: &mut Vec<Chunk>) -> *mut ChunkHead {
    let head = raw_chunk(size, chunks).cast::<ChunkHead>().as_ptr();
    // SAFETY: the chunk is larger than a head, aligned to 16, and not yet known to another thread.
    unsafe {
        head.write(ChunkHead {
            size,
            used: AtomicUsize::new(HEAD),
        });
    }
    head
}

/// Takes `size` bytes (a multiple of [`ALIGN`]) from a chunk. Returns `None` if they do not fit.
#[inline]
fn bump(chunk: *mut ChunkHead, size: usize) -> Option<NonNull<u8>> {
    // SAFETY: invariant 2: the head is initialised and lives as long as the arena.
    let (cap, used) = unsafe { ((*chunk).size, &(*chunk).used) };
    // Relaxed: the counter only divides the chunk. The tree that orders the entries publishes the
    // bytes that callers write there.
    //
    // The counter cannot wrap: each failed attempt adds at most 2^62 and then takes the lock, under
    // which one success replaces the chunk. Only threads that raced here add more.
    let at = used.fetch_add(size, Ordering::Relaxed);
    if at.checked_add(size)? > cap {
        return None;
    }
    // SAFETY: at + size <= cap, inside the chunk's allocation.
    NonNull::new(unsafe { chunk.cast::<u8>().add(at) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_aligned_distinct_and_counted() {
        let arena = Arena::new();
        assert_eq!(arena.memory(), FIRST_CHUNK);
        let mut ranges = Vec::new();
        let mut asked = 0;
        for i in 0..2000usize {
            let size = if i % 100 == 99 { 70_000 } else { 1 + i % 300 };
            let p = arena.alloc(size);
            // SAFETY: the arena allocated `size` bytes.
            unsafe { p.as_ptr().write_bytes(i as u8, size) };
            assert_eq!(p.as_ptr() as usize % ALIGN, 0);
            ranges.push((p, size, i as u8));
            asked += size;
        }
        for &(p, size, fill) in &ranges {
            // SAFETY: written above, and the arena is alive.
            let bytes = unsafe { std::slice::from_raw_parts(p.as_ptr(), size) };
            assert!(bytes.iter().all(|&b| b == fill));
        }
        assert!(arena.memory() >= asked && arena.memory() < asked + asked / 2 + 2 * LARGEST_CHUNK);
    }
}
