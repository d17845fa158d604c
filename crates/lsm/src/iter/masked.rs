//! [`MaskedIter`]: a cursor that jumps over what newer sources have deleted as a range.
//!
//! It is there for speed alone. What is deleted is decided entry by entry above the merge, so a mask may show entries that are deleted, and
//! does so after a number of jumps in one movement, for a reader that must not be held up.

use super::{Cover, InternalIter};
use basalt_env::sync::atomic::{AtomicU64, Ordering as Mem};
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{SeqNo, encode_internal_key, user_key};
use basalt_kv::prefix::Narrow;
use basalt_table::{SeekBlock, SeekRead};
use std::sync::Arc;

/// Jumps in one movement.
const MOST_JUMPS: usize = 64;
/// Neighbouring ranges that one jump passes.
const MOST_JOINED: usize = 4096;
/// Sorts before every entry of its user key.
const FIRST_TRAILER: u64 = u64::MAX;

/// The chunks of a memtable, see the module.
pub(crate) struct MaskedIter {
    inner: Box<dyn InternalIter>,
    /// What sources newer than this one have deleted.
    cover: Cover,
    /// A tombstone must be newer than this to hide every entry here.
    above: SeqNo,
    /// Jumps made, for a reader's skip budget.
    jumps: Arc<AtomicU64>,
    target: Vec<u8>,
    /// Between the halves of a seek: it is for `target`, not for what was asked.
    aimed: bool,
}

impl MaskedIter {
    /// Over a cursor whose entries are hidden by every tombstone in `cover` that is newer than `above`.
    pub(crate) fn new(
        inner: Box<dyn InternalIter>,
        cover: Cover,
        above: SeqNo,
        jumps: Arc<AtomicU64>,
    ) -> MaskedIter {
        MaskedIter {
            inner,
            cover,
            above,
            jumps,
            target: Vec::new(),
            aimed: false,
        }
    }

    /// With `cover` at a deleted key: makes the target behind it, and behind the deleted ranges that follow without a gap.
    fn aim_behind(&mut self) -> Result<()> {
        for _ in 0..MOST_JOINED {
            let to = self.cover.to().expect("a deleted range ends");
            self.target.clear();
            encode_internal_key(&mut self.target, to, FIRST_TRAILER);
            if self.cover.at(user_key(&self.target))? <= self.above {
                break;
            }
        }
        self.jumps.fetch_add(1, Mem::Relaxed);
        Ok(())
    }

    /// With `cover` at a deleted key: makes the target before it.
    fn aim_before(&mut self) {
        let from = self.cover.from().expect("a deleted range begins");
        self.target.clear();
        encode_internal_key(&mut self.target, from, FIRST_TRAILER);
        self.jumps.fetch_add(1, Mem::Relaxed);
    }

    fn go_on(&mut self) -> Result<()> {
        for _ in 0..MOST_JUMPS {
            if !self.inner.valid() || self.cover.at(user_key(self.inner.key()))? <= self.above {
                return Ok(());
            }
            self.aim_behind()?;
            self.inner.seek(&self.target)?;
        }
        Ok(())
    }

    fn go_back(&mut self) -> Result<()> {
        for _ in 0..MOST_JUMPS {
            if !self.inner.valid() || self.cover.at(user_key(self.inner.key()))? <= self.above {
                return Ok(());
            }
            self.aim_before();
            self.inner.seek_for_prev(&self.target)?;
        }
        Ok(())
    }
}

impl InternalIter for MaskedIter {
    #[inline]
    fn valid(&self) -> bool {
        self.inner.valid()
    }
    fn narrow(&mut self, to: Option<&Arc<Narrow>>) {
        self.inner.narrow(to);
    }
    fn seek_to_first(&mut self) -> Result<()> {
        self.inner.seek_to_first()?;
        self.go_on()
    }
    fn seek_to_last(&mut self) -> Result<()> {
        self.inner.seek_to_last()?;
        self.go_back()
    }
    fn seek(&mut self, to: &[u8]) -> Result<()> {
        // Asked first: a target inside a deleted range would read a block for nothing.
        if self.cover.at(user_key(to))? > self.above {
            self.aim_behind()?;
            self.inner.seek(&self.target)?;
        } else {
            self.inner.seek(to)?;
        }
        self.go_on()
    }
    fn begin_seek(&mut self, to: &[u8]) -> Result<Option<SeekRead>> {
        self.aimed = self.cover.at(user_key(to))? > self.above;
        if !self.aimed {
            return self.inner.begin_seek(to);
        }
        self.aim_behind()?;
        self.inner.begin_seek(&self.target)
    }
    fn finish_seek(&mut self, to: &[u8], landed: Option<SeekBlock>) -> Result<()> {
        let to = if self.aimed { &self.target } else { to };
        self.inner.finish_seek(to, landed)?;
        self.go_on()
    }
    fn seek_for_prev(&mut self, to: &[u8]) -> Result<()> {
        if self.cover.at(user_key(to))? > self.above {
            self.aim_before();
            self.inner.seek_for_prev(&self.target)?;
        } else {
            self.inner.seek_for_prev(to)?;
        }
        self.go_back()
    }
    #[inline]
    fn next(&mut self) -> Result<()> {
        self.inner.next()?;
        self.go_on()
    }
    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.inner.prev()?;
        self.go_back()
    }
    #[inline]
    fn key(&self) -> &[u8] {
        self.inner.key()
    }
    #[inline]
    fn value(&self) -> &[u8] {
        self.inner.value()
    }
    fn pinned_value(&self) -> Bytes {
        self.inner.pinned_value()
    }
}
