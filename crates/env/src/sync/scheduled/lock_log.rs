//! Log of the locks that a thread takes while it holds others, and of how many it takes.
//!
//! A lock is named after the type that it guards. Tests compare the pairs with the order that the
//! owner of the locks documents. All threads of a run share one thread of the operating system, so
//! the log is local to that thread.

use shuttle::current::{TaskId, try_get_current_task};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

std::thread_local! {
    /// Locks that threads of the run hold.
    static HELD: RefCell<Vec<(TaskId, &'static str)>> = const { RefCell::new(Vec::new()) };
    /// Pairs of a held lock and one that was taken under it.
    static PAIRS: RefCell<BTreeSet<(&'static str, &'static str)>> =
        const { RefCell::new(BTreeSet::new()) };
    /// Locks taken, by name, since the log was begun.
    static TAKEN: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    /// True while taken locks are listed.
    static LISTS: Cell<bool> = const { Cell::new(false) };
}

/// Begins a log: no lock is held, none was taken. Pairs of earlier runs stay.
pub fn begin() {
    HELD.with_borrow_mut(Vec::clear);
    TAKEN.with_borrow_mut(Vec::clear);
    LISTS.set(true);
}

/// Returns the names of the locks that were taken since [`begin`], in order, and ends the list.
pub fn taken() -> Vec<&'static str> {
    LISTS.set(false);
    TAKEN.take()
}

/// Returns every pair of a held lock and a lock that was taken under it, by any run of this thread.
pub fn pairs() -> Vec<(&'static str, &'static str)> {
    PAIRS.with_borrow(|pairs| pairs.iter().copied().collect())
}

/// How a lock was taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// The thread waited for it and holds it until [`note_released`].
    Held,
    /// The thread waited for it, and its release is not noted: locks under it are not seen.
    Passed,
    /// The thread holds it and did not wait: no order can deadlock here.
    Tried,
}

/// Notes that the calling thread has taken a lock that guards a `T`.
pub(super) fn note_taken<T: ?Sized>(how: Taken) {
    let Some(task) = try_get_current_task() else {
        return;
    };
    let name = std::any::type_name::<T>();
    if LISTS.get() {
        TAKEN.with_borrow_mut(|taken| taken.push(name));
    }
    HELD.with_borrow_mut(|held| {
        if how != Taken::Tried {
            PAIRS.with_borrow_mut(|pairs| {
                let own = held.iter().filter(|(of, _)| *of == task);
                pairs.extend(own.map(|(_, before)| (*before, name)));
            });
        }
        if how != Taken::Passed {
            held.push((task, name));
        }
    });
}

/// Notes that the calling thread gives back a lock that guards a `T`.
pub(super) fn note_released<T: ?Sized>() {
    let Some(task) = try_get_current_task() else {
        return;
    };
    let name = std::any::type_name::<T>();
    HELD.with_borrow_mut(|held| {
        if let Some(at) = held.iter().rposition(|one| *one == (task, name)) {
            held.remove(at);
        }
    });
}
