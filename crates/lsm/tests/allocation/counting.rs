//! An allocator that counts the live bytes of the process, and the bytes that the calling thread
//! has requested.
//!
//! A leaf module with `unsafe`: it passes every call to the system's allocator unchanged, and only
//! counts beside it.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

pub struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

fn note(bytes: usize) {
    LIVE.fetch_add(bytes as i64, Relaxed);
    // A thread that is ending has no counter any more, and no test reads one.
    let _ = ASKED.try_with(|a| a.set(a.get() + bytes as u64));
}

/// Returns the bytes allocated and not freed, in the whole process.
pub fn live() -> i64 {
    LIVE.load(Relaxed)
}

/// Returns the bytes that this thread has requested so far.
pub fn asked() -> u64 {
    ASKED.with(|a| a.get())
}

// SAFETY: every call goes to `System` with the arguments that it came with; counting allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the promises of this method.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the promises of this method.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: the caller keeps the promises of this method.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        LIVE.fetch_sub(layout.size() as i64, Relaxed);
        note(new_size);
        // SAFETY: the caller keeps the promises of this method.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
