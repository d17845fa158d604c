//! Random interleaved transactions beside a model that knows which keys each of them has, and which
//! value each call must return.
//!
//! The model keeps the committed cells by number of commit. An optimistic transaction reads the
//! cells of its begin, a pessimistic one the newest. The model knows whether each call is refused
//! by a lock, and whether each commit is a conflict. Only two conflicts are left open, which the
//! documentation names: those of absent keys after a compaction, and those of keys in pages after
//! four flushes.

use crate::store::{BOTH, Store, UNSYNCED, open_with, refused};
use basalt_fs::{Bytes, ErrorKind};
use basalt_lsm::ReadOptions;
use basalt_sim::rng::Rng;
use basalt_sim::{campaign, repeat};
use basalt_transactions::{Concurrency, Transaction};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const STEPS: u64 = 250;
const KEYS: u64 = 9;

type Key = (usize, Vec<u8>);
type Cells = BTreeMap<Key, Cell>;

/// What a key has: a value with its expiry, and operands over it.
#[derive(Clone, Default, Debug)]
struct Cell {
    base: Option<(Vec<u8>, Option<u64>)>,
    operands: Vec<Vec<u8>>,
}

impl Cell {
    fn value(&self, now: u64) -> Option<(Vec<u8>, Option<u64>)> {
        let base = self.base.clone();
        let base = base.filter(|(_, at)| at.is_none_or(|at| at > now));
        if base.is_none() && self.operands.is_empty() {
            return None;
        }
        let (mut value, at) = base.unwrap_or_default();
        self.operands.iter().for_each(|o| value.extend(o));
        Some((value, at))
    }
}

#[derive(Clone, Debug)]
enum Effect {
    Put(Vec<u8>, Option<u64>),
    Delete,
    Merge(Vec<u8>),
}

impl Effect {
    fn apply(&self, cell: &mut Cell) {
        match self {
            Effect::Put(value, at) => {
                *cell = Cell {
                    base: Some((value.clone(), *at)),
                    operands: Vec::new(),
                }
            }
            Effect::Delete => *cell = Cell::default(),
            Effect::Merge(operand) => cell.operands.push(operand.clone()),
        }
    }
}

/// A transaction, and what the model knows of it.
struct Running {
    own: Transaction,
    concurrency: Concurrency,
    /// The cells of the snapshot.
    snapshot: Option<Cells>,
    /// Keys that the commit checks, with the number of the commit since which they are unchanged,
    /// and the number of flushes at that moment.
    keys: BTreeMap<Key, (u64, u64)>,
    begun: (u64, u64),
    read: BTreeSet<Key>,
    effects: Vec<(Key, Effect)>,
    savepoints: Vec<usize>,
}

#[derive(Default)]
struct Counts {
    commits: u64,
    conflicts: u64,
    open: u64,
    refused: u64,
    walks: u64,
}

struct Model {
    store: Store,
    /// Commits detect plain writes. Without, there are none, and commits lock their keys.
    checks: bool,
    rng: Rng,
    committed: Cells,
    changed: BTreeMap<Key, u64>,
    commits: u64,
    flushes: u64,
    compactions: u64,
    running: Vec<Running>,
    counts: Counts,
}

fn plain(found: Option<Bytes>) -> Option<Vec<u8>> {
    found.map(|value| value.to_vec())
}

impl Model {
    fn new(seed: u64) -> Model {
        let checks = !seed.is_multiple_of(3);
        Model {
            store: open_with(seed, checks),
            checks,
            rng: Rng::of(&[seed, 45]),
            committed: Cells::new(),
            changed: BTreeMap::new(),
            commits: 0,
            flushes: 0,
            compactions: 0,
            running: Vec::new(),
            counts: Counts::default(),
        }
    }

    fn now(&self) -> u64 {
        self.store.env.clock().wall_ms()
    }

    fn key(&mut self) -> Key {
        let family = self.rng.below(2) as usize;
        (family, format!("k{}", self.rng.below(KEYS)).into_bytes())
    }

    fn effect(&mut self) -> Effect {
        let value = format!("v{}.", self.rng.below(1000)).into_bytes();
        match self.rng.below(8) {
            0 | 1 => Effect::Delete,
            2 | 3 => Effect::Merge(value),
            4 => Effect::Put(value, Some(self.now() + 1 + self.rng.below(20))),
            _ => Effect::Put(value, None),
        }
    }

    /// Returns the cells that a transaction sees.
    fn cells(&self, n: usize) -> Cells {
        let running = &self.running[n];
        let mut cells = running.snapshot.as_ref().unwrap_or(&self.committed).clone();
        for (key, effect) in &running.effects {
            effect.apply(cells.entry(key.clone()).or_default());
        }
        cells
    }

    fn value(&self, n: usize, key: &Key) -> Option<(Vec<u8>, Option<u64>)> {
        self.cells(n).get(key).and_then(|c| c.value(self.now()))
    }

    fn begin(&mut self) {
        let concurrency = self.rng.pick(&BOTH);
        let is_optimistic = concurrency == Concurrency::Optimistic;
        self.running.push(Running {
            own: self.store.begin(concurrency),
            concurrency,
            snapshot: is_optimistic.then(|| self.committed.clone()),
            keys: BTreeMap::new(),
            begun: (self.commits, self.flushes),
            read: BTreeSet::new(),
            effects: Vec::new(),
            savepoints: Vec::new(),
        });
    }

    /// Returns whether the lock of a key is held by another transaction, and notes the key.
    fn is_locked(&mut self, n: usize, key: &Key) -> bool {
        let is_optimistic = self.running[n].concurrency == Concurrency::Optimistic;
        let mut others = self.running.iter().enumerate().filter(|(i, _)| *i != n);
        let holds =
            |r: &Running| r.concurrency == Concurrency::Pessimistic && r.keys.contains_key(key);
        if !is_optimistic && others.any(|(_, r)| holds(r)) {
            self.counts.refused += 1;
            return true;
        }
        let now = (self.commits, self.flushes);
        let running = &mut self.running[n];
        let since = if is_optimistic { running.begun } else { now };
        running.keys.entry(key.clone()).or_insert(since);
        false
    }

    fn write(&mut self, n: usize) {
        let (key, effect) = (self.key(), self.effect());
        let is_locked = self.is_locked(n, &key);
        let family = &self.store.families[key.0];
        let own = &mut self.running[n].own;
        let written = match &effect {
            Effect::Put(value, None) => own.put(family, &key.1, value),
            Effect::Put(value, Some(at)) => own.put_ttl(family, &key.1, value, *at),
            Effect::Delete => own.delete(family, &key.1),
            Effect::Merge(operand) => own.merge(family, &key.1, operand),
        };
        if is_locked {
            assert_eq!(refused(written).kind(), ErrorKind::Busy);
            return;
        }
        written.expect("writes");
        self.running[n].effects.push((key, effect));
    }

    fn read(&mut self, n: usize) {
        let key = self.key();
        let family = self.store.families[key.0].clone();
        let options = ReadOptions::default().fill_cache(self.rng.coin());
        if self.rng.coin() {
            let is_locked = self.is_locked(n, &key);
            let found = (self.running[n].own).get_for_update(&family, &key.1, &options);
            if is_locked {
                assert_eq!(refused(found).kind(), ErrorKind::Busy);
                return;
            }
            self.running[n].read.insert(key.clone());
            let expected = self.value(n, &key).map(|(value, _)| value);
            assert_eq!(plain(found.unwrap()), expected, "{key:?}");
        }
        let found = self.running[n]
            .own
            .get_with_expiry(&family, &key.1, &options);
        let found = found.unwrap().map(|v| (v.value.to_vec(), v.expire_at_ms));
        assert_eq!(found, self.value(n, &key), "{key:?}");
    }

    fn read_many(&mut self, n: usize) {
        let keys: Vec<Key> = (0..6).map(|_| self.key()).collect();
        let asked: Vec<_> = keys
            .iter()
            .map(|(family, key)| (&self.store.families[*family], &key[..]))
            .collect();
        let found = self.running[n]
            .own
            .multi_get(&asked, &ReadOptions::default());
        for (key, found) in keys.iter().zip(found) {
            let expected = self.value(n, key).map(|(value, _)| value);
            assert_eq!(plain(found.unwrap()), expected, "{key:?}");
        }
    }

    fn bound(&mut self) -> Option<Vec<u8>> {
        let key = self.key().1;
        self.rng.coin().then_some(key)
    }

    /// Walks over a family in both directions, within bounds.
    fn walk(&mut self, n: usize) {
        self.counts.walks += 1;
        let family = self.rng.below(2) as usize;
        let (lower, upper) = (self.bound(), self.bound());
        let keys_only = self.rng.percent(20);
        let now = self.now();
        let is_inside = |key: &Vec<u8>| {
            lower.as_ref().is_none_or(|l| key >= l) && upper.as_ref().is_none_or(|u| key < u)
        };
        let cells = self.cells(n).into_iter();
        let cells = cells.filter(|((f, key), _)| *f == family && is_inside(key));
        let live: Vec<(Vec<u8>, Vec<u8>)> = cells
            .filter_map(|((_, key), cell)| Some((key, cell.value(now)?.0)))
            .collect();
        let options = ReadOptions::default()
            .lower_bound(lower.clone())
            .upper_bound(upper.clone())
            .keys_only(keys_only);
        let own = &self.running[n].own;
        let mut iter = own.iter(&self.store.families[family], &options).unwrap();
        if self.rng.percent(20) && !keys_only {
            let all: Vec<_> = iter.map(|entry| entry.unwrap()).collect();
            let all: Vec<_> = all.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            assert_eq!(all, live);
            return;
        }
        // The position of the cursor in `live`, if it is on a key.
        let mut at: Option<usize> = None;
        for _ in 0..12 {
            let key = format!("k{}", self.rng.below(KEYS + 1)).into_bytes();
            match (self.rng.below(8), at) {
                (0, _) => {
                    iter.seek_to_first().unwrap();
                    at = (!live.is_empty()).then_some(0);
                }
                (1, _) => {
                    iter.seek_to_last().unwrap();
                    at = live.len().checked_sub(1);
                }
                (2, _) => {
                    iter.seek(&key).unwrap();
                    at = live.iter().position(|(k, _)| *k >= key);
                }
                (3, _) => {
                    iter.seek_for_prev(&key).unwrap();
                    at = live.iter().rposition(|(k, _)| *k <= key);
                }
                (4 | 5, Some(i)) => {
                    iter.next().unwrap();
                    at = Some(i + 1).filter(|i| *i < live.len());
                }
                (_, Some(i)) => {
                    iter.prev().unwrap();
                    at = i.checked_sub(1);
                }
                (_, None) => {}
            }
            assert_eq!(iter.valid(), at.is_some(), "{live:?} {at:?}");
            let Some(i) = at else { continue };
            assert_eq!(iter.key(), live[i].0, "{live:?}");
            if !keys_only {
                assert_eq!(iter.value(), live[i].1, "{live:?}");
                assert_eq!(iter.pinned_value(), live[i].1, "{live:?}");
            } else {
                assert_eq!(iter.value(), b"");
            }
        }
    }

    fn delete_range(&mut self, n: usize) {
        let (family, from, to) = (self.rng.below(2) as usize, self.key().1, self.key().1);
        let (from, to) = (from.clone().min(to.clone()), from.max(to));
        let now = self.now();
        let seen: Vec<Key> = self
            .cells(n)
            .iter()
            .filter(|((f, key), cell)| {
                *f == family && *key >= from && *key < to && cell.value(now).is_some()
            })
            .map(|(key, _)| key.clone())
            .collect();
        let mut is_locked = false;
        for key in &seen {
            is_locked = is_locked || self.is_locked(n, key);
        }
        let family = &self.store.families[family];
        let deleted = self.running[n].own.delete_range(family, &from, &to);
        if is_locked {
            assert_eq!(refused(deleted).kind(), ErrorKind::Busy);
            return;
        }
        assert_eq!(deleted.unwrap(), seen.len() as u64);
        let effects = seen.into_iter().map(|key| (key, Effect::Delete));
        self.running[n].effects.extend(effects);
    }

    fn savepoint(&mut self, n: usize) {
        let running = &mut self.running[n];
        match self.rng.below(4) {
            0 | 1 => {
                running.own.set_savepoint();
                running.savepoints.push(running.effects.len());
            }
            2 => match running.savepoints.pop() {
                Some(_) => running.own.pop_savepoint().unwrap(),
                None => assert!(running.own.pop_savepoint().is_err()),
            },
            _ => match running.savepoints.pop() {
                None => assert!(running.own.rollback_to_savepoint().is_err()),
                Some(to) => {
                    running.own.rollback_to_savepoint().unwrap();
                    running.effects.truncate(to);
                    if running.concurrency == Concurrency::Optimistic {
                        // A key that is neither written nor read any more is not checked.
                        let (read, effects) = (&running.read, &running.effects);
                        running.keys.retain(|key, _| {
                            read.contains(key) || effects.iter().any(|(k, _)| k == key)
                        });
                    }
                }
            },
        }
    }

    fn end(&mut self, n: usize) {
        let Running {
            own,
            keys,
            effects,
            concurrency,
            ..
        } = self.running.swap_remove(n);
        assert_eq!(own.key_count(), keys.len());
        if self.rng.percent(20) {
            own.rollback();
            return;
        }
        let changed = |key: &Key| self.changed.get(key).copied().unwrap_or(0);
        let is_conflict = keys.iter().any(|(key, (since, _))| changed(key) > *since);
        let now = self.now();
        let is_open = keys.iter().any(|(key, (_, flushes))| {
            let is_absent = |cell: Option<&Cell>| cell.is_none_or(|c| c.value(now).is_none());
            let is_forgotten = self.flushes > *flushes + 3;
            match key.0 {
                1 => is_forgotten,
                _ => self.compactions > 0 && is_absent(self.committed.get(key)),
            }
        });
        let is_optimistic = concurrency == Concurrency::Optimistic;
        let is_locked = !self.checks && is_optimistic && !effects.is_empty() && {
            let others = self.running.iter();
            let others = others.filter(|r| r.concurrency == Concurrency::Pessimistic);
            others
                .flat_map(|r| r.keys.keys())
                .any(|key| keys.contains_key(key))
        };
        match own.commit(&UNSYNCED) {
            Err(e) if is_locked => {
                assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
                self.counts.refused += 1;
            }
            Ok(_) => {
                assert!(!is_conflict && !is_locked, "a conflict was not found");
                self.counts.commits += 1;
                self.commits += 1;
                for (key, effect) in effects {
                    self.changed.insert(key.clone(), self.commits);
                    effect.apply(self.committed.entry(key).or_default());
                }
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
                assert!(is_conflict || is_open, "a conflict was invented: {e}");
                assert!(self.checks || is_optimistic, "a lock was not enough: {e}");
                self.counts.conflicts += u64::from(is_conflict);
                self.counts.open += u64::from(!is_conflict);
            }
        }
    }

    /// Changes the store beside the transactions.
    fn change_store(&mut self) {
        match self.rng.below(6) {
            0 | 1 => {
                self.flushes += 1;
                self.compactions += 1;
                self.store.db.flush().unwrap();
            }
            2 => {
                self.flushes += 1;
                self.compactions += 1;
                let family = &self.store.families[self.rng.below(2) as usize];
                self.store.db.compact_range(family, None, None).unwrap();
            }
            3 => {
                let by = Duration::from_millis(self.rng.below(10));
                let clock = self.store.env.clock().as_manual();
                clock.expect("a test's clock").advance(by);
            }
            _ if !self.checks => {}
            _ => {
                let key = self.key();
                let value = format!("p{}.", self.rng.below(1000)).into_bytes();
                let family = &self.store.families[key.0];
                (self.store.db)
                    .put(family, &key.1, &value, &UNSYNCED)
                    .unwrap();
                self.commits += 1;
                self.changed.insert(key.clone(), self.commits);
                Effect::Put(value, None).apply(self.committed.entry(key).or_default());
            }
        }
    }

    fn step(&mut self) {
        if self.running.is_empty() || (self.running.len() < 4 && self.rng.percent(15)) {
            return self.begin();
        }
        let n = self.rng.below(self.running.len() as u64) as usize;
        match self.rng.below(20) {
            0..=5 => self.write(n),
            6..=8 => self.read(n),
            9 => self.read_many(n),
            10 | 11 => self.walk(n),
            12 => self.delete_range(n),
            13..=15 => self.savepoint(n),
            16 | 17 => self.end(n),
            _ => self.change_store(),
        }
    }

    /// The store has what was committed, and nothing of the other transactions.
    fn check(&mut self) {
        self.running.clear();
        assert_eq!(self.store.transactions.stats().locks, 0);
        let now = self.now();
        for (n, family) in self.store.families.iter().enumerate() {
            let found = self.store.db.iter(family, &ReadOptions::default());
            let found: Vec<_> = found.unwrap().map(|entry| entry.unwrap()).collect();
            let found: Vec<_> = found
                .iter()
                .map(|(k, v)| (k.to_vec(), v.to_vec()))
                .collect();
            let cells = self.committed.iter().filter(|((f, _), _)| *f == n);
            let live = cells.filter_map(|((_, key), c)| Some((key.clone(), c.value(now)?.0)));
            assert_eq!(found, live.collect::<Vec<_>>());
        }
        let stats = self.store.transactions.stats();
        let counts = &self.counts;
        assert_eq!(stats.commits, counts.commits);
        assert_eq!(stats.conflicts, counts.conflicts + counts.open);
        assert_eq!(stats.lock_timeouts, counts.refused);
        assert_eq!(stats.begun, stats.commits + stats.rollbacks);
    }
}

#[test]
fn transactions_behave_as_the_model() {
    let mut totals = [0; 5];
    for seed in campaign::cases(0..400 * campaign::scale()) {
        let _repeat = repeat!(transactions_behave_as_the_model, "BASALT_CASE={seed}");
        let mut model = Model::new(seed);
        (0..STEPS).for_each(|_| model.step());
        model.check();
        let c = &model.counts;
        let counts = [c.commits, c.conflicts, c.open, c.refused, c.walks];
        totals.iter_mut().zip(counts).for_each(|(t, n)| *t += n);
    }
    let [commits, conflicts, open, refused, walks] = totals;
    basalt_sim::campaign!(
        "transaction_commits={commits} conflicts={conflicts} open_conflicts={open} refused_locks={refused} walks={walks}"
    );
    if campaign::case().is_none() {
        let floor = |n| campaign::scale().floor(n);
        assert!(commits >= floor(4000), "{commits} commits");
        assert!(conflicts >= floor(1000), "{conflicts} conflicts");
        assert!(refused >= floor(2000), "{refused} refused locks");
        assert!(walks >= floor(6000), "{walks} walks");
    }
}
