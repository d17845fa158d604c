//! Iterators over internal keys, and those that merge them for readers and compactions.

mod ahead;
mod habit;
mod level;
mod masked;
mod merge;
mod range_cover;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod tests_ranges;
pub(crate) mod user;

pub use crate::table::InternalIter;
pub use ahead::ReadAhead;
pub(crate) use habit::{Habit, Leave};
pub use level::LevelIter;
pub(crate) use masked::MaskedIter;
pub use merge::MergingIter;
pub(crate) use range_cover::{Cover, Source};
pub use user::{UserIter, View};
