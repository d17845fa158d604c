//! [`Iter`]: the cursor that users hold. It shows the entries of a [`ValuePrefetch`], and makes a
//! new one for a refresh, or to follow the store if the cursor is tailing.

use super::engine::Engine;
use super::view::View;
use crate::iter::ValuePrefetch;
use crate::options::ReadOptions;
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::family::Family;
use basalt_kv::key::SeqNo;
use basalt_kv::snapshot::Snapshot;
use std::sync::{Arc, Weak};

/// A cursor over a family's live keys, forward and backward, as of one sequence number. That is the
/// number of its snapshot, or of its creation or last refresh. The cursor keeps the tables and
/// memtables of that view.
///
/// With [`ReadOptions::tailing`] the cursor follows the store instead: each seek and each step
/// first moves to the newest view. So `next` goes to the first key after the current one that is
/// there *now*. At the end the cursor is not valid, but `next` may be called again; it then
/// searches for keys after the last one shown. Keys written before the current key are not shown.
///
/// A tailing cursor only moves up. A movement down fails with `InvalidArgument`, and leaves the
/// cursor where it is. A step costs a seek if the store was written since the step before, and
/// otherwise as much as a step of any cursor. Tables and memtables that were replaced are released
/// by the next movement.
///
/// `Iter` is a Rust [`Iterator`] as well, over keys and values. It begins with the entry that the
/// cursor is positioned on, or with the first one if the cursor was never positioned, and goes up:
/// `for entry in db.iter(&family, &options)?`. The methods of the cursor have precedence:
/// `iter.next()` moves the cursor, and adapters such as `iter.by_ref().take(10)` take entries.
pub struct Iter {
    shown: ValuePrefetch,
    /// View that `shown` reads, and its sequence number in `seq`.
    view: Arc<View>,
    seq: SeqNo,
    engine: Weak<Engine>,
    family: Family,
    options: ReadOptions,
    tail: Option<TailPosition>,
    state: IteratorState,
}

/// State of an [`Iter`] as a Rust iterator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IteratorState {
    /// Not positioned since it was made or refreshed: the first entry is next.
    Fresh,
    /// A movement of the cursor ended here: the entry here is next.
    Here,
    /// The entry here was returned: the one behind it is next.
    Returned,
    /// An error was returned: nothing follows until the cursor is moved.
    Failed,
}

/// Position where a tailing cursor continues.
enum TailPosition {
    /// The cursor was not sought yet.
    Nowhere,
    /// The cursor continues at the first key.
    First,
    /// The cursor continues at this key, or at the first key after it.
    At(Vec<u8>),
    /// The cursor continues at the first key after this one.
    Behind(Vec<u8>),
}

impl Iter {
    pub(super) fn new(
        engine: &Arc<Engine>,
        family: &Family,
        options: &ReadOptions,
    ) -> Result<Iter> {
        options.validate()?;
        if options.tailing && options.snapshot.is_some() {
            return Err(Error::invalid(
                "a tailing iterator reads the newest entries: it cannot have a snapshot",
            ));
        }
        let (view, seq) = engine.read_view(options)?;
        Ok(Iter {
            shown: engine.cursor(&view, seq, family, options)?,
            view,
            seq,
            engine: Arc::downgrade(engine),
            family: family.clone(),
            options: options.clone(),
            tail: options.tailing.then_some(TailPosition::Nowhere),
            state: IteratorState::Fresh,
        })
    }

    /// Moves to the newest sequence number, or to a snapshot, as if the iterator were made again
    /// with its other options. If the store's tables and memtables are the same, this is cheaper
    /// than a new iterator. Afterwards the iterator is not positioned.
    ///
    /// Errors: `Closed` if the store was closed, `NotFound` if the family was dropped,
    /// `InvalidArgument` for a snapshot of a tailing iterator. After an error the iterator is
    /// unchanged. A tailing iterator needs no refresh.
    pub fn refresh(&mut self, snapshot: Option<&Snapshot>) -> Result<()> {
        if self.tail.is_some() && snapshot.is_some() {
            return Err(Error::invalid(
                "a tailing iterator reads the newest entries: it cannot move to a snapshot",
            ));
        }
        let before = std::mem::replace(&mut self.options.snapshot, snapshot.cloned());
        if let Err(e) = self.move_on() {
            self.options.snapshot = before;
            return Err(e);
        }
        if let Some(tail) = &mut self.tail {
            *tail = TailPosition::Nowhere;
        }
        self.state = IteratorState::Fresh;
        Ok(())
    }

    /// Moves to the snapshot of the options, or to the newest sequence number. The cursor is then
    /// not positioned.
    fn move_on(&mut self) -> Result<()> {
        let engine = self.engine.upgrade().ok_or_else(closed)?;
        let (view, seq) = engine.read_view(&self.options)?;
        let active = view.active.mems.get(&self.family.id());
        // The cursor's range tombstones are those of its view. Since then only the newest memtable
        // may have gained others.
        let deleted =
            self.shown.has_range_tombstones() || active.is_some_and(|m| m.range_deletes() > 0);
        if Arc::ptr_eq(&view, &self.view) && !deleted {
            // The tables are the same. The cursors over memtables see the entries that were added
            // since.
            (self.shown).refresh(
                seq,
                engine.ctx.env.clock().wall_ms(),
                self.options.max_skippable_entries,
            );
        } else {
            let mut shown = engine.cursor(&view, seq, &self.family, &self.options)?;
            shown.take_prefix_of(&mut self.shown);
            self.shown = shown;
            self.view = view;
        }
        self.seq = seq;
        Ok(())
    }

    /// Takes one step of a tailing cursor that was sought before, as of now.
    fn step(&mut self) -> Result<()> {
        if self.shown.valid() {
            let engine = self.engine.upgrade().ok_or_else(closed)?;
            let (view, seq) = engine.read_view(&self.options)?;
            if Arc::ptr_eq(&view, &self.view) && seq == self.seq {
                // The store was not written, but values may have expired.
                (self.shown).set_limits(
                    engine.ctx.env.clock().wall_ms(),
                    self.options.max_skippable_entries,
                );
                return self.shown.next();
            }
        }
        self.move_on()?;
        match self.tail.as_ref().expect("the cursor is tailing") {
            TailPosition::Nowhere => unreachable!("the caller has checked the place"),
            TailPosition::First => self.shown.seek_to_first(),
            TailPosition::At(key) => self.shown.continue_from(key, true),
            TailPosition::Behind(key) => self.shown.continue_from(key, false),
        }
    }

    /// Ends a movement of a tailing cursor: keeps its place, and shows no entry after an error.
    fn moved(&mut self, result: Result<()>) -> Result<()> {
        match &result {
            Ok(()) => self.note_place(),
            Err(_) => self.shown.invalidate(),
        }
        result
    }

    /// Keeps the place that a tailing cursor has reached.
    fn note_place(&mut self) {
        let (place, found) = match self.shown.resume_key() {
            Some(key) => (TailPosition::At as fn(Vec<u8>) -> TailPosition, key),
            None if self.shown.valid() => (
                TailPosition::Behind as fn(Vec<u8>) -> TailPosition,
                self.shown.key(),
            ),
            // At the end, later keys are searched from the same place.
            None => return,
        };
        let mut kept = match self.tail.take() {
            Some(TailPosition::At(kept) | TailPosition::Behind(kept)) => kept,
            _ => Vec::new(),
        };
        kept.clear();
        kept.extend_from_slice(found);
        self.tail = Some(place(kept));
    }

    /// Returns `InvalidArgument` if the cursor is tailing, because it only moves up.
    fn only_up(&self, what: &str) -> Result<()> {
        match &self.tail {
            None => Ok(()),
            Some(_) => Err(Error::invalid(format!(
                "{what} on a tailing iterator, which walks up only: use one without ReadOptions::tailing"
            ))),
        }
    }

    /// Returns `true` if the cursor is positioned on a key.
    #[inline]
    pub fn valid(&self) -> bool {
        self.shown.valid()
    }

    /// Returns the key at which the iterator paused because it skipped `max_skippable_entries`
    /// entries; the iterator is then not `valid`. No live key lies between the start of the
    /// movement and this key, which was not read. Another iterator continues with a seek to it. For
    /// a tailing iterator, the limit applies to each movement, and its `next` continues from here.
    pub fn resume_key(&self) -> Option<&[u8]> {
        self.shown.resume_key()
    }

    /// Moves to the first key inside the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.state = IteratorState::Here;
        if self.tail.is_none() {
            return self.shown.seek_to_first();
        }
        self.tail = Some(TailPosition::First);
        let sought = self.move_on().and_then(|()| self.shown.seek_to_first());
        self.moved(sought)
    }

    /// Moves to the last key inside the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.only_up("seek_to_last")?;
        self.state = IteratorState::Here;
        self.shown.seek_to_last()
    }

    /// Moves to the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.state = IteratorState::Here;
        if self.tail.is_none() {
            return self.shown.seek(key);
        }
        self.tail = Some(TailPosition::At(key.to_vec()));
        let sought = self.move_on().and_then(|()| self.shown.seek(key));
        self.moved(sought)
    }

    /// Moves to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.only_up("seek_for_prev")?;
        self.state = IteratorState::Here;
        self.shown.seek_for_prev(key)
    }

    /// Moves to the next key. Requires `valid`, or a tailing iterator that was sought before.
    ///
    /// Errors: `InvalidArgument` for a tailing iterator that was not sought since it was made or
    /// refreshed; it stays as it is.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor in the field's words; it lends keys, which Iterator cannot"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<()> {
        match self.tail {
            None => {
                self.state = IteratorState::Here;
                self.shown.next()
            }
            Some(TailPosition::Nowhere) => Err(Error::invalid(
                "next on a tailing iterator that is not positioned: call seek or seek_to_first first",
            )),
            Some(_) => {
                self.state = IteratorState::Here;
                let stepped = self.step();
                self.moved(stepped)
            }
        }
    }

    /// Moves to the previous key. Requires `valid`.
    pub fn prev(&mut self) -> Result<()> {
        self.only_up("prev")?;
        self.state = IteratorState::Here;
        self.shown.prev()
    }

    /// Returns the current user key. Requires `valid`.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.shown.key()
    }

    /// Returns the current value, without its expiry; empty with [`ReadOptions::keys_only`].
    /// Requires `valid`. The value is not copied: it lies in the block or memtable that holds it.
    #[inline]
    pub fn value(&self) -> &[u8] {
        self.shown.value()
    }

    /// Returns the current value, without its expiry, if no further read is needed. Returns `None`
    /// for a value in a blob file or made of operands, and sometimes when the iterator moves down.
    /// The call is for iterators over keys ([`ReadOptions::keys_only`]) whose caller can use short
    /// values. Requires `valid`.
    pub fn value_at_hand(&self) -> Option<&[u8]> {
        self.shown.value_at_hand()
    }

    /// Returns the current value, pinned: it outlives the iterator, and is not copied. The value is
    /// empty with [`ReadOptions::keys_only`]. Requires `valid`.
    ///
    /// A value keeps the block in memory that has it. In a long scan of a family in pages, it
    /// keeps its whole page, which the memory ledger does not count.
    pub fn pinned_value(&self) -> Bytes {
        self.shown.pinned_value()
    }

    /// Returns the expiry of the current value in ms since 1970, if it has one. Requires `valid`.
    pub fn expire_at_ms(&self) -> Option<u64> {
        self.shown.expire_at_ms()
    }
}

/// Entries from the cursor's position up: the key, copied, and the value, pinned.
///
/// Without values ([`ReadOptions::keys_only`]) each value is empty. After an error the iterator
/// returns `None` until the cursor is sought or refreshed. If
/// [`ReadOptions::max_skippable_entries`] is used up, the iterator pauses with the error `Busy`,
/// and [`Iter::resume_key`] is the key where to go on. A tailing iterator that has returned `None`
/// at the end returns later entries when it is asked again.
impl Iterator for Iter {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Result<(Bytes, Bytes)>> {
        let at_end = !self.valid() && self.resume_key().is_none();
        let moved = match self.state {
            IteratorState::Failed => return None,
            IteratorState::Fresh => self.seek_to_first(),
            IteratorState::Here if !at_end => Ok(()),
            IteratorState::Here if self.tail.is_none() => return None,
            IteratorState::Here | IteratorState::Returned => Iter::next(self),
        };
        let entry = moved.and_then(|()| self.entry_here());
        self.state = match &entry {
            Ok(Some(_)) => IteratorState::Returned,
            Ok(None) => IteratorState::Here,
            Err(_) => IteratorState::Failed,
        };
        entry.transpose()
    }
}

impl Iter {
    /// Returns the entry that the cursor is positioned on, or `None` at the end.
    fn entry_here(&self) -> Result<Option<(Bytes, Bytes)>> {
        if let Some(key) = self.resume_key() {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the iterator passed over max_skippable_entries ({}) entries and paused before key {:?}: seek another one to it",
                    self.options.max_skippable_entries,
                    String::from_utf8_lossy(key)
                ),
            ));
        }
        if !self.valid() {
            return Ok(None);
        }
        let key = Bytes::copy_from_slice(self.key());
        Ok(Some((key, self.pinned_value())))
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store is closed")
}
