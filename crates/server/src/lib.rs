//! Basalt's server: a durable key-value store with the Redis protocol.
//!
//! The steps of a request: the event loop reads bytes, [`resp::request`] parses requests, and
//! [`command`] runs them on the keyspace, which collects writes into epochs. The replies wait in
//! the connection until the epochs that they depend on are as durable as [`SyncPolicy`] says. See
//! `docs/decisions/0008-server-epochs.md`.

#![deny(missing_docs)]
// The macros of these lints panic if the write fails, as on a full disk or a closed pipe: use
// `net::background::report`.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod answers;
pub mod catalog;
pub mod command;
mod cursor;
mod epoch;
mod fetch;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod glob;
mod keyspace;
mod layer;
pub mod layout;
mod names;
mod net;
pub mod number;
mod options;
pub mod resp;
mod store;
mod stream;
pub mod stream_check;
mod value;

pub use net::{Listening, Server, ShutdownHandle, serve, serve_on};
pub use options::{MIN_BLOB_SIZE, ServerOptions, SyncPolicy, engine_defaults, fit_families};
