//! Open files of the simulated disk, and batches of reads.

use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bytes::Bytes;

use super::disk::{Change, Ino, PendingWrite};
use super::{DiskState, SimFs, text};
use crate::OpKind;
use crate::content::CHUNK;
use crate::rng::Rng;
use basalt_fs::{Error, ErrorKind, File, Intent, ReadCompletions, ReadRequest, Result};

pub(super) struct SimFile {
    fs: Arc<SimFs>,
    ino: Ino,
    life: u32,
    path: String,
    appends: bool,
    poisoned: AtomicBool,
}

impl SimFile {
    pub(super) fn new(fs: Arc<SimFs>, ino: Ino, life: u32, path: &Path, appends: bool) -> SimFile {
        SimFile {
            fs,
            ino,
            life,
            path: text(path),
            appends,
            poisoned: AtomicBool::new(false),
        }
    }

    pub(super) fn is_of(&self, fs: &SimFs) -> bool {
        std::ptr::eq(&*self.fs, fs)
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn check_poison(&self) -> Result<()> {
        if self.poisoned.load(SeqCst) {
            return Err(Error::new(
                ErrorKind::Poisoned,
                "an earlier append or sync of this file failed",
            )
            .in_file(Path::new(&self.path)));
        }
        Ok(())
    }

    /// Checks whether this handle may change the file.
    fn check_appends(&self, state: &DiskState) -> Result<()> {
        if !self.appends {
            return Err(
                Error::new(ErrorKind::ReadOnly, "the file is open for reading")
                    .in_file(Path::new(&self.path)),
            );
        }
        self.check_poison()?;
        assert!(
            state.disk.file(self.ino).life == self.life,
            "contract broken by the caller: {} was reused as a new log, and a handle of its earlier life still writes",
            self.path
        );
        Ok(())
    }

    /// Lets a rule for lies fail or drop a sync. Returns true if the sync is dropped. Poisons the
    /// handle on an error.
    fn lies_about_sync(&self, state: &mut DiskState) -> Result<bool> {
        let unit = state.disk.unit;
        if let Some(seed) = state.lies.fails_sync(&self.path) {
            state.disk.file_mut(self.ino).fail_sync(unit, seed);
            self.poison();
            let path = Path::new(&self.path);
            return Err(Error::io("sync", path, rustix::io::Errno::IO.into()));
        }
        Ok(state.lies.drops_sync(&self.path))
    }

    /// Poisons the handle on an error.
    pub(super) fn sync_in(&self, state: &mut DiskState, length_too: bool) -> Result<()> {
        let unit = state.disk.unit;
        if self.lies_about_sync(state)? {
            return Ok(());
        }
        let f = state.disk.file_mut(self.ino);
        // A handle that only reads does not know the length of a log, so it cannot make the length
        // exact.
        let exact = length_too && self.appends && f.life == self.life;
        if exact && f.alloc > f.len {
            // The space ahead of the appends is released.
            let (before, len) = (f.chunks(), f.len);
            f.cut_space(len, unit);
            let after = f.chunks();
            f.make_durable(true, unit);
            state.disk.give_chunks(before - after);
        } else {
            f.make_durable(exact || (length_too && !f.is_log), unit);
        }
        Ok(())
    }

    pub(super) fn poison(&self) {
        self.poisoned.store(true, SeqCst);
    }

    fn sync(&self, kind: OpKind, length_too: bool) -> Result<()> {
        self.fs.call(|state| {
            self.check_poison()?;
            state.stats.syncs += 1;
            let result = self.sync_in(state, length_too);
            state.note(kind, &self.path);
            result
        })
    }

    /// Appends a part of the bytes, because the disk is full. The caller does not learn which part.
    fn append_part(&self, state: &mut DiskState, bytes: &[u8]) {
        self.poison();
        let f = state.disk.file(self.ino);
        let (len, alloc) = (f.len, f.alloc);
        if !f.holes.is_empty() {
            return;
        }
        let room = (alloc.div_ceil(CHUNK) + state.disk.free_chunks()) * CHUNK;
        let mut rng = Rng::of(&[state.disk.seed, self.ino, len, 11]);
        let part = rng
            .below(bytes.len() as u64 + 1)
            .min(room.saturating_sub(len));
        if part > 0 {
            let (at, data) = state.disk.sectors_for(self.ino, &bytes[..part as usize]);
            state
                .disk
                .take_chunks(state.disk.chunks_needed(self.ino, len + part));
            state.disk.write_sectors(self.ino, at, data, len);
            let f = state.disk.file_mut(self.ino);
            f.alloc = alloc.max(len + part);
            f.len_vague = true;
            state.note(OpKind::Append, &self.path);
        }
    }
}

impl File for SimFile {
    fn append(&self, bufs: &[IoSlice<'_>], _intent: Intent) -> Result<u64> {
        let mut bytes = Vec::with_capacity(bufs.iter().map(|b| b.len()).sum());
        for b in bufs {
            bytes.extend_from_slice(b);
        }
        self.fs.call(|state| {
            self.check_appends(state)?;
            let f = state.disk.file(self.ino);
            let at = f.len;
            if bytes.is_empty() {
                return Ok(at);
            }
            assert!(
                at / state.disk.unit * state.disk.unit >= f.synced_end,
                "contract broken by the caller: {} is appended to at {at}, in a sector that a sync covered \
                 (up to {}); align_to_unit comes first",
                self.path,
                f.synced_end
            );
            let end = at + bytes.len() as u64;
            if state.disk.chunks_needed(self.ino, end) > state.disk.free_chunks() {
                self.append_part(state, &bytes);
                return Err(no_space(Path::new(&self.path)));
            }
            let (first, mut data) = state.disk.sectors_for(self.ino, &bytes);
            let body = (at - first) as usize..(at - first) as usize + bytes.len();
            let DiskState { lies, disk, .. } = state;
            lies.spoil_append(&self.path, disk, self.ino, first, &mut data, body);
            state.stats.bytes_written += data.len() as u64;
            state.stats.writes += 1;
            state.disk.grow(self.ino, end);
            state.disk.write_sectors(self.ino, first, data, end);
            state.note(OpKind::Append, &self.path);
            Ok(at)
        })
    }

    fn align_to_unit(&self) -> Result<u64> {
        self.fs.call(|state| {
            self.check_appends(state)?;
            let len = state.disk.file(self.ino).len;
            let to = len.next_multiple_of(state.disk.unit);
            if to != len {
                // This takes at most the space of the last sector's block, so it cannot fail.
                state.disk.grow(self.ino, to);
                state.note(OpKind::AlignToUnit, &self.path);
            }
            Ok(to)
        })
    }

    fn sync_data(&self) -> Result<()> {
        self.sync(OpKind::SyncData, false)
    }

    fn sync_data_to(&self, to: u64) -> Result<()> {
        self.fs.call(|state| {
            self.check_poison()?;
            state.stats.syncs += 1;
            let result = self.lies_about_sync(state).map(|dropped| {
                if !dropped {
                    let unit = state.disk.unit;
                    state.disk.file_mut(self.ino).make_durable_to(to, unit);
                }
            });
            state.note(OpKind::SyncData, &self.path);
            result
        })
    }

    fn sync_all(&self) -> Result<()> {
        self.sync(OpKind::SyncAll, true)
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        self.fs.call(|state| {
            let f = state.disk.file(self.ino);
            let n = f.alloc.saturating_sub(offset).min(len as u64) as usize;
            let bytes = f.live.to_vec(offset, n);
            state.stats.reads += 1;
            state.stats.bytes_read += n as u64;
            Ok(bytes.into())
        })
    }

    fn len(&self) -> u64 {
        let state = self.fs.state.lock();
        if self.appends && state.disk.file(self.ino).life == self.life {
            state.disk.file(self.ino).len
        } else {
            state.disk.len_hint(self.ino)
        }
    }

    fn allocated(&self) -> u64 {
        self.fs.state.lock().disk.file(self.ino).alloc
    }

    fn extend_log(&self, capacity: u64) -> Result<()> {
        self.fs.call(|state| {
            self.check_appends(state)?;
            let path = Path::new(&self.path);
            if !state.disk.file(self.ino).is_log {
                return Err(Error::invalid("only a log can be extended").in_file(path));
            }
            check_log_space(state, self.ino, capacity, path)?;
            extend_log(state, self.ino, capacity, OpKind::ExtendLog, path)
        })
    }

    fn release_range(&self, range: Range<u64>) -> Result<()> {
        self.fs.call(|state| {
            let f = state.disk.file(self.ino);
            let (alloc, len_after) = (f.alloc, f.len);
            let chunks = range.start.div_ceil(CHUNK)..range.end.min(alloc) / CHUNK;
            if chunks.is_empty() {
                return Ok(());
            }
            let seq = state.disk.next_seq();
            let f = state.disk.file_mut(self.ino);
            let before = f.holes.len();
            Arc::make_mut(&mut f.holes).extend(chunks.clone());
            let freed = (f.holes.len() - before) as u64;
            f.live.punch(chunks.clone());
            f.pending.push(PendingWrite {
                seq,
                at: chunks.start * CHUNK,
                change: Change::Punch((chunks.end - chunks.start) * CHUNK),
                len_after,
            });
            state.disk.give_chunks(freed);
            state.note(OpKind::ReleaseRange, &self.path);
            Ok(())
        })
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.fs.state.lock();
        let handles = state.open.get_mut(&self.ino).expect("counted when opened");
        *handles -= 1;
        if *handles == 0 {
            state.open.remove(&self.ino);
            if state.disk.link_count(self.ino) == 0 {
                state.sweep();
            }
        }
    }
}

pub(super) fn no_space(path: &Path) -> Error {
    Error::new(ErrorKind::NoSpace, "the simulated disk is full").in_file(path)
}

/// Begins a new life of the space as a log. The written part stays, up to the first hole.
pub(super) fn begin_life(state: &mut DiskState, ino: Ino) {
    let unit = state.disk.unit;
    let f = state.disk.file_mut(ino);
    if let Some(&hole) = f.holes.first() {
        f.cut_space(hole * CHUNK, unit);
    }
    f.is_log = true;
    f.life += 1;
    f.len = 0;
    f.synced_end = 0;
    f.exact_len = 0;
    f.len_vague = true;
}

/// Returns `NoSpace` if the disk has no room for a log of this capacity.
pub(super) fn check_log_space(
    state: &DiskState,
    ino: Ino,
    capacity: u64,
    path: &Path,
) -> Result<()> {
    let have = state.disk.file(ino).chunks();
    if capacity.div_ceil(CHUNK).saturating_sub(have) > state.disk.free_chunks() {
        return Err(no_space(path));
    }
    Ok(())
}

/// Writes zeros up to `capacity` and makes them durable. The space is taken first, and then
/// written. Unsynced appends stay unsynced.
pub(super) fn extend_log(
    state: &mut DiskState,
    ino: Ino,
    capacity: u64,
    call: OpKind,
    path: &Path,
) -> Result<()> {
    let f = state.disk.file(ino);
    let have = f.alloc;
    if capacity <= have {
        return Ok(());
    }
    let chunks = capacity.div_ceil(CHUNK) - have.div_ceil(CHUNK);
    state.disk.take_chunks(chunks);
    let unit = state.disk.unit;
    let f = state.disk.file_mut(ino);
    f.live.cut(have.next_multiple_of(unit));
    f.alloc = capacity;
    f.len_vague = true;
    state.note(call, &text(path));

    let f = state.disk.file_mut(ino);
    f.durable.cut(f.durable_alloc.next_multiple_of(unit));
    f.durable_alloc = capacity;
    state.stats.bytes_prewritten += capacity - have;
    state.stats.writes += 1;
    state.stats.syncs += 1;
    state.note(call, &text(path));
    Ok(())
}

/// Completions of reads, in an order that the seed chooses. `try_next` sometimes returns nothing
/// although reads are left.
pub(super) struct SimReads {
    left: Vec<(usize, ReadRequest)>,
    rng: Rng,
}

impl SimReads {
    pub(super) fn new(reads: Vec<ReadRequest>, seed: u64) -> SimReads {
        SimReads {
            left: reads.into_iter().enumerate().collect(),
            rng: Rng::new(seed),
        }
    }
}

impl ReadCompletions for SimReads {
    fn next(&mut self) -> Option<(usize, Result<Bytes>)> {
        if self.left.is_empty() {
            return None;
        }
        let i = self.rng.below(self.left.len() as u64) as usize;
        let (index, r) = self.left.swap_remove(i);
        Some((index, r.file.read(r.offset, r.len)))
    }

    fn try_next(&mut self) -> Option<(usize, Result<Bytes>)> {
        if self.rng.percent(25) {
            return None;
        }
        self.next()
    }
}
