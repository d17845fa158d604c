//! Settings of a server.

use crate::resp::request::Limits;
use basalt::{Error, Result};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Default of `min_blob_size` in bytes, for the server and the tools. A value of a page fills a
/// data block of its own, so it needs its own read of the device in a table, too. From this size
/// on, merging values costs more than the extra read of the key's block, which the cache mostly
/// saves. Below it, two values of a page would need two reads instead of one.
pub const MIN_BLOB_SIZE: usize = 4096;

/// Returns the engine's default options for a server.
pub fn engine_defaults() -> basalt::Options {
    basalt::Options::default()
        .default_family(basalt::FamilyOptions::default().min_blob_size(Some(MIN_BLOB_SIZE)))
}

/// The name of the family that every store has.
const DEFAULT_FAMILY: &str = "default";

/// Adapts options to the families that a store has, as [`basalt::Db::families_of_closed`] returns
/// them. A family in pages gets `pages`, unless it has settings of pages already. A family in
/// levels gets no settings of pages. If the default family is in levels, its options stay, so that
/// the engine refuses pages for it.
pub fn fit_families(
    mut options: basalt::Options,
    found: &BTreeMap<String, bool>,
    pages: &basalt::TreeOptions,
) -> basalt::Options {
    let asked = options.default_family.clone();
    for (name, is_in_pages) in found {
        let mut family = options.families.get(name).unwrap_or(&asked).clone();
        match is_in_pages {
            true => {
                family.pages.get_or_insert_with(|| pages.clone());
            }
            false if name == DEFAULT_FAMILY => continue,
            false => family.pages = None,
        }
        match name == DEFAULT_FAMILY {
            true => options.default_family = family,
            false => {
                options.families.insert(name.clone(), family);
            }
        }
    }
    options
}

/// The moment at which the server acknowledges a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncPolicy {
    /// As soon as the write survives a power cut. Pipelined and concurrent writes share syncs.
    #[default]
    Always,
    /// As soon as the write survives the death of the process. A power cut may take the writes of
    /// about the last second.
    EverySecond,
    /// As soon as the write survives the death of the process. A power cut may take the writes that
    /// the engine has not yet written out.
    Never,
}

impl SyncPolicy {
    /// Returns the name for `--sync` and `appendfsync`.
    pub fn name(self) -> &'static str {
        match self {
            SyncPolicy::Always => "always",
            SyncPolicy::EverySecond => "everysec",
            SyncPolicy::Never => "never",
        }
    }
    /// Parses a name. `no` is Redis's word for `never`.
    pub fn parse(name: &str) -> Option<SyncPolicy> {
        match name.to_ascii_lowercase().as_str() {
            "always" => Some(SyncPolicy::Always),
            "everysec" => Some(SyncPolicy::EverySecond),
            "never" | "no" => Some(SyncPolicy::Never),
            _ => None,
        }
    }
}

/// Settings of a server, each with a default that suits one machine.
#[derive(Clone)]
pub struct ServerOptions {
    /// The store's directory. Default `basalt-data`.
    pub dir: PathBuf,
    /// Address and port to listen on. Default 127.0.0.1:6379. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// True to allow an address that other machines reach, although there is no password. Default
    /// false.
    pub unprotected: bool,
    /// The moment at which the server acknowledges a write. Default `always`.
    pub sync: SyncPolicy,
    /// Number of clients at a time. Default 10,000. Lowered if the process may not open so many
    /// files.
    pub max_clients: usize,
    /// Time after which a client that sends and takes nothing is disconnected; zero for never. A
    /// client that waits for its reply is not idle. Default 0.
    pub idle_timeout: Duration,
    /// Time without traffic after which the system probes a client's machine, three times a third
    /// of that apart; zero for never. At most [`KEEPALIVE_MOST`] seconds. Default 300 s.
    pub tcp_keepalive: Duration,
    /// Longest argument in bytes, and longest string a command may make. Default 512 MiB, at most 1
    /// GiB less a header.
    pub max_bulk_bytes: u64,
    /// Longest request in bytes, all arguments together. Default 1 GiB.
    pub max_request_bytes: u64,
    /// Bytes of replies that a client may leave unread before its next requests wait. Default 1
    /// MiB.
    pub reply_soft_bytes: usize,
    /// Bytes of replies, also of a single request, at which a client is disconnected. Default 1
    /// GiB.
    pub reply_hard_bytes: usize,
    /// Bytes of requests and replies of all clients together, at which the client that holds most
    /// is disconnected. Default 0: half of the environment's memory budget, at least 64 MiB. The
    /// limits of one client are lowered to fit: an argument to a quarter of it, a request to three
    /// eighths, a reply to half.
    pub client_memory_bytes: u64,
    /// Bytes of writes of all clients together that may wait for their commit. Beyond it, requests
    /// wait. One request always fits. Default 64 MiB.
    pub pending_write_bytes: usize,
    /// Budget in bytes of the streams in memory: windows of their newest entries, and their state.
    /// Default 0: an eighth of the environment's memory budget, at least 16 MiB.
    pub stream_memory_bytes: u64,
    /// Time that a stopping server waits for a client that takes nothing of its last replies, and
    /// for reads of the whole keyspace, which then get an error. Default 5 s.
    pub drain: Duration,
    /// Time that a stopping server waits for its clients in all, also for those that take their
    /// replies slowly. Commits are finished at any duration. Default 60 s.
    pub drain_in_all: Duration,
    /// Options of the engine. Default [`engine_defaults`]. They are fitted to the families of the
    /// store ([`fit_families`]).
    pub engine: basalt::Options,
}

/// The longest interval of TCP keepalive, in seconds, that the system takes.
pub const KEEPALIVE_MOST: u64 = 32_767;

/// Bytes that all clients together may hold in the smallest memory budget.
const LEAST_CLIENT_MEMORY: u64 = 64 << 20;

/// Minimum of the default budget of the streams in memory, in bytes.
const LEAST_STREAM_MEMORY: u64 = 16 << 20;

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            dir: PathBuf::from("basalt-data"),
            listen: SocketAddr::from(([127, 0, 0, 1], 6379)),
            unprotected: false,
            sync: SyncPolicy::Always,
            max_clients: 10_000,
            idle_timeout: Duration::ZERO,
            tcp_keepalive: Duration::from_secs(300),
            max_bulk_bytes: 512 << 20,
            max_request_bytes: 1 << 30,
            reply_soft_bytes: 1 << 20,
            reply_hard_bytes: 1 << 30,
            client_memory_bytes: 0,
            pending_write_bytes: 64 << 20,
            stream_memory_bytes: 0,
            drain: Duration::from_secs(5),
            drain_in_all: Duration::from_secs(60),
            engine: engine_defaults(),
        }
    }
}

impl ServerOptions {
    /// Checks that values are inside their documented ranges.
    pub fn validate(&self) -> Result<()> {
        if !self.listen.ip().is_loopback() && !self.unprotected {
            return Err(Error::invalid(format!(
                "refusing to listen on {}: there is no password yet, so everyone who reaches this address could read and erase the data; use --listen 127.0.0.1:{} or allow it with --unprotected",
                self.listen,
                self.listen.port()
            )));
        }
        let largest = basalt::MAX_VALUE_LEN as u64 - 16;
        if !(1 << 10..=largest).contains(&self.max_bulk_bytes) {
            return Err(Error::invalid(format!(
                "the longest argument is set to {} bytes, allowed are 1024 to {largest}",
                self.max_bulk_bytes
            )));
        }
        if self.max_request_bytes < self.max_bulk_bytes || self.max_request_bytes > 1 << 30 {
            return Err(Error::invalid(format!(
                "the longest request is set to {} bytes, allowed are the longest argument ({}) to {}",
                self.max_request_bytes,
                self.max_bulk_bytes,
                1 << 30
            )));
        }
        if self.tcp_keepalive > Duration::from_secs(KEEPALIVE_MOST) {
            return Err(Error::invalid(format!(
                "tcp_keepalive is {} seconds, which is too long: set at most {KEEPALIVE_MOST} seconds, or 0 to turn keepalive off",
                self.tcp_keepalive.as_secs()
            )));
        }
        if self.max_clients == 0 {
            return Err(Error::invalid("at least one client must be allowed"));
        }
        Ok(())
    }

    /// Computes the limits that were left open from a memory budget in bytes. A client that exceeds
    /// a limit of one request or reply gets an error. A client that exceeds the bound of all is
    /// disconnected without a message, so the limits stay within the bound. Growing buffers take up
    /// to twice the bytes that they hold.
    pub(crate) fn fit(&mut self, budget: u64) {
        if self.stream_memory_bytes == 0 {
            self.stream_memory_bytes = (budget / 8).max(LEAST_STREAM_MEMORY);
        }
        if self.client_memory_bytes == 0 {
            let bound = (budget / 2).max(LEAST_CLIENT_MEMORY);
            self.client_memory_bytes = bound;
            self.max_bulk_bytes = self.max_bulk_bytes.min(bound / 4);
            self.max_request_bytes = self.max_request_bytes.min(bound / 8 * 3);
            self.reply_hard_bytes = self.reply_hard_bytes.min((bound / 2) as usize);
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            bulk_bytes: self.max_bulk_bytes,
            request_bytes: self.max_request_bytes + 64,
        }
    }
}

#[cfg(test)]
mod tests;
