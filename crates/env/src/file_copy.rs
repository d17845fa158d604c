//! Copies of files, in pieces that leave the device to others.

use crate::{Env, IoPriority};
use basalt_fs::{Bytes, Error, ErrorKind, File, Intent, Result};
use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Bytes of one piece in which files are copied.
const PIECE: usize = 1 << 20;

/// Copies the first `len` bytes of a file to a new file, durably. Calls `each` with each piece; an
/// error of it ends the copy. `from` is the file's path, for errors.
///
/// Errors: `Corruption` if the file is shorter; those of `each`; `AlreadyExists`, `NoSpace`, `Io`.
/// After an error the new file may be there, in part.
pub fn copy_file(
    env: &Env,
    (file, from): (&dyn File, &Path),
    to: &Path,
    len: u64,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let read = |at, len| file.read(at, len);
    copy_with(env, from, to, len, each, &read).map(drop)
}

/// Copies a file of which ranges may have been released, as [`copy_file`] does. A block whose read
/// fails with `Corruption` is zeros in the copy. The caller's own checksums must distinguish a
/// released block from a damaged one. Blocks of zeros take no space in the copy, if the filesystem
/// has files with holes.
pub fn copy_sparse_file(
    env: &Env,
    (file, from): (&dyn File, &Path),
    to: &Path,
    len: u64,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let (mut at, mut zeros): (u64, Vec<Range<u64>>) = (0, Vec::new());
    let each = &mut |piece: &[u8]| {
        note_zeros(at, piece, &mut zeros);
        at += piece.len() as u64;
        each(piece)
    };
    let read = |at, len| read_sparse(at, len, &|at, len| file.read(at, len));
    let out = copy_with(env, from, to, len, each, &read)?;
    for range in zeros {
        match out.release_range(range) {
            Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(()),
            released => released?,
        }
    }
    Ok(())
}

/// Bytes of the blocks that filesystems release (Linux ext4 and XFS, LavaFS).
pub const RELEASED_BLOCK: u64 = 4 << 10;

/// Reads bytes of a file of which ranges may have been released. A block whose read fails with
/// `Corruption` is zeros in the result.
///
/// Errors: all other errors of `read`.
pub fn read_sparse(
    at: u64,
    len: usize,
    read: &dyn Fn(u64, usize) -> Result<Bytes>,
) -> Result<Bytes> {
    match read(at, len) {
        Err(e) if e.is_corruption() => {}
        read => return read,
    }
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let from = at + bytes.len() as u64;
        let of_block = (from / RELEASED_BLOCK + 1) * RELEASED_BLOCK - from;
        let wanted = (of_block as usize).min(len - bytes.len());
        match read(from, wanted) {
            Ok(block) if block.len() < wanted => {
                bytes.extend_from_slice(&block);
                break;
            }
            Ok(block) => bytes.extend_from_slice(&block),
            Err(e) if e.is_corruption() => bytes.resize(bytes.len() + wanted, 0),
            Err(e) => return Err(e),
        }
    }
    Ok(bytes.into())
}

/// Adds the whole blocks of a piece that are zeros. `at` is the piece's offset in the file.
fn note_zeros(at: u64, piece: &[u8], zeros: &mut Vec<Range<u64>>) {
    let mut begin = at.next_multiple_of(RELEASED_BLOCK);
    let end = at + piece.len() as u64;
    while begin + RELEASED_BLOCK <= end {
        let next = begin + RELEASED_BLOCK;
        let block = &piece[(begin - at) as usize..(next - at) as usize];
        if block.iter().all(|byte| *byte == 0) {
            match zeros.last_mut() {
                Some(last) if last.end == begin => last.end = next,
                _ => zeros.push(begin..next),
            }
        }
        begin = next;
    }
}

fn copy_with(
    env: &Env,
    from: &Path,
    to: &Path,
    len: u64,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
    read: &dyn Fn(u64, usize) -> Result<Bytes>,
) -> Result<Arc<dyn File>> {
    let out = env.fs().create(to)?;
    let mut at = 0;
    while at < len {
        let piece = env.foreground_io().piece(PIECE);
        let want = usize::try_from(len - at).unwrap_or(piece).min(piece);
        // Each byte is read and written, so it counts twice.
        env.io_limit().acquire(2 * want as u64, IoPriority::Low);
        let _turn = env.foreground_io().turn();
        let piece = read(at, want)?;
        if piece.len() < want {
            return Err(Error::corruption(
                from,
                at,
                format!("expected {want} bytes, the file ends after {}", piece.len()),
            ));
        }
        each(&piece)?;
        out.append(&[IoSlice::new(&piece)], Intent::Lazy)?;
        at += want as u64;
    }
    out.sync_all()?;
    Ok(out)
}

/// Returns true if the error of a link says that a link is impossible there, and a copy may be
/// possible.
pub fn cannot_link(e: &Error) -> bool {
    const EPERM: i32 = 1;
    const EXDEV: i32 = 18;
    const EMLINK: i32 = 31;
    matches!(e.os_error(), Some(EPERM | EXDEV | EMLINK)) || e.kind() == ErrorKind::Unsupported
}

#[cfg(test)]
mod tests;
