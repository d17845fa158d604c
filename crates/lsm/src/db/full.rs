//! A disk that runs full: the last of it is a reserve for what makes space, so that the store can always help itself.
//!
//! When less than the reserve is free, batches that add data are refused with `NoSpace`; reads go on, and so do batches that only delete, down to
//! half of the reserve. Memtables are written out, logs kept for their space are deleted, compactions go where tombstones hide something, and
//! collections take whatever is worth anything. When more is free again, writes are taken again: nobody has to open the store anew.
//!
//! What is free is the disk's to say, so stores that share it share the reserve, and whoever else fills the disk can use it up. Then the log's own
//! `NoSpace` halts the store, until there is space.

use super::engine::Engine;
use crate::batch::{Ops, WriteBatch};
use crate::key::Kind;
use crate::listener::Event;
use crate::options::Options;
use crate::wal::RECORD_HEADER;
use basalt_env::Env;
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use basalt_fs::{Error, ErrorKind, Reach, Result, Space};
use std::path::Path;
use std::sync::Arc;

/// The reserve is at most this part of the disk.
const PART_OF_DISK: u64 = 16;
/// Of the reserve what a fresh manifest and small files take.
const SMALL_FILES: u64 = 64 << 10;
/// What is free is asked for once in this part of the reserve.
const LOOKS: u64 = 16;

impl Options {
    /// Bytes of a disk of `total` bytes that are kept for what makes space: what memtables may hold and one more, and at most a sixteenth of the
    /// disk. By default 320 MiB from a disk of 5 GiB on.
    pub fn disk_reserve(&self, total: u64) -> u64 {
        let memtables = self.max_sealed_memtables as u64 + 2;
        let reserve = self.write_buffer_bytes.saturating_mul(memtables);
        (reserve.saturating_add(SMALL_FILES)).min(total / PART_OF_DISK)
    }
}

/// Whether the disk is full.
#[derive(Default)]
pub(crate) struct Full {
    refusing: AtomicBool,
    /// Bytes that may still be let in before what is free is asked for again.
    unseen: AtomicU64,
    /// What was free when it was last asked for.
    free: AtomicU64,
    /// The reserve then.
    reserve: AtomicU64,
}

impl Full {
    /// True while batches that add data are refused.
    pub fn is_refusing(&self) -> bool {
        self.refusing.load(SeqCst)
    }

    /// What all collections that run on a full disk may write: half of the reserve is for flushes and merges, or three quarters of
    /// what is left.
    pub fn spare(&self) -> u64 {
        let free = self.free_bytes();
        let beyond_half = free.saturating_sub(self.reserve.load(SeqCst) / 2);
        beyond_half.max(free / 4)
    }

    /// What was free when it was last asked for.
    pub fn free_bytes(&self) -> u64 {
        self.free.load(SeqCst)
    }

    /// What may be asked for ahead without making the disk count as full.
    pub fn beyond_reserve(&self) -> u64 {
        let taken_again = taken_again_from(self.reserve.load(SeqCst));
        self.free_bytes().saturating_sub(taken_again)
    }
}

/// What is to be free for writes to be taken again: a little more than was too little, or it would go back and forth.
fn taken_again_from(reserve: u64) -> u64 {
    reserve + reserve / 4
}

/// True when the disk under a store that is not open yet has less left than its reserve.
pub(super) fn is_low(env: &Env, dir: &Path, options: &Options) -> bool {
    let space = env.fs().space(dir);
    space.is_ok_and(|s| s.free < options.disk_reserve(s.total))
}

fn only_deletes(batch: &WriteBatch) -> bool {
    let mut ops = Ops::new(&batch.buf[RECORD_HEADER..]);
    ops.all(|op| op.is_ok_and(|op| matches!(op.kind, Kind::Delete | Kind::RangeDelete)))
}

impl Engine {
    /// Whether a batch may come in, or the disk is too full for it.
    pub(super) fn admit(self: &Arc<Self>, batch: &WriteBatch) -> Result<()> {
        self.admit_if(batch.bytes() as u64, &|| only_deletes(batch))
    }

    /// Whether so many bytes may be written, or the disk is too full for them.
    pub(super) fn admit_bytes(self: &Arc<Self>, bytes: u64) -> Result<()> {
        self.admit_if(bytes, &|| false)
    }

    fn admit_if(self: &Arc<Self>, bytes: u64, only_deletes: &dyn Fn() -> bool) -> Result<()> {
        let seen = |left: u64| left.checked_sub(bytes);
        if !self.full.is_refusing() && self.full.unseen.fetch_update(SeqCst, SeqCst, seen).is_ok() {
            return Ok(());
        }
        let Some((space, reserve)) = self.look_at_the_disk() else {
            return Ok(());
        };
        if !self.full.is_refusing() || (only_deletes() && space.free >= reserve / 2) {
            return Ok(());
        }
        Err(self.no_space(space, reserve))
    }

    fn no_space(&self, space: Space, reserve: u64) -> Error {
        let what = format!(
            "{} bytes are free on the disk of {}, of which {reserve} are kept for what makes space: \
             delete something, here or beside the store, and writes are taken again",
            space.free,
            self.dir.display()
        );
        Error::new(ErrorKind::NoSpace, what).with_reach(Reach::Store)
    }

    /// How much is free, and what of it is the reserve. `None` from a filesystem that does not tell: it has its own errors when it is full.
    fn free(&self) -> Option<(Space, u64)> {
        let space = self.env.fs().space(&self.dir).ok()?;
        let reserve = self.options.disk_reserve(space.total);
        self.full.free.store(space.free, SeqCst);
        self.full.reserve.store(reserve, SeqCst);
        Some((space, reserve))
    }

    /// Before collections are chosen on a full disk.
    pub(super) fn see_what_is_free(&self) {
        if self.full.is_refusing() {
            self.free();
        }
    }

    /// Asks how much is free, and decides whether to take writes.
    fn look_at_the_disk(self: &Arc<Self>) -> Option<(Space, u64)> {
        let (space, reserve) = self.free()?;
        let full = &self.full;
        full.unseen.store((reserve / LOOKS).max(4096), SeqCst);
        let least = match full.is_refusing() {
            true => taken_again_from(reserve),
            false => reserve,
        };
        let refusing = space.free < least;
        if full.refusing.swap(refusing, SeqCst) != refusing {
            if refusing {
                self.tell(|| Event::BackgroundError {
                    during: "space",
                    error: self.no_space(space, reserve),
                });
                self.retry_later();
            }
            self.schedule();
        }
        Some((space, reserve))
    }

    /// Why writes are refused, for people.
    pub(super) fn fullness(&self) -> Option<String> {
        self.full.is_refusing().then(|| {
            let reserve = |space: Space| self.options.disk_reserve(space.total);
            match self.env.fs().space(&self.dir) {
                Ok(space) => self.no_space(space, reserve(space)).to_string(),
                Err(e) => e.to_string(),
            }
        })
    }

    /// Makes what space there is to be made, while the disk is full: tables get to know what was deleted, and logs go.
    pub(super) fn relieve(self: &Arc<Self>) {
        if !self.full.is_refusing() {
            return;
        }
        if self.look_at_the_disk().is_some() && self.full.is_refusing() {
            // What fails is tried again, with everything else.
            let _ = self.release_idle();
        }
    }
}
