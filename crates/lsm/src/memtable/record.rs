//! One entry of a memtable: key, trailer and value in the arena, written once and never again.
//!
//! ```text
//!  lens u64 | user key | trailer u64 le | value, or LargeValue (aligned to 8)
//! ```
//!
//! This is a leaf module that may use `unsafe`. Invariants:
//! 1. A [`Record`] that left [`Records::add`] is fully written, and its bytes are never written
//!    again. A thread that passes its address to another one does so with `Release`, and the other
//!    loads it with `Acquire` or behind such a fence.
//! 2. Records live until their [`Records`] is dropped. A record that is kept outside (by a cursor,
//!    by a pinned value) stands beside an `Arc` of the memtable that owns it.
#![allow(unsafe_code)]

use super::MemTable;
use super::arena::{ALIGN, Arena};
use basalt_env::sync::atomic::{AtomicPtr, AtomicUsize, Ordering as Mem};
use basalt_fs::Bytes;
use basalt_kv::key::TRAILER_LEN;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Values of at least this many bytes stay in the batch's memory. An own allocation of a smaller
/// value costs more than its copy. It also costs more memory: the space between kept batches that
/// the allocator cannot use.
pub(super) const LARGE_VALUE: usize = 4096;

/// Bytes of `lens`.
const HEADER: usize = 8;
/// Bits of `lens`: user key length in 0..24, large value in 31, value length in 32..64.
const KEY_LEN_MASK: u64 = (1 << 24) - 1;
const LARGE_BIT: u64 = 1 << 31;

/// The part of a record in place of a large value: the batch's memory, and the link by which `drop`
/// finds it.
struct LargeValue {
    value: Bytes,
    older: *mut LargeValue,
}

const _: () = assert!(align_of::<LargeValue>() <= ALIGN);

/// A fully written record of living [`Records`] (invariants 1 and 2).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Record(NonNull<u8>);

impl Record {
    /// Returns the record at an address, or `None` for a null address. The address came from
    /// [`Record::address`].
    #[inline]
    pub(super) fn at(address: *mut u8) -> Option<Record> {
        NonNull::new(address).map(Record)
    }
    #[inline]
    pub(super) fn address(self) -> *mut u8 {
        self.0.as_ptr()
    }
    #[inline]
    fn lens(self) -> u64 {
        // SAFETY: invariant 1; the header is 8-aligned.
        unsafe { self.0.as_ptr().cast::<u64>().read() }
    }
    #[inline]
    fn bytes<'a>(self, at: usize, len: usize) -> &'a [u8] {
        // SAFETY: callers pass ranges that `lens` describes, written before publication and never
        // after (invariant 1). The lifetime is bounded by the callers, which stand beside the
        // memtable (invariant 2).
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(HEADER + at), len) }
    }
    #[inline]
    pub(super) fn user_key<'a>(self) -> &'a [u8] {
        self.bytes(0, (self.lens() & KEY_LEN_MASK) as usize)
    }
    #[inline]
    pub(super) fn internal_key<'a>(self) -> &'a [u8] {
        self.bytes(0, (self.lens() & KEY_LEN_MASK) as usize + TRAILER_LEN)
    }
    #[inline]
    pub(super) fn trailer(self) -> u64 {
        let t = self.bytes((self.lens() & KEY_LEN_MASK) as usize, TRAILER_LEN);
        u64::from_le_bytes(t.try_into().expect("8 bytes"))
    }
    fn large<'a>(self) -> Option<&'a LargeValue> {
        let lens = self.lens();
        if lens & LARGE_BIT == 0 {
            return None;
        }
        let at = large_at((lens & KEY_LEN_MASK) as usize);
        // SAFETY: the bit says that a LargeValue was written there, at a multiple of its alignment.
        Some(unsafe { &*self.0.as_ptr().add(at).cast::<LargeValue>() })
    }
    pub(super) fn value<'a>(self) -> &'a [u8] {
        match self.large() {
            Some(large) => &large.value,
            None => {
                let lens = self.lens();
                self.bytes(
                    (lens & KEY_LEN_MASK) as usize + TRAILER_LEN,
                    (lens >> 32) as usize,
                )
            }
        }
    }
    /// Returns the value, with the memory that keeps it alive.
    pub(super) fn pin(self, mem: &Arc<MemTable>) -> Bytes {
        match self.large() {
            Some(large) => large.value.clone(),
            None if self.lens() >> 32 == 0 => Bytes::new(),
            None => Bytes::from_owner(InlineValue {
                mem: mem.clone(),
                record: self,
            }),
        }
    }
}

/// Returns the offset of a large value from the record's address.
fn large_at(key_len: usize) -> usize {
    HEADER + (key_len + TRAILER_LEN).next_multiple_of(ALIGN)
}

/// Prefetches the cache line at an address.
#[inline(always)]
pub(super) fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing as far as the program can tell, and may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// A value and the batch that it lies in, whose memory is kept when the value is large.
#[derive(Clone, Copy)]
pub(super) struct Value<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) batch: &'a Bytes,
}

/// The arena of a memtable and the records in it.
pub(super) struct Records {
    pinned: AtomicUsize,
    large: AtomicPtr<LargeValue>,
    arena: Arena,
}

impl Records {
    pub(super) fn new() -> Records {
        Records {
            pinned: AtomicUsize::new(0),
            large: AtomicPtr::new(ptr::null_mut()),
            arena: Arena::new(),
        }
    }
    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }
    /// Returns the bytes of the arena and of the large values.
    pub(super) fn memory(&self) -> usize {
        self.arena.memory() + self.pinned.load(Mem::Relaxed)
    }
    pub(super) fn add_pinned(&self, bytes: usize) {
        self.pinned.fetch_add(bytes, Mem::Relaxed);
    }

    /// Writes a record. Small values are copied, large ones keep their memory alive.
    pub(super) fn add(&self, user_key: &[u8], trailer: u64, value: Value<'_>) -> Record {
        let Value {
            bytes: value,
            batch,
        } = value;
        let key_len = user_key.len();
        assert!(
            key_len as u64 <= KEY_LEN_MASK && u32::try_from(value.len()).is_ok(),
            "key of {key_len} bytes, value of {} bytes in a memtable",
            value.len()
        );
        let large = value.len() >= LARGE_VALUE;
        let size = if large {
            large_at(key_len) + size_of::<LargeValue>()
        } else {
            HEADER + key_len + TRAILER_LEN + value.len()
        };
        let lens = key_len as u64 | (value.len() as u64) << 32 | if large { LARGE_BIT } else { 0 };
        let start = self.arena.alloc(size);
        let at = start.as_ptr();
        // SAFETY: `size` bytes from the address on, 8-aligned, belong to this record, which is not
        // yet known to another thread. The sources are other memory.
        unsafe {
            at.cast::<u64>().write(lens);
            let key = at.add(HEADER);
            ptr::copy_nonoverlapping(user_key.as_ptr(), key, key_len);
            ptr::copy_nonoverlapping(
                trailer.to_le_bytes().as_ptr(),
                key.add(key_len),
                TRAILER_LEN,
            );
            if !large {
                ptr::copy_nonoverlapping(
                    value.as_ptr(),
                    key.add(key_len + TRAILER_LEN),
                    value.len(),
                );
            }
        }
        if large {
            // SAFETY: `size` includes an aligned LargeValue at `large_at`.
            let slot = unsafe { at.add(large_at(key_len)).cast::<LargeValue>() };
            // SAFETY: as above; the slot was not initialised, so no value is overwritten without
            // its drop.
            unsafe {
                slot.write(LargeValue {
                    value: batch.slice_ref(value),
                    older: ptr::null_mut(),
                });
            }
            // Only `drop` reads the chain, and it has the records alone. Relaxed would be enough
            // for it, but a thread that passes the records to the dropping thread may order only
            // its own writes. AcqRel orders all of them.
            let mut older = self.large.load(Mem::Acquire);
            loop {
                // SAFETY: the slot is initialised, and no thread reads `older` before `drop`.
                unsafe { (&raw mut (*slot).older).write(older) };
                match self
                    .large
                    .compare_exchange_weak(older, slot, Mem::AcqRel, Mem::Acquire)
                {
                    Ok(_) => break,
                    Err(seen) => older = seen,
                }
            }
            self.pinned.fetch_add(value.len(), Mem::Relaxed);
        }
        Record(start)
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let mut at = *self.large.get_mut();
        while !at.is_null() {
            // SAFETY: `add` initialised each slot on the chain once, and each is dropped once,
            // here. The arena that holds the slot is dropped after this.
            unsafe {
                let older = (*at).older;
                ptr::drop_in_place(at);
                at = older;
            }
        }
    }
}

/// An inline value and the memtable that holds it.
struct InlineValue {
    mem: Arc<MemTable>,
    record: Record,
}

// SAFETY: the record is immutable shared memory that `mem`, which is Send and Sync, keeps alive.
unsafe impl Send for InlineValue {}

impl AsRef<[u8]> for InlineValue {
    fn as_ref(&self) -> &[u8] {
        debug_assert!(Arc::strong_count(&self.mem) > 0);
        self.record.value()
    }
}
