//! Copies of files, in pieces that leave the device to others.

use crate::{Env, IoPriority};
use basalt_fs::{Error, ErrorKind, File, Intent, Result};
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
    let out = env.fs().create(to)?;
    let mut at = 0;
    while at < len {
        let piece = env.foreground_io().piece(PIECE);
        let want = usize::try_from(len - at).unwrap_or(piece).min(piece);
        // Each byte is read and written, so it counts twice.
        env.io_limit().acquire(2 * want as u64, IoPriority::Low);
        let _turn = env.foreground_io().turn();
        let piece = file.read(at, want)?;
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
