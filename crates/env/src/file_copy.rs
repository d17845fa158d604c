//! Copies of files, in pieces that leave the device to others.

use crate::{Env, IoPriority};
use basalt_fs::{Bytes, Error, ErrorKind, File, Intent, Result};
use std::io::IoSlice;
use std::path::Path;

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
    copy_with(env, from, to, len, each, &|at, len| file.read(at, len))
}

/// Copies a file of which ranges may have been released, as [`copy_file`] does. Blocks that cannot
/// be read because they were released, or are damaged, are zeros in the copy. The caller's own
/// checksums must tell the two apart.
pub fn copy_sparse_file(
    env: &Env,
    (file, from): (&dyn File, &Path),
    to: &Path,
    len: u64,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    copy_with(env, from, to, len, each, &|at, len| {
        read_sparse(at, len, &|at, len| file.read(at, len))
    })
}

/// Bytes of the blocks that filesystems release (Linux ext4 and XFS, LavaFS).
pub const RELEASED_BLOCK: u64 = 4 << 10;

/// Reads bytes of a file of which ranges may have been released. Blocks that cannot be read because
/// of damage are zeros.
///
/// Errors: those of `read`, except for damage.
pub fn read_sparse(
    at: u64,
    len: usize,
    read: &dyn Fn(u64, usize) -> Result<Bytes>,
) -> Result<Bytes> {
    match read(at, len) {
        Err(e) if is_damage(&e) => {}
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
            Err(e) if is_damage(&e) => bytes.resize(bytes.len() + wanted, 0),
            Err(e) => return Err(e),
        }
    }
    Ok(bytes.into())
}

fn is_damage(e: &Error) -> bool {
    let kinds = [
        ErrorKind::Corruption,
        ErrorKind::NotFound,
        ErrorKind::Unsupported,
    ];
    kinds.contains(&e.kind())
}

fn copy_with(
    env: &Env,
    from: &Path,
    to: &Path,
    len: u64,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
    read: &dyn Fn(u64, usize) -> Result<Bytes>,
) -> Result<()> {
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
    out.sync_all()
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
