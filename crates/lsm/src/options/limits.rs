//! Ranges of options. A value outside its range is refused with `InvalidArgument`.

use basalt_fs::{Error, Result};
use std::fmt::Display;
use std::ops::RangeInclusive;

pub const WRITE_BUFFER_BYTES: RangeInclusive<u64> = 4 << 10..=1 << 40;
pub const SEALED_MEMTABLES: RangeInclusive<usize> = 1..=1 << 16;
/// Up to a hundred years.
pub const IDLE_RELEASE_SECONDS: RangeInclusive<u64> = 0..=100 * 365 * 24 * 60 * 60;
pub const PINNED_LOG_BYTES: RangeInclusive<u64> = 4 << 10..=1 << 50;
/// From a millisecond to a day.
pub const REPLAY_MS: RangeInclusive<u64> = 1..=24 * 60 * 60 * 1000;
pub const REPLAY_RATE: RangeInclusive<u64> = 4 << 10..=1 << 40;
pub const SPACE_AMP: RangeInclusive<f64> = 1.05..=1000.0;
pub const BLOCK_BYTES: RangeInclusive<usize> = 64..=1 << 20;
pub const FILTER_BITS_PER_KEY: RangeInclusive<u32> = 0..=64;
pub const TABLE_BYTES: RangeInclusive<u64> = 1 << 10..=1 << 40;
pub const L0_TABLES: RangeInclusive<usize> = 1..=1 << 20;
pub const DEBT_BYTES: RangeInclusive<u64> = 1..=u64::MAX;
pub const LEVEL_BYTES: RangeInclusive<u64> = 1 << 10..=1 << 50;
pub const LEVEL_MULTIPLIER: RangeInclusive<u32> = 2..=1 << 16;
/// Bytes in the name of a comparator or of a merge operator.
pub const NAME_BYTES: RangeInclusive<usize> = 1..=255;
pub const SKIPPABLE_ENTRIES: RangeInclusive<u64> = 1..=u64::MAX;

/// Refuses a value outside its range. The error names the option, the value and the range.
pub fn within<T: PartialOrd + Display>(
    option: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{option} is {value}: set a value from {} to {}",
        range.start(),
        range.end()
    )))
}
