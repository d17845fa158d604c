//! Offline work on a closed store: check, repair, and what both learn of a damaged manifest.
//!
//! | module | what it does |
//! |---|---|
//! | [`report`] | what a repair did, and what is lost |
//! | `walk` | steps that walks share: lock, files that the manifest names, logs, progress |
//! | [`manifest_salvage`] | reads as much of a damaged manifest as verifies |
//! | [`check`] | walks every byte, and lists all damage |
//! | [`repair`] | salvages what verifies |
//!
//! The formats have their own walks, which these modules call: `table::verify`, `table::salvage`,
//! `blob::verify`, `blob::salvage`, `blob::inspect`, `records::verify`, `records::salvage`. The
//! walks over a table share the loop over the entries of a block (`table::block`). Decision 0034
//! says what the walks do not share.

pub(crate) mod check;
pub(crate) mod manifest_salvage;
pub(crate) mod repair;
pub(crate) mod report;
mod walk;
