//! The server over TCP, with the real engine under it: exact replies, pipelines, hostile clients,
//! durability and stopping.

mod bounded;
mod client;
mod hostile;
mod large;
mod operations;
mod oracle;
mod pipelines;
mod replies;
mod restart;
mod stream_oracle;
mod stream_store;
mod streams;
mod transcripts;
