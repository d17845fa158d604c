//! Picks blob files whose relocation scans have paid for. Scans read the values of such a file one
//! by one so often that rewriting them in key order would have cost no more, and would help
//! (decision 0023). The merge that does so is picked like any other, after all merges that are due
//! for other reasons.

use super::back_pressure::space_amp::BlobSpaceUse;
use super::engine::Engine;
use super::tree::TreeState;
use super::view::View;
use crate::compaction::{Plan, RelocationCandidates, RelocationSet};
use crate::version::BlobFile;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes whose move takes about as long as one more read among many that are in flight.
const BYTES_A_READ: u64 = 16 << 10;
/// Factor by which a relocation must reduce the reads of a scan.
const MIN_READ_SAVING: u64 = 3;
/// Part of the space for garbage, used by garbage collection, from which no value is relocated for
/// scans.
const MAX_GC_SHARE: f64 = 0.5;

/// Files and the bytes that may be moved.
#[derive(Default)]
pub(super) struct RelocatableFiles {
    files: Vec<RelocationCandidates>,
    names: BTreeSet<u64>,
    room: u64,
}

/// Returns false if scans have read a file too rarely to pay for moving all of it.
pub(super) fn may_be_relocatable(file: &BlobFile) -> bool {
    file.scans().0.saturating_mul(BYTES_A_READ) >= 2 * file.meta.size
}

impl RelocatableFiles {
    pub fn relocation_set(&self) -> RelocationSet<'_> {
        RelocationSet {
            files: &self.files,
            names: Some(&self.names),
            room: self.room,
        }
    }
}

impl Engine {
    /// Returns the files that scans have paid for, if there is space to relocate them. The caller
    /// holds `state`.
    pub(super) fn relocatable_by_scans(
        &self,
        state: &TreeState,
        view: &View,
        fill: &BlobSpaceUse,
    ) -> RelocatableFiles {
        let scans = |n: &u64| {
            let file = view.version.blobs.files.get(n);
            file.map_or((0, 0), |file| file.scans())
        };
        let catalog = &state.catalog();
        if !catalog.blobs.keys().any(|n| scans(n).0 > 0)
            || self.pressure.disk_full().is_refusing()
            || fill.urgency(self.ctx.options.max_space_amp) >= MAX_GC_SHARE
        {
            return RelocatableFiles::default();
        }
        let disk = self
            .pressure
            .disk_full()
            .bytes_beyond_reserve()
            .saturating_sub(fill.copying);
        let room = fill.max_relocation_output(&self.ctx.options).min(disk);
        // After the relocation, the values that a scan wants at once are in this many sorted parts,
        // each of which takes one read.
        let parts = (fill.live.bytes / room.max(1)).max(2);
        let paid = |number: &u64, live: u64| {
            let (reads, alike) = scans(number);
            reads > 0
                && reads.saturating_mul(BYTES_A_READ) >= 2 * live
                && alike / reads >= parts.saturating_mul(MIN_READ_SAVING)
        };
        let paid = self.idle_files(state, room, &paid);
        let due: u64 = paid.files.iter().map(|f| f.bytes).sum();
        match due > 0 && due >= room.min(fill.live.bytes) / 2 {
            true => paid,
            false => RelocatableFiles::default(),
        }
    }

    /// Returns all files whose values may be relocated at a caller's request, as far as the disk
    /// has space for both copies.
    pub(super) fn all_relocatable(
        &self,
        state: &TreeState,
        fill: &BlobSpaceUse,
    ) -> RelocatableFiles {
        let room = self
            .pressure
            .disk_full()
            .bytes_beyond_reserve()
            .saturating_sub(fill.copying);
        self.idle_files(state, room, &|_, _| true)
    }

    /// Returns the `wanted` files that no job uses. `wanted` receives a file's number and its live
    /// bytes.
    fn idle_files(
        &self,
        state: &TreeState,
        room: u64,
        wanted: &dyn Fn(&u64, u64) -> bool,
    ) -> RelocatableFiles {
        let (catalog, now) = (&state.catalog(), self.ctx.env.clock().now());
        let mut files = BTreeMap::new();
        for (number, blob) in &catalog.blobs {
            let alive = catalog.alive(blob);
            let may = state.blobs.may_collect(*number, now);
            if !may || alive.records == 0 || !wanted(number, alive.bytes) {
                continue;
            }
            let file = RelocationCandidates {
                number: *number,
                names: vec![*number],
                records: alive.records,
                bytes: alive.bytes,
                garbage: 1.0 - alive.bytes as f64 / blob.meta.size.max(1) as f64,
            };
            files.insert(*number, file);
        }
        if files.is_empty() {
            return RelocatableFiles::default();
        }
        for group in catalog.lineage.groups().values() {
            let targets: BTreeSet<u64> = (group.targets.values().flatten().map(|t| t.1)).collect();
            for to in targets {
                if let Some(file) = files.get_mut(&to) {
                    file.names.extend(&group.names);
                }
            }
        }
        let files: Vec<RelocationCandidates> = files.into_values().collect();
        RelocatableFiles {
            names: files.iter().flat_map(|f| f.names.iter().copied()).collect(),
            files,
            room,
        }
    }

    /// Begins a relocation: garbage collection skips the files that the plan moves.
    pub(super) fn begin_relocation(&self, state: &mut TreeState, plan: &Plan) {
        if !plan.relocated_files.is_empty() {
            state.blobs.relocating.extend(&plan.relocated_files);
            self.pressure
                .update_pressure(state.catalog(), &state.blobs, &self.tree.view());
        }
    }

    /// Ends a relocation, whether it succeeded or failed. If it failed, scans have to pay for it
    /// again.
    pub(super) fn end_relocation(&self, state: &mut TreeState, plan: &Plan) {
        for number in &plan.relocated_files {
            state.blobs.relocating.remove(number);
            if let Some(file) = self.tree.view().version.blobs.files.get(number) {
                file.forget_scans();
            }
        }
    }
}
