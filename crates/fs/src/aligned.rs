//! A growable byte buffer whose memory starts at an address that direct I/O accepts.
//!
//! This is one of the leaf modules that may use `unsafe`: it owns a raw allocation. Invariant:
//! `ptr` and `origin` came from `take(layout(n))` with `cap == room(origin, n)` (or `ptr` is
//! dangling and `cap` is 0), and the first `len <= cap` bytes are initialised.
#![allow(unsafe_code)]

use crate::pages::{Origin, give_back, grow, room, take};
use crate::slab::Lifetime;
use bytes::Bytes;
use std::alloc::{Layout, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// The alignment of large buffers, in bytes: the largest that a block device requires.
pub const DIRECT_ALIGN: usize = 4096;

/// Buffers below this many bytes of capacity are aligned for the processor only. They are copied
/// into a staging buffer before they reach a device, and page alignment would waste memory on each.
pub const ALIGNED_FROM: usize = 16 * 1024;

/// A growable buffer like `Vec<u8>`. At a capacity of [`ALIGNED_FROM`] bytes or more, or if
/// [`AlignedBuf::zeroed_direct`] made it, its memory is aligned to [`DIRECT_ALIGN`].
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    cap: usize,
    direct: bool,
    origin: Origin,
    lifetime: Lifetime,
}

// SAFETY: the buffer owns its memory alone, as a Vec<u8> does.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads initialised bytes.
unsafe impl Sync for AlignedBuf {}

fn layout(cap: usize, direct: bool) -> Layout {
    let align = if direct || cap >= ALIGNED_FROM {
        DIRECT_ALIGN
    } else {
        8
    };
    Layout::from_size_align(cap, align).expect("capacity fits isize")
}

impl AlignedBuf {
    /// Returns an empty buffer without memory.
    pub const fn new() -> AlignedBuf {
        AlignedBuf {
            ptr: NonNull::dangling(),
            len: 0,
            cap: 0,
            direct: false,
            origin: Origin::Allocator,
            lifetime: Lifetime::Brief,
        }
    }

    /// Returns an empty buffer with room for `cap` bytes.
    pub fn with_capacity(cap: usize) -> AlignedBuf {
        let mut b = AlignedBuf::new();
        b.reserve_exact(cap);
        b
    }

    /// Returns an empty buffer for `lifetime`, with room for `cap` bytes.
    pub fn with_lifetime(cap: usize, lifetime: Lifetime) -> AlignedBuf {
        let mut b = AlignedBuf {
            lifetime,
            ..AlignedBuf::new()
        };
        b.reserve_exact(cap);
        b
    }

    /// Returns a copy of `bytes` in memory for a block that a cache keeps.
    pub fn cached_copy(bytes: &[u8]) -> Bytes {
        let mut b = AlignedBuf::with_lifetime(bytes.len(), Lifetime::Cached);
        b.extend_from_slice(bytes);
        Bytes::from_owner(b)
    }

    /// Returns `len` zero bytes at a [`DIRECT_ALIGN`]ed address, whatever `len` is.
    pub fn zeroed_direct(len: usize) -> AlignedBuf {
        let mut b = AlignedBuf {
            direct: true,
            ..AlignedBuf::new()
        };
        b.resize(len, 0);
        b
    }

    /// Returns the number of bytes that the buffer can hold without moving.
    pub fn capacity(&self) -> usize {
        self.cap
    }

    /// Returns true if the memory starts at a multiple of `align`.
    pub fn is_aligned_to(&self, align: usize) -> bool {
        (self.ptr.as_ptr() as usize).is_multiple_of(align)
    }

    /// Makes room for exactly `more` further bytes.
    pub fn reserve_exact(&mut self, more: usize) {
        let need = self.len.checked_add(more).expect("capacity overflow");
        if need <= self.cap {
            return;
        }
        if self.cap != 0 {
            // SAFETY: the memory is ours alone, taken with `cap` bytes.
            let grown = unsafe { grow(self.ptr, self.origin, self.cap, need) };
            if let Some(ptr) = grown {
                self.ptr = ptr;
                self.cap = need;
                return;
            }
        }
        let new_layout = layout(need, self.direct);
        let Some((new, origin)) = take(new_layout, self.lifetime) else {
            handle_alloc_error(new_layout)
        };
        // SAFETY: both regions hold at least len bytes and are distinct allocations.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr.as_ptr(), new.as_ptr(), self.len) };
        self.free();
        self.ptr = new;
        self.cap = room(origin, need);
        self.origin = origin;
    }

    /// Makes room for at least `more` further bytes. The capacity grows by half, so that appends
    /// stay linear.
    pub fn reserve(&mut self, more: usize) {
        let need = self.len.checked_add(more).expect("capacity overflow");
        if need > self.cap {
            let target = need.max(self.cap + self.cap / 2).max(64);
            self.reserve_exact(target - self.len);
        }
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        // SAFETY: `reserve` made room, and the source cannot overlap memory that this buffer owns
        // mutably.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.ptr.as_ptr().add(self.len),
                bytes.len(),
            );
        }
        self.len += bytes.len();
    }

    /// Appends one byte.
    pub fn push(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }

    /// Cuts or extends the buffer to `len` bytes, filling with `fill`.
    pub fn resize(&mut self, len: usize, fill: u8) {
        if len > self.len {
            self.reserve(len - self.len);
            // SAFETY: the range [self.len, len) is inside the capacity.
            unsafe {
                self.ptr
                    .as_ptr()
                    .add(self.len)
                    .write_bytes(fill, len - self.len)
            };
        }
        self.len = len;
    }

    /// Returns the memory past the content, for a system call to read into.
    pub(crate) fn spare_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the range [len, cap) belongs to this buffer, and MaybeUninit requires no
        // initialisation.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.ptr.as_ptr().add(self.len).cast::<MaybeUninit<u8>>(),
                self.cap - self.len,
            )
        }
    }

    /// Counts `n` further bytes as content.
    ///
    /// # Safety
    /// The first `n` bytes of [`AlignedBuf::spare_mut`] must have been initialised.
    pub(crate) unsafe fn advance(&mut self, n: usize) {
        assert!(n <= self.cap - self.len, "advanced past the capacity");
        self.len += n;
    }

    /// Returns an empty buffer with room for `cap` bytes at a [`DIRECT_ALIGN`]ed address, whatever
    /// `cap` is.
    pub(crate) fn with_capacity_direct(cap: usize) -> AlignedBuf {
        let mut b = AlignedBuf {
            direct: true,
            ..AlignedBuf::new()
        };
        b.reserve_exact(cap);
        b
    }

    /// Drops the content and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Cuts the buffer to at most `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    fn free(&mut self) {
        if self.cap != 0 {
            // SAFETY: by the invariant, `cap` is the size that was requested, or the memory is a
            // slot, whose size the slab knows.
            unsafe { give_back(self.ptr, layout(self.cap, self.direct), self.origin) };
        }
    }
}

impl Default for AlignedBuf {
    fn default() -> AlignedBuf {
        AlignedBuf::new()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        self.free();
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the first len bytes are initialised.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the first len bytes are initialised, and the buffer is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> AlignedBuf {
        let mut b = AlignedBuf {
            direct: self.direct,
            lifetime: self.lifetime,
            ..AlignedBuf::new()
        };
        b.reserve_exact(self.len);
        b.extend_from_slice(self);
        b
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} of {} bytes)", self.len, self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_like_a_vec_and_aligns_when_large() {
        let mut b = AlignedBuf::new();
        let mut v = Vec::new();
        // The buffer moves from the allocator into pages of the system.
        for i in 0..400_000u32 {
            b.extend_from_slice(&i.to_le_bytes());
            v.extend_from_slice(&i.to_le_bytes());
        }
        assert_eq!(&b[..], &v[..]);
        assert!(b.is_aligned_to(DIRECT_ALIGN));
        assert!(AlignedBuf::zeroed_direct(512).is_aligned_to(DIRECT_ALIGN));
        b.truncate(3);
        b.resize(8, 7);
        assert_eq!(&b[..], &[0, 0, 0, 7, 7, 7, 7, 7]);
        assert_eq!(&b.clone()[..], &b[..]);
    }

    #[test]
    fn bytes_written_to_spare_memory_become_content() {
        let mut b = AlignedBuf::with_capacity_direct(100);
        assert!(b.is_aligned_to(DIRECT_ALIGN));
        b.extend_from_slice(b"head");
        for m in &mut b.spare_mut()[..3] {
            m.write(7);
        }
        // SAFETY: three bytes were written just above.
        unsafe { b.advance(3) };
        assert_eq!(&b[..], b"head\x07\x07\x07");
        assert_eq!(b.spare_mut().len(), b.capacity() - 7);
    }
}
