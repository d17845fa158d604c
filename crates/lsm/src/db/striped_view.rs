//! The view that readers clone, in about as many copies as threads are likely to read at once.
//!
//! With one pointer for all readers, each read of each thread would write one cache line twice: for
//! the lock and for the reference count. Here a thread clones the copy of its stripe. It shares the
//! lock and the count of that copy with few other threads or with none.
//!
//! Promises: all copies change at one moment. So a reader never sees a change that a later reader
//! does not see. No I/O happens under the locks. What only the old view held is freed after the
//! locks are released.

use super::view::View;
use basalt_env::sync::RwLock;
use basalt_env::thread::{STRIPES, stripe};
use std::sync::Arc;

/// One copy of the pointer, alone on its cache lines.
#[repr(align(128))]
struct Stripe(RwLock<Arc<View>>);

/// Returns the current view.
pub(crate) struct StripedView(Box<[Stripe]>);

impl StripedView {
    pub fn new(view: View) -> StripedView {
        StripedView(
            (0..STRIPES)
                .map(|_| Stripe(RwLock::new(Arc::new(view.clone()))))
                .collect(),
        )
    }

    pub fn get(&self) -> Arc<View> {
        self.0[stripe()].0.read().clone()
    }

    /// Replaces the view. The holder of the engine's `state` calls this, so calls never overlap.
    pub fn set(&self, next: View) {
        let mut views: Vec<Arc<View>> = (0..STRIPES).map(|_| Arc::new(next.clone())).collect();
        // All locks are taken before the first change. A reader holds one lock at a time, for the
        // length of a clone.
        let mut copies: Vec<_> = self.0.iter().map(|copy| copy.0.write()).collect();
        for (copy, view) in copies.iter_mut().zip(&mut views) {
            std::mem::swap(&mut **copy, view);
        }
        drop(copies);
        drop(views);
    }
}

#[cfg(test)]
mod tests;
