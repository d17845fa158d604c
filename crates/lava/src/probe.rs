//! Finds out what a device holds.

use std::path::Path;

use super::layout::{FIRST_BLOCK, SUPERBLOCKS, Superblock, SuperblockError};
use super::runs::BLOCK;
use basalt_fs::device::{Device, DeviceRead, Way};
use basalt_fs::{Error, ErrorKind, Result};

/// The content of a device.
pub enum Probed {
    /// Zeros where an image or other content would begin.
    Empty,
    /// An image: its newest superblock, and the offsets of the copies that are older or unreadable.
    Image(Superblock, Vec<u64>),
    /// An image that cannot be mounted, and why.
    Unreadable(Error),
    /// Other content.
    Foreign,
}

/// Reads the superblocks of a device, and finds out what it holds.
///
/// Errors: those of the device.
pub fn probe(device: &dyn Device, name: &Path) -> Result<Probed> {
    let facts = device.facts();
    if facts.len == 0 {
        return Ok(Probed::Empty);
    }
    if facts.len < FIRST_BLOCK * BLOCK {
        return Ok(Probed::Foreign);
    }
    let head = device.read(DeviceRead {
        offset: 0,
        len: (FIRST_BLOCK * BLOCK) as usize,
        way: Way::Direct,
    })?;
    let (mut copies, mut problems) = (Vec::new(), Vec::new());
    for at in SUPERBLOCKS {
        match Superblock::decode(&head[at as usize..at as usize + 4096], at) {
            Ok(s) => copies.push((at, s)),
            Err(problem) => problems.push((at, problem)),
        }
    }
    // Of two copies of one generation, the one with the later clean unmount is newer.
    let newest = copies
        .iter()
        .max_by_key(|(_, s)| (s.generation, s.clean_seq));
    if let Some((_, newest)) = newest {
        let stale = SUPERBLOCKS.into_iter();
        let stale = stale.filter(|at| !copies.iter().any(|(of, s)| of == at && s == newest));
        return Ok(Probed::Image(newest.clone(), stale.collect()));
    }
    let described = problems
        .iter()
        .find(|(_, p)| *p != SuperblockError::Foreign)
        .map(|(at, p)| match p {
            SuperblockError::Version(v) => Error::unsupported(format!(
                "the image has format version {v}, and this build knows version 1; use a newer build"
            ))
            .in_file(name),
            SuperblockError::Features(bits) => Error::unsupported(format!(
                "the image uses features {bits:#x} that this build does not know; use a newer build"
            ))
            .in_file(name),
            SuperblockError::Damaged(why) => Error::corruption(
                name,
                *at,
                format!("neither copy of the superblock is readable: {why}"),
            ),
            SuperblockError::Foreign => unreachable!("filtered"),
        });
    Ok(match described {
        Some(e) => Probed::Unreadable(e),
        None if head.iter().all(|b| *b == 0) => Probed::Empty,
        None => Probed::Foreign,
    })
}

/// Returns the error for a device without an image that can be mounted.
pub fn no_image_error(found: Probed, name: &Path) -> Error {
    match found {
        Probed::Image(..) => unreachable!("it can be mounted"),
        Probed::Unreadable(e) => e,
        Probed::Empty => Error::new(
            ErrorKind::NotFound,
            "there is no filesystem on it; `basalt fs format` makes one",
        )
        .in_file(name),
        Probed::Foreign => Error::new(
            ErrorKind::InvalidArgument,
            "it holds data that is not a Basalt image; name another",
        )
        .in_file(name),
    }
}

/// Returns `Unsupported` if this build may read the image but not write it.
pub fn check_features(superblock: &Superblock, name: &Path) -> Result<()> {
    if superblock.unknown == 0 {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "the image uses features {:#x} that this build does not know: it can be read, but not written; use a newer build",
        superblock.unknown
    ))
    .in_file(name))
}
