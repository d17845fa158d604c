//! The log of a database above a passive store, and what a store must hold after a replay of it.

use basalt_lsm::{OwnerLog, Result};
use basalt_sim::{SimFs, SimSnapshot};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A change of one key, or of a range of keys.
#[derive(Debug, Clone)]
pub enum Change {
    Put(Vec<u8>, Vec<u8>),
    /// A value that expires long after the end of the test.
    PutTtl(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    /// An operand of a sum.
    Add(Vec<u8>, u64),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// A record of the log.
#[derive(Debug, Clone)]
pub enum Record {
    /// Changes, each with the name of its family.
    Transaction(Vec<(String, Change)>),
    Create(String),
    Drop(String),
    /// Prepared tables of families, each with its keys in order.
    Ingest(BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>),
}

/// What families hold: keys and values by name.
pub type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// The log as a power cut at some moment leaves it.
#[derive(Debug, Clone, Copy)]
pub struct LogState {
    /// The first transaction that was not trimmed.
    pub begin: u64,
    /// The last transaction that is durable.
    pub durable: u64,
    /// The last transaction that was written.
    pub end: u64,
}

/// A moment of a history.
pub struct Moment {
    pub disk: SimSnapshot,
    pub log: LogState,
}

/// The log. Transaction `n` is record `n - 1`; trimmed records stay for the model.
pub struct Log {
    disk: Arc<SimFs>,
    inner: Mutex<Inner>,
}

struct Inner {
    records: Vec<Record>,
    state: LogState,
    moments: Vec<Moment>,
    /// Calls of `make_durable` that still fail.
    failures: u64,
}

impl Log {
    /// Returns a log with the first `end` of `records`, all durable, trimmed up to `begin`.
    pub fn new(disk: &Arc<SimFs>, records: &[Record], begin: u64, end: u64) -> Arc<Log> {
        Arc::new(Log {
            disk: disk.clone(),
            inner: Mutex::new(Inner {
                records: records[..end as usize].to_vec(),
                state: LogState {
                    begin,
                    durable: end,
                    end,
                },
                moments: Vec::new(),
                failures: 0,
            }),
        })
    }

    /// Keeps the moments since the last call, with the state of the log in all of them.
    fn keep_moments(&self, inner: &mut Inner) {
        let log = inner.state;
        let snapshots = self.disk.take_snapshots();
        let moments = snapshots.into_iter().map(|disk| Moment { disk, log });
        inner.moments.extend(moments);
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock().unwrap();
        self.keep_moments(&mut inner);
        change(&mut inner)
    }

    /// Writes a record, which is not durable yet. Returns its transaction number.
    pub fn append(&self, record: Record) -> u64 {
        self.change(|inner| {
            inner.records.push(record);
            inner.state.end += 1;
            inner.state.end
        })
    }

    /// Makes all records durable.
    pub fn sync(&self) {
        self.change(|inner| inner.state.durable = inner.state.end);
    }

    /// Removes the records before transaction `begin`.
    pub fn trim(&self, begin: u64) {
        self.change(|inner| inner.state.begin = inner.state.begin.max(begin));
    }

    pub fn state(&self) -> LogState {
        self.inner.lock().unwrap().state
    }

    pub fn record(&self, tsn: u64) -> Record {
        self.inner.lock().unwrap().records[tsn as usize - 1].clone()
    }

    pub fn records(&self) -> Vec<Record> {
        self.inner.lock().unwrap().records.clone()
    }

    pub fn take_moments(&self) -> Vec<Moment> {
        self.change(|inner| std::mem::take(&mut inner.moments))
    }

    /// Lets the next calls of `make_durable` fail.
    pub fn fail_next(&self, times: u64) {
        self.inner.lock().unwrap().failures = times;
    }
}

impl OwnerLog for Log {
    fn make_durable(&self, tsn: u64) -> Result<()> {
        self.change(|inner| {
            assert!(tsn <= inner.state.end, "the store has what was logged");
            if inner.failures > 0 {
                inner.failures -= 1;
                return Err(basalt_lsm::Error::new(
                    basalt_lsm::ErrorKind::Io,
                    "a test lets the owner's log fail",
                ));
            }
            inner.state.durable = inner.state.durable.max(tsn);
            Ok(())
        })
    }
}

/// Returns what the families hold after the first `end` records.
pub fn content(records: &[Record], end: u64) -> Content {
    let mut content = Content::from([("default".to_string(), BTreeMap::new())]);
    for record in &records[..end as usize] {
        match record {
            Record::Create(name) => {
                content.insert(name.clone(), BTreeMap::new());
            }
            Record::Drop(name) => {
                content.remove(name);
            }
            Record::Ingest(families) => {
                for (family, entries) in families {
                    let keys = content.get_mut(family).expect("the history knows families");
                    keys.extend(entries.clone());
                }
            }
            Record::Transaction(changes) => {
                for (family, change) in changes {
                    let keys = content.get_mut(family).expect("the history knows families");
                    apply(keys, change);
                }
            }
        }
    }
    content
}

fn apply(keys: &mut BTreeMap<Vec<u8>, Vec<u8>>, change: &Change) {
    match change {
        Change::Put(key, value) | Change::PutTtl(key, value) => {
            keys.insert(key.clone(), value.clone());
        }
        Change::Delete(key) => {
            keys.remove(key);
        }
        Change::Add(key, more) => {
            let sum = keys.entry(key.clone()).or_insert_with(|| vec![0; 8]);
            let before = u64::from_le_bytes(sum[..].try_into().expect("sums have 8 bytes"));
            *sum = before.wrapping_add(*more).to_le_bytes().to_vec();
        }
        Change::DeleteRange(from, to) => {
            keys.retain(|key, _| key < from || key >= to);
        }
    }
}
