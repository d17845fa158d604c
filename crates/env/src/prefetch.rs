//! Prefetch hints: the processor begins to load memory that is about to be read.
//!
//! Invariant: a prefetch is a hint. It has no effect that the program can see, and the processor
//! ignores an address that is not mapped. So any address is sound, and this module only passes
//! addresses inside slices.
#![allow(unsafe_code)]

/// Bytes that a processor fetches at once.
const LINE: usize = 64;

/// Begins to fetch `bytes`, at most the first `most` of them.
#[inline]
pub fn prefetch(bytes: &[u8], most: usize) {
    for line in bytes[..bytes.len().min(most)].chunks(LINE) {
        one(line);
    }
    // A slice seldom begins with a line, so its last byte may lie in one more line.
    if let Some(at) = bytes.len().min(most).checked_sub(1) {
        one(&bytes[at..]);
    }
}

#[inline(always)]
fn one(_at: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that the program can see, whatever the address is.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(_at.as_ptr().cast());
    }
}
