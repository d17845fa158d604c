//! Transactions over the families of a store.
//!
//! A [`TransactionDb`] begins transactions on a [`Db`](basalt_lsm::Db). A [`Transaction`] reads and
//! writes families in levels and families in pages through one interface, and commits its writes as
//! one batch. It is optimistic or pessimistic ([`Concurrency`]):
//!
//! | | optimistic | pessimistic |
//! |---|---|---|
//! | reads as of | the begin | each call, or a snapshot if it has one |
//! | another transaction changes the key | the second commit fails | the call waits for the lock |
//! | errors that need a new transaction | `Conflict` | `Deadlock`, `Conflict` |
//!
//! No transaction reads what is not committed. The isolation of an optimistic transaction, and of a
//! pessimistic one with a snapshot, is that of snapshots: no lost updates, no read skew, the first
//! committer wins. A pessimistic transaction without a snapshot reads what is committed at each
//! call, so it loses no update only of keys that it reads with [`Transaction::get_for_update`].
//! Two transactions that each read what the other one writes (write skew) are found if they read
//! with `get_for_update`. A transaction that reads all keys so is serialisable. The order of
//! commits is then the serial order.
//!
//! On a passive store a transaction is prepared, its owner logs it, and then applies it with its
//! number in the owner's log ([`PreparedTransaction`]).
//!
//! The crate adds nothing to the store's format. A commit is one batch, as a rule of
//! [`Db::write_if`] with a precondition for each key. So a power cut leaves a transaction whole or
//! absent. Locks are in memory alone.
//! Reasons: `docs/decisions/0045-transactions.md`.
//!
//! | module | what it has |
//! |---|---|
//! | `options`, `counters` | settings; counts |
//! | `family_key` | keys of a family in maps |
//! | `own_writes` | the keys and the uncommitted writes of a transaction, savepoints |
//! | `wait_graph`, `lock_table` | which transactions wait for which; locks and their queues |
//! | `context` | what the transactions of a handle share |
//! | `iter`, `transaction`, `prepared`, `transaction_db` | what users call |
//!
//! A module depends only on modules above it in this table.
//!
//! [`Db::write_if`]: basalt_lsm::Db::write_if

#![deny(missing_docs)]
// Under a scheduler's locks the unit tests of this crate make no sense: they are tests of the
// ordinary build.
#![cfg(not(all(test, feature = "schedules")))]

mod context;
mod counters;
mod family_key;
mod iter;
mod lock_table;
mod options;
mod own_writes;
mod prepared;
mod transaction;
mod transaction_db;
mod wait_graph;

pub use counters::TransactionStats;
pub use iter::TransactionIter;
#[cfg(feature = "schedules")]
#[doc(hidden)]
pub use lock_table::LOCK_ORDER;
pub use options::{
    Concurrency, KeyCheck, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_KEYS, TransactionDbOptions,
    TransactionOptions,
};
pub use prepared::PreparedTransaction;
pub use transaction::Transaction;
pub use transaction_db::TransactionDb;
