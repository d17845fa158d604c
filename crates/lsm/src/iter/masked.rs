//! [`MaskedIter`]: a cursor that jumps over key ranges that newer sources have deleted.
//!
//! The jumps save time and decide nothing: the reader above the merge checks each entry against the
//! range tombstones. So the cursor may yield deleted entries. It does so after a number of jumps in
//! one movement, so that the movement ends soon.

use super::{Cover, InternalIter};
use basalt_env::sync::atomic::{AtomicU64, Ordering as Mem};
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{SeqNo, encode_internal_key, user_key};
use basalt_kv::prefix::Narrow;
use basalt_table::{SeekBlock, SeekRead};
use std::sync::Arc;

/// Most jumps in one movement.
const MAX_JUMPS: usize = 64;
/// Most neighbouring deleted ranges that one jump passes.
const MAX_JOINED: usize = 4096;
/// A trailer that sorts before every entry of its user key.
const FIRST_TRAILER: u64 = u64::MAX;

/// A cursor that jumps over deleted ranges. See the module.
pub(crate) struct MaskedIter {
    inner: Box<dyn InternalIter>,
    /// Range tombstones of the sources newer than this one.
    cover: Cover,
    /// A tombstone must be newer than this to hide every entry here.
    above: SeqNo,
    /// Jumps made, which count as skipped entries of the reader.
    jumps: Arc<AtomicU64>,
    /// The seek target behind, or before, a deleted range.
    target: Vec<u8>,
    /// True between the halves of a seek that goes to `target` instead of the caller's target.
    redirected: bool,
}

impl MaskedIter {
    /// Returns a cursor over `inner`, whose entries are hidden by every tombstone of `cover` that
    /// is newer than `above`.
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
            redirected: false,
        }
    }

    /// Sets the target behind the deleted range that `cover` last found, and behind the deleted
    /// ranges that follow it without a gap.
    fn target_behind(&mut self) -> Result<()> {
        for _ in 0..MAX_JOINED {
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

    /// Sets the target before the deleted range that `cover` last found.
    fn target_before(&mut self) {
        let from = self.cover.from().expect("a deleted range begins");
        self.target.clear();
        encode_internal_key(&mut self.target, from, FIRST_TRAILER);
        self.jumps.fetch_add(1, Mem::Relaxed);
    }

    /// Moves up to the first entry that is not in a deleted range.
    fn jump_forward(&mut self) -> Result<()> {
        for _ in 0..MAX_JUMPS {
            if !self.inner.valid() || self.cover.at(user_key(self.inner.key()))? <= self.above {
                return Ok(());
            }
            self.target_behind()?;
            self.inner.seek(&self.target)?;
        }
        Ok(())
    }

    /// Moves down to the first entry that is not in a deleted range.
    fn jump_backward(&mut self) -> Result<()> {
        for _ in 0..MAX_JUMPS {
            if !self.inner.valid() || self.cover.at(user_key(self.inner.key()))? <= self.above {
                return Ok(());
            }
            self.target_before();
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
        self.jump_forward()
    }
    fn seek_to_last(&mut self) -> Result<()> {
        self.inner.seek_to_last()?;
        self.jump_backward()
    }
    fn seek(&mut self, to: &[u8]) -> Result<()> {
        // A seek to a target inside a deleted range would read a block for nothing.
        if self.cover.at(user_key(to))? > self.above {
            self.target_behind()?;
            self.inner.seek(&self.target)?;
        } else {
            self.inner.seek(to)?;
        }
        self.jump_forward()
    }
    fn begin_seek(&mut self, to: &[u8]) -> Result<Option<SeekRead>> {
        self.redirected = self.cover.at(user_key(to))? > self.above;
        if !self.redirected {
            return self.inner.begin_seek(to);
        }
        self.target_behind()?;
        self.inner.begin_seek(&self.target)
    }
    fn finish_seek(&mut self, to: &[u8], landed: Option<SeekBlock>) -> Result<()> {
        let to = if self.redirected { &self.target } else { to };
        self.inner.finish_seek(to, landed)?;
        self.jump_forward()
    }
    fn seek_for_prev(&mut self, to: &[u8]) -> Result<()> {
        if self.cover.at(user_key(to))? > self.above {
            self.target_before();
            self.inner.seek_for_prev(&self.target)?;
        } else {
            self.inner.seek_for_prev(to)?;
        }
        self.jump_backward()
    }
    #[inline]
    fn next(&mut self) -> Result<()> {
        self.inner.next()?;
        self.jump_forward()
    }
    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.inner.prev()?;
        self.jump_backward()
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
