//! Which tables have how large a filter: small in the lowest, where most keys live, larger in those that are asked for keys of others.

use super::*;
use crate::options::WriteOptions;
use crate::version::LEVELS;
use basalt_fs::sim::{SimFs, SimOptions};

const KEYS: u32 = 20_000;

struct Store {
    env: Env,
    db: Db,
}

impl Store {
    fn new(filter_bits: u32) -> Store {
        let fs = SimFs::new(SimOptions::default());
        let env = basalt_env::EnvBuilder::for_tests(fs, 7).build();
        let options = Options {
            default_family: FamilyOptions {
                filter_bits_per_key: filter_bits,
                ..FamilyOptions::default()
            },
            ..Options::default()
        };
        let db = Db::open(&env, "db", options).unwrap();
        Store { env, db }
    }

    fn flush(&self, keys: impl Iterator<Item = u32>) {
        let family = self.db.default_family();
        for n in keys {
            let options = WriteOptions::UNSYNCED;
            self.db.put(&family, &key(n), b"value", &options).unwrap();
        }
        self.db.flush().unwrap();
        while self.env.jobs().step() {}
    }

    /// Of how many of 10,000 keys that it has not the newest table of a level says that it may have them.
    fn false_positives(&self, level: usize, has: impl Fn(u32) -> bool) -> usize {
        let view = self.db.engine().view();
        let tables = &view.version.families[&self.db.default_family().id()].levels[level];
        let reader = tables[0].reader().unwrap();
        let holds = |n: &u32| reader.may_hold(&key(*n), true).unwrap();
        let (present, absent): (Vec<u32>, Vec<u32>) = (0..KEYS * 2).partition(|n| has(*n));
        assert!(present.iter().all(holds));
        absent.iter().filter(|n| holds(n)).count() * 10_000 / absent.len()
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:08}").into_bytes()
}

#[test]
fn tables_over_older_ones_let_ten_times_less_through_than_the_lowest() {
    let store = Store::new(10);
    store.flush(0..KEYS);
    let alone = store.false_positives(0, |n| n < KEYS);
    let family = store.db.default_family();
    store.db.compact_range(&family, None, None).unwrap();
    let lowest = store.false_positives(LEVELS - 1, |n| n < KEYS);
    store.flush((0..KEYS).step_by(3));
    let above = store.false_positives(0, |n| n < KEYS && n % 3 == 0);
    basalt_fs::campaign!("of 10,000: alone {alone}, lowest {lowest}, above {above}");
    assert!((50..=130).contains(&alone), "{alone}");
    assert!((50..=130).contains(&lowest), "{lowest}");
    assert!(above <= 20, "{above}");
    store.db.close().unwrap();
}

/// Keys that come in order make tables over nothing, however many there are: the larger filter would be for nothing.
#[test]
fn tables_side_by_side_have_the_filter_of_the_lowest() {
    let store = Store::new(10);
    store.flush(0..KEYS / 2);
    store.flush(KEYS / 2..KEYS);
    let newest = store.false_positives(0, |n| (KEYS / 2..KEYS).contains(&n));
    assert!((50..=130).contains(&newest), "{newest}");
    store.db.close().unwrap();
}

#[test]
fn without_filters_no_table_has_one() {
    let store = Store::new(0);
    store.flush(0..KEYS / 2);
    store.flush((0..KEYS / 2).step_by(3));
    let newest = store.false_positives(0, |n| n < KEYS / 2 && n % 3 == 0);
    assert_eq!(newest, 10_000);
    store.db.close().unwrap();
}
