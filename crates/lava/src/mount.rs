//! Mounts the filesystem of a device.

use std::io::IoSlice;
use std::sync::Arc;

use super::allocator::Allocator;
use super::buffer_pool::BufferPool;
use super::counters::FsCounters;
use super::journal::JournalWriter;
use super::layout::FIRST_BLOCK;
use super::load::load;
use super::mounted::{JournalState, MountParts, MountedFs};
use super::options::LavaOptions;
use super::probe::{Probed, check_features, no_image_error, probe};
use super::runs::BLOCK;
use super::state::{ExtentPurpose, MountState};
use basalt_env::Clock;
use basalt_fs::Result;
use basalt_fs::device::{Device, Discards, Way};

/// Mounts the filesystem of a device.
///
/// Errors: `NotFound` for an empty device, `InvalidArgument` for other content, `Unsupported`,
/// `Corruption`.
pub fn mount(device: Arc<dyn Device>, options: &LavaOptions) -> Result<Arc<MountedFs>> {
    let name = &options.name;
    let (superblock, stale) = match probe(&*device, name)? {
        Probed::Image(superblock, stale) => (superblock, stale),
        other => return Err(no_image_error(other, name)),
    };
    if !options.read_only {
        check_features(&superblock, name)?;
    }
    let loaded = load(&*device, superblock, name)?;
    let superblock = loaded.superblock;
    let mut facts = device.facts();
    facts.unit = superblock.unit as usize;
    let blocks = Allocator::new(loaded.space, superblock.blocks - FIRST_BLOCK);
    let mut state = MountState::new(loaded.meta, blocks, superblock.journal_blocks);
    state.last_checkpoint = superblock.checkpoint_bytes.div_ceil(BLOCK);
    if !options.read_only {
        // The last process may have written without a flush. This mount has read those bytes, so
        // they must be durable before anything depends on them.
        device.flush()?;
        // This comes before any block is allocated: the blocks that the older copy leads to are
        // free, and no later mount may follow it.
        for at in stale {
            let bytes = superblock.encode(at);
            device.write(at, &[IoSlice::new(&bytes)], Way::Direct)?;
            device.flush()?;
        }
    }
    // If there is no space for a journal extent, a checkpoint can still be written, and frees the
    // journal before it.
    let next = match options.read_only {
        true => None,
        false => state
            .journal_extents(1, ExtentPurpose::Commit)
            .and_then(|mut e| e.pop()),
    };
    let urgent = next.is_none();
    let mut life = [0; 8];
    basalt_fs::fill_random(&mut life);
    let life = u64::from_le_bytes(life);
    let writer = JournalWriter::begin(&loaded.tail, superblock.uuid, facts.unit, next, life);
    if !options.read_only {
        state.keep_spares();
        // An image that was written when it was made keeps its written space.
        let discards = match facts.discards {
            Discards::Holes => superblock.sparse,
            Discards::Always => !superblock.no_discard,
        };
        if discards {
            state.blocks.discard_from_now_on();
        }
    }
    let clock = options.env.as_ref().map(|env| env.clock().clone());
    let shared = Arc::new(MountedFs::new(MountParts {
        read_only: options.read_only,
        facts,
        device,
        state,
        journal: JournalState::new(writer, superblock),
        last_seq: loaded.tail.seq - 1,
        counters: FsCounters::new(clock.unwrap_or_else(Clock::system)),
        buffers: BufferPool::new(options.env.as_ref()),
    }));
    // Each mount takes a journal extent. The checkpoint frees them, so that many mounts do not take
    // all space. Without space for a checkpoint the journal goes on.
    if !options.read_only && (urgent || shared.is_due()) {
        let _ = shared.checkpoint();
    }
    Ok(shared)
}
