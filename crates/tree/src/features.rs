//! Features of the format of a tree that a build must know to read it.
//!
//! Each record of the log `system` and each system checkpoint begins with the bits of the features
//! that it uses. So a build that does not know one refuses the tree before it reads further, and
//! does not take it for damaged.

use basalt_fs::{Error, Result};
use basalt_kv::encoding::get_varint64;
use std::path::Path;

/// Bits of features. They are persisted.
pub(crate) type Features = u64;

/// Delta pages of index pages (decision 0048).
pub(crate) const INDEX_DELTAS: Features = 1;
/// Extents of base pages whose usage has no ranges (decision 0049).
pub(crate) const EXTENTS_WITHOUT_RANGES: Features = 2;

const KNOWN: Features = INDEX_DELTAS | EXTENTS_WITHOUT_RANGES;

/// Reads the features of a record. Returns `None` if they are cut off, or if there is one that this
/// version does not know.
pub(crate) fn decode(bytes: &[u8], at: &mut usize) -> Option<Features> {
    get_varint64(bytes, at).filter(|features| features & !KNOWN == 0)
}

/// Checks that this version knows all features of a record of the tree in `dir`.
///
/// Errors: `Unsupported` names the bits of the others.
pub(crate) fn check(bytes: &[u8], dir: &Path) -> Result<()> {
    // A decoder reports a record that is cut off.
    let unknown = get_varint64(bytes, &mut 0).unwrap_or(0) & !KNOWN;
    match unknown {
        0 => Ok(()),
        _ => Err(Error::unsupported(format!(
            "the pages use features {unknown:#x} that this version does not know; open the store with the version that wrote it"
        ))
        .in_file(dir)),
    }
}
