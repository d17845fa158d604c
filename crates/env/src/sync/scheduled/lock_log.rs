//! Log of the locks that a thread takes while it holds others, and the rules that it must keep.
//!
//! Each crate lists its locks in [`CrateLocks`]. The name of a lock is the one that
//! [`named`](super::named) gave it, or the last two segments of the path of the type that it
//! guards, such as `tree::TreeState`. [`violations`] compares all locks and pairs of the log with
//! the lists. All threads of a run share one thread of the operating system, so the log is local to
//! that thread.

use shuttle::current::{TaskId, try_get_current_task};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

std::thread_local! {
    /// Locks that threads of the run hold.
    static HELD: RefCell<Vec<(TaskId, NotedLock)>> = const { RefCell::new(Vec::new()) };
    /// Names of all locks that were taken, as [`NotedLock`] has them.
    static NAMES: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    /// Pairs of a held lock and one that was taken under it.
    static PAIRS: RefCell<BTreeSet<LockPair>> = const { RefCell::new(BTreeSet::new()) };
    /// Locks taken, by name, while they are listed.
    static TAKEN: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    /// True while taken locks are listed.
    static LISTS: Cell<bool> = const { Cell::new(false) };
}

/// The locks of one crate.
#[derive(Clone, Copy)]
pub struct CrateLocks {
    /// Locks that are held while others are taken. A thread that holds one takes only locks that
    /// stand behind it, locks of crates below, and leaves. A name that ends with [`ARRAY`] is an
    /// array of locks, which a thread takes in ascending order.
    pub order: &'static [&'static str],
    /// All other locks: a thread that holds one takes no lock.
    pub leaves: &'static [&'static str],
}

/// End of a name in [`CrateLocks::order`] that stands for an array of locks.
pub const ARRAY: &str = "[]";

/// Two locks that one thread held at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockPair {
    /// The lock that was held.
    pub first: &'static str,
    /// The lock that was taken meanwhile.
    pub second: &'static str,
    /// True if the second lock has the higher address: in an array, it stands behind the first.
    pub is_ascending: bool,
}

/// A lock in the log: the name that it was given or the full name of the guarded type, and the
/// address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct NotedLock {
    name: &'static str,
    address: usize,
}

impl NotedLock {
    /// Returns the lock `lock`, which guards a `T`, and which may have been given a name.
    pub(super) fn of<T: ?Sized>(name: Option<&'static str>, lock: *const ()) -> NotedLock {
        NotedLock {
            name: name.unwrap_or_else(std::any::type_name::<T>),
            address: lock.addr(),
        }
    }
}

/// The way in which a lock was taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// The thread may have waited for it.
    Locked,
    /// The thread may have waited for it. It is a spin lock, which [`begin_list`] leaves out.
    Spun,
    /// The thread did not wait: no order can deadlock here.
    Tried,
}

/// Begins a run: no lock is held. Names and pairs of earlier runs stay.
pub fn begin_run() {
    HELD.with_borrow_mut(Vec::clear);
}

/// Forgets the names and pairs of all runs of this thread.
pub fn clear() {
    NAMES.with_borrow_mut(BTreeSet::clear);
    PAIRS.with_borrow_mut(BTreeSet::clear);
}

/// Begins a list of the locks that are taken from now on, but for spin locks.
pub fn begin_list() {
    TAKEN.with_borrow_mut(Vec::clear);
    LISTS.set(true);
}

/// Returns the names of the locks that were taken since [`begin_list`], in order, and ends the
/// list.
pub fn end_list() -> Vec<&'static str> {
    LISTS.set(false);
    TAKEN.take().into_iter().map(short).collect()
}

/// Returns the names of all locks that any run of this thread has taken.
pub fn names() -> BTreeSet<&'static str> {
    NAMES.with_borrow(|names| names.iter().map(|name| short(name)).collect())
}

/// Returns every pair of a held lock and a lock that was taken under it, by any run of this thread.
pub fn pairs() -> BTreeSet<LockPair> {
    let named = |pair: &LockPair| LockPair {
        first: short(pair.first),
        second: short(pair.second),
        ..*pair
    };
    PAIRS.with_borrow(|pairs| pairs.iter().map(named).collect())
}

/// Returns what the runs of this thread have done against the lists of the crates, which stand from
/// top to bottom.
pub fn violations(crates: &[CrateLocks]) -> Vec<String> {
    let mut found: Vec<String> = (names().into_iter())
        .filter(|name| place(crates, name).is_none())
        .map(|name| format!("{name} is not listed, or twice: give the lock a name and a place"))
        .collect();
    found.extend(pairs().iter().filter_map(|pair| violation(crates, pair)));
    found
}

/// Fails if a schedule of this thread took a lock that is not listed, or took locks in an order
/// that is not documented.
pub fn assert_order(crates: &[CrateLocks]) {
    let wrong = violations(crates);
    assert!(
        wrong.is_empty(),
        "not as in `LOCK_ORDER` of the crates:\n{}",
        wrong.join("\n")
    );
}

/// Returns what is wrong with taking the second lock while the first is held. Locks that are not
/// listed are reported by [`violations`].
pub fn violation(crates: &[CrateLocks], pair: &LockPair) -> Option<String> {
    let (first, second) = (place(crates, pair.first)?, place(crates, pair.second)?);
    let is_wrong = match (first, second) {
        (Place::Leaf, _) => true,
        (Place::Ordered { .. }, Place::Leaf) => false,
        (Place::Ordered { at, is_array }, Place::Ordered { at: behind, .. }) => {
            at > behind || (at == behind && !(is_array && pair.is_ascending))
        }
    };
    is_wrong.then(|| format!("{} is taken while {} is held", pair.second, pair.first))
}

/// The place of a lock in the lists.
#[derive(Clone, Copy)]
enum Place {
    /// The position in the orders of all crates, one behind the other.
    Ordered {
        at: usize,
        is_array: bool,
    },
    Leaf,
}

/// Returns the place of a lock, or `None` unless it is listed once.
fn place(crates: &[CrateLocks], name: &str) -> Option<Place> {
    let order = crates.iter().flat_map(|c| c.order).enumerate();
    let ordered = order.filter_map(|(at, listed)| {
        let array = listed.strip_suffix(ARRAY);
        let is_array = array.is_some();
        (array.unwrap_or(listed) == name).then_some(Place::Ordered { at, is_array })
    });
    let leaves = crates.iter().flat_map(|c| c.leaves);
    let leaves = leaves.filter_map(|leaf| (*leaf == name).then_some(Place::Leaf));
    let mut found = ordered.chain(leaves);
    let first = found.next();
    first.filter(|_| found.next().is_none())
}

/// Returns the last two segments of the first path of this project in the full name of a type, or
/// the whole name if there is no such path.
fn short(name: &'static str) -> &'static str {
    let Some(from) = name.find("basalt_") else {
        return name;
    };
    let path = &name[from..];
    let end = path.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let path = &path[..end.unwrap_or(path.len())];
    let last_two = path.rmatch_indices("::").nth(1);
    last_two.map_or(path, |(at, colons)| &path[at + colons.len()..])
}

/// Notes that the calling thread has taken a lock.
pub(super) fn note_taken(lock: NotedLock, how: Taken) {
    let Some(task) = try_get_current_task() else {
        return;
    };
    if LISTS.get() && how != Taken::Spun {
        TAKEN.with_borrow_mut(|taken| taken.push(lock.name));
    }
    NAMES.with_borrow_mut(|names| names.insert(lock.name));
    HELD.with_borrow_mut(|held| {
        if how != Taken::Tried {
            PAIRS.with_borrow_mut(|pairs| {
                let own = held.iter().filter(|(of, _)| *of == task);
                pairs.extend(own.map(|(_, before)| LockPair {
                    first: before.name,
                    second: lock.name,
                    is_ascending: before.address < lock.address,
                }));
            });
        }
        held.push((task, lock));
    });
}

/// Notes that the calling thread gives back a lock.
pub(super) fn note_released(lock: NotedLock) {
    let Some(task) = try_get_current_task() else {
        return;
    };
    HELD.with_borrow_mut(|held| {
        if let Some(at) = held.iter().rposition(|one| *one == (task, lock)) {
            held.remove(at);
        }
    });
}
