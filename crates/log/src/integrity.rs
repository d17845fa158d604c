//! Verification and repair of a store of logs.
//!
//! | module | what it does |
//! |---|---|
//! | [`report`] | what a check found, what a repair did, and what is lost |
//! | `live_read` | reads records at the places where an index has them, many at once |
//! | `known_files` | the files of a store, by its manifest or without it |
//! | [`check`] | walks every file of a closed store, and lists all damage |
//! | [`verify`] | reads all live records and pages of an open store |
//! | `salvage` | the logs as the readable parts of all files have them |
//! | [`repair`] | makes a store that can be opened of what verifies |

pub(crate) mod check;
mod known_files;
mod live_read;
pub(crate) mod repair;
pub(crate) mod report;
mod salvage;
pub(crate) mod verify;
