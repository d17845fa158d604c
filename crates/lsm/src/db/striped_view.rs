//! The view that readers take, in as many copies as threads are likely to read at once.
//!
//! One pointer for all would be one cache line that every read of every thread writes twice: for its lock and for its reference
//! count. Here a thread takes the copy of its stripe, whose lock and count it shares with few or none.
//!
//! Promises: all copies change as one, so that no reader sees a change that another, who asks later, does not; no I/O happens
//! under the locks, and what only the old view held is freed after they are released.

use super::view::View;
use basalt_env::sync::RwLock;
use basalt_env::thread::{STRIPES, stripe};
use std::sync::Arc;

/// One copy, alone on its cache lines.
#[repr(align(128))]
struct Stripe(RwLock<Arc<View>>);

/// The view as of now.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Env, Options};
    use basalt_sim::{SimFs, SimOptions};

    /// While one copy cannot be changed yet, none of the others shows the new view.
    fn changes_as_one(set: impl Fn(&StripedView, View) + Sync) {
        let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
        let db = Db::open(&env, "db", Options::default()).unwrap();
        let view = db.engine().tree.view();
        let shown = StripedView::new(View::clone(&view));
        let before: Vec<Arc<View>> = shown.0.iter().map(|copy| copy.0.read().clone()).collect();
        let (others, last) = shown.0.split_at(STRIPES - 1);
        basalt_env::thread::scope(|threads| {
            let held = last[0].0.read();
            threads.spawn(|| set(&shown, View::clone(&view)));
            // The first is locked when the change has begun.
            while others[0]
                .0
                .try_read()
                .is_some_and(|now| Arc::ptr_eq(&now, &before[0]))
            {
                std::thread::yield_now();
            }
            for _ in 0..500 {
                for (copy, before) in others.iter().zip(&before) {
                    if let Some(now) = copy.0.try_read() {
                        assert!(Arc::ptr_eq(&now, before), "changed before the others");
                    }
                }
                std::thread::yield_now();
            }
            drop(held);
        });
        for (copy, before) in shown.0.iter().zip(&before) {
            assert!(!Arc::ptr_eq(&copy.0.read(), before));
        }
        drop(view);
        db.close().unwrap();
    }

    #[test]
    fn all_copies_change_as_one() {
        changes_as_one(StripedView::set);
    }

    /// The test above sees it when they do not.
    #[test]
    #[should_panic(expected = "changed before the others")]
    fn one_after_the_other_would_be_seen() {
        changes_as_one(|shown, view| {
            for copy in &shown.0 {
                *copy.0.write() = Arc::new(view.clone());
            }
        });
    }
}
