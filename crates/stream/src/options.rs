//! Settings of a stream.

use basalt_fs::{Error, Result};

const LEAST_EXTENT: u64 = 4 << 10;
const LARGEST_EXTENT: u64 = 16 << 30;

/// Settings of a [`crate::Stream`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StreamOptions {
    pub(crate) extent_bytes: u64,
}

impl Default for StreamOptions {
    fn default() -> Self {
        StreamOptions {
            extent_bytes: 64 << 20,
        }
    }
}

impl StreamOptions {
    /// Sets the bytes of an extent, from 4 KiB to 16 GiB; 64 MiB by default. An extent is sealed
    /// when the next append does not fit. An append that is larger has an extent of its own.
    pub fn extent_bytes(mut self, bytes: u64) -> Self {
        self.extent_bytes = bytes;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        match (LEAST_EXTENT..=LARGEST_EXTENT).contains(&self.extent_bytes) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "extent_bytes is {}; it must be {LEAST_EXTENT} to {LARGEST_EXTENT}",
                self.extent_bytes
            ))),
        }
    }
}
