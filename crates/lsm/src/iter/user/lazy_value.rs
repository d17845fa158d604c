//! What `ahead` needs of a cursor: values that are elsewhere and were not read, and going on from, or back to, a place that is not where
//! the merged cursor stands.

use super::{State, UserIter, Values, without_expiry};
use crate::iter::InternalIter;
use crate::iter::value_prefetch::EntryMeta;
use basalt_env::sync::atomic::Ordering::Relaxed;
use basalt_fs::{Bytes, Result};
use basalt_kv::key::Cmp;
use basalt_kv::separated::Name;

impl UserIter {
    /// True when the value here is elsewhere and was not read.
    #[inline]
    pub(in crate::iter) fn is_value_unread(&self) -> bool {
        self.unread.is_some()
    }

    /// The value here if the cursor stands on it in the tree, on its way up.
    pub(in crate::iter) fn value_at_hand(&self) -> Option<&[u8]> {
        match self.state {
            State::Forward { skip } => Some(&self.iter.value()[skip..]),
            _ => None,
        }
    }

    /// Reads the value here if it is elsewhere. After an error the iterator is not valid.
    pub(in crate::iter) fn read_value(&mut self) -> Result<()> {
        let Some((seq, to)) = self.unread.take() else {
            return Ok(());
        };
        let values = self.values()?;
        let (family, key) = (values.family, self.key());
        let name = Name { family, key, seq };
        let read = values.blobs.read(&name, &to, &self.cmp, values.how);
        match read.and_then(|(_, payload)| without_expiry(payload, &to)) {
            Ok(value) => {
                self.saved_value = value;
                Ok(())
            }
            Err(e) => {
                self.reset();
                Err(e)
            }
        }
    }

    /// What is shown, its value read or not, and what is left of the skip budget. Requires `valid`.
    pub(in crate::iter) fn entry_meta(&self) -> EntryMeta {
        EntryMeta::new(
            self.key(),
            match self.unread {
                Some((seq, to)) => Err((seq, to)),
                None => Ok(self.pinned_value()),
            },
            self.expire_at_ms,
            self.left(),
        )
    }

    /// What is left of the skip budget, and jumps that do not count yet.
    pub(in crate::iter) fn left(&self) -> (u64, u64) {
        let jumps = self.jumps.as_ref().map_or(0, |j| j.load(Relaxed));
        (self.skips, jumps)
    }

    /// As it was when it showed an entry further back: the merged cursor has gone on from there.
    pub(in crate::iter) fn stand_at(&mut self, key: Vec<u8>, value: Bytes, shown: &EntryMeta) {
        self.reset();
        self.state = State::Elsewhere;
        (self.saved_key, self.saved_value) = (key, value);
        self.expire_at_ms = shown.expire_at_ms;
        self.restore(shown.left);
    }

    /// What is left of the skip budget is what it was.
    pub(in crate::iter) fn restore(&mut self, (skips, jumps): (u64, u64)) {
        (self.skips, self.foreground_load) = (skips, 0);
        if let Some(pending) = &self.jumps {
            pending.store(jumps, Relaxed);
        }
    }

    /// Movements pause when they have passed over so many entries more, until this is lifted with `u64::MAX`.
    pub(in crate::iter) fn spare_beyond(&mut self, skips: u64) {
        self.foreground_load = self.skips.saturating_sub(skips);
    }

    /// True when it paused although there is skip budget left: [`UserIter::resume`] goes on.
    pub(in crate::iter) fn rests(&self) -> bool {
        self.state == State::Paused && self.skips > 0
    }

    /// Goes on from where it rests.
    pub(in crate::iter) fn resume(&mut self, up: bool) -> Result<()> {
        self.reset();
        match up {
            true => self.find_forward(false),
            false => self.find_backward(),
        }
    }

    /// Where values are, and their order.
    pub(in crate::iter) fn sources(&self) -> Option<(&Values, &Cmp)> {
        self.values.as_ref().map(|v| (v, &self.cmp))
    }

    /// The time that decides what is gone.
    pub(in crate::iter) fn now_ms(&self) -> u64 {
        self.view.now_ms
    }
}
