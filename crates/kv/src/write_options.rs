//! Settings of a write, which all engines share.

/// The failures that a write survives once it is acknowledged. More may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The death of the process may lose the write. The engines append each write to a log before
    /// they acknowledge the write. So such a write has what [`Durability::Process`] promises.
    None,
    /// The write survives the death of the process. A power cut, or the death of the operating
    /// system, may lose the last writes. It never loses a write and keeps a later one.
    #[default]
    Process,
    /// The write survives a power cut. The log is synced to the device before the write is
    /// acknowledged. All batches of a commit group share the sync.
    Device,
}

/// Settings of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WriteOptions {
    /// Failures that the batch survives once it is acknowledged. Default [`Durability::Process`].
    pub durability: Durability,
}

impl WriteOptions {
    /// Options with [`Durability::Device`]: the batch survives a power cut when it is acknowledged.
    pub const SYNC: WriteOptions = WriteOptions {
        durability: Durability::Device,
    };
    /// Options with [`Durability::Process`]: the batch survives the death of the process when it is
    /// acknowledged, and a power cut some time later.
    pub const UNSYNCED: WriteOptions = WriteOptions {
        durability: Durability::Process,
    };

    /// Returns [`WriteOptions::SYNC`] if `sync` is `true`, else [`WriteOptions::UNSYNCED`].
    pub const fn synced(sync: bool) -> WriteOptions {
        match sync {
            true => WriteOptions::SYNC,
            false => WriteOptions::UNSYNCED,
        }
    }

    /// Sets [`WriteOptions::durability`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Returns `true` if the write is acknowledged only after a sync of the log.
    pub fn is_synced(&self) -> bool {
        self.durability == Durability::Device
    }
}
