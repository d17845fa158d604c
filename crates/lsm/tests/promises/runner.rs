//! Runs a history against an engine and the reference at once, and compares every answer.
//!
//! The engine is stepped and alone. So at every moment the runner knows which commits were
//! submitted and which were acknowledged as durable: [`Progress`] tells the observer of the disk.

mod cancelled;
mod conditional;
mod ingested;
mod prefixes;
mod reads;
mod rest;

use crate::history::{End, FAMILIES, Item, Op, What, key_bytes, options, value_bytes};
use crate::model::{Change, Commit, Entry, Key, Model, State, Table, difference, digest, visible};
use basalt_env::{Clock, Env, EnvBuilder, Gauge, ManualClock};
use basalt_fs::FileSystem;
use basalt_lsm::db::{CompactOptions, Iter};
use basalt_lsm::{
    Db, ErrorKind, Family, ReadOptions, Result, SeqNo, Snapshot, Ticket, WriteBatch, WriteOptions,
};
use basalt_sim::SimFs;
use conditional::{Changes, UnchangedKey};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The directory of stores on the simulated disk.
pub const DIR: &str = "store";
/// The wall time at which histories begin.
pub const START_MS: u64 = 1_700_000_000_000;

/// Bytes of background I/O a second, if it is limited. A table of 4 KiB takes a quarter of a
/// millisecond.
const LIMITED: u64 = 16 << 20;

/// Histories with coarse time move it by multiples of this many ms.
pub const COARSE: u64 = 10_000;

/// The progress of the history, for the observer of the disk.
#[derive(Default)]
pub struct Progress {
    /// Number of commits that a crash may not take: acknowledged as durable, or before one that
    /// was.
    pub durable: AtomicU64,
    /// Number of commits submitted: a crash can show no more.
    pub handed_in: AtomicU64,
    /// The highest wall time so far.
    pub wall_ms: AtomicU64,
    /// Number of operations begun.
    pub op: AtomicU64,
    /// Gauge of the garbage collections of blob files that run now.
    pub collecting: Mutex<Option<Gauge>>,
}

impl Progress {
    /// Returns true while a garbage collection of blob files runs.
    pub fn collects(&self) -> bool {
        let gauge = self.collecting.lock().expect("never held in a panic");
        gauge.as_ref().is_some_and(|g| g.get() > 0)
    }
}

/// Counts of blob files and names.
#[derive(Debug, Clone, Copy, Default)]
pub struct Collected {
    /// Number of garbage collections.
    pub collections: u64,
    /// Number of names that their sources became.
    pub made: u64,
    /// Number of names that no table had any more.
    pub forgotten: u64,
    /// Bytes of values that compactions relocated.
    pub relocated: u64,
}

impl Collected {
    pub fn add(&mut self, more: Collected) {
        self.collections += more.collections;
        self.made += more.made;
        self.forgotten += more.forgotten;
        self.relocated += more.relocated;
    }

    /// Returns the counts of an open store since it was opened.
    pub fn by(db: &Db) -> Collected {
        let blobs = db.stats().blobs;
        Collected {
            collections: blobs.collections,
            made: blobs.names_made,
            forgotten: blobs.names_forgotten,
            relocated: blobs.relocated_bytes,
        }
    }
}

/// Counts of writes with preconditions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditional {
    pub accepted: u64,
    pub refused: u64,
}

impl Conditional {
    pub fn add(&mut self, more: Conditional) {
        self.accepted += more.accepted;
        self.refused += more.refused;
    }
}

struct Sent {
    ticket: Ticket,
    commit: Commit,
    sync: bool,
    /// The batch's preconditions.
    conditions: Vec<UnchangedKey>,
    /// True if the check of the caller refused the batch, which was then never queued.
    refused_at_once: bool,
}

struct Cursor {
    iter: Iter,
    rows: Vec<(Key, Entry)>,
    at: Option<usize>,
    /// True if its store was closed meanwhile: errors are allowed now, wrong answers are not.
    orphan: bool,
}

/// The manual clock that a runner uses at present, for a disk that takes its time.
pub type CurrentClock = Arc<Mutex<Option<Arc<ManualClock>>>>;

pub struct Runner {
    pub disk: Arc<dyn FileSystem>,
    pub manual_clock: Arc<ManualClock>,
    pub env: Env,
    pub db: Option<Db>,
    pub model: Model,
    /// Commits that failed since the last success. After a reopening each exists whole or not at
    /// all.
    pub maybe: Vec<Commit>,
    pub progress: Arc<Progress>,
    /// A digest of every answer, to compare runs with each other.
    pub answers: u64,
    /// Number of errors met.
    pub errors: u64,
    /// The last error, for messages.
    pub last_error: String,
    /// Number of times that an idle store gave back its logs.
    pub releases: u64,
    /// Number of operands written.
    pub appended: u64,
    /// Number of ranges deleted.
    pub ranges_deleted: u64,
    /// Number of compactions cancelled on their way.
    pub cancelled: u64,
    /// Number of times that prepared tables were added.
    pub ingested: u64,
    /// Counts of writes with preconditions.
    pub conditional: Conditional,
    /// Counts of blob files in stores that were ended.
    pub collected: Collected,
    /// If true, errors are allowed; wrong answers are not.
    tolerant: bool,
    /// Receives the clock of every new environment.
    current_clock: CurrentClock,
    /// If true, damage is among the allowed errors, because the disk lies.
    damage_allowed: bool,
    families: BTreeMap<String, Family>,
    sent: VecDeque<Sent>,
    /// The changes of keys in this opening of the store.
    changes: Changes,
    snapshots: Vec<(Snapshot, State)>,
    cursors: Vec<Cursor>,
    options: u64,
    nonce: u64,
    seed: u64,
    trace: bool,
}

/// Returns an environment over a disk, with a manual clock. One in six limits background I/O, so
/// much that it waits.
pub fn environment(disk: &Arc<dyn FileSystem>, seed: u64, wall_ms: u64) -> (Env, Arc<ManualClock>) {
    let manual_clock = ManualClock::new(wall_ms);
    let env = EnvBuilder::for_tests(disk.clone(), seed)
        .clock(Clock::manual(manual_clock.clone()))
        .io_bytes_per_s(if seed % 6 == 5 { LIMITED } else { 0 })
        .build();
    (env, manual_clock)
}

/// Returns everything that a store shows, by forward scans.
pub fn read_all(db: &Db) -> Result<BTreeMap<String, Table>> {
    let mut all = BTreeMap::new();
    for name in db.families() {
        let family = db.family(&name).expect("it is listed");
        let mut iter = db.iter(&family, &ReadOptions::default())?;
        iter.seek_to_first()?;
        let mut table = Table::new();
        while iter.valid() {
            let entry = Entry::new(iter.value().to_vec(), iter.expire_at_ms());
            let ascending = table
                .last_key_value()
                .is_none_or(|(k, _)| **k < *iter.key());
            assert!(ascending, "an iterator goes up");
            table.insert(iter.key().to_vec(), entry);
            iter.next()?;
        }
        all.insert(name, table);
    }
    Ok(all)
}

impl Runner {
    /// Opens an empty store. `options_seed` is the seed of its options.
    pub fn new(disk: Arc<dyn FileSystem>, seed: u64, options_seed: u64, tolerant: bool) -> Runner {
        let mut runner = Runner::unopened(disk, seed, options_seed, Arc::default());
        runner.tolerant = tolerant;
        runner.open();
        runner
    }

    /// Makes a runner for calls that may fail. Unlike [`Runner::new`], it does not open the store.
    pub fn unopened_over(disk: Arc<dyn FileSystem>, seed: u64, options_seed: u64) -> Runner {
        let mut runner = Runner::unopened(disk, seed, options_seed, Arc::default());
        runner.tolerant = true;
        runner
    }

    /// Makes a runner as [`Runner::new`] does, and keeps the clock in use in `manual_clock`.
    pub fn on_a_slow_disk(
        disk: Arc<dyn FileSystem>,
        seed: u64,
        options_seed: u64,
        manual_clock: CurrentClock,
    ) -> Runner {
        let mut runner = Runner::unopened(disk, seed, options_seed, Arc::default());
        *manual_clock.lock().expect("never held in a panic") = Some(runner.manual_clock.clone());
        runner.current_clock = manual_clock;
        runner.open();
        runner
    }

    /// Makes a runner as [`Runner::new`] does, and keeps its progress in `progress` from the first
    /// call on.
    pub fn watched(
        disk: Arc<dyn FileSystem>,
        seed: u64,
        options_seed: u64,
        progress: Arc<Progress>,
    ) -> Runner {
        let mut runner = Runner::unopened(disk, seed, options_seed, progress);
        runner.open();
        runner
    }

    fn unopened(
        disk: Arc<dyn FileSystem>,
        seed: u64,
        options_seed: u64,
        progress: Arc<Progress>,
    ) -> Runner {
        let (env, manual_clock) = environment(&disk, crate::rng::mix(seed ^ 0x5eed), START_MS);
        let runner = Runner {
            disk,
            manual_clock,
            env,
            db: None,
            model: Model::new(),
            maybe: Vec::new(),
            progress,
            answers: 0,
            errors: 0,
            last_error: String::new(),
            releases: 0,
            appended: 0,
            ranges_deleted: 0,
            cancelled: 0,
            ingested: 0,
            conditional: Conditional::default(),
            collected: Collected::default(),
            tolerant: false,
            current_clock: CurrentClock::default(),
            damage_allowed: false,
            families: BTreeMap::new(),
            sent: VecDeque::new(),
            changes: Changes::default(),
            snapshots: Vec::new(),
            cursors: Vec::new(),
            options: options_seed,
            nonce: seed << 20,
            seed: crate::rng::mix(seed ^ 0x5eed),
            trace: std::env::var("BASALT_TRACE").is_ok(),
        };
        runner.tell_progress();
        runner
    }

    pub fn set_tolerant(&mut self, tolerant: bool) {
        self.tolerant = tolerant;
    }

    pub fn allow_damage(&mut self) {
        self.damage_allowed = true;
    }

    /// Returns the result, or `None` for an error that this run may meet.
    #[track_caller]
    fn allow<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        match result {
            Ok(t) => Some(t),
            Err(e) => {
                assert!(self.tolerant, "{what} failed on a sound disk: {e}");
                let damage = self.damage_allowed && e.kind() == ErrorKind::Corruption;
                assert!(
                    !damage || e.path().is_some(),
                    "{what}: damage names its file: {e}"
                );
                assert!(
                    damage
                        || matches!(
                            e.kind(),
                            ErrorKind::Io
                                | ErrorKind::NoSpace
                                | ErrorKind::Poisoned
                                | ErrorKind::ReadOnly
                                | ErrorKind::Busy
                        ),
                    "{what}: a failing disk is not {:?}: {e}",
                    e.kind()
                );
                self.errors += 1;
                self.last_error = format!("{what}: {e}");
                None
            }
        }
    }

    fn now(&self) -> u64 {
        self.env.clock().wall_ms()
    }

    fn tell_progress(&self) {
        let handed_in = self.model.len() + self.sent.len();
        self.progress.handed_in.fetch_max(handed_in as u64, SeqCst);
        self.progress
            .wall_ms
            .store(self.env.clock().wall_ms(), SeqCst);
    }

    /// Notes that all commits so far are durable.
    fn all_durable(&self) {
        self.progress
            .durable
            .fetch_max(self.model.len() as u64, SeqCst);
    }

    fn committed(&mut self, commit: Commit) {
        self.maybe.clear();
        let count = |is: fn(&Change) -> bool| commit.iter().filter(|c| is(c)).count() as u64;
        self.appended += count(|c| matches!(c, Change::Append(..)));
        self.ranges_deleted += count(|c| matches!(c, Change::DeleteRange(..)));
        self.model.commit(commit);
    }

    /// Books the tickets that have a result.
    fn poll(&mut self) {
        while let Some(first) = self.sent.front() {
            let Some(result) = first.ticket.try_result() else {
                break;
            };
            let sent = self.sent.pop_front().expect("just seen");
            self.book_sent(sent.commit, sent.sync, &sent.conditions, result, "submit");
        }
        for s in &self.sent {
            assert!(
                s.refused_at_once || s.ticket.try_result().is_none(),
                "tickets of one thread commit in order"
            );
        }
        self.tell_progress();
    }

    fn book(&mut self, commit: Commit, sync: bool, result: Result<()>, what: &str) {
        if self.allow(what, result).is_some() {
            self.committed(commit);
            if sync {
                self.all_durable();
            }
        } else {
            self.maybe.push(commit);
        }
    }

    /// Books a batch with the result of its call or ticket.
    fn book_sent(
        &mut self,
        commit: Commit,
        sync: bool,
        conditions: &[UnchangedKey],
        result: Result<SeqNo>,
        what: &str,
    ) {
        if !conditions.is_empty() {
            return self.book_conditional(commit, sync, conditions, result, what);
        }
        if let Ok(last) = &result {
            self.changes.note_batch(&commit, *last);
        }
        self.book(commit, sync, result.map(|_| ()), what);
    }

    // ---- opening and ending ----

    /// Opens the store. Returns true on success.
    pub fn open(&mut self) -> bool {
        let opened = Db::open(&self.env, DIR, options(self.options));
        let Some(db) = self.allow("open", opened) else {
            return false;
        };
        let names = db.families();
        self.families = names
            .iter()
            .map(|n| (n.clone(), db.family(n).expect("it is listed")))
            .collect();
        // The store has the same gauge while it is open.
        let gauge = (self.env.metrics()).gauge("blob_collections_running", &[("store", DIR)], "");
        *self
            .progress
            .collecting
            .lock()
            .expect("never held in a panic") = Some(gauge);
        self.db = Some(db);
        // Commits that failed before may exist now, whole. The runner finds out, and expects the
        // same from here on.
        if !self.maybe.is_empty() {
            self.adopt(self.model.len());
        }
        let newest = self.db.as_ref().map_or(0, |db| db.snapshot().seq());
        self.changes = Changes::since(newest);
        let settled = self.model.len();
        assert_eq!(
            self.model.state().keys().collect::<Vec<_>>(),
            self.families.keys().collect::<Vec<_>>(),
            "families after opening with {settled} commits"
        );
        true
    }

    /// Opens after a power cut that could take all but the first `durable` commits.
    pub fn open_expecting(&mut self, durable: usize) {
        let opened = Db::open(&self.env, DIR, options(self.options));
        self.db = self.allow("open", opened);
        self.adopt(durable);
        let db = self.db.take().expect("open");
        db.abandon();
        self.open();
    }

    /// Finds which of the allowed states the store shows, and makes it the model's state. Allowed
    /// are a prefix of at least `durable` commits, or all of them and a run of those that failed.
    pub fn adopt(&mut self, durable: usize) {
        let db = self.db.clone().expect("open");
        let read = read_all(&db);
        let Some(shown) = self.allow("reading all", read) else {
            // The state cannot be compared now. The next comparison is strict again, once
            // everything can be read.
            self.db.take().expect("open").abandon();
            return;
        };
        let (have, now) = (digest(&shown), self.now());
        for n in (durable..=self.model.len()).rev() {
            if self.model.mark(n).digest(now) == have {
                if self.trace {
                    eprintln!(
                        "adopted {n} of {} commits, {durable} durable",
                        self.model.len()
                    );
                }
                self.model.cut(n);
                self.maybe.clear();
                return;
            }
        }
        for from in 0..self.maybe.len() {
            let mut with = self.model.clone();
            for to in from..self.maybe.len() {
                if !fits(&with, &self.maybe[to]) {
                    break;
                }
                with.commit(self.maybe[to].clone());
                if with.mark(with.len()).digest(now) == have {
                    self.model = with;
                    self.maybe.clear();
                    return;
                }
            }
        }
        panic!(
            "the store shows no allowed state ({durable} to {} commits, {} that failed):\n  {}",
            self.model.len(),
            self.maybe.len(),
            difference(&visible(self.model.state(), now), &shown)
        );
    }

    fn let_go(&mut self) {
        self.families.clear();
        self.snapshots.clear();
        for c in &mut self.cursors {
            c.orphan = true;
        }
    }

    /// Ends the store in one of the possible ways.
    pub fn end(&mut self, how: End) {
        self.wait_for_tickets();
        let Some(db) = self.db.take() else { return };
        self.collected.add(Collected::by(&db));
        self.let_go();
        match how {
            End::Close => {
                let closed = db.close();
                if self.allow("close", closed).is_some() {
                    self.all_durable();
                }
            }
            End::Drop => drop(db),
            End::Abandon => db.abandon(),
        }
    }

    pub fn reopen(&mut self, how: End, options_seed: u64, fresh_env: bool) {
        self.end(how);
        if options_seed != 0 {
            self.options = options_seed;
        }
        if fresh_env {
            self.renew_env();
        }
        self.open();
    }

    /// Replaces the environment over the disk, as another process would have its own. Its random
    /// numbers are its own: ids drawn twice from one seed would be two files' ids, which no process
    /// does.
    pub fn renew_env(&mut self) {
        let wall = self.now();
        self.seed = crate::rng::mix(self.seed);
        let (env, manual_clock) = environment(&self.disk, self.seed, wall);
        self.env = env;
        self.manual_clock = manual_clock;
        *self.current_clock.lock().expect("never held in a panic") =
            Some(self.manual_clock.clone());
    }

    // ---- operations ----

    fn fill(&mut self, items: &[Item]) -> (WriteBatch, Commit) {
        let mut batch = WriteBatch::new();
        let mut commit = Commit::new();
        let now = self.now();
        for item in items {
            let name = FAMILIES[item.family].to_string();
            let Some(family) = self.families.get(&name) else {
                continue;
            };
            self.nonce += 1;
            let key = key_bytes(item.key);
            let (len, expire) = match item.what {
                What::Delete => {
                    batch.delete(family, &key).expect("inside the limits");
                    commit.push(Change::Delete(name, key));
                    continue;
                }
                What::Append(len) => {
                    let part = value_bytes(self.nonce, len);
                    batch.merge(family, &key, &part).expect("inside the limits");
                    commit.push(Change::Append(name, key, part));
                    continue;
                }
                What::DeleteRange(other) => {
                    let other = key_bytes(other);
                    let (from, mut to) = if key <= other {
                        (key, other)
                    } else {
                        (other, key)
                    };
                    if from == to {
                        to.push(0);
                    }
                    batch.delete_range(family, &from, &to).expect("in order");
                    commit.push(Change::DeleteRange(name, from, to));
                    continue;
                }
                What::Put(len) => (len, None),
                // The expiry is rounded, so that the microseconds by which a run was slowed down do
                // not show.
                What::PutTtl(len, ms) if ms >= COARSE => {
                    let begun = (now - START_MS) / COARSE * COARSE;
                    (len, Some(START_MS + begun + ms + COARSE / 2))
                }
                What::PutTtl(len, ms) => (len, Some(now + ms)),
            };
            let value = value_bytes(self.nonce, len);
            match expire {
                None => batch.put(family, &key, &value),
                Some(at) => batch.put_ttl(family, &key, &value, at),
            }
            .expect("inside the limits");
            commit.push(Change::Put(name, key, Entry::new(value, expire)));
        }
        (batch, commit)
    }

    fn write(&mut self, items: &[Item], sync: bool) {
        let (batch, commit) = self.fill(items);
        if commit.is_empty() && !sync {
            return;
        }
        let db = self.db.clone().expect("open");
        let handed_in = self.model.len() + self.sent.len() + usize::from(!commit.is_empty());
        self.progress.handed_in.fetch_max(handed_in as u64, SeqCst);
        let result = db.write(batch, &WriteOptions::synced(sync));
        self.poll();
        if commit.is_empty() {
            if self.allow("sync", result).is_some() {
                self.all_durable();
            }
            return;
        }
        self.book_sent(commit, sync, &[], result, "write");
    }

    fn submit(&mut self, items: &[Item], sync: bool) {
        let (batch, commit) = self.fill(items);
        if commit.is_empty() {
            return;
        }
        let db = self.db.clone().expect("open");
        let ticket = db.submit(batch, &WriteOptions::synced(sync));
        self.sent.push_back(Sent {
            ticket,
            commit,
            sync,
            conditions: Vec::new(),
            refused_at_once: false,
        });
        self.poll();
    }

    pub fn wait_for_tickets(&mut self) {
        while let Some(sent) = self.sent.pop_front() {
            let result = sent.ticket.wait();
            self.book_sent(sent.commit, sent.sync, &sent.conditions, result, "waiting");
        }
        self.tell_progress();
    }

    fn make_family(&mut self, name: &str) {
        self.wait_for_tickets();
        let db = self.db.clone().expect("open");
        let known = self.families.contains_key(name);
        self.progress
            .handed_in
            .fetch_max(self.model.len() as u64 + u64::from(!known), SeqCst);
        let result = db.create_family(name, options(self.options).family(name).clone());
        if known {
            let e = result.expect_err("the name is taken");
            assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
            return;
        }
        let commit = vec![Change::CreateFamily(name.to_string())];
        match self.allow("create_family", result) {
            Some(family) => {
                self.committed(commit);
                self.families.insert(name.to_string(), family);
                self.all_durable();
            }
            None => self.maybe.push(commit),
        }
    }

    fn drop_family(&mut self, name: &str) {
        self.wait_for_tickets();
        let Some(family) = self.families.get(name).cloned() else {
            return;
        };
        let db = self.db.clone().expect("open");
        self.progress
            .handed_in
            .fetch_max(self.model.len() as u64 + 1, SeqCst);
        let result = db.drop_family(&family);
        let commit = vec![Change::DropFamily(name.to_string())];
        if self.allow("drop_family", result).is_none() {
            self.maybe.push(commit);
            return;
        }
        self.committed(commit);
        self.families.remove(name);
        self.changes.forget(name);
        self.all_durable();
        // A handle of a dropped family is refused, whatever is created under the name later.
        let gone = db.get(&family, b"k", &ReadOptions::default());
        assert_eq!(gone.map_err(|e| e.kind()), Err(ErrorKind::NotFound));
        let gone = db.put(&family, b"k", b"v", &WriteOptions::default());
        assert_eq!(gone.map_err(|e| e.kind()), Err(ErrorKind::NotFound));
    }

    /// Runs one operation.
    pub fn run(&mut self, op: &Op) {
        let n = self.progress.op.fetch_add(1, SeqCst);
        if self.trace {
            eprintln!("#{n} {op:?} (errors {}: {})", self.errors, self.last_error);
        }
        if self.db.is_none() && !self.open() {
            return;
        }
        if self.db.is_none() {
            return;
        }
        self.poll();
        self.rest(n);
        if let Op::Reopen {
            end,
            options,
            fresh_env,
        } = op
        {
            self.reopen(*end, *options, *fresh_env);
            return;
        }
        let db = self.db.clone().expect("open");
        match op {
            Op::Write { items, sync } => self.write(items, *sync),
            Op::Submit { items, sync } => self.submit(items, *sync),
            Op::WriteIf {
                items,
                conditions,
                sync,
                waits,
            } => self.write_if(items, conditions, *sync, *waits),
            Op::Ingest { items } => self.ingest(items),
            Op::WaitForTickets => self.wait_for_tickets(),
            Op::Sync => {
                let result = db.sync();
                self.poll();
                if self.allow("sync", result).is_some() {
                    self.all_durable();
                }
            }
            Op::Get {
                family,
                key,
                snapshot,
            } => {
                self.get(*family, *key, *snapshot);
                self.scan_prefix(*family, *key, *snapshot);
            }
            Op::MultiGet { keys, snapshot } => self.multi_get(keys, *snapshot),
            Op::Scan {
                family,
                snapshot,
                reverse,
                from,
                to,
            } => {
                self.scan(*family, *snapshot, *reverse, *from, *to);
            }
            Op::TakeSnapshot => {
                if self.snapshots.len() >= 8 {
                    self.snapshots.remove(0);
                }
                self.snapshots
                    .push((db.snapshot(), self.model.state().clone()));
            }
            Op::DropSnapshot(i) => {
                if (*i as usize) < self.snapshots.len() {
                    self.snapshots.remove(*i as usize);
                }
            }
            Op::OpenIter {
                family,
                snapshot,
                from,
                to,
                first,
            } => {
                if let Some(mut c) = self.cursor(*family, *snapshot, *from, *to)
                    && self.go(&mut c, first)
                {
                    if self.cursors.len() >= 6 {
                        self.cursors.remove(0);
                    }
                    self.cursors.push(c);
                }
            }
            Op::MoveIter(i, m) => {
                if (*i as usize) < self.cursors.len() {
                    let mut c = self.cursors.remove(*i as usize);
                    if self.go(&mut c, m) {
                        self.cursors.push(c);
                    }
                }
            }
            Op::CloseIter(i) => {
                if (*i as usize) < self.cursors.len() {
                    self.cursors.remove(*i as usize);
                }
            }
            Op::CreateFamily(i) => self.make_family(FAMILIES[*i]),
            Op::DropFamily(i) => self.drop_family(FAMILIES[*i]),
            Op::Flush => {
                self.wait_for_tickets();
                let result = db.flush();
                if self.allow("flush", result).is_some() {
                    self.all_durable();
                }
            }
            Op::CompactRange { family, from, to } => {
                self.wait_for_tickets();
                if let Some(f) = self.families.get(FAMILIES[*family]).cloned() {
                    let (from, to) = (from.map(key_bytes), to.map(key_bytes));
                    // Every other compaction relocates values.
                    self.nonce += 1;
                    let result = db.compact(
                        &f,
                        &CompactOptions::default()
                            .from(from)
                            .to(to)
                            .relocate_values(self.nonce.is_multiple_of(2)),
                    );
                    if self.allow("compact_range", result).is_some() {
                        self.all_durable();
                    }
                }
            }
            Op::CompactCancelled { family, after } => self.compact_cancelled(*family, *after),
            Op::WaitIdle => {
                let result = db.wait_idle();
                self.allow("wait_idle", result);
            }
            Op::Step(n) => (0..*n).for_each(|_| {
                self.env.jobs().step();
            }),
            Op::Advance(ms) => self.manual_clock.advance(Duration::from_millis(*ms)),
            Op::StepWallBack(ms) => self.manual_clock.set_wall_ms(START_MS - *ms),
            Op::Reopen { .. } => unreachable!("no handle may be held here"),
            Op::CheckAll => self.check_all(),
        }
        drop(db);
        if self.db.is_some() {
            self.poll();
        }
    }

    /// Closes for good, and verifies every byte on the disk.
    pub fn finish(&mut self) {
        if self.db.is_none() {
            self.open();
        }
        self.wait_for_tickets();
        self.check_all();
        self.cursors.clear();
        self.end(End::Close);
        verify_closed(&self.env);
    }

    /// Prepares a simulated power cut: the rest of the process goes without a trace.
    pub fn drop_process(&mut self) {
        self.cursors.clear();
        self.let_go();
        self.sent.clear();
        if let Some(db) = self.db.take() {
            self.collected.add(Collected::by(&db));
            db.abandon();
        }
    }
}

/// Returns true if a failed commit fits a state: a commit can be applied only to a state it was
/// made for.
pub fn fits(model: &Model, commit: &Commit) -> bool {
    commit.iter().all(|c| match c {
        Change::CreateFamily(n) => !model.state().contains_key(n),
        Change::DropFamily(n) => model.state().contains_key(n),
        _ => true,
    })
}

/// Checks that a cleanly closed store verifies, and has no unused files. That needs none of its
/// merge operators.
pub fn verify_closed(env: &Env) {
    let mut options = options(0);
    let families = options.families.values_mut();
    families
        .chain([&mut options.default_family])
        .for_each(|f| f.merge_operator = None);
    let report =
        Db::verify_store(env, DIR, &options, &mut |_, _| ()).expect("a closed store can be walked");
    assert!(
        report.damage.is_empty(),
        "damage after a clean close: {:?}",
        report.damage
    );
    assert!(
        report.unused_files.is_empty(),
        "unused files after a clean close: {:?}",
        report.unused_files
    );
    assert!(
        report.torn_tails.is_empty(),
        "torn tails after a clean close: {:?}",
        report.torn_tails
    );
}

/// Returns a fresh simulated disk.
pub fn sim_disk(seed: u64, write_unit: usize, capacity: u64) -> Arc<SimFs> {
    SimFs::new(basalt_sim::SimOptions {
        write_unit,
        capacity,
        seed,
    })
}
