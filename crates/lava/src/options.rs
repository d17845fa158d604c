//! How an image is mounted.

use std::path::PathBuf;

use basalt_env::EnvParts;

/// How an image is mounted.
#[derive(Debug, Clone, Default)]
pub struct LavaOptions {
    /// The name of the image in messages. Default: empty.
    pub name: PathBuf,
    /// If `true`, nothing is written. Default: false.
    pub read_only: bool,
    /// The environment that the filesystem will be part of. Jobs of its pool write checkpoints when
    /// they are due and full write buffers, its ledger has the buffers' memory, and its clock times
    /// syncs. If `None`, or if the pool is stepped, the caller who fills a buffer writes it. If
    /// `None`, checkpoints are written by [`LavaFs::checkpoint`](super::LavaFs::checkpoint) alone,
    /// and each run is the same. Default: `None`.
    pub env: Option<EnvParts>,
}
