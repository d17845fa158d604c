//! [`UserIter`]: what a reader sees: each live user key once, as of one moment, forward and backward.
//!
//! Beneath is a merged cursor over all versions of all keys. Where it stands depends on the direction:
//! - forward, on the very entry that is shown, so that value and key are read in place;
//! - backward, before all entries of the key that is shown, because the newest version of a key comes last on
//!   the way back: key and pinned value are kept here;
//! - forward, behind the operands of the key that is shown, if its newest version is one: key and merged value are kept here.
//!
//! A value that is in a blob file is not read by the movement that comes to it, but when [`UserIter::read_value`] says so: `ahead` reads many.
//!
//! A version is visible when its sequence number is not above the snapshot's. Of a key's visible versions the newest decides:
//! a tombstone, a newer tombstone over a range, or a value whose time is over, hides the key whole; an operand is merged with what
//! lies below it, down to the newest tombstone over a range. The wall time is fixed when the iterator is made.
//!
//! A reader that must not be held up (long runs of tombstones are walked over one by one) gives the iterator a skip budget: when it is
//! used up, the iterator pauses before a key that it has not looked at, and says which.

mod lazy_value;

use crate::iter::{Cover, InternalIter, MergingIter, ScanHistory};
use crate::options::ReadOptions;
use crate::version::BlobSet;
use basalt_blob::How;
use basalt_env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::entry::expiry_of;
use basalt_kv::key::{Cmp, Kind, SeqNo, encode_internal_key, parse_internal_key, seek_trailer};
use basalt_kv::key::{split_internal_key, trailer_seq, user_key};
use basalt_kv::merge::{Chain, Merging};
use basalt_kv::prefix::{Narrow, Narrowing};
use basalt_kv::separated::{Name, Reference};
use std::any::Any;
use std::cmp::Ordering;
use std::sync::Arc;

/// Entries of one key that are stepped over before a seek past the rest: about what a seek costs.
const STEPS_BEFORE_SEEK: usize = 8;

/// Bytes of a value that count as another entry passed over: they had to be read as well.
const SKIP_UNIT: u64 = 4 << 10;

/// Sorts before every entry of its user key.
const FIRST_TRAILER: u64 = u64::MAX;
/// Sorts after or with every entry of its user key.
const LAST_TRAILER: u64 = 0;

/// What an iterator shows: the moment, and the range of keys.
#[derive(Debug, Clone)]
pub struct View {
    /// Versions above it are not visible.
    pub seq: SeqNo,
    /// First user key shown, inclusive.
    pub lower: Option<Vec<u8>>,
    /// First user key not shown any more.
    pub upper: Option<Vec<u8>>,
    /// Wall time in ms since 1970: values that expire at or before it are gone.
    pub now_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not positioned.
    Invalid,
    /// The merged cursor stands on the entry shown; the value begins behind so many bytes of expiry.
    Forward { skip: usize },
    /// As `Forward`, and the value, which is elsewhere, is `saved_value` when it was read.
    Referred,
    /// `saved_key` and `saved_value` are shown; the merged cursor stands before all entries of that key, or nowhere.
    Backward,
    /// `saved_key` and `saved_value` are shown; the merged cursor stands on an entry of that key or behind them, or nowhere.
    Merged,
    /// `saved_key` and `saved_value` are shown; the merged cursor stands anywhere.
    Elsewhere,
    /// The skip budget is used up, or as far as it may be now; `saved_key` was not looked at yet.
    Paused,
}

/// Where the values are that entries refer to, for an iterator.
pub(crate) struct Values {
    pub(super) blobs: Arc<BlobSet>,
    pub(super) family: u32,
    pub(super) how: How,
    /// How far scans of the family go.
    pub(super) scan_history: Arc<ScanHistory>,
    keys_only: bool,
}

impl Values {
    /// Of a family, whose scans are of this habit.
    pub(crate) fn of(
        blobs: &Arc<BlobSet>,
        family: u32,
        scan_history: &Arc<ScanHistory>,
        options: &ReadOptions,
    ) -> Values {
        Values {
            blobs: blobs.clone(),
            family,
            how: How::user(options.fill_cache),
            scan_history: scan_history.clone(),
            keys_only: options.keys_only,
        }
    }
}

/// A cursor over live user keys. See the module.
pub struct UserIter {
    iter: MergingIter,
    cmp: Cmp,
    view: View,
    state: State,
    saved_key: Vec<u8>,
    saved_value: Bytes,
    /// What the value shown is, while it was not read: sequence number and reference of its entry.
    unread: Option<(SeqNo, Reference)>,
    expire_at_ms: Option<u64>,
    /// Entries that may still be passed over.
    skips: u64,
    /// How many of them are left alone for now.
    foreground_load: u64,
    merging: Merging,
    values: Option<Values>,
    /// Range tombstones that are visible.
    deleted: Cover,
    /// Jumps of the cursors beneath over deleted ranges since it was last looked at: each counts as an entry passed over.
    jumps: Option<Arc<AtomicU64>>,
    /// It has looked at a key since it was made or got another skip budget.
    looked: bool,
    /// In a family with prefixes.
    narrowing: Option<Box<Narrowing>>,
    /// Seek targets are built here.
    target: Vec<u8>,
    /// Keeps version, memtables and snapshot alive.
    _pins: Vec<Arc<dyn Any + Send + Sync>>,
}

/// What an entry means to a reader.
struct Seen {
    live: bool,
    /// Its value is elsewhere.
    reference: Option<Reference>,
    /// It is an operand.
    merge: bool,
    skip: usize,
    expire_at_ms: Option<u64>,
}

impl Seen {
    const NOTHING: Seen = Seen {
        live: false,
        reference: None,
        merge: false,
        skip: 0,
        expire_at_ms: None,
    };
}

/// The value in the payload that a reference leads to.
pub(super) fn without_expiry(payload: Bytes, to: &Reference) -> Result<Bytes> {
    if to.expire_at_ms.is_some() {
        expiry_of(&payload)?;
        return Ok(payload.slice(8..));
    }
    Ok(payload)
}

/// What the entry under `iter` means at `now_ms`.
fn see(iter: &MergingIter, now_ms: u64) -> Result<Seen> {
    let (_, _, kind) = parse_internal_key(iter.key())?;
    Ok(match kind {
        Kind::Put => Seen {
            live: true,
            ..Seen::NOTHING
        },
        Kind::BlobRef => {
            let to = Reference::decode(iter.value())?;
            Seen {
                live: !to.is_over(now_ms),
                reference: Some(to),
                expire_at_ms: to.expire_at_ms,
                ..Seen::NOTHING
            }
        }
        Kind::PutTtl => {
            let at = expiry_of(iter.value())?;
            Seen {
                live: at > now_ms,
                skip: 8,
                expire_at_ms: Some(at),
                ..Seen::NOTHING
            }
        }
        kind => Seen {
            merge: kind == Kind::Merge,
            ..Seen::NOTHING
        },
    })
}

impl UserIter {
    /// Over a merged cursor. `pins` are dropped with the iterator, after the cursor.
    pub fn new(
        iter: MergingIter,
        cmp: Cmp,
        view: View,
        pins: Vec<Arc<dyn Any + Send + Sync>>,
    ) -> UserIter {
        let deleted = Cover::none(cmp.clone());
        UserIter {
            iter,
            cmp,
            view,
            state: State::Invalid,
            saved_key: Vec::new(),
            saved_value: Bytes::new(),
            unread: None,
            expire_at_ms: None,
            skips: u64::MAX,
            foreground_load: 0,
            merging: Merging::none(),
            values: None,
            deleted,
            jumps: None,
            looked: false,
            narrowing: None,
            target: Vec::new(),
            _pins: pins,
        }
    }

    /// With the family's operator, for keys that have operands.
    pub(crate) fn with_merging(mut self, merging: Merging) -> UserIter {
        self.merging = merging;
        self
    }

    /// With what entries refer to.
    pub(crate) fn with_values(mut self, values: Values) -> UserIter {
        self.values = Some(values);
        self
    }

    /// Hides what range tombstones cover. The cursors beneath count in `jumps` how often they jump over such ranges.
    pub(crate) fn with_deleted(mut self, deleted: Cover, jumps: Arc<AtomicU64>) -> UserIter {
        self.jumps = (!deleted.is_empty()).then_some(jumps);
        self.deleted = deleted;
        self
    }

    /// True when it may meet range tombstones. Those that it knows are of the moment when it was made.
    pub(crate) fn has_deleted(&self) -> bool {
        !self.deleted.is_empty()
    }

    /// Bounds how many entries that are not shown it passes over in its life: `ReadOptions::max_skippable_entries`.
    pub fn with_max_skippable_entries(mut self, entries: u64) -> UserIter {
        self.skips = entries;
        self
    }

    /// As of another moment, over the same sources. Not positioned then.
    pub(crate) fn renew(&mut self, seq: SeqNo, now_ms: u64, skips: u64) {
        self.reset();
        self.view.seq = seq;
        self.allow(now_ms, skips);
    }

    /// At another time, and with another skip budget from here on.
    pub(crate) fn allow(&mut self, now_ms: u64, skips: u64) {
        self.view.now_ms = now_ms;
        self.skips = skips;
        self.looked = false;
    }

    /// Shows nothing until it is sought again.
    pub(crate) fn unposition(&mut self) {
        self.reset();
    }

    /// Is bound to the prefix that another iterator of the same options is bound to.
    pub(crate) fn take_prefix_of(&mut self, other: &mut UserIter) {
        self.narrowing = other.narrowing.take();
    }

    /// Lets it pass over sources without the prefix that it is bound to.
    pub(crate) fn with_prefixes(mut self, narrowing: Narrowing) -> UserIter {
        self.narrowing = Some(Box::new(narrowing));
        self
    }

    /// Tells the merged cursor what it is about to be sought for.
    fn narrow(&mut self, to: impl FnOnce(&Narrowing, &View) -> Option<Arc<Narrow>>) {
        if let Some(narrowing) = &self.narrowing {
            self.iter.narrow(to(narrowing, &self.view).as_ref());
        }
    }

    /// Before the merged cursor is sought with the target, to walk up.
    fn narrow_up(&mut self) {
        let target = std::mem::take(&mut self.target);
        self.narrow(|n, v| n.forward(user_key(&target), v.upper.as_deref()));
        self.target = target;
    }

    /// Before the merged cursor is sought with the target, to walk down from before its key.
    fn narrow_down(&mut self) {
        let target = std::mem::take(&mut self.target);
        self.narrow(|n, v| n.backward(v.lower.as_deref(), Some(user_key(&target))));
        self.target = target;
    }

    /// The cursor is sought anew: what is shown is bound to the prefix of `key` from here on, if it is bound to any.
    fn start(&mut self, key: Option<&[u8]>) {
        if let Some(narrowing) = &mut self.narrowing {
            narrowing.start(key);
        }
    }

    /// After a seek that may have been without a key.
    fn land(&mut self) {
        if let Some(mut narrowing) = self.narrowing.take() {
            if self.valid() {
                narrowing.land(self.key());
            }
            self.narrowing = Some(narrowing);
        }
    }

    /// False when the prefix that the iterator is bound to forbids the key.
    #[inline]
    fn has_prefix(&self, user: &[u8]) -> bool {
        self.narrowing.as_ref().is_none_or(|n| n.allows(user))
    }

    /// True when walking up has come to keys that are not shown any more.
    #[inline]
    fn is_above(&self, user: &[u8]) -> bool {
        let upper = self.view.upper.as_ref();
        upper.is_some_and(|u| self.cmp.user(user, u) != Ordering::Less) || !self.has_prefix(user)
    }

    /// True when walking down has come to keys that are not shown any more.
    #[inline]
    fn is_below(&self, user: &[u8]) -> bool {
        let lower = self.view.lower.as_ref();
        lower.is_some_and(|l| self.cmp.user(user, l) == Ordering::Less) || !self.has_prefix(user)
    }

    /// True when positioned on a key.
    pub fn valid(&self) -> bool {
        !matches!(self.state, State::Invalid | State::Paused)
    }

    /// Where it stopped because the skip budget is used up; it is not `valid` then. No live key lies between the one it was moved
    /// from and this one, which was not looked at: another iterator goes on with a seek to it.
    pub fn resume_key(&self) -> Option<&[u8]> {
        (self.state == State::Paused).then_some(&self.saved_key)
    }

    /// True when another key may be looked at; otherwise it pauses before the one under the merged cursor.
    fn goes_on(&mut self) -> bool {
        if let Some(jumps) = &self.jumps {
            // Jumps on the way to the first key leave enough to look at it: whoever goes on from where another iterator paused makes
            // the same jumps again, and must get further.
            let least = self.skips.min(u64::from(!self.looked));
            let left = self.skips.saturating_sub(jumps.swap(0, Relaxed));
            self.skips = left.max(least);
            self.looked = true;
        }
        if self.skips > self.foreground_load {
            return true;
        }
        self.saved_key.clear();
        self.saved_key.extend_from_slice(user_key(self.iter.key()));
        self.state = State::Paused;
        false
    }

    /// What passing over the entry under the merged cursor counts.
    fn skip_cost(&self) -> u64 {
        1 + self.iter.value().len() as u64 / SKIP_UNIT
    }

    /// To the first key inside the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.reset();
        self.start(None);
        self.narrow(|n, v| n.forward(v.lower.as_deref()?, v.upper.as_deref()));
        match &self.view.lower {
            Some(lower) => {
                self.target.clear();
                encode_internal_key(&mut self.target, lower, seek_trailer(self.view.seq));
                self.iter.seek(&self.target)?;
            }
            None => self.iter.seek_to_first()?,
        }
        self.find_forward(false)?;
        self.land();
        Ok(())
    }

    /// To the last key inside the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.reset();
        self.start(None);
        self.seek_to_end()?;
        self.land();
        Ok(())
    }

    /// To the last key inside the bounds that the present prefix allows.
    fn seek_to_end(&mut self) -> Result<()> {
        self.narrow(|n, v| n.backward(v.lower.as_deref(), v.upper.as_deref()));
        match &self.view.upper {
            Some(upper) => {
                self.target.clear();
                encode_internal_key(&mut self.target, upper, FIRST_TRAILER);
                self.iter.seek_for_prev(&self.target)?;
            }
            None => self.iter.seek_to_last()?,
        }
        self.find_backward()
    }

    /// To the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.start(Some(key));
        self.seek_on(key)
    }

    /// As [`UserIter::seek`], inside what an earlier seek bound it to.
    fn seek_on(&mut self, key: &[u8]) -> Result<()> {
        self.reset();
        let key = match &self.view.lower {
            Some(lower) if self.cmp.user(key, lower) == Ordering::Less => lower,
            _ => key,
        };
        if let Some(upper) = &self.view.upper
            && self.cmp.user(key, upper) != Ordering::Less
        {
            return Ok(());
        }
        // The lower bound may lie behind the whole prefix.
        if !self.has_prefix(key) {
            return Ok(());
        }
        self.target.clear();
        encode_internal_key(&mut self.target, key, seek_trailer(self.view.seq));
        self.narrow_up();
        self.iter.seek(&self.target)?;
        self.find_forward(false)
    }

    /// To the first key behind `key`, or at it, inside what the last seek bound it to. The key is one that it came to before, or was
    /// sought with.
    pub(crate) fn go_on(&mut self, key: &[u8], or_at: bool) -> Result<()> {
        if or_at {
            self.seek_on(key)?;
        } else {
            self.reset();
            self.saved_key.clear();
            self.saved_key.extend_from_slice(key);
            self.seek_behind_saved_key()?;
        }
        self.land();
        Ok(())
    }

    /// To the first key behind all entries of `saved_key`.
    fn seek_behind_saved_key(&mut self) -> Result<()> {
        self.target.clear();
        encode_internal_key(&mut self.target, &self.saved_key, LAST_TRAILER);
        self.narrow_up();
        self.iter.seek(&self.target)?;
        self.find_forward(true)
    }

    /// To the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.start(Some(key));
        if let Some(upper) = &self.view.upper
            && self.cmp.user(key, upper) != Ordering::Less
        {
            self.reset();
            return self.seek_to_end();
        }
        self.reset();
        if let Some(lower) = &self.view.lower
            && self.cmp.user(key, lower) == Ordering::Less
        {
            return Ok(());
        }
        self.target.clear();
        encode_internal_key(&mut self.target, key, LAST_TRAILER);
        self.narrow(|n, v| n.backward_from(v.lower.as_deref(), key));
        self.iter.seek_for_prev(&self.target)?;
        self.find_backward()
    }

    /// To the next key. Requires `valid`.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor in the field's words; it lends keys, which Iterator cannot"
    )]
    pub fn next(&mut self) -> Result<()> {
        match self.state {
            State::Invalid | State::Paused => panic!("next on an iterator that is not positioned"),
            State::Forward { .. } | State::Referred => {
                self.saved_key.clear();
                self.saved_key.extend_from_slice(user_key(self.iter.key()));
                self.reset();
                self.iter.next()?;
            }
            State::Merged => self.reset(),
            // The merged cursor would seek all its children to turn; seeking past the key costs the same.
            State::Backward | State::Elsewhere => {
                self.reset();
                return self.seek_behind_saved_key();
            }
        }
        self.find_forward(true)
    }

    /// To the previous key. Requires `valid`.
    pub fn prev(&mut self) -> Result<()> {
        match self.state {
            State::Invalid | State::Paused => panic!("prev on an iterator that is not positioned"),
            State::Forward { .. } | State::Referred => {
                self.target.clear();
                encode_internal_key(&mut self.target, user_key(self.iter.key()), FIRST_TRAILER);
                self.reset();
                self.narrow_down();
                self.iter.seek_for_prev(&self.target)?;
            }
            State::Merged | State::Elsewhere => {
                self.reset();
                self.target.clear();
                encode_internal_key(&mut self.target, &self.saved_key, FIRST_TRAILER);
                self.narrow_down();
                self.iter.seek_for_prev(&self.target)?;
            }
            State::Backward => self.reset(),
        }
        self.find_backward()
    }

    /// The user key here. Requires `valid`.
    pub fn key(&self) -> &[u8] {
        match self.state {
            State::Invalid | State::Paused => panic!("key of an iterator that is not positioned"),
            State::Forward { .. } | State::Referred => user_key(self.iter.key()),
            State::Backward | State::Merged | State::Elsewhere => &self.saved_key,
        }
    }

    /// The value here (expiry stripped). Requires `valid`.
    pub fn value(&self) -> &[u8] {
        self.shows_values();
        match self.state {
            State::Invalid | State::Paused => panic!("value of an iterator that is not positioned"),
            State::Forward { skip } => &self.iter.value()[skip..],
            _ => {
                assert!(self.unread.is_none(), "the value was read");
                &self.saved_value
            }
        }
    }

    /// Panics when values were not to be read.
    #[inline]
    fn shows_values(&self) {
        let keys_only = self.values.as_ref().is_some_and(|v| v.keys_only);
        assert!(
            !keys_only,
            "the value of an iterator with ReadOptions::keys_only"
        );
    }

    /// The value shown is that of an entry with this sequence number, elsewhere. An iterator over keys does without.
    fn refer(&mut self, seq: SeqNo, to: Reference) -> Result<()> {
        let values = self.values()?;
        if !values.keys_only {
            self.unread = Some((seq, to));
        }
        Ok(())
    }

    fn values(&self) -> Result<&Values> {
        self.values
            .as_ref()
            .ok_or_else(|| Error::unsupported("a reference to a value without the store it is of"))
    }

    /// The payload that the entry under the merged cursor refers to, with its expiry. Nothing of it for an iterator over keys.
    fn opened(&self, to: &Reference) -> Result<Bytes> {
        let (key, seq, _) = parse_internal_key(self.iter.key())?;
        let values = self.values()?;
        if values.keys_only {
            // What decides whether the key is shown stands in the reference.
            let expiry = to.expire_at_ms.map(u64::to_le_bytes);
            return Ok(expiry.map_or_else(Bytes::new, |at| Bytes::copy_from_slice(&at)));
        }
        let family = values.family;
        let name = Name { family, key, seq };
        let read = values.blobs.read(&name, to, &self.cmp, values.how);
        read.map(|(_, payload)| payload)
    }

    /// The value here, pinned. Requires `valid`.
    pub fn pinned_value(&self) -> Bytes {
        self.shows_values();
        match self.state {
            State::Invalid | State::Paused => panic!("value of an iterator that is not positioned"),
            State::Forward { skip } => self.iter.pinned_value().slice(skip..),
            _ => {
                assert!(self.unread.is_none(), "the value was read");
                self.saved_value.clone()
            }
        }
    }

    /// The expiry of the value here, ms since 1970. Requires `valid`.
    pub fn expire_at_ms(&self) -> Option<u64> {
        assert!(self.valid(), "expiry of an iterator that is not positioned");
        self.expire_at_ms
    }

    fn reset(&mut self) {
        self.state = State::Invalid;
        // A pinned value may hold a whole block: let go of it as soon as it is not shown.
        self.saved_value = Bytes::new();
        self.unread = None;
    }

    /// From the merged cursor's place on to the first live key; with `skipping`, past all of `saved_key`.
    fn find_forward(&mut self, skipping: bool) -> Result<()> {
        // True when `saved_key` is the key of the entry before this one, and when no version of it may be shown.
        let (mut tracked, mut hidden) = (skipping, skipping);
        let mut steps = 0;
        while self.iter.valid() {
            let user = user_key(self.iter.key());
            let again = tracked && self.cmp.user(user, &self.saved_key) != Ordering::Greater;
            if again {
                steps += 1;
            } else {
                steps = 0;
                hidden = false;
                if self.is_above(user) {
                    return Ok(());
                }
                if !self.goes_on() {
                    return Ok(());
                }
            }
            let (user, trailer) = split_internal_key(self.iter.key());
            let too_new = trailer_seq(trailer) > self.view.seq;
            if !hidden && !too_new {
                let seen = see(&self.iter, self.view.now_ms)?;
                let shown = seen.live || seen.merge;
                if shown && self.deleted.at(user)? <= trailer_seq(trailer) {
                    if seen.merge {
                        self.saved_key.clear();
                        self.saved_key.extend_from_slice(user);
                        self.merge_from_here()?;
                        self.state = State::Merged;
                        return Ok(());
                    }
                    self.expire_at_ms = seen.expire_at_ms;
                    self.state = match seen.reference {
                        None => State::Forward { skip: seen.skip },
                        Some(to) => {
                            self.refer(trailer_seq(trailer), to)?;
                            State::Referred
                        }
                    };
                    return Ok(());
                }
                hidden = true;
            }
            if !again {
                self.saved_key.clear();
                self.saved_key.extend_from_slice(user);
                tracked = true;
            }
            self.skips = self.skips.saturating_sub(self.skip_cost());
            if steps < STEPS_BEFORE_SEEK {
                self.iter.next()?;
            } else {
                let past = if hidden {
                    LAST_TRAILER
                } else {
                    seek_trailer(self.view.seq)
                };
                self.target.clear();
                encode_internal_key(&mut self.target, &self.saved_key, past);
                // Only the entry with the very last trailer can be at the target itself: step over that one.
                if trailer == past {
                    self.iter.next()?;
                } else {
                    self.iter.seek(&self.target)?;
                }
                steps = 0;
            }
        }
        Ok(())
    }

    /// From the merged cursor's place back to the first live key.
    fn find_backward(&mut self) -> Result<()> {
        while self.iter.valid() {
            if self.is_below(user_key(self.iter.key())) {
                return Ok(());
            }
            if !self.goes_on() {
                return Ok(());
            }
            self.saved_key.clear();
            self.saved_key.extend_from_slice(user_key(self.iter.key()));
            // The oldest of its entries stands for all: there are few, or they are not walked over.
            let cost = self.skip_cost();
            if self.take_key()? {
                self.state = State::Backward;
                return Ok(());
            }
            self.skips = self.skips.saturating_sub(cost);
            (self.saved_value, self.unread) = (Bytes::new(), None);
        }
        Ok(())
    }

    /// Walks back over all entries of `saved_key`, from its oldest; true when it is live, and then its value is kept.
    fn take_key(&mut self) -> Result<bool> {
        let mut seen = Seen::NOTHING;
        let mut steps = 0;
        while steps < STEPS_BEFORE_SEEK && self.at_saved_key() {
            if trailer_seq(split_internal_key(self.iter.key()).1) <= self.view.seq {
                seen = self.keep()?;
            }
            self.iter.prev()?;
            steps += 1;
        }
        if !seen.merge && !self.at_saved_key() {
            return Ok(seen.live);
        }
        // Many versions, or operands: straight to the newest visible one, then straight before all of them.
        self.target.clear();
        encode_internal_key(
            &mut self.target,
            &self.saved_key,
            seek_trailer(self.view.seq),
        );
        self.iter.seek(&self.target)?;
        seen = match self.at_saved_key() {
            true => self.keep()?,
            false => Seen::NOTHING,
        };
        if seen.merge {
            self.merge_from_here()?;
        }
        self.seek_before_saved_key()?;
        Ok(seen.live || seen.merge)
    }

    fn seek_before_saved_key(&mut self) -> Result<()> {
        self.target.clear();
        encode_internal_key(&mut self.target, &self.saved_key, FIRST_TRAILER);
        self.iter.seek_for_prev(&self.target)
    }

    /// Keeps what the operands of `saved_key` give from the one under the merged cursor down, and moves it along.
    fn merge_from_here(&mut self) -> Result<()> {
        let mut chain = Chain::default();
        let deleted = self.deleted.at(&self.saved_key)?;
        while self.at_saved_key() {
            let (_, seq, kind) = parse_internal_key(self.iter.key())?;
            if seq < deleted {
                break;
            }
            let (mut kind, mut opened) = (kind, None);
            if kind == Kind::BlobRef {
                let to = Reference::decode(self.iter.value())?;
                if to.is_over(self.view.now_ms) {
                    break;
                }
                opened = Some(self.opened(&to)?);
                kind = to.kind();
            }
            let value = || opened.unwrap_or_else(|| self.iter.pinned_value());
            if chain.take(kind, value, self.view.now_ms)? {
                break;
            }
            self.skips = self.skips.saturating_sub(self.skip_cost());
            self.iter.next()?;
        }
        let keys_only = self.values.as_ref().is_some_and(|v| v.keys_only);
        (self.saved_value, self.expire_at_ms) = match keys_only {
            true => (Bytes::new(), chain.expire_at_ms()),
            false => chain.merge(&self.merging, &self.saved_key)?,
        };
        Ok(())
    }

    fn at_saved_key(&self) -> bool {
        self.iter.valid()
            && self.cmp.user(user_key(self.iter.key()), &self.saved_key) == Ordering::Equal
    }

    /// Keeps the value of the entry under the merged cursor, if it is live.
    fn keep(&mut self) -> Result<Seen> {
        let mut seen = see(&self.iter, self.view.now_ms)?;
        let (user, trailer) = split_internal_key(self.iter.key());
        if (seen.live || seen.merge) && self.deleted.at(user)? > trailer_seq(trailer) {
            seen = Seen::NOTHING;
        }
        let seq = trailer_seq(trailer);
        self.expire_at_ms = seen.expire_at_ms;
        (self.saved_value, self.unread) = (Bytes::new(), None);
        match seen.reference {
            Some(to) if seen.live => self.refer(seq, to)?,
            _ if seen.live => self.saved_value = self.iter.pinned_value().slice(seen.skip..),
            _ => {}
        }
        Ok(seen)
    }
}
