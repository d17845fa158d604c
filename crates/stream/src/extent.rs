//! Extents: ids, file names, headers, and the handle of one extent.

use basalt_env::Env;
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use basalt_env::sync::{RwLock, named};
use basalt_fs::{AlignedBuf, Error, ErrorKind, File, FileStat, Intent, Result};
use std::fmt;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"BSLTEXT1";
/// Bytes of the header: magic, id, life, incompatible and compatible features, 4 reserved bytes, a
/// checksum. Zeros follow up to the filesystem's write unit, behind which the first append lies.
pub(crate) const HEADER: usize = EXTENT_HEADER;

/// Bytes of an extent before the first one that can be appended. Zeros may follow.
pub const EXTENT_HEADER: usize = 48;
const CHECKED: usize = HEADER - 4;
const EXTENSION: &str = ".extent";

/// The id of an extent: a random number that no other extent of any stream has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtentId(pub u64);

impl fmt::Display for ExtentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl ExtentId {
    /// Returns the name of the extent's file.
    pub(crate) fn file_name(self) -> String {
        format!("{self}{EXTENSION}")
    }

    /// Returns the id of an extent whose file has this name.
    pub(crate) fn of_file_name(name: &str) -> Option<ExtentId> {
        let digits = name.strip_suffix(EXTENSION)?;
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let id = u64::from_str_radix(digits, 16).ok()?;
        (digits.len() == 16 && digits.bytes().all(is_hex)).then_some(ExtentId(id))
    }
}

/// The address of bytes in a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtentAddress {
    /// The extent that has the bytes.
    pub extent: ExtentId,
    /// Offset of the first byte in the extent.
    pub offset: u64,
}

/// An extent of a stream, as [`crate::Stream::extents`] lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ExtentInfo {
    /// The extent's id.
    pub id: ExtentId,
    /// Bytes, its header included. Of an extent that a crash left unsealed, an upper bound.
    pub len: u64,
    /// Bytes that the extent takes on the device, its header included, at most `len`. Less than
    /// `len` if ranges were released.
    pub on_disk: u64,
    /// True if the extent takes no more bytes.
    pub sealed: bool,
}

/// The handle of an extent.
pub(crate) struct Extent {
    pub id: ExtentId,
    pub path: PathBuf,
    /// The random number that the header must have. `None` if the header is not verified.
    life: Option<u128>,
    /// The error for a file that is missing, or shorter than the manifest says. Reads of the
    /// missing bytes return it.
    pub damage: Option<Error>,
    /// Bytes that may be read.
    len: AtomicU64,
    /// Bytes that survive a power cut, at least.
    synced: AtomicU64,
    /// Bytes that the file takes on the device, as the last [`Extent::stat`] found them.
    /// `u64::MAX` before the first one: the extent was begun by this handle and has no holes.
    on_disk: AtomicU64,
    /// The file. A sealed extent is opened by its first read. A leaf.
    file: RwLock<Option<Arc<dyn File>>>,
    /// True if appended bytes may wait in memory of the filesystem: [`Intent::Bulk`].
    has_bulk: AtomicBool,
    /// True if an append has failed. The handle that appended takes no syncs on some filesystems.
    append_failed: AtomicBool,
}

impl Extent {
    /// Returns the handle of an extent that is on the disk. Its length is set by
    /// [`Extent::set_len`]. Its header is checked if `life` is given.
    pub fn existing(dir: &Path, id: ExtentId, life: Option<u128>) -> Extent {
        Extent {
            id,
            path: dir.join(id.file_name()),
            life,
            damage: None,
            len: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            on_disk: AtomicU64::new(u64::MAX),
            file: named("Extent::file", RwLock::new(None)),
            has_bulk: AtomicBool::new(false),
            append_failed: AtomicBool::new(false),
        }
    }

    /// Creates the file of an extent, with its header, which is synced. The name is volatile.
    pub fn create(env: &Env, dir: &Path, id: ExtentId, life: u128) -> Result<Extent> {
        let path = dir.join(id.file_name());
        let file = env.fs().create(&path)?;
        let unit = env.fs().info().write_unit;
        let mut header = AlignedBuf::with_capacity(unit);
        header.extend_from_slice(&encode_header(id, life));
        header.resize(unit, 0);
        file.append(&[IoSlice::new(&header)], Intent::Sync)?;
        file.sync_data()?;
        let extent = Extent::existing(dir, id, Some(life));
        extent.set_len(unit as u64);
        *extent.file.write() = Some(file);
        Ok(extent)
    }

    /// Returns the file, which this call may open.
    ///
    /// Errors: `Corruption` if the file is missing or has the header of another one.
    pub fn file(&self, env: &Env) -> Result<Arc<dyn File>> {
        if let Some(file) = &*self.file.read() {
            return Ok(file.clone());
        }
        let opened = env.fs().open(&self.path);
        let file = opened.map_err(|e| self.missing_is_damage(e))?;
        if let Some(life) = self.life {
            let header = file.read(0, HEADER)?;
            check_header(&header, self.id, life).map_err(|e| e.at(&self.path, 0))?;
        }
        Ok(self.file.write().get_or_insert(file).clone())
    }

    /// Returns the metadata of the file, and notes the bytes that it takes on the device.
    ///
    /// Errors: `Corruption` if the file is missing.
    pub fn stat(&self, env: &Env) -> Result<FileStat> {
        let found = env.fs().stat(&self.path);
        let found = found.map_err(|e| self.missing_is_damage(e))?;
        self.on_disk.store(found.on_disk, Release);
        Ok(found)
    }

    /// Turns `NotFound` into the damage of a missing file, and returns other errors unchanged.
    pub fn missing_is_damage(&self, e: Error) -> Error {
        let missing = "the manifest names this extent, and it is missing";
        match e.is_not_found() {
            true => Error::corruption(&self.path, 0, missing),
            false => e,
        }
    }

    /// Appends bytes. Returns the offset of the first one.
    pub fn append(&self, env: &Env, bufs: &[IoSlice<'_>], intent: Intent) -> Result<u64> {
        let appended = self.file(env)?.append(bufs, intent);
        match &appended {
            Ok(offset) => {
                let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
                if intent == Intent::Bulk {
                    self.has_bulk.store(true, SeqCst);
                }
                self.len.fetch_max(offset + len, Release);
            }
            Err(_) => self.append_failed.store(true, SeqCst),
        }
        appended
    }

    /// Makes all bytes survive a power cut, after the last append.
    ///
    /// Errors: after a failed append, also if bytes of earlier appends may have been lost with it.
    pub fn sync_all(&self, env: &Env) -> Result<()> {
        match self.file(env)?.sync_all() {
            // The bytes are in the file. Only the handle that appended refuses.
            Err(e)
                if e.kind() == ErrorKind::Poisoned
                    && self.append_failed.load(SeqCst)
                    && !self.has_bulk.load(SeqCst) =>
            {
                self.close();
                self.file(env)?.sync_all()
            }
            synced => synced,
        }
    }

    /// Returns true if an append has failed.
    pub fn append_has_failed(&self) -> bool {
        self.append_failed.load(SeqCst)
    }

    /// Notes that bytes survive a power cut, up to a length.
    pub fn note_synced(&self, len: u64) {
        self.synced.fetch_max(len, SeqCst);
    }

    /// Ends the extent where it is known to survive a power cut. Later bytes are lost.
    pub fn cut_to_synced(&self) {
        self.len.store(self.synced.load(SeqCst), Release);
    }

    /// Forgets the handle. The next read opens the file again.
    pub fn close(&self) {
        *self.file.write() = None;
    }

    /// Sets the bytes that may be read, all of which survive a power cut.
    pub fn set_len(&self, len: u64) {
        self.synced.store(len, SeqCst);
        self.len.store(len, Release);
    }

    /// Returns the bytes that the file took on the device when they were last measured. `u64::MAX`
    /// if they were not.
    pub fn on_disk(&self) -> u64 {
        self.on_disk.load(Acquire)
    }

    /// Returns the bytes that may be read.
    pub fn len(&self) -> u64 {
        self.len.load(Acquire)
    }
}

fn encode_header(id: ExtentId, life: u128) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&id.0.to_le_bytes());
    header[16..32].copy_from_slice(&life.to_le_bytes());
    let crc = crc32c::crc32c(&header[..CHECKED]);
    header[CHECKED..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Errors: `Corruption` without a file for bytes that are not the header of this extent;
/// `Unsupported` for features of a later version.
pub(crate) fn check_header(bytes: &[u8], id: ExtentId, life: u128) -> Result<()> {
    let bad = |what: String| Err(Error::new(ErrorKind::Corruption, what));
    let Some(header) = bytes.get(..HEADER) else {
        return bad(format!(
            "the extent has {} bytes, its header has {HEADER}",
            bytes.len()
        ));
    };
    if header[..8] != MAGIC {
        return bad("the file has no header of an extent".to_string());
    }
    let crc = u32::from_le_bytes(header[CHECKED..].try_into().expect("4 bytes"));
    if crc != crc32c::crc32c(&header[..CHECKED]) {
        return bad("the checksum of the extent's header is wrong".to_string());
    }
    let found = ExtentId(u64::from_le_bytes(
        header[8..16].try_into().expect("8 bytes"),
    ));
    if found != id {
        return bad(format!("the file is extent {found}, expected {id}"));
    }
    if header[16..32] != life.to_le_bytes() {
        return bad(format!("the file is another extent with the id {id}"));
    }
    check_features(header)
}

/// Errors: `Unsupported` for features of a later version in an intact header.
pub(crate) fn check_features(bytes: &[u8]) -> Result<()> {
    let Some(header) = bytes.get(..HEADER) else {
        return Ok(());
    };
    let crc = u32::from_le_bytes(header[CHECKED..].try_into().expect("4 bytes"));
    if header[..8] != MAGIC || crc != crc32c::crc32c(&header[..CHECKED]) {
        return Ok(());
    }
    let features = u32::from_le_bytes(header[32..36].try_into().expect("4 bytes"));
    match features {
        0 => Ok(()),
        _ => Err(Error::unsupported(format!(
            "the extent has features {features:#x}, which a later version writes; open the stream with that version"
        ))),
    }
}
