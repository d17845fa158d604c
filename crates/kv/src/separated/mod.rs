//! Separated values: how a log, a batch and a blob file hold a value that is kept apart from its
//! key, and what the tree holds instead.
//!
//! `record` is the value with its key and checksums, `compressed` is the form of a compressed
//! value, and `reference` is what an entry of the tree has in place of the value. The bytes are
//! specified in `docs/format/blob.md`.

pub mod compressed;
pub mod record;
mod reference;

pub use record::{Form, Name};
pub use reference::Reference;
