//! Unit tests of `level`.

use super::super::{FamilyVersion, LEVELS, TableStore};
use super::*;
use basalt_env::{Env, Random};
use basalt_kv::key::{Kind, internal_key, pack_trailer};
use basalt_sim::{SimFs, SimOptions};
use basalt_table::TableMeta;
use std::path::Path;

fn tables() -> (Env, Arc<TableStore>) {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let store = TableStore::new(&env, Path::new("db"));
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
