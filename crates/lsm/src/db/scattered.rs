//! Which blob files scans have paid for: their values were read one by one so often that writing them again in key order would have been as
//! cheap, and that would help (decision 0023). The merge that does it is chosen as any other, after all that is due for other reasons.

use super::engine::{Engine, State};
use super::generation::View;
use super::space::Fill;
use crate::compaction::{Plan, Scatter, Scattered};
use std::collections::{BTreeMap, BTreeSet};

/// One more read among many that are in flight takes about as long as moving so many bytes.
const BYTES_A_READ: u64 = 16 << 10;
/// A long scan asks for about so many bytes of values at once.
const SCANNED_TOGETHER: u64 = 1 << 20;
/// Reads had better become so many times longer by it.
const BETTER: u64 = 2;
/// Nothing is moved for scans when collections use so much of the room for garbage.
const BUSY: f64 = 0.5;

/// Files and the bytes that may be moved.
#[derive(Default)]
pub(super) struct Paid {
    pub files: Vec<Scattered>,
    pub room: u64,
}

impl Paid {
    pub fn scatter(&self) -> Scatter<'_> {
        Scatter {
            files: &self.files,
            room: self.room,
        }
    }
}

impl Engine {
    /// What scans have paid for, if there is room for it. The caller holds `state`.
    pub(super) fn paid_by_scans(&self, state: &State, view: &View, fill: &Fill) -> Paid {
        let scans = |n: &u64| {
            let file = view.version.blobs.files.get(n);
            file.map_or((0, 0), |file| file.scans())
        };
        let catalog = &state.catalog;
        if !catalog.blobs.keys().any(|n| scans(n).0 > 0)
            || self.full.is_refusing()
            || fill.urgency(self.options.max_space_amp) >= BUSY
        {
            return Paid::default();
        }
        let room = fill.most_copied(&self.options);
        let all = fill.live.bytes.max(1);
        // Afterwards what a scan asks for at once is spread over so many files instead.
        let hoped = (SCANNED_TOGETHER as f64 * (room as f64 / all as f64).min(1.0)) as u64;
        let paid = |number: &u64, live: u64| {
            let (reads, bytes) = scans(number);
            let cost = 2 * live;
            reads > 0
                && reads.saturating_mul(BYTES_A_READ) >= cost
                && bytes / reads * BETTER <= hoped
        };
        let files = self.scattered(state, &paid);
        let due: u64 = files.iter().map(|f| f.bytes).sum();
        match due >= room.min(all) / 2 {
            true => Paid { files, room },
            false => Paid::default(),
        }
    }

    /// All files whose values may be moved, for somebody who asks for it, as far as the disk has room for both.
    pub(super) fn all_scattered(&self, state: &State) -> Paid {
        Paid {
            files: self.scattered(state, &|_, _| true),
            room: self.full.spare(),
        }
    }

    /// Files that nobody works on and that are wanted, by number and live bytes.
    fn scattered(&self, state: &State, wanted: &dyn Fn(&u64, u64) -> bool) -> Vec<Scattered> {
        let (catalog, now) = (&state.catalog, self.env.clock().now());
        let mut names: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for group in catalog.lineage.groups().values() {
            for (_, to) in group.targets.values().flatten() {
                names.entry(*to).or_default().extend(&group.names);
            }
        }
        let mut files = Vec::new();
        for (number, blob) in &catalog.blobs {
            let alive = catalog.alive(blob);
            let may = state.blobs.may_collect(*number, now);
            if !may || alive.records == 0 || !wanted(number, alive.bytes) {
                continue;
            }
            let mut stand = names.remove(number).unwrap_or_default();
            stand.insert(*number);
            files.push(Scattered {
                number: *number,
                names: stand.into_iter().collect(),
                records: alive.records,
                bytes: alive.bytes,
                garbage: 1.0 - alive.bytes as f64 / blob.meta.size.max(1) as f64,
            });
        }
        files
    }

    /// A plan begins: collections leave alone what it moves.
    pub(super) fn begin_gathering(&self, state: &mut State, plan: &Plan) {
        state.blobs.gathering.extend(&plan.gathered);
    }

    /// It has ended, whatever came of it. Where it failed, scans have to pay anew.
    pub(super) fn end_gathering(&self, state: &mut State, plan: &Plan) {
        for number in &plan.gathered {
            state.blobs.gathering.remove(number);
            if let Some(file) = self.view().version.blobs.files.get(number) {
                file.forget_scans();
            }
        }
    }
}
