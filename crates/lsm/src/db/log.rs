//! The engine's logs: the active one, the spare prepared ahead of it, and old ones kept for their written space.
//!
//! A log's life: *prepared* (space written or recycled, header synced, name durable), *live* (named in the manifest, before any
//! record is acknowledged in it), *left* (records go to the next log; its end is recorded in the manifest, and not synced), *ended*
//! (everything before that end is synced), *removed* (its memtables are in tables; the manifest forgets it), then *recycled* for a
//! later log's space, or deleted.
//!
//! A log of unsynced writes goes from left to removed without a sync: it is deleted, and most of its pages never reach the device. One that is
//! mostly large values stays, and many of these at a time go to the device at once.
//! Only space that synced appends will use is written ahead and recycled. The first sync after it settles it: all logs left are synced and ended before
//! the sync of a later one, so that what a power cut leaves is a prefix, and a log that lost its end takes only unsynced writes of
//! later logs with it. Decision 0016.

use super::engine::{Engine, RETRY_PAUSE, Writer};
use super::generation::GenerationLog;
use super::throttle::{Patience, Room};
use crate::blob::BLOCK;
use crate::listener::Event;
use crate::memtable::MemTable;
use crate::options::Compression;
use crate::version::edit::Edit;
use crate::version::{BlobFile, log_name};
use crate::wal::{COMPRESSED_VALUES, FileHeader, FileKind, LARGEST_UNIT, Outgoing, RecordWriter};
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_env::{JobPriority, MemoryKind, Reservation};
use basalt_fs::{Error, ErrorKind, LogOptions, Reach, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The first log's written space: idle stores cost little; logs grow towards the write buffer's size as they are used.
const FIRST_LOG_BYTES: u64 = 256 << 10;
/// A log ends at so many times the write buffer's size, whatever the memtables hold: small synced writes are padded to the
/// write unit and fill a log faster than a memtable.
const LOG_PER_BUFFER: u64 = 2;
/// The next log of large values has whole blocks if that costs at most this part of it.
const BLOCKS_WORTH: u64 = 16;
/// A group waits at most so long for the memory of other stores. Then it goes in past the budget: others may take what
/// comes back, or a store may be unable to keep its promise.
pub(super) const LONGEST_MEMORY_WAIT: Duration = Duration::from_secs(2);
/// Old logs kept for reuse.
const RECYCLED_LOGS: usize = 2;

/// Path of a log.
pub(crate) fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(log_name(number))
}

/// What a group asks for.
pub(super) struct GroupSize {
    /// Bytes that it takes in the log.
    pub bytes: u64,
    /// Bytes that memtables get of it at most: values in them are decompressed.
    pub memory: u64,
    /// Operations.
    pub entries: u64,
    /// It has compressed values.
    pub packed: bool,
}

/// A log that takes records.
pub(crate) struct ActiveLog {
    pub number: u64,
    pub file_id: u128,
    pub writer: RecordWriter,
    /// The writer's staging buffer in the ledger.
    booked: Reservation,
    /// Its header says that values in it may be compressed.
    packed: bool,
    /// Records in it were synced: its space is worth writing ahead of them.
    synced: bool,
}

impl ActiveLog {
    /// Gives its staging buffer back.
    fn release_memory(&mut self) {
        self.writer.release_memory();
        self.booked.resize(0);
    }
}

struct Space {
    spare: Option<ActiveLog>,
    preparing: bool,
    /// A batch with compressed values came.
    packs: bool,
    /// Logs whose space a job is writing ahead, or will. Such a job may come late, when the log is long gone: the
    /// space of a log that stands here is not used again, or zeros would go over another log's records.
    extending: BTreeSet<u64>,
    recycled: Vec<PathBuf>,
    /// Logs that are blob files now and have not given back what they need not hold: somebody copied them then.
    untrimmed: Vec<Arc<BlobFile>>,
    /// Logs that somebody copies, and how many do: their space is not used again.
    pinned: BTreeMap<u64, usize>,
    /// Where the last log ended: the next one's size.
    last_end: u64,
    /// Records in the last log were synced; `None` when there was none yet.
    synced: Option<bool>,
    /// Most of the last log were large values.
    large: bool,
    /// The next log's write unit, if it is above the filesystem's. Large values begin and end at blocks, where that costs little: the kernel zeroes what is left of a block that is
    /// written for the first time, and writes that, too.
    unit: u32,
    /// The filesystem cannot take back a part of a file.
    keeps_all: bool,
}

/// Spare and recycled logs.
pub(crate) struct LogSpace(Mutex<Space>);

impl LogSpace {
    pub fn new() -> LogSpace {
        LogSpace(Mutex::new(Space {
            spare: None,
            preparing: false,
            packs: false,
            extending: BTreeSet::new(),
            recycled: Vec::new(),
            untrimmed: Vec::new(),
            pinned: BTreeMap::new(),
            last_end: 0,
            synced: None,
            large: false,
            unit: 0,
            keeps_all: false,
        }))
    }

    /// Whether a log can give back what is no large value.
    pub fn can_trim(&self) -> bool {
        !self.0.lock().keeps_all
    }
}

/// Logs kept from being used again while they are copied. One that is removed meanwhile can be read through handles opened before.
pub(crate) struct PinnedLogs<'a> {
    space: &'a LogSpace,
    numbers: Vec<u64>,
}

impl LogSpace {
    pub fn pin(&self, numbers: Vec<u64>) -> PinnedLogs<'_> {
        let mut space = self.0.lock();
        for n in &numbers {
            *space.pinned.entry(*n).or_default() += 1;
        }
        drop(space);
        PinnedLogs {
            space: self,
            numbers,
        }
    }
}

impl Drop for PinnedLogs<'_> {
    fn drop(&mut self) {
        let mut space = self.space.0.lock();
        for n in &self.numbers {
            match space.pinned.get_mut(n) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    space.pinned.remove(n);
                }
            }
        }
    }
}

impl Engine {
    fn log_limit(&self) -> u64 {
        self.options.write_buffer_bytes * LOG_PER_BUFFER
    }

    fn prepare_log(&self) -> Result<ActiveLog> {
        let number = self.new_file_number();
        let path = log_path(&self.dir, number);
        let room = self.room_ahead();
        let (reuse, capacity, expected, unit) = {
            let mut space = self.logs.0.lock();
            let target = self.log_limit();
            let least = FIRST_LOG_BYTES.min(target);
            // Space is written ahead for synced appends, which pay twice where it is not; others do not notice. Large values pay
            // less for their sync than zeros of their length would cost, and their logs stay.
            let capacity = match space.synced {
                // What is left of the disk is needed elsewhere.
                _ if self.full.is_refusing() => 0,
                None => least,
                Some(true) if !space.large => space.last_end.clamp(least, target),
                Some(_) => 0,
            };
            let expected = match space.synced {
                Some(true) if space.large => space.last_end.min(target),
                _ => 0,
            };
            let capacity = if capacity <= room { capacity } else { 0 };
            let expected = expected.min(room);
            (space.recycled.pop(), capacity, expected, space.unit)
        };
        // Asking more of recycled space than it has would zero the difference now; let it grow in the background.
        let capacity = if reuse.is_some() { 0 } else { capacity };
        let made = self.begin_log(number, &path, unit, capacity, reuse.as_deref());
        if made.is_err() {
            // No manifest names either file. One that cannot be removed is an orphan, which the next open removes.
            self.tables.remove_once(&path);
            if let Some(old) = &reuse {
                self.tables.remove_once(old);
            }
        }
        match (made, reuse) {
            // Somebody, a checkpoint for one, has a second name for it.
            (Err(e), Some(_)) if e.kind() == ErrorKind::InvalidArgument => {
                self.begin_log(number, &path, unit, capacity, None)
            }
            (made, _) => made,
        }
        .inspect(|log| log.writer.file().expect_appends(expected))
    }

    fn begin_log(
        &self,
        number: u64,
        path: &Path,
        unit: u32,
        capacity: u64,
        reuse: Option<&Path>,
    ) -> Result<ActiveLog> {
        let fs = self.env.fs();
        let packed = self.packs_values();
        let file_id = self.env.random().next_u128();
        let file = fs.create_log(path, LogOptions { capacity, reuse })?;
        let header = FileHeader {
            kind: FileKind::Log,
            file_id,
            store_id: self.store_id,
            number,
            write_unit: unit.max(fs.info().write_unit as u32),
            compatible: 0,
            incompatible: if packed { COMPRESSED_VALUES } else { 0 },
            previous: None,
        };
        let mut writer = RecordWriter::create(file, path, &header)?;
        // The header is durable before the manifest names the log: from then on a missing header is damage.
        writer.sync()?;
        fs.sync_metadata(&self.dir)?;
        Ok(ActiveLog {
            number,
            file_id,
            writer,
            booked: self.env.ledger().reserve(MemoryKind::Buffer, 0),
            packed,
            synced: false,
        })
    }

    /// Whether batches with compressed values come, or may. Builds that do not know these are to refuse a log by its header: what it holds behind a
    /// record that they cannot verify they would take for a torn tail.
    fn packs_values(&self) -> bool {
        let view = self.view();
        let mut families = view.families.values();
        families.any(|f| f.options.blob_compression != Compression::None)
            || self.logs.0.lock().packs
    }

    /// A group comes. True when the log is not for it: it has compressed values, and the log's header does not say so.
    fn is_unfit(&self, writer: &Writer, packed: bool) -> bool {
        if packed {
            self.logs.0.lock().packs = true;
        }
        packed && writer.log.as_ref().is_some_and(|l| !l.packed)
    }

    fn make_live(self: &Arc<Self>, log: &ActiveLog) -> Result<()> {
        let edit = Edit {
            add_logs: vec![(log.number, log.file_id)],
            ..Edit::default()
        };
        self.install(edit, vec![log_path(&self.dir, log.number)], |_, _| ())
    }

    fn ensure_log<'w>(self: &Arc<Self>, writer: &'w mut Writer) -> Result<&'w mut ActiveLog> {
        if writer.log.is_none() {
            // Logs are used in the order of their numbers, which recovery relies on: a spare on its way is waited for.
            self.env.jobs().wait_until(None, &mut || {
                !self.logs.0.lock().preparing || self.check_jobs().is_err()
            });
            self.check_jobs()?;
            let packs = self.packs_values();
            let unfit = |space: &Space| space.spare.as_ref().is_some_and(|s| packs && !s.packed);
            if unfit(&self.logs.0.lock()) {
                // It was prepared before the first family came whose values are compressed.
                self.release_logs()?;
            }
            let spare = self.logs.0.lock().spare.take();
            let log = match spare {
                Some(log) => log,
                None => {
                    let log = self.prepare_log()?;
                    self.make_live(&log)?;
                    log
                }
            };
            self.active_generation().set_log(GenerationLog {
                number: log.number,
                file_id: log.file_id,
                file: log.writer.file().clone(),
            });
            writer.log = Some(log);
        }
        Ok(writer.log.as_mut().expect("just made"))
    }

    /// Appends a group of records, and syncs it when asked. A failure leaves the log in doubt: writes halt until
    /// [`Engine::resume`] has put everything acknowledged into tables and begun a new log.
    pub fn append_to_log(
        self: &Arc<Self>,
        writer: &mut Writer,
        records: &mut [Outgoing<'_>],
        sync: bool,
    ) -> Result<()> {
        if sync {
            // Many small ones together are small ones.
            let smallest = records.iter().map(|r| r.buf.len()).min();
            self.env
                .foreground_io()
                .foreground_sync(smallest.unwrap_or(0));
            self.end_left_logs(writer)?;
        }
        let log = self.ensure_log(writer)?;
        let before = log.writer.end();
        let result = log.writer.append(records, sync);
        let staging = log.writer.memory() as u64;
        if staging != log.booked.bytes() {
            log.booked.resize(staging);
        }
        self.counters
            .wal_bytes
            .add(log.writer.end().saturating_sub(before));
        if sync {
            log.synced = true;
            self.counters.log_syncs.add(1);
        }
        result.map_err(|e| self.halt(e))
    }

    /// Makes every record so far durable.
    pub fn sync_log(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        self.resume_if_halted(writer)?;
        self.env.foreground_io().foreground_sync(0);
        self.end_left_logs(writer)?;
        let Some(log) = writer.log.as_mut() else {
            return Ok(());
        };
        if log.writer.synced() >= log.writer.end() {
            return Ok(());
        }
        self.counters.log_syncs.add(1);
        log.synced = true;
        log.writer.sync().map_err(|e| self.halt(e))
    }

    /// Syncs the logs that were left and records it: nothing in a later log may be durable before.
    fn end_left_logs(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        if writer.left.is_empty() {
            return Ok(());
        }
        self.forget_removed_logs(writer);
        let mut edit = Edit::default();
        for log in &mut writer.left {
            self.counters.log_syncs.add(1);
            if let Err(e) = log.writer.sync() {
                return Err(self.halt(e));
            }
            edit.end_logs.push((log.number, log.writer.end()));
        }
        if !edit.end_logs.is_empty() {
            self.install(edit, Vec::new(), |_, _| ())?;
        }
        writer.left.clear();
        Ok(())
    }

    /// Lets go of logs whose memtables are in tables.
    pub fn forget_removed_logs(&self, writer: &mut Writer) {
        if writer.left.is_empty() {
            return;
        }
        let state = self.state.lock();
        let (live, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut writer.left)
            .into_iter()
            .partition(|l| state.catalog.logs.contains_key(&l.number));
        drop(state);
        writer.left = live;
        if !gone.is_empty() && !self.closing.load(SeqCst) {
            // With the last handle of a removed file the kernel frees its pages, some milliseconds for a log: no writer's affair.
            self.env
                .jobs()
                .spawn(self.owner, JobPriority::Housekeeping, move || drop(gone));
        }
    }

    /// Notes that writes cannot go on before the store is mended, and words the error for the writers it concerns.
    fn halt(self: &Arc<Self>, cause: Error) -> Error {
        let error = cause
            .context("the write-ahead log failed; nothing of this write is acknowledged")
            .with_reach(Reach::Store);
        self.state.lock().halt = Some(error.clone());
        self.tell(|| Event::BackgroundError {
            during: "log",
            error: error.clone(),
        });
        self.retry_later();
        error
    }

    /// Mends a halted store if it is time for another try: writes all memtables out, so that nothing depends on the log in doubt.
    pub fn resume_if_halted(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        let Some(error) = self.state.lock().halt.clone() else {
            return Ok(());
        };
        let now = self.env.clock().now();
        if writer.last_resume.is_some_and(|t| now < t + RETRY_PAUSE) {
            return Err(error);
        }
        writer.last_resume = Some(now);
        self.resume(writer).map_err(|_| error)
    }

    fn resume(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        if let Some(log) = &writer.log {
            // A generation without entries is sealed too when it has the log in doubt: flushing it forgets the log.
            let number = log.number;
            self.change_view(|state, view| {
                if view.active.log() == number {
                    self.seal_active(state, view);
                }
            });
        }
        // Every writer waits for this.
        let urgent = self.env.foreground_io().urgent();
        self.flush_all()?;
        drop(urgent);
        writer.log = None;
        writer.left.clear();
        if self.manifest.lock().manifest.in_doubt() {
            self.install(Edit::default(), Vec::new(), |_, _| ())?;
        }
        self.state.lock().halt = None;
        Ok(())
    }

    /// Ends the active log and seals its memtables.
    pub fn rotate(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        let mut edit = Edit::default();
        if let Some(log) = &writer.log {
            let end = log.writer.end();
            if log.writer.synced() < end {
                edit.left_logs.push((log.number, end));
            } else {
                edit.end_logs.push((log.number, end));
            }
            let mut space = self.logs.0.lock();
            space.last_end = end;
            space.synced = Some(log.synced);
            space.large = self.active_generation().separated_bytes() > end / 2;
            let (bytes, more) = log.writer.in_blocks();
            let worth = more + u64::from(LARGEST_UNIT) <= bytes / BLOCKS_WORTH;
            space.unit = match space.large && log.synced && worth {
                true => LARGEST_UNIT,
                false => 0,
            };
        }
        self.install(edit, Vec::new(), |state, view| {
            self.seal_active(state, view)
        })?;
        self.forget_removed_logs(writer);
        if let Some(mut log) = writer.log.take()
            && log.writer.synced() < log.writer.end()
        {
            log.release_memory();
            writer.left.push(log);
        }
        self.schedule();
        Ok(())
    }

    /// Room for a group before it takes sequence numbers: mends a halted store, holds the group back as far as background work is
    /// behind, rotates a full memtable, and books what the memtables will grow by.
    pub fn make_room(
        self: &Arc<Self>,
        writer: &mut Writer,
        group: &GroupSize,
        patience: Patience,
    ) -> Result<Room> {
        self.check_open()?;
        self.check_jobs()?;
        self.resume_if_halted(writer)?;
        if let later @ Room::Later(_) = self.hold_back(writer, patience)? {
            return Ok(later);
        }
        let limit = self.options.write_buffer_bytes;
        let unfit = self.is_unfit(writer, group.packed);
        let (mut rotated, mut alone) = (false, false);
        loop {
            let generation = self.active_generation();
            let memory = generation.memory();
            // A batch that a memtable keeps takes a slot, which is about a sixteenth larger. The
            // next group books the exact size of the slots.
            let payload = group.memory + group.memory / 16;
            let growth = MemTable::growth(memory, payload, group.entries);
            let scarce = self.env.ledger().free() < growth && !alone;
            if scarce {
                self.env.relief().ask(growth);
            }
            let log_full = writer
                .log
                .as_ref()
                .is_some_and(|l| l.writer.end() >= self.log_limit());
            let cramped = self.check_recoverable(writer, group).is_err();
            let full = unfit
                || memory >= limit
                || log_full
                || self.is_memory_wanted(&generation)
                || (cramped && !generation.is_empty());
            if full && !rotated {
                if let later @ Room::Later(_) = self.wait_for_flush(patience)? {
                    return Ok(later);
                }
                self.rotate(writer)?;
                rotated = true;
                continue;
            }
            // What stores have sealed gives its memory back. When none has anything to give, the group goes in alone.
            if scarce {
                let now = self.env.clock().now();
                let since = *writer.short_of_memory.get_or_insert(now);
                if let later @ Room::Later(_) = self.wait_for_memory(growth, patience, rotated)? {
                    if now.saturating_sub(since) < LONGEST_MEMORY_WAIT {
                        return Ok(later);
                    }
                    alone = true;
                    continue;
                }
                let waited = self.env.clock().now().saturating_sub(since);
                let relief = self.env.relief();
                // Stepped, the wait ends before the promised bytes come if no job is left.
                let in_vain = self.env.jobs().is_stepped() && relief.coming() > 0;
                alone = self.env.ledger().free() < growth
                    && (rotated || !self.is_memory_wanted(&generation))
                    && (in_vain || waited >= LONGEST_MEMORY_WAIT || !relief.ask(growth));
                continue;
            }
            if cramped
                && let later @ Room::Later(_) = self.make_recoverable(writer, group, patience)?
            {
                return Ok(later);
            }
            writer.recoverable = writer.recoverable.saturating_sub(group.recovery_cost());
            writer.short_of_memory = None;
            generation.book(memory + growth);
            self.note_memory(memory + growth);
            self.env.relief().look_ahead();
            self.charge(writer, group.bytes);
            self.let_in();
            return Ok(Room::Ready);
        }
    }

    /// Frees the disk space that a recovery would need with this group in the log. Flushes the
    /// sealed memtables, then deletes unused logs. The active memtables must be empty.
    ///
    /// Errors: `NoSpace` if the freed space is not enough.
    fn make_recoverable(
        self: &Arc<Self>,
        writer: &mut Writer,
        group: &GroupSize,
        patience: Patience,
    ) -> Result<Room> {
        if let later @ Room::Later(_) = self.wait_for_all_flushes(patience)? {
            return Ok(later);
        }
        self.forget_removed_logs(writer);
        if self.check_recoverable(writer, group).is_err() {
            self.release_logs()?;
            let checked = self.check_recoverable(writer, group);
            checked.map_err(|shortage| self.refuse(&shortage))?;
        }
        Ok(Room::Ready)
    }

    /// Keeps written space ahead of the log's end, and a spare log ready before the memtable is full, in the background.
    pub fn keep_log_ahead(self: &Arc<Self>, writer: &Writer) {
        let Some(log) = &writer.log else { return };
        let (end, allocated) = (log.writer.end(), log.writer.file().allocated());
        let target = self.log_limit();
        let large = self.active_generation().separated_bytes() > end / 2;
        if log.synced
            && !large
            && allocated < target
            && end + allocated / 4 >= allocated
            && self.logs.0.lock().extending.insert(log.number)
        {
            let (engine, file, number) = (self.clone(), log.writer.file().clone(), log.number);
            let capacity = (allocated * 2).max(FIRST_LOG_BYTES.min(target)).min(target);
            self.env
                .jobs()
                .spawn(self.owner, JobPriority::Housekeeping, move || {
                    // Without the space appends still work, only slower; the next append asks again.
                    if capacity - allocated <= engine.room_ahead() {
                        let _ = file.extend_log(capacity);
                    }
                    engine.logs.0.lock().extending.remove(&number);
                    engine.trim_logs([]);
                });
        }
        if end < target / 2
            && self.active_generation().memory() < self.options.write_buffer_bytes / 2
        {
            return;
        }
        let mut space = self.logs.0.lock();
        if space.spare.is_none() && !space.preparing && !self.closing.load(SeqCst) {
            space.preparing = true;
            space.last_end = space.last_end.max(end);
            drop(space);
            let engine = self.clone();
            self.env
                .jobs()
                .spawn(self.owner, JobPriority::Housekeeping, move || {
                    engine.prepare_spare()
                });
        }
    }

    fn prepare_spare(self: &Arc<Self>) {
        // A failure is not lost: the writer that needs the log tries itself and meets the error.
        let made = self
            .prepare_log()
            .and_then(|log| self.make_live(&log).map(|()| log));
        let mut space = self.logs.0.lock();
        space.preparing = false;
        if let Ok(log) = made {
            space.spare = Some(log);
        }
    }

    /// Keeps a removed log's space for a later one, or deletes it. `end` is where its records ended; `None` when that was
    /// never settled, and its space is not used again. Nor is that of a log which one huge value has blown up.
    pub fn retire_log(&self, number: u64, end: Option<u64>) {
        let path = log_path(&self.dir, number);
        let mut space = self.logs.0.lock();
        if end.is_some_and(|end| end <= 2 * self.log_limit())
            && space.recycled.len() < RECYCLED_LOGS
            && !space.extending.contains(&number)
            && !space.pinned.contains_key(&number)
            && !self.closing.load(SeqCst)
        {
            assert!(!space.recycled.contains(&path), "a log is retired once");
            space.recycled.push(path);
            return;
        }
        drop(space);
        self.tables.remove(&path);
    }

    /// Has logs that are blob files give back what is no record of theirs, as soon as nobody copies them, and nobody writes
    /// space ahead in them.
    pub fn trim_logs(&self, more: impl IntoIterator<Item = Arc<BlobFile>>) {
        let due: Vec<Arc<BlobFile>> = {
            let mut space = self.logs.0.lock();
            space.untrimmed.extend(more);
            let all = std::mem::take(&mut space.untrimmed);
            let busy = |b: &Arc<BlobFile>| {
                space.pinned.contains_key(&b.number) || space.extending.contains(&b.number)
            };
            let (kept, due) = all.into_iter().partition(busy);
            space.untrimmed = kept;
            due
        };
        for log in due {
            match log.trim() {
                Err(e) if e.kind() == ErrorKind::Unsupported => {
                    // From the next flush on logs do not stay.
                    self.logs.0.lock().keeps_all = true;
                }
                Ok(()) => self.tables.note_release(),
                // What stays allocated is space and no harm; the next open tries again.
                Err(_) => {}
            }
        }
    }

    /// Has logs that were made blob files just before a power cut give back what they need not hold.
    pub fn trim_logs_of_old(self: &Arc<Self>) {
        let version = self.view().version.clone();
        let files = version.blobs.files.values();
        let logs: Vec<_> = (files.filter(|f| f.meta.index.is_some()).cloned()).collect();
        if logs.is_empty() {
            return;
        }
        let engine = self.clone();
        self.env
            .jobs()
            .spawn(self.owner, JobPriority::Housekeeping, move || {
                let more = |f: &Arc<BlobFile>| {
                    let stat = engine.env.fs().stat(&f.path());
                    stat.is_ok_and(|s| s.on_disk > f.meta.size + BLOCK)
                };
                let due: Vec<_> = logs.into_iter().filter(more).collect();
                engine.trim_logs(due);
            });
    }

    /// True while a spare log is on its way.
    pub fn preparing_log(&self) -> bool {
        self.logs.0.lock().preparing
    }

    /// Logs kept for their space, beside those that the manifest names.
    pub fn recycled_logs(&self) -> Vec<PathBuf> {
        self.logs.0.lock().recycled.clone()
    }

    /// Deletes spare and recycled logs of a store that goes on. The caller holds the writer's lock.
    pub fn release_logs(self: &Arc<Self>) -> Result<()> {
        let Some(spare) = self.take_unused_logs() else {
            return Ok(());
        };
        let edit = Edit {
            remove_logs: vec![spare.number],
            ..Edit::default()
        };
        if let Err(e) = self.install(edit, Vec::new(), |_, _| ()) {
            // The catalog still has it, and so will the fresh manifest: it is the next log.
            self.logs.0.lock().spare = Some(spare);
            return Err(e);
        }
        self.tables.remove(&log_path(&self.dir, spare.number));
        Ok(())
    }

    /// Deletes the recycled logs and takes the spare, which the manifest still names. The disk is not waited for under the lock,
    /// which `stats` takes, too.
    pub fn take_unused_logs(&self) -> Option<ActiveLog> {
        let (spare, recycled) = {
            let mut space = self.logs.0.lock();
            (space.spare.take(), std::mem::take(&mut space.recycled))
        };
        for path in recycled {
            self.tables.remove(&path);
        }
        spare
    }
}
