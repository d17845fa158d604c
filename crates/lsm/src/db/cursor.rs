//! [`Iter`]: the cursor that users hold. It shows what a [`ValuePrefetch`] shows, and knows how to make another one: to be refreshed, and to
//! follow the store when it is tailing.

use super::engine::Engine;
use super::view::View;
use crate::iter::ValuePrefetch;
use crate::options::ReadOptions;
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::family::Family;
use basalt_kv::key::SeqNo;
use basalt_kv::snapshot::Snapshot;
use std::sync::{Arc, Weak};

/// A cursor over a family's live keys, forward and backward, as of one moment: that of its snapshot, or when it was made or last refreshed.
/// It keeps the tables and memtables of that moment.
///
/// With [`ReadOptions::tailing`] it follows the store instead: each seek, and each step, first moves on to the present. So `next` goes to
/// the first key behind the one shown that is there *now*. At the end it is not valid, and `next` may be called again: it then looks for
/// keys behind the last one shown. What is written behind its back it does not show. It walks up only; whatever walks down is refused
/// with `InvalidArgument`, and leaves it where it is. A step costs a seek when something was written since the step before it, and is
/// otherwise that of any cursor. Tables and memtables that are replaced meanwhile are let go of when it is next moved.
///
/// `Iter` is a Rust [`Iterator`] as well, over keys and values. It begins with the entry that the
/// cursor is positioned on, or with the first one if the cursor was never positioned, and goes up:
/// `for entry in db.iter(&family, &options)?`. The methods of the cursor have precedence:
/// `iter.next()` moves the cursor, and adapters such as `iter.by_ref().take(10)` take entries.
pub struct Iter {
    shown: ValuePrefetch,
    /// What `shown` reads, and as of when.
    view: Arc<View>,
    seq: SeqNo,
    engine: Weak<Engine>,
    family: Family,
    options: ReadOptions,
    tail: Option<Tail>,
    walk: Walk,
}

/// Where [`Iter`] is as a Rust iterator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// Not positioned since it was made or refreshed: the first entry is next.
    Fresh,
    /// A movement of the cursor ended here: the entry here is next.
    Here,
    /// The entry here was returned: the one behind it is next.
    Returned,
    /// An error was returned: nothing follows until the cursor is moved.
    Failed,
}

/// Where a tailing cursor goes on.
enum Tail {
    /// Not sought yet.
    Nowhere,
    /// At the first key.
    First,
    /// At this key, or behind it.
    At(Vec<u8>),
    /// At the first key behind this one.
    Behind(Vec<u8>),
}

impl Iter {
    pub(super) fn new(
        engine: &Arc<Engine>,
        family: &Family,
        options: &ReadOptions,
    ) -> Result<Iter> {
        if options.tailing && options.snapshot.is_some() {
            return Err(Error::invalid(
                "a tailing iterator shows what is newest: it cannot have a snapshot as well",
            ));
        }
        let (view, seq) = engine.moment(options)?;
        Ok(Iter {
            shown: engine.cursor(&view, seq, family, options)?,
            view,
            seq,
            engine: Arc::downgrade(engine),
            family: family.clone(),
            options: options.clone(),
            tail: options.tailing.then_some(Tail::Nowhere),
            walk: Walk::Fresh,
        })
    }

    /// Moves on to what is newest, or to a snapshot, as if the iterator were made anew with the rest of its options, but without the
    /// cost of it where the store's tables and memtables are the same. It is not positioned then. `Closed` when the store was closed, and
    /// `NotFound` when the family was dropped; after an error the iterator is as it was.
    ///
    /// A tailing iterator has no use for it, and refuses a snapshot with `InvalidArgument`.
    pub fn refresh(&mut self, snapshot: Option<&Snapshot>) -> Result<()> {
        if self.tail.is_some() && snapshot.is_some() {
            return Err(Error::invalid(
                "a tailing iterator shows what is newest: it cannot go to a snapshot",
            ));
        }
        let before = std::mem::replace(&mut self.options.snapshot, snapshot.cloned());
        if let Err(e) = self.move_on() {
            self.options.snapshot = before;
            return Err(e);
        }
        if let Some(tail) = &mut self.tail {
            *tail = Tail::Nowhere;
        }
        self.walk = Walk::Fresh;
        Ok(())
    }

    /// Goes to the moment of the options. The cursor is not positioned then.
    fn move_on(&mut self) -> Result<()> {
        let engine = self.engine.upgrade().ok_or_else(closed)?;
        let (view, seq) = engine.moment(&self.options)?;
        let active = view.active.mems.get(&self.family.id());
        // A cursor's range tombstones are those of its moment, and only the newest memtable may have others since.
        let deleted =
            self.shown.has_range_tombstones() || active.is_some_and(|m| m.range_deletes() > 0);
        if Arc::ptr_eq(&view, &self.view) && !deleted {
            // The same tables, and memtables that have grown since: the cursors over them see what was added.
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

    /// One step of a tailing cursor, as of now.
    fn step(&mut self) -> Result<()> {
        if self.shown.valid() {
            let engine = self.engine.upgrade().ok_or_else(closed)?;
            let (view, seq) = engine.moment(&self.options)?;
            if Arc::ptr_eq(&view, &self.view) && seq == self.seq {
                // Nothing was written, but values may have come to their end.
                (self.shown).set_limits(
                    engine.ctx.env.clock().wall_ms(),
                    self.options.max_skippable_entries,
                );
                return self.shown.next();
            }
        }
        self.move_on()?;
        match self.tail.as_ref().expect("the cursor is tailing") {
            Tail::Nowhere => panic!("next on an iterator that is not positioned"),
            Tail::First => self.shown.seek_to_first(),
            Tail::At(key) => self.shown.continue_from(key, true),
            Tail::Behind(key) => self.shown.continue_from(key, false),
        }
    }

    /// Ends a movement of a tailing cursor: keeps where it has come to, and shows nothing after an error.
    fn moved(&mut self, result: Result<()>) -> Result<()> {
        match &result {
            Ok(()) => self.note_place(),
            Err(_) => self.shown.invalidate(),
        }
        result
    }

    /// Keeps where a tailing cursor has come to.
    fn note_place(&mut self) {
        let (place, found) = match self.shown.resume_key() {
            Some(key) => (Tail::At as fn(Vec<u8>) -> Tail, key),
            None if self.shown.valid() => (Tail::Behind as fn(Vec<u8>) -> Tail, self.shown.key()),
            // The end: what comes later is looked for from the same place.
            None => return,
        };
        let mut kept = match self.tail.take() {
            Some(Tail::At(kept) | Tail::Behind(kept)) => kept,
            _ => Vec::new(),
        };
        kept.clear();
        kept.extend_from_slice(found);
        self.tail = Some(place(kept));
    }

    /// Refuses to walk down.
    fn only_up(&self, what: &str) -> Result<()> {
        match &self.tail {
            None => Ok(()),
            Some(_) => Err(Error::invalid(format!(
                "{what} on a tailing iterator, which walks up only: use one without ReadOptions::tailing"
            ))),
        }
    }

    /// True when positioned on a key.
    #[inline]
    pub fn valid(&self) -> bool {
        self.shown.valid()
    }

    /// Where it stopped because the skip budget is used up; it is not `valid` then. No live key lies between the one it was moved
    /// from and this one, which was not looked at: another iterator goes on with a seek to it. The budget of a tailing iterator is for each
    /// movement, and its `next` goes on from here.
    pub fn resume_key(&self) -> Option<&[u8]> {
        self.shown.resume_key()
    }

    /// To the first key inside the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.walk = Walk::Here;
        if self.tail.is_none() {
            return self.shown.seek_to_first();
        }
        self.tail = Some(Tail::First);
        let sought = self.move_on().and_then(|()| self.shown.seek_to_first());
        self.moved(sought)
    }

    /// To the last key inside the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.only_up("seek_to_last")?;
        self.walk = Walk::Here;
        self.shown.seek_to_last()
    }

    /// To the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.walk = Walk::Here;
        if self.tail.is_none() {
            return self.shown.seek(key);
        }
        self.tail = Some(Tail::At(key.to_vec()));
        let sought = self.move_on().and_then(|()| self.shown.seek(key));
        self.moved(sought)
    }

    /// To the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.only_up("seek_for_prev")?;
        self.walk = Walk::Here;
        self.shown.seek_for_prev(key)
    }

    /// To the next key. Requires `valid`, or that the iterator is tailing and was sought before.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor in the field's words; it lends keys, which Iterator cannot"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<()> {
        self.walk = Walk::Here;
        if self.tail.is_none() {
            return self.shown.next();
        }
        let stepped = self.step();
        self.moved(stepped)
    }

    /// To the previous key. Requires `valid`.
    pub fn prev(&mut self) -> Result<()> {
        self.only_up("prev")?;
        self.walk = Walk::Here;
        self.shown.prev()
    }

    /// The user key here. Requires `valid`.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.shown.key()
    }

    /// The value here (expiry stripped). Requires `valid`. Not copied: it lies in the block or memtable that holds it.
    #[inline]
    pub fn value(&self) -> &[u8] {
        self.shown.value()
    }

    /// The value here (expiry stripped), if it was at hand without another read: not when it is in a blob file or made of operands, nor
    /// always on the way down. For iterators over keys ([`ReadOptions::keys_only`]) whose caller can use short values. Requires `valid`.
    pub fn value_at_hand(&self) -> Option<&[u8]> {
        self.shown.value_at_hand()
    }

    /// The value here, pinned: it outlives the iterator, and is not copied. Requires `valid`.
    pub fn pinned_value(&self) -> Bytes {
        self.shown.pinned_value()
    }

    /// The expiry of the value here, ms since 1970. Requires `valid`.
    pub fn expire_at_ms(&self) -> Option<u64> {
        self.shown.expire_at_ms()
    }
}

/// Entries from the cursor's position up: the key, copied, and the value, pinned.
///
/// Without values ([`ReadOptions::keys_only`]) each value is empty. After an error the iterator
/// returns `None` until the cursor is sought or refreshed. It is an error, `Busy`, to pause because
/// [`ReadOptions::max_skippable_entries`] is used up: [`Iter::resume_key`] says where to go on. A
/// tailing iterator that has returned `None` at the end returns later entries when it is asked
/// again.
impl Iterator for Iter {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Result<(Bytes, Bytes)>> {
        let at_end = !self.valid() && self.resume_key().is_none();
        let moved = match self.walk {
            Walk::Failed => return None,
            Walk::Fresh => self.seek_to_first(),
            Walk::Here if !at_end => Ok(()),
            Walk::Here if self.tail.is_none() => return None,
            Walk::Here | Walk::Returned => Iter::next(self),
        };
        let entry = moved.and_then(|()| self.entry_here());
        self.walk = match &entry {
            Ok(Some(_)) => Walk::Returned,
            Ok(None) => Walk::Here,
            Err(_) => Walk::Failed,
        };
        entry.transpose()
    }
}

impl Iter {
    /// The entry that the cursor is positioned on, `None` at the end.
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
        let value = match self.options.keys_only {
            true => Bytes::new(),
            false => self.pinned_value(),
        };
        Ok(Some((Bytes::copy_from_slice(self.key()), value)))
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store is closed")
}
