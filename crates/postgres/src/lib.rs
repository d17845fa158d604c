//! PostgreSQL's wire protocol (version 3.0) over the relational database of crate `sql`.
//!
//! [`PostgresServer::start`] listens on an address and serves each client on a thread of its own.
//! Clients are authenticated with SCRAM-SHA-256 and may use TLS. The server has the simple and the
//! extended query protocol, prepared statements, portals with row limits, COPY in text and CSV
//! format, and cancel requests. Rows of a query go to the client while the statement runs, so the
//! server does not hold the result in memory. Rows of RETURNING are held in memory until the
//! commit.
//!
//! The crate decodes the messages of clients itself. A truncated or oversized message ends in an
//! error, and memory grows only with bytes that arrived.
#![deny(missing_docs)]

mod activity;
mod backend;
mod base64;
mod connection;
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
