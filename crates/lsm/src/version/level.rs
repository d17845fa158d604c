//! The tables of one level in their order, with sums that each change maintains.
//!
//! Every change of the tree and every commit decision asks for the bytes of levels. A walk over all
//! tables would cost a store of 100,000 tables milliseconds each time. So a level updates its sums
//! when a table enters or leaves.

use super::TableFile;
use basalt_kv::key::Cmp;
use std::cmp::Ordering;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;

/// Sums over the tables of a level. They are exact once a manifest has passed
/// [`super::catalog::Catalog::check_totals`]; before that, impossible numbers in a damaged manifest
/// wrap around.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LevelTotals {
    /// Bytes of the tables' files.
    pub bytes: u64,
    /// Tombstones of single keys.
    pub deletes: u64,
    /// Tombstones of key ranges.
    pub range_deletes: u64,
    /// References to values in blob files.
    pub references: u64,
}

impl LevelTotals {
    fn of(t: &TableFile) -> LevelTotals {
        LevelTotals {
            bytes: t.meta.size,
            deletes: t.meta.deletes,
            range_deletes: t.meta.range_deletes,
            references: references(t),
        }
    }

    fn each(self, other: LevelTotals, change: fn(u64, u64) -> u64) -> LevelTotals {
        LevelTotals {
            bytes: change(self.bytes, other.bytes),
            deletes: change(self.deletes, other.deletes),
            range_deletes: change(self.range_deletes, other.range_deletes),
            references: change(self.references, other.references),
        }
    }
}

/// Returns the number of references from a table to values in blob files.
pub fn references(t: &TableFile) -> u64 {
    let counts = t.meta.references.iter().map(|(_, n)| *n);
    counts.fold(0, u64::saturating_add)
}

/// The tables of one level, as a slice in reading order. Clones share the slice until one of them
/// is changed.
#[derive(Debug, Clone, Default)]
pub struct Level {
    tables: Arc<Vec<Arc<TableFile>>>,
    totals: LevelTotals,
}

#[cfg(test)]
thread_local! {
    /// Number of tables over which this thread has begun to walk with [`Level::iter`].
    pub(crate) static WALKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Deref for Level {
    type Target = [Arc<TableFile>];

    #[inline]
    fn deref(&self) -> &[Arc<TableFile>] {
        &self.tables
    }
}

impl<'a> IntoIterator for &'a Level {
    type Item = &'a Arc<TableFile>;
    type IntoIter = slice::Iter<'a, Arc<TableFile>>;

    fn into_iter(self) -> slice::Iter<'a, Arc<TableFile>> {
        self.iter()
    }
}

impl Level {
    /// Returns all tables in order.
    #[inline]
    pub fn iter(&self) -> slice::Iter<'_, Arc<TableFile>> {
        #[cfg(test)]
        WALKED.set(WALKED.get() + self.tables.len());
        self.tables.iter()
    }

    /// Returns the sums over the tables, in constant time.
    #[inline]
    pub fn totals(&self) -> LevelTotals {
        self.totals
    }

    /// Adds up the sums over all tables.
    fn recount(&self) -> LevelTotals {
        let each = self.tables.iter().map(|t| LevelTotals::of(t));
        each.fold(LevelTotals::default(), |sum, t| {
            sum.each(t, u64::wrapping_add)
        })
    }

    /// Returns true if the sums match the tables. The cost is a walk over all tables.
    pub(super) fn adds_up(&self) -> bool {
        self.totals == self.recount()
    }

    /// Adds a table behind all others. The caller sorts the level afterwards.
    pub(super) fn push(&mut self, table: Arc<TableFile>) {
        self.insert(self.tables.len(), table);
    }

    /// Inserts a table at a position.
    pub(super) fn insert(&mut self, at: usize, table: Arc<TableFile>) {
        let own = LevelTotals::of(&table);
        self.totals = self.totals.each(own, u64::wrapping_add);
        Arc::make_mut(&mut self.tables).insert(at, table);
    }

    /// Removes the table at a position.
    pub(super) fn remove(&mut self, at: usize) -> Arc<TableFile> {
        let table = Arc::make_mut(&mut self.tables).remove(at);
        let own = LevelTotals::of(&table);
        self.totals = self.totals.each(own, u64::wrapping_sub);
        table
    }

    /// Sorts all tables.
    pub(super) fn sort_by(&mut self, order: impl Fn(&TableFile, &TableFile) -> Ordering) {
        Arc::make_mut(&mut self.tables).sort_by(|a, b| order(a, b));
    }

    /// Returns the position of a table in level 0, which is ordered by age: the newest first.
    pub(super) fn position_by_age(&self, max_seq: u64, number: u64) -> usize {
        self.partition_point(|t| (t.meta.max_seq, t.number) > (max_seq, number))
    }

    /// Returns the position of a table in a level below 0, which is ordered by the tables' smallest
    /// keys.
    pub(super) fn position_by_key(&self, cmp: &Cmp, smallest: &[u8]) -> usize {
        self.partition_point(|t| cmp.internal(&t.meta.smallest, smallest) == Ordering::Less)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FamilyVersion, LEVELS, TableStore};
    use super::*;
    use basalt_env::{Env, Random};
    use basalt_kv::key::{Kind, internal_key, pack_trailer};
    use basalt_sim::{SimFs, SimOptions};
    use basalt_table::TableMeta;
    use std::path::Path;

    fn tables() -> (Env, Arc<TableStore>) {
        let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
        let store = TableStore::new(&env, Path::new("db"), 1);
        (env, store)
    }

    /// Describes a table with keys from `from` to `to`, with counts that differ from table to
    /// table.
    fn meta(number: u64, from: u64, to: u64) -> TableMeta {
        let key = |key: u64| internal_key(&key.to_be_bytes(), pack_trailer(1, Kind::Put));
        TableMeta {
            file_id: 1,
            size: 100 + number,
            digest: 0,
            entries: 10,
            deletes: number % 3,
            smallest: key(from),
            largest: key(to),
            min_seq: 0,
            max_seq: number / 2,
            raw_key_bytes: 0,
            raw_value_bytes: 0,
            soonest_expiry_ms: u64::MAX,
            range_deletes: number % 5,
            references: [(1, number % 7)].into(),
            shift: 0,
        }
    }

    #[test]
    fn level_totals_and_order_hold_after_every_change() {
        let (_env, store) = tables();
        let r = Random::from_seed(3);
        let mut version = FamilyVersion::empty(Cmp::Bytewise);
        let mut there: Vec<(usize, u64, TableMeta)> = Vec::new();
        let mut kept: Vec<(FamilyVersion, [LevelTotals; LEVELS])> = Vec::new();
        for number in 1..1500 {
            if r.below(3) > 0 || there.is_empty() {
                // Each number has its own range of keys, so that tables of a level do not overlap.
                let (level, slot) = (r.below(LEVELS as u64) as usize, (number * 7919) % 1500);
                let meta = meta(number, 4 * slot, 4 * slot + r.below(4));
                let table = store.table(number, meta.clone(), Cmp::Bytewise);
                version.insert(level, table);
                version.check_entered(level, number, &meta).unwrap();
                there.push((level, number, meta));
            } else {
                let at = r.below(there.len() as u64) as usize;
                let (level, number, meta) = there.swap_remove(at);
                assert!(version.remove(level, number + 10_000, &meta).is_none());
                let table = version.remove(level, number, &meta);
                assert_eq!(table.map(|t| t.number), Some(number));
                assert!(version.remove(level, number, &meta).is_none());
            }
            version.check().unwrap();
            if number % 100 == 0 {
                let totals = std::array::from_fn(|l| version.levels[l].totals());
                kept.push((version.clone(), totals));
            }
        }
        for (version, totals) in kept {
            version.check().unwrap();
            let now: [LevelTotals; LEVELS] = std::array::from_fn(|l| version.levels[l].totals());
            assert_eq!(now, totals);
        }
    }

    /// The check of the tables that entered must find the same errors as the check of all tables.
    #[test]
    fn an_added_table_that_overlaps_another_is_found() {
        let (_env, store) = tables();
        let r = Random::from_seed(5);
        let (mut sound, mut broken) = (0, 0);
        for _ in 0..2000 {
            let mut version = FamilyVersion::empty(Cmp::Bytewise);
            for n in 0..6 {
                let meta = meta(n, 20 * n, 20 * n + 9);
                version.insert(3, store.table(n, meta, Cmp::Bytewise));
            }
            version.check().unwrap();
            let mut entered = Vec::new();
            for number in 10..11 + r.below(2) {
                let from = r.below(130);
                let to = (from + r.below(14)).saturating_sub(r.below(2));
                let meta = meta(number, from, to);
                version.insert(3, store.table(number, meta.clone(), Cmp::Bytewise));
                entered.push((number, meta));
            }
            let near = (entered.iter()).try_for_each(|(n, m)| version.check_entered(3, *n, m));
            assert_eq!(
                near.is_ok(),
                version.check().is_ok(),
                "{near:?} {version:?}"
            );
            match near {
                Ok(()) => sound += 1,
                Err(_) => broken += 1,
            }
        }
        assert!(sound > 300 && broken > 300, "{sound} and {broken}");
    }
}
