//! Sets of epochs, and the limits on epochs ([`crate::keyspace`]).

/// A set of epochs by slot.
pub(crate) type Epochs = u16;

/// Number of slots.
pub(crate) const SLOTS: usize = 16;

/// Limits on the writes that are collected and in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EpochLimits {
    /// Epochs that were submitted and have not completed, at most 14.
    pub in_flight: usize,
    /// Bytes of keys and values from which the open epoch takes no further command.
    pub bytes: usize,
    /// Writes from which the open epoch takes no further command.
    pub writes: usize,
    /// Bytes of keys and values in all epochs, open or in flight, from which no further command is
    /// taken. One command always fits, and may be larger.
    pub pending_bytes: usize,
}

impl Default for EpochLimits {
    fn default() -> EpochLimits {
        EpochLimits {
            in_flight: 8,
            bytes: 32 << 20,
            writes: 16_384,
            pending_bytes: 64 << 20,
        }
    }
}
