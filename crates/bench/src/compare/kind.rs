//! The workloads of a comparison. Each is a list of groups of threads, and each group has one
//! operation.

use super::RunRequest;
use crate::Stop;
use crate::drive::{Group, Operation, Presence, Worker};
use crate::engine::Log;
use crate::flags::Switch;
use crate::pick::{Distribution, pick};
use clap::ValueEnum;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The workloads of `compare`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Put every key once in random order, in batches, then compact everything
    Load,
    /// Put every key once in key order, in batches
    LoadSorted,
    /// Put every key once in key order, by the engine's bulk load
    BulkSorted,
    /// Put every key once in random order, one by one
    FillRandom,
    /// Put random keys of a filled store
    Overwrite,
    /// Update a filled store as many times as it has keys (ArkDB's ingest-only)
    Ingest,
    /// Put every key once in random order, kill the process, and time the open until the first get.
    /// Values have 984 bytes by default, so the default keys are 1 GB. Memtables are flushed at
    /// --write-buffer, which bounds the bytes that the open replays: with 2G (and --memory 8G) all
    /// of the data is replayed. The engine tree takes no system checkpoint (--checkpoint-bytes)
    Restart,
    /// Put keys durably
    DurablePut,
    /// Put keys durably at a fixed rate (60 MB/s by default), while four threads get
    DurablePutWhileReading,
    /// Put every file of --folder under its path
    FolderLoad,
    /// Put every file of --folder by the engine's bulk load
    FolderBulk,
    /// Write all of a loaded directory to files
    FolderExport,
    /// Get keys that exist
    ReadRandom,
    /// Get keys that do not exist, between those that do
    ReadAbsent,
    /// Get several keys at once
    MultiGet,
    /// Seek, then read 10 next entries
    #[value(name = "seek-10")]
    Seek10,
    /// Seek, then read 1000 next entries
    #[value(name = "seek-1000")]
    Seek1000,
    /// Seek, then read 10,000 next entries (after uniform updates with --steady)
    LongScan,
    /// Get keys, while one more thread puts
    ReadWhileWriting,
    /// Seek and read 10 next entries, while one more thread puts
    #[value(name = "scan-10-while-writing")]
    Scan10WhileWriting,
    /// Seek and read 1000 next entries, while one more thread puts
    #[value(name = "scan-1000-while-writing")]
    Scan1000WhileWriting,
    /// Get half of the time, put the other half
    YcsbA,
    /// Get 95 %, put 5 %
    YcsbB,
    /// Get only
    YcsbC,
    /// Get the latest keys 95 %, put new keys 5 %
    YcsbD,
    /// Scan 1 to 100 entries 95 %, put new keys 5 %
    YcsbE,
    /// Get half of the time, get and then put the same key the other half
    YcsbF,
    /// Get, put and delete a third each (the state of a stream processor)
    State,
}

/// Bytes a second that the writer beside readers puts if no flag sets the rate.
const WRITER: u64 = 4 << 20;
/// Bytes a second of durable puts beside [`READERS`] readers if no flag sets the rate.
const DURABLE_WRITER: u64 = 60_000_000;
const READERS: usize = 4;

/// Parts of a bulk load. The parts are consecutive ranges of keys. Each is added alone, and threads
/// take the parts in turn.
const BULK_PARTS: u64 = 16;

impl Kind {
    /// Returns the name on the command line.
    pub fn word(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |v| v.get_name().to_string())
    }

    /// Returns true if the workload runs on a store that has every key.
    pub fn is_on_filled(self) -> bool {
        !matches!(
            self,
            Kind::Load
                | Kind::LoadSorted
                | Kind::BulkSorted
                | Kind::FillRandom
                | Kind::Restart
                | Kind::DurablePut
                | Kind::FolderLoad
                | Kind::FolderBulk
                | Kind::FolderExport
        )
    }

    /// Returns true if the workload runs on the files of a directory.
    pub fn is_of_folder(self) -> bool {
        matches!(
            self,
            Kind::FolderLoad | Kind::FolderBulk | Kind::FolderExport
        )
    }

    /// Returns true if the workload changes the store. Each run then needs a copy of the filled
    /// store.
    pub fn writes(self) -> bool {
        !matches!(
            self,
            Kind::ReadRandom
                | Kind::ReadAbsent
                | Kind::MultiGet
                | Kind::Seek10
                | Kind::Seek1000
                | Kind::LongScan
                | Kind::YcsbC
        )
    }

    /// Returns true if the workload reads, so that its caches are warmed first.
    pub fn reads(self) -> bool {
        self.is_on_filled() && !matches!(self, Kind::Overwrite | Kind::Ingest)
    }

    /// Returns true if the measured puts are synced with any --sync.
    pub fn is_durable_put(self) -> bool {
        matches!(self, Kind::DurablePut | Kind::DurablePutWhileReading)
    }

    /// Returns true if data of the workload must survive a crash with any --sync.
    pub fn needs_durability(self) -> bool {
        self.is_durable_put() || matches!(self, Kind::BulkSorted | Kind::FolderBulk | Kind::Restart)
    }

    /// Returns true if an operation is a batch of entries. Rates then count entries.
    pub fn is_batched(self) -> bool {
        matches!(
            self,
            Kind::Load | Kind::LoadSorted | Kind::BulkSorted | Kind::FolderBulk | Kind::MultiGet
        )
    }

    /// Returns the bytes of a value if no flag sets them.
    pub fn value_size(self) -> u64 {
        match self {
            Kind::DurablePut => 1024,
            // With keys of 16 bytes, a million entries are 10^9 bytes.
            Kind::Restart => 984,
            _ => 100,
        }
    }

    /// Returns true if a flag may say how the workload chooses among the existing keys.
    pub fn chooses_keys(self) -> bool {
        !matches!(
            self,
            Kind::Load
                | Kind::LoadSorted
                | Kind::BulkSorted
                | Kind::FillRandom
                | Kind::Restart
                | Kind::ReadAbsent
                | Kind::FolderLoad
                | Kind::FolderBulk
                | Kind::FolderExport
        )
    }

    /// Returns true if keys may be put in turn. Workloads with reads cannot use that order.
    pub fn takes_turns(self) -> bool {
        matches!(
            self,
            Kind::Overwrite | Kind::Ingest | Kind::DurablePut | Kind::DurablePutWhileReading
        )
    }

    /// Returns how keys are chosen if no flag says it.
    pub fn distribution(self) -> Distribution {
        match self {
            Kind::YcsbD => Distribution::Latest,
            Kind::YcsbA | Kind::YcsbB | Kind::YcsbC | Kind::YcsbE | Kind::YcsbF => {
                Distribution::Zipfian
            }
            _ => Distribution::Uniform,
        }
    }

    /// Returns what ends the first group: a number of operations, and a time if the operations
    /// alone do not end it.
    pub fn until(self, asked: &RunRequest) -> (u64, Option<Duration>) {
        let common = &asked.args.common;
        let whole = match self {
            Kind::Load | Kind::LoadSorted | Kind::Restart => {
                Some(common.keys.div_ceil(asked.args.batch))
            }
            Kind::FillRandom => Some(common.keys),
            Kind::FolderLoad => Some(asked.folder().len() as u64),
            Kind::BulkSorted | Kind::FolderBulk => Some(BULK_PARTS),
            Kind::FolderExport => Some(1),
            Kind::Ingest => Some(common.ops.unwrap_or(common.keys)),
            _ => None,
        };
        match whole {
            Some(ops) => (ops, None),
            None => (
                common.ops.unwrap_or(u64::MAX),
                Some(Duration::from_secs(common.seconds)),
            ),
        }
    }

    /// Returns the groups of threads that run at once. The metrics of the workload are those of the
    /// first group.
    pub fn groups(self, asked: &RunRequest) -> Vec<Group> {
        let (ops, _) = self.until(asked);
        let beside = matches!(
            self,
            Kind::ReadWhileWriting | Kind::Scan10WhileWriting | Kind::Scan1000WhileWriting
        );
        let mut groups = vec![Group {
            threads: asked.threads,
            ops,
            write_rate: match (beside, self) {
                (true, _) => 0,
                (_, Kind::DurablePutWhileReading) => {
                    asked.args.write_rate.unwrap_or(DURABLE_WRITER)
                }
                _ => asked.args.write_rate.unwrap_or(0),
            },
            op: self.operation(asked),
        }];
        if beside {
            let log = asked.log();
            groups.push(Group {
                threads: 1,
                ops: u64::MAX,
                write_rate: asked.args.write_rate.unwrap_or(WRITER),
                op: Arc::new(move |w: &mut Worker, _| {
                    let n = w.random.below(w.data.keys());
                    w.put(n, log)
                }),
            });
        }
        if self == Kind::DurablePutWhileReading {
            groups.push(Group {
                threads: READERS,
                ops: u64::MAX,
                write_rate: 0,
                op: Arc::new(|w: &mut Worker, _| {
                    let n = w.random.below(w.data.keys());
                    w.get(n, Presence::Certain)
                }),
            });
        }
        groups
    }

    /// Returns the operation of the kind's main group.
    fn operation(self, asked: &RunRequest) -> Arc<Operation> {
        let how = asked
            .args
            .distribution
            .unwrap_or_else(|| self.distribution());
        let keys = KeyChoice { how };
        match self {
            Kind::Load
            | Kind::LoadSorted
            | Kind::FillRandom
            | Kind::Restart
            | Kind::Overwrite
            | Kind::Ingest
            | Kind::BulkSorted
            | Kind::DurablePut
            | Kind::DurablePutWhileReading => self.write(asked, keys),
            Kind::FolderLoad | Kind::FolderBulk | Kind::FolderExport => self.folder(asked),
            Kind::ReadRandom
            | Kind::ReadWhileWriting
            | Kind::ReadAbsent
            | Kind::MultiGet
            | Kind::Seek10
            | Kind::Seek1000
            | Kind::LongScan
            | Kind::Scan10WhileWriting
            | Kind::Scan1000WhileWriting => self.read(asked, keys),
            Kind::YcsbA
            | Kind::YcsbB
            | Kind::YcsbC
            | Kind::YcsbD
            | Kind::YcsbE
            | Kind::YcsbF
            | Kind::State => self.mixed(asked, keys),
        }
    }

    /// Returns the operation of a kind that only writes.
    fn write(self, asked: &RunRequest, keys: KeyChoice) -> Arc<Operation> {
        let log = asked.log();
        let batch = asked.args.batch;
        match self {
            Kind::Load | Kind::LoadSorted | Kind::Restart => Arc::new(move |w: &mut Worker, n| {
                let keys = w.data.keys();
                let numbers = n * batch..((n + 1) * batch).min(keys);
                match self {
                    Kind::Load | Kind::Restart => {
                        let data = w.data.clone();
                        w.put_batch(numbers.map(|i| data.shuffled(i)), log)
                    }
                    _ => w.put_batch(numbers, log),
                }
            }),
            Kind::FillRandom => Arc::new(move |w: &mut Worker, n| w.put(w.data.shuffled(n), log)),
            Kind::Overwrite | Kind::Ingest => Arc::new(move |w: &mut Worker, n| {
                let n = keys.of_put(w, n);
                w.put(n, log)
            }),
            Kind::BulkSorted => Arc::new(|w: &mut Worker, n| {
                let keys = w.data.keys();
                w.bulk(n * keys / BULK_PARTS..(n + 1) * keys / BULK_PARTS)
            }),
            Kind::DurablePut | Kind::DurablePutWhileReading => {
                Arc::new(move |w: &mut Worker, n| {
                    let n = keys.of_put(w, n);
                    w.put(n, Log::Synced)
                })
            }
            _ => unreachable!("{self:?} does not only write"),
        }
    }

    /// Returns the operation of a kind that copies the files of a directory.
    fn folder(self, asked: &RunRequest) -> Arc<Operation> {
        let log = asked.log();
        let folder = asked.folder().clone();
        match self {
            Kind::FolderLoad => Arc::new(move |w: &mut Worker, n| {
                let (key, content) = folder.read(n as usize)?;
                w.put_entry(&key, &content, log)
            }),
            Kind::FolderBulk => Arc::new(move |w: &mut Worker, n| {
                let files = folder.len() as u64;
                let mut part = n * files / BULK_PARTS..(n + 1) * files / BULK_PARTS;
                w.bulk_entries(&mut |key, value| {
                    let Some(n) = part.next() else {
                        return Ok(false);
                    };
                    (*key, *value) = folder.read(n as usize)?;
                    Ok(true)
                })
            }),
            Kind::FolderExport => Arc::new(move |w: &mut Worker, _| folder.export(w)),
            _ => unreachable!("{self:?} copies no directory"),
        }
    }

    /// Returns the operation of a kind whose main group only reads.
    fn read(self, asked: &RunRequest, keys: KeyChoice) -> Arc<Operation> {
        let batch = asked.args.batch;
        match self {
            Kind::ReadRandom | Kind::ReadWhileWriting => Arc::new(move |w: &mut Worker, _| {
                let n = keys.of_all(w);
                w.get(n, Presence::Certain)
            }),
            Kind::ReadAbsent => Arc::new(move |w: &mut Worker, _| {
                let n = w.data.keys() + w.random.below(w.data.keys());
                w.get(n, Presence::Certain)
            }),
            Kind::MultiGet => Arc::new(move |w: &mut Worker, _| {
                let numbers: Vec<u64> = (0..batch).map(|_| keys.of_all(w)).collect();
                w.multi_get(&numbers)
            }),
            Kind::Seek10 => keys.seek(10, Presence::Certain),
            Kind::Seek1000 => keys.seek(1000, Presence::Certain),
            Kind::LongScan => keys.seek(10_000, Presence::Certain),
            Kind::Scan10WhileWriting => keys.seek(10, Presence::Any),
            Kind::Scan1000WhileWriting => keys.seek(1000, Presence::Any),
            _ => unreachable!("{self:?} does not only read"),
        }
    }

    /// Returns the operation of a kind whose operations read or write at random.
    fn mixed(self, asked: &RunRequest, keys: KeyChoice) -> Arc<Operation> {
        let log = asked.log();
        match self {
            Kind::YcsbA => keys.get_or(50, log, |w, n, log| w.put(n, log)),
            Kind::YcsbB => keys.get_or(95, log, |w, n, log| w.put(n, log)),
            Kind::YcsbC => keys.get_or(100, log, |w, n, log| w.put(n, log)),
            Kind::YcsbD => keys.get_or(95, log, |w, _, log| w.insert(log)),
            Kind::YcsbE => Arc::new(move |w: &mut Worker, _| {
                if w.random.below(100) < 95 {
                    let n = keys.of_fill(w);
                    let len = 1 + w.random.below(100);
                    w.scan(n, len, Presence::Any)
                } else {
                    w.insert(log)
                }
            }),
            Kind::YcsbF => keys.get_or(50, log, |w, n, log| {
                w.get(n, asked_presence(n, w))?;
                w.put(n, log)
            }),
            Kind::State => Arc::new(move |w: &mut Worker, _| {
                let n = keys.of_all(w);
                match w.random.below(3) {
                    0 => w.get(n, Presence::Any),
                    1 => w.put(n, log),
                    _ => w.delete(n, log),
                }
            }),
            _ => unreachable!("{self:?} does not mix reads and writes"),
        }
    }
}

/// The way in which the operations of a run choose their keys.
#[derive(Clone, Copy)]
struct KeyChoice {
    how: Distribution,
}

impl KeyChoice {
    /// Chooses among the keys of the fill and those that the run has added.
    fn of_all(self, w: &Worker) -> u64 {
        pick(self.how, &w.random, &w.data, w.added.load(Relaxed))
    }

    /// Chooses among the keys of the fill. Scans begin at these: the number of keys that follow is
    /// known.
    fn of_fill(self, w: &Worker) -> u64 {
        pick(self.how, &w.random, &w.data, 0)
    }

    /// Returns the key of the put with number `n`.
    fn of_put(self, w: &Worker, n: u64) -> u64 {
        match self.how {
            Distribution::Cyclic => w.data.shuffled(n),
            _ => self.of_all(w),
        }
    }

    /// Returns an operation that seeks a key of the fill and reads the `nexts` entries behind it.
    fn seek(self, nexts: u64, presence: Presence) -> Arc<Operation> {
        Arc::new(move |w: &mut Worker, _| {
            let n = self.of_fill(w);
            w.scan(n, nexts + 1, presence)
        })
    }

    /// Returns an operation that is a lookup with this probability in percent, and else `other`.
    fn get_or(
        self,
        percent: u64,
        log: Log,
        other: fn(&mut Worker, u64, Log) -> Result<(), Stop>,
    ) -> Arc<Operation> {
        Arc::new(move |w: &mut Worker, _| {
            let n = self.of_all(w);
            match w.random.below(100) < percent {
                true => w.get(n, asked_presence(n, w)),
                false => other(w, n, log),
            }
        })
    }
}

/// Returns whether a key must exist. A key that a workload adds may be absent: its number is taken
/// before its put is done.
fn asked_presence(n: u64, w: &Worker) -> Presence {
    match w.data.is_filled(n) {
        true => Presence::Certain,
        false => Presence::Any,
    }
}

impl RunRequest<'_> {
    /// Returns the sync mode of puts.
    pub fn log(&self) -> Log {
        match self.args.common.sync {
            Switch::On => Log::Synced,
            Switch::Off if self.args.no_log => Log::None,
            Switch::Off => Log::Unsynced,
        }
    }
}
