//! Extents: ids, file names, headers, and the handle of one extent.

use basalt_env::Env;
use basalt_env::sync::atomic::{AtomicU64, Ordering::*};
use basalt_fs::{AlignedBuf, Error, File, Intent, Result};
use std::fmt;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;

const MAGIC: [u8; 8] = *b"BSLTEXT1";
/// Bytes of the header: magic, id, incompatible and compatible features, 4 reserved bytes, a
/// checksum. Zeros follow up to the filesystem's write unit, behind which the first append lies.
const HEADER: usize = 32;
const CHECKED: usize = HEADER - 4;
const EXTENSION: &str = ".extent";

/// The id of an extent: a random number, unique among all streams.
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

/// A place in a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The extent.
    pub extent: ExtentId,
    /// Offset of the first byte in it.
    pub offset: u64,
}

/// An extent of a stream, as [`crate::Stream::extents`] lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ExtentInfo {
    /// The extent.
    pub id: ExtentId,
    /// Bytes, its header included. Of an extent that a crash left unsealed, an upper bound.
    pub len: u64,
    /// True if the extent takes no more bytes.
    pub sealed: bool,
}

/// The handle of an extent.
pub(crate) struct Extent {
    pub id: ExtentId,
    pub path: PathBuf,
    /// Bytes that may be read.
    len: AtomicU64,
    /// The file. A sealed extent is opened by its first read.
    file: OnceLock<Arc<dyn File>>,
}

impl Extent {
    /// Returns the handle of an extent that is on the disk.
    pub fn known(dir: &Path, id: ExtentId, len: u64) -> Extent {
        Extent {
            id,
            path: dir.join(id.file_name()),
            len: AtomicU64::new(len),
            file: OnceLock::new(),
        }
    }

    /// Creates the file of an extent, with its header. The name and the header are volatile.
    pub fn create(env: &Env, dir: &Path, id: ExtentId) -> Result<Extent> {
        let path = dir.join(id.file_name());
        let file = env.fs().create(&path)?;
        let unit = env.fs().info().write_unit;
        let mut header = AlignedBuf::with_capacity(unit);
        header.extend_from_slice(&encode_header(id));
        header.resize(unit, 0);
        file.append(&[IoSlice::new(&header)], Intent::Lazy)?;
        let extent = Extent::known(dir, id, unit as u64);
        let _ = extent.file.set(file);
        Ok(extent)
    }

    /// Returns the file, which this call may open.
    ///
    /// Errors: `Corruption` if the file is missing or has the header of another one.
    pub fn file(&self, env: &Env) -> Result<&Arc<dyn File>> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = env
            .fs()
            .open(&self.path)
            .map_err(|e| match e.is_not_found() {
                true => Error::corruption(
                    &self.path,
                    0,
                    "the manifest names this extent, and it is missing",
                ),
                false => e,
            })?;
        check_header(&file.read(0, HEADER)?, self.id).map_err(|e| e.at(&self.path, 0))?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Returns the bytes that may be read.
    pub fn len(&self) -> u64 {
        self.len.load(Acquire)
    }

    /// Notes that bytes up to `end` may be read.
    pub fn extend(&self, end: u64) {
        self.len.fetch_max(end, Release);
    }
}

fn encode_header(id: ExtentId) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&id.0.to_le_bytes());
    let crc = crc32c::crc32c(&header[..CHECKED]);
    header[CHECKED..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Errors: `Corruption` without a file for bytes that are not the header of this extent;
/// `Unsupported` for features of a later version.
pub(crate) fn check_header(bytes: &[u8], id: ExtentId) -> Result<()> {
    let bad = |what: String| Err(Error::new(basalt_fs::ErrorKind::Corruption, what));
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
    let features = u32::from_le_bytes(header[16..20].try_into().expect("4 bytes"));
    match features {
        0 => Ok(()),
        _ => Err(Error::unsupported(format!(
            "the extent has features {features:#x}, which a later version writes; open the stream with that version"
        ))),
    }
}
