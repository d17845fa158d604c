//! Merge operators and range deletes in one store. A range tombstone ends the operands above it as
//! a tombstone of the key does, wherever both lie: in one memtable, in tables of any level, on two
//! sides of a snapshot.

use basalt_env::{Env, EnvBuilder, Random};
use basalt_kv::merge::Append;
use basalt_lsm::{Db, Family, Options, ReadOptions, Snapshot, WriteBatch, WriteOptions};
use basalt_sim::{SimFs, SimOptions, campaign, repeat};
use std::collections::BTreeMap;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

const FREE: WriteOptions = WriteOptions::UNSYNCED;

type Table = BTreeMap<Vec<u8>, Vec<u8>>;

fn small(seed: u64) -> Env {
    let fs = SimFs::new(SimOptions {
        seed,
        ..SimOptions::default()
    });
    EnvBuilder::for_tests(fs, seed).build()
}

fn appending() -> Options {
    let mut options = Options::default().write_buffer_bytes(4096);
    let f = &mut options.default_family;
    f.merge_operator = Some(Arc::new(Append::new(",")));
    f.block_bytes = 128;
    f.table_bytes = 1024;
    f.base_level_bytes = 2048;
    f.level_multiplier = 3;
    f.l0_compaction_trigger = 3;
    f.l0_slowdown = 20;
    options
}

fn at(snapshot: Option<&Snapshot>) -> ReadOptions {
    ReadOptions::default().snapshot(snapshot.cloned())
}

/// Checks by points, by many points, and by scans from both ends that the store shows this table.
#[track_caller]
fn shows(db: &Db, f: &Family, options: &ReadOptions, keys: &[Vec<u8>], table: &Table) {
    for forward in [true, false] {
        let mut iter = db.iter(f, options).expect("iter");
        let mut shown = Table::new();
        if forward {
            iter.seek_to_first()
        } else {
            iter.seek_to_last()
        }
        .expect("sought");
        while iter.valid() {
            shown.insert(iter.key().to_vec(), iter.value().to_vec());
            if forward { iter.next() } else { iter.prev() }.expect("moved");
        }
        assert_eq!(&shown, table, "forward {forward}");
    }
    let asked: Vec<(&Family, &[u8])> = keys.iter().map(|k| (f, &k[..])).collect();
    let many = db.multi_get(&asked, options);
    for (key, many) in keys.iter().zip(many) {
        let one = db.get(f, key, options).expect("get");
        assert_eq!(one.as_deref(), table.get(key).map(|v| &v[..]), "{key:?}");
        assert_eq!(many.expect("multi_get"), one, "{key:?}");
    }
}

/// Does nothing, a flush, or a flush and a compaction.
fn wait_idle(db: &Db, how: u64) {
    if how > 0 {
        db.flush().expect("flushed");
    }
    if how > 1 {
        let f = db.default_family();
        db.compact_range(&f, None, None).expect("compacted");
    }
}

#[test]
fn a_range_delete_ends_the_operands_of_a_key() {
    for ways in 0..3u64.pow(4) {
        for with_snapshots in [false, true] {
            let env = small(ways);
            let db = Db::open(&env, "db", appending()).expect("open");
            let f = db.default_family();
            let way = |i: u32| ways / 3u64.pow(i) % 3;
            let keys = [b"j".to_vec(), b"k".to_vec(), b"l".to_vec()];
            let mut held: Vec<(Snapshot, Table)> = Vec::new();
            let mut table = Table::new();
            let mut set = |table: &mut Table, value: &str, db: &Db| {
                table.insert(b"k".to_vec(), value.into());
                if with_snapshots {
                    held.push((db.snapshot(), table.clone()));
                }
            };
            // A neighbour stays, so that tables have a range beyond the key.
            db.put(&f, b"j", b"there", &FREE).expect("put");
            table.insert(b"j".to_vec(), b"there".to_vec());
            db.put(&f, b"k", b"old", &FREE).expect("put");
            wait_idle(&db, way(0));
            db.merge(&f, b"k", b"a", &FREE).expect("merge");
            set(&mut table, "old,a", &db);
            wait_idle(&db, way(1));
            db.delete_range(&f, b"k", b"l", &FREE).expect("range");
            wait_idle(&db, way(2));
            db.merge(&f, b"k", b"b", &FREE).expect("merge");
            db.merge(&f, b"k", b"c", &FREE).expect("merge");
            set(&mut table, "b,c", &db);
            wait_idle(&db, way(3));
            for _ in 0..2 {
                shows(&db, &f, &ReadOptions::default(), &keys, &table);
                for (snapshot, table) in &held {
                    shows(&db, &f, &at(Some(snapshot)), &keys, table);
                }
                wait_idle(&db, 2);
            }
            held.clear();
            db.merge(&f, b"k", b"d", &FREE).expect("merge");
            wait_idle(&db, 2);
            table.insert(b"k".to_vec(), b"b,c,d".to_vec());
            shows(&db, &f, &ReadOptions::default(), &keys, &table);
            let levels = &db.stats().families[0].levels;
            let entries: u64 = levels.iter().map(|l| l.entries).sum();
            let ranges: u64 = levels.iter().map(|l| l.range_deletes).sum();
            assert_eq!((entries, ranges), (2, 0), "{ways}");
        }
    }
}

#[test]
fn a_flush_merges_operands_above_a_range_delete_into_a_value() {
    let env = small(1);
    let db = Db::open(&env, "db", appending()).expect("open");
    let f = db.default_family();
    // An older value lies deeper, so that only the tombstone says what lies below.
    db.put(&f, b"k", b"old", &FREE).expect("put");
    wait_idle(&db, 2);
    let mut batch = WriteBatch::new();
    batch.merge(&f, b"k", b"lost").expect("merge");
    batch.delete_range(&f, b"a", b"z").expect("range");
    batch.merge(&f, b"k", b"b").expect("merge");
    batch.merge(&f, b"k", b"c").expect("merge");
    db.write(batch, &FREE).expect("written");
    db.flush().expect("flushed");
    let table = Table::from([(b"k".to_vec(), b"b,c".to_vec())]);
    shows(&db, &f, &ReadOptions::default(), &[b"k".to_vec()], &table);
    let levels = &db.stats().families[0].levels;
    assert_eq!((levels[0].entries, levels[0].range_deletes), (1, 1));
}

struct World {
    r: Random,
    env: Env,
    db: Db,
    f: Family,
    keys: Vec<Vec<u8>>,
    table: Table,
    snapshots: Vec<(Snapshot, Table)>,
    /// Number of operands that a range delete has removed.
    ended: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let env = small(seed);
        let db = Db::open(&env, "db", appending()).expect("open");
        World {
            r: Random::from_seed(seed),
            env,
            f: db.default_family(),
            db,
            keys: (0..30).map(|i| format!("k{i:02}").into_bytes()).collect(),
            table: Table::new(),
            snapshots: Vec::new(),
            ended: 0,
        }
    }

    fn key(&self) -> Vec<u8> {
        self.keys[self.r.below(self.keys.len() as u64) as usize].clone()
    }

    fn write(&mut self) {
        let mut batch = WriteBatch::new();
        for _ in 0..1 + self.r.below(6) {
            let key = self.key();
            let part = format!("{}", self.r.below(1000)).into_bytes();
            match self.r.below(12) {
                0 => {
                    batch.delete(&self.f, &key).expect("delete");
                    self.table.remove(&key);
                }
                1 => {
                    batch.put(&self.f, &key, &part).expect("put");
                    self.table.insert(key, part);
                }
                2 => {
                    let other = self.key();
                    let (from, to) = if key < other {
                        (key, other)
                    } else {
                        (other, key)
                    };
                    batch.delete_range(&self.f, &from, &to).expect("range");
                    let before = self.table.len();
                    self.table.retain(|k, _| *k < from || *k >= to);
                    self.ended += (before - self.table.len()) as u64;
                }
                _ => {
                    batch.merge(&self.f, &key, &part).expect("merge");
                    self.table
                        .entry(key)
                        .and_modify(|v| {
                            v.push(b',');
                            v.extend_from_slice(&part);
                        })
                        .or_insert(part);
                }
            }
        }
        self.db.write(batch, &FREE).expect("written");
    }

    fn step(&mut self) {
        match self.r.below(24) {
            0..=11 => self.write(),
            12 => self.db.flush().expect("flushed"),
            13 if self.r.one_in(3) => {
                let (a, b) = (self.key(), self.key());
                let (from, to) = if a < b { (a, b) } else { (b, a) };
                self.db
                    .compact_range(&self.f, Some(&from), Some(&to))
                    .expect("compacted");
            }
            14..=17 => {
                self.env.jobs().step();
            }
            18 => {
                self.snapshots
                    .push((self.db.snapshot(), self.table.clone()));
                if self.snapshots.len() > 3 {
                    self.snapshots.remove(0);
                }
            }
            19 => self.snapshots.clear(),
            20 if self.r.one_in(6) => {
                self.snapshots.clear();
                self.db.clone().close().expect("closed");
                self.db = Db::open(&self.env, "db", appending()).expect("open");
                self.f = self.db.default_family();
            }
            21 => shows(&self.db, &self.f, &at(None), &self.keys, &self.table),
            22 if !self.snapshots.is_empty() => {
                let i = self.r.below(self.snapshots.len() as u64) as usize;
                let (s, table) = &self.snapshots[i];
                shows(&self.db, &self.f, &at(Some(s)), &self.keys, table);
            }
            _ => {}
        }
    }
}

#[test]
fn operands_under_range_deletes_read_as_the_reference_does() {
    let scale = basalt_sim::campaign::scale();
    let (mut worlds, mut ended) = (0, 0);
    for seed in campaign::cases(0..40 * scale) {
        let _repeat = repeat!(
            operands_under_range_deletes_read_as_the_reference_does,
            "BASALT_CASE={seed}"
        );
        let mut world = World::new(seed);
        for _ in 0..800 {
            world.step();
        }
        wait_idle(&world.db, 2);
        shows(&world.db, &world.f, &at(None), &world.keys, &world.table);
        worlds += 1;
        ended += world.ended;
    }
    basalt_sim::campaign!("worlds={worlds} keys_deleted_by_ranges={ended}");
    assert!(ended >= 500 * worlds, "{ended} keys deleted by ranges");
}

#[test]
fn every_feature_pair_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_feature_pair_test_passes_on_lava", &[]);
}
