//! Offline work on a closed store: check, repair, and what both learn of a damaged manifest.
//!
//! | module | what it does |
//! |---|---|
//! | [`report`] | what a repair did, and what is lost |
//! | [`manifest_salvage`] | reads as much of a damaged manifest as verifies |
//! | [`check`] | walks every byte, and lists all damage |
//! | [`repair`] | salvages what verifies |
//!
//! The formats have their own walks, which these call: `table::verify`, `table::salvage`,
//! `blob::verify`, `blob::salvage`, `blob::inspect`, `wal::verify`, `wal::salvage`.

pub(crate) mod check;
pub(crate) mod manifest_salvage;
pub(crate) mod repair;
pub(crate) mod report;
