//! Which blob files scans have paid for: their values were read one by one so often that writing them again in key order would have been as
//! cheap, and that would help (decision 0023). The merge that does it is chosen as any other, after all that is due for other reasons.

use super::back_pressure::space_amp::Fill;
use super::engine::Engine;
use super::tree::TreeState;
use super::view::View;
use crate::compaction::{Plan, RelocationCandidates, RelocationSet};
use crate::version::BlobFile;
use std::collections::{BTreeMap, BTreeSet};

/// One more read among many that are in flight takes about as long as moving so many bytes.
const BYTES_A_READ: u64 = 16 << 10;
/// Reads had better become so many times fewer by it.
const BETTER: u64 = 3;
/// Nothing is moved for scans when collections use so much of the room for garbage.
const BUSY: f64 = 0.5;

/// Files and the bytes that may be moved.
#[derive(Default)]
pub(super) struct Paid {
    files: Vec<RelocationCandidates>,
    names: BTreeSet<u64>,
    room: u64,
}

/// False for a file that scans have not read as often as would pay for moving all of it.
pub(super) fn may_be_relocatable(file: &BlobFile) -> bool {
    file.scans().0.saturating_mul(BYTES_A_READ) >= 2 * file.meta.size
}

impl Paid {
    pub fn relocation_set(&self) -> RelocationSet<'_> {
        RelocationSet {
            files: &self.files,
            names: Some(&self.names),
            room: self.room,
        }
    }
}

impl Engine {
    /// What scans have paid for, if there is room for it. The caller holds `state`.
    pub(super) fn relocatable_by_scans(&self, state: &TreeState, view: &View, fill: &Fill) -> Paid {
        let scans = |n: &u64| {
            let file = view.version.blobs.files.get(n);
            file.map_or((0, 0), |file| file.scans())
        };
        let catalog = &state.catalog();
        if !catalog.blobs.keys().any(|n| scans(n).0 > 0)
            || self.pressure.disk_full().is_refusing()
            || fill.urgency(self.ctx.options.max_space_amp) >= BUSY
        {
            return Paid::default();
        }
        let disk = self
            .pressure
            .disk_full()
            .beyond_reserve()
            .saturating_sub(fill.copying);
        let room = fill.most_copied(&self.ctx.options).min(disk);
        // Afterwards what a scan asks for at once is spread over so many sorted parts, each of which is one read.
        let parts = (fill.live.bytes / room.max(1)).max(2);
        let paid = |number: &u64, live: u64| {
            let (reads, alike) = scans(number);
            reads > 0
                && reads.saturating_mul(BYTES_A_READ) >= 2 * live
                && alike / reads >= parts.saturating_mul(BETTER)
        };
        let paid = self.scattered(state, room, &paid);
        let due: u64 = paid.files.iter().map(|f| f.bytes).sum();
        match due > 0 && due >= room.min(fill.live.bytes) / 2 {
            true => paid,
            false => Paid::default(),
        }
    }

    /// All files whose values may be moved, for somebody who asks for it, as far as the disk has room for both.
    pub(super) fn all_relocatable(&self, state: &TreeState, fill: &Fill) -> Paid {
        let room = self
            .pressure
            .disk_full()
            .beyond_reserve()
            .saturating_sub(fill.copying);
        self.scattered(state, room, &|_, _| true)
    }

    /// Files that nobody works on and that are wanted, by number and live bytes.
    fn scattered(&self, state: &TreeState, room: u64, wanted: &dyn Fn(&u64, u64) -> bool) -> Paid {
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
            return Paid::default();
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
        Paid {
            names: files.iter().flat_map(|f| f.names.iter().copied()).collect(),
            files,
            room,
        }
    }

    /// A plan begins: collections leave alone what it moves.
    pub(super) fn begin_relocation(&self, state: &mut TreeState, plan: &Plan) {
        if !plan.relocated_files.is_empty() {
            state.blobs.gathering.extend(&plan.relocated_files);
            self.pressure
                .update_pressure(state.catalog(), &state.blobs, &self.tree.view());
        }
    }

    /// It has ended, whatever came of it. Where it failed, scans have to pay anew.
    pub(super) fn end_relocation(&self, state: &mut TreeState, plan: &Plan) {
        for number in &plan.relocated_files {
            state.blobs.gathering.remove(number);
            if let Some(file) = self.tree.view().version.blobs.files.get(number) {
                file.forget_scans();
            }
        }
    }
}
