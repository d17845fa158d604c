//! Checks that an image is sound. Each fact that a mount relies on is proved in a second way, and
//! all damage is reported.

use std::collections::BTreeMap;
use std::path::Path;

use super::free_space::FreeSpace;
use super::layout::{FIRST_BLOCK, Superblock};
use super::load;
use super::meta::Meta;
use super::metadata_record::{Ino, InodeKind, ROOT};
use super::probe::{self, Probed};
use super::runs::{BLOCK, Run};
use basalt_fs::device::Device;
use basalt_fs::{Error, ErrorKind, Result};

/// Largest number of damaged places that are reported one by one. The others are counted.
const NAMED: usize = 100;

/// The result of a check.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Checked {
    /// Damaged places, at most 100.
    pub damage: Vec<Error>,
    /// Number of further damaged places.
    pub more_damage: u64,
    /// Repairs that the next mount for writing makes by itself, without a loss of data.
    pub automatic_repairs: Vec<String>,
    /// Number of files.
    pub files: u64,
    /// Number of directories, the root included.
    pub dirs: u64,
    /// Number of names of files and directories.
    pub names: u64,
    /// Number of extents of files.
    pub extents: u64,
    /// Space of files, in bytes.
    pub file_bytes: u64,
    /// Space of the checkpoint and the journal, in bytes.
    pub metadata_bytes: u64,
    /// Free space, in bytes.
    pub free_bytes: u64,
    /// Space before the first block, which has the superblocks, in bytes.
    pub fixed_bytes: u64,
    /// Number of transactions of the journal behind the checkpoint.
    pub journal_transactions: u64,
    /// `true` if the image was closed, and not left by a crash.
    pub clean: bool,
}

impl Checked {
    /// Returns `true` if no damage was found.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }

    fn wrong(&mut self, name: &Path, offset: u64, what: String) {
        match self.damage.len() {
            0..NAMED => self.damage.push(Error::corruption(name, offset, what)),
            _ => self.more_damage += 1,
        }
    }
}

/// The owner of a run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BlockOwner {
    Checkpoint,
    Journal,
    File(Ino),
}

impl BlockOwner {
    fn text(self, paths: &BTreeMap<Ino, String>) -> String {
        match self {
            BlockOwner::Checkpoint => "the checkpoint".into(),
            BlockOwner::Journal => "the journal".into(),
            BlockOwner::File(ino) => match paths.get(&ino) {
                Some(path) => format!("{path} (inode {ino})"),
                None => format!("inode {ino}"),
            },
        }
    }
}

/// Checks the image on a device. Reads all metadata and changes nothing. The content of files has
/// no checksums here, so their writers check it.
///
/// Errors: `NotFound`, `InvalidArgument` and `Unsupported` if there is no image to check; those of
/// the device.
pub fn check(device: &dyn Device, name: &Path) -> Result<Checked> {
    let mut checked = Checked::default();
    let superblock = match probe::probe(device, name)? {
        Probed::Image(superblock, stale) => {
            for at in stale {
                checked.automatic_repairs.push(format!(
                    "the copy of the superblock at byte {at} is older than the other one or unreadable: it is written again"
                ));
            }
            superblock
        }
        Probed::Unreadable(e) if e.is_corruption() => {
            checked.damage.push(e);
            return Ok(checked);
        }
        other => return Err(probe::no_image_error(other, name)),
    };
    let (meta, tail) = match load::read(device, &superblock, name) {
        Ok(read) => read,
        // An error of the device is no damage of the image.
        Err(e) if e.kind() != ErrorKind::Corruption => return Err(e),
        Err(e) => {
            checked.damage.push(e);
            return Ok(checked);
        }
    };
    checked.journal_transactions = tail.seq - 1 - superblock.checkpoint_seq;
    checked.clean = superblock.clean_seq == tail.seq - 1;
    if !checked.clean {
        checked.automatic_repairs.push(format!(
            "the image was not closed: its journal ends with transaction {}, and what may lie behind that is cut off",
            tail.seq - 1
        ));
    }
    let paths = names(&meta, &mut checked, name);
    let mut owned: Vec<(Run, BlockOwner)> = Vec::new();
    owned.extend(
        superblock
            .checkpoint
            .iter()
            .map(|r| (*r, BlockOwner::Checkpoint)),
    );
    owned.extend(tail.extents.iter().map(|r| (*r, BlockOwner::Journal)));
    checked.metadata_bytes = owned.iter().map(|(r, _)| r.len * BLOCK).sum();
    for (ino, attrs) in meta.inodes() {
        if attrs.kind == InodeKind::Dir {
            continue;
        }
        let extents = meta.extents(ino).expect("it is a file");
        let (mut blocks, mut count) = (0, 0);
        for run in extents.runs() {
            owned.push((run, BlockOwner::File(ino)));
            blocks += run.len;
            count += 1;
        }
        checked.extents += count;
        checked.file_bytes += blocks * BLOCK;
        if attrs.len > attrs.blocks * BLOCK || blocks > attrs.blocks {
            let of = BlockOwner::File(ino).text(&paths);
            let has = attrs.blocks;
            checked.wrong(
                name,
                0,
                format!("{of} has {} bytes and {blocks} blocks on the device, where {has} blocks are its length", attrs.len),
            );
        }
    }
    let counts = meta.counts();
    if (counts.extents, counts.blocks * BLOCK) != (checked.extents, checked.file_bytes) {
        let what = format!(
            "{} extents in {} blocks are counted",
            counts.extents, counts.blocks
        );
        checked.wrong(name, 0, what);
    }
    space(&superblock, owned, &paths, &mut checked, name);
    Ok(checked)
}

/// Checks that each name leads to an inode, and that each inode has as many names as it counts.
/// Returns one path of each inode.
fn names(meta: &Meta, checked: &mut Checked, name: &Path) -> BTreeMap<Ino, String> {
    let mut links: BTreeMap<Ino, u32> = BTreeMap::new();
    let mut children: BTreeMap<Ino, u64> = BTreeMap::new();
    let mut above: BTreeMap<Ino, (Ino, String)> = BTreeMap::new();
    for (dir, text, ino) in meta.names() {
        checked.names += 1;
        *links.entry(ino).or_default() += 1;
        *children.entry(dir).or_default() += 1;
        above.insert(ino, (dir, text.to_string()));
        if !matches!(meta.attrs(dir), Ok(f) if f.kind == InodeKind::Dir) {
            checked.wrong(
                name,
                0,
                format!("the name {text} lies in inode {dir}, which is no directory"),
            );
        }
        match meta.attrs(ino) {
            Err(_) => checked.wrong(
                name,
                0,
                format!("the name {text} leads to inode {ino}, which is not there"),
            ),
            Ok(f) if f.kind == InodeKind::Dir && meta.parent(ino) != Ok(dir) => {
                checked.wrong(
                    name,
                    0,
                    format!("the directory {text} (inode {ino}) lies in another one than its name"),
                );
            }
            Ok(_) => {}
        }
    }
    for (ino, attrs) in meta.inodes() {
        let has = links.get(&ino).copied().unwrap_or(0);
        match attrs.kind {
            InodeKind::Dir => {
                checked.dirs += 1;
                let has = children.get(&ino).copied().unwrap_or(0);
                if has != attrs.len {
                    checked.wrong(
                        name,
                        0,
                        format!(
                            "the directory of inode {ino} counts {} names and has {has}",
                            attrs.len
                        ),
                    );
                }
            }
            InodeKind::File | InodeKind::Log => checked.files += 1,
        }
        if ino != ROOT && has != attrs.links {
            checked.wrong(
                name,
                0,
                format!("inode {ino} counts {} names and has {has}", attrs.links),
            );
        }
    }
    for ino in meta.unreachable() {
        checked.wrong(
            name,
            0,
            format!("inode {ino} is not reachable from the root"),
        );
    }
    let path = |mut at: Ino| {
        let mut parts = Vec::new();
        // Damage can make a cycle of directories, so the length of a path is bounded.
        while let Some((dir, text)) = above.get(&at).filter(|_| parts.len() < 100) {
            parts.push(text.as_str());
            at = *dir;
        }
        parts.reverse();
        parts.join("/")
    };
    above.keys().map(|ino| (*ino, path(*ino))).collect()
}

/// Checks that each block has one owner or is free.
fn space(
    superblock: &Superblock,
    mut owned: Vec<(Run, BlockOwner)>,
    paths: &BTreeMap<Ino, String>,
    checked: &mut Checked,
    name: &Path,
) {
    owned.sort();
    // The free space is computed twice: as a mount computes it, and as the gaps between the owned
    // runs.
    let mut free = FreeSpace::default();
    let all = Run {
        start: FIRST_BLOCK,
        len: superblock.blocks - FIRST_BLOCK,
    };
    assert!(free.free(all), "nothing is free yet");
    let mut gaps = Vec::new();
    let (mut end, mut last) = (FIRST_BLOCK, None);
    for (run, owner) in owned {
        if run.start < FIRST_BLOCK || run.end() > superblock.blocks {
            checked.wrong(
                name,
                run.start * BLOCK,
                format!(
                    "{} has {} blocks at {}, which are not on the device",
                    owner.text(paths),
                    run.len,
                    run.start
                ),
            );
            continue;
        }
        if let (Some(last), true) = (last, run.start < end) {
            let (a, b): (BlockOwner, BlockOwner) = (last, owner);
            checked.wrong(
                name,
                run.start * BLOCK,
                format!(
                    "{} blocks at {} belong to {} and to {}",
                    end.min(run.end()) - run.start,
                    run.start,
                    a.text(paths),
                    b.text(paths)
                ),
            );
        } else {
            if run.start > end {
                gaps.push(Run {
                    start: end,
                    len: run.start - end,
                });
            }
            if !free.take(run) {
                checked.wrong(
                    name,
                    run.start * BLOCK,
                    format!(
                        "{} blocks at {} are not free before their owner takes them",
                        run.len, run.start
                    ),
                );
            }
        }
        if run.end() > end {
            (end, last) = (run.end(), Some(owner));
        }
    }
    if end < superblock.blocks {
        gaps.push(Run {
            start: end,
            len: superblock.blocks - end,
        });
    }
    checked.free_bytes = gaps.iter().map(|r| r.len * BLOCK).sum();
    checked.fixed_bytes = FIRST_BLOCK * BLOCK;
    if checked.is_sound() {
        let sum =
            checked.free_bytes + checked.file_bytes + checked.metadata_bytes + checked.fixed_bytes;
        if !free.iter().eq(gaps.iter().copied()) || sum != superblock.blocks * BLOCK {
            checked.wrong(
                name,
                0,
                format!(
                    "{} bytes are free, {} belong to files and {} to metadata, of {} in all",
                    free.blocks() * BLOCK,
                    checked.file_bytes,
                    checked.metadata_bytes,
                    superblock.blocks * BLOCK
                ),
            );
        }
    }
}
