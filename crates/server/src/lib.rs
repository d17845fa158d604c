//! Placeholder.
#[allow(missing_docs)]
pub mod layout;
