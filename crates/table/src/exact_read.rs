//! Reads of exact lengths. Fewer bytes than asked for are damage. No length that a file claims
//! makes a reader allocate memory beyond the file's end.

use basalt_fs::{Bytes, Error, File, Result};
use std::path::Path;

/// Bytes of a read above which the file's length is checked before memory is allocated.
const CHECKED_READ: usize = 16 << 10;

/// Returns `Corruption` for a large read past the end of a file.
pub fn check_reach(file: &dyn File, path: &Path, offset: u64, len: usize) -> Result<()> {
    // The length is checked before a large allocation. The check costs a system call, which reads
    // of single blocks do not make.
    if len > CHECKED_READ && offset.saturating_add(len as u64) > file.allocated().max(file.len()) {
        return Err(Error::corruption(
            path,
            offset,
            format!(
                "expected {len} bytes, the file ends at {}",
                file.allocated().max(file.len())
            ),
        ));
    }
    Ok(())
}

/// Reads exactly `len` bytes. Fewer bytes are damage.
pub fn read_exact(file: &dyn File, path: &Path, offset: u64, len: usize) -> Result<Bytes> {
    check_reach(file, path, offset, len)?;
    let bytes = file.read(offset, len)?;
    if bytes.len() != len {
        return Err(Error::corruption(
            path,
            offset,
            format!("expected {len} bytes, found {}", bytes.len()),
        ));
    }
    Ok(bytes)
}
