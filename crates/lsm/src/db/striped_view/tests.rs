//! Unit tests of `striped_view`.

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
fn all_stripes_of_the_view_change_at_once() {
    changes_as_one(StripedView::set);
}

/// If the copies did not change at one moment, the test above would find it.
#[test]
#[should_panic(expected = "changed before the others")]
fn the_test_finds_stripes_that_change_one_by_one() {
    changes_as_one(|shown, view| {
        for copy in &shown.0 {
            *copy.0.write() = Arc::new(view.clone());
        }
    });
}
