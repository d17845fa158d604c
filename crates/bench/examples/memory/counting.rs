//! An allocator that counts the bytes that are live, by size class.
//!
//! A leaf module with `unsafe`: it hands every call to the allocator below unchanged and only
//! counts beside it.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

pub struct Counting;

static CLASSES: [AtomicI64; 64] = [const { AtomicI64::new(0) }; 64];

fn add(n: usize, sign: i64) {
    CLASSES[(usize::BITS - n.leading_zeros()) as usize].fetch_add(n as i64 * sign, Relaxed);
}

pub fn live() -> u64 {
    CLASSES.iter().map(|c| c.load(Relaxed)).sum::<i64>() as u64
}

pub fn report() {
    for (i, c) in CLASSES.iter().enumerate() {
        let n = c.load(Relaxed);
        if n > 100_000 {
            println!("   below {:>10}: {:8.2} MB", 1u64 << i, n as f64 / 1e6);
        }
    }
}

// SAFETY: every call goes to the allocator below with its own arguments. Counting allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        add(layout.size(), -1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(layout.size(), -1);
        add(new_size, 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
