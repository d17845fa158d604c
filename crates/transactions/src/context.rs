//! [`TransactionContext`]: what all transactions of a handle share.

use crate::counters::TransactionCounters;
use crate::lock_table::LockTable;
use crate::options::TransactionDbOptions;
use basalt_env::sync::atomic::AtomicU64;
use basalt_lsm::Db;

/// The store, the locks and the counters of a [`crate::TransactionDb`].
pub struct TransactionContext {
    pub db: Db,
    /// Number, in this process, of the store.
    pub store: u64,
    pub options: TransactionDbOptions,
    pub locks: LockTable,
    pub counters: TransactionCounters,
    /// Number of the next transaction.
    pub next_id: AtomicU64,
}
