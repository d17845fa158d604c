//! Loads a filesystem from a device: reads the checkpoint and the journal, and computes the free
//! space.

use std::path::Path;

use super::checkpoint;
use super::free_space::FreeSpace;
use super::journal::{self, JournalEnd, JournalSource};
use super::layout::{FIRST_BLOCK, Superblock};
use super::meta::{ApplyError, Meta};
use super::metadata_record::{InodeKind, MetaRecordReader};
use super::runs::{BLOCK, Run};
use basalt_fs::device::Device;
use basalt_fs::{Error, Result};

/// A loaded filesystem: its metadata, its free space, and the end of its journal.
pub struct LoadedImage {
    pub superblock: Superblock,
    pub meta: Meta,
    pub space: FreeSpace,
    pub tail: JournalEnd,
}

/// Returns the error for an image whose end is missing.
pub fn cut_short(name: &Path, has: u64, had: u64) -> Error {
    Error::corruption(
        name,
        has,
        format!("the image has {has} bytes, and should have {had}; it has been cut short"),
    )
}

/// Reads the checkpoint and the journal. Returns the metadata, and the end of the journal.
///
/// Errors: `Unsupported` if the device's write unit is larger than the image's; `Corruption`.
pub fn read(
    device: &dyn Device,
    superblock: &Superblock,
    name: &Path,
) -> Result<(Meta, JournalEnd)> {
    let facts = device.facts();
    if (superblock.unit as usize) < facts.unit {
        return Err(Error::unsupported(format!(
            "the image was made with a write unit of {} bytes, and this device writes {} at a time",
            superblock.unit, facts.unit
        ))
        .in_file(name));
    }
    if superblock.blocks * BLOCK > facts.len {
        return Err(cut_short(name, facts.len, superblock.blocks * BLOCK));
    }
    let (mut meta, start) = checkpoint::read(device, superblock, name)?;
    let source = JournalSource {
        device,
        uuid: superblock.uuid,
        unit: superblock.unit as usize,
        blocks: superblock.blocks,
        journal_blocks: superblock.journal_blocks,
        name,
    };
    let tail = journal::replay(&source, start, |seq, at, records| {
        let damage = |what: String| {
            Error::corruption(
                name,
                at,
                format!("the journal's transaction {seq} has {what}"),
            )
        };
        let mut records = MetaRecordReader(records);
        while let Some(record) = records.next() {
            let record = record.map_err(|what| damage(what.to_string()))?;
            meta.apply(&record)
                .map_err(|r: ApplyError| damage(format!("{}: {record:?}", r.text())))?;
        }
        Ok(())
    })?;
    if tail.seq <= superblock.clean_seq {
        let at = tail.extents.last().map_or(0, |r| r.start * BLOCK);
        return Err(Error::corruption(
            name,
            at,
            format!(
                "the journal ends before transaction {}, and a clean unmount recorded that {} was durable",
                tail.seq, superblock.clean_seq
            ),
        ));
    }
    Ok((meta, tail))
}

/// Loads a filesystem as [`read`] does, and proves that no block has two owners.
///
/// Errors: those of [`read`]; `Corruption` for a block with two owners or outside of the device.
pub fn load(device: &dyn Device, superblock: Superblock, name: &Path) -> Result<LoadedImage> {
    let (meta, tail) = read(device, &superblock, name)?;
    let mut space = FreeSpace::default();
    let all = Run {
        start: FIRST_BLOCK,
        len: superblock.blocks - FIRST_BLOCK,
    };
    assert!(space.free(all), "nothing is free yet");
    let mut take = |run: Run, of: &str| {
        if space.take(run) {
            return Ok(());
        }
        Err(Error::corruption(
            name,
            run.start * BLOCK,
            format!(
                "{} blocks from {} on belong to {of}, and some of them have another owner or are not on the device",
                run.len, run.start
            ),
        ))
    };
    for run in &superblock.checkpoint {
        take(*run, "the checkpoint")?;
    }
    for run in &tail.extents {
        take(*run, "the journal")?;
    }
    for (ino, attrs) in meta.inodes() {
        if attrs.kind != InodeKind::Dir && attrs.len > attrs.blocks * BLOCK {
            return Err(Error::corruption(
                name,
                0,
                format!(
                    "inode {ino} has {} bytes in {} blocks",
                    attrs.len, attrs.blocks
                ),
            ));
        }
        for run in meta
            .extents(ino)
            .into_iter()
            .flat_map(|e| e.runs().collect::<Vec<_>>())
        {
            take(run, &format!("inode {ino}"))?;
        }
    }
    Ok(LoadedImage {
        superblock,
        meta,
        space,
        tail,
    })
}
