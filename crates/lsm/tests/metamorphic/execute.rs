//! Executes a history under one set of options and records every answer.

mod conditional;
mod copies;
mod reads;

use crate::operations::{FAMILIES, HELD, Item, Op, STEP_MS, What, key_bytes};
use crate::operators::{POISON, affine};
use crate::rng::Rng;
use crate::settings::{EXPIRABLE, Settings};
use basalt_env::{Env, ManualClock};
use basalt_lsm::db::{CheckpointOptions, Iter, TableWriter};
use basalt_lsm::{
    Db, Family, MAX_KEY_LEN, ReadOptions, Result, Snapshot, Ticket, WriteBatch, WriteOptions,
};
use basalt_sim::{SimFs, SimOptions};
use conditional::{Changes, keep_changes};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

/// The wall time at which histories begin.
const START_MS: u64 = 1_700_000_000_000;
const DIR: &str = "store";

/// The answers of a history, in order, each with the operation that asked.
#[derive(Default)]
pub struct Transcript {
    said: Vec<(usize, String)>,
    /// Number of times that each effect really happened, by its name.
    pub did: EffectCounts,
}

/// Counts by name.
pub type EffectCounts = BTreeMap<&'static str, u64>;

impl Transcript {
    /// Returns the number of answers.
    pub fn answers(&self) -> usize {
        self.said.len()
    }
}

/// The expiry of the value below a key's operands, and the number of operands since.
type Base = (Option<u64>, u64);

/// The results of puts and deletes by key: a value and its expiry, or none.
type Plain = BTreeMap<(usize, Vec<u8>), Option<(Vec<u8>, Option<u64>)>>;

struct Execution<'a> {
    ops: &'a [Op],
    settings: &'a Settings,
    /// The answers under another set of options.
    reference: Option<&'a Transcript>,
    said: Transcript,
    /// The number of the operation that runs.
    at: usize,
    disk: Arc<SimFs>,
    manual_clock: Arc<ManualClock>,
    env: Env,
    db: Option<Db>,
    families: BTreeMap<&'static str, Family>,
    /// Handles of families that were dropped in this life.
    gone: Vec<Family>,
    snapshots: Vec<Snapshot>,
    iters: Vec<Iter>,
    tails: Vec<Iter>,
    /// The base of each key that was written, except for those that an operator refuses.
    bases: BTreeMap<(usize, Vec<u8>), Base>,
    /// The changes of keys in this life.
    changes: Changes,
    /// Number of checkpoints.
    copies: u64,
    lives: u64,
    /// Steps of time since the start.
    now: u64,
    /// A number that grows with each value, so that no two values are equal.
    nonce: u64,
    rng: Rng,
}

/// Executes a history. Panics at the first answer that differs from the reference's.
pub fn execute(
    ops: &[Op],
    seed: u64,
    settings: &Settings,
    reference: Option<&Transcript>,
) -> Transcript {
    let disk = SimFs::new(SimOptions {
        write_unit: settings.write_unit,
        capacity: 1 << 40,
        seed,
    });
    let manual_clock = ManualClock::new(START_MS);
    let env = settings.environment(disk.clone(), manual_clock.clone(), 0);
    let mut run = Execution {
        ops,
        settings,
        reference,
        said: Transcript::default(),
        at: 0,
        disk,
        manual_clock,
        env,
        db: None,
        families: BTreeMap::new(),
        gone: Vec::new(),
        snapshots: Vec::new(),
        iters: Vec::new(),
        tails: Vec::new(),
        bases: BTreeMap::new(),
        changes: Changes::default(),
        copies: 0,
        lives: 0,
        now: 0,
        nonce: 0,
        rng: Rng::of(&[seed, 34]),
    };
    run.open();
    for (at, op) in ops.iter().enumerate() {
        run.at = at;
        run.run(op);
        if run.rng.percent(settings.steps) {
            run.env.jobs().step();
        }
    }
    run.at = ops.len();
    run.all();
    run.end(0);
    run.verify();
    run.said.did.insert("executions", 1);
    run.said
}

/// Describes a value in few words: enough to distinguish it from every other.
fn brief(value: &[u8]) -> String {
    let sum = value.iter().fold(value.len() as u64, |sum, b| {
        crate::rng::mix(sum ^ u64::from(*b))
    });
    let head = String::from_utf8_lossy(&value[..value.len().min(8)]);
    format!("{head:?}..{} {sum:016x}", value.len())
}

fn shown(key: &[u8]) -> String {
    let head = String::from_utf8_lossy(&key[..key.len().min(40)]);
    format!("{head:?}({})", key.len())
}

/// Returns true if readers show the value.
fn lives(value: &[u8]) -> bool {
    value.first() != Some(&EXPIRABLE)
}

fn outcome<T>(result: &Result<T>) -> String {
    match result {
        Ok(_) => "ok".to_string(),
        Err(e) => format!("{:?}", e.kind()),
    }
}

impl Execution<'_> {
    fn db(&self) -> &Db {
        self.db.as_ref().expect("open")
    }

    /// Records an answer and compares it with the reference.
    fn say(&mut self, answer: String) {
        let n = self.said.said.len();
        if let Some(reference) = self.reference {
            let wanted = reference.said.get(n);
            let same = wanted.is_some_and(|(at, text)| (*at, text) == (self.at, &answer));
            assert!(
                same,
                "answer {n}, to operation {} ({:?}), is\n  {answer}\nand under set 0 it was\n  {}\nwith {:?} and {}",
                self.at,
                self.ops.get(self.at),
                wanted.map_or("none".to_string(), |(at, text)| format!(
                    "{text} (operation {at})"
                )),
                self.settings,
                describe(&self.settings.options(self.lives)),
            );
        }
        self.said.said.push((self.at, answer));
    }

    /// Counts effects that really happened.
    fn did(&mut self, what: &'static str, n: u64) {
        *self.said.did.entry(what).or_default() += n;
    }

    /// Returns the wall time, never set back.
    fn now_ms(&self) -> u64 {
        START_MS + self.now * STEP_MS
    }

    /// Returns the settings of this life.
    fn options(&self) -> basalt_lsm::Options {
        match self.lives {
            0 => self.settings.options(0),
            n => self.settings.options_of_known(n),
        }
    }

    fn open(&mut self) {
        let options = self.options();
        let db = Db::open(&self.env, DIR, options);
        self.say(format!("open: {}", outcome(&db)));
        let db = db.expect("a sound store opens");
        for name in FAMILIES {
            if let Some(family) = db.family(name) {
                self.families.insert(name, family);
            }
        }
        self.say(format!("families: {:?}", db.families()));
        self.changes = Changes::since(db.snapshot().seq());
        self.families.values().for_each(|f| keep_changes(&db, f));
        self.db = Some(db);
    }

    fn end(&mut self, way: u64) {
        self.iters.clear();
        self.tails.clear();
        self.snapshots.clear();
        self.families.clear();
        self.gone.clear();
        let db = self.db.take().expect("open");
        let blobs = db.stats().blobs;
        self.did("collections", blobs.collections);
        self.did("names_made", blobs.names_made);
        self.did("names_forgotten", blobs.names_forgotten);
        match way {
            0 | 1 => {
                let closed = db.close();
                self.say(format!("close: {}", outcome(&closed)));
            }
            // With threads at work, a process cannot die without them.
            2 if !self.settings.threaded() => db.abandon(),
            _ => drop(db),
        }
    }

    /// Checks that a closed store verifies and has no unused files, and so do its copies.
    fn verify(&mut self) {
        let options = self.settings.options(self.lives);
        let copies = (0..self.copies).map(copies::name);
        for dir in copies.chain([DIR.to_string()]) {
            let report = Db::verify_store(&self.env, &dir, &options, &mut |_, _| ())
                .expect("a closed store can be walked");
            assert!(report.damage.is_empty(), "{dir}: {:?}", report.damage);
            assert!(
                report.unused_files.is_empty(),
                "{dir}: {:?}",
                report.unused_files
            );
        }
    }

    /// Begins the next life, of this process or of another one.
    fn live_on(&mut self, fresh: bool) {
        self.lives += 1;
        if fresh {
            // The environment is that of another process: its clock shows the time, its random
            // numbers are its own.
            self.manual_clock = ManualClock::new(self.now_ms());
            let (disk, manual_clock) = (self.disk.clone(), self.manual_clock.clone());
            self.env = self.settings.environment(disk, manual_clock, self.lives);
        }
    }

    /// Returns the bytes of a unique value that begins with these bytes.
    fn value(&self, family: usize, len: u32, first: Option<u8>) -> Vec<u8> {
        // The operator of the last family can add to this value; larger ones it refuses.
        if family == 3 && len < 400 {
            return (self.nonce << 8).to_le_bytes().to_vec();
        }
        let mut v: Vec<u8> = first.into_iter().collect();
        v.extend(format!("<{}>", self.nonce).bytes());
        while v.len() < len as usize {
            v.extend(crate::rng::mix(self.nonce + v.len() as u64).to_le_bytes());
            v.extend(b"and so on ");
        }
        // The value keeps at least its first byte, by which readers know it.
        v.truncate((len as usize).max(first.iter().len()));
        v
    }

    fn operand(&self, family: usize, len: u32) -> Vec<u8> {
        let len = len.min(1500);
        match family {
            0 => {
                let (a, b) = (self.nonce * 2 + 1, crate::rng::mix(self.nonce));
                affine(a, b, len as usize)
            }
            // The first byte stays 0, so that no sum is taken for a value that readers hide.
            3 => (self.nonce << 8).to_le_bytes().to_vec(),
            _ => self.value(family, len, None),
        }
    }

    fn fill(&mut self, items: &[Item]) -> WriteBatch {
        self.fill_both(items).0
    }

    /// Returns the batch, and the same changes as prepared tables can have them.
    fn fill_both(&mut self, items: &[Item]) -> (WriteBatch, Option<Plain>) {
        let mut batch = WriteBatch::new();
        let mut plain = Some(Plain::new());
        for item in items {
            self.nonce += 1;
            let n = item.family;
            let Some(family) = self.families.get(FAMILIES[n]).cloned() else {
                continue;
            };
            let key = key_bytes(item.key);
            let place = (n, key.clone());
            if n == 0 || !matches!(item.what, What::Poison) {
                self.changes.note(n, &key, &item.what);
            }
            if let Some(plain) = &mut plain {
                plain.insert(place.clone(), self.plain(n, &item.what));
            }
            match item.what {
                What::Put(len) => {
                    self.bases.insert(place, (None, 0));
                    batch.put(&family, &key, &self.value(n, len, None))
                }
                What::PutTtl(len, steps) => {
                    // The expiry lies in the middle of a step, where no moment of any execution
                    // comes near.
                    let end = self.now_ms() + steps * STEP_MS + STEP_MS / 2;
                    self.bases.insert(place, (Some(end), 0));
                    batch.put_ttl(&family, &key, &self.value(n, len, None), end)
                }
                What::Expirable(len) => {
                    // In other families the operators do not know these values.
                    let first = (n == 0).then_some(EXPIRABLE);
                    self.bases.insert(place, (None, 0));
                    batch.put(&family, &key, &self.value(n, len, first))
                }
                What::Poison if n == 0 => {
                    self.bases.remove(&place);
                    batch.merge(&family, &key, POISON)
                }
                What::Poison => Ok(()),
                What::Merge(len) => {
                    self.bases.entry(place).or_default().1 += 1;
                    self.did("operands", 1);
                    batch.merge(&family, &key, &self.operand(n, len))
                }
                What::Delete => {
                    self.bases.remove(&place);
                    batch.delete(&family, &key)
                }
                What::DeleteRange(other) => {
                    let other = key_bytes(other);
                    let (from, mut to) = (key.clone().min(other.clone()), key.max(other));
                    if from == to {
                        to.push(0);
                    }
                    let before = self.bases.len();
                    (self.bases).retain(|(f, k), _| *f != n || *k < from || *k >= to);
                    let gone = before - self.bases.len();
                    self.did("keys_in_deleted_ranges", gone as u64);
                    batch.delete_range(&family, &from, &to)
                }
            }
            .expect("inside the limits");
            if matches!(
                item.what,
                What::Poison | What::Merge(_) | What::DeleteRange(_)
            ) {
                plain = None;
            }
        }
        (batch, plain)
    }

    /// Returns a put or delete by itself.
    fn plain(&self, n: usize, what: &What) -> Option<(Vec<u8>, Option<u64>)> {
        match what {
            What::Put(len) => Some((self.value(n, *len, None), None)),
            What::Expirable(len) => {
                Some((self.value(n, *len, (n == 0).then_some(EXPIRABLE)), None))
            }
            What::PutTtl(len, steps) => {
                let end = self.now_ms() + steps * STEP_MS + STEP_MS / 2;
                Some((self.value(n, *len, None), Some(end)))
            }
            _ => None,
        }
    }

    /// Writes the contents of a batch by tables that are prepared and added.
    fn ingest(&mut self, plain: Plain) -> Result<()> {
        let mut writers: BTreeMap<usize, TableWriter> = BTreeMap::new();
        for ((n, key), what) in plain {
            let writer = match writers.entry(n) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(none) => none.insert(self.db().prepare(&self.families[FAMILIES[n]])?),
            };
            match what {
                None => writer.delete(&key)?,
                Some((value, None)) => writer.add(&key, &value)?,
                Some((value, Some(end))) => writer.add_ttl(&key, &value, end)?,
            }
        }
        let families: Vec<usize> = writers.keys().copied().collect();
        let sets = writers.into_values().map(TableWriter::finish);
        self.db().ingest(&sets.collect::<Result<Vec<_>>>()?)?;
        for family in families {
            self.changes.known_from_next(family);
        }
        self.did("ingestions", 1);
        Ok(())
    }

    fn write(&mut self, items: &[Item], sync: bool) {
        let (batch, plain) = self.fill_both(items);
        let dice = crate::rng::mix(self.nonce ^ 0x1a6e57) % 100;
        let done = match plain.filter(|_| dice < self.settings.ingests) {
            Some(plain) => self.ingest(plain),
            None => (self.db().write(batch, &WriteOptions::synced(sync))).map(|_| ()),
        };
        self.note_moment();
        self.say(format!("write: {}", outcome(&done)));
    }

    fn burst(&mut self, batches: &[Vec<Item>]) {
        let batches: Vec<WriteBatch> = batches.iter().map(|items| self.fill(items)).collect();
        let tickets: Vec<Ticket> = (batches.into_iter())
            .map(|batch| self.db().submit(batch, &WriteOptions::default()))
            .collect();
        for ticket in tickets {
            let done = ticket.wait();
            self.say(format!("submit: {}", outcome(&done)));
        }
        self.note_moment();
    }

    fn create(&mut self, name: &'static str) {
        let options = self.settings.options(self.lives).family(name).clone();
        let made = self.db().create_family(name, options);
        self.say(format!("create: {}", outcome(&made)));
        if let Ok(family) = made {
            keep_changes(self.db(), &family);
            self.families.insert(name, family);
        }
    }

    fn drop_family(&mut self, name: &'static str) {
        if let Some(family) = self.families.remove(name) {
            let dropped = self.db().drop_family(&family);
            self.say(format!("drop: {}", outcome(&dropped)));
            self.bases.retain(|(f, _), _| FAMILIES[*f] != name);
            self.changes.forget(name);
            self.gone.push(family);
        }
    }

    /// Makes a mistake that must be refused, in the same words whatever the options.
    fn mistake(&mut self, n: u64) {
        let default = self.families["default"].clone();
        let gone = self.gone.last().cloned();
        let latest = ReadOptions::default()
            .tailing(true)
            .snapshot(Some(self.db().snapshot()));
        let text = match (n % 11, gone) {
            (0, _) => outcome(&self.db().drop_family(&default)),
            (1, _) => {
                let long = vec![b'k'; MAX_KEY_LEN + 1];
                outcome(&WriteBatch::new().put(&default, &long, b"v"))
            }
            (2, Some(gone)) => outcome(&self.db().get(&gone, b"k", &ReadOptions::default())),
            (3, Some(gone)) => outcome(&self.db().put(&gone, b"k", b"v", &WriteOptions::default())),
            (4, Some(gone)) => outcome(&self.db().iter(&gone, &ReadOptions::default())),
            (5, Some(gone)) => outcome(&self.db().compact_range(&gone, None, None)),
            (6, _) => outcome(&Db::open_read_only(&self.env, DIR, self.options())),
            (7, _) => outcome(&WriteBatch::new().merge(&default, b"k", b"no function")),
            (8, _) => outcome(&WriteBatch::new().delete_range(&default, b"l", b"k")),
            (9, _) => outcome(&self.db().iter(&default, &latest)),
            (10, _) => outcome(&self.db().checkpoint(DIR, &CheckpointOptions::default())),
            _ => outcome(&Db::open(&self.env, DIR, self.options())),
        };
        self.say(format!("mistake: {text}"));
    }

    fn all(&mut self) {
        self.outlived();
        for line in self.content(self.db()) {
            self.say(line);
        }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Write { items, sync } => self.write(items, *sync),
            Op::WriteIf {
                items,
                conditions,
                sync,
                submits,
            } => self.write_if(items, conditions, *sync, *submits),
            Op::Burst(batches) => self.burst(batches),
            Op::Get { look, key } => self.get(look, *key),
            Op::MultiGet { keys, snapshot } => self.multi_get(keys, *snapshot),
            Op::Scan { look, down } => self.scan(look, *down),
            Op::ScanInPieces { look, down, skips } => self.scan_in_pieces(look, *down, *skips),
            Op::MultiGetWithin { keys, snapshot } => self.multi_get_within(keys, *snapshot),
            Op::Prefix { look, from, turn } => self.prefix(look, from, *turn),
            Op::Beginning { look, with, down } => self.beginning(look, *with, *down),
            Op::OpenIter { look, first } => self.open_iter(look, first),
            Op::MoveIter(n, to) => {
                if *n < self.iters.len() {
                    let mut iter = self.iters.remove(*n);
                    self.move_iter(&mut iter, to);
                    self.iters.push(iter);
                }
            }
            Op::RefreshIter { iter, snapshot, to } => self.refresh(*iter, *snapshot, to),
            Op::CloseIter(n) => {
                if *n < self.iters.len() {
                    self.iters.remove(*n);
                }
            }
            Op::OpenTail { look, first } => self.open_tail(look, first),
            Op::Follow { family, len, flush } => self.follow(*family, *len, *flush),
            Op::MoveTail(n, to) => {
                if !self.tails.is_empty() {
                    let mut tail = self.tails.remove(*n % self.tails.len());
                    self.move_tail(&mut tail, to);
                    self.tails.push(tail);
                }
            }
            Op::CompactAs { look, cancelled } => self.compact(look, *cancelled),
            Op::Checkpoint => self.checkpoint(),
            Op::OpenCopy { copy, write } => self.open_copy(*copy, *write),
            Op::ReadOnly { way, fresh } => self.read_only(*way, *fresh),
            Op::TakeSnapshot => {
                if self.snapshots.len() >= HELD {
                    self.snapshots.remove(0);
                }
                self.snapshots.push(self.db().snapshot());
            }
            Op::DropSnapshot(n) => {
                if *n < self.snapshots.len() {
                    self.snapshots.remove(*n);
                }
            }
            Op::CreateFamily(n) => self.create(FAMILIES[*n]),
            Op::DropFamily(n) => self.drop_family(FAMILIES[*n]),
            Op::Mistake(n) => self.mistake(*n),
            Op::Flush => {
                let done = self.db().flush();
                self.say(format!("flush: {}", outcome(&done)));
            }
            Op::Compact(look) => {
                if let Some(family) = self.families.get(FAMILIES[look.family]) {
                    let (from, to) = (look.from.map(key_bytes), look.to.map(key_bytes));
                    let db = self.db();
                    let done = db.compact_range(family, from.as_deref(), to.as_deref());
                    self.say(format!("compact: {}", outcome(&done)));
                }
            }
            Op::WaitIdle => {
                let done = self.db().wait_idle();
                self.say(format!("wait_idle: {}", outcome(&done)));
            }
            Op::Sync => {
                let done = self.db().sync();
                self.say(format!("sync: {}", outcome(&done)));
            }
            Op::Advance(steps) => {
                self.now += steps;
                self.manual_clock
                    .advance(Duration::from_millis(steps * STEP_MS));
                // The clock is right again even if it had been set back.
                self.manual_clock.set_wall_ms(START_MS + self.now * STEP_MS);
            }
            Op::StepBack(steps) => {
                // Expired entries stay expired, so for readers the time stays the same.
                let back = self.now.saturating_sub(*steps);
                self.manual_clock.set_wall_ms(START_MS + back * STEP_MS);
            }
            Op::Reopen { way, fresh } => {
                self.end(*way);
                self.live_on(*fresh);
                self.open();
            }
            Op::All => self.all(),
        }
    }
}

/// Describes the relevant options of a life, on one line.
fn describe(options: &basalt_lsm::Options) -> String {
    let f = &options.default_family;
    format!(
        "write_buffer_bytes {}, max_sealed_memtables {}, idle_release {:?}; default family: block_bytes {}, filter_bits_per_key {}, \
         compression {:?}, bottom_compression {:?}, table_bytes {}, l0_compaction_trigger {}, l0_slowdown {}, base_level_bytes {}, \
         level_multiplier {}, min_blob_size {:?}, blob_compression {:?}, compaction filter {}, extractor {:?}",
        options.write_buffer_bytes,
        options.max_sealed_memtables,
        options.idle_release,
        f.block_bytes,
        f.filter_bits_per_key,
        f.compression,
        f.bottom_compression,
        f.table_bytes,
        f.l0_compaction_trigger,
        f.l0_slowdown,
        f.base_level_bytes,
        f.level_multiplier,
        f.min_blob_size,
        f.blob_compression,
        f.compaction_filter.is_some(),
        f.prefix_extractor,
    )
}
