//! The view that readers take, in as many copies as threads are likely to read at once.
//!
//! One pointer for all would be one cache line that every read of every thread writes twice: for its lock and for its reference
//! count. Here a thread takes the copy of its stripe, whose lock and count it shares with few or none.
//!
//! Promises: all copies change as one, so that no reader sees a change that another, who asks later, does not; no I/O happens
//! under the locks, and what only the old view held is freed after they are released.

use super::generation::View;
use basalt_env::sync::RwLock;
use basalt_env::thread::{STRIPES, stripe};
use std::sync::Arc;

/// One copy, alone on its cache lines.
#[repr(align(128))]
struct Place(RwLock<Arc<View>>);

/// The view as of now.
pub(crate) struct Shown(Box<[Place]>);

impl Shown {
    pub fn new(view: View) -> Shown {
        Shown(
            (0..STRIPES)
                .map(|_| Place(RwLock::new(Arc::new(view.clone()))))
                .collect(),
        )
    }

    pub fn get(&self) -> Arc<View> {
        self.0[stripe()].0.read().clone()
    }

    /// Replaces it. Callers take turns: the holder of the engine's `state`.
    pub fn set(&self, next: View) {
        let mut views: Vec<Arc<View>> = (0..STRIPES).map(|_| Arc::new(next.clone())).collect();
        // All locks before the first change. Readers hold one at a time, for the length of a clone.
        let mut copies: Vec<_> = self.0.iter().map(|copy| copy.0.write()).collect();
        for (copy, view) in copies.iter_mut().zip(&mut views) {
            std::mem::swap(&mut **copy, view);
        }
        drop(copies);
        drop(views);
    }
}
