//! Reading records back after a clean close, a power cut, decay, or over an earlier life of the
//! space.
//!
//! The reader goes from record to record. A record is good if its header's checksum fits this life
//! of the file and this place, its chain field names the record before it, and its payload's
//! checksum fits. At the first position without a good record, the reader must decide whether the
//! rest was lost in a power cut, as unsynced bytes may be, or had been synced and is damaged:
//!
//! 1. It examines the two places where a record may begin: the end, and the next multiple of the
//!    write unit. If neither has a good record, both are read from the device a second time. One
//!    bit that was read wrongly must not look like a torn tail, which would be cut for good.
//! 2. It searches the rest of the allocated space for good headers of this life. A header that says
//!    "synced up to Y" with Y past the end was written after a sync had returned. So the missing
//!    bytes had been synced, and this is damage.
//! 3. It is also damage if the caller knows of such a Y: from the manifest, or from the next log's
//!    header.
//! 4. Otherwise the tail is cut here, and no record after it is ever replayed, because the chain is
//!    broken.
//!
//! Memory: one window of [`WINDOW`] bytes, and one record at a time when it is larger.

use super::record::{COMPRESSED, Life, RecordHeader, SEPARATED, flags_are_known, kind_of};
use super::separated::verify;
use super::{
    FileHeader, FileKind, RECORD_ALIGN, RECORD_HEADER, RecordKind, ResumePoint, StoredRecord, Tail,
    entries, header,
};
use basalt_fs::{Bytes, Error, File, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of one read. A payload inside a window is a slice of it.
const WINDOW: usize = 256 << 10;
/// Offsets of windows are multiples of this many bytes.
const WINDOW_ALIGN: u64 = 4096;

/// The facts that are known of a file before it is opened. If a known fact does not fit, the file
/// is not of this life.
#[derive(Debug, Clone, Copy)]
pub struct Expect {
    /// Log or manifest.
    pub kind: FileKind,
    /// File id, if it is known.
    pub file_id: Option<u128>,
    /// Id of the store that the file belongs to, if it is known.
    pub store_id: Option<u128>,
    /// Number of the file, if it is known.
    pub number: Option<u64>,
    /// Offset up to which the bytes are known to have been synced; 0 if nothing is known. Above 0,
    /// a header that does not fit is damage.
    pub proven_synced: u64,
}

/// Reads a file of records from front to back, as the head of this module describes.
pub struct RecordReader {
    source: WindowReader,
    header: FileHeader,
    life: Life,
    unit: u64,
    /// Offset of the end of the last good record, padding included: a multiple of [`RECORD_ALIGN`].
    end: u64,
    /// Header checksum that the next record must name; `None` if any is right.
    chain: Option<u32>,
    /// Largest offset that the records so far prove to have been synced.
    proven: u64,
    /// The end of the file, once it is known.
    ending: Option<Ending>,
    damage: Option<Error>,
}

/// The bytes that the reader found where the records end.
#[derive(Debug, Clone)]
struct Ending {
    /// Description of the bytes that are there instead of a record.
    found: String,
    torn: bool,
    /// Offset of a later header, and the offset that it proves to have been synced.
    proof: Option<(u64, u64)>,
}

/// The bytes at a place where a record may begin.
enum PlaceContent {
    Good(RecordHeader, Bytes),
    /// The next record, which is not whole.
    Broken(String),
    /// A good header of this life that does not follow the record before it.
    Unchained(String),
    /// No header of this life.
    Nothing,
}

impl RecordReader {
    /// Opens a file and checks its header against the kind, and the id if it is known. Returns
    /// `Ok(None)` if the header is not of this life (a log that was created but whose header never
    /// reached the device).
    ///
    /// Without an id, a recycled log whose own header was lost shows the header of its earlier
    /// life. [`RecordReader::open_expecting`] takes a number and a store, which distinguish the
    /// two.
    pub fn open(
        file: Arc<dyn File>,
        path: &Path,
        kind: FileKind,
        file_id: Option<u128>,
    ) -> Result<Option<RecordReader>> {
        let expect = Expect {
            kind,
            file_id,
            store_id: None,
            number: None,
            proven_synced: 0,
        };
        RecordReader::open_expecting(file, path, &expect)
    }

    /// Opens a file as [`RecordReader::open`] does, with more facts that are known.
    ///
    /// Errors: `Corruption` if there is a header and it is damaged, if a header is known to have
    /// been synced and is missing (by `proven_synced`, or by later records if the id is known), or
    /// if the file is of another kind; `Unsupported` for a header of a later version.
    pub fn open_expecting(
        file: Arc<dyn File>,
        path: &Path,
        expect: &Expect,
    ) -> Result<Option<RecordReader>> {
        let mut source = WindowReader {
            file,
            path: path.to_path_buf(),
            start: 0,
            window: Bytes::new(),
            allocated: 0,
        };
        let slot = source.up_to(0, WINDOW_ALIGN as usize)?;
        let missing = match header::decode(&slot, path)? {
            header::Slot::Damaged(what) => return Err(Error::corruption(path, 0, what)),
            header::Slot::Absent if slot.len() < header::HEADER_LEN => format!(
                "the file is cut at byte {}, inside of its header",
                slot.len()
            ),
            header::Slot::Absent => "no file header".to_string(),
            header::Slot::Header(h) => match misfit(&h, expect) {
                Some(what) => what,
                None if h.kind != expect.kind => {
                    return Err(Error::corruption(
                        path,
                        0,
                        format!("a file of kind {:?}, expected {:?}", h.kind, expect.kind),
                    ));
                }
                None => {
                    return Ok(Some(RecordReader {
                        life: Life::new(h.file_id),
                        unit: u64::from(h.write_unit),
                        end: u64::from(h.write_unit),
                        header: h,
                        source,
                        chain: Some(0),
                        proven: 0,
                        ending: None,
                        damage: None,
                    }));
                }
            },
        };
        if expect.proven_synced > 0 {
            return Err(Error::corruption(
                path,
                0,
                format!(
                    "{missing}, and the file is known to be synced up to {}",
                    expect.proven_synced
                ),
            ));
        }
        if let Some(id) = expect.file_id {
            let (_, proof) = source.search(Life::new(id), 0)?;
            if let Some((at, synced)) = proof {
                return Err(Error::corruption(
                    path,
                    0,
                    format!(
                        "{missing}, and the record at {at} proves that the file was synced up to {synced}"
                    ),
                ));
            }
        }
        Ok(None)
    }

    /// Moves to a point that the writer of the file named ([`super::RecordWriter::resume_point`]).
    /// Must be called before the first record is read. The records before the point are not read,
    /// and all of them count as synced.
    ///
    /// Errors: `Corruption` if the file's space ends before the point.
    pub fn resume_at(&mut self, point: &ResumePoint) -> Result<()> {
        self.end = self.end.max(point.offset);
        self.chain = Some(point.chain);
        self.proven = self.proven.max(self.end);
        let len = self.source.file.allocated();
        if !reaches(len, point.offset) {
            let what = format!(
                "the file has {len} bytes, and bytes up to {} are known to have been synced",
                point.offset
            );
            return Err(Error::corruption(&self.source.path, len, what));
        }
        Ok(())
    }

    /// Sets the checksum that the file's first record continues, as
    /// [`super::RecordWriter::follow`] does, or `None` if any is right. Must be called before the
    /// first record is read. A record that continues another one counts as lost.
    pub fn follow(&mut self, chain: Option<u32>) {
        self.chain = chain;
    }

    /// Returns the header checksum of the last record that was read, as the writer returned it.
    /// Returns that of [`RecordReader::follow`] before the first record.
    pub fn chain(&self) -> Option<u32> {
        self.chain
    }

    /// Returns the header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Returns the next record, or `None` at the tail. Bytes up to `proven_synced` are known from
    /// elsewhere to have been synced.
    ///
    /// Errors: `Corruption`, from then on, if the records end before `proven_synced` or before the
    /// `synced` position of any later good header; `Unsupported` for a record of a later version;
    /// errors of the filesystem, after which the call may be repeated.
    pub fn next(&mut self, proven_synced: u64) -> Result<Option<StoredRecord>> {
        if let Some(e) = &self.damage {
            return Err(e.clone());
        }
        if self.ending.is_none() {
            let mut place = self.step()?;
            if place.is_err() {
                self.source.forget();
                place = self.step()?;
            }
            match place {
                Ok(record) => return Ok(Some(record)),
                Err((found, mut torn)) => {
                    let (other, proof) = self.source.search(self.life, self.end)?;
                    torn |= other;
                    self.ending = Some(Ending { found, torn, proof });
                }
            }
        }
        let ending = self.ending.as_ref().expect("set above");
        let why = match ending.proof {
            Some((at, synced)) => {
                format!("the record at {at} proves that bytes up to {synced} were synced")
            }
            None if proven_synced > self.end => {
                format!("bytes up to {proven_synced} are known to have been synced")
            }
            None => return Ok(None),
        };
        let e = Error::corruption(
            &self.source.path,
            self.end,
            format!("expected a record, found {}; {why}", ending.found),
        );
        self.damage = Some(e.clone());
        Err(e)
    }

    /// Returns the offset up to which the records read so far prove the file to have been synced.
    pub fn proven(&self) -> u64 {
        self.proven
    }

    /// Returns the tail, after `next` returned `None`. Before that, it returns the state so far.
    pub fn tail(&self) -> Tail {
        Tail {
            end: self.end,
            torn: self.ending.as_ref().is_some_and(|e| e.torn),
        }
    }

    /// Returns the next record, or a description of the bytes there and whether they are of this
    /// life.
    fn step(&mut self) -> Result<std::result::Result<StoredRecord, (String, bool)>> {
        let mut instead = ("none".to_string(), false);
        let aligned = self.end.next_multiple_of(self.unit);
        let places = [Some(self.end), (aligned != self.end).then_some(aligned)];
        for offset in places.into_iter().flatten() {
            match self.look(offset)? {
                PlaceContent::Good(head, payload) => {
                    return self.accept(offset, head, payload).map(Ok);
                }
                PlaceContent::Broken(what) => return Ok(Err((what, true))),
                PlaceContent::Unchained(what) => instead = (what, true),
                PlaceContent::Nothing => {}
            }
        }
        Ok(Err(instead))
    }

    fn look(&mut self, offset: u64) -> Result<PlaceContent> {
        let Some(b) = self.source.exact(offset, RECORD_HEADER)? else {
            return Ok(PlaceContent::Nothing);
        };
        let Some(head) = self.life.open(&b, offset) else {
            return Ok(PlaceContent::Nothing);
        };
        if let Some(chain) = self.chain.filter(|chain| *chain != head.chain) {
            return Ok(PlaceContent::Unchained(format!(
                "one at {offset} that follows a record with checksum {:08x}, not {chain:08x}",
                head.chain
            )));
        }
        let at = offset + RECORD_HEADER as u64;
        let Some(payload) = self.source.exact(at, head.len as usize)? else {
            return Ok(PlaceContent::Broken(format!(
                "one at {offset} whose {} bytes pass the end of the file's space",
                head.len
            )));
        };
        if head.flags & SEPARATED != 0 && head.kind == RecordKind::Batch as u8 {
            let id = self.header.file_id;
            if !verify(id, &payload, at, head.first_seq, head.payload_crc) {
                return Ok(PlaceContent::Broken(format!(
                    "one at {offset} with separated values whose checksums do not fit"
                )));
            }
            return Ok(PlaceContent::Good(head, payload));
        }
        if head.kind == RecordKind::Entries as u8 {
            if !entries::verify(self.life, &payload, at, head.payload_crc) {
                return Ok(PlaceContent::Broken(format!(
                    "one at {offset} with log entries whose checksums do not fit"
                )));
            }
            return Ok(PlaceContent::Good(head, payload));
        }
        let crc = crc32c::crc32c(&payload);
        if crc != head.payload_crc {
            return Ok(PlaceContent::Broken(format!(
                "one at {offset} with payload checksum {crc:08x}, expected {:08x}",
                head.payload_crc
            )));
        }
        Ok(PlaceContent::Good(head, payload))
    }

    fn accept(&mut self, offset: u64, head: RecordHeader, payload: Bytes) -> Result<StoredRecord> {
        let kind = match kind_of(head.kind) {
            Some(kind) if flags_are_known(kind, head.flags) => kind,
            _ => {
                return Err(Error::unsupported(format!(
                    "record of kind {} with flags {:#04x}, which a later version writes; open the store with that version",
                    head.kind, head.flags
                ))
                .at(&self.source.path, offset));
            }
        };
        let len = RECORD_HEADER as u64 + u64::from(head.len);
        self.end = offset + len.next_multiple_of(RECORD_ALIGN as u64);
        self.chain = Some(head.crc);
        self.proven = self.proven.max(head.synced);
        Ok(StoredRecord {
            offset,
            kind,
            first_seq: head.first_seq,
            count: head.count,
            separated: head.flags & SEPARATED != 0,
            compressed: head.flags & COMPRESSED != 0,
            payload,
        })
    }
}

/// Returns true if a file of `len` bytes has all bytes of records that end at `end`. After a power
/// cut, a part of the padding of the last record can be missing.
pub fn reaches(len: u64, end: u64) -> bool {
    len.next_multiple_of(RECORD_ALIGN as u64) >= end
}

/// Returns why a header is not the expected one, or `None` if it is.
fn misfit(h: &FileHeader, expect: &Expect) -> Option<String> {
    if expect.file_id.is_some_and(|id| id != h.file_id) {
        return Some(format!("the header of another life, id {:032x}", h.file_id));
    }
    if expect.store_id.is_some_and(|id| id != h.store_id) {
        return Some(format!(
            "the header of another store, id {:032x}",
            h.store_id
        ));
    }
    if expect.number.is_some_and(|n| n != h.number) {
        return Some(format!("the header of another file, number {}", h.number));
    }
    None
}

/// Reads the file's bytes through one window.
struct WindowReader {
    file: Arc<dyn File>,
    path: PathBuf,
    start: u64,
    window: Bytes,
    /// Allocated space when it was last asked for. To ask costs a system call, and space only grows
    /// while a file is read.
    allocated: u64,
}

impl WindowReader {
    /// Drops the window, so that the next bytes are read from the device.
    fn forget(&mut self) {
        self.window = Bytes::new();
    }

    /// Returns exactly `len` bytes, or `None` if the allocated space ends before. In that case no
    /// memory is allocated.
    fn exact(&mut self, offset: u64, len: usize) -> Result<Option<Bytes>> {
        let Some(end) = offset.checked_add(len as u64) else {
            return Ok(None);
        };
        if end > self.allocated {
            self.allocated = self.file.allocated();
            if end > self.allocated {
                return Ok(None);
            }
        }
        let b = self.up_to(offset, len)?;
        Ok((b.len() == len).then_some(b))
    }

    /// Returns up to `len` bytes. There are fewer only if the allocated space ends.
    fn up_to(&mut self, offset: u64, len: usize) -> Result<Bytes> {
        if let Some(b) = self.in_window(offset, len) {
            return Ok(b);
        }
        let start = offset / WINDOW_ALIGN * WINDOW_ALIGN;
        if (offset - start) as usize + len > WINDOW {
            // A range larger than a window is read on its own, so that its memory is released with
            // the record.
            return self.file.read(offset, len);
        }
        self.window = self.file.read(start, WINDOW)?;
        self.start = start;
        let from = ((offset - start) as usize).min(self.window.len());
        let to = (from + len).min(self.window.len());
        Ok(self.window.slice(from..to))
    }

    fn in_window(&self, offset: u64, len: usize) -> Option<Bytes> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(len)?;
        (to <= self.window.len()).then(|| self.window.slice(from..to))
    }

    /// Searches every place from `from` (a multiple of 8) to the end of the space for headers of
    /// this life. Returns whether there is any, and the first one that proves a sync past `from`,
    /// with the offset that it proves.
    fn search(&mut self, life: Life, from: u64) -> Result<(bool, Option<(u64, u64)>)> {
        let (mut any, mut proof) = (false, None);
        let mut at = from;
        loop {
            let start = at / WINDOW_ALIGN * WINDOW_ALIGN;
            let len = WINDOW - (at - start) as usize;
            let b = self.up_to(at, len)?;
            life.search(&b, |i| {
                if let Some(head) = life.open(&b[i..], at + i as u64) {
                    any = true;
                    if head.synced > from {
                        proof = Some((at + i as u64, head.synced));
                    }
                }
                proof.is_some()
            });
            if proof.is_some() || b.len() < len {
                return Ok((any, proof));
            }
            // The last places of this window had no room for a header.
            at += ((b.len() - RECORD_HEADER) / RECORD_ALIGN * RECORD_ALIGN + RECORD_ALIGN) as u64;
        }
    }
}
