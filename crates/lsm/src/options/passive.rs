//! Passive stores: stores that keep no log, because their owner has one.

use super::limits::{self, within};
use super::setters;
use crate::version::Tsn;
use basalt_fs::Result;
use std::sync::Arc;
use std::time::Duration;

/// Says whether the store or its owner keeps the log from which the store recovers.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum LogMode {
    /// The store writes a log of its own.
    #[default]
    Own,
    /// The store writes no log. Its owner logs each transaction before it gives the transaction to
    /// the store, and replays its log after a crash (PASV). `docs/passive.md` has the protocol.
    /// Such a store is opened by [`crate::Db::open_passive`].
    ///
    /// A store with a log becomes passive when it is opened so. A passive store stays passive.
    Passive(PassiveOptions),
}

impl LogMode {
    /// Returns the settings of a passive store, `None` for a store with a log.
    pub fn passive(&self) -> Option<&PassiveOptions> {
        match self {
            LogMode::Own => None,
            LogMode::Passive(options) => Some(options),
        }
    }
}

/// The log of a passive store's owner.
pub trait OwnerLog: Send + Sync {
    /// Makes the log durable up to the end of transaction `tsn`, and returns when it is. The store
    /// calls this before anything of the transaction becomes durable in the store: otherwise a
    /// power cut could leave a part of a transaction that the log has lost.
    ///
    /// The call comes about once for each flush, from a background thread or from a thread inside a
    /// call of the store: a write, the creation of a family, a checkpoint, a close. So it must take
    /// no lock that is held during calls of the store, must not write to the store, and must not
    /// wait for a thread that does. `tsn` is 0 before the first transaction. [`crate::Db::rebase`]
    /// makes no such call for its transaction, because the owner's log does not have that
    /// transaction. After an error the store keeps the memtables and tries again.
    fn make_durable(&self, tsn: Tsn) -> Result<()>;
}

/// Settings of a passive store.
#[derive(Clone)]
#[non_exhaustive]
pub struct PassiveOptions {
    /// The owner's log. `None` says that the owner makes each transaction durable in its log before
    /// it gives the transaction to the store. Default `None`.
    pub owner_log: Option<Arc<dyn OwnerLog>>,
    /// Seal and flush all families in one step, so that after a crash all families have the same
    /// transactions. This is for an owner whose transactions depend on what the store has, such as
    /// the commands of a state machine: a replay computes the same from the same state. The store
    /// can then be read from its global persistence point on: [`crate::db::Replay::finish`] takes
    /// that point as the end of the log, and the owner applies the rest to the open store. Default
    /// `false`.
    pub atomic_flush: bool,
    /// Bound of the owner's log after the global persistence point, in bytes, 4 KiB to 1 PiB.
    /// Beyond the bound, the store flushes the families that hold the point back. Writers wait
    /// before the log reaches twice the bound. Default `None`: eight times
    /// [`super::Options::write_buffer_bytes`].
    ///
    /// A smaller bound means a smaller log and a faster recovery, and more small tables of families
    /// with few writes. [`crate::db::PassiveStats::early_flush_bytes`] is the price.
    pub max_pinned_log_bytes: Option<u64>,
    /// Bound of the time that a replay takes from the global persistence point on, 1 ms to a day.
    /// The store multiplies it by [`PassiveOptions::replay_bytes_per_second`], and uses the result
    /// as it uses `max_pinned_log_bytes`. Default `None`.
    pub max_replay_time: Option<Duration>,
    /// Bytes of its log that the owner replays in a second, 4 KiB to 1 TiB. A replay at this
    /// opening that took at least a tenth of a second replaces the figure by the measured one.
    /// Default 64 MiB.
    pub replay_bytes_per_second: u64,
}

impl Default for PassiveOptions {
    fn default() -> PassiveOptions {
        PassiveOptions {
            owner_log: None,
            atomic_flush: false,
            max_pinned_log_bytes: None,
            max_replay_time: None,
            replay_bytes_per_second: 64 << 20,
        }
    }
}

setters! { PassiveOptions {
    owner_log: Option<Arc<dyn OwnerLog>>,
    atomic_flush: bool,
    max_pinned_log_bytes: Option<u64>,
    max_replay_time: Option<Duration>,
    replay_bytes_per_second: u64,
} }

impl PassiveOptions {
    /// Checks that values are inside their documented ranges.
    pub(super) fn validate(&self) -> Result<()> {
        if let Some(bytes) = self.max_pinned_log_bytes {
            within("max_pinned_log_bytes", bytes, limits::PINNED_LOG_BYTES)?;
        }
        if let Some(time) = self.max_replay_time {
            let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            within("milliseconds of max_replay_time", ms, limits::REPLAY_MS)?;
        }
        within(
            "replay_bytes_per_second",
            self.replay_bytes_per_second,
            limits::REPLAY_RATE,
        )
    }
}
