//! The write path of a passive store: transactions in the order of the owner's log, straight into
//! memtables.

use super::by_family;
use crate::db::back_pressure::GroupSize;
use crate::db::engine::Engine;
use crate::db::log::GroupRoom;
use crate::db::log_position::{Logged, PassivePosition, check_seqs};
use crate::db::throttle::WaitMode;
use crate::db::write_path::Writer;
use crate::db::write_path::apply::insert_unlogged;
use basalt_fs::Result;
use basalt_kv::batch::WriteBatch;
use basalt_kv::key::SeqNo;
use basalt_records::RECORD_HEADER;
use smallvec::SmallVec;
use std::sync::Arc;

/// Number of items in a group from which the items are first sorted by family.
const MIN_GROUPED_ITEMS: u64 = if cfg!(feature = "schedules") { 4 } else { 16 };

/// A transaction of the owner's log.
pub(crate) struct LoggedTransaction {
    pub at: Logged,
    /// Number of items. It is that of the batch, unless the batch was dropped because all of its
    /// families have it.
    pub items: u64,
    pub batch: WriteBatch,
}

impl LoggedTransaction {
    pub fn new(at: Logged, batch: WriteBatch) -> LoggedTransaction {
        LoggedTransaction {
            at,
            items: batch.len() as u64,
            batch,
        }
    }

    /// Returns the bytes that the transaction takes in the owner's log.
    pub fn log_bytes(&self) -> u64 {
        let batch = RECORD_HEADER + self.batch.bytes();
        self.at.bytes.unwrap_or(batch as u64)
    }
}

impl Engine {
    /// Applies transactions. Returns the sequence number of the last item. If the function fails,
    /// no transaction is applied, and `group` is as it was.
    pub(crate) fn write_at(self: &Arc<Self>, group: &mut Vec<LoggedTransaction>) -> Result<SeqNo> {
        let mut writer = self.writes.lock();
        let last = self.position(&mut writer)?.last().tsn;
        for (before, t) in (last..).zip(group.iter()) {
            PassivePosition::check_follows(t.at.tsn, before)?;
        }
        self.apply_group(&mut writer, group)?;
        let last = self.position(&mut writer)?.last().last_seq;
        self.tree.publish(last);
        Ok(last)
    }

    /// Applies transactions, except for items that families have already, as a replay may find. The
    /// caller has checked that the transactions are the next ones. If the function fails, no
    /// transaction is applied, and `group` is as it was.
    pub(super) fn apply_group(
        self: &Arc<Self>,
        writer: &mut Writer,
        group: &mut Vec<LoggedTransaction>,
    ) -> Result<()> {
        self.ctx.check_open()?;
        self.health.check_jobs()?;
        let bytes: u64 = group.iter().map(|t| t.batch.bytes() as u64).sum();
        let entries: u64 = group.iter().map(|t| t.batch.len() as u64).sum();
        let items: u64 = group.iter().map(|t| t.items).sum();
        let log_bytes = group.iter().map(LoggedTransaction::log_bytes);
        let log_bytes = log_bytes.fold(0, u64::saturating_add);
        let first = self.position(writer)?.next_seq();
        check_seqs(first, items)?;
        self.keep_within_bound(writer, log_bytes)?;
        let mut active = None;
        if entries > 0 {
            let size = GroupSize {
                bytes,
                memory: bytes,
                entries,
                has_compressed: false,
            };
            let GroupRoom::Ready(ready) = self.make_room(writer, &size, WaitMode::Wait)? else {
                unreachable!("a thread that waits is not sent away");
            };
            ready.note_seq(first + items - 1);
            active = Some(ready);
        }
        let position = self.position(writer)?;
        let mut batches = Vec::new();
        let mut notes: SmallVec<[_; 1]> = SmallVec::with_capacity(group.len());
        let mut seq = first;
        for t in group.drain(..) {
            let log_bytes = t.log_bytes();
            let ids = t.batch.families().iter().map(|(_, id)| *id);
            let exists = |id: &u32| active.as_ref().is_some_and(|a| a.mems.contains_key(id));
            let filled = ids.filter(|id| !position.has(*id, t.at.tsn) && exists(id));
            let filled: SmallVec<[u32; 8]> = filled.collect();
            notes.push((t.at.tsn, t.items, log_bytes, filled));
            if !t.batch.is_empty() {
                batches.push((seq, t.batch));
            }
            seq += t.items;
        }
        if let Some(active) = active {
            let keeps = |id, seq| position.lacks(id, seq);
            if entries >= MIN_GROUPED_ITEMS && batches.len() > 1 {
                by_family::insert(&self.ctx.jobs, &self.ctx.env, &active, batches, &keeps);
            } else {
                for (seq, batch) in batches {
                    insert_unlogged(&active, batch, seq, &keeps);
                }
            }
            active.book_memory();
            self.ctx.counters.commit_groups.add(1);
            self.ctx.counters.user_bytes.add(bytes);
            self.background.watch_idle();
        }
        self.ctx.counters.commits.add(notes.len() as u64);
        for (tsn, items, log_bytes, filled) in notes {
            position.note_applied(tsn, items, log_bytes, filled.into_iter());
            for id in position.take_reached() {
                self.note_caught_up(id, position.log_end());
            }
        }
        self.note_applied(position.last().tsn, position.log_end());
        Ok(())
    }

    /// Seals the families that hold the persistence point back beyond its bound, and waits for
    /// flushes before the log behind the point is twice as long as the bound.
    fn keep_within_bound(self: &Arc<Self>, writer: &mut Writer, more: u64) -> Result<()> {
        let persistence = self.persistence()?;
        let bound = persistence.bound();
        if let Some(overdue) = self.position(writer)?.overdue(bound) {
            let memory = self.tree.active().memory_of(&overdue);
            let _ = self.wait_for_flush(WaitMode::Wait)?;
            self.seal_families(writer, &overdue)?;
            persistence.note_early_flush(memory);
        }
        let near = |pinned: u64| pinned.saturating_add(more) >= bound.saturating_mul(2);
        if near(persistence.pinned()) && !self.tree.view().sealed.is_empty() {
            let _ = self.wait_for_all_flushes(WaitMode::Wait)?;
        }
        Ok(())
    }
}
