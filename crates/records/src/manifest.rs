//! The manifest: a file of edits, and `CURRENT`, which names it.
//!
//! - `MANIFEST-NNNNNN` is a file of records (the head of this crate). Its first record is the whole
//!   state in one edit. Each later record is one edit, which is synced before it takes effect.
//! - `CURRENT` is 64 bytes: magic, manifest number, manifest id, store id, the position up to which
//!   the manifest was synced when `CURRENT` was written, and a checksum. It is replaced by a
//!   rename.
//!
//! After a failed append the manifest is in doubt: the edit may or may not be on the device. No
//! file that either state names is removed, and the next edit goes to a fresh manifest.

use crate::{
    FileHeader, FileKind, Outgoing, RECORD_HEADER, RecordKind, RecordReader, RecordWriter,
};
use basalt_env::Env;
use basalt_fs::{AlignedBuf, Error, ErrorKind, File, Intent, Result};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the file that names the manifest.
pub const CURRENT: &str = "CURRENT";
const CURRENT_TMP: &str = "CURRENT.tmp";
const CURRENT_MAGIC: [u8; 8] = *b"BSLTCUR1";
/// Bytes of `CURRENT`.
pub const CURRENT_LEN: usize = 64;
/// Bytes before the checksum: magic, manifest number, manifest id, store id, synced position, 4
/// reserved bytes.
const CURRENT_CHECKED: usize = 8 + 8 + 16 + 16 + 8 + 4;
const _: () = assert!(CURRENT_CHECKED + size_of::<u32>() == CURRENT_LEN);
// `CURRENT` fits in one write unit, so that it is never torn.
const _: () = assert!(CURRENT_LEN <= 512);

/// The content of `CURRENT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Current {
    /// Number of the manifest.
    pub number: u64,
    /// File id of the manifest.
    pub file_id: u128,
    /// Id of the store.
    pub store_id: u128,
    /// Offset up to which the manifest was synced.
    pub synced: u64,
}

impl Current {
    /// Returns the bytes of the file.
    pub fn encode(&self) -> [u8; CURRENT_LEN] {
        let mut b = [0u8; CURRENT_LEN];
        b[..8].copy_from_slice(&CURRENT_MAGIC);
        b[8..16].copy_from_slice(&self.number.to_le_bytes());
        b[16..32].copy_from_slice(&self.file_id.to_le_bytes());
        b[32..48].copy_from_slice(&self.store_id.to_le_bytes());
        b[48..56].copy_from_slice(&self.synced.to_le_bytes());
        let crc = crc32c::crc32c(&b[..CURRENT_CHECKED]);
        b[CURRENT_CHECKED..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Decodes the bytes of the file.
    pub fn decode(b: &[u8], path: &Path) -> Result<Current> {
        let bad = |what: String| Error::corruption(path, 0, what);
        if b.len() < CURRENT_LEN {
            return Err(bad(format!("{} bytes, expected {CURRENT_LEN}", b.len())));
        }
        if b[..8] != CURRENT_MAGIC {
            return Err(bad(format!(
                "magic is {:02x?}, expected {:02x?}",
                &b[..8],
                CURRENT_MAGIC
            )));
        }
        let crc = u32::from_le_bytes(b[CURRENT_CHECKED..CURRENT_LEN].try_into().expect("4 bytes"));
        let found = crc32c::crc32c(&b[..CURRENT_CHECKED]);
        if crc != found {
            return Err(bad(format!("checksum is {found:08x}, expected {crc:08x}")));
        }
        let u64_at = |i: usize| u64::from_le_bytes(b[i..i + 8].try_into().expect("8 bytes"));
        let u128_at = |i: usize| u128::from_le_bytes(b[i..i + 16].try_into().expect("16 bytes"));
        Ok(Current {
            number: u64_at(8),
            file_id: u128_at(16),
            store_id: u128_at(32),
            synced: u64_at(48),
        })
    }
}

/// Returns the path of a manifest.
pub fn manifest_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("MANIFEST-{number:06}"))
}

/// Reads `CURRENT`. Returns `None` if there is none.
pub fn read_current(env: &Env, dir: &Path) -> Result<Option<Current>> {
    let path = dir.join(CURRENT);
    match env.fs().open(&path) {
        Ok(f) => Ok(Some(Current::decode(&f.read(0, CURRENT_LEN)?, &path)?)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Reads the manifest that `current` names and calls `apply` with the bytes of each edit. Returns
/// the offset of the end of its records. An error of `apply` that names no file gets the manifest's
/// path and the record's offset.
pub fn replay(
    env: &Env,
    dir: &Path,
    current: &Current,
    mut apply: impl FnMut(&[u8]) -> Result<()>,
) -> Result<u64> {
    let path = manifest_path(dir, current.number);
    let file = env.fs().open(&path).map_err(|e| {
        if e.is_not_found() {
            Error::corruption(
                &path,
                0,
                "CURRENT names this manifest, and it is missing; run `basalt repair`",
            )
        } else {
            e
        }
    })?;
    let mut reader = RecordReader::open(file, &path, FileKind::Manifest, Some(current.file_id))?
        .ok_or_else(|| {
            Error::corruption(
                &path,
                0,
                "the header is not that of the manifest that CURRENT names",
            )
        })?;
    if reader.header().store_id != current.store_id {
        return Err(Error::corruption(
            &path,
            0,
            format!(
                "store id is {:032x}, expected {:032x}: the file belongs to another store",
                reader.header().store_id,
                current.store_id
            ),
        ));
    }
    while let Some(record) = reader.next(current.synced)? {
        if record.kind != RecordKind::Edit {
            return Err(Error::corruption(
                &path,
                record.offset,
                format!("a record of kind {:?} in a manifest", record.kind),
            ));
        }
        apply(&record.payload).map_err(|e| {
            if e.path().is_none() {
                e.at(&path, record.offset)
            } else {
                e
            }
        })?;
    }
    Ok(reader.tail().end)
}

/// The open manifest. Calls are serialised by the caller.
pub struct Manifest {
    dir: PathBuf,
    number: u64,
    file_id: u128,
    store_id: u128,
    /// The writer. `None` for a store that is only read.
    writer: Option<RecordWriter>,
    edits: u64,
    /// Bytes of the header and of the whole state at the beginning.
    begun: u64,
    in_doubt: bool,
}

impl Manifest {
    /// Writes a fresh manifest that begins with the whole state, as the bytes of one edit, makes it
    /// durable, and points `CURRENT` at it. If this fails before `CURRENT` is replaced, the fresh
    /// manifest is removed, so that attempts on a full disk take no space. If it fails later,
    /// either manifest may be the current one after a crash, so both stay on disk.
    pub fn create(
        env: &Env,
        dir: &Path,
        store_id: u128,
        number: u64,
        state: &[u8],
    ) -> Result<Manifest> {
        let path = manifest_path(dir, number);
        let file = env.fs().create(&path)?;
        let mut may_be_current = false;
        let made = Manifest::write(env, dir, file, store_id, number, state).and_then(|mut m| {
            m.replace_current(env, &mut may_be_current)?;
            Ok(m)
        });
        if made.is_err() && !may_be_current {
            // Files that stay are unused, and the next open removes them.
            let _ = env.fs().remove(&path);
            let _ = env.fs().remove(&dir.join(CURRENT_TMP));
        }
        made
    }

    /// Writes a manifest that `CURRENT` does not name yet.
    fn write(
        env: &Env,
        dir: &Path,
        file: Arc<dyn File>,
        store_id: u128,
        number: u64,
        state: &[u8],
    ) -> Result<Manifest> {
        let path = manifest_path(dir, number);
        let fs = env.fs();
        let file_id = env.random().next_u128();
        let header = FileHeader {
            kind: FileKind::Manifest,
            file_id,
            store_id,
            number,
            write_unit: fs.info().write_unit as u32,
            compatible: 0,
            incompatible: 0,
            previous: None,
        };
        let writer = RecordWriter::create(file, &path, &header)?;
        let mut m = Manifest {
            dir: dir.to_path_buf(),
            number,
            file_id,
            store_id,
            writer: Some(writer),
            edits: 0,
            begun: 0,
            in_doubt: false,
        };
        m.append(state)?;
        m.begun = m.bytes();
        fs.sync_metadata(dir)?;
        Ok(m)
    }

    /// Returns the manifest of a store that is only read. It takes no edits.
    pub fn unwritten(dir: &Path, number: u64, store_id: u128) -> Manifest {
        Manifest {
            dir: dir.to_path_buf(),
            number,
            file_id: 0,
            store_id,
            writer: None,
            edits: 0,
            begun: 0,
            in_doubt: true,
        }
    }

    /// Writes `CURRENT` so that it names this manifest, and says that all of it is synced.
    pub fn point_current(&mut self, env: &Env) -> Result<()> {
        self.replace_current(env, &mut false)
    }

    /// Writes `CURRENT`. Sets `may_be_replaced` before the old one may be gone.
    fn replace_current(&mut self, env: &Env, may_be_replaced: &mut bool) -> Result<()> {
        let fs = env.fs();
        let (tmp, target) = (self.dir.join(CURRENT_TMP), self.dir.join(CURRENT));
        let current = Current {
            number: self.number,
            file_id: self.file_id,
            store_id: self.store_id,
            synced: self.writer.as_ref().map_or(0, RecordWriter::synced),
        };
        if fs.exists(&tmp)? {
            fs.remove(&tmp)?;
        }
        let file = fs.create(&tmp)?;
        file.append(&[IoSlice::new(&current.encode())], Intent::Sync)?;
        file.sync_all()?;
        *may_be_replaced = true;
        fs.rename(&tmp, &target)?;
        fs.sync_metadata(&self.dir)
    }

    /// Appends the bytes of an edit and makes them durable. After an error the manifest is in
    /// doubt.
    pub fn append(&mut self, edit: &[u8]) -> Result<()> {
        if self.in_doubt {
            return Err(Error::new(
                ErrorKind::Poisoned,
                "an earlier edit of the manifest failed",
            )
            .in_file(&manifest_path(&self.dir, self.number)));
        }
        let mut buf = AlignedBuf::with_capacity(RECORD_HEADER + edit.len());
        buf.resize(RECORD_HEADER, 0);
        buf.extend_from_slice(edit);
        let record = Outgoing {
            buf: &mut buf,
            kind: RecordKind::Edit,
            first_seq: self.edits,
            count: 1,
            payload_crc: crc32c::crc32c(edit),
            separated: &[],
            offset: 0,
        };
        let writer = self.writer.as_mut();
        if let Err(e) = writer.map_or(Ok(()), |w| w.append(&mut [record], true)) {
            self.in_doubt = true;
            return Err(e);
        }
        self.edits += 1;
        Ok(())
    }

    /// Returns the number of the manifest.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, RecordWriter::end)
    }

    /// Returns the bytes of the header and of the whole state at the beginning, or 0 for a store
    /// that is only read.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Records that a fresh manifest may have replaced this one, which takes no more edits.
    pub fn doubt(&mut self) {
        self.in_doubt = true;
    }

    /// Returns true if an edit failed and a fresh manifest is needed.
    pub fn in_doubt(&self) -> bool {
        self.in_doubt
    }
}
