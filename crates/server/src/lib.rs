//! Basalt's server: a durable key-value store behind the Redis protocol.

#![deny(missing_docs)]

pub mod glob;
pub mod layout;
pub mod number;
pub mod resp;
