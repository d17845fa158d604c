//! Options for mounting an image.

use std::path::PathBuf;

use basalt_env::EnvParts;

/// Options for mounting an image.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
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

impl LavaOptions {
    /// Sets [`LavaOptions::name`](field@LavaOptions::name).
    #[must_use]
    pub fn name(mut self, name: PathBuf) -> LavaOptions {
        self.name = name;
        self
    }

    /// Sets [`LavaOptions::read_only`](field@LavaOptions::read_only).
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> LavaOptions {
        self.read_only = read_only;
        self
    }

    /// Sets [`LavaOptions::env`](field@LavaOptions::env).
    #[must_use]
    pub fn env(mut self, env: Option<EnvParts>) -> LavaOptions {
        self.env = env;
        self
    }
}
