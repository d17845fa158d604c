//! Random walks: cursors of every kind (ordinary, as of snapshots, bound to a prefix, tailing, with
//! `max_skippable_entries`, with bounds) are sought, moved both ways and refreshed. Writes,
//! flushes, compactions, reopenings and the clock go on meanwhile. After each movement key, value
//! and expiry are those of a plain map. Writes are of every kind, operands and deleted ranges
//! included.

use basalt_env::{Clock, Env, EnvBuilder, ManualClock, Random};
use basalt_kv::merge::Append;
use basalt_lsm::db::Iter;
use basalt_lsm::{
    Compression, Db, ErrorKind, Family, Options, PrefixExtractor, Prefixes, ReadOptions, Snapshot,
    WriteBatch, WriteOptions,
};
use basalt_sim::{SimFs, SimOptions, campaign, repeat};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

const START_MS: u64 = 1_700_000_000_000;

type Key = Vec<u8>;

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    value: Vec<u8>,
    expire: Option<u64>,
    /// The parts appended to a value that expires: they outlive it.
    rest: Option<Vec<u8>>,
}

impl Entry {
    /// Returns value and expiry as a reader sees them at a time.
    fn shown(&self, now: u64) -> Option<(&[u8], Option<u64>)> {
        match self.expire {
            Some(at) if at <= now => self.rest.as_deref().map(|rest| (rest, None)),
            expire => Some((&self.value, expire)),
        }
    }
}

type Table = BTreeMap<Key, Entry>;

const MARK: u8 = b'|';

/// Changes the table as a merge operator that appends would.
fn append(table: &mut Table, key: Key, part: &[u8]) {
    let joined = |old: &[u8]| [old, &[MARK], part].concat();
    match table.get_mut(&key) {
        None => {
            let (value, expire, rest) = (part.to_vec(), None, None);
            table.insert(
                key,
                Entry {
                    value,
                    expire,
                    rest,
                },
            );
        }
        Some(e) => {
            e.value = joined(&e.value);
            if e.expire.is_some() {
                e.rest = Some(e.rest.as_ref().map_or(part.to_vec(), |r| joined(r)));
            }
        }
    }
}

/// An extractor whose prefix is everything before the first `b`.
struct BeforeB;

impl PrefixExtractor for BeforeB {
    fn name(&self) -> &str {
        "test.before-b"
    }
    fn prefix_len(&self, key: &[u8]) -> Option<usize> {
        key.iter().position(|b| *b == b'b')
    }
}

/// Returns the prefix that the reference cuts.
fn prefix_of(extractor: usize, key: &[u8]) -> Option<Key> {
    match extractor {
        1 if !key.is_empty() => Some(key[..1].to_vec()),
        2 if key.len() >= 2 => Some(key[..2].to_vec()),
        3 => Some(key.iter().copied().take(2).collect()),
        4 => {
            let words: Vec<_> = key.splitn(2, |b| *b == b':').collect();
            (words.len() == 2).then(|| [words[0], b":"].concat())
        }
        5 => {
            let words: Vec<_> = key.splitn(2, |b| *b == b'b').collect();
            (words.len() == 2).then(|| words[0].to_vec())
        }
        _ => None,
    }
}

fn extractor(n: usize) -> Option<Prefixes> {
    match n {
        1 => Some(Prefixes::Fixed(1)),
        2 => Some(Prefixes::Fixed(2)),
        3 => Some(Prefixes::Capped(2)),
        4 => Some(Prefixes::Delimited(b':')),
        5 => Some(Prefixes::Custom(Arc::new(BeforeB))),
        _ => None,
    }
}

fn pick<T: Copy>(r: &Random, from: &[T]) -> T {
    from[r.below(from.len() as u64) as usize]
}

/// Returns a short key over few byte values, so that prefixes, their successors and keys shorter
/// than a prefix all occur.
fn key(r: &Random) -> Key {
    (0..r.below(5))
        .map(|_| pick(r, &[0, b'a', b'a', b'b', b':', b';', 0xff]))
        .collect()
}

/// The place where a tailing cursor continues.
#[derive(Clone, Debug)]
enum Place {
    Nowhere,
    First,
    At(Key),
    Behind(Key),
}

struct Walker {
    iter: Iter,
    read: ReadOptions,
    /// The store's contents at the cursor's moment, with the time then.
    table: Table,
    now: u64,
    bound: Option<Key>,
    at: Option<Key>,
    place: Place,
    /// The step that the cursor repeats most of the time.
    way: Option<u64>,
}

struct World {
    r: Random,
    manual_clock: Arc<ManualClock>,
    env: Env,
    db: Option<Db>,
    f: Option<Family>,
    extractor: usize,
    table: Table,
    snapshots: Vec<(Snapshot, Table)>,
    walkers: Vec<Walker>,
    moves: u64,
    shown: u64,
    narrowed: u64,
    followed: u64,
    refreshed: u64,
    paused: u64,
    ranges: u64,
    operands: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let r = Random::from_seed(seed);
        let manual_clock = ManualClock::new(START_MS);
        let fs = SimFs::new(SimOptions {
            seed,
            ..SimOptions::default()
        });
        let env = EnvBuilder::for_tests(fs, seed)
            .clock(Clock::manual(manual_clock.clone()))
            .cache_bytes(pick(&r, &[0, 64 << 10, 1 << 20]))
            .build();
        let mut world = World {
            r,
            manual_clock,
            env,
            db: None,
            f: None,
            extractor: 0,
            table: Table::new(),
            snapshots: Vec::new(),
            walkers: Vec::new(),
            moves: 0,
            shown: 0,
            narrowed: 0,
            followed: 0,
            refreshed: 0,
            paused: 0,
            ranges: 0,
            operands: 0,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        let r = &self.r;
        self.extractor = r.below(6) as usize;
        let mut options = Options::default().write_buffer_bytes(4096);
        let f = &mut options.default_family;
        f.prefix_extractor = extractor(self.extractor);
        f.merge_operator = Some(Arc::new(Append::new([MARK])));
        f.min_blob_size = pick(r, &[None, Some(1), Some(1), Some(30)]);
        f.blob_compression = match f.min_blob_size {
            Some(1) => Compression::Zstd,
            _ => Compression::Lz4,
        };
        f.block_bytes = pick(r, &[64, 256]);
        f.filter_bits_per_key = pick(r, &[0, 4, 10, 20]);
        f.table_bytes = pick(r, &[1024, 2048]);
        f.base_level_bytes = 2048;
        f.level_multiplier = 3;
        f.l0_compaction_trigger = pick(r, &[1, 3, 6]);
        f.l0_slowdown = 20;
        let db = Db::open(&self.env, "db", options).expect("open");
        self.f = Some(db.default_family());
        self.db = Some(db);
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open")
    }

    fn now(&self) -> u64 {
        self.env.clock().wall_ms()
    }

    fn write(&mut self) {
        let f = self.f.clone().expect("open");
        let mut batch = WriteBatch::new();
        for _ in 0..1 + self.r.below(4) {
            let k = key(&self.r);
            let value = vec![self.r.below(256) as u8; self.r.below(90) as usize];
            let expire = self.now() + 1 + self.r.below(3000);
            match self.r.below(12) {
                8 => {
                    let other = key(&self.r);
                    let (from, to) = if k < other { (k, other) } else { (other, k) };
                    (batch.delete_range(&f, &from, &to)).expect("inside the limits");
                    self.table.retain(|k, _| *k < from || *k >= to);
                    self.ranges += u64::from(from < to);
                }
                9..=11 => {
                    batch.merge(&f, &k, &value).expect("inside the limits");
                    append(&mut self.table, k, &value);
                    self.operands += 1;
                }
                0..=2 => {
                    batch.delete(&f, &k).expect("inside the limits");
                    self.table.remove(&k);
                }
                3 => {
                    (batch.put_ttl(&f, &k, &value, expire)).expect("inside the limits");
                    let expire = Some(expire);
                    let rest = None;
                    self.table.insert(
                        k,
                        Entry {
                            value,
                            expire,
                            rest,
                        },
                    );
                }
                _ => {
                    batch.put(&f, &k, &value).expect("inside the limits");
                    let (expire, rest) = (None, None);
                    self.table.insert(
                        k,
                        Entry {
                            value,
                            expire,
                            rest,
                        },
                    );
                }
            }
        }
        let db = self.db.clone().expect("open");
        db.write(batch, &WriteOptions::UNSYNCED).expect("written");
    }

    fn open_walker(&mut self) {
        let r = &self.r;
        let mut read = ReadOptions::default()
            .fill_cache(r.one_in(2))
            .prefix_same_as_start(r.one_in(2))
            .tailing(r.one_in(3))
            .keys_only(r.one_in(6));
        let mut table = self.table.clone();
        if r.one_in(2) {
            let first = key(r);
            // Some bounds lie around one prefix, as they are commonly made, others anywhere.
            let mut behind = first.clone();
            match r.below(3) {
                0 => behind = key(r),
                1 => behind.push(0xff),
                _ => {
                    while behind.pop_if(|b| *b == 0xff).is_some() {}
                    if let Some(last) = behind.last_mut() {
                        *last += 1;
                    }
                }
            }
            read.lower_bound = (!r.one_in(4)).then_some(first);
            read.upper_bound = (!r.one_in(4)).then_some(behind);
        }
        if !read.tailing && !self.snapshots.is_empty() && r.one_in(3) {
            let (s, then) = &self.snapshots[r.below(self.snapshots.len() as u64) as usize];
            read.snapshot = Some(s.clone());
            table = then.clone();
        }
        if r.one_in(4) {
            read.max_skippable_entries = 1 + r.below(6);
        }
        let made = self.db().iter(self.f.as_ref().expect("open"), &read);
        if read.prefix_same_as_start && self.extractor == 0 {
            let e = made.err().expect("no prefixes");
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
            return;
        }
        let walker = Walker {
            iter: made.expect("iter"),
            read,
            table,
            now: self.now(),
            bound: None,
            at: None,
            place: Place::Nowhere,
            way: None,
        };
        self.walkers.push(walker);
    }

    fn refresh(&mut self, mut w: Walker) {
        let kept = match self.snapshots.is_empty() || self.r.one_in(2) {
            true => None,
            false => Some(self.r.below(self.snapshots.len() as u64) as usize),
        };
        let to = kept.map(|i| self.snapshots[i].clone());
        let refreshed = w.iter.refresh(to.as_ref().map(|(s, _)| s));
        if w.read.tailing && to.is_some() {
            let e = refreshed.expect_err("a tailing cursor has no snapshot");
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
            check(&mut w, false);
        } else {
            refreshed.expect("refreshed");
            self.refreshed += 1;
            w.table = to.map_or_else(|| self.table.clone(), |(_, then)| then);
            w.now = self.now();
            w.at = None;
            w.place = Place::Nowhere;
            assert!(!w.iter.valid());
        }
        self.walkers.push(w);
    }

    /// Moves a cursor once and compares. A cursor that has used up its limit of skipped entries is
    /// dropped.
    fn walk(&mut self, mut w: Walker) {
        self.moves += 1;
        let extractor = self.extractor;
        let bounds = [&w.read.lower_bound, &w.read.upper_bound];
        let target = match bounds[self.r.below(2) as usize] {
            Some(bound) if self.r.one_in(3) => bound.clone(),
            _ => key(&self.r),
        };
        let op = match w.way {
            Some(op) if w.at.is_some() && !self.r.one_in(8) => op,
            _ => self.r.below(12),
        };
        w.way = (op >= 4 && !w.read.tailing).then_some(op);
        if w.read.tailing && matches!(op, 1 | 3) {
            let refused = match op {
                1 => w.iter.seek_to_last(),
                _ if self.r.one_in(2) => w.iter.prev(),
                _ => w.iter.seek_for_prev(&target),
            };
            let e = refused.expect_err("it walks up only");
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
            check(&mut w, false);
            self.walkers.push(w);
            return;
        }
        if w.read.tailing {
            w.table = self.table.clone();
            w.now = self.now();
        }
        let up;
        match op {
            0 => {
                up = true;
                w.iter.seek_to_first().expect("moved");
                w.seek_first(extractor);
                w.place = Place::First;
            }
            1 => {
                up = false;
                w.iter.seek_to_last().expect("moved");
                w.bound = None;
                w.at = w.last_at_or_below(extractor, None, true);
                w.bind(extractor, w.at.clone());
            }
            2 => {
                up = true;
                w.iter.seek(&target).expect("moved");
                w.bind(extractor, Some(target.clone()));
                w.at = w.first_at_or_above(extractor, &target, true);
                w.place = Place::At(target);
            }
            3 => {
                up = false;
                w.iter.seek_for_prev(&target).expect("moved");
                w.bind(extractor, Some(target.clone()));
                w.at = w.last_at_or_below(extractor, Some(&target), true);
            }
            4..=8 if w.read.tailing => {
                up = true;
                if matches!(w.place, Place::Nowhere) {
                    self.walkers.push(w);
                    return;
                }
                w.iter.next().expect("moved");
                match w.place.clone() {
                    Place::Nowhere => unreachable!("returned above"),
                    Place::First => w.seek_first(extractor),
                    Place::At(k) => w.at = w.first_at_or_above(extractor, &k, true),
                    Place::Behind(k) => w.at = w.first_at_or_above(extractor, &k, false),
                }
            }
            _ if w.at.is_none() || w.read.tailing => {
                self.walkers.push(w);
                return;
            }
            4..=8 => {
                up = true;
                w.iter.next().expect("moved");
                let k = w.at.take().expect("just seen");
                w.at = w.first_at_or_above(extractor, &k, false);
            }
            _ => {
                up = false;
                w.iter.prev().expect("moved");
                let k = w.at.take().expect("just seen");
                w.at = w.last_at_or_below(extractor, Some(&k), false);
            }
        }
        let mut went_on = None;
        while let Some(paused) = w.iter.resume_key().map(<[u8]>::to_vec) {
            self.paused += 1;
            // The cursor skipped no key.
            let missed = w.at.as_ref().is_some_and(|k| match up {
                true => *k < paused,
                false => *k > paused,
            });
            assert!(!missed, "paused at {paused:?}, behind {:?}", w.at);
            if !w.read.tailing {
                return;
            }
            w.iter.next().expect("it goes on");
            went_on = Some(paused);
        }
        if let Some(paused) = went_on {
            w.place = Place::At(paused);
        }
        if let Some(k) = &w.at {
            self.shown += 1;
            self.narrowed += u64::from(w.bound.is_some());
            self.followed += u64::from(w.read.tailing);
            w.place = Place::Behind(k.clone());
        }
        check(&mut w, true);
        self.walkers.push(w);
    }

    fn step(&mut self) {
        match self.r.below(40) {
            0..=11 => self.write(),
            12 => self.db().flush().expect("flushed"),
            13..=14 => {
                self.env.jobs().step();
            }
            15 if self.r.one_in(4) => {
                let f = self.f.clone().expect("open");
                self.db().compact_range(&f, None, None).expect("compacted");
            }
            16 => self
                .manual_clock
                .advance(Duration::from_millis(self.r.below(800))),
            17 => {
                let s = (self.db().snapshot(), self.table.clone());
                self.snapshots.push(s);
                if self.snapshots.len() > 4 {
                    self.snapshots.remove(0);
                }
            }
            18..=20 => {
                self.open_walker();
                if self.walkers.len() > 8 {
                    self.walkers.remove(0);
                }
            }
            21 if self.r.one_in(8) => {
                self.walkers.clear();
                self.snapshots.clear();
                self.db.take().expect("open").close().expect("closed");
                self.open();
            }
            _ if self.walkers.is_empty() => {}
            other => {
                let i = self.r.below(self.walkers.len() as u64) as usize;
                let w = self.walkers.swap_remove(i);
                if other == 22 {
                    self.refresh(w);
                } else {
                    self.walk(w);
                }
            }
        }
    }
}

impl Walker {
    fn bind(&mut self, extractor: usize, key: Option<Key>) {
        self.bound = match self.read.prefix_same_as_start {
            true => key.and_then(|k| prefix_of(extractor, &k)),
            false => None,
        };
    }

    fn seek_first(&mut self, extractor: usize) {
        self.bound = None;
        self.at = self.first_at_or_above(extractor, &[], true);
        self.bind(extractor, self.at.clone());
    }

    fn shows(&self, extractor: usize, k: &Key, e: &Entry) -> bool {
        e.shown(self.now).is_some()
            && self.read.lower_bound.as_ref().is_none_or(|l| k >= l)
            && self.read.upper_bound.as_ref().is_none_or(|u| k < u)
            && (self.bound.is_none() || self.bound == prefix_of(extractor, k))
    }

    fn first_at_or_above(&self, extractor: usize, from: &[u8], or_at: bool) -> Option<Key> {
        let from = match or_at {
            true => Bound::Included(from),
            false => Bound::Excluded(from),
        };
        let mut found = self.table.range::<[u8], _>((from, Bound::Unbounded));
        let found = found.find(|(k, e)| self.shows(extractor, k, e));
        found.map(|(k, _)| k.clone())
    }

    fn last_at_or_below(&self, extractor: usize, to: Option<&[u8]>, or_at: bool) -> Option<Key> {
        let to = match (to, or_at) {
            (None, _) => Bound::Unbounded,
            (Some(k), true) => Bound::Included(k),
            (Some(k), false) => Bound::Excluded(k),
        };
        let mut found = self.table.range::<[u8], _>((Bound::Unbounded, to));
        let found = found.rfind(|(k, e)| self.shows(extractor, k, e));
        found.map(|(k, _)| k.clone())
    }
}

/// Checks that the cursor stands where the reference does. The entry that a tailing cursor showed
/// before may have changed since: `fresh` says that it has just moved.
fn check(w: &mut Walker, fresh: bool) {
    let have = w.iter.valid().then(|| w.iter.key().to_vec());
    assert_eq!(have, w.at, "{:?}", describe(&w.read));
    if let Some(k) = &w.at
        && (fresh || !w.read.tailing)
    {
        let shown = w.table[k].shown(w.now).expect("it is there");
        if w.read.keys_only {
            assert_eq!((w.iter.value(), w.iter.expire_at_ms()), (&[][..], shown.1));
            assert!(w.iter.pinned_value().is_empty());
            return;
        }
        assert_eq!((w.iter.value(), w.iter.expire_at_ms()), shown);
        let pinned = w.iter.pinned_value();
        // The value is pinned where it lies, and not copied.
        assert!(pinned.is_empty() || pinned.as_ptr() == w.iter.value().as_ptr());
    }
}

fn describe(read: &ReadOptions) -> String {
    format!(
        "bounds {:?} {:?} snapshot {} same prefix {} tailing {} budget {}",
        read.lower_bound,
        read.upper_bound,
        read.snapshot.is_some(),
        read.prefix_same_as_start,
        read.tailing,
        read.max_skippable_entries
    )
}

#[test]
fn cursors_of_every_kind_walk_as_the_reference_does() {
    let scale = basalt_sim::campaign::scale();
    let (mut moves, mut shown, mut narrowed) = (0, 0, 0);
    let (mut followed, mut refreshed, mut paused) = (0, 0, 0);
    let (mut ranges, mut operands) = (0, 0);
    let mut cases = 0;
    for seed in campaign::cases(0..60 * scale) {
        let _repeat = repeat!(
            cursors_of_every_kind_walk_as_the_reference_does,
            "BASALT_CASE={seed}"
        );
        let mut world = World::new(seed);
        for _ in 0..2500 {
            world.step();
        }
        moves += world.moves;
        shown += world.shown;
        narrowed += world.narrowed;
        followed += world.followed;
        refreshed += world.refreshed;
        paused += world.paused;
        ranges += world.ranges;
        operands += world.operands;
        cases += 1;
    }
    basalt_sim::campaign!(
        "walks={cases} moves={moves} shown={shown} bound_to_a_prefix={narrowed} by_tailing_cursors={followed} refreshed={refreshed} paused={paused} ranges_deleted={ranges} operands={operands}"
    );
    assert!(narrowed >= cases * 20, "{narrowed} bound to a prefix");
    assert!(followed >= cases * 45, "{followed} by tailing cursors");
    assert!(refreshed >= cases * 25, "{refreshed} refreshed");
    assert!(paused >= cases * 10, "{paused} paused");
    assert!(ranges >= cases * 50, "{ranges} ranges deleted");
    assert!(operands >= cases * 150, "{operands} operands");
    assert!(moves >= cases * 500, "{moves} moves in {cases} walks");
    assert!(shown >= moves / 4, "{shown} of {moves} showed a key");
}
