//! The engine's logs: the active one, the spare prepared ahead of it, and old ones kept for their
//! written space.
//!
//! A log's life:
//!
//! - *prepared*: the space is written or recycled, the header synced, the name durable;
//! - *live*: named in the manifest, before any record is acknowledged in it;
//! - *left*: records go to the next log; its end is recorded in the manifest, and not synced;
//! - *ended*: everything before that end is synced;
//! - *removed*: its memtables are in tables; the manifest forgets it;
//! - *recycled* for a later log's space, or deleted.
//!
//! A log of unsynced writes goes from left to removed without a sync: it is deleted, and most of
//! its pages never reach the device. A log that is mostly large values stays, and the pages of many
//! such logs go to the device at once. Only space that synced appends will use is written ahead and
//! recycled.
//!
//! The first sync after a log was left ends that log: all logs left are synced and ended before the
//! sync of a later one. So a power cut leaves a prefix of the writes. A log that lost its end takes
//! with it only unsynced writes of later logs. Decision 0016.

use super::back_pressure::GroupSize;
use super::engine::Engine;
use super::health::RETRY_PAUSE;
use super::memtable_set::{MemtableSet, MemtableSetLog};
use super::throttle::{MAX_MEMORY_WAIT, Room, ThrottleOutcome, WaitMode};
use super::write_path::Writer;
use super::write_path::log_space::{ActiveLog, SpareLogs, log_path};
use crate::listener::{BackgroundErrorReason, Event};
use crate::memtable::MemTable;
use crate::version::BlobFile;
use crate::version::edit::Edit;
use basalt_blob::BLOCK;
use basalt_env::{JobPriority, MemoryKind};
use basalt_fs::{Error, ErrorKind, LogOptions, Reach, Result};
use basalt_records::{
    COMPRESSED_VALUES, FileHeader, FileKind, LARGEST_UNIT, Outgoing, RecordWriter,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of written space of the first log. An idle store costs little: logs grow towards the write
/// buffer's size as they are used.
const FIRST_LOG_BYTES: u64 = 256 << 10;
/// Divisor of a log's bytes: the next log of large values has whole blocks if they cost at most one
/// sixteenth of it.
const BLOCKS_WORTH: u64 = 16;
/// The answer to a group that asks to be admitted.
#[must_use]
pub(crate) enum GroupRoom {
    /// The group may go into these memtables. They stay active as long as the caller holds the
    /// writer's lock.
    Ready(Arc<MemtableSet>),
    /// The group must ask again after this time.
    Later(Duration),
}

impl Engine {
    fn prepare_log(&self) -> Result<ActiveLog> {
        let number = self.tree.new_file_number();
        let path = log_path(&self.ctx.dir, number);
        let room = self.pressure.preallocation_limit(&self.tree.view());
        let (reuse, capacity, expected, unit) = {
            let mut space = self.writes.logs().lock();
            let target = self.writes.logs().limit();
            let least = FIRST_LOG_BYTES.min(target);
            // Space is written ahead for synced appends, which cost twice as much without it; other
            // appends gain nothing. Large values cost less to sync than zeros of their length would
            // cost to write, and their logs stay.
            let capacity = match space.synced {
                // The rest of the disk is needed elsewhere.
                _ if self.pressure.disk_full().is_refusing() => 0,
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
        // To request more than the recycled space would zero the difference now. The log grows in
        // the background instead.
        let capacity = if reuse.is_some() { 0 } else { capacity };
        let made = self.begin_log(number, &path, unit, capacity, reuse.as_deref());
        if made.is_err() {
            // No manifest names either file. A file that cannot be removed is an unused file, which
            // the next open removes.
            self.ctx.tables.remove_once(&path);
            if let Some(old) = &reuse {
                self.ctx.tables.remove_once(old);
            }
        }
        match (made, reuse) {
            // The old log has a second name, for example from a checkpoint.
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
        let fs = self.ctx.env.fs();
        let has_compressed = self
            .writes
            .logs()
            .takes_compressed_values(&self.tree.view());
        let file_id = self.ctx.env.random().next_u128();
        let file = fs.create_log(path, LogOptions { capacity, reuse })?;
        let header = FileHeader {
            kind: FileKind::Log,
            file_id,
            store_id: self.ctx.store_id,
            number,
            write_unit: unit.max(fs.info().write_unit as u32),
            compatible: 0,
            incompatible: if has_compressed { COMPRESSED_VALUES } else { 0 },
            previous: None,
        };
        let mut writer = RecordWriter::create(file, path, &header)?;
        // The header is durable before the manifest names the log. From then on a missing header is
        // damage.
        writer.sync()?;
        fs.sync_metadata(&self.ctx.dir)?;
        Ok(ActiveLog {
            number,
            file_id,
            writer,
            booked: self.ctx.env.ledger().reserve(MemoryKind::Buffer, 0),
            has_compressed,
            synced: false,
        })
    }

    /// Notes whether the coming group has compressed values (`has_compressed`). Returns true if the
    /// active log must not take the group, because the log's header does not announce compressed
    /// values.
    fn needs_new_log(&self, writer: &Writer, has_compressed: bool) -> bool {
        if has_compressed {
            self.writes.logs().lock().may_compress = true;
        }
        has_compressed && writer.log.as_ref().is_some_and(|l| !l.has_compressed)
    }

    fn add_to_manifest(self: &Arc<Self>, log: &ActiveLog) -> Result<()> {
        let edit = Edit {
            add_logs: vec![(log.number, log.file_id)],
            ..Edit::default()
        };
        self.tree
            .install(edit, vec![log_path(&self.ctx.dir, log.number)], |_, _| ())
    }

    fn ensure_log<'w>(self: &Arc<Self>, writer: &'w mut Writer) -> Result<&'w mut ActiveLog> {
        if writer.log.is_none() {
            // Logs are used in the order of their numbers, which recovery relies on. So the thread
            // waits for a spare log that is being prepared.
            self.ctx.env.jobs().wait_until(None, &mut || {
                !self.writes.logs().lock().preparing || self.health.check_jobs().is_err()
            });
            self.health.check_jobs()?;
            let may_compress = self
                .writes
                .logs()
                .takes_compressed_values(&self.tree.view());
            let unfit = |space: &SpareLogs| {
                space
                    .spare
                    .as_ref()
                    .is_some_and(|s| may_compress && !s.has_compressed)
            };
            if unfit(&self.writes.logs().lock()) {
                // The spare log was prepared before the first family with compressed values was
                // created.
                self.release_logs()?;
            }
            let spare = self.writes.logs().lock().spare.take();
            let log = match spare {
                Some(log) => log,
                None => {
                    let log = self.prepare_log()?;
                    self.add_to_manifest(&log)?;
                    log
                }
            };
            self.tree.active().set_log(MemtableSetLog {
                number: log.number,
                file_id: log.file_id,
                file: log.writer.file().clone(),
            });
            writer.log = Some(log);
        }
        Ok(writer.log.as_mut().expect("just made"))
    }

    /// Appends a group of records, and syncs it if `sync` is true. A failure leaves the log in
    /// doubt. Then writes halt until [`Engine::resume`] has put everything acknowledged into tables
    /// and begun a new log.
    pub fn append_to_log(
        self: &Arc<Self>,
        writer: &mut Writer,
        records: &mut [Outgoing<'_>],
        sync: bool,
    ) -> Result<()> {
        if sync {
            // A group of many small records counts as a small sync.
            let smallest = records.iter().map(|r| r.buf.len()).min();
            self.ctx
                .env
                .foreground_io()
                .foreground_sync(smallest.unwrap_or(0));
            self.end_unsynced_logs(writer)?;
        }
        let log = self.ensure_log(writer)?;
        let before = log.writer.end();
        let result = log.writer.append(records, sync);
        let staging = log.writer.memory() as u64;
        if staging != log.booked.bytes() {
            log.booked.resize(staging);
        }
        self.ctx
            .counters
            .wal_bytes
            .add(log.writer.end().saturating_sub(before));
        if sync {
            log.synced = true;
            self.ctx.counters.log_syncs.add(u64::from(result.is_ok()));
        }
        result.map_err(|e| self.halt(e))
    }

    /// Makes all records so far durable.
    ///
    /// A passive store has no log, and nothing to do.
    pub fn sync_log(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        self.resume_if_halted(writer)?;
        if writer.passive.is_some() {
            return Ok(());
        }
        self.ctx.env.foreground_io().foreground_sync(0);
        self.end_unsynced_logs(writer)?;
        let Some(log) = writer.log.as_mut() else {
            return Ok(());
        };
        if log.writer.synced() >= log.writer.end() {
            return Ok(());
        }
        log.synced = true;
        log.writer.sync().map_err(|e| self.halt(e))?;
        self.ctx.counters.log_syncs.add(1);
        Ok(())
    }

    /// Syncs the logs that were left and records their ends. Nothing in a later log may be durable
    /// before that.
    fn end_unsynced_logs(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        if writer.left.is_empty() {
            return Ok(());
        }
        writer.forget_removed_logs(&self.ctx, &self.tree);
        let mut edit = Edit::default();
        for log in &mut writer.left {
            if let Err(e) = log.writer.sync() {
                return Err(self.halt(e));
            }
            self.ctx.counters.log_syncs.add(1);
            edit.end_logs.push((log.number, log.writer.end()));
        }
        if !edit.end_logs.is_empty() {
            self.tree.install(edit, Vec::new(), |_, _| ())?;
        }
        writer.left.clear();
        Ok(())
    }

    /// Halts writes until the store is resumed. Returns the error for the writers of the failed
    /// group.
    fn halt(self: &Arc<Self>, cause: Error) -> Error {
        let error = cause
            .context("the write-ahead log failed; this write is not acknowledged")
            .with_reach(Reach::Store);
        self.health.halt(error.clone());
        self.ctx.notify(|| Event::BackgroundError {
            during: BackgroundErrorReason::Log,
            error: error.clone(),
        });
        self.background.retry_later();
        error
    }

    /// Resumes a halted store if the time for another attempt has come. All memtables are flushed,
    /// so that nothing depends on the log in doubt.
    pub fn resume_if_halted(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        let Some(error) = self.health.halted() else {
            return Ok(());
        };
        let now = self.ctx.env.clock().now();
        if writer.last_resume.is_some_and(|t| now < t + RETRY_PAUSE) {
            return Err(error);
        }
        writer.last_resume = Some(now);
        self.resume(writer).map_err(|_| error)
    }

    fn resume(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        if let Some(log) = &writer.log {
            // A memtable set without entries is sealed, too, if it has the log in doubt: its flush
            // makes the manifest forget the log.
            let number = log.number;
            self.tree.change_view(|state, view| {
                if view.active.log() == number {
                    self.tree.seal_active(state, view);
                }
            });
        }
        // All writers wait for this flush.
        let urgent = self.ctx.env.foreground_io().urgent();
        self.flush_all()?;
        drop(urgent);
        writer.log = None;
        writer.left.clear();
        if self.tree.manifest_is_in_doubt() {
            self.tree.install(Edit::default(), Vec::new(), |_, _| ())?;
        }
        self.health.resumed();
        Ok(())
    }

    /// Ends the active log and seals its memtables. In a passive store, seals the memtables of all
    /// families.
    pub fn rotate(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        if writer.passive.is_some() {
            let all = self.tree.view().families.keys().copied().collect();
            return self.seal_families(writer, &all);
        }
        let mut edit = Edit::default();
        if let Some(log) = &writer.log {
            let end = log.writer.end();
            if log.writer.synced() < end {
                edit.left_logs.push((log.number, end));
            } else {
                edit.end_logs.push((log.number, end));
            }
            let large = self.tree.active().separated_bytes() > end / 2;
            let mut space = self.writes.logs().lock();
            space.last_end = end;
            space.synced = Some(log.synced);
            space.large = large;
            let (bytes, more) = log.writer.in_blocks();
            let worth = more + u64::from(LARGEST_UNIT) <= bytes / BLOCKS_WORTH;
            space.unit = match space.large && log.synced && worth {
                true => LARGEST_UNIT,
                false => 0,
            };
        }
        self.tree.install(edit, Vec::new(), |state, view| {
            self.tree.seal_active(state, view)
        })?;
        writer.forget_removed_logs(&self.ctx, &self.tree);
        if let Some(mut log) = writer.log.take()
            && log.writer.synced() < log.writer.end()
        {
            log.release_memory();
            writer.left.push(log);
        }
        self.background.schedule();
        Ok(())
    }

    /// Prepares the store for a group before the group takes sequence numbers. A halted store is
    /// resumed, the group is held back as far as background work is behind, and a full memtable is
    /// rotated. The bytes by which the memtables will grow are reserved.
    pub fn make_room(
        self: &Arc<Self>,
        writer: &mut Writer,
        group: &GroupSize,
        wait_mode: WaitMode,
    ) -> Result<GroupRoom> {
        self.ctx.check_open()?;
        self.health.check_jobs()?;
        self.resume_if_halted(writer)?;
        let mut next = match self.delay_writes(writer, self.tree.view(), wait_mode)? {
            ThrottleOutcome::Ready(view) => Some(view),
            ThrottleOutcome::Later(delay) => return Ok(GroupRoom::Later(delay)),
        };
        let limit = self.ctx.options.write_buffer_bytes;
        let unfit = self.needs_new_log(writer, group.has_compressed);
        let (mut rotated, mut alone) = (false, false);
        loop {
            let view = next.take().unwrap_or_else(|| self.tree.view());
            let active = view.active.clone();
            let memory = active.memory();
            // A batch that a memtable keeps takes a slot, which is about a sixteenth larger. The
            // next group reserves the exact size of the slots.
            let payload = group.memory + group.memory / 16;
            let growth = MemTable::growth(memory, payload, group.entries);
            let scarce = self.ctx.env.ledger().free() < growth && !alone;
            if scarce {
                self.ctx.env.relief().ask(growth);
            }
            let log_full = writer
                .log
                .as_ref()
                .is_some_and(|l| l.writer.end() >= self.writes.logs().limit());
            let staged = writer.staged_bytes();
            let recovery = &mut writer.recovery;
            let preallocated_too_little = (self.pressure)
                .check_recoverable(recovery, staged, group, &view)
                .is_err();
            // No view is held during the waits below. It would keep the memory of flushed memtables
            // and the space of removed logs, for which the group may wait.
            drop(view);
            let full = unfit
                || memory >= limit
                || log_full
                || self.pressure.memory().is_wanted(active.number)
                || (preallocated_too_little && !active.is_empty());
            // A passive store may have sealed only some families so far.
            let cannot_recover = preallocated_too_little && !active.is_empty();
            if full && (!rotated || cannot_recover) {
                if let Room::Later(delay) = self.wait_for_flush(wait_mode)? {
                    return Ok(GroupRoom::Later(delay));
                }
                // A store that asked for the memory was promised all of it.
                let is_wanted = self.pressure.memory().is_wanted(active.number);
                let only_full = memory >= limit && !cannot_recover && !is_wanted;
                if writer.passive.is_some() && only_full {
                    self.seal_families(writer, &self.largest_families(&active))?;
                } else {
                    self.rotate(writer)?;
                }
                rotated = true;
                continue;
            }
            // The flush of memtables that stores have sealed gives their memory back. If no store
            // has memory to give, the group is admitted alone.
            if scarce {
                let now = self.ctx.env.clock().now();
                let since = *writer.short_of_memory.get_or_insert(now);
                let room = self.wait_for_memory(growth, wait_mode, rotated)?;
                if let Room::Later(delay) = room {
                    if now.saturating_sub(since) < MAX_MEMORY_WAIT {
                        return Ok(GroupRoom::Later(delay));
                    }
                    alone = true;
                    continue;
                }
                let waited = self.ctx.env.clock().now().saturating_sub(since);
                let relief = self.ctx.env.relief();
                // Under a stepped scheduler, the wait ends before the promised bytes come if no job
                // is left.
                let skipped = self.ctx.env.jobs().is_stepped() && relief.coming() > 0;
                alone = self.ctx.env.ledger().free() < growth
                    && (rotated || !self.pressure.memory().is_wanted(active.number))
                    && (skipped || waited >= MAX_MEMORY_WAIT || !relief.ask(growth));
                continue;
            }
            if preallocated_too_little
                && let Room::Later(delay) = self.make_recoverable(writer, group, wait_mode)?
            {
                return Ok(GroupRoom::Later(delay));
            }
            writer.recovery.logged(group);
            writer.short_of_memory = None;
            active.book(memory + growth);
            self.pressure.memory().note_memory(memory + growth);
            self.ctx.env.relief().look_ahead();
            self.charge(writer, group.bytes);
            self.pressure.release_writers();
            return Ok(GroupRoom::Ready(active));
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
        wait_mode: WaitMode,
    ) -> Result<Room> {
        if let later @ Room::Later(_) = self.wait_for_all_flushes(wait_mode)? {
            return Ok(later);
        }
        writer.forget_removed_logs(&self.ctx, &self.tree);
        let mut check = || {
            let (staged, view) = (writer.staged_bytes(), self.tree.view());
            let recovery = &mut writer.recovery;
            (self.pressure).check_recoverable(recovery, staged, group, &view)
        };
        if check().is_err() {
            self.release_logs()?;
            check().map_err(|shortage| self.pressure.refuse(&shortage))?;
        }
        Ok(Room::Ready)
    }

    /// Keeps written space ahead of the log's end, and a spare log ready before the memtable is
    /// full. Both are prepared in the background.
    pub fn preallocate_log(self: &Arc<Self>, writer: &Writer, active: &MemtableSet) {
        let Some(log) = &writer.log else { return };
        let (end, allocated) = (log.writer.end(), log.writer.file().allocated());
        let target = self.writes.logs().limit();
        let large = active.separated_bytes() > end / 2;
        if log.synced
            && !large
            && allocated < target
            && end + allocated / 4 >= allocated
            && self.writes.logs().lock().extending.insert(log.number)
        {
            let (engine, file, number) = (self.clone(), log.writer.file().clone(), log.number);
            let capacity = (allocated * 2).max(FIRST_LOG_BYTES.min(target)).min(target);
            self.ctx.jobs.spawn(JobPriority::Housekeeping, move || {
                // Without the space, appends still work and are only slower. The next append
                // asks again.
                if capacity - allocated <= engine.pressure.preallocation_limit(&engine.tree.view())
                {
                    let _ = file.extend_log(capacity);
                }
                engine.writes.logs().lock().extending.remove(&number);
                engine.writes.logs().trim([]);
            });
        }
        if end < target / 2 && active.memory() < self.ctx.options.write_buffer_bytes / 2 {
            return;
        }
        let mut space = self.writes.logs().lock();
        if space.spare.is_none() && !space.preparing && !self.ctx.is_closing() {
            space.preparing = true;
            space.last_end = space.last_end.max(end);
            drop(space);
            let engine = self.clone();
            self.ctx
                .jobs
                .spawn(JobPriority::Housekeeping, move || engine.prepare_spare());
        }
    }

    fn prepare_spare(self: &Arc<Self>) {
        // A failure is not lost: the writer that needs the log tries again and gets the error.
        let made = self
            .prepare_log()
            .and_then(|log| self.add_to_manifest(&log).map(|()| log));
        let mut space = self.writes.logs().lock();
        space.preparing = false;
        if let Ok(log) = made {
            space.spare = Some(log);
        }
    }

    /// Trims logs that became blob files just before a power cut: they give back the parts that are
    /// not needed.
    pub fn trim_leftover_logs(self: &Arc<Self>) {
        let version = self.tree.view().version.clone();
        let files = version.blobs.files.values();
        let logs: Vec<_> = (files.filter(|f| f.meta.index.is_some()).cloned()).collect();
        if logs.is_empty() {
            return;
        }
        let engine = self.clone();
        self.ctx.jobs.spawn(JobPriority::Housekeeping, move || {
            let more = |f: &Arc<BlobFile>| {
                let stat = engine.ctx.env.fs().stat(&f.path());
                stat.is_ok_and(|s| s.on_disk > f.meta.size + BLOCK)
            };
            let due: Vec<_> = logs.into_iter().filter(more).collect();
            engine.writes.logs().trim(due);
        });
    }

    /// Deletes the spare and recycled logs of a store that goes on. The caller holds the writer's
    /// lock.
    pub fn release_logs(self: &Arc<Self>) -> Result<()> {
        let Some(spare) = self.writes.logs().take_unused() else {
            return Ok(());
        };
        let edit = Edit {
            remove_logs: vec![spare.number],
            ..Edit::default()
        };
        if let Err(e) = self.tree.install(edit, Vec::new(), |_, _| ()) {
            // The catalog still has the spare log, and so will the fresh manifest: it is the next
            // log.
            self.writes.logs().lock().spare = Some(spare);
            return Err(e);
        }
        self.ctx
            .tables
            .remove(&log_path(&self.ctx.dir, spare.number));
        Ok(())
    }

    /// Ends the active log, seals its memtables and flushes everything on this thread.
    pub(crate) fn seal_and_flush(self: &Arc<Self>) -> Result<()> {
        let _urgent = self.ctx.env.foreground_io().urgent();
        self.seal(&mut self.writes.lock())?;
        self.flush_all()?;
        self.background.schedule();
        Ok(())
    }

    /// Ends the active log and seals its memtables, if they have any entries. A passive store also
    /// seals empty memtables if flags are behind, which the flush installs.
    pub(crate) fn seal(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        self.resume_if_halted(writer)?;
        if self.tree.active().is_empty() && !self.is_behind(writer) {
            return Ok(());
        }
        self.rotate(writer)
    }
}
