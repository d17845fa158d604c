//! Notifies a test of each operation on a catalog that may cost as much as the store has files.

use std::cell::RefCell;

type Told = Box<dyn Fn(&'static str)>;

thread_local! {
    static TOLD: RefCell<Option<Told>> = const { RefCell::new(None) };
}

/// Runs `run`, and calls `told` for each such operation of this thread until `run` returns.
pub(crate) fn watch<T>(told: impl Fn(&'static str) + 'static, run: impl FnOnce() -> T) -> T {
    TOLD.with_borrow_mut(|t| *t = Some(Box::new(told)));
    let out = run();
    TOLD.with_borrow_mut(|t| *t = None);
    out
}

/// Notes that this thread does such an operation.
pub(crate) fn note(what: &'static str) {
    TOLD.with_borrow(|told| {
        if let Some(told) = told {
            told(what);
        }
    });
}

/// A part of each catalog that notes when the catalog is copied or freed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Probe;

impl Clone for Probe {
    fn clone(&self) -> Probe {
        note("a catalog is copied");
        Probe
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        note("a catalog is freed");
    }
}
