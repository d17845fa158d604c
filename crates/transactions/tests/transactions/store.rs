//! The store of these tests: one family in levels, one in small pages, on a simulated disk.

use basalt_env::{Env, EnvBuilder};
use basalt_fs::{Error, Result};
use basalt_kv::merge::Append;
use basalt_lsm::db::Precondition;
use basalt_lsm::{
    Db, Family, FamilyOptions, Options, ReadOptions, TreeOptions, WriteBatch, WriteOptions,
};
use basalt_sim::{SimFs, SimOptions};
use basalt_transactions::{
    Concurrency, Transaction, TransactionDb, TransactionDbOptions, TransactionOptions,
};
use std::sync::Arc;
use std::time::Duration;

pub const UNSYNCED: WriteOptions = WriteOptions::UNSYNCED;
pub const BOTH: [Concurrency; 2] = [Concurrency::Optimistic, Concurrency::Pessimistic];

/// A store with transactions, and its two families.
pub struct Store {
    pub disk: Arc<SimFs>,
    pub env: Env,
    pub db: Db,
    pub transactions: TransactionDb,
    /// The family in levels, and the one in pages.
    pub families: [Family; 2],
}

fn family_options(is_in_pages: bool) -> FamilyOptions {
    let mut pages = TreeOptions::default();
    (pages.page_bytes, pages.extent_bytes, pages.max_deltas) = (256, 4 << 10, 2);
    FamilyOptions::default()
        .merge_operator(Some(Arc::new(Append::new(""))))
        .l0_compaction_trigger(2)
        .pages(is_in_pages.then_some(pages))
}

fn options() -> Options {
    let families = [("levels", false), ("pages", true)];
    let families = families.map(|(name, pages)| (name.to_string(), family_options(pages)));
    Options::default().families(families.into_iter().collect())
}

/// Opens the store on a disk, and makes the families that it does not have.
pub fn open_on(disk: Arc<SimFs>, env: Env, options_of: TransactionDbOptions) -> Store {
    let db = Db::open(&env, "db", options()).expect("opens");
    let families = [("levels", false), ("pages", true)].map(|(name, pages)| {
        db.family(name).unwrap_or_else(|| {
            let created = db.create_family(name, family_options(pages));
            created.expect("creates")
        })
    });
    // A family in pages keeps its changes from its first precondition on.
    let now = [Precondition::unchanged(&families[1], b"", db.visible_seq())];
    let done = db.write_if(WriteBatch::new(), &now, &UNSYNCED);
    done.expect("nothing was written since");
    Store {
        transactions: TransactionDb::new(&db, options_of).expect("valid options"),
        disk,
        env,
        db,
        families,
    }
}

/// Opens a new store. Requests of locks do not wait.
pub fn open(seed: u64) -> Store {
    open_with(seed, true)
}

/// Opens a new store whose commits detect writes without locks, or do not. Requests of locks do not
/// wait.
pub fn open_with(seed: u64, check_unlocked_writes: bool) -> Store {
    let disk = SimFs::new(SimOptions::default());
    let env = Env::for_tests(disk.clone(), seed);
    let options = TransactionDbOptions::default()
        .lock_timeout(Duration::ZERO)
        .check_unlocked_writes(check_unlocked_writes);
    open_on(disk, env, options)
}

/// Opens a new store for several threads.
pub fn open_for_threads(seed: u64, options: TransactionDbOptions) -> Store {
    let disk = SimFs::new(SimOptions::default());
    let env = EnvBuilder::new(disk.clone()).threads(2).seed(seed).build();
    open_on(disk, env, options)
}

impl Store {
    pub fn begin(&self, concurrency: Concurrency) -> Transaction {
        let options = TransactionOptions::default().concurrency(concurrency);
        self.transactions.begin(&options).expect("begins")
    }

    /// Writes a key without a transaction.
    pub fn put(&self, family: usize, key: &str, value: &str) {
        let family = &self.families[family];
        let put = (self.db).put(family, key.as_bytes(), value.as_bytes(), &UNSYNCED);
        put.expect("puts");
    }

    /// Reads a key without a transaction.
    pub fn get(&self, family: usize, key: &str) -> Option<String> {
        let family = &self.families[family];
        let found = (self.db).get(family, key.as_bytes(), &ReadOptions::default());
        found.expect("reads").map(|value| text(&value))
    }
}

/// Calls of a transaction with texts.
pub trait Texts {
    fn read(&self, family: &Family, key: &str) -> Option<String>;
    fn read_for_update(&mut self, family: &Family, key: &str) -> Result<Option<String>>;
    fn set(&mut self, family: &Family, key: &str, value: &str) -> Result<()>;
}

impl Texts for Transaction {
    fn read(&self, family: &Family, key: &str) -> Option<String> {
        let found = self.get(family, key.as_bytes(), &ReadOptions::default());
        found.expect("reads").map(|value| text(&value))
    }
    fn read_for_update(&mut self, family: &Family, key: &str) -> Result<Option<String>> {
        let found = self.get_for_update(family, key.as_bytes(), &ReadOptions::default())?;
        Ok(found.map(|value| text(&value)))
    }
    fn set(&mut self, family: &Family, key: &str, value: &str) -> Result<()> {
        self.put(family, key.as_bytes(), value.as_bytes())
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("a text")
}

/// Returns the error of a call that must fail.
pub fn refused<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("it was accepted"),
        Err(e) => e,
    }
}
