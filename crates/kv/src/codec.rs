//! Compression of independent bytes: blocks of tables, and separated values.
//!
//! Promises: decompression returns as many bytes as were asked for, or an error that says why not,
//! and allocates no more than that. Each thread keeps its contexts, because making one costs more
//! than compressing a few kilobytes.

use basalt_fs::{AlignedBuf, Bytes, Lifetime};
use std::cell::RefCell;

/// Compression of blocks of tables and of separated values. The numbers are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum Compression {
    /// No compression.
    #[default]
    None = 0,
    /// The lz4 block format: fast, about 2:1 on text.
    Lz4 = 1,
    /// The zstd format: slower, about 3:1 on text. Level 2 for values that a writer puts, level 3
    /// for background work.
    Zstd = 2,
}

impl Compression {
    /// Returns the method with this persisted number.
    pub fn from_u8(n: u8) -> Option<Compression> {
        match n {
            0 => Some(Compression::None),
            1 => Some(Compression::Lz4),
            2 => Some(Compression::Zstd),
            _ => None,
        }
    }
}

/// The first bytes of every zstd frame.
const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528u32.to_le_bytes();

/// Fewest bytes that are compressed.
const LEAST: usize = 16;

thread_local! {
    // A zstd context costs a hundred kilobytes, so there is one for each thread, not one for each
    // block.
    static UNZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
    // One context for each effort: after a compression that found no room, a context takes no other
    // level.
    static ZSTD: [RefCell<Option<zstd::bulk::Compressor<'static>>>; 2] = const { [RefCell::new(None), RefCell::new(None)] };
}

/// The time that compression may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A writer waits for its put: zstd takes a fifth less time and loses the last 2 % of the
    /// saving (level 2, on pages of 12 KB).
    Writer,
    /// No writer waits, because the work is in the background.
    Background,
}

impl Effort {
    fn zstd_level(self) -> i32 {
        match self {
            Effort::Writer => 2,
            Effort::Background => 3,
        }
    }
}

/// Returns the most bytes that `raw` bytes may take when compressed. Compression must save an
/// eighth.
pub fn most_compressed(raw: usize) -> usize {
    raw - raw / 8
}

/// Compresses into `out`, behind its first `prefix` bytes. Returns false if `out` would then have
/// more than `limit` bytes.
pub fn compress(
    method: Compression,
    effort: Effort,
    raw: &[u8],
    out: &mut Vec<u8>,
    prefix: usize,
    limit: usize,
) -> bool {
    if method == Compression::None || raw.len() < LEAST {
        return false;
    }
    match method {
        Compression::None => return false,
        Compression::Lz4 => {
            let most = prefix + lz4_flex::block::get_maximum_output_size(raw.len());
            out.resize(most.max(out.len()), 0);
            match lz4_flex::block::compress_into(raw, &mut out[prefix..]) {
                Ok(n) => out.truncate(prefix + n),
                Err(_) => return false,
            }
        }
        Compression::Zstd => {
            // The room is the limit: bytes that do not fit have not saved enough.
            out.resize(limit.max(prefix), 0);
            let done = ZSTD.with(|z| {
                let mut z = z[effort as usize].borrow_mut();
                if z.is_none() {
                    *z = zstd::bulk::Compressor::new(effort.zstd_level()).ok();
                }
                let into = &mut out[prefix..];
                z.as_mut()
                    .and_then(|z| z.compress_to_buffer(raw, into).ok())
            });
            match done {
                Some(n) => out.truncate(prefix + n),
                None => return false,
            }
        }
    }
    out.len() <= limit
}

/// Returns `raw` compressed if that makes it shorter, and `None` otherwise. It is for tests and
/// fuzz targets; a store demands a larger saving.
#[doc(hidden)]
pub fn compressed(method: Compression, raw: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    compress(method, Effort::Background, raw, &mut out, 0, raw.len()).then_some(out)
}

/// Decompresses to exactly `raw` bytes, in memory of their own.
pub fn decompress(
    method: Compression,
    stored: &[u8],
    raw: usize,
) -> std::result::Result<Bytes, String> {
    let mut out = AlignedBuf::with_lifetime(raw, Lifetime::Cached);
    out.resize(raw, 0);
    decompress_into(method, stored, &mut out)?;
    Ok(Bytes::from_owner(out))
}

/// Decompresses to exactly the length of `out`.
pub fn decompress_into(
    method: Compression,
    stored: &[u8],
    out: &mut [u8],
) -> std::result::Result<(), String> {
    let raw = out.len();
    match method {
        Compression::None => Err("is not compressed".to_string()),
        Compression::Lz4 => match lz4_flex::block::decompress_into(stored, out) {
            Ok(n) if n == raw => Ok(()),
            Ok(n) => Err(format!("lz4 gave {n} bytes, expected {raw}")),
            Err(e) => Err(format!("lz4: {e}")),
        },
        Compression::Zstd => unzstd(stored, out, raw),
    }
}

fn unzstd<W: zstd::zstd_safe::WriteBuf + ?Sized>(
    stored: &[u8],
    out: &mut W,
    raw: usize,
) -> std::result::Result<(), String> {
    UNZSTD.with(|z| {
        let mut z = z.borrow_mut();
        if z.is_none() {
            *z = Some(zstd::bulk::Decompressor::new().map_err(|e| format!("zstd: {e}"))?);
        }
        let z = z.as_mut().expect("just made");
        match z.decompress_to_buffer(stored, out) {
            Ok(n) if n == raw => Ok(()),
            Ok(n) => Err(format!("zstd gave {n} bytes, expected {raw}")),
            Err(e) => Err(format!("zstd: {e}")),
        }
    })
}

/// Checks whether a stream can have this many bytes, as far as that is known without decompressing.
/// No memory is allocated for a stream that cannot.
pub fn check_decompressed_len(
    method: Compression,
    stored: &[u8],
    raw: usize,
) -> std::result::Result<(), String> {
    let most = match method {
        Compression::None => stored.len(),
        // A byte of a length stands for at most 255 bytes.
        Compression::Lz4 => stored.len().saturating_mul(255),
        // A frame that this engine writes begins with its length.
        Compression::Zstd => match zstd::zstd_safe::get_frame_content_size(stored) {
            Ok(Some(n)) if n == raw as u64 => raw,
            Ok(Some(n)) => return Err(format!("zstd frame of {n} bytes, expected {raw}")),
            Ok(None) => return Err("zstd frame without its length".to_string()),
            Err(_) => return Err("not a zstd frame".to_string()),
        },
    };
    match raw <= most {
        true => Ok(()),
        false => Err(format!("{} bytes cannot give {raw}", stored.len())),
    }
}

/// Returns the stored and the decompressed length of the zstd frame at the start of `bytes`. It is
/// for salvage, which does not know where a block ends. Returns `None` if there is no whole frame,
/// or if either length is above `most`.
pub fn zstd_frame_len(bytes: &[u8], most: usize) -> Option<(usize, usize)> {
    if !bytes.starts_with(&ZSTD_MAGIC) {
        return None;
    }
    let bytes = &bytes[..bytes.len().min(most)];
    let stored = zstd::zstd_safe::find_frame_compressed_size(bytes).ok()?;
    let raw = match zstd::zstd_safe::get_frame_content_size(bytes) {
        Ok(Some(n)) => usize::try_from(n).ok()?,
        _ => zstd::bulk::decompress(&bytes[..stored], most).ok()?.len(),
    };
    (raw <= most).then_some((stored, raw))
}
