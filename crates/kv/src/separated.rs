//! Separated values: the form of a value that is kept apart from its key, in a log, a batch and a
//! blob file, and the reference in the tree.
//!
//! `record` is the value with its key and checksums, `compressed` is the form of a compressed
//! value, and `reference` is what an entry of the tree has in place of the value. The bytes are
//! specified in `docs/format/blob.md`.

pub mod compressed;
pub mod record;
mod reference;

pub use record::{Form, Name};
pub use reference::Reference;
