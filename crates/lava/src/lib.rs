//! LavaFS: an append-only filesystem in user space, on a block device or in an image file
//! (LavaStore, 3.3.3; its page-server companion, 6).
//!
//! All metadata is in memory. Each change of it is a record in a journal. The journal is written
//! when a caller needs the change to be durable. Apart from the journal, only a checkpoint now and
//! then writes metadata. A synced append into space that a file has already is one write and one
//! flush.
//!
//! The modules, in the order of their dependencies: a module names only modules above it.
//!
//! | module | what it has |
//! |---|---|
//! | `runs`, `steps` | blocks of the device and runs of them; counted work, for tests |
//! | `extents` | where the blocks of a file lie |
//! | `cow_table`, `free_space` | a copy-on-write table; free runs by place and by length |
//! | `metadata_record` | a record: one change of the metadata, and its bytes |
//! | `names` | which directory has which name for which inode |
//! | `layout`, `frame` | the superblock; the frames of the journal and of checkpoints |
//! | `meta` | all metadata, and how a record changes it |
//! | `checkpoint`, `journal` | the bytes of a checkpoint and of the journal, written and read |
//! | `allocator` | the state of each block: used, freed but not durably, idle, free |
//! | `flush`, `maintenance`, `counters` | shared flushes of the device; background jobs; counters |
//! | `write_buffer`, `open_inode` | bulk appends in memory; what the handles of a file share |
//! | `state` | what changes under one lock: metadata, blocks, pending records, open inodes |
//! | `buffer_pool`, `lock_table` | write buffers of all files and their jobs; locks on paths |
//! | `options`, `mounted` | how to mount an image; a mounted filesystem |
//! | `commit` | transactions, syncs, checkpoints, discards of a mounted filesystem |
//! | `file` | an open file: appends, reads, syncs |
//! | `paths`, `read_batch` | what a path leads to; reads of several files in one batch |
//! | `report`, `metrics` | usage and extents; metrics |
//! | `probe`, `format` | what a device holds; makes a new filesystem |
//! | `load`, `mount` | loads and mounts a filesystem |
//! | `filesystem` | [`LavaFs`], the implementation of [`FileSystem`](basalt_fs::FileSystem) |
//! | `check`, `image` | proves that an image is sound; images for tools |
//!
//! Reasons: `docs/decisions/0025`. Bytes: `docs/format/lava.md`.

#![deny(missing_docs)]

mod allocator;
mod buffer_pool;
mod check;
mod checkpoint;
mod commit;
mod counters;
mod cow_table;
mod extents;
mod file;
mod filesystem;
mod flush;
mod format;
mod frame;
mod free_space;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod image;
mod journal;
mod layout;
mod load;
mod lock_table;
mod maintenance;
mod meta;
mod metadata_record;
mod metrics;
mod mount;
mod mounted;
mod names;
mod open_inode;
mod options;
mod paths;
mod probe;
mod read_batch;
mod report;
mod runs;
mod state;
mod steps;
#[cfg(test)]
mod tests;
mod write_buffer;

pub use filesystem::LavaFs;
pub use options::LavaOptions;
pub use report::{ExtentReport, FileReport, Usage};

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;
