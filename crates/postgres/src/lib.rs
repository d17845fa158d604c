//! PostgreSQL's wire protocol (version 3.0) over the relational database of crate `sql`.
//!
//! [`PostgresServer::start`] listens on an address and serves each client on a thread of its own.
//! Clients are authenticated with SCRAM-SHA-256 and may use TLS. Both protocols of queries are
//! served, with prepared statements, portals with row limits, COPY in text and CSV format, and
//! cancel requests. Rows go to the client while the statement runs, so the memory of a connection
//! does not grow with its results.
//!
//! Messages of clients are decoded here and not by a library: truncated or oversized messages end
//! in an error, and memory grows only with bytes that arrived.
#![deny(missing_docs)]

mod activity;
mod backend;
mod base64;
mod connection;
mod copy;
mod frontend;
mod keyword;
mod options;
mod scram;
mod server;
mod socket;
mod startup;
mod state;
mod stats;
mod tls;
mod types;
mod wire;

pub use options::{Passwords, PostgresOptions, TlsIdentity};
pub use server::PostgresServer;
pub use stats::PostgresStats;
