//! Makes an empty filesystem on a device.

use std::io::IoSlice;
use std::path::Path;

use super::checkpoint::{self, CheckpointPieces};
use super::layout::{
    FIRST_BLOCK, MIN_DEVICE, SUPERBLOCKS, Superblock, Uuid, journal_blocks, max_inodes,
};
use super::meta::Meta;
use super::metadata_record::JournalRecord;
use super::runs::{BLOCK, MAX_BLOCKS, Run};
use basalt_fs::device::{Device, Way};
use basalt_fs::{Error, Result};

/// Makes an empty filesystem. All data on the device is lost.
///
/// Errors: `InvalidArgument` for a device that is too small or too large; those of the device.
pub fn format(device: &dyn Device, uuid: Uuid, sparse: bool, name: &Path) -> Result<()> {
    let features = Features {
        sparse,
        no_discard: false,
    };
    format_with_features(device, uuid, features, name)
}

/// The treatment of the space of a device by its filesystem. It is fixed when the filesystem is
/// made.
#[derive(Clone, Copy)]
pub struct Features {
    /// The space was not written when the image was made ([`Superblock::sparse`]).
    pub sparse: bool,
    /// Free space is not discarded ([`Superblock::no_discard`]).
    pub no_discard: bool,
}

/// Makes an empty filesystem as [`format`] does, with any features.
pub fn format_with_features(
    device: &dyn Device,
    uuid: Uuid,
    features: Features,
    name: &Path,
) -> Result<()> {
    let facts = device.facts();
    let blocks = facts.len / BLOCK;
    if facts.len < MIN_DEVICE {
        return Err(Error::invalid(format!(
            "{} bytes are too small for an image; {MIN_DEVICE} are the least",
            facts.len
        ))
        .in_file(name));
    }
    if blocks > MAX_BLOCKS {
        return Err(Error::invalid(format!(
            "{} bytes are too large for an image; {} are the most",
            facts.len,
            MAX_BLOCKS * BLOCK
        ))
        .in_file(name));
    }
    let journal_blocks = journal_blocks(blocks);
    let journal = Run {
        start: FIRST_BLOCK,
        len: u64::from(journal_blocks),
    };
    let meta = Meta::new(max_inodes(blocks));
    let jump = JournalRecord::Jump {
        run: journal,
        seq: 1,
        life: 0,
    };
    let pieces = CheckpointPieces::of(&meta.copy(), jump, facts.unit);
    let place = Run {
        start: journal.end(),
        len: pieces.bytes().div_ceil(BLOCK),
    };
    let superblock = Superblock {
        uuid,
        generation: 1,
        unit: facts.unit as u32,
        blocks,
        journal_blocks,
        checkpoint_bytes: pieces.bytes(),
        checkpoint_seq: 0,
        checkpoint: vec![place],
        clean_seq: 0,
        sparse: features.sparse,
        no_discard: features.no_discard,
        unknown: 0,
    };
    // The old superblocks go first, so that no mount takes a half-overwritten filesystem for a
    // whole one.
    let zeros = vec![0u8; 4096];
    for at in SUPERBLOCKS {
        device.write(at, &[IoSlice::new(&zeros)], Way::Direct)?;
    }
    device.flush()?;
    let runs = &superblock.checkpoint;
    for (at, bytes) in pieces.sealed(&uuid, 1, runs) {
        checkpoint::write(device, runs, at, &bytes)?;
    }
    // The first header of an old journal is overwritten, so that no mount reads that journal.
    let zeros = vec![0u8; facts.unit];
    device.write(journal.start * BLOCK, &[IoSlice::new(&zeros)], Way::Direct)?;
    device.flush()?;
    for at in SUPERBLOCKS {
        let bytes = superblock.encode(at);
        device.write(at, &[IoSlice::new(&bytes)], Way::Direct)?;
        device.flush()?;
    }
    Ok(())
}
