//! Notifies a test of each operation on a catalog that may cost as much as the store has files.

use std::cell::RefCell;

type Observer = Box<dyn Fn(&'static str)>;

thread_local! {
    static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
}

/// Runs `run`, and calls `observer` for each such operation of this thread until `run` returns.
pub(crate) fn watch<T>(observer: impl Fn(&'static str) + 'static, run: impl FnOnce() -> T) -> T {
    OBSERVER.with_borrow_mut(|t| *t = Some(Box::new(observer)));
    let out = run();
    OBSERVER.with_borrow_mut(|t| *t = None);
    out
}

/// Notes that this thread does such an operation.
pub(crate) fn note(what: &'static str) {
    OBSERVER.with_borrow(|observer| {
        if let Some(observer) = observer {
            observer(what);
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
