//! Redis values, and what is known of a value without its bytes.

use crate::layout::DataType;
use basalt::Bytes;

/// A Redis value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    pub data_type: DataType,
    /// A string's bytes.
    pub data: Bytes,
    /// When it ends, ms since 1970.
    pub expire_at_ms: Option<u64>,
}

/// What is known of a live key without its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    pub data_type: DataType,
    /// When it ends, ms since 1970.
    pub expire_at_ms: Option<u64>,
    /// Bytes of a string; `None` when they were not asked for and would have to be read.
    pub len: Option<usize>,
}

/// What is known of a live key, and its value if that is at hand.
pub(crate) type Known = (Meta, Option<Bytes>);
