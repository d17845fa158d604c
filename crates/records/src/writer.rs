//! Appending records: one device write for a group if the sizes allow it, and no copy of large
//! records.
//!
//! A group becomes a list of pieces: runs of small records (and the odd ends of large ones) in a
//! staging buffer, and large records in their own memory. All pieces go to the file in one vectored
//! append, which is cut only when the staging buffer is full. In a synced group, every piece begins
//! and ends at a multiple of the write unit, in memory and in the file, so that it can go to the
//! device directly. The same holds for a large unsynced group. In a small unsynced group, records
//! are padded to multiples of 8.
//!
//! Any error poisons the writer: it is unknown which bytes reached the file, and so the place of
//! the next record is unknown, too.

use super::header::UNITS;
use super::record::{Life, RecordHeader};
use super::separated::{flags, payload_crc, seal};
use super::{
    FileHeader, LARGEST_UNIT, Outgoing, RECORD_ALIGN, RECORD_HEADER, RecordKind, ResumePoint,
    entries, header,
};
use basalt_fs::{AlignedBuf, Error, ErrorKind, File, Intent, Result};
use smallvec::SmallVec;
use std::io::IoSlice;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A record of at least this many bytes is written from its own memory if the group is written
/// directly.
const LARGE_RECORD: usize = 64 << 10;
/// A record of at least this many bytes is written from its own memory if the group goes through
/// the page cache. It needs no padding there.
const LARGE_CACHED_RECORD: usize = 4 << 10;
/// An unsynced group of at least this many bytes goes to the device at once.
const DIRECT_FROM: usize = 256 << 10;
/// Largest size of the staging buffer, in bytes.
const STAGING_MAX: usize = 1 << 20;
/// A staging buffer above this many bytes is released after [`STAGING_PATIENCE`] groups in a row
/// that did not need it.
const STAGING_KEEP: usize = 64 << 10;
/// Number of groups in a row that do not need a large staging buffer before it is released.
const STAGING_PATIENCE: u32 = 32;
/// Most pieces of one append, below the limit of a vectored write.
const PIECES_MAX: usize = 512;
/// An append of at least this many bytes is cut. The limit is below what a write call moves at
/// once.
const APPEND_MAX: u64 = 1 << 30;

/// Appends records to a file, by one thread at a time. A failed call poisons the writer for good.
pub struct RecordWriter {
    file: Arc<dyn File>,
    path: PathBuf,
    life: Life,
    unit: u64,
    /// Append position of the file.
    pos: u64,
    /// Offset of the end of the last record, padding to [`RECORD_ALIGN`] included.
    end: u64,
    synced: u64,
    /// Header checksum of the last record.
    chain: u32,
    /// True if the last sync may have covered a part of the unit at `pos`. The next append must not
    /// touch that unit.
    sealed: bool,
    /// True if bytes were appended since the last sync.
    dirty: bool,
    /// Bytes that synced groups take more, or would take more, if they end at multiples of the
    /// largest unit instead of the smallest.
    more_in_blocks: u64,
    staging: AlignedBuf,
    quiet: u32,
    poisoned: Option<Error>,
    sync_failed: bool,
}

/// A part of an append.
enum AppendPiece {
    /// A range of the staging buffer.
    Staged(Range<usize>),
    /// The first `len` bytes of a record's own buffer.
    Own { record: usize, len: usize },
}

/// The bytes to append at `RecordWriter::pos`.
#[derive(Default)]
struct AppendPlan {
    pieces: SmallVec<[AppendPiece; 2]>,
    /// Offset of the staged bytes that no piece covers yet.
    open: usize,
    /// Number of planned bytes.
    bytes: u64,
}

fn large_from(direct: bool) -> usize {
    if direct {
        LARGE_RECORD
    } else {
        LARGE_CACHED_RECORD
    }
}

impl AppendPlan {
    fn close(&mut self, staged: usize) {
        if staged > self.open {
            self.pieces.push(AppendPiece::Staged(self.open..staged));
            self.open = staged;
        }
    }
}

impl RecordWriter {
    /// Begins a file of records, whose append position must be 0. The header is written, but not
    /// yet synced: the first synced append covers it. `header.write_unit` must be the filesystem's
    /// unit, or a multiple of it.
    pub fn create(file: Arc<dyn File>, path: &Path, header: &FileHeader) -> Result<RecordWriter> {
        let slot = header::encode(header);
        let at = file.append(&[IoSlice::new(&slot)], Intent::Lazy)?;
        if at != 0 {
            return Err(Error::invalid(format!(
                "a file of records begins at position {at}, expected an empty file"
            ))
            .in_file(path));
        }
        let unit = slot.len() as u64;
        Ok(RecordWriter {
            file,
            path: path.to_path_buf(),
            life: Life::new(header.file_id),
            unit,
            pos: unit,
            end: unit,
            synced: 0,
            chain: 0,
            sealed: false,
            dirty: true,
            more_in_blocks: 0,
            staging: AlignedBuf::zeroed_direct(0),
            quiet: 0,
            poisoned: None,
            sync_failed: false,
        })
    }

    /// Appends a group of records with one device write if the sizes allow it. With `sync`, the
    /// group starts and ends at multiples of the write unit and is durable when the call returns;
    /// then `synced()` is the new end.
    ///
    /// The writer does not check the payload checksums. The payloads in the buffers stay unchanged.
    ///
    /// Errors: `InvalidArgument` for a payload of 4 GiB or more, before anything is written;
    /// `Poisoned` after an earlier failure; otherwise an error of the filesystem, which poisons the
    /// writer: it is unknown which records of the group survive.
    pub fn append(&mut self, records: &mut [Outgoing<'_>], sync: bool) -> Result<()> {
        self.check()?;
        for r in records.iter() {
            assert!(
                r.buf.len() >= RECORD_HEADER,
                "a record's buffer begins with {RECORD_HEADER} bytes for its header"
            );
            let len = r.buf.len() - RECORD_HEADER;
            if u32::try_from(len).is_err() {
                return Err(Error::invalid(format!(
                    "record of {len} bytes, at most {} are allowed",
                    u32::MAX
                ))
                .in_file(&self.path));
            }
            debug_assert!(
                r.kind == RecordKind::Entries
                    || payload_crc(&r.buf[RECORD_HEADER..], r.separated) == r.payload_crc,
                "payload checksum"
            );
        }
        let done = self.append_group(records, sync);
        self.tidy_staging();
        self.poison_on_error(done)
    }

    /// Syncs the appended bytes. An error poisons the writer.
    pub fn sync(&mut self) -> Result<()> {
        self.check()?;
        if !self.dirty {
            return Ok(());
        }
        let done = self.sync_file();
        self.poison_on_error(done)
    }

    /// Has the first record name the header checksum of another file's last record. A reader that
    /// follows the same checksum finds out if that record was lost. Must be called before the first
    /// record is appended.
    pub fn follow(&mut self, chain: u32) {
        debug_assert_eq!(self.end, self.unit, "no record was appended");
        self.chain = chain;
    }

    /// Returns true if the call that poisoned the writer was a sync. Then bytes that were appended
    /// since the sync before may be lost, although reads return them.
    pub fn sync_failed(&self) -> bool {
        self.sync_failed
    }

    /// Records a sync of the file by the caller, together with other files, that covers all bytes
    /// appended so far.
    pub fn note_synced(&mut self) {
        self.synced = self.end;
        self.sealed = true;
        self.dirty = false;
    }

    /// Begins a sync by the caller that runs beside later appends: the next append begins in
    /// another unit. Returns the end of the last record, for [`RecordWriter::note_synced_to`].
    pub fn begin_sync(&mut self) -> u64 {
        self.sealed = true;
        self.end
    }

    /// Records a sync by the caller that covers the bytes up to `end`, the result of
    /// [`RecordWriter::begin_sync`] before it.
    pub fn note_synced_to(&mut self, end: u64) {
        debug_assert!(end <= self.end, "nothing behind the end is synced");
        self.synced = self.synced.max(end);
    }

    /// Records that such a sync failed. The writer takes no more records.
    pub fn poison(&mut self, error: &Error) {
        self.poisoned.get_or_insert_with(|| error.clone());
    }

    /// Returns the end of the last record (of the header, if there is none). The next log's header
    /// and the manifest may state it once the file is synced.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the point from which a reader can read what is appended from now on.
    pub fn resume_point(&self) -> ResumePoint {
        ResumePoint {
            offset: self.end,
            chain: self.chain,
        }
    }

    /// Returns the bytes of the file if its unit were the smallest, and the further bytes that it
    /// has, or would have, with the largest unit.
    pub fn in_blocks(&self) -> (u64, u64) {
        let more = self.more_in_blocks;
        match self.unit == u64::from(LARGEST_UNIT) {
            true => (self.end.saturating_sub(more), more),
            false => (self.end, more),
        }
    }

    /// Returns the offset up to which the file is known to be synced: the end of the last record
    /// that a sync covered.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Returns the bytes of the file in use, padding included.
    pub fn position(&self) -> u64 {
        self.pos
    }

    /// Returns the file.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Returns the bytes of memory that the writer holds.
    pub fn memory(&self) -> usize {
        self.staging.capacity()
    }

    /// Releases the staging buffer, for a store that is idle.
    pub fn release_memory(&mut self) {
        self.staging = AlignedBuf::zeroed_direct(0);
        self.quiet = 0;
    }

    fn check(&self) -> Result<()> {
        match &self.poisoned {
            None => Ok(()),
            Some(e) => Err(Error::new(
                ErrorKind::Poisoned,
                format!("an earlier append or sync of this file failed ({e})"),
            )
            .in_file(&self.path)),
        }
    }

    fn poison_on_error<T>(&mut self, done: Result<T>) -> Result<T> {
        if let Err(e) = &done {
            self.poison(e);
        }
        done
    }

    fn append_group(&mut self, records: &mut [Outgoing<'_>], sync: bool) -> Result<()> {
        let of = |r: &Outgoing<'_>| r.buf.len();
        let separated = |r: &&Outgoing<'_>| !r.separated.is_empty();
        let large: usize = records.iter().filter(separated).map(of).sum();
        // Large values stay in the log, so many of them go to the device at once. Through the page
        // cache they would take as many fresh pages and be copied once more. Small values never
        // reach the device if the log is removed soon.
        let direct = sync || (large >= DIRECT_FROM && large * 2 > records.iter().map(of).sum());
        if direct || self.sealed {
            self.align()?;
        }
        self.sealed = false;
        self.reserve_staging(records, direct);
        let from = self.pos;
        let to = if direct {
            self.unit as usize
        } else {
            RECORD_ALIGN
        };
        let mut plan = AppendPlan::default();
        for i in 0..records.len() {
            let len = records[i].buf.len();
            let large = len >= large_from(direct);
            if large && direct {
                self.pad(&mut plan, to);
            }
            let staged = if large { to } else { len };
            if self.staging.len() + staged + self.unit as usize > STAGING_MAX
                || plan.pieces.len() + 2 > PIECES_MAX
                || plan.bytes + len as u64 > APPEND_MAX
            {
                self.pad(&mut plan, to);
                self.write(&mut plan, records, direct)?;
            }
            let offset = self.pos + plan.bytes;
            let record = &mut records[i];
            record.offset = offset;
            let (first_seq, separated) = (record.first_seq, record.separated);
            let payload = &mut record.buf[RECORD_HEADER..];
            let payload_at = offset + RECORD_HEADER as u64;
            if record.kind == RecordKind::Entries {
                record.payload_crc = entries::seal(self.life, payload, payload_at);
            } else {
                seal(self.life, payload, payload_at, first_seq, separated);
            }
            self.chain = self.life.seal(
                record.buf,
                offset,
                &RecordHeader {
                    crc: 0,
                    payload_crc: record.payload_crc,
                    len: (len - RECORD_HEADER) as u32,
                    kind: record.kind as u8,
                    flags: flags(separated),
                    synced: self.synced,
                    first_seq: record.first_seq,
                    chain: self.chain,
                    count: record.count,
                },
            );
            // The whole units of a large record are written from its own memory. The rest goes
            // through the staging buffer with the small records.
            let own = if large { len / to * to } else { 0 };
            if own > 0 {
                plan.close(self.staging.len());
                plan.pieces.push(AppendPiece::Own {
                    record: i,
                    len: own,
                });
            }
            self.staging.extend_from_slice(&record.buf[own..]);
            plan.bytes += len as u64;
            self.pad(&mut plan, if large { to } else { RECORD_ALIGN });
            self.end = offset + len.next_multiple_of(RECORD_ALIGN) as u64;
        }
        self.pad(&mut plan, to);
        self.write(&mut plan, records, direct)?;
        if sync {
            let len = self.end - from;
            let in_units = |unit: u32| len.next_multiple_of(u64::from(unit));
            self.more_in_blocks += in_units(LARGEST_UNIT) - in_units(*UNITS.start());
            self.sync_file()?;
        }
        Ok(())
    }

    fn sync_file(&mut self) -> Result<()> {
        let done = self.file.sync_data();
        self.sync_failed |= done.is_err();
        done?;
        self.note_synced();
        Ok(())
    }

    /// Moves the append position to the next multiple of the write unit.
    fn align(&mut self) -> Result<()> {
        if !self.pos.is_multiple_of(self.unit) {
            let want = self.pos.next_multiple_of(self.unit);
            let mut pos = self.file.align_to_unit()?;
            if pos < want {
                // The filesystem's own unit is smaller than the file's.
                let zeros = vec![0; (want - pos) as usize];
                let at = self.file.append(&[IoSlice::new(&zeros)], Intent::Lazy)?;
                self.expect_position(pos, at)?;
                pos = want;
            }
            self.expect_position(want, pos)?;
            self.pos = want;
        }
        Ok(())
    }

    /// Fills the plan with zeros up to a multiple of `to`. The plan begins at such a multiple.
    fn pad(&mut self, plan: &mut AppendPlan, to: usize) {
        let more = (plan.bytes.next_multiple_of(to as u64) - plan.bytes) as usize;
        self.staging.resize(self.staging.len() + more, 0);
        plan.bytes += more as u64;
    }

    fn write(
        &mut self,
        plan: &mut AppendPlan,
        records: &[Outgoing<'_>],
        direct: bool,
    ) -> Result<()> {
        plan.close(self.staging.len());
        if plan.bytes > 0 {
            let bufs: SmallVec<[IoSlice<'_>; 2]> = plan
                .pieces
                .iter()
                .map(|p| match p {
                    AppendPiece::Staged(range) => IoSlice::new(&self.staging[range.clone()]),
                    AppendPiece::Own { record, len } => IoSlice::new(&records[*record].buf[..*len]),
                })
                .collect();
            debug_assert_eq!(bufs.iter().map(|b| b.len() as u64).sum::<u64>(), plan.bytes);
            debug_assert!(
                !direct
                    || bufs
                        .iter()
                        .all(|b| (b.len() as u64).is_multiple_of(self.unit))
            );
            let intent = if direct { Intent::Sync } else { Intent::Lazy };
            let at = self.file.append(&bufs, intent)?;
            self.dirty = true;
            self.expect_position(self.pos, at)?;
            self.pos += plan.bytes;
        }
        self.staging.clear();
        *plan = AppendPlan::default();
        Ok(())
    }

    /// Record checksums contain the record's place. A filesystem that puts records elsewhere, or a
    /// second appender, must be noticed at once.
    fn expect_position(&self, want: u64, found: u64) -> Result<()> {
        if want == found {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Io,
            format!("the append position is {found}, expected {want}: another appender wrote to this file"),
        )
        .at(&self.path, want))
    }

    /// Allocates the memory that the group's small records need at once, so that the buffer need
    /// not grow.
    fn reserve_staging(&mut self, records: &[Outgoing<'_>], direct: bool) {
        self.staging.clear();
        let unit = self.unit as usize;
        let large = large_from(direct);
        let need: usize = records
            .iter()
            .map(|r| match r.buf.len() {
                n if n < large => n.next_multiple_of(RECORD_ALIGN),
                _ if direct => 2 * unit,
                _ => 2 * RECORD_ALIGN,
            })
            .sum();
        let need = (need + unit).next_multiple_of(4096).min(STAGING_MAX);
        if need > self.staging.capacity() {
            self.staging = AlignedBuf::zeroed_direct(0);
            self.staging
                .reserve_exact(need.next_power_of_two().min(STAGING_MAX));
        }
        self.quiet = if need > STAGING_KEEP {
            0
        } else {
            self.quiet + 1
        };
    }

    fn tidy_staging(&mut self) {
        self.staging.clear();
        if self.staging.capacity() > STAGING_KEEP && self.quiet >= STAGING_PATIENCE {
            self.release_memory();
        }
    }
}
