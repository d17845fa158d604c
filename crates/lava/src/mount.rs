//! Making a filesystem on a device, and finding one there.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::allocator::Allocator;
use super::buffer::Writers;
use super::checkpoint::{self, Pieces};
use super::commit::{DUE_EXTENTS, Failure, Journal, Progress, due_at};
use super::counts::Counts;
use super::flush::Flusher;
use super::journal::{self, Source, Tail, Writer};
use super::layout::{
    FIRST_BLOCK, MIN_DEVICE, NotOurs, SUPERBLOCKS, Superblock, Uuid, journal_blocks, max_inodes,
};
use super::meta::{Meta, Refusal};
use super::record::{Kind, Reader, Record};
use super::runs::{BLOCK, MAX_BLOCKS, Run};
use super::space::FreeSpace;
use super::state::{Asks, State};
use super::upkeep::Upkeep;
use super::{LavaOptions, Shared};
use basalt_env::Clock;
use basalt_fs::device::{Device, DeviceRead, Discards, Way};
use basalt_fs::{Error, ErrorKind, Result};

/// What a device has.
pub enum Found {
    /// Zeros where anything would begin.
    Nothing,
    /// A filesystem of ours, and which copies of the superblock are not this one.
    Ours(Superblock, Vec<u64>),
    /// One of ours that cannot be mounted, and why.
    Broken(Error),
    /// Something else.
    Foreign,
}

/// Looks at what a device has.
pub fn look(device: &dyn Device, name: &Path) -> Result<Found> {
    let facts = device.facts();
    if facts.len == 0 {
        return Ok(Found::Nothing);
    }
    if facts.len < FIRST_BLOCK * BLOCK {
        return Ok(Found::Foreign);
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
    // Of one generation the one that ended later.
    let newest = copies
        .iter()
        .max_by_key(|(_, s)| (s.generation, s.clean_seq));
    if let Some((_, newest)) = newest {
        let stale = SUPERBLOCKS.into_iter();
        let stale = stale.filter(|at| !copies.iter().any(|(of, s)| of == at && s == newest));
        return Ok(Found::Ours(newest.clone(), stale.collect()));
    }
    let told = problems
        .iter()
        .find(|(_, p)| *p != NotOurs::Foreign)
        .map(|(at, p)| match p {
            NotOurs::Version(v) => Error::unsupported(format!(
                "the image has format version {v}, and this build knows version 1; use a newer build"
            ))
            .in_file(name),
            NotOurs::Features(bits) => Error::unsupported(format!(
                "the image uses features {bits:#x} that this build does not know; use a newer build"
            ))
            .in_file(name),
            NotOurs::Damaged(why) => Error::corruption(
                name,
                *at,
                format!("neither copy of the superblock is readable: {why}"),
            ),
            NotOurs::Foreign => unreachable!("filtered"),
        });
    Ok(match told {
        Some(e) => Found::Broken(e),
        None if head.iter().all(|b| *b == 0) => Found::Nothing,
        None => Found::Foreign,
    })
}

/// Why there is nothing to be mounted.
pub fn not_ours(found: Found, name: &Path) -> Error {
    match found {
        Found::Ours(..) => unreachable!("it can be mounted"),
        Found::Broken(e) => e,
        Found::Nothing => Error::new(
            ErrorKind::NotFound,
            "there is no filesystem on it; `basalt fs format` makes one",
        )
        .in_file(name),
        Found::Foreign => Error::new(
            ErrorKind::InvalidArgument,
            "it holds something that is no image of Basalt's; name another",
        )
        .in_file(name),
    }
}

/// Makes an empty filesystem. Whatever the device had is gone.
///
/// Errors: `InvalidArgument` when the device is too small or too large.
pub fn format(device: &dyn Device, uuid: Uuid, sparse: bool, name: &Path) -> Result<()> {
    let features = Features {
        sparse,
        no_discard: false,
    };
    format_with(device, uuid, features, name)
}

/// How a filesystem treats the space under it, from its making on.
#[derive(Clone, Copy)]
pub struct Features {
    /// See [`Superblock::sparse`].
    pub sparse: bool,
    /// See [`Superblock::no_discard`].
    pub no_discard: bool,
}

/// As [`format`].
pub fn format_with(device: &dyn Device, uuid: Uuid, features: Features, name: &Path) -> Result<()> {
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
    let jump = Record::Jump {
        run: journal,
        seq: 1,
        life: 0,
    };
    let pieces = Pieces::of(&meta.copy(), jump, facts.unit);
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
    // What was there is gone before anything of it is written over: no mount takes the one half for the other.
    let zeros = vec![0u8; 4096];
    for at in SUPERBLOCKS {
        device.write(at, &[IoSlice::new(&zeros)], Way::Direct)?;
    }
    device.flush()?;
    let runs = &superblock.checkpoint;
    for (at, bytes) in pieces.sealed(&uuid, 1, runs) {
        checkpoint::write(device, runs, at, &bytes)?;
    }
    // No old journal is found again.
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

/// What a device's filesystem has: its metadata, what is free, and how the journal ended.
pub struct Loaded {
    pub superblock: Superblock,
    pub meta: Meta,
    pub space: FreeSpace,
    pub tail: Tail,
}

/// Something is missing at the end.
pub fn cut_short(name: &Path, has: u64, had: u64) -> Error {
    Error::corruption(
        name,
        has,
        format!("the image has {has} bytes, and should have {had}; it has been cut short"),
    )
}

/// Reads checkpoint and journal: the metadata, and how the journal ended.
pub fn read(device: &dyn Device, superblock: &Superblock, name: &Path) -> Result<(Meta, Tail)> {
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
    let (mut meta, jump) = checkpoint::read(device, superblock, name)?;
    let source = Source {
        device,
        uuid: superblock.uuid,
        unit: superblock.unit as usize,
        blocks: superblock.blocks,
        journal_blocks: superblock.journal_blocks,
        name,
    };
    let tail = journal::replay(&source, jump, |seq, at, records| {
        let damage = |what: String| {
            Error::corruption(
                name,
                at,
                format!("the journal's transaction {seq} has {what}"),
            )
        };
        let mut records = Reader(records);
        while let Some(record) = records.next() {
            let record = record.map_err(|what| damage(what.to_string()))?;
            meta.apply(&record)
                .map_err(|r: Refusal| damage(format!("{}: {record:?}", r.text())))?;
        }
        Ok(())
    })?;
    if tail.seq <= superblock.clean_seq {
        let at = tail.extents.last().map_or(0, |r| r.start * BLOCK);
        return Err(Error::corruption(
            name,
            at,
            format!(
                "the journal ends before transaction {}, and a clean end said that {} was durable",
                tail.seq, superblock.clean_seq
            ),
        ));
    }
    Ok((meta, tail))
}

/// As [`read`], and proves that no block belongs to two.
pub fn load(device: &dyn Device, superblock: Superblock, name: &Path) -> Result<Loaded> {
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
                "{} blocks from {} on belong to {of}, and some of them to somebody else, too, or to nobody",
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
    for (ino, facts) in meta.inodes() {
        if facts.kind != Kind::Dir && facts.len > facts.blocks * BLOCK {
            return Err(Error::corruption(
                name,
                0,
                format!(
                    "inode {ino} has {} bytes in {} blocks",
                    facts.len, facts.blocks
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
    Ok(Loaded {
        superblock,
        meta,
        space,
        tail,
    })
}

/// Errors: `Unsupported` when this build may read it and not write.
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

/// Mounts what a device has.
///
/// Errors: `NotFound` when there is no filesystem, `Unsupported`, `Corruption`.
pub fn mount(device: Arc<dyn Device>, options: &LavaOptions) -> Result<Arc<Shared>> {
    let name = &options.name;
    let (superblock, stale) = match look(&*device, name)? {
        Found::Ours(superblock, stale) => (superblock, stale),
        other => return Err(not_ours(other, name)),
    };
    if !options.read_only {
        check_features(&superblock, name)?;
    }
    let loaded = load(&*device, superblock, name)?;
    let superblock = loaded.superblock;
    let mut facts = device.facts();
    facts.unit = superblock.unit as usize;
    let blocks = Allocator::new(loaded.space, superblock.blocks - FIRST_BLOCK);
    let mut state = State::new(loaded.meta, blocks, superblock.journal_blocks);
    state.last_checkpoint = superblock.checkpoint_bytes.div_ceil(BLOCK);
    if !options.read_only {
        // What the last process wrote and did not flush is there for us, and not yet for a power cut: all that follows takes it for durable.
        device.flush()?;
        // Before anything is given out: what the older copy leads to is free, and nobody may ever follow it again.
        for at in stale {
            let bytes = superblock.encode(at);
            device.write(at, &[IoSlice::new(&bytes)], Way::Direct)?;
            device.flush()?;
        }
    }
    // Without one a checkpoint can still be written, and give back what it stands for.
    let next = match options.read_only {
        true => None,
        false => state
            .journal_extents(1, Asks::Commit)
            .and_then(|mut e| e.pop()),
    };
    let urgent = next.is_none();
    let mut life = [0; 8];
    basalt_fs::fill_random(&mut life);
    let life = u64::from_le_bytes(life);
    let writer = Writer::begin(&loaded.tail, superblock.uuid, facts.unit, next, life);
    if !options.read_only {
        state.keep_spares();
        // Space of an image that was written when it was made stays written.
        let discards = match facts.discards {
            Discards::Holes => superblock.sparse,
            Discards::Always => !superblock.no_discard,
        };
        if discards {
            state.blocks.discard_from_now_on();
        }
    }
    let clock = options.env.as_ref().map(|env| env.clock().clone());
    let shared = Arc::new(Shared {
        relief: u64::from(superblock.journal_blocks) * BLOCK / 2,
        read_only: options.read_only,
        uuid: superblock.uuid,
        facts,
        device,
        state: Mutex::new(state),
        journal: Mutex::new(Journal {
            writer,
            due_at: due_at(&superblock),
            due_extents: DUE_EXTENTS,
            superblock,
            failed_checkpoints: 0,
            checkpoints: 0,
        }),
        progress: Progress::starting_at(loaded.tail.seq - 1),
        flusher: Flusher::default(),
        failure: Failure::default(),
        checkpointing: Mutex::new(()),
        growing: Mutex::new(()),
        upkeep: Upkeep::default(),
        discarded: Condvar::new(),
        counts: Counts::new(clock.unwrap_or_else(Clock::system)),
        writers: Writers::new(options.env.as_ref()),
        locks: Mutex::new(BTreeMap::new()),
    });
    // Each mount takes an extent: so that many in a row do not take all there is. Where there is no room, the journal goes on.
    if !options.read_only && (urgent || shared.is_due()) {
        let _ = shared.checkpoint();
    }
    Ok(shared)
}
