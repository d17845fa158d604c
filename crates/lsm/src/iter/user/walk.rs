//! The walk of a [`UserIter`] from one live key to the next, over the versions between them.

use super::classify::{EntryClass, classify};
use super::{FIRST_TRAILER, IterPosition, LAST_TRAILER, UserIter};
use crate::iter::InternalIter;
use basalt_blob::Reference;
use basalt_env::sync::atomic::Ordering::Relaxed;
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{Kind, encode_internal_key, parse_internal_key, seek_trailer};
use basalt_kv::key::{split_internal_key, trailer_seq, user_key};
use basalt_kv::merge::Chain;
use std::cmp::Ordering;

/// Entries of one key that the iterator steps over before it seeks past the rest: about the cost of
/// a seek.
const STEPS_BEFORE_SEEK: usize = 8;

/// Bytes of a skipped value that count as one more skipped entry, because they had to be read.
const SKIP_UNIT: u64 = 4 << 10;

impl UserIter {
    /// Returns true if the iterator may examine another key. Otherwise the iterator pauses before
    /// the merged cursor's key.
    fn may_examine(&mut self) -> bool {
        if let Some(jumps) = &self.jumps {
            // Jumps before the first key leave one skip, to examine that key. An iterator that
            // continues from where another one paused makes the same jumps again, and must get
            // further.
            let least = self.skips_left.min(u64::from(!self.examined));
            let left = self.skips_left.saturating_sub(jumps.swap(0, Relaxed));
            self.skips_left = left.max(least);
            self.examined = true;
        }
        if self.skips_left > self.skips_reserved {
            return true;
        }
        self.save_key();
        self.position = IterPosition::Paused;
        false
    }

    /// Copies the merged cursor's user key to `saved_key`.
    fn save_key(&mut self) {
        self.saved_key.clear();
        self.saved_key.extend_from_slice(user_key(self.iter.key()));
    }

    /// Returns how many skipped entries the merged cursor's entry counts for.
    fn skip_cost(&self) -> u64 {
        1 + self.iter.value().len() as u64 / SKIP_UNIT
    }

    /// Moves from the merged cursor's entry up to the first live key. If `skipping`, passes all
    /// entries of `saved_key` first.
    pub(super) fn find_forward(&mut self, skipping: bool) -> Result<()> {
        // `tracked`: `saved_key` is the key of the entry before this one. `hidden`: no version of
        // that key is visible any more.
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
                if !self.may_examine() {
                    return Ok(());
                }
            }
            let (user, trailer) = split_internal_key(self.iter.key());
            let too_new = trailer_seq(trailer) > self.bounds.seq;
            if !hidden && !too_new {
                let class = classify(&self.iter, self.bounds.now_ms)?;
                let visible = class.live || class.merge;
                if visible && self.tombstones.at(user)? <= trailer_seq(trailer) {
                    return self.stop_on(class, trailer);
                }
                hidden = true;
            }
            if !again {
                self.saved_key.clear();
                self.saved_key.extend_from_slice(user);
                tracked = true;
            }
            self.skips_left = self.skips_left.saturating_sub(self.skip_cost());
            if steps < STEPS_BEFORE_SEEK {
                self.iter.next()?;
            } else {
                self.seek_past_versions(hidden, trailer)?;
                steps = 0;
            }
        }
        Ok(())
    }

    /// Makes the merged cursor's entry, which is the newest visible version of a live key, the
    /// current one.
    #[inline]
    fn stop_on(&mut self, class: EntryClass, trailer: u64) -> Result<()> {
        if class.merge {
            self.save_key();
            self.merge_operands()?;
            self.position = IterPosition::Behind;
            return Ok(());
        }
        self.expire_at_ms = class.expire_at_ms;
        self.position = match class.reference {
            None => IterPosition::OnEntry {
                prefix: class.prefix,
            },
            Some(to) => {
                self.set_lazy_value(trailer_seq(trailer), to)?;
                IterPosition::OnReference
            }
        };
        Ok(())
    }

    /// Seeks the merged cursor past more versions of `saved_key`: past all of them if the key is
    /// hidden, past those that are too new otherwise. `trailer` is that of the cursor's entry.
    fn seek_past_versions(&mut self, hidden: bool, trailer: u64) -> Result<()> {
        let past = match hidden {
            true => LAST_TRAILER,
            false => seek_trailer(self.bounds.seq),
        };
        self.target.clear();
        encode_internal_key(&mut self.target, &self.saved_key, past);
        // Only an entry with the last trailer of all can be at the target itself. The cursor steps
        // over that entry.
        match trailer == past {
            true => self.iter.next(),
            false => self.iter.seek(&self.target),
        }
    }

    /// Moves from the merged cursor's entry down to the first live key.
    pub(super) fn find_backward(&mut self) -> Result<()> {
        while self.iter.valid() {
            if self.is_below(user_key(self.iter.key())) {
                return Ok(());
            }
            if !self.may_examine() {
                return Ok(());
            }
            self.save_key();
            // Only the oldest entry of the key counts as skipped: there are few entries, or the
            // walk seeks over them.
            let cost = self.skip_cost();
            if self.save_newest_version()? {
                self.position = IterPosition::Before;
                return Ok(());
            }
            self.skips_left = self.skips_left.saturating_sub(cost);
            (self.saved_value, self.lazy_value) = (Bytes::new(), None);
        }
        Ok(())
    }

    /// Walks down over all entries of `saved_key`, from the oldest. Returns true if the key is
    /// live, and has then saved its value.
    fn save_newest_version(&mut self) -> Result<bool> {
        let mut class = EntryClass::ABSENT;
        let mut steps = 0;
        while steps < STEPS_BEFORE_SEEK && self.at_saved_key() {
            if trailer_seq(split_internal_key(self.iter.key()).1) <= self.bounds.seq {
                class = self.save_value()?;
            }
            self.iter.prev()?;
            steps += 1;
        }
        if !class.merge && !self.at_saved_key() {
            return Ok(class.live);
        }
        // For many versions, or operands, seeks to the newest visible version, then before all of
        // them.
        self.target.clear();
        encode_internal_key(
            &mut self.target,
            &self.saved_key,
            seek_trailer(self.bounds.seq),
        );
        self.iter.seek(&self.target)?;
        class = match self.at_saved_key() {
            true => self.save_value()?,
            false => EntryClass::ABSENT,
        };
        if class.merge {
            self.merge_operands()?;
        }
        self.target.clear();
        encode_internal_key(&mut self.target, &self.saved_key, FIRST_TRAILER);
        self.iter.seek_for_prev(&self.target)?;
        Ok(class.live || class.merge)
    }

    /// Merges the operands of `saved_key` from the merged cursor's entry down, moves the cursor
    /// along, and saves the value.
    fn merge_operands(&mut self) -> Result<()> {
        let mut chain = Chain::default();
        let deleted = self.tombstones.at(&self.saved_key)?;
        while self.at_saved_key() {
            let (_, seq, kind) = parse_internal_key(self.iter.key())?;
            if seq < deleted {
                break;
            }
            let (mut kind, mut payload) = (kind, None);
            if kind == Kind::BlobRef {
                let to = Reference::decode(self.iter.value())?;
                if to.is_over(self.bounds.now_ms) {
                    break;
                }
                payload = Some(self.read_payload(&to)?);
                kind = to.kind();
            }
            let value = || payload.unwrap_or_else(|| self.iter.pinned_value());
            if chain.take(kind, value, self.bounds.now_ms)? {
                break;
            }
            self.skips_left = self.skips_left.saturating_sub(self.skip_cost());
            self.iter.next()?;
        }
        (self.saved_value, self.expire_at_ms) = match self.reads_keys_only() {
            true => (Bytes::new(), chain.expire_at_ms()),
            false => chain.merge(&self.merging, &self.saved_key)?,
        };
        Ok(())
    }

    fn at_saved_key(&self) -> bool {
        self.iter.valid()
            && self.cmp.user(user_key(self.iter.key()), &self.saved_key) == Ordering::Equal
    }

    /// Returns the class of the merged cursor's entry, and saves its value if it is live.
    fn save_value(&mut self) -> Result<EntryClass> {
        let mut class = classify(&self.iter, self.bounds.now_ms)?;
        let (user, trailer) = split_internal_key(self.iter.key());
        if (class.live || class.merge) && self.tombstones.at(user)? > trailer_seq(trailer) {
            class = EntryClass::ABSENT;
        }
        let seq = trailer_seq(trailer);
        self.expire_at_ms = class.expire_at_ms;
        (self.saved_value, self.lazy_value) = (Bytes::new(), None);
        match class.reference {
            Some(to) if class.live => self.set_lazy_value(seq, to)?,
            _ if class.live => self.saved_value = self.iter.pinned_value().slice(class.prefix..),
            _ => {}
        }
        Ok(class)
    }
}
