//! An open file: where its bytes lie, appends, reads, syncs.
//!
//! # What the fields promise
//! - `pos` is where the next append goes; it moves under `tail` only. `alloc` is how far its space goes.
//! - Reads are legal as far as [`Node::readable`] says: of a growing file to its end, where that is known.
//! - `extents` shares the list that the metadata has, and is the only owner of it once the file has no name. It changes
//!   through [`Node::show_extents`] alone, which the state calls under its lock.
//! - `record` is the number of the last record about it: a sync sees to it that a transaction has it.
//! - `[lazy_from, lazy_end)` may lie in the page cache and is read from there.

use std::any::Any;
use std::io::IoSlice;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, RwLock};

use super::Shared;
use super::buffer::Buffered;
use super::counts::Cause;
use super::meta::Facts;
use super::record::{Ino, Kind, Record};
use super::runs::{BLOCK, Extent, Extents, MAX_FILE_BLOCKS};
use super::state::Change;
use basalt_fs::device::{DeviceRead, Way};
use basalt_fs::{AlignedBuf, Bytes, Error, ErrorKind, File, Intent, Result};

/// From here on, whole units of a growing file go to the device directly even when no sync is near.
const DIRECT_MIN: usize = 64 << 10;
/// A file grows by as much as it has, up to this many blocks at once: an extent of 1 MiB.
const AHEAD_MAX: u64 = (1 << 20) / BLOCK;
/// Space that no append has asked for is at most this part of what is free: [`File::append`].
const AHEAD_PART: u64 = 64;

static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// How a node is held.
pub enum Hold {
    /// It has a name, and the table of open files counts its handles.
    Named,
    /// It has none: so many handles, and the record that took the last name.
    Nameless(usize, u64),
    /// Its space went to a new life.
    Over,
}

/// Under the lock of appends.
#[derive(Default)]
pub struct Tail {
    /// Up to here the last page was filled through the page cache.
    filled_to: u64,
    /// First released block at or behind the append position, if there is one. The append that reaches it takes space
    /// anew.
    hole_ahead: Option<u64>,
}

/// What the handles of one file share.
pub struct Node {
    pub ino: Ino,
    pub hold: Mutex<Hold>,
    kind: Kind,
    tail: Mutex<Tail>,
    extents: RwLock<Extents>,
    pos: AtomicU64,
    alloc: AtomicU64,
    /// It may go on behind `pos`: it was not appended to since the image was mounted, and its length was not recorded before.
    vague: bool,
    /// The metadata says that the file ends at its length.
    exact: AtomicBool,
    pub record: AtomicU64,
    /// Or has space for it.
    appended: AtomicBool,
    lazy_from: AtomicU64,
    lazy_end: AtomicU64,
    appends_failed: OnceLock<Error>,
    syncs_failed: OnceLock<Error>,
    pub buffered: Mutex<Buffered>,
    /// Reads from here on look there first; `u64::MAX` when there is nothing.
    pub buffered_from: AtomicU64,
    /// A buffer is on the device, or never will be.
    pub writes_landed: Condvar,
}

impl Node {
    pub fn new(ino: Ino, facts: Facts, extents: Extents) -> Node {
        Node {
            ino,
            hold: Mutex::new(Hold::Named),
            kind: facts.kind,
            tail: Mutex::default(),
            alloc: AtomicU64::new(extents.blocks() * BLOCK),
            extents: RwLock::new(extents),
            pos: AtomicU64::new(facts.len),
            vague: facts.vague,
            exact: AtomicBool::new(!facts.vague),
            record: AtomicU64::new(0),
            appended: AtomicBool::new(false),
            lazy_from: AtomicU64::new(0),
            lazy_end: AtomicU64::new(0),
            appends_failed: OnceLock::new(),
            syncs_failed: OnceLock::new(),
            buffered: Mutex::default(),
            buffered_from: AtomicU64::new(u64::MAX),
            writes_landed: Condvar::new(),
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn fail_appends(&self, e: &Error) {
        let _ = self.appends_failed.set(e.clone());
    }

    pub fn fail_syncs(&self, e: &Error) {
        let _ = self.syncs_failed.set(e.clone());
    }

    /// The last name went with this record. Space that it gets from here on is in no record: so a sync makes sure that the name is gone.
    pub fn lose_name(&self, handles: usize, record: u64) {
        self.record.fetch_max(record, SeqCst);
        *self.hold.lock() = Hold::Nameless(handles, record);
    }

    /// Its space goes to a new life: nobody appends here any more.
    pub fn end(&self) {
        *self.hold.lock() = Hold::Over;
        let _ = self.appends_failed.set(Error::new(
            ErrorKind::Poisoned,
            "the space of this log was taken over by another",
        ));
    }

    /// Changes the list that readers see. For the state, under its lock.
    pub fn show_extents<R>(&self, change: impl FnOnce(&mut Extents) -> R) -> R {
        let mut extents = self.extents.write();
        let done = change(&mut extents);
        self.alloc.store(extents.blocks() * BLOCK, SeqCst);
        done
    }

    /// Whether it has a name; an error when its space is another's. Asked under the state's lock.
    fn is_named(&self, path: &Path) -> Result<bool> {
        match *self.hold.lock() {
            Hold::Named => Ok(true),
            Hold::Nameless(..) => Ok(false),
            Hold::Over => Err(Error::new(
                ErrorKind::Poisoned,
                "the space of this log was taken over by another",
            )
            .in_file(path)),
        }
    }

    /// Nobody appends while this is held.
    pub fn still(&self) -> impl Sized + '_ {
        self.tail.lock()
    }

    pub fn was_appended(&self) -> bool {
        self.appended.load(SeqCst)
    }

    /// Bytes and space as they are known here.
    pub fn sizes(&self) -> (u64, u64) {
        (self.pos.load(SeqCst), self.readable())
    }

    /// How far reads are legal.
    fn readable(&self) -> u64 {
        match self.kind {
            Kind::File if !self.vague => self.pos.load(SeqCst),
            _ => self.alloc.load(SeqCst),
        }
    }

    /// The records that make the metadata say what is so, when nobody appends any more.
    pub fn settled(&self) -> Vec<Record> {
        if self.exact.load(SeqCst) {
            // Since the last sync of all of it nothing came.
            return Vec::new();
        }
        let mut pos = self.pos.load(SeqCst);
        if let Some(failed) = self.buffered.lock().failed_at() {
            // Nobody knows what lies there.
            pos = pos.min(failed);
        }
        let mut records = Vec::new();
        if self.kind == Kind::File {
            records.extend(self.cut_to(pos));
        }
        let len = pos;
        records.push(Record::Length { ino: self.ino, len });
        records
    }

    fn cut_to(&self, pos: u64) -> Option<Record> {
        let blocks = pos.div_ceil(BLOCK);
        let ino = self.ino;
        (self.extents.read().blocks() > blocks).then_some(Record::Cut { ino, blocks })
    }

    fn poisoned(&self, cause: &Error, path: &Path) -> Error {
        Error::new(
            ErrorKind::Poisoned,
            format!(
                "an earlier write or sync of this file failed, and what it left on the device is unknowable; \
                 begin a new file or reopen the store (first failure: {cause})"
            ),
        )
        .in_file(path)
    }
}

/// A handle.
pub struct LavaFile {
    pub fs: Arc<Shared>,
    pub node: Arc<Node>,
    pub path: PathBuf,
    /// Made by `create` or `create_log`.
    pub appends: bool,
}

impl Drop for LavaFile {
    fn drop(&mut self) {
        if self.node.has_buffered() {
            // Errors are told to nobody, as those of the page cache are.
            let _ = self.drain(&mut self.node.tail.lock());
        }
        self.fs.state.lock().release(&self.node);
        if !self.fs.read_only {
            // An error concerns the next sync, which finds the records that are still waiting.
            let _ = self.fs.relieve();
        }
    }
}

impl LavaFile {
    fn check_syncs(&self) -> Result<()> {
        match self.node.syncs_failed.get() {
            Some(e) => Err(self.node.poisoned(e, &self.path)),
            None => Ok(()),
        }
    }

    fn check_appends(&self) -> Result<()> {
        if !self.appends {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "the file was opened for reading; appends go through the handle that created it",
            )
            .in_file(&self.path));
        }
        self.check_syncs()?;
        match self.node.appends_failed.get() {
            Some(e) => Err(self.node.poisoned(e, &self.path)),
            None => self.fs.check_writable(),
        }
    }

    /// Space for at least `bytes`. With `ahead`, as much more as a growing file had better have.
    pub fn grow(&self, bytes: u64, ahead: bool) -> Result<()> {
        let blocks = bytes.div_ceil(BLOCK);
        if blocks > MAX_FILE_BLOCKS {
            return Err(
                Error::invalid(format!("{bytes} bytes pass the largest file")).in_file(&self.path),
            );
        }
        let node = &self.node;
        // Whoever else takes what comes free may do so more than once, and not for ever.
        let (mut tries, full) = (0, || {
            Error::new(
                ErrorKind::NoSpace,
                "the image is full; remove something (`basalt fs rm`), or `basalt fs grow` it",
            )
            .in_file(&self.path)
        });
        loop {
            let mut state = self.fs.state.lock();
            let named = node.is_named(&self.path)?;
            let has = node.extents.read().blocks();
            if has >= blocks {
                return Ok(());
            }
            let need = blocks - has;
            let like = match ahead {
                true => {
                    let most = AHEAD_MAX.min(state.available() / AHEAD_PART);
                    need.max(has.min(most)).min(MAX_FILE_BLOCKS - has)
                }
                false => need,
            };
            let near = node.extents.read().next_place();
            let Some(runs) = state.allocate(need, like, near) else {
                let waiting = state.blocks.waiting() > 0;
                if tries == 16 || !waiting {
                    return Err(full());
                }
                drop(state);
                // What removed files had is free once their removal is durable.
                self.fs.sync_all_metadata()?;
                self.fs.wait_for_discards();
                tries += 1;
                continue;
            };
            state.change(node, named, Change::Grow(runs));
            if named {
                node.exact.store(false, SeqCst);
            }
            drop(state);
            // An error concerns the next sync: the space is there.
            let _ = self.fs.relieve();
            return Ok(());
        }
    }

    /// What lies behind the first hole goes: nobody appends to this any more, and its space is to be another's.
    pub fn cut_at_hole(&self) -> Result<()> {
        let node = &self.node;
        let _still = node.still();
        let mut state = self.fs.state.lock();
        let hole = node.extents.read().first_hole();
        let (true, Some(blocks)) = (node.is_named(&self.path)?, hole) else {
            return Ok(());
        };
        state.change(node, true, Change::Cut(blocks));
        Ok(())
    }

    /// Makes sure that an append up to the byte `end` meets no released block: the file's space is cut at the first
    /// one, and grows again from there. Nothing is lost by that, as nothing was appended there yet.
    fn cut_hole_ahead(&self, tail: &mut Tail, end: u64) -> Result<()> {
        let Some(blocks) = tail.hole_ahead.filter(|hole| end > hole * BLOCK) else {
            return Ok(());
        };
        let node = &self.node;
        let mut state = self.fs.state.lock();
        let named = node.is_named(&self.path)?;
        if node.extents.read().blocks() > blocks {
            state.change(node, named, Change::Cut(blocks));
        }
        tail.hole_ahead = None;
        Ok(())
    }

    /// The file does not end any more where the metadata says it does, if it says so.
    fn goes_on(&self) -> Result<()> {
        let node = &self.node;
        node.appended.store(true, SeqCst);
        if node.exact.swap(false, SeqCst) {
            // Not if space was added for it, which says as much: but that is seldom.
            let mut state = self.fs.state.lock();
            if node.is_named(&self.path)? {
                let record = state.record(&Record::Append { ino: node.ino });
                node.record
                    .store(record.expect("an open file with a name"), SeqCst);
            }
        }
        Ok(())
    }

    /// The pieces of the device that a range of the file lies in: bytes of the file, and where they lie; holes lie nowhere.
    pub fn pieces(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<u64>)> {
        let extents = self.node.extents.read();
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let within = extents.within(blocks).map(|Extent { at, len, place }| {
            let bytes = (at * BLOCK).max(range.start)..((at + len) * BLOCK).min(range.end);
            let place = place.map(|p| p * BLOCK + (bytes.start - at * BLOCK));
            (bytes, place)
        });
        within.collect()
    }

    fn write(&self, offset: u64, bufs: &[IoSlice<'_>], way: Way) -> Result<()> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();

        let pieces = self.pieces(offset..offset + total as u64);
        let device = &self.fs.device;
        let place = |p: Option<u64>| {
            p.ok_or_else(|| Error::corruption(&self.path, offset, "an append into a hole"))
        };
        if let [(_, at)] = &pieces[..] {
            return device.write(place(*at)?, bufs, way);
        }
        let mut rest = bufs.to_vec();
        let mut rest = &mut rest[..];
        for (bytes, at) in pieces {
            let mut left = (bytes.end - bytes.start) as usize;
            let mut now = Vec::new();
            for b in rest.iter() {
                let n = left.min(b.len());
                left -= n;
                if n > 0 {
                    now.push(IoSlice::new(&b[..n]));
                }
            }
            device.write(place(at)?, &now, way)?;
            IoSlice::advance_slices(&mut rest, (bytes.end - bytes.start) as usize);
        }
        Ok(())
    }

    /// How many of the leading bytes go to the device directly.
    fn direct_part(&self, offset: u64, total: usize, intent: Intent) -> usize {
        let unit = self.fs.facts.unit;
        if !self.fs.facts.direct || !offset.is_multiple_of(unit as u64) {
            return 0;
        }
        let whole = total / unit * unit;
        match intent {
            Intent::Sync | Intent::Bulk if whole == total => whole,
            _ if self.node.kind == Kind::File && whole >= DIRECT_MIN => whole,
            _ => 0,
        }
    }

    /// Appends at `offset`, where there is space.
    pub fn put(
        &self,
        tail: &mut Tail,
        offset: u64,
        bufs: &[IoSlice<'_>],
        intent: Intent,
    ) -> Result<()> {
        let node = &self.node;
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let end = offset + total as u64;
        let direct = self.direct_part(offset, total, intent);
        let (mut head, mut rest) = (Vec::new(), Vec::new());
        let mut left = direct;
        for b in bufs {
            let n = left.min(b.len());
            left -= n;
            let (now, later) = b.split_at(n);
            if !now.is_empty() {
                head.push(IoSlice::new(now));
            }
            if !later.is_empty() {
                rest.push(IoSlice::new(later));
            }
        }
        if !head.is_empty() {
            tail.filled_to = 0;
            self.write(offset, &head, Way::Direct)?;
            self.fs.counts.wrote(Cause::Data, direct as u64);
        }
        if !rest.is_empty() {
            let from = offset + direct as u64;
            if node.lazy_from.load(SeqCst) >= node.lazy_end.load(SeqCst) {
                node.lazy_from.store(from, SeqCst);
            }
            node.lazy_end.fetch_max(end, SeqCst);
            // A page that is only partly overwritten would first be read.
            if end > tail.filled_to {
                let to = end.next_multiple_of(BLOCK);
                rest.push(IoSlice::new(&ZEROS[..(to - end) as usize]));
                tail.filled_to = to;
            }
            self.write(from, &rest, Way::Cached)?;
            // What fills the page is written again by the next append.
            self.fs.counts.wrote(Cause::Data, end - from);
        }
        Ok(())
    }

    fn sync(&self, all: bool) -> Result<()> {
        self.check_syncs()?;
        let node = &self.node;
        if all && self.appends {
            self.check_appends()?;
            let mut tail = node.tail.lock();
            self.drain(&mut tail)?;
            let mut state = self.fs.state.lock();
            let pos = node.pos.load(SeqCst);
            let named = node.is_named(&self.path)?;
            let blocks = pos.div_ceil(BLOCK);
            if node.extents.read().blocks() > blocks {
                state.change(node, named, Change::Cut(blocks));
            }
            if named {
                let len = Record::Length {
                    ino: node.ino,
                    len: pos,
                };
                let n = state.record(&len).expect("an open file with a name");
                node.record.store(n, SeqCst);
                node.exact.store(true, SeqCst);
            }
        }
        if node.has_buffered() {
            self.drain(&mut node.tail.lock())?;
        }
        let lazy = node.lazy_end.load(SeqCst);
        self.fs
            .sync(node.record.load(SeqCst))
            .inspect_err(|e| self.sync_failed(e))?;
        node.lazy_from.fetch_max(lazy, SeqCst);
        Ok(())
    }

    /// Nobody knows what is durable; unless nothing was tried, for want of room in the journal.
    fn sync_failed(&self, e: &Error) {
        if e.kind() != ErrorKind::NoSpace || self.fs.check_writable().is_err() {
            self.node.fail_syncs(e);
        }
    }

    /// Syncs several files of one filesystem at once.
    pub fn sync_together(files: &[&LavaFile]) -> Result<()> {
        for f in files {
            // Known before anything was done, so it concerns none of the others.
            f.check_syncs()?;
        }
        for f in files.iter().filter(|f| f.node.has_buffered()) {
            f.drain(&mut f.node.tail.lock())?;
        }
        let Some(first) = files.first() else {
            return Ok(());
        };
        let lazy: Vec<u64> = (files.iter())
            .map(|f| f.node.lazy_end.load(SeqCst))
            .collect();
        let records = files.iter().map(|f| f.node.record.load(SeqCst));
        let done = first.fs.sync(records.max().unwrap_or(0));
        if let Err(e) = &done {
            files.iter().for_each(|f| f.sync_failed(e));
        }
        done?;
        for (f, lazy) in files.iter().zip(lazy) {
            f.node.lazy_from.fetch_max(lazy, SeqCst);
        }
        Ok(())
    }

    /// The reads of a range as far as the file goes; `None` where it is not one piece.
    pub fn plan(&self, offset: u64, len: usize) -> (Range<u64>, Option<DeviceRead>) {
        let node = &self.node;
        let end = offset.saturating_add(len as u64).min(node.readable());
        let range = offset.min(end)..end;
        let pieces = self.pieces(range.clone());
        let read = match &pieces[..] {
            [(bytes, Some(at))]
                if *bytes == range && range.end <= node.buffered_from.load(SeqCst) =>
            {
                Some(self.device_read(bytes, *at))
            }
            _ => None,
        };
        (range, read)
    }

    fn device_read(&self, bytes: &Range<u64>, at: u64) -> DeviceRead {
        let node = &self.node;
        let cached =
            bytes.start < node.lazy_end.load(SeqCst) && bytes.end > node.lazy_from.load(SeqCst);
        DeviceRead {
            offset: at,
            len: (bytes.end - bytes.start) as usize,
            way: if cached { Way::Cached } else { Way::Direct },
        }
    }

    /// Reads a range in pieces, some of which may not be on the device yet.
    pub fn gather(&self, range: Range<u64>) -> Result<Bytes> {
        let (from, buffered) = self.node.buffered.lock().copy(&range);
        let mut all = AlignedBuf::with_capacity((range.end - range.start) as usize);
        self.gather_into(range.start..from, &mut all)?;
        all.extend_from_slice(&buffered);
        self.gather_into(from + buffered.len() as u64..range.end, &mut all)?;
        Ok(Bytes::from_owner(all))
    }

    fn gather_into(&self, range: Range<u64>, all: &mut AlignedBuf) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        for (bytes, at) in self.pieces(range) {
            match at {
                None => {
                    let len = all.len() + (bytes.end - bytes.start) as usize;
                    all.resize(len, 0);
                }
                Some(at) => {
                    all.extend_from_slice(&self.fs.device.read(self.device_read(&bytes, at))?);
                }
            }
        }
        Ok(())
    }
}

impl File for LavaFile {
    fn append(&self, bufs: &[IoSlice<'_>], intent: Intent) -> Result<u64> {
        let node = &self.node;
        let mut tail = node.tail.lock();
        self.check_appends()?;
        let offset = node.pos.load(SeqCst);
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        if total == 0 {
            return Ok(offset);
        }
        let end = offset
            .checked_add(total as u64)
            .filter(|end| *end <= MAX_FILE_BLOCKS * BLOCK)
            .ok_or_else(|| {
                Error::invalid(format!("{total} bytes at {offset} pass the largest file"))
                    .in_file(&self.path)
            })?;
        let mut run = || -> Result<()> {
            self.cut_hole_ahead(&mut tail, end)?;
            if end > node.alloc.load(SeqCst) {
                self.grow(end, true)?;
            }
            self.goes_on()?;
            if intent == Intent::Bulk && self.gathers() {
                return self.put_buffered(&mut tail, offset, bufs);
            }
            self.drain(&mut tail)?;
            if intent == Intent::Lazy {
                // The bytes outlive this process only with the space that they lie in, and the name.
                self.fs.commit(node.record.load(SeqCst))?;
            }
            self.put(&mut tail, offset, bufs, intent)
        };
        run()
            .map_err(|e| e.at(&self.path, offset))
            .inspect_err(|e| {
                node.fail_appends(e);
            })?;
        node.pos.store(end, SeqCst);
        Ok(offset)
    }

    fn align_to_unit(&self) -> Result<u64> {
        let mut tail = self.node.tail.lock();
        self.check_appends()?;
        self.drain(&mut tail)?;
        let pos = self.node.pos.load(SeqCst);
        let aligned = pos.next_multiple_of(self.fs.facts.unit as u64);
        if aligned != pos {
            self.grow(aligned, false)?;
            self.goes_on()?;
        }
        self.node.pos.store(aligned, SeqCst);
        Ok(aligned)
    }

    fn sync_data(&self) -> Result<()> {
        self.sync(false)
    }

    fn sync_all(&self) -> Result<()> {
        self.sync(true)
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let (range, read) = self.plan(offset, len);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let done = match read {
            Some(read) => self.fs.device.read(read),
            None => self.gather(range),
        };
        done.map_err(|e| e.at(&self.path, offset))
    }

    fn len(&self) -> u64 {
        self.node.pos.load(SeqCst)
    }

    fn allocated(&self) -> u64 {
        self.node.readable()
    }

    fn extend_log(&self, capacity: u64) -> Result<()> {
        if self.node.kind != Kind::Log {
            return Err(
                Error::invalid("space is written ahead only in logs, made by create_log")
                    .in_file(&self.path),
            );
        }
        self.check_appends()?;
        self.cut_hole_ahead(&mut self.node.tail.lock(), capacity)?;
        self.grow(capacity, false)?;
        self.sync(false)
    }

    fn expect_appends(&self, to: u64) {
        if self.check_appends().is_ok() {
            // What cannot be had, the append itself meets. What nobody appends to goes back with the last handle.
            let _ = self.grow(to, false);
            self.node.appended.store(true, SeqCst);
        }
    }

    fn release_range(&self, range: Range<u64>) -> Result<()> {
        let blocks = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        if blocks.start >= blocks.end {
            return Ok(());
        }
        self.fs.check_writable()?;
        let node = &self.node;
        // Blocks that are written to are not given back.
        let mut tail = node.tail.lock();
        self.drain(&mut tail)?;
        let pos = node.pos.load(SeqCst);
        // The next append begins inside of this block, beside bytes that a sync may have covered.
        let kept = (!pos.is_multiple_of(BLOCK)).then_some(pos / BLOCK);
        let parts = match kept.filter(|kept| blocks.contains(kept)) {
            Some(kept) => [blocks.start..kept, kept + 1..blocks.end],
            None => [blocks, 0..0],
        };
        let mut state = self.fs.state.lock();
        let Ok(named) = node.is_named(&self.path) else {
            return Ok(());
        };
        for part in parts {
            let part = {
                let extents = node.extents.read();
                let part = part.start..part.end.min(extents.blocks());
                if extents.within(part.clone()).all(|e| e.place.is_none()) {
                    continue;
                }
                part
            };
            let ahead = part.start.max(pos.div_ceil(BLOCK));
            if ahead < part.end {
                tail.hole_ahead = Some(tail.hole_ahead.map_or(ahead, |hole| hole.min(ahead)));
            }
            state.change(node, named, Change::Punch(part));
        }
        drop((state, tail));
        // An error concerns the next sync: the space is given back.
        let _ = self.fs.relieve();
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
