//! Redis values, and metadata of a value without its bytes.

use crate::layout::DataType;
use basalt::Bytes;

/// A Redis value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    pub data_type: DataType,
    /// A string's bytes.
    pub data: Bytes,
    /// Expiry in ms since 1970, or `None` for never.
    pub expire_at_ms: Option<u64>,
}

impl Value {
    /// Returns the bytes that precede the data in the store.
    pub fn header(&self) -> [u8; 1] {
        [self.data_type as u8]
    }

    /// Returns the expiry that the engine gets, in ms since 1970. A collection's expiry is only in
    /// its data, because its elements must be found after it has expired.
    pub fn engine_expiry(&self) -> Option<u64> {
        self.expire_at_ms
            .filter(|_| self.data_type == DataType::String)
    }
}

/// The metadata of a live key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    pub data_type: DataType,
    /// Expiry in ms since 1970, or `None` for never.
    pub expire_at_ms: Option<u64>,
    /// Bytes of a string; `None` if they were not asked for and would have to be read.
    pub len: Option<usize>,
}

/// The metadata of a live key, with its value if that is inline.
pub(crate) type Known = (Meta, Option<Bytes>);
