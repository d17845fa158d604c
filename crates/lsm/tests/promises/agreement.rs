//! All ways of reading a store show the same: after a power cut each of them is compared with a
//! forward scan. The filters, prefixes and hash indexes of blocks are then those that recovery and
//! earlier jobs wrote.

use crate::history::{options, prefix_of};
use crate::model::Table;
use crate::runner::read_all;
use basalt_lsm::{Db, Family, ReadOptions};
use std::collections::{BTreeMap, BTreeSet};

/// Counts of the reads.
#[derive(Default, Clone, Copy)]
pub struct ReadCounters {
    /// Number of stores that were checked.
    pub stores: u64,
    /// Number of existing keys, read by a point lookup, by a lookup of many, and walking backwards.
    pub keys: u64,
    /// Number of absent keys.
    pub absent: u64,
    /// Number of prefixes that a cursor was bound to.
    pub prefixes: u64,
}

impl ReadCounters {
    pub fn add(&mut self, other: ReadCounters) {
        self.stores += other.stores;
        self.keys += other.keys;
        self.absent += other.absent;
        self.prefixes += other.prefixes;
    }
}

/// Reads the store, which was opened with the options of this seed, in every way.
pub fn reads_agree(db: &Db, options_seed: u64) -> ReadCounters {
    let clock = db.env().clock().clone();
    let before = clock.wall_ms();
    let shown = read_all(db).expect("it was read before");
    let mut agreed = ReadCounters {
        stores: 1,
        ..ReadCounters::default()
    };
    for (name, table) in &shown {
        let family = db.family(name).expect("listed");
        points(db, &family, table, &mut agreed);
        backwards(db, &family, table);
        let family_options = options(options_seed).family(name).clone();
        if let Some(extractor) = family_options.prefix_extractor {
            let of = |key: &[u8]| prefix_of(&extractor, key);
            prefixes(db, &family, table, &of, &mut agreed);
        }
    }
    assert_eq!(clock.wall_ms(), before, "no value ended meanwhile");
    agreed
}

/// Looks up existing and absent keys, one by one and together.
fn points(db: &Db, family: &Family, table: &Table, agreed: &mut ReadCounters) {
    let read = ReadOptions::default();
    let absent = table.keys().map(|k| [k, &b"?"[..]].concat());
    let absent: BTreeSet<Vec<u8>> = absent.filter(|k| !table.contains_key(k)).collect();
    let asked: Vec<&[u8]> = table.keys().chain(&absent).map(|k| &k[..]).collect();
    let of_family: Vec<(&Family, &[u8])> = asked.iter().map(|k| (family, *k)).collect();
    let together = db.multi_get(&of_family, &read);
    assert_eq!(together.len(), asked.len());
    for (key, many) in asked.iter().zip(together) {
        let want = table.get(*key).map(|e| &e.value[..]);
        let one = db.get(family, key, &read).expect("a read after a crash");
        assert_eq!(one.as_deref(), want, "{key:02x?}");
        let many = many.expect("a read of many after a crash");
        assert_eq!(many.as_deref(), want, "{key:02x?} among others");
    }
    agreed.keys += table.len() as u64;
    agreed.absent += absent.len() as u64;
}

fn backwards(db: &Db, family: &Family, table: &Table) {
    let mut it = db.iter(family, &ReadOptions::default()).expect("iter");
    it.seek_to_last().expect("seek_to_last");
    for (key, entry) in table.iter().rev() {
        assert!(it.valid(), "{key:02x?} is missing");
        assert_eq!((it.key(), it.value()), (&key[..], &entry.value[..]));
        it.prev().expect("prev");
    }
    assert!(!it.valid(), "{:02x?} before the first", it.key());
}

/// Keys and values, in order.
type Rows<'a> = Vec<(&'a [u8], &'a [u8])>;

/// Walks from each prefix's first key up, and from its last one back.
fn prefixes(
    db: &Db,
    family: &Family,
    table: &Table,
    of: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
    agreed: &mut ReadCounters,
) {
    let mut by_prefix: BTreeMap<Vec<u8>, Rows<'_>> = BTreeMap::new();
    for (key, entry) in table {
        if let Some(prefix) = of(key) {
            let list = by_prefix.entry(prefix).or_default();
            list.push((key, &entry.value));
        }
    }
    let read = ReadOptions::default().prefix_same_as_start(true);
    for list in by_prefix.values() {
        let mut it = db.iter(family, &read).expect("iter");
        it.seek(list[0].0).expect("seek");
        for want in list {
            assert!(it.valid(), "{want:02x?} is missing");
            assert_eq!((it.key(), it.value()), *want);
            it.next().expect("next");
        }
        assert!(!it.valid(), "{:02x?} has another prefix", it.key());
        it.seek_for_prev(list[list.len() - 1].0)
            .expect("seek_for_prev");
        for want in list.iter().rev() {
            assert!(it.valid(), "{want:02x?} is missing");
            assert_eq!((it.key(), it.value()), *want);
            it.prev().expect("prev");
        }
        assert!(!it.valid(), "{:02x?} has another prefix", it.key());
    }
    agreed.prefixes += by_prefix.len() as u64;
}
