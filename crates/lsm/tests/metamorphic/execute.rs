//! Executes a history under one set of options and writes down every answer.

use crate::chance::Chance;
use crate::operations::{FAMILIES, HELD, Item, Look, Move, Op, STEP_MS, What, key_bytes};
use crate::settings::{MORTAL, Settings};
use basalt_env::{Env, ManualClock};
use basalt_fs::SimFs;
use basalt_fs::sim::SimOptions;
use basalt_lsm::db::Iter;
use basalt_lsm::{
    Db, Family, MAX_KEY_LEN, ReadOptions, Result, Snapshot, Ticket, WriteBatch, WriteOptions,
};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// The wall time at which histories begin.
const START_MS: u64 = 1_700_000_000_000;
const DIR: &str = "store";

/// The answers of a history, in order: each with the operation that asked.
#[derive(Default)]
pub struct Transcript(Vec<(usize, String)>);

impl Transcript {
    /// How many answers there are.
    pub fn answers(&self) -> usize {
        self.0.len()
    }
}

struct Execution<'a> {
    ops: &'a [Op],
    settings: &'a Settings,
    /// What another set of options answered.
    reference: Option<&'a Transcript>,
    said: Transcript,
    /// The operation that runs.
    at: usize,
    disk: Arc<SimFs>,
    hands: Arc<ManualClock>,
    env: Env,
    db: Option<Db>,
    families: BTreeMap<&'static str, Family>,
    /// Handles of families that were dropped in this life.
    gone: Vec<Family>,
    snapshots: Vec<Snapshot>,
    iters: Vec<Iter>,
    lives: u64,
    /// Steps of time since the start.
    now: u64,
    /// Grows with each value, so that none is like another.
    nonce: u64,
    chance: Chance,
}

/// Executes a history. Panics at the first answer that is not the reference's.
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
    let hands = ManualClock::new(START_MS);
    let env = settings.environment(disk.clone(), hands.clone(), 0);
    let mut run = Execution {
        ops,
        settings,
        reference,
        said: Transcript::default(),
        at: 0,
        disk,
        hands,
        env,
        db: None,
        families: BTreeMap::new(),
        gone: Vec::new(),
        snapshots: Vec::new(),
        iters: Vec::new(),
        lives: 0,
        now: 0,
        nonce: 0,
        chance: Chance::of(&[seed, 34]),
    };
    run.open();
    for (at, op) in ops.iter().enumerate() {
        run.at = at;
        run.run(op);
        if run.chance.percent(settings.steps) {
            run.env.jobs().step();
        }
    }
    run.at = ops.len();
    run.all();
    run.end(0);
    run.verify();
    run.said
}

/// A value in few words: enough to tell it from every other.
fn brief(value: &[u8]) -> String {
    let sum = value.iter().fold(value.len() as u64, |sum, b| {
        crate::chance::mix(sum ^ u64::from(*b))
    });
    let head = String::from_utf8_lossy(&value[..value.len().min(8)]);
    format!("{head:?}..{} {sum:016x}", value.len())
}

fn shown(key: &[u8]) -> String {
    let head = String::from_utf8_lossy(&key[..key.len().min(40)]);
    format!("{head:?}({})", key.len())
}

/// True when readers show the value.
fn lives(value: &[u8]) -> bool {
    value.first() != Some(&MORTAL)
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

    /// Writes an answer down and holds it against the reference.
    fn say(&mut self, answer: String) {
        let n = self.said.0.len();
        if let Some(reference) = self.reference {
            let wanted = reference.0.get(n);
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
        self.said.0.push((self.at, answer));
    }

    fn open(&mut self) {
        let options = self.settings.options(self.lives);
        let db = Db::open(&self.env, DIR, options);
        self.say(format!("open: {}", outcome(&db)));
        let db = db.expect("a sound store opens");
        for name in FAMILIES {
            if let Some(family) = db.family(name) {
                self.families.insert(name, family);
            }
        }
        self.say(format!("families: {:?}", db.families()));
        self.db = Some(db);
    }

    fn end(&mut self, way: u64) {
        self.iters.clear();
        self.snapshots.clear();
        self.families.clear();
        self.gone.clear();
        let db = self.db.take().expect("open");
        match way {
            0 | 1 => {
                let closed = db.close();
                self.say(format!("close: {}", outcome(&closed)));
            }
            // Where threads work, a process cannot die without taking them along.
            2 if !self.settings.threaded() => db.abandon(),
            _ => drop(db),
        }
    }

    /// A closed store verifies, and holds nothing that belongs to nothing.
    fn verify(&mut self) {
        let options = self.settings.options(self.lives);
        let report = Db::verify_store(&self.env, DIR, &options, &mut |_, _| ())
            .expect("a closed store can be walked");
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        assert!(report.orphans.is_empty(), "{:?}", report.orphans);
    }

    fn fill(&mut self, items: &[Item]) -> WriteBatch {
        let mut batch = WriteBatch::new();
        for item in items {
            self.nonce += 1;
            let Some(family) = self.families.get(FAMILIES[item.family]) else {
                continue;
            };
            let key = key_bytes(item.key);
            let value = |len: u32, first: Option<u8>| {
                let mut v: Vec<u8> = first.into_iter().collect();
                v.extend(format!("<{}>", self.nonce).bytes());
                while v.len() < len as usize {
                    v.extend(crate::chance::mix(self.nonce + v.len() as u64).to_le_bytes());
                    v.extend(b"and so on ");
                }
                // At least its first byte, by which readers know it.
                v.truncate((len as usize).max(first.iter().len()));
                v
            };
            match item.what {
                What::Put(len) => batch.put(family, &key, &value(len, None)),
                What::PutTtl(len, steps) => {
                    // In the middle of a step, where no moment of any execution comes near.
                    let end = START_MS + (self.now + steps) * STEP_MS + STEP_MS / 2;
                    batch.put_ttl(family, &key, &value(len, None), end)
                }
                What::Mortal(len) => batch.put(family, &key, &value(len, Some(MORTAL))),
                What::Delete => batch.delete(family, &key),
            }
            .expect("inside the limits");
        }
        batch
    }

    fn write(&mut self, items: &[Item], sync: bool) {
        let batch = self.fill(items);
        let done = self.db().write(batch, &WriteOptions { sync });
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
    }

    fn read_options(&self, snapshot: Option<usize>) -> ReadOptions {
        ReadOptions {
            snapshot: snapshot.and_then(|n| self.snapshots.get(n).cloned()),
            fill_cache: self.settings.fill_cache,
            ..ReadOptions::default()
        }
    }

    fn bounded(&self, look: &Look) -> ReadOptions {
        ReadOptions {
            lower_bound: look.from.map(key_bytes),
            upper_bound: look.to.map(key_bytes),
            ..self.read_options(look.snapshot)
        }
    }

    fn get(&mut self, look: &Look, key: u64) {
        let Some(family) = self.families.get(FAMILIES[look.family]) else {
            return;
        };
        let read = self.read_options(look.snapshot);
        let found = self.db().get_with_expiry(family, &key_bytes(key), &read);
        let text = match found {
            Err(e) => format!("{:?}", e.kind()),
            Ok(Some(v)) if lives(&v.value) => {
                format!("{} until {:?}", brief(&v.value), v.expire_at_ms)
            }
            Ok(_) => "absent".to_string(),
        };
        self.say(format!("get: {text}"));
    }

    fn multi_get(&mut self, keys: &[(usize, u64)], snapshot: Option<usize>) {
        let read = self.read_options(snapshot);
        let asked: Vec<(Family, Vec<u8>)> = (keys.iter())
            .filter_map(|(f, k)| Some((self.families.get(FAMILIES[*f])?.clone(), key_bytes(*k))))
            .collect();
        let asked: Vec<(&Family, &[u8])> = asked.iter().map(|(f, k)| (f, &k[..])).collect();
        let mut text = String::new();
        for found in self.db().multi_get(&asked, &read) {
            match found {
                Err(e) => write!(text, "{:?}; ", e.kind()),
                Ok(Some(v)) if lives(&v) => write!(text, "{}; ", brief(&v)),
                Ok(_) => write!(text, "absent; "),
            }
            .expect("a string takes all");
        }
        self.say(format!("multi_get: {text}"));
    }

    /// Moves an iterator on to what readers show; the row it stands on then.
    fn row(iter: &mut Iter, down: bool) -> Result<Option<String>> {
        while iter.valid() {
            if lives(iter.value()) {
                let (key, value) = (shown(iter.key()), brief(iter.value()));
                return Ok(Some(format!(
                    "{key} = {value} until {:?}",
                    iter.expire_at_ms()
                )));
            }
            if down { iter.prev() } else { iter.next() }?;
        }
        Ok(None)
    }

    fn say_row(&mut self, what: &str, row: Result<Option<String>>) {
        let text = match row {
            Ok(Some(row)) => row,
            Ok(None) => "the end".to_string(),
            Err(e) => format!("{:?}", e.kind()),
        };
        self.say(format!("{what}: {text}"));
    }

    fn scan(&mut self, look: &Look, down: bool) {
        let Some(family) = self.families.get(FAMILIES[look.family]) else {
            return;
        };
        let mut iter = match self.db().iter(family, &self.bounded(look)) {
            Ok(iter) => iter,
            Err(e) => return self.say(format!("iter: {:?}", e.kind())),
        };
        let mut moved = if down {
            iter.seek_to_last()
        } else {
            iter.seek_to_first()
        };
        loop {
            let row = moved.and_then(|()| Self::row(&mut iter, down));
            let more = matches!(row, Ok(Some(_)));
            self.say_row("scan", row);
            if !more {
                return;
            }
            moved = if down { iter.prev() } else { iter.next() };
        }
    }

    fn scan_in_pieces(&mut self, look: &Look, down: bool, skips: u64) {
        let Some(family) = self.families.get(FAMILIES[look.family]).cloned() else {
            return;
        };
        // Each piece is read as of the same moment.
        let mut read = self.bounded(look);
        read.snapshot.get_or_insert_with(|| self.db().snapshot());
        read.skip_budget = skips;
        let mut from: Option<Vec<u8>> = None;
        loop {
            let mut iter = self.db().iter(&family, &read).expect("as the one before");
            let mut moved = match &from {
                Some(key) if down => iter.seek_for_prev(key),
                Some(key) => iter.seek(key),
                None if down => iter.seek_to_last(),
                None => iter.seek_to_first(),
            };
            loop {
                let row = moved.and_then(|()| Self::row(&mut iter, down));
                let more = matches!(row, Ok(Some(_)));
                if iter.paused_at().is_none() {
                    self.say_row("piece", row);
                }
                if !more {
                    break;
                }
                moved = if down { iter.prev() } else { iter.next() };
            }
            match iter.paused_at() {
                Some(key) => from = Some(key.to_vec()),
                None => return,
            }
        }
    }

    fn move_iter(&mut self, iter: &mut Iter, to: &Move) {
        let steps = match to {
            Move::Next(n) | Move::Prev(n) => *n,
            _ => 1,
        };
        let down = matches!(to, Move::Prev(_) | Move::Last | Move::SeekForPrev(_));
        for _ in 0..steps {
            let moved = match to {
                Move::First => iter.seek_to_first(),
                Move::Last => iter.seek_to_last(),
                Move::Seek(key) => iter.seek(&key_bytes(*key)),
                Move::SeekForPrev(key) => iter.seek_for_prev(&key_bytes(*key)),
                Move::Next(_) | Move::Prev(_) if !iter.valid() => return,
                Move::Next(_) => iter.next(),
                Move::Prev(_) => iter.prev(),
            };
            let row = moved.and_then(|()| Self::row(iter, down));
            self.say_row("iterator", row);
        }
    }

    fn create(&mut self, name: &'static str) {
        let options = self.settings.options(self.lives).family(name).clone();
        let made = self.db().create_family(name, options);
        self.say(format!("create: {}", outcome(&made)));
        if let Ok(family) = made {
            self.families.insert(name, family);
        }
    }

    fn drop_family(&mut self, name: &'static str) {
        if let Some(family) = self.families.remove(name) {
            let dropped = self.db().drop_family(&family);
            self.say(format!("drop: {}", outcome(&dropped)));
            self.gone.push(family);
        }
    }

    /// What must be refused, in the same words whatever the options.
    fn mistake(&mut self, n: u64) {
        let default = self.families["default"].clone();
        let gone = self.gone.last().cloned();
        let text = match (n % 5, gone) {
            (0, _) => outcome(&self.db().drop_family(&default)),
            (1, _) => {
                let long = vec![b'k'; MAX_KEY_LEN + 1];
                outcome(&WriteBatch::new().put(&default, &long, b"v"))
            }
            (2, Some(gone)) => outcome(&self.db().get(&gone, b"k", &ReadOptions::default())),
            (3, Some(gone)) => outcome(&self.db().put(&gone, b"k", b"v", &WriteOptions::default())),
            (4, Some(gone)) => outcome(&self.db().iter(&gone, &ReadOptions::default())),
            _ => outcome(&Db::open(&self.env, DIR, self.settings.options(self.lives))),
        };
        self.say(format!("mistake: {text}"));
    }

    fn all(&mut self) {
        for (family, name) in FAMILIES.iter().enumerate() {
            if self.families.contains_key(name) {
                let look = Look {
                    family,
                    snapshot: None,
                    from: None,
                    to: None,
                };
                self.scan(&look, false);
            }
        }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Write { items, sync } => self.write(items, *sync),
            Op::Burst(batches) => self.burst(batches),
            Op::Get { look, key } => self.get(look, *key),
            Op::MultiGet { keys, snapshot } => self.multi_get(keys, *snapshot),
            Op::Scan { look, down } => self.scan(look, *down),
            Op::ScanInPieces { look, down, skips } => self.scan_in_pieces(look, *down, *skips),
            Op::OpenIter { look, first } => {
                let Some(family) = self.families.get(FAMILIES[look.family]) else {
                    return;
                };
                let made = self.db().iter(family, &self.bounded(look));
                let mut iter = made.expect("of a family that is there");
                self.move_iter(&mut iter, first);
                if self.iters.len() >= HELD {
                    self.iters.remove(0);
                }
                self.iters.push(iter);
            }
            Op::MoveIter(n, to) => {
                if *n < self.iters.len() {
                    let mut iter = self.iters.remove(*n);
                    self.move_iter(&mut iter, to);
                    self.iters.push(iter);
                }
            }
            Op::CloseIter(n) => {
                if *n < self.iters.len() {
                    self.iters.remove(*n);
                }
            }
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
            Op::Settle => {
                let done = self.db().settle();
                self.say(format!("settle: {}", outcome(&done)));
            }
            Op::Sync => {
                let done = self.db().sync();
                self.say(format!("sync: {}", outcome(&done)));
            }
            Op::Advance(steps) => {
                self.now += steps;
                self.hands.advance(Duration::from_millis(steps * STEP_MS));
                // Also when it had been set back.
                self.hands.set_wall_ms(START_MS + self.now * STEP_MS);
            }
            Op::StepBack(steps) => {
                // What has expired stays expired, so for readers the time is what it was.
                let back = self.now.saturating_sub(*steps);
                self.hands.set_wall_ms(START_MS + back * STEP_MS);
            }
            Op::Reopen { way, fresh } => {
                self.end(*way);
                self.lives += 1;
                if *fresh {
                    // As another process has it: its clock shows the time, its chance is its own.
                    self.hands = ManualClock::new(START_MS + self.now * STEP_MS);
                    let (disk, hands) = (self.disk.clone(), self.hands.clone());
                    self.env = self.settings.environment(disk, hands, self.lives);
                }
                self.open();
            }
            Op::All => self.all(),
        }
    }
}

/// The options of a life that matter, on one line.
fn describe(options: &basalt_lsm::Options) -> String {
    let f = &options.default_family;
    format!(
        "write_buffer_bytes {}, max_sealed_memtables {}, idle_release {:?}; default family: block_bytes {}, filter_bits_per_key {}, \
         compression {:?}, bottom_compression {:?}, table_bytes {}, l0_compaction_trigger {}, l0_slowdown {}, base_level_bytes {}, \
         level_multiplier {}, compaction filter {}",
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
        f.compaction_filter.is_some(),
    )
}
