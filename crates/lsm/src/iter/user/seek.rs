//! Seeks of a [`UserIter`]: bounds, prefixes and targets.

use super::{FIRST_TRAILER, IterBounds, LAST_TRAILER, UserIter};
use crate::iter::InternalIter;
use basalt_fs::Result;
use basalt_kv::key::{encode_internal_key, seek_trailer, user_key};
use basalt_kv::prefix::{Narrow, Narrowing};
use std::cmp::Ordering;
use std::sync::Arc;

impl UserIter {
    /// Moves to the first key inside the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.invalidate();
        self.bind_prefix(None);
        self.narrow(|n, b| n.forward(b.lower.as_deref()?, b.upper.as_deref()));
        match &self.bounds.lower {
            Some(lower) => {
                self.target.clear();
                encode_internal_key(&mut self.target, lower, seek_trailer(self.bounds.seq));
                self.iter.seek(&self.target)?;
            }
            None => self.iter.seek_to_first()?,
        }
        self.find_forward(false)?;
        self.bind_landed_prefix();
        Ok(())
    }

    /// Moves to the last key inside the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.invalidate();
        self.bind_prefix(None);
        self.seek_to_end()?;
        self.bind_landed_prefix();
        Ok(())
    }

    /// Moves to the last key inside the bounds that the present prefix allows.
    fn seek_to_end(&mut self) -> Result<()> {
        self.narrow(|n, b| n.backward(b.lower.as_deref(), b.upper.as_deref()));
        match &self.bounds.upper {
            Some(upper) => {
                self.target.clear();
                encode_internal_key(&mut self.target, upper, FIRST_TRAILER);
                self.iter.seek_for_prev(&self.target)?;
            }
            None => self.iter.seek_to_last()?,
        }
        self.find_backward()
    }

    /// Moves to the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.bind_prefix(Some(key));
        self.seek_in_prefix(key)
    }

    /// Moves to the first key at or after `key` that has the present prefix.
    fn seek_in_prefix(&mut self, key: &[u8]) -> Result<()> {
        self.invalidate();
        let key = match &self.bounds.lower {
            Some(lower) if self.cmp.user(key, lower) == Ordering::Less => lower,
            _ => key,
        };
        if let Some(upper) = &self.bounds.upper
            && self.cmp.user(key, upper) != Ordering::Less
        {
            return Ok(());
        }
        // The lower bound may lie behind the whole prefix.
        if !self.has_prefix(key) {
            return Ok(());
        }
        self.target.clear();
        encode_internal_key(&mut self.target, key, seek_trailer(self.bounds.seq));
        self.narrow_up();
        self.iter.seek(&self.target)?;
        self.find_forward(false)
    }

    /// Moves to the first key behind `key`, or at it if `inclusive`, that has the prefix of the
    /// last seek. Requires a `key` that the iterator came to before, or was sought with.
    pub(crate) fn continue_from(&mut self, key: &[u8], inclusive: bool) -> Result<()> {
        if inclusive {
            self.seek_in_prefix(key)?;
        } else {
            self.invalidate();
            self.saved_key.clear();
            self.saved_key.extend_from_slice(key);
            self.seek_behind_saved_key()?;
        }
        self.bind_landed_prefix();
        Ok(())
    }

    /// Moves to the first key behind all entries of `saved_key`.
    pub(super) fn seek_behind_saved_key(&mut self) -> Result<()> {
        self.target.clear();
        encode_internal_key(&mut self.target, &self.saved_key, LAST_TRAILER);
        self.narrow_up();
        self.iter.seek(&self.target)?;
        self.find_forward(true)
    }

    /// Moves to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.bind_prefix(Some(key));
        if let Some(upper) = &self.bounds.upper
            && self.cmp.user(key, upper) != Ordering::Less
        {
            self.invalidate();
            return self.seek_to_end();
        }
        self.invalidate();
        if let Some(lower) = &self.bounds.lower
            && self.cmp.user(key, lower) == Ordering::Less
        {
            return Ok(());
        }
        self.target.clear();
        encode_internal_key(&mut self.target, key, LAST_TRAILER);
        self.narrow(|n, b| n.backward_from(b.lower.as_deref(), key));
        self.iter.seek_for_prev(&self.target)?;
        self.find_backward()
    }

    /// Sets the seek target before all entries of the merged cursor's key.
    pub(super) fn target_before_current(&mut self) {
        self.target.clear();
        encode_internal_key(&mut self.target, user_key(self.iter.key()), FIRST_TRAILER);
    }

    /// Sets the seek target before all entries of `saved_key`.
    pub(super) fn target_before_saved_key(&mut self) {
        self.target.clear();
        encode_internal_key(&mut self.target, &self.saved_key, FIRST_TRAILER);
    }

    /// Seeks the merged cursor to the last entry at or before the target, to walk down from there.
    pub(super) fn seek_target_for_prev(&mut self) -> Result<()> {
        self.narrow_down();
        self.iter.seek_for_prev(&self.target)
    }

    /// Narrows the merged cursor to the prefix of the next seek.
    fn narrow(&mut self, to: impl FnOnce(&Narrowing, &IterBounds) -> Option<Arc<Narrow>>) {
        if let Some(narrowing) = &self.narrowing {
            self.iter.narrow(to(narrowing, &self.bounds).as_ref());
        }
    }

    /// Narrows the merged cursor before it is sought with the target, to walk up.
    fn narrow_up(&mut self) {
        let target = std::mem::take(&mut self.target);
        self.narrow(|n, b| n.forward(user_key(&target), b.upper.as_deref()));
        self.target = target;
    }

    /// Narrows the merged cursor before it is sought with the target, to walk down from before the
    /// target's key.
    fn narrow_down(&mut self) {
        let target = std::mem::take(&mut self.target);
        self.narrow(|n, b| n.backward(b.lower.as_deref(), Some(user_key(&target))));
        self.target = target;
    }

    /// Binds the iterator to the prefix of `key`, if it is to be bound to a prefix. `None` for a
    /// seek without a key.
    fn bind_prefix(&mut self, key: Option<&[u8]>) {
        if let Some(narrowing) = &mut self.narrowing {
            narrowing.start(key);
        }
    }

    /// Binds the iterator to the prefix of the current key, after a seek that may have been without
    /// a key.
    fn bind_landed_prefix(&mut self) {
        if let Some(mut narrowing) = self.narrowing.take() {
            if self.valid() {
                narrowing.land(self.key());
            }
            self.narrowing = Some(narrowing);
        }
    }

    /// Returns false if the prefix that the iterator is bound to forbids the key.
    #[inline]
    fn has_prefix(&self, user: &[u8]) -> bool {
        self.narrowing.as_ref().is_none_or(|n| n.allows(user))
    }

    /// Returns true if the key lies above the bounds, so that a walk up ends.
    #[inline]
    pub(super) fn is_above(&self, user: &[u8]) -> bool {
        let upper = self.bounds.upper.as_ref();
        upper.is_some_and(|u| self.cmp.user(user, u) != Ordering::Less) || !self.has_prefix(user)
    }

    /// Returns true if the key lies below the bounds, so that a walk down ends.
    #[inline]
    pub(super) fn is_below(&self, user: &[u8]) -> bool {
        let lower = self.bounds.lower.as_ref();
        lower.is_some_and(|l| self.cmp.user(user, l) == Ordering::Less) || !self.has_prefix(user)
    }
}
