//! Changes of one log's index, as commits and recovery make them.

use crate::index::{EntryPlace, Freed, Inserted, PageContent, PageLocation};
use crate::log_ops::LogOp;
use crate::mapping::{Location, Mapping};
use crate::namespace::{LogInner, LogState};
use basalt_fs::Result;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Reads the entries of a page; `None` if it cannot be read.
pub(crate) type LoadPage<'a> = &'a dyn Fn(PageLocation) -> Option<Mapping>;

/// Adds a record to the index of its log, as commits and recovery do. Returns the records that
/// became garbage: the record itself if the log was deleted or trimmed meanwhile, or the record it
/// replaces. Calls `then` once after the change, under the lock of the log.
pub(crate) fn add_entry(
    log: &LogState,
    seq: u64,
    lsn: u64,
    location: Location,
    load: LoadPage<'_>,
    then: &mut dyn FnMut(&mut LogInner),
) -> Freed {
    let mut freed = Freed::default();
    let mut inner = log.lock();
    if inner.deleted || inner.trimmed.is_some_and(|trimmed| lsn <= trimmed) {
        freed.records.add(location.file, u64::from(location.len));
        inner.applied_seq = inner.applied_seq.max(seq);
        then(&mut inner);
        return freed;
    }
    let is_late = inner.index.last().is_some_and(|last| lsn < last);
    if inner.index.insert(lsn, location) == Inserted::New {
        if is_late {
            log.note_revision();
        }
        inner.applied_seq = inner.applied_seq.max(seq);
        then(&mut inner);
        log.wake(inner);
        return freed;
    }
    drop(inner);
    // The log replaces duplicates, or this is a replay, and the old record is of an append that
    // failed after its write. The old record goes and the new one comes under one lock, so that
    // readers find one of them.
    let mut dropped = false;
    let mut replace = |inner: &mut LogInner| {
        // A trim or a deletion may have come between the two locks.
        dropped = inner.deleted || inner.trimmed.is_some_and(|trimmed| lsn <= trimmed);
        if !dropped {
            let again = inner.index.insert(lsn, location);
            debug_assert_eq!(again, Inserted::New);
        }
        inner.applied_seq = inner.applied_seq.max(seq);
        then(inner);
    };
    freed = remove_range(log, &(lsn..=lsn), &mut |_| (), &mut replace, load);
    if dropped {
        freed.records.add(location.file, u64::from(location.len));
    }
    freed
}

/// Removes the records of a range from a log's index. `first` changes the log before that, and may
/// be called several times. `then` changes it after that, under the same lock. Returns what became
/// garbage.
fn remove_range(
    log: &LogState,
    range: &RangeInclusive<u64>,
    first: &mut dyn FnMut(&mut LogInner),
    then: &mut dyn FnMut(&mut LogInner),
    load: LoadPage<'_>,
) -> Freed {
    let mut loaded: BTreeMap<PageLocation, Option<Mapping>> = BTreeMap::new();
    loop {
        let mut inner = log.lock();
        first(&mut inner);
        let cut = inner.index.pages_cut_by(range);
        if let Some(missing) = cut.iter().find(|page| !loaded.contains_key(page)) {
            // No I/O happens under the lock.
            drop(inner);
            loaded.insert(*missing, load(*missing));
            continue;
        }
        let mut freed = Freed::default();
        let mut take = |page: PageLocation| loaded.remove(&page).flatten();
        inner.index.remove(range, &mut take, &mut freed);
        log.note_revision();
        then(&mut inner);
        return freed;
    }
}

/// An operation of the metalog, with its place in the history.
pub(crate) struct PlacedOp<'a> {
    pub op: &'a LogOp,
    pub seq: u64,
    /// The place of the operation's record, for a page.
    pub at: PageLocation,
}

/// Changes a log as an operation of the metalog says, as commits and recovery do. Returns what
/// became garbage.
pub(crate) fn apply_to_log(log: &LogState, placed: &PlacedOp<'_>, load: LoadPage<'_>) -> Freed {
    let seq = placed.seq;
    match placed.op {
        LogOp::Create { .. } | LogOp::Rename { .. } => Freed::default(),
        LogOp::Delete { .. } => {
            let mut mark = |inner: &mut LogInner| inner.deleted = true;
            let freed = remove_range(log, &(0..=u64::MAX), &mut mark, &mut |_| (), load);
            log.wake_all();
            freed
        }
        LogOp::Trim { up_to, .. } => {
            let mut mark = |inner: &mut LogInner| inner.trimmed = inner.trimmed.max(Some(*up_to));
            remove_range(log, &(0..=*up_to), &mut mark, &mut |_| (), load)
        }
        LogOp::Remove { range, .. } => {
            let mut mark = |inner: &mut LogInner| inner.applied_seq = inner.applied_seq.max(seq);
            remove_range(log, range, &mut |_| (), &mut mark, load)
        }
        LogOp::Page { mapping, .. } => {
            let mut freed = Freed::default();
            // Appends compete for the log's lock, so the set of LSNs and the bytes by file are made
            // before. `install_page` decodes the entries once more to compare them.
            let page = PageContent::of(mapping);
            let mut inner = log.lock();
            if !inner.index.has_page(mapping, placed.at) {
                inner.index.install_page(page, placed.at, &mut freed);
            }
            freed
        }
    }
}

/// Returns where the record of an LSN is.
pub(crate) fn place_of(log: &LogState, lsn: u64) -> Result<Option<EntryPlace>> {
    let inner = log.lock();
    match inner.deleted {
        true => Err(log.deleted()),
        false => Ok(inner.index.find(lsn)),
    }
}
