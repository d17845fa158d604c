//! Limits of what a store can hold. Formats, batches and readers check the same numbers.

/// Longest user key in bytes.
pub const MAX_KEY_LEN: usize = 64 * 1024;

/// Longest value in bytes.
pub const MAX_VALUE_LEN: usize = 1 << 30;

/// File numbers are below this limit.
pub const MAX_FILE_NUMBER: u64 = 1 << 48;

/// Largest family id.
pub const MAX_FAMILY: u32 = u32::MAX - 1;

/// Name of the family that every store has.
pub const DEFAULT_FAMILY: &str = "default";
