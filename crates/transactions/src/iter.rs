//! [`TransactionIter`]: the keys of a family as a transaction sees them.

use crate::family_key::{FamilyKey, FamilyKeyRef, KeyParts};
use crate::own_writes::{Base, KeyStates, OwnWrite, first_write, last_write};
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::family::Family;
use basalt_lsm::{Db, Iter, ReadOptions};
use std::cmp::Ordering;
use std::ops::Bound;

/// A cursor over the live keys of a family, forward and backward: those of the store, and over them
/// the writes of the transaction. A transaction without a snapshot sees the store as of the moment
/// at which the cursor was made.
///
/// `TransactionIter` is a Rust [`Iterator`] as well, over keys and values, in the way of
/// [`basalt_lsm::Iter`]: it begins with the entry that the cursor is positioned on, or with the
/// first one, and goes up.
pub struct TransactionIter<'t> {
    stored: Iter,
    family: Family,
    own: Option<&'t KeyStates>,
    own_at: Option<(&'t FamilyKey, &'t OwnWrite)>,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    keys_only: bool,
    now_ms: u64,
    direction: Direction,
    current: Current,
    /// The value of an own write at the current key, and its expiry.
    own_value: Option<(Bytes, Option<u64>)>,
    rust: RustState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// Which of the two cursors have the current key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Current {
    Nothing,
    Stored,
    Own,
    Both,
}

/// State of the cursor as a Rust iterator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RustState {
    /// Not positioned yet: the first entry is next.
    Fresh,
    /// A movement of the cursor ended here: the entry here is next.
    Here,
    /// The entry here was returned: the one behind it is next.
    Returned,
    /// An error was returned: nothing follows until the cursor is moved.
    Failed,
}

impl<'t> TransactionIter<'t> {
    pub(crate) fn new(
        db: &Db,
        family: &Family,
        options: ReadOptions,
        own: Option<&'t KeyStates>,
        now_ms: u64,
    ) -> Result<TransactionIter<'t>> {
        for (is_set, what) in [
            (options.tailing, "tailing"),
            (options.prefix_same_as_start, "prefix_same_as_start"),
            (
                options.max_skippable_entries != u64::MAX,
                "max_skippable_entries",
            ),
        ] {
            if is_set {
                return Err(Error::unsupported(format!(
                    "an iterator of a transaction does not have ReadOptions::{what}: leave it unset, bounds limit a scan"
                )));
            }
        }
        Ok(TransactionIter {
            stored: db.iter(family, &options)?,
            family: family.clone(),
            own,
            own_at: None,
            lower: options.lower_bound,
            upper: options.upper_bound,
            keys_only: options.keys_only,
            now_ms,
            direction: Direction::Up,
            current: Current::Nothing,
            own_value: None,
            rust: RustState::Fresh,
        })
    }

    /// Returns `true` if the cursor is positioned on a key.
    pub fn valid(&self) -> bool {
        self.current != Current::Nothing
    }

    /// Returns the current key. Requires `valid`.
    pub fn key(&self) -> &[u8] {
        match (self.current, self.own_at) {
            (Current::Own | Current::Both, Some((key, _))) => key.user_key(),
            _ => self.stored.key(),
        }
    }

    /// Returns the current value, without its expiry; empty with [`ReadOptions::keys_only`].
    /// Requires `valid`.
    pub fn value(&self) -> &[u8] {
        match (self.current, &self.own_value) {
            (Current::Own | Current::Both, Some((value, _))) => value,
            (Current::Own | Current::Both, None) => &[],
            _ => self.stored.value(),
        }
    }

    /// Returns the current value, pinned: it outlives the cursor, and is not copied. Requires
    /// `valid`.
    pub fn pinned_value(&self) -> Bytes {
        match (self.current, &self.own_value) {
            (Current::Own | Current::Both, Some((value, _))) => value.clone(),
            (Current::Own | Current::Both, None) => Bytes::new(),
            _ => self.stored.pinned_value(),
        }
    }

    /// Returns the expiry of the current value in ms since 1970, if it has one. Requires `valid`.
    /// With [`ReadOptions::keys_only`], an own operand over a stored value has none.
    pub fn expire_at_ms(&self) -> Option<u64> {
        match (self.current, &self.own_value) {
            (Current::Own | Current::Both, own) => own.as_ref().and_then(|(_, at)| *at),
            _ => self.stored.expire_at_ms(),
        }
    }

    /// Moves to the first key inside the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.moving(Direction::Up);
        self.stored.seek_to_first()?;
        self.own_at = self.own_from(None);
        self.find()
    }

    /// Moves to the last key inside the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.moving(Direction::Down);
        self.stored.seek_to_last()?;
        self.own_at = self.own_up_to(None);
        self.find()
    }

    /// Moves to the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.moving(Direction::Up);
        self.stored.seek(key)?;
        self.own_at = self.own_from(Some(Bound::Included(key)));
        self.find()
    }

    /// Moves to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.moving(Direction::Down);
        self.stored.seek_for_prev(key)?;
        self.own_at = self.own_up_to(Some(Bound::Included(key)));
        self.find()
    }

    /// Moves to the next key. Errors: `InvalidArgument` if the cursor is not `valid`; those of a
    /// read.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor in the field's words; it lends keys, which Iterator cannot"
    )]
    pub fn next(&mut self) -> Result<()> {
        self.step(Direction::Up)
    }

    /// Moves to the previous key. Errors: `InvalidArgument` if the cursor is not `valid`; those of
    /// a read.
    pub fn prev(&mut self) -> Result<()> {
        self.step(Direction::Down)
    }

    /// Begins a movement. If it fails, the cursor is not valid.
    fn moving(&mut self, direction: Direction) {
        self.direction = direction;
        self.current = Current::Nothing;
        self.own_value = None;
        self.rust = RustState::Here;
    }

    fn step(&mut self, direction: Direction) -> Result<()> {
        if !self.valid() {
            return Err(Error::invalid(
                "a step of an iterator that is not positioned on a key: call a seek first",
            ));
        }
        let before = self.current;
        if direction != self.direction {
            // The cursor that has not the current key is on the other side of it.
            let key = self.key().to_vec();
            self.moving(direction);
            match direction {
                Direction::Up => self.stored.seek(&key)?,
                Direction::Down => self.stored.seek_for_prev(&key)?,
            }
            if self.stored.valid() && self.is_same_key(self.stored.key(), &key) {
                self.step_stored()?;
            }
            self.own_at = self.own_beyond(&key);
            return self.find();
        }
        self.moving(direction);
        if before != Current::Own {
            self.step_stored()?;
        }
        if before != Current::Stored {
            self.step_own();
        }
        self.find()
    }

    fn is_same_key(&self, a: &[u8], b: &[u8]) -> bool {
        self.family.cmp().user(a, b).is_eq()
    }

    fn step_stored(&mut self) -> Result<()> {
        match self.direction {
            Direction::Up => self.stored.next(),
            Direction::Down => self.stored.prev(),
        }
    }

    fn step_own(&mut self) {
        if let Some((key, _)) = self.own_at {
            self.own_at = self.own_beyond(key.user_key());
        }
    }

    /// Returns the own write next to a key, in the direction of the movement.
    fn own_beyond(&self, key: &[u8]) -> Option<(&'t FamilyKey, &'t OwnWrite)> {
        match self.direction {
            Direction::Up => self.own_from(Some(Bound::Excluded(key))),
            Direction::Down => self.own_up_to(Some(Bound::Excluded(key))),
        }
    }

    /// Returns the first own write inside the bounds, from a bound on.
    fn own_from(&self, from: Option<Bound<&[u8]>>) -> Option<(&'t FamilyKey, &'t OwnWrite)> {
        let lower = self.lower.as_deref().map(Bound::Included);
        let upper = self.upper.as_deref().map(Bound::Excluded);
        let is_before_lower = |from: &Bound<&[u8]>| match (from, &self.lower) {
            (Bound::Included(key) | Bound::Excluded(key), Some(lower)) => {
                self.family.cmp().user(key, lower).is_lt()
            }
            _ => false,
        };
        let from = from.filter(|from| !is_before_lower(from)).or(lower);
        self.own_between(from, upper, first_write)
    }

    /// Returns the last own write inside the bounds, up to a bound.
    fn own_up_to(&self, to: Option<Bound<&[u8]>>) -> Option<(&'t FamilyKey, &'t OwnWrite)> {
        let lower = self.lower.as_deref().map(Bound::Included);
        let upper = self.upper.as_deref().map(Bound::Excluded);
        let is_beyond_upper = |to: &Bound<&[u8]>| match (to, &self.upper) {
            (Bound::Included(key) | Bound::Excluded(key), Some(upper)) => {
                self.family.cmp().user(key, upper).is_ge()
            }
            _ => false,
        };
        let to = to.filter(|to| !is_beyond_upper(to)).or(upper);
        self.own_between(lower, to, last_write)
    }

    fn own_between(
        &self,
        from: Option<Bound<&[u8]>>,
        to: Option<Bound<&[u8]>>,
        find: OwnSearch<'t>,
    ) -> Option<(&'t FamilyKey, &'t OwnWrite)> {
        let keys = self.own?;
        if let (Some(from), Some(to)) = (from, to)
            && is_empty_range(&self.family, from, to)
        {
            return None;
        }
        let from = from.map(|bound| bound.map(|key| FamilyKeyRef::new(&self.family, key)));
        let to = to.map(|bound| bound.map(|key| FamilyKeyRef::new(&self.family, key)));
        let from = from.as_ref().map_or(Bound::Unbounded, as_parts);
        let to = to.as_ref().map_or(Bound::Unbounded, as_parts);
        find(keys, from, to)
    }

    /// Finds the current key: the nearer one of both cursors that is live.
    fn find(&mut self) -> Result<()> {
        loop {
            let current = match (self.stored.valid(), self.own_at) {
                (false, None) => Current::Nothing,
                (true, None) => Current::Stored,
                (false, Some(_)) => Current::Own,
                (true, Some((key, _))) => {
                    let order = self.family.cmp().user(self.stored.key(), key.user_key());
                    match (order, self.direction) {
                        (Ordering::Equal, _) => Current::Both,
                        (Ordering::Less, Direction::Up) => Current::Stored,
                        (Ordering::Greater, Direction::Down) => Current::Stored,
                        _ => Current::Own,
                    }
                }
            };
            let write = match (current, self.own_at) {
                (Current::Own | Current::Both, Some((_, write))) => write,
                _ => {
                    self.current = current;
                    return Ok(());
                }
            };
            if let Some(value) = self.value_of(write, current)? {
                self.own_value = Some(value);
                self.current = current;
                return Ok(());
            }
            if current == Current::Both {
                self.step_stored()?;
            }
            self.step_own();
        }
    }

    /// Returns the value of an own write, and its expiry. `None` if the key is not live.
    fn value_of(&self, write: &OwnWrite, current: Current) -> Result<Option<(Bytes, Option<u64>)>> {
        let (key, _) = self.own_at.expect("the write is there");
        if self.keys_only && !write.operands.is_empty() {
            return Ok(Some((Bytes::new(), None)));
        }
        let existing = || {
            let stored = (current == Current::Both)
                .then(|| (self.stored.pinned_value(), self.stored.expire_at_ms()));
            Ok(stored)
        };
        let value = write.value(&self.family, key.user_key(), self.now_ms, existing)?;
        let is_empty = self.keys_only && write.base != Base::Store;
        Ok(value.map(|(value, at)| (if is_empty { Bytes::new() } else { value }, at)))
    }
}

/// A search in the keys of a family between two bounds.
type OwnSearch<'t> = fn(
    &'t KeyStates,
    Bound<&dyn KeyParts>,
    Bound<&dyn KeyParts>,
) -> Option<(&'t FamilyKey, &'t OwnWrite)>;

fn as_parts<'a>(bound: &'a Bound<FamilyKeyRef<'_>>) -> Bound<&'a dyn KeyParts> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Returns true if no key is between two bounds. A map refuses such a range.
fn is_empty_range(family: &Family, from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(from), Bound::Included(to)) => family.cmp().user(from, to).is_gt(),
        (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Included(to) | Bound::Excluded(to),
        ) => family.cmp().user(from, to).is_ge(),
    }
}

/// Entries from the cursor's position up: the key, copied, and the value, pinned. After an error
/// the iterator returns `None` until the cursor is moved by a seek.
impl Iterator for TransactionIter<'_> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Result<(Bytes, Bytes)>> {
        let moved = match self.rust {
            RustState::Failed => return None,
            RustState::Fresh => self.seek_to_first(),
            RustState::Here => Ok(()),
            RustState::Returned if self.valid() => TransactionIter::next(self),
            RustState::Returned => return None,
        };
        if let Err(e) = moved {
            self.rust = RustState::Failed;
            return Some(Err(e));
        }
        self.rust = RustState::Returned;
        let entry = || Ok((Bytes::copy_from_slice(self.key()), self.pinned_value()));
        self.valid().then(entry)
    }
}
