//! Reading records back after anything: a clean close, a power cut, decay, or an earlier life
//! showing through.
//!
//! The reader walks from record to record. A record is good when its header's checksum fits this
//! life of the file and this place, its chain field names the record before it, and its payload's
//! checksum fits. Where the walk ends, the question is whether the rest was lost in a power cut, as
//! unsynced bytes may be, or had been synced and is damaged:
//!
//! 1. The two places where a record may begin are looked at: at the end, and at the next multiple of the write unit. What they do
//!    not hold is read from the device a second time: one wrong bit on the way in is not to look like a torn tail, which would
//!    be cut for good.
//! 2. The rest of the allocated space is searched for good headers of this life. One of them that says "synced up to Y" with Y
//!    past the end was written after a sync had returned: what is missing had been synced. That is damage.
//! 3. So it is when the caller knows of such a Y: from the manifest, or from the next log's header.
//! 4. Else the tail is cut here, and nothing after it is ever replayed: the chain is broken.
//!
//! Memory: one window of [`WINDOW`] bytes, and one record at a time when it is larger.

use super::record::{Head, Life, PACKED, SEPARATED, flags_are_known, kind_of};
use super::separated::verify;
use super::{FileHeader, FileKind, RECORD_ALIGN, RECORD_HEADER, Record, RecordKind, Tail, header};
use basalt_fs::{Bytes, Error, File, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of one read. Payloads that lie inside a window are slices of it.
const WINDOW: usize = 256 << 10;
/// Windows begin at multiples of this.
const WINDOW_ALIGN: u64 = 4096;

/// What is known of a file before it is opened: whatever is known must fit, or the file is not of
/// this life.
#[derive(Debug, Clone, Copy)]
pub struct Expect {
    /// Log or manifest.
    pub kind: FileKind,
    /// The family's id.
    pub file_id: Option<u128>,
    /// The store it belongs to.
    pub store_id: Option<u128>,
    /// Its number.
    pub number: Option<u64>,
    /// Bytes up to here are known to have been synced; 0 when nothing is known. Above 0, a header
    /// that does not fit is damage.
    pub proven_synced: u64,
}

/// Reads a file of records front to back. See the module.
pub struct RecordReader {
    source: Source,
    header: FileHeader,
    life: Life,
    unit: u64,
    /// End of the last good record, padding included: a multiple of [`RECORD_ALIGN`].
    end: u64,
    chain: u32,
    /// What the records so far say of syncs before them.
    proven: u64,
    /// How it ends, once that is known.
    ending: Option<Ending>,
    damage: Option<Error>,
}

/// What was found where the records end.
#[derive(Debug, Clone)]
struct Ending {
    /// What stands there instead of a record.
    found: String,
    torn: bool,
    /// A later header and the position it proves to have been synced.
    proof: Option<(u64, u64)>,
}

/// What stands at a place where a record may begin.
enum Place {
    Good(Head, Bytes),
    /// The next record, and it is not whole.
    Broken(String),
    /// A good header of this life that does not follow the record before it.
    Unchained(String),
    /// No header of this life.
    Nothing,
}

impl RecordReader {
    /// Opens and checks the header against what is known of it: kind, and id where the caller knows
    /// one. `Ok(None)` when the header is not of this life (a log that was created but whose header
    /// never reached the device).
    ///
    /// Without an id, a recycled log whose own header was lost shows the header of its earlier
    /// life: use [`RecordReader::open_expecting`] with number and store, which tell them apart.
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

    /// As [`RecordReader::open`], with more that is known.
    ///
    /// Errors: `Corruption` when there is a header and it is damaged, when a header is known to
    /// have been synced and is not there (by `proven_synced`, or by later records when the id is
    /// known), or when the file is of another kind; `Unsupported` for a header of a later version.
    pub fn open_expecting(
        file: Arc<dyn File>,
        path: &Path,
        expect: &Expect,
    ) -> Result<Option<RecordReader>> {
        let mut source = Source {
            file,
            path: path.to_path_buf(),
            start: 0,
            window: Bytes::new(),
        };
        let slot = source.up_to(0, WINDOW_ALIGN as usize)?;
        let missing = match header::decode(&slot, path)? {
            header::Slot::Damaged(what) => return Err(Error::corruption(path, 0, what)),
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
                        chain: 0,
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

    /// The header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The next record, or `None` at the tail. `proven_synced`: bytes up to here are known from
    /// elsewhere to have been synced; an end before it, or before the `synced` position of any
    /// later good header, is `Corruption`, from then on.
    ///
    /// Other errors: `Unsupported` for a record of a later version; the filesystem's, after which
    /// the call may be repeated.
    pub fn next(&mut self, proven_synced: u64) -> Result<Option<Record>> {
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

    /// Position up to which the records read so far prove the file to have been synced.
    pub fn proven(&self) -> u64 {
        self.proven
    }

    /// After `next` returned `None` (or the state so far, before).
    pub fn tail(&self) -> Tail {
        Tail {
            end: self.end,
            torn: self.ending.as_ref().is_some_and(|e| e.torn),
        }
    }

    /// The next record; or what is there instead, and whether that is of this life.
    fn step(&mut self) -> Result<std::result::Result<Record, (String, bool)>> {
        let mut instead = ("none".to_string(), false);
        let aligned = self.end.next_multiple_of(self.unit);
        let places = [Some(self.end), (aligned != self.end).then_some(aligned)];
        for offset in places.into_iter().flatten() {
            match self.look(offset)? {
                Place::Good(head, payload) => return self.accept(offset, head, payload).map(Ok),
                Place::Broken(what) => return Ok(Err((what, true))),
                Place::Unchained(what) => instead = (what, true),
                Place::Nothing => {}
            }
        }
        Ok(Err(instead))
    }

    fn look(&mut self, offset: u64) -> Result<Place> {
        let Some(b) = self.source.exact(offset, RECORD_HEADER)? else {
            return Ok(Place::Nothing);
        };
        let Some(head) = self.life.open(&b, offset) else {
            return Ok(Place::Nothing);
        };
        if head.chain != self.chain {
            return Ok(Place::Unchained(format!(
                "one at {offset} that follows a record with checksum {:08x}, not {:08x}",
                head.chain, self.chain
            )));
        }
        let at = offset + RECORD_HEADER as u64;
        let Some(payload) = self.source.exact(at, head.len as usize)? else {
            return Ok(Place::Broken(format!(
                "one at {offset} whose {} bytes pass the end of the file's space",
                head.len
            )));
        };
        if head.flags & SEPARATED != 0 && head.kind == RecordKind::Batch as u8 {
            let id = self.header.file_id;
            if !verify(id, &payload, at, head.first_seq, head.payload_crc) {
                return Ok(Place::Broken(format!(
                    "one at {offset} with separated values whose checksums do not fit"
                )));
            }
            return Ok(Place::Good(head, payload));
        }
        let crc = crc32c::crc32c(&payload);
        if crc != head.payload_crc {
            return Ok(Place::Broken(format!(
                "one at {offset} with payload checksum {crc:08x}, expected {:08x}",
                head.payload_crc
            )));
        }
        Ok(Place::Good(head, payload))
    }

    fn accept(&mut self, offset: u64, head: Head, payload: Bytes) -> Result<Record> {
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
        self.chain = head.crc;
        self.proven = self.proven.max(head.synced);
        Ok(Record {
            offset,
            kind,
            first_seq: head.first_seq,
            count: head.count,
            separated: head.flags & SEPARATED != 0,
            packed: head.flags & PACKED != 0,
            payload,
        })
    }
}

/// Why a header is not the one expected.
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

/// The file's bytes through one window.
struct Source {
    file: Arc<dyn File>,
    path: PathBuf,
    start: u64,
    window: Bytes,
}

impl Source {
    /// What comes next is read from the device.
    fn forget(&mut self) {
        self.window = Bytes::new();
    }

    /// Exactly `len` bytes, or `None` when the allocated space ends before. Nothing is allocated in
    /// that case.
    fn exact(&mut self, offset: u64, len: usize) -> Result<Option<Bytes>> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.file.allocated() => {}
            _ => return Ok(None),
        }
        let b = self.up_to(offset, len)?;
        Ok((b.len() == len).then_some(b))
    }

    /// Up to `len` bytes; fewer only where the allocated space ends.
    fn up_to(&mut self, offset: u64, len: usize) -> Result<Bytes> {
        if let Some(b) = self.in_window(offset, len) {
            return Ok(b);
        }
        let start = offset / WINDOW_ALIGN * WINDOW_ALIGN;
        if (offset - start) as usize + len > WINDOW {
            // Larger than a window: on its own, so that the memory goes with the record.
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

    /// Looks at every place from `from` (a multiple of 8) to the end of the space for headers of
    /// this life. Returns whether there is any, and the first that proves a sync past `from`, with
    /// what it proves.
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
