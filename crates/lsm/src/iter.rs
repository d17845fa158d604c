//! Iterators over internal keys, and those that merge them for readers and compactions.

mod level;
mod masked;
mod merge;
mod range_cover;
mod scan_history;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod user;
mod value_prefetch;

pub use basalt_table::InternalIter;
pub use level::LevelIter;
pub(crate) use masked::MaskedIter;
pub use merge::MergingIter;
pub(crate) use range_cover::{Cover, TombstoneSource};
pub(crate) use scan_history::{AsyncReadPermit, ScanHistory};
pub use user::{IterBounds, UserIter};
pub use value_prefetch::ValuePrefetch;
