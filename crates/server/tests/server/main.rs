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

/// How many times the usual effort is asked for.
pub fn scale() -> u64 {
    std::env::var("BASALT_SCALE")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1)
}
