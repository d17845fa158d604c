//! The write path of a passive store: one transaction at a time, in the order of the owner's log,
//! straight into memtables.

use crate::db::back_pressure::GroupSize;
use crate::db::engine::Engine;
use crate::db::log::GroupRoom;
use crate::db::log_position::Logged;
use crate::db::throttle::WaitMode;
use crate::db::write_path::Writer;
use crate::db::write_path::apply::insert_unlogged;
use crate::version::FlushFlag;
use basalt_fs::{Error, Result};
use basalt_kv::batch::WriteBatch;
use basalt_kv::key::SeqNo;
use basalt_records::RECORD_HEADER;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Engine {
    /// Applies a transaction. Returns its last sequence number.
    pub(crate) fn write_at(self: &Arc<Self>, at: Logged, batch: WriteBatch) -> Result<SeqNo> {
        let mut writer = self.writes.lock();
        self.position(&mut writer)?.check_next(at.tsn)?;
        self.apply_at(&mut writer, at, batch)?;
        let last = self.position(&mut writer)?.last().last_seq;
        self.tree.publish(last);
        Ok(last)
    }

    /// Applies a transaction, except for items that families have already, as a replay may find.
    /// The caller has checked that the transaction is the next one. Returns the number of items
    /// that were left out.
    pub(super) fn apply_at(
        self: &Arc<Self>,
        writer: &mut Writer,
        at: Logged,
        batch: WriteBatch,
    ) -> Result<u64> {
        let items = batch.len() as u64;
        let log_bytes = at.bytes.unwrap_or((RECORD_HEADER + batch.bytes()) as u64);
        let ids: SmallVec<[u32; 8]> = batch.families().iter().map(|(_, id)| *id).collect();
        let position = self.position(writer)?;
        let has = |ahead: &BTreeMap<u32, FlushFlag>, id: u32| {
            ahead.get(&id).is_some_and(|flag| flag.tsn >= at.tsn)
        };
        let is_new = ids.iter().any(|id| !has(position.ahead(), *id));
        if items == 0 || !is_new {
            self.ctx.check_open()?;
            self.health.check_jobs()?;
            self.keep_within_bound(writer, log_bytes, WaitMode::Wait)?;
            let position = self.position(writer)?;
            position.note_applied(at.tsn, items, log_bytes, std::iter::empty());
            let log_end = position.log_end();
            self.note_applied(at.tsn, log_end);
            return Ok(items);
        }
        let bytes = batch.bytes() as u64;
        let size = GroupSize {
            bytes,
            memory: bytes,
            entries: items,
            has_compressed: false,
        };
        self.keep_within_bound(writer, log_bytes, WaitMode::Wait)?;
        let GroupRoom::Ready(active) = self.make_room(writer, &size, WaitMode::Wait)? else {
            unreachable!("a thread that waits is not sent away");
        };
        let position = self.position(writer)?;
        let first = position.next_seq();
        check_seqs(first, items)?;
        active.note_seq(first + items - 1);
        let ahead = position.ahead();
        let left_out = insert_unlogged(&active, batch, first, &|id, seq| {
            ahead.get(&id).is_none_or(|flag| seq > flag.last_seq)
        });
        let filled = ids.iter().copied();
        let filled = filled.filter(|id| !has(ahead, *id) && active.mems.contains_key(id));
        let filled: SmallVec<[u32; 8]> = filled.collect();
        position.note_applied(at.tsn, items, log_bytes, filled.into_iter());
        let log_end = position.log_end();
        active.book_memory();
        self.note_applied(at.tsn, log_end);
        self.ctx.counters.commit_groups.add(1);
        self.ctx.counters.commits.add(1);
        self.ctx.counters.user_bytes.add(bytes);
        self.background.watch_idle();
        Ok(left_out)
    }

    /// Seals the families that hold the persistence point back beyond its bound, and waits for
    /// flushes before the log behind the point is twice as long as the bound.
    fn keep_within_bound(
        self: &Arc<Self>,
        writer: &mut Writer,
        more: u64,
        wait_mode: WaitMode,
    ) -> Result<()> {
        let persistence = self.persistence()?;
        let bound = persistence.bound();
        if let Some(overdue) = self.position(writer)?.overdue(bound) {
            let memory = self.tree.active().memory_of(&overdue);
            let _ = self.wait_for_flush(wait_mode)?;
            self.seal_families(writer, &overdue)?;
            persistence.note_early_flush(memory);
        }
        let near = |pinned: u64| pinned.saturating_add(more) >= bound.saturating_mul(2);
        if near(persistence.pinned()) && !self.tree.view().sealed.is_empty() {
            let _ = self.wait_for_all_flushes(wait_mode)?;
        }
        Ok(())
    }
}

/// Errors: `Unsupported` if the store has not as many sequence numbers left.
fn check_seqs(first: SeqNo, items: u64) -> Result<()> {
    match first.checked_add(items) {
        Some(next) if next <= basalt_kv::key::SEQ_LIMIT => Ok(()),
        _ => Err(Error::unsupported(format!(
            "the next sequence number is {first}, and {items} more reach the limit: copy the data into a new store"
        ))
        .with_reach(basalt_fs::Reach::Store)),
    }
}
