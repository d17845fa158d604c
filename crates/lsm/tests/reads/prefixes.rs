//! Prefix filters: the tests count the disk reads that they save, and compare cursors with and
//! without them, which must agree.

use crate::watched::Watched;
use basalt_lsm::{
    Db, ErrorKind, Family, FamilyOptions, Options, PrefixExtractor, Prefixes, ReadOptions,
    WriteOptions,
};
use std::sync::Arc;

const UNSYNCED: WriteOptions = WriteOptions::UNSYNCED;

fn options(prefix_extractor: Option<Prefixes>) -> Options {
    Options::default().default_family(
        FamilyOptions::default()
            .prefix_extractor(prefix_extractor)
            .block_bytes(512)
            .table_bytes(32 << 10)
            .base_level_bytes(64 << 10)
            .l0_compaction_trigger(100)
            .l0_slowdown(100),
    )
}

fn same_prefix() -> ReadOptions {
    ReadOptions::default().prefix_same_as_start(true)
}

fn bounds(from: &[u8], to: &[u8]) -> ReadOptions {
    ReadOptions::default()
        .lower_bound(Some(from.to_vec()))
        .upper_bound(Some(to.to_vec()))
}

/// Fills the store: of 400 prefixes `u0000:` to `u3999:`, every tenth has keys.
fn fill(db: &Db, f: &Family) {
    for part in 0..4u32 {
        for user in (0..400u32).filter(|u| u % 4 == part) {
            for item in 0..10 {
                let key = format!("u{:04}:{item:03}", user * 10);
                db.put(f, key.as_bytes(), &[part as u8; 60], &UNSYNCED)
                    .expect("put");
            }
        }
        db.flush().expect("flush");
    }
    // The whole bottom is in one level of many tables, and above it tables overlap each other.
    db.compact_range(f, None, None).expect("compact");
    for part in 0..3u32 {
        for user in (0..400u32).filter(|u| u % 3 == part) {
            let key = format!("u{:04}:{:03}", user * 10, 100 + part);
            db.put(f, key.as_bytes(), b"newer", &UNSYNCED).expect("put");
        }
        db.flush().expect("flush");
    }
}

/// Returns the disk reads and the shown keys of seeks for this many absent prefixes. Index and
/// filter are in the cache, data is not.
fn cost_of_absent(disk: &Watched, db: &Db, f: &Family, how: &str) -> u64 {
    let absent: Vec<u32> = (0..3990).filter(|u| u % 10 != 0).step_by(9).collect();
    let mut shown = 0;
    let mut pass = || {
        for user in &absent {
            let (from, end) = (format!("u{user:04}:"), format!("u{user:04};"));
            let (from, end) = (from.as_bytes(), end.as_bytes());
            let read = match how {
                "same prefix" | "same prefix, back" => same_prefix(),
                "bounds" | "bounds, back" => bounds(from, end),
                _ => ReadOptions::default(),
            };
            let read = read.fill_cache(false);
            let mut it = db.iter(f, &read).expect("iter");
            match how {
                "same prefix, back" => it.seek_for_prev(&[from, b"~"].concat()),
                "bounds, back" => it.seek_to_last(),
                _ => it.seek(from),
            }
            .expect("seek");
            shown += u64::from(it.valid());
        }
    };
    let ((), reads, batches) = disk.watch(&mut pass);
    let reads = reads + batches.iter().map(|b| b.reads as u64).sum::<u64>();
    let all = absent.len() as u64;
    basalt_sim::campaign!("absent_prefixes={all} how=\"{how}\" reads={reads} shown={shown}");
    assert_eq!(shown, if how == "total order" { all } else { 0 });
    reads
}

#[test]
fn seeks_of_absent_prefixes_read_nothing() {
    let disk = Watched::new();
    let env = disk.env(64 << 20);
    let db = Db::open(&env, "db", options(Some(Prefixes::Delimited(b':')))).expect("open");
    let f = db.default_family();
    fill(&db, &f);
    let tables: Vec<u64> = db.stats().families[0]
        .levels
        .iter()
        .map(|l| l.tables)
        .collect();
    assert!(
        tables[0] == 3 && tables.iter().sum::<u64>() > 8,
        "{tables:?}"
    );
    db.close().expect("close");

    // Data leaves the cache with the environment. Filters and index come back with a first pass
    // that keeps its blocks.
    let env = disk.env(64 << 20);
    let open = |p| Db::open(&env, "db", options(p)).expect("open");
    let db = open(Some(Prefixes::Delimited(b':')));
    let f = db.default_family();
    for user in 0..4000 {
        let mut it = db.iter(&f, &same_prefix()).expect("iter");
        let key = format!("u{user:04}:");
        if user % 10 != 0 {
            it.seek(key.as_bytes()).expect("seek");
        }
    }
    let total = cost_of_absent(&disk, &db, &f, "total order");
    let seeks = 399;
    assert!(total >= seeks, "{total} reads without narrowing");
    for how in ["same prefix", "same prefix, back", "bounds", "bounds, back"] {
        let reads = cost_of_absent(&disk, &db, &f, how);
        // The bound allows for four tables, about one wrong answer of a filter in a hundred, and an
        // index partition beside the block.
        assert!(reads <= seeks / 5, "{how}: {reads} reads for {seeks} seeks");
    }
    db.close().expect("close");

    // Tables of another extractor cannot answer for the prefix, and the answers stay right.
    let db = open(Some(Prefixes::Fixed(6)));
    let f = db.default_family();
    let reads = cost_of_absent(&disk, &db, &f, "same prefix");
    assert!(reads >= seeks / 2, "{reads} reads");
    let mut it = db.iter(&f, &same_prefix()).expect("iter");
    it.seek(b"u0010:").expect("seek");
    let mut keys = 0;
    while it.valid() {
        keys += 1;
        it.next().expect("next");
    }
    assert_eq!(keys, 11);
}

#[test]
fn prefixes_in_filters_leave_point_lookups_as_they_were() {
    for prefix_extractor in [None, Some(Prefixes::Fixed(5))] {
        let disk = Watched::new();
        let env = disk.env(64 << 20);
        let db = Db::open(&env, "db", options(prefix_extractor.clone())).expect("open");
        let f = db.default_family();
        fill(&db, &f);
        let absent: Vec<String> = (0..2000).map(|n| format!("u{:04}", n)).collect();
        let read = ReadOptions::default().fill_cache(false);
        // Compactions leave the reading of their filters to the first lookup.
        for key in &absent {
            let other = [key.as_bytes(), b"x"].concat();
            let got = db.get(&f, &other, &ReadOptions::default());
            assert_eq!(got.expect("get"), None);
        }
        // A prefix that some key has is as absent as others if it is looked up as a whole key.
        let (found, reads, _) = disk.watch(|| {
            let get = |k: &String| db.get(&f, k.as_bytes(), &read).expect("get");
            absent.iter().filter_map(get).count()
        });
        basalt_sim::campaign!("absent_keys=2000 extractor={prefix_extractor:?} reads={reads}");
        assert_eq!(found, 0);
        assert!(reads <= 2000 * 4 / 50, "{reads} reads");
    }
}

/// The key behind a prefix's last key is two things: a bound that leaves the prefix alone for a
/// walk up, and a key to be found for a walk down from it.
#[test]
fn a_reverse_walk_finds_the_first_key_behind_a_prefix() {
    let env = Watched::new().env(8 << 20);
    let db = Db::open(&env, "db", options(Some(Prefixes::Fixed(1)))).expect("open");
    let f = db.default_family();
    db.put(&f, b"b", b"v", &UNSYNCED).expect("put");
    db.flush().expect("flush");
    let read = ReadOptions::default().lower_bound(Some(b"a".to_vec()));
    let mut it = db.iter(&f, &read).expect("iter");
    it.seek_for_prev(b"b").expect("seek");
    assert!(it.valid() && it.key() == b"b");
    it.prev().expect("prev");
    assert!(!it.valid());
}

struct Panics;

impl PrefixExtractor for Panics {
    fn name(&self) -> &str {
        "basalt.mine"
    }
    fn prefix_len(&self, _: &[u8]) -> Option<usize> {
        panic!("never asked")
    }
}

#[test]
fn invalid_prefix_extractors_are_refused() {
    struct Backwards;
    impl basalt_lsm::Comparator for Backwards {
        fn name(&self) -> &str {
            "test.backwards"
        }
        fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
            b.cmp(a)
        }
    }
    let env = Watched::new().env(1 << 20);
    for (change, word) in [
        (options(Some(Prefixes::Fixed(0))), "1 to 65536"),
        (
            options(Some(Prefixes::Custom(Arc::new(Panics)))),
            "basalt.mine",
        ),
        (
            {
                let mut o = options(Some(Prefixes::Capped(4)));
                o.default_family.comparator = basalt_kv::key::Cmp::Custom(Arc::new(Backwards));
                o
            },
            "test.backwards",
        ),
    ] {
        let e = Db::open(&env, "db", change).err().expect("refused");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.to_string().contains(word), "{e}");
    }
    let db = Db::open(&env, "db", options(None)).expect("open");
    let e = db.iter(&db.default_family(), &same_prefix()).err();
    let e = e.expect("no prefixes here");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.to_string().contains("prefix_extractor"), "{e}");
}
