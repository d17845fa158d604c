//! Seals of single families: those of a passive store fill and flush their memtables independently
//! of each other.

use super::engine::Engine;
use super::log_position::PassivePosition;
use super::memtable_set::MemtableSet;
use super::write_path::Writer;
use basalt_fs::{Error, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Divisor of the write buffer: when memtables are full, families are sealed until this part of the
/// buffer is. So a flush is worth its syncs, also with many families.
const SEALED_DIVISOR: u64 = 4;

impl Engine {
    /// Returns the position of a passive store in its owner's log.
    ///
    /// Errors: `InvalidArgument` if the store has a log of its own.
    pub(crate) fn position<'w>(&self, writer: &'w mut Writer) -> Result<&'w mut PassivePosition> {
        writer.passive.as_mut().ok_or_else(|| {
            Error::invalid(
                "the store is not passive: it has a log of its own, and takes no transaction numbers; use `Db::write`",
            )
        })
    }

    /// Seals the memtables of families of a passive store. An empty set lets the flush install
    /// flags alone.
    pub(crate) fn seal_families(
        self: &Arc<Self>,
        writer: &mut Writer,
        families: &BTreeSet<u32>,
    ) -> Result<()> {
        let together = self.flushes_atomically();
        let position = self.position(writer)?;
        self.tree.change_view(|state, view| {
            let all: BTreeSet<u32> = view.families.keys().copied().collect();
            let families = if together { &all } else { families };
            let flags = position.seal(families, view.families.keys().copied());
            self.tree.seal_families(state, view, families, flags);
        });
        self.background.schedule();
        Ok(())
    }

    /// Returns true if each seal is of all families: the store has a log, or its owner wants it so.
    pub(crate) fn flushes_atomically(&self) -> bool {
        self.ctx
            .options
            .log
            .passive()
            .is_none_or(|p| p.atomic_flush)
    }

    /// Returns the families whose memtables are to be sealed because the memory is full: the
    /// largest ones.
    pub(crate) fn largest_families(&self, active: &MemtableSet) -> BTreeSet<u32> {
        let mut sizes: Vec<(u64, u32)> = (active.mems.iter().filter(|(_, mem)| !mem.is_empty()))
            .map(|(id, mem)| (mem.memory() as u64, *id))
            .collect();
        sizes.sort_unstable();
        let enough = self.ctx.options.write_buffer_bytes / SEALED_DIVISOR;
        let mut sealed = 0;
        let mut families = BTreeSet::new();
        while sealed < enough
            && let Some((bytes, id)) = sizes.pop()
        {
            sealed += bytes;
            families.insert(id);
        }
        families
    }

    /// Returns true if a passive store has applied a transaction beyond the flag of a family: its
    /// owner would have to replay the transaction.
    pub(crate) fn is_behind(&self, writer: &Writer) -> bool {
        let Some(position) = &writer.passive else {
            return false;
        };
        let applied = position.last().tsn;
        let catalog = self.tree.catalog();
        let mut flags = catalog.families.values().map(|f| f.flush_flag);
        flags.any(|flag| flag.is_none_or(|flag| flag.tsn < applied))
    }
}
