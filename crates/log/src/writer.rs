//! The writer of the physical logs of one role.
//!
//! A file's life:
//!
//! - *prepared*: its space is written or recycled, its header synced, its name in the manifest;
//! - *active*: it takes records;
//! - *left*: it is full, and the next record goes to the next file. Nothing waits for a sync;
//! - *ended*: a job has written the rest of its reverse index and synced it, and the manifest has
//!   its end;
//! - *removed*, when nothing in it is live and no recovery reads it. Its space is recycled.
//!
//! The first record of a file names the last record of the file before, segments of the reverse
//! index left out. So a file that lost its tail in a power cut takes the records of later files
//! with it, and what is left is a prefix. A synced append syncs the files that were left first. So
//! only unsynced records are lost in this way. A file that is begun beside one in preparation
//! follows no record (`end_left`).
//!
//! Locks: the writer's own is its user's; then that of a left file, then the manifest's.

use crate::catalog::{FileEnd, Role};
use crate::physical::{PhysicalLogs, ReadableFile, ReplayStart, append_payload};
use crate::reserve;
use crate::reverse_index::{ReverseEntry, ReverseIndexBuilder};
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_fs::{Error, ErrorKind, Result};
use basalt_records::{Outgoing, RecordKind, RecordWriter, ResumePoint};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of written space of the first file that synced appends need.
const FIRST_BYTES: u64 = 256 << 10;
/// Time from a failed append to the next attempt to write.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A file that takes records, or took them until it was full.
struct WrittenFile {
    writer: RecordWriter,
    file: Arc<ReadableFile>,
    reverse: ReverseIndexBuilder,
    /// The end of the last record that was acknowledged, or of a segment of the reverse index
    /// behind it.
    acknowledged: ResumePoint,
    /// The end of the last record that was acknowledged. A segment that is lost is not missed.
    promised: ResumePoint,
    /// True if an append to the file was synced.
    has_synced: bool,
    /// True if a sync through another handle than the writer's has failed.
    sync_failed: bool,
    /// True if a sync beside appends has failed.
    failed_beside: bool,
    /// Offset of the last segment of the reverse index, once its write was tried; `None` inside if
    /// the write failed.
    last_segment: Option<Option<u64>>,
}

impl WrittenFile {
    /// Writes the next segment of the reverse index, and returns its offset.
    fn write_segment(&mut self, last: bool) -> Result<u64> {
        let payload = self.reverse.take_segment(last);
        let offset = append_payload(&mut self.writer, RecordKind::ReverseIndex, &payload)?;
        self.acknowledged = self.writer.resume_point();
        Ok(offset)
    }

    /// Returns true if acknowledged records may be lost although they can be read: a sync that
    /// should have covered them has failed.
    fn is_in_doubt(&self) -> bool {
        self.failed_beside
            || ((self.sync_failed || self.writer.sync_failed())
                && self.writer.synced() < self.promised.offset)
    }

    /// Returns an error if a sync beside appends has failed. Waits for one that runs. A sync
    /// through the writer's own handle proves nothing before that.
    fn check_beside(&mut self) -> Result<()> {
        self.failed_beside |= self.file.failed_beside();
        match self.failed_beside {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Poisoned,
                "a sync failed, and records that were not synced may be lost; open the store again",
            )
            .in_file(&self.file.path)),
        }
    }

    /// Notes a sync beside appends that covered the bytes up to an offset.
    fn note_synced_to(&mut self, to: u64) -> Result<()> {
        if self.is_in_doubt() {
            // A sync through the writer's handle has failed since, and has taken the failure with
            // it.
            return Err(Error::new(
                ErrorKind::Poisoned,
                "a sync failed, and records that were not synced may be lost; open the store again",
            )
            .in_file(&self.file.path));
        }
        self.writer.note_synced_to(to);
        Ok(())
    }

    /// Makes all acknowledged records durable, also if an append behind them has failed.
    fn sync(&mut self, logs: &PhysicalLogs) -> Result<()> {
        if self.writer.synced() >= self.acknowledged.offset {
            return Ok(());
        }
        let has_failed = self.sync_failed || self.writer.sync_failed();
        if has_failed && !self.is_in_doubt() {
            // The segment behind the last record may be lost. Then the file ends before it.
            self.acknowledged = self.promised;
            return Ok(());
        }
        let done = self.writer.sync();
        if done.is_err() {
            self.file.note_failure();
        }
        match done {
            Err(e) if e.kind() == ErrorKind::Poisoned && !self.is_in_doubt() => {
                // The handle of a failed append takes no more calls. Another one syncs the file.
                let done = logs.sync_file(&self.file);
                self.sync_failed |= done.is_err();
                done
            }
            done => done,
        }
        .and_then(|()| self.check_beside())
    }

    /// Ends the file.
    fn end(&mut self, logs: &PhysicalLogs) -> Result<()> {
        // A second attempt must not write a segment without the entries of the first one.
        if self.last_segment.is_none() && !self.reverse.is_empty() {
            // Without the segment a garbage collection reads the whole file.
            self.last_segment = Some(self.write_segment(true).ok());
        }
        self.sync(logs)?;
        let segment = self.last_segment.flatten();
        let segment = segment.filter(|at| *at < self.acknowledged.offset);
        // The space behind the end is released, and the length becomes exact. The records do not
        // depend on it.
        let released = self.writer.file().sync_all();
        let end = FileEnd {
            offset: self.acknowledged.offset,
            reverse_index: segment,
        };
        logs.end_files(&[(self.file.number, end)])?;
        if released.is_err() {
            // The handle of a failed append cannot release the space, so another handle does, after
            // the manifest has the file's end. Before that, a recovery would read the space.
            logs.release_tail(self.file.number, end.offset);
        }
        Ok(())
    }
}

/// A full file that has not ended yet.
pub(crate) struct LeftFile {
    number: u64,
    /// True if a job ends the file, or is to.
    claimed: AtomicBool,
    inner: Mutex<WrittenFile>,
}

impl LeftFile {
    /// Returns the file's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns true once: to the caller that has a job end the file.
    pub fn claim(&self) -> bool {
        !self.claimed.swap(true, SeqCst)
    }

    /// Ends the file. After an error it stays as it is, and recovery finds its end.
    pub fn end(&self, logs: &PhysicalLogs) -> Result<()> {
        let mut inner = self.inner.lock();
        match inner.file.end() {
            Some(_) => Ok(()),
            None => inner.end(logs),
        }
    }
}

/// A file that was prepared before it is needed.
pub(crate) struct SpareFile {
    writer: RecordWriter,
    file: Arc<ReadableFile>,
}

/// A file that is to be prepared.
pub(crate) struct SparePlan {
    role: Role,
    capacity: u64,
}

impl SparePlan {
    /// Prepares the file.
    pub fn prepare(&self, logs: &PhysicalLogs) -> Result<SpareFile> {
        if self.role == Role::Data {
            logs.note_space_need(self.capacity > 0);
        }
        let (writer, file) = logs.begin(self.role, self.capacity)?;
        Ok(SpareFile { writer, file })
    }
}

/// A sync of the records that a writer had at some moment. It runs beside appends.
pub(crate) struct SyncBeside {
    /// Full files that had not ended.
    left: Vec<Arc<LeftFile>>,
    /// The file that took records, and the end of its last record.
    active: Option<(Arc<ReadableFile>, u64)>,
}

/// The outcome of a [`SyncBeside`].
pub(crate) struct SyncOutcome {
    done: Result<()>,
    /// True if acknowledged records may be lost.
    in_doubt: bool,
}

impl SyncBeside {
    /// Makes the records durable.
    pub fn run(&self, logs: &PhysicalLogs) -> SyncOutcome {
        let of_left = |left: &Arc<LeftFile>| left.inner.lock().sync(logs);
        if let Err(e) = self.left.iter().try_for_each(of_left) {
            return SyncOutcome {
                done: Err(e),
                in_doubt: true,
            };
        }
        let Some((file, end)) = &self.active else {
            return SyncOutcome {
                done: Ok(()),
                in_doubt: false,
            };
        };
        let done = match file.sync_beside(logs.env(), *end) {
            // A file that was removed since had ended, and was synced then.
            Err(e) if e.is_not_found() && file.end().is_some() => Ok(()),
            done => done,
        };
        // A file that could not be opened was not synced, and nothing happened to it.
        let in_doubt = done.is_err() && file.failed_beside();
        SyncOutcome { done, in_doubt }
    }
}

/// Why a writer takes no records.
struct Broken {
    error: Error,
    /// True if acknowledged records may be lost. Only recovery finds out which.
    in_doubt: bool,
    /// Time from which on the writer may try again.
    retry_at: Duration,
}

/// The writer of the files of one role, used by one thread at a time.
pub(crate) struct PhysicalWriter {
    logs: Arc<PhysicalLogs>,
    role: Role,
    active: Option<WrittenFile>,
    /// Full files that have not ended, the oldest first.
    left: VecDeque<Arc<LeftFile>>,
    spare: Option<SpareFile>,
    /// While a job prepares a file: a number that the file's number is not below.
    preparing: Option<u64>,
    /// Header checksum of the last acknowledged record before the next file. Segments of the
    /// reverse index are left out.
    chain: u32,
    /// Bytes at which the active file is full.
    target: u64,
    broken: Option<Broken>,
    /// True since the store was closed. Another process may have the directory.
    closed: bool,
}

impl PhysicalWriter {
    pub fn new(logs: &Arc<PhysicalLogs>, role: Role) -> PhysicalWriter {
        PhysicalWriter {
            logs: logs.clone(),
            role,
            active: None,
            left: VecDeque::new(),
            spare: None,
            preparing: None,
            chain: 0,
            target: 0,
            broken: None,
            closed: false,
        }
    }

    /// Appends records, and syncs them if `sync` is true. Returns the file that has them. The
    /// records know their offsets.
    ///
    /// After an error none of the records counts as appended, but a power cut soon after may leave
    /// some of them whole. Later calls try to go on in another file. If a failed sync leaves it
    /// unknown which earlier records are durable, they fail with `Poisoned`.
    pub fn append(
        &mut self,
        records: &mut [Outgoing<'_>],
        sync: bool,
    ) -> Result<Arc<ReadableFile>> {
        if self.closed {
            return Err(reserve::closed());
        }
        self.make_room()?;
        if sync {
            self.sync_left()?;
        }
        let logs = self.logs.clone();
        let _held = match self.role {
            Role::Meta => None,
            Role::Data | Role::Moved => Some(logs.hold_reserve()?),
        };
        let active = self.active.as_mut().expect("just made");
        active.has_synced |= sync;
        let begun = active.writer.position();
        let mut done = active.writer.append(records, sync);
        if sync && done.is_ok() {
            done = active.check_beside();
        }
        let counters = &self.logs.counters;
        let bytes = match self.role {
            Role::Data => &counters.data_bytes,
            Role::Moved => &counters.moved_bytes,
            Role::Meta => &counters.meta_bytes,
        };
        // Only the holder of the role's lock adds to its bytes.
        bytes.add_exclusive(active.writer.position() - begun);
        if sync {
            counters.syncs.add(1);
        }
        match &done {
            Ok(()) => {
                active.acknowledged = active.writer.resume_point();
                active.promised = active.acknowledged;
            }
            Err(_) => active.file.note_failure(),
        }
        let file = active.file.clone();
        self.note(done)?;
        Ok(file)
    }

    /// Makes all records so far durable.
    pub fn sync(&mut self) -> Result<()> {
        self.resume()?;
        self.sync_left()?;
        let logs = self.logs.clone();
        let done = (self.active.as_mut()).map_or(Ok(()), |active| active.sync(&logs));
        self.note(done)
    }

    /// Begins a sync of all records so far that runs beside appends. The caller runs it without the
    /// writer's lock, and gives its outcome to [`PhysicalWriter::end_sync`].
    ///
    /// Errors: those of an append that failed before, if the writer cannot go on yet.
    pub fn begin_sync(&mut self) -> Result<SyncBeside> {
        self.resume()?;
        let unsynced = self.active.as_mut().filter(|active| {
            // Nothing else is behind the records that were acknowledged.
            active.writer.synced() < active.acknowledged.offset
        });
        Ok(SyncBeside {
            left: self.left.iter().cloned().collect(),
            active: unsynced.map(|active| (active.file.clone(), active.writer.begin_sync())),
        })
    }

    /// Notes the outcome of a sync beside appends, and returns it.
    pub fn end_sync(&mut self, sync: &SyncBeside, outcome: SyncOutcome) -> Result<()> {
        let SyncOutcome { done, in_doubt } = outcome;
        if let Err(e) = done {
            return Err(match in_doubt {
                true => self.break_off(e, true),
                false => e,
            });
        }
        let Some((file, to)) = &sync.active else {
            return Ok(());
        };
        match &mut self.active {
            Some(active) if active.file.number == file.number => active.note_synced_to(*to),
            // The file was left since, and the job that ends it syncs it again.
            _ => match self.left.iter().find(|left| left.number == file.number) {
                Some(left) => left.inner.lock().note_synced_to(*to),
                None => Ok(()),
            },
        }
    }

    /// Returns the bytes of memory of the reverse indexes that are being built.
    #[cfg(test)]
    pub fn reverse_memory(&self) -> usize {
        let left = self.left.iter().map(|l| l.inner.lock().reverse.memory());
        let active = self.active.as_ref().map_or(0, |a| a.reverse.memory());
        left.sum::<usize>() + active
    }

    fn sync_left(&mut self) -> Result<()> {
        let synced = self
            .left
            .iter()
            .try_for_each(|left| left.inner.lock().sync(&self.logs));
        synced.map_err(|e| self.break_off(e, true))
    }

    /// Adds entries of the last append to the file's reverse index.
    pub fn note_entries(&mut self, entries: impl IntoIterator<Item = ReverseEntry>) {
        if let Some(active) = &mut self.active {
            active.reverse.add_all(entries);
        }
    }

    fn note<T>(&mut self, done: Result<T>) -> Result<T> {
        done.map_err(|e| {
            let in_doubt = self.active.as_ref().is_some_and(WrittenFile::is_in_doubt);
            self.break_off(e, in_doubt)
        })
    }

    fn break_off(&mut self, error: Error, in_doubt: bool) -> Error {
        if error.kind() == ErrorKind::NoSpace {
            self.logs.release_recycled();
        }
        self.broken = Some(Broken {
            error: error.clone(),
            in_doubt,
            retry_at: self.logs.now() + RETRY_PAUSE,
        });
        error
    }

    /// Tries at once to go on after a failed append.
    pub fn resume_now(&mut self) -> Result<()> {
        if let Some(broken) = &mut self.broken {
            broken.retry_at = Duration::ZERO;
        }
        self.resume()
    }

    /// Tries to go on after a failed append: the file ends behind its last acknowledged record.
    pub fn resume(&mut self) -> Result<()> {
        let Some(broken) = &self.broken else {
            return Ok(());
        };
        if broken.in_doubt {
            return Err(Error::new(
                ErrorKind::Poisoned,
                format!(
                    "a sync of a physical log failed ({}), and records that were not synced may be lost; open the store again",
                    broken.error
                ),
            ));
        }
        if self.logs.now() < broken.retry_at {
            return Err(broken.error.clone());
        }
        // No record of this file may be durable before those of the files before it.
        self.sync_left()?;
        let ended = match &mut self.active {
            Some(active) => {
                let known = active.file.end().is_some();
                let done = if known {
                    Ok(())
                } else {
                    active.end(&self.logs)
                };
                done.map_err(|e| (e, active.is_in_doubt()))
            }
            None => Ok(()),
        };
        if let Err((e, in_doubt)) = ended {
            return Err(self.break_off(e, in_doubt));
        }
        // The manifest has the end of the file before, so nothing needs its last record.
        self.active = None;
        self.broken = None;
        Ok(())
    }

    /// Leaves a full file, and begins the next one.
    fn make_room(&mut self) -> Result<()> {
        self.resume()?;
        if self
            .active
            .as_ref()
            .is_some_and(|active| active.writer.end() >= self.target)
        {
            self.leave();
        }
        if self.active.is_none() {
            let begun = self.begin();
            self.note(begun)?;
        }
        let active = self.active.as_mut().expect("just made");
        if active.reverse.is_full() {
            let segment = active.write_segment(false);
            let at = self.note(segment)?;
            let active = self.active.as_mut().expect("just made");
            active.reverse.note_segment(at);
        }
        Ok(())
    }

    fn leave(&mut self) {
        if let Some(active) = self.active.take() {
            self.chain = active.promised.chain;
            self.left.push_back(Arc::new(LeftFile {
                number: active.file.number,
                claimed: AtomicBool::new(false),
                inner: Mutex::new(active),
            }));
        }
    }

    fn begin(&mut self) -> Result<()> {
        self.target = self.logs.target_bytes(self.role);
        if self.role != Role::Meta {
            drop(self.logs.hold_reserve()?);
        }
        // Nothing was acknowledged in a file that could not be begun.
        let spare = match self.spare.take() {
            Some(spare) => spare,
            None => {
                if self.preparing.is_some() {
                    self.end_left()?;
                }
                // A process that only removes records may be on a full disk.
                let capacity = match self.logs.accepts_records() {
                    true => FIRST_BYTES.min(self.target),
                    false => 0,
                };
                let plan = SparePlan {
                    role: self.role,
                    capacity,
                };
                plan.prepare(&self.logs)?
            }
        };
        let SpareFile { mut writer, file } = spare;
        writer.follow(self.chain);
        self.active = Some(WrittenFile {
            acknowledged: writer.resume_point(),
            promised: writer.resume_point(),
            writer,
            file,
            reverse: ReverseIndexBuilder::counted(self.logs.ledger()),
            last_segment: None,
            has_synced: false,
            sync_failed: false,
            failed_beside: false,
        });
        Ok(())
    }

    /// Ends all full files. The caller begins a file while a job still prepares another one, which
    /// has a smaller number and may be without records after a crash. Recovery takes such a file
    /// for one that lost its records, and accepts behind it only a file that continues no record.
    fn end_left(&mut self) -> Result<()> {
        self.sync_left()?;
        self.end_full()?;
        self.chain = 0;
        Ok(())
    }

    fn end_full(&mut self) -> Result<()> {
        while let Some(left) = self.oldest_left() {
            left.end(&self.logs)?;
            self.forget_left(&left);
        }
        Ok(())
    }

    /// Returns the next file, if it is time to prepare it. The caller has a job prepare it, and
    /// hands it to [`PhysicalWriter::take_spare`].
    pub fn plan_spare(&mut self) -> Option<SparePlan> {
        let active = self.active.as_ref()?;
        // No user waits for the next file of moved records, and space written ahead costs bytes.
        if self.role == Role::Moved
            || active.writer.end() < self.target / 2
            || self.spare.is_some()
            || self.preparing.is_some()
            || self.broken.is_some()
        {
            return None;
        }
        self.preparing = Some(self.logs.next_number());
        // Space that is written before costs twice as many bytes, and makes synced appends twice as
        // fast. Other appends gain nothing.
        let capacity = match active.has_synced {
            true => self.logs.target_bytes(self.role),
            false => 0,
        };
        Some(SparePlan {
            role: self.role,
            capacity,
        })
    }

    /// Takes the file that was prepared. Returns the file's number if it is not needed any more.
    pub fn take_spare(&mut self, made: Option<SpareFile>) -> Option<u64> {
        self.preparing = None;
        let made = made?;
        let newest = self.active.as_ref().map(|active| active.file.number);
        if newest.is_none_or(|newest| newest > made.file.number) || self.spare.is_some() {
            return Some(made.file.number);
        }
        self.spare = Some(made);
        None
    }

    /// Returns the oldest full file that has not ended.
    pub fn oldest_left(&self) -> Option<Arc<LeftFile>> {
        self.left.front().cloned()
    }

    /// Lets a job try again to end a full file whose end has failed.
    pub fn retry_left(&self) {
        for left in &self.left {
            left.claimed.store(false, SeqCst);
        }
    }

    /// Forgets a full file that has ended.
    pub fn forget_left(&mut self, ended: &LeftFile) {
        self.left.retain(|left| left.number != ended.number);
    }

    /// Leaves the active file, so that the next record goes to another one. Returns all files that
    /// have records and have not ended.
    ///
    /// Errors: those of an append that failed before, if the writer cannot go on yet.
    pub fn leave_all(&mut self) -> Result<Vec<Arc<LeftFile>>> {
        self.resume()?;
        self.leave();
        Ok(self.left.iter().cloned().collect())
    }

    /// Ends all files, for a store that closes. Later appends fail with `Closed`.
    pub fn end_all(&mut self) -> Result<()> {
        self.closed = true;
        self.resume_now()?;
        self.leave();
        self.end_full()
    }

    /// Returns the point from which on the log has what is appended from now on.
    pub fn position(&self) -> ReplayStart {
        match &self.active {
            Some(active) => ReplayStart {
                file: active.file.number,
                offset: active.promised.offset,
                chain: active.promised.chain,
            },
            None => {
                let spare = self.spare.as_ref().map(|spare| spare.file.number);
                let next = spare.or(self.preparing);
                ReplayStart {
                    file: next.unwrap_or_else(|| self.logs.next_number()),
                    ..ReplayStart::default()
                }
            }
        }
    }
}
