//! The calls of a passive [`Db`]: transactions are applied, and persistence points are asked for or
//! waited for.

use super::apply_at::LoggedTransaction;
use crate::db::engine::Engine;
use crate::db::ingest::{IngestedAt, Prepared};
use crate::db::log_position::Logged;
use crate::db::persistence::PersistencePoints;
use crate::db::store::Db;
use crate::version::Tsn;
use basalt_fs::Result;
use basalt_kv::batch::WriteBatch;
use basalt_kv::key::SeqNo;
use std::sync::Arc;
use std::time::Duration;

/// Waits for persistence points. See [`crate::Db::subscribe`].
pub struct PersistenceWatch {
    engine: Arc<Engine>,
    seen: Tsn,
}

impl PersistenceWatch {
    /// Returns a watch that has seen the global point `seen`.
    pub(crate) fn new(engine: Arc<Engine>, seen: Tsn) -> PersistenceWatch {
        PersistenceWatch { engine, seen }
    }

    /// Waits until the global persistence point is beyond the one that this watch has last
    /// returned, at most for `timeout`. `None`: the time is over.
    ///
    /// Errors: `Closed` if the store is closed.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<PersistencePoints>> {
        let deadline = self.engine.ctx.env.clock().now().saturating_add(timeout);
        let is_new = || self.engine.global_point() > self.seen;
        let jobs = self.engine.ctx.env.jobs();
        jobs.wait_until(Some(deadline), &mut || {
            is_new() || self.engine.ctx.is_closing()
        });
        if !is_new() {
            return self.engine.ctx.check_open().map(|()| None);
        }
        let points = self.engine.persistence_points()?;
        self.seen = points.global;
        Ok(Some(points))
    }
}

impl Db {
    /// Applies a transaction of the owner's log to a passive store. Returns the sequence number of
    /// its last item. Readers see all of the transaction, or nothing of it.
    ///
    /// The owner has written the transaction to its log, and calls this in the order of the log:
    /// each transaction once, with numbers that rise by one. A transaction without items has an
    /// empty batch, and has its number, too. The transaction becomes durable in the store with
    /// later flushes, see [`Db::persistence_points`].
    ///
    /// Errors: `InvalidArgument` if the transaction is not the next one, the store has a log, or a
    /// family is of another store; `NotFound` for a dropped family; those of a flush, such as
    /// `NoSpace`, if memtables are full. After any error the transaction is not applied. The owner
    /// applies it again, or closes the store and replays its log later. No later transaction is
    /// taken before.
    pub fn write_at(&self, at: impl Into<Logged>, batch: WriteBatch) -> Result<SeqNo> {
        self.engine().ctx.check_writable()?;
        self.check_families(&batch)?;
        let mut one = vec![LoggedTransaction::new(at.into(), batch)];
        self.engine().write_at(&mut one)
    }

    /// Applies transactions that stand one behind the other in the owner's log, as
    /// [`Db::write_at`] does. It costs less than as many calls, and is for an owner that commits in
    /// groups. Readers see all transactions of the call, or none.
    ///
    /// Errors: those of [`Db::write_at`]. After any error no transaction of the call is applied,
    /// and `group` is as it was, to be applied again. After success it is empty.
    pub fn write_group_at(&self, group: &mut Vec<(Logged, WriteBatch)>) -> Result<SeqNo> {
        self.engine().ctx.check_writable()?;
        (group.iter()).try_for_each(|(_, batch)| self.check_families(batch))?;
        let transactions = group.drain(..);
        let transactions = transactions.map(|(at, batch)| LoggedTransaction::new(at, batch));
        let mut transactions: Vec<LoggedTransaction> = transactions.collect();
        let written = self.engine().write_at(&mut transactions);
        group.extend(transactions.into_iter().map(|t| (t.at, t.batch)));
        written
    }

    /// Adds prepared tables to a passive store, as transaction `at` of the owner's log. The call is
    /// like [`Db::ingest`]. It flushes the memtables of the tables' families, because these are
    /// persisted up to this transaction when it returns. The transaction counts as one item.
    ///
    /// Errors: those of [`Db::ingest`] and [`Db::write_at`].
    pub fn ingest_at(&self, at: impl Into<Logged>, prepared: &[Prepared]) -> Result<SeqNo> {
        self.engine().ctx.check_writable()?;
        let at = IngestedAt::Next(at.into());
        self.engine().ingest(prepared, Some(at))
    }

    /// Adds prepared tables to a passive store, and declares that the store has everything up to
    /// transaction `at` of the owner's log. It is for an owner that gets the state of another
    /// replica instead of a part of the log. `at` is any transaction that the store does not have
    /// yet. Before the call, the owner drops the families that the state does not have. The tables
    /// replace or delete every key of the other families. The tables, and `at` as the persistence
    /// point of all families, are durable when the call returns. The next transaction is `at` plus
    /// one.
    ///
    /// Errors: those of [`Db::ingest_at`]; `InvalidArgument` if the store has transaction `at`.
    pub fn rebase(&self, at: impl Into<Logged>, prepared: &[Prepared]) -> Result<SeqNo> {
        self.engine().ctx.check_writable()?;
        let at = IngestedAt::Later(at.into());
        self.engine().ingest(prepared, Some(at))
    }

    /// Returns up to where a passive store is persisted: up to where its owner may trim its log.
    ///
    /// Errors: `InvalidArgument` if the store has a log of its own.
    pub fn persistence_points(&self) -> Result<PersistencePoints> {
        self.engine().persistence_points()
    }

    /// Returns a watch that waits for the next global persistence point of a passive store, for a
    /// thread that trims the owner's log.
    ///
    /// Errors: `InvalidArgument` if the store has a log of its own.
    pub fn subscribe(&self) -> Result<PersistenceWatch> {
        let points = self.engine().persistence_points()?;
        Ok(PersistenceWatch::new(self.engine().clone(), points.global))
    }
}
