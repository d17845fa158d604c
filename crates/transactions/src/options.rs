//! Settings of a [`crate::TransactionDb`] and of a transaction.

use basalt_fs::{Error, Result};
use basalt_lsm::db::MAX_PRECONDITIONS;
use std::time::Duration;

/// Most keys that one transaction may write, read for update or lock: the limit of
/// [`MAX_PRECONDITIONS`], because the commit checks each of them.
pub const MAX_TRANSACTION_KEYS: usize = MAX_PRECONDITIONS;

/// Largest value of [`TransactionOptions::max_write_bytes`].
pub const MAX_TRANSACTION_BYTES: u64 = 1 << 30;

/// Settings of a [`crate::TransactionDb`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TransactionDbOptions {
    /// Longest wait for a lock, for transactions that set no time of their own. Default 1 s.
    /// `Duration::ZERO` never waits, `Duration::MAX` waits without a limit.
    pub lock_timeout: Duration,
    /// Most locks that all transactions of the handle hold or wait for. At least 1. Default 1 Mi.
    /// Each takes about 200 bytes and its key.
    pub max_locks: usize,
    /// Let commits detect writes that take no lock: plain writes of the `Db`, and transactions of
    /// other handles. Default `true`: a commit checks its keys and writes in one step. Then a
    /// pessimistic transaction ends with `Conflict` if a key was changed since it was locked.
    ///
    /// With `false`, commits share commit groups, and so syncs, with other writes. A pessimistic
    /// transaction without a snapshot never ends with `Conflict`, and an optimistic one locks its
    /// keys while it commits. Set it if all writes of the keys that transactions read for update or
    /// write are transactions of this one handle; other writes may be overwritten unseen.
    pub check_unlocked_writes: bool,
}

impl Default for TransactionDbOptions {
    fn default() -> TransactionDbOptions {
        TransactionDbOptions {
            lock_timeout: Duration::from_secs(1),
            max_locks: 1 << 20,
            check_unlocked_writes: true,
        }
    }
}

impl TransactionDbOptions {
    /// Sets [`TransactionDbOptions::lock_timeout`].
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Sets [`TransactionDbOptions::max_locks`].
    #[must_use]
    pub fn max_locks(mut self, locks: usize) -> Self {
        self.max_locks = locks;
        self
    }

    /// Sets [`TransactionDbOptions::check_unlocked_writes`].
    #[must_use]
    pub fn check_unlocked_writes(mut self, yes: bool) -> Self {
        self.check_unlocked_writes = yes;
        self
    }

    /// Checks that values are inside their documented ranges.
    ///
    /// Errors: `InvalidArgument` with the option, its value and its range.
    pub fn validate(&self) -> Result<()> {
        match self.max_locks {
            0 => Err(Error::invalid(
                "max_locks is 0: a transaction needs a lock for each key, set at least 1",
            )),
            _ => Ok(()),
        }
    }
}

/// How a transaction meets transactions that write the same keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Concurrency {
    /// No call but the commit waits for another transaction, and the commit only if
    /// [`TransactionDbOptions::check_unlocked_writes`] is `false`. The commit fails with `Conflict`
    /// if a key that the transaction has written, or read for update, was changed since its
    /// snapshot. For keys that few transactions write at the same time.
    #[default]
    Optimistic,
    /// The transaction locks each key that it writes or reads for update, until it ends. Other
    /// pessimistic transactions wait for the lock. For keys that many transactions write.
    Pessimistic,
}

/// What a commit does about a key of [`crate::Transaction::check_key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyCheck {
    /// The key is written: it is locked exclusively, and must be unchanged since the snapshot.
    Write,
    /// The key was read: it is locked in common with other readers, and must be unchanged since the
    /// snapshot.
    Read,
    /// The key is locked in common with other readers. The owner checks what it has to check once
    /// the transaction is prepared.
    Lock,
}

/// Settings of a transaction.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TransactionOptions {
    /// How the transaction meets others. Default [`Concurrency::Optimistic`].
    pub concurrency: Concurrency,
    /// Take a snapshot at the begin, as of which the transaction reads. An optimistic transaction
    /// always does. A pessimistic one without a snapshot reads what is committed at each call; one
    /// with a snapshot fails with `Conflict` when it locks a key that was changed since. Default
    /// `false`.
    pub snapshot: bool,
    /// Longest wait for a lock. `None`, the default, takes [`TransactionDbOptions::lock_timeout`].
    pub lock_timeout: Option<Duration>,
    /// Most bytes of the transaction's own writes and locked keys, about 160 bytes for each key
    /// included. 1 to [`MAX_TRANSACTION_BYTES`]. Default 64 MiB. The bytes are in the memory ledger
    /// of the environment.
    pub max_write_bytes: u64,
}

impl Default for TransactionOptions {
    fn default() -> TransactionOptions {
        TransactionOptions {
            concurrency: Concurrency::Optimistic,
            snapshot: false,
            lock_timeout: None,
            max_write_bytes: 64 << 20,
        }
    }
}

impl TransactionOptions {
    /// Returns the settings of an optimistic transaction.
    pub fn optimistic() -> TransactionOptions {
        TransactionOptions::default()
    }

    /// Returns the settings of a pessimistic transaction.
    pub fn pessimistic() -> TransactionOptions {
        TransactionOptions {
            concurrency: Concurrency::Pessimistic,
            ..TransactionOptions::default()
        }
    }

    /// Sets [`TransactionOptions::concurrency`].
    #[must_use]
    pub fn concurrency(mut self, concurrency: Concurrency) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets [`TransactionOptions::snapshot`].
    #[must_use]
    pub fn snapshot(mut self, yes: bool) -> Self {
        self.snapshot = yes;
        self
    }

    /// Sets [`TransactionOptions::lock_timeout`].
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Sets [`TransactionOptions::max_write_bytes`].
    #[must_use]
    pub fn max_write_bytes(mut self, bytes: u64) -> Self {
        self.max_write_bytes = bytes;
        self
    }

    /// Checks that values are inside their documented ranges.
    ///
    /// Errors: `InvalidArgument` with the option, its value and its range.
    pub fn validate(&self) -> Result<()> {
        match self.max_write_bytes {
            1..=MAX_TRANSACTION_BYTES => Ok(()),
            other => Err(Error::invalid(format!(
                "max_write_bytes is {other}: set 1 to {MAX_TRANSACTION_BYTES} bytes"
            ))),
        }
    }
}
