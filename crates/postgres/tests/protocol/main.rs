//! Clients of a server: the client encodes and decodes messages with crate `pgwire`, a second
//! implementation of the protocol.

mod client;
mod hostile;
mod portals;
mod queries;
mod sessions;
