//! [`PreparedTransaction`]: a transaction that holds its locks and is checked, so that its writes
//! can go to another log before they go to the store.

use crate::transaction::Transaction;
use basalt_fs::{ErrorKind, Result};
use basalt_kv::WriteBatch;
use basalt_kv::key::SeqNo;
use basalt_lsm::db::Logged;

/// A transaction that can no longer conflict. [`Transaction::prepare`] makes it, for the owner of
/// a passive store: the owner writes the transaction to its log, which is the commit, and then
/// applies it to the store. The transaction keeps its locks until it is applied or dropped.
///
/// The drop of a prepared transaction rolls it back. An owner that has logged a transaction and
/// cannot apply it must apply no later one: it applies this one again, or closes the store and
/// replays its log.
pub struct PreparedTransaction {
    transaction: Transaction,
    batch: WriteBatch,
}

impl PreparedTransaction {
    /// Returns the writes of the transaction.
    pub fn batch(&self) -> &WriteBatch {
        &self.batch
    }

    /// Applies the transaction to a passive store, as transaction `at` of its owner's log, and
    /// releases its locks. Returns the sequence number of its last write.
    ///
    /// Errors: those of [`basalt_lsm::Db::write_at`]. The transaction then keeps its writes and its
    /// locks, and the owner applies it again, because its log has it.
    pub fn commit_at(&mut self, at: impl Into<Logged>) -> Result<SeqNo> {
        let mut group = vec![(at.into(), std::mem::take(&mut self.batch))];
        let applied = self.transaction.db().write_group_at(&mut group);
        match applied {
            Ok(_) => self.transaction.end_applied(),
            Err(_) => self.batch = group.pop().map(|(_, batch)| batch).unwrap_or_default(),
        }
        applied
    }

    /// Takes the writes out, to be applied with those of other transactions by
    /// [`basalt_lsm::Db::write_group_at`]. The owner then calls [`PreparedTransaction::applied`].
    pub fn take_batch(&mut self) -> WriteBatch {
        std::mem::take(&mut self.batch)
    }

    /// Notes that the writes that were taken out are in the store, and releases the locks.
    pub fn applied(mut self) {
        self.transaction.end_applied();
    }
}

impl Transaction {
    /// Ends the part of the transaction in which it may conflict: checks all keys as a commit does,
    /// and keeps their locks. It is for the owner of a passive store, which commits in its own log.
    ///
    /// Errors: `Conflict`, `Busy` and `Deadlock` as by [`Transaction::commit`], and those of a
    /// read. The transaction is then rolled back.
    pub fn prepare(mut self) -> Result<PreparedTransaction> {
        match self.checked_batch() {
            Ok(batch) => Ok(PreparedTransaction {
                transaction: self,
                batch,
            }),
            Err(e) if e.kind() == ErrorKind::Conflict => {
                Err(e.context("the transaction is rolled back, begin a new one"))
            }
            Err(e) => Err(e),
        }
    }
}
