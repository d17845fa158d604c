//! [`TransactionDb`]: begins transactions on a store.

use crate::context::TransactionContext;
use crate::counters::{TransactionCounters, TransactionStats};
use crate::lock_table::LockTable;
use crate::options::{TransactionDbOptions, TransactionOptions};
use crate::transaction::Transaction;
use basalt_env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use basalt_fs::{Error, ErrorKind, Result};
use basalt_lsm::{Db, WriteOptions};
use std::sync::Arc;

/// A store with transactions. A clone is cheap and means the same handle, with the same locks. The
/// handle and its transactions keep the store open, as clones of the [`Db`] do.
///
/// Transactions of two handles that were made of one store do not see each other's locks. With
/// [`TransactionDbOptions::check_unlocked_writes`], the default, a commit still ends with
/// `Conflict` if another handle or a plain write of the [`Db`] has changed a key. Without it, such
/// a change may be overwritten unseen.
#[derive(Clone)]
pub struct TransactionDb {
    context: Arc<TransactionContext>,
}

impl TransactionDb {
    /// Returns a store with transactions.
    ///
    /// Errors: `InvalidArgument` for an option outside its range.
    pub fn new(db: &Db, options: TransactionDbOptions) -> Result<TransactionDb> {
        options.validate()?;
        let context = TransactionContext {
            db: db.clone(),
            store: db.default_family().store(),
            locks: LockTable::new(db.env().clock().clone(), options.max_locks),
            options,
            counters: TransactionCounters::default(),
            next_id: AtomicU64::new(1),
        };
        Ok(TransactionDb {
            context: Arc::new(context),
        })
    }

    /// Returns the store.
    pub fn db(&self) -> &Db {
        &self.context.db
    }

    /// Begins a transaction. An optimistic one, or one with
    /// [`TransactionOptions::snapshot`], takes a snapshot.
    ///
    /// Errors: `InvalidArgument` for an option outside its range.
    pub fn begin(&self, options: &TransactionOptions) -> Result<Transaction> {
        options.validate()?;
        let context = self.context.clone();
        let id = context.next_id.fetch_add(1, Relaxed);
        context.counters.begun.add(1);
        Ok(Transaction::new(context, id, options))
    }

    /// Runs a function in a transaction and commits it. If the commit or a call of the function
    /// ends with `Conflict` or `Deadlock`, the transaction is rolled back, and the function runs
    /// again in a new one. It runs at most `attempts` times in all. So the function must have no
    /// effect but that on its transaction. Any other error of the function rolls the transaction
    /// back and is returned.
    ///
    /// If transactions conflict at a key, one of them usually commits. A long transaction may lose
    /// against short ones at each attempt. Four flushes during an attempt also end it, if it has
    /// keys of a family in pages.
    ///
    /// Errors: that of the last attempt; `InvalidArgument` for no attempts.
    pub fn with_retry<T>(
        &self,
        options: &TransactionOptions,
        write_options: &WriteOptions,
        attempts: u32,
        mut run: impl FnMut(&mut Transaction) -> Result<T>,
    ) -> Result<T> {
        let mut last = Error::invalid("a transaction with 0 attempts never runs: allow at least 1");
        for _ in 0..attempts {
            let mut transaction = self.begin(options)?;
            let ran = run(&mut transaction).and_then(|value| {
                transaction.commit(write_options)?;
                Ok(value)
            });
            match ran {
                Err(e) if matches!(e.kind(), ErrorKind::Conflict | ErrorKind::Deadlock) => last = e,
                ended => return ended,
            }
        }
        match attempts {
            0 => Err(last),
            _ => Err(last.context(format!("after {attempts} attempts"))),
        }
    }

    /// Returns the counts of this handle's transactions.
    pub fn stats(&self) -> TransactionStats {
        let locks = self.context.locks.len() as u64;
        self.context.counters.stats(locks)
    }
}
