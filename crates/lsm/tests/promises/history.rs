//! Histories: sequences of operations by seed. Each seed leaves out a random part of the operations
//! (swarm testing: an even mix hides bugs that only show while some operation is rare). Options are
//! drawn beside it.

use crate::model::DELIMITER;
use crate::rng::Rng;
use crate::runner::COARSE;
use basalt_kv::merge::Append;
use basalt_lsm::{
    Compression, Event, EventListener, FamilyOptions, Options, Prefixes, TreeOptions,
};
use std::sync::Arc;
use std::time::Duration;

/// Names of the families that histories use; the first always exists.
pub const FAMILIES: [&str; 4] = ["default", "accounts", "b", "a family with a longer name"];

/// The family that is kept in pages, under all options.
pub const IN_PAGES: &str = FAMILIES[2];

#[derive(Clone, Debug)]
pub struct Item {
    pub family: usize,
    pub key: u16,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    /// A value of this many bytes.
    Put(u32),
    /// A value of this many bytes (first) that expires this many ms after now (second).
    PutTtl(u32, u64),
    /// Bytes to append.
    Append(u32),
    Delete,
    /// Deletes all keys from this one to the item's, the larger one exclusive; if both are one key,
    /// that key alone.
    DeleteRange(u16),
}

/// A precondition of a write.
#[derive(Clone, Debug)]
pub enum Condition {
    /// The key is unchanged since a moment. Without its family the condition is left out.
    Unchanged {
        family: usize,
        key: u16,
        since: Since,
    },
    /// A key that was changed in this opening of the store is unchanged since the moment before.
    /// The number counts changes back from the last one. So the condition does not hold; without
    /// such a change it is left out.
    Outdated(u8),
}

/// A moment that a precondition names.
#[derive(Clone, Copy, Debug)]
pub enum Since {
    Now,
    /// The key's last change in this opening of the store; without one, `Now`.
    LastChange,
    /// The held snapshot of this number; without one, `Now`.
    Snapshot(u8),
}

#[derive(Clone, Debug)]
pub enum Move {
    First,
    Last,
    Seek(u16),
    SeekForPrev(u16),
    Next(u8),
    Prev(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A clean close.
    Close,
    /// The last handle is dropped.
    Drop,
    /// The process dies.
    Abandon,
}

#[derive(Clone, Debug)]
pub enum Op {
    Write {
        items: Vec<Item>,
        sync: bool,
    },
    Submit {
        items: Vec<Item>,
        sync: bool,
    },
    /// Written if the conditions hold, by a call that waits or by one that does not.
    WriteIf {
        items: Vec<Item>,
        conditions: Vec<Condition>,
        sync: bool,
        waits: bool,
    },
    /// Written past the log, durably.
    Ingest {
        items: Vec<Item>,
    },
    WaitForTickets,
    Sync,
    Get {
        family: usize,
        key: u16,
        snapshot: Option<u8>,
    },
    MultiGet {
        keys: Vec<(usize, u16)>,
        snapshot: Option<u8>,
    },
    Scan {
        family: usize,
        snapshot: Option<u8>,
        reverse: bool,
        from: Option<u16>,
        to: Option<u16>,
    },
    TakeSnapshot,
    DropSnapshot(u8),
    OpenIter {
        family: usize,
        snapshot: Option<u8>,
        from: Option<u16>,
        to: Option<u16>,
        first: Move,
    },
    MoveIter(u8, Move),
    CloseIter(u8),
    CreateFamily(usize),
    DropFamily(usize),
    Flush,
    CompactRange {
        family: usize,
        from: Option<u16>,
        to: Option<u16>,
    },
    /// A compaction of everything, which is cancelled after this many calls of its progress
    /// function, if it takes that long.
    CompactCancelled {
        family: usize,
        after: u8,
    },
    WaitIdle,
    Step(u8),
    Advance(u64),
    StepWallBack(u64),
    Reopen {
        end: End,
        options: u64,
        fresh_env: bool,
    },
    CheckAll,
}

/// The settings with which histories are drawn.
#[derive(Clone, Copy)]
pub struct Shape {
    pub ops: usize,
    /// Distinct keys a family.
    pub keys: u64,
    /// If true, times are far apart, so that answers do not depend on the duration of operations.
    pub coarse_time: bool,
    /// If true, operations are left out that make the moment of a commit depend on background work.
    pub no_tickets: bool,
}

impl Shape {
    pub const MODEL: Shape = Shape {
        ops: 400,
        keys: 60,
        coarse_time: false,
        no_tickets: false,
    };
}

fn bound(c: &mut Rng, shape: Shape) -> Option<u16> {
    c.percent(40).then(|| c.below(shape.keys) as u16)
}

fn value_len(c: &mut Rng) -> u32 {
    (match c.below(20) {
        0 => 0,
        1..=9 => c.within(1, 40),
        10..=17 => c.within(40, 300),
        18 => c.within(300, 1500),
        _ => c.within(1500, 6000),
    }) as u32
}

fn item(c: &mut Rng, shape: Shape, ttl: bool, deletes: u64, ranges: &mut Ranges) -> Item {
    let ms = if shape.coarse_time {
        COARSE * c.within(1, 30)
    } else {
        c.within(1, 4000)
    };
    Item {
        // Half of all operations go to the first family.
        family: c.below(8).saturating_sub(4) as usize,
        key: c.below(shape.keys) as u16,
        what: if let Some(other) = ranges.next(shape) {
            What::DeleteRange(other)
        } else if c.percent(deletes) {
            What::Delete
        } else if ttl && c.percent(15) {
            What::PutTtl(value_len(c), ms)
        } else {
            What::Put(value_len(c))
        },
    }
}

fn a_move(c: &mut Rng, shape: Shape) -> Move {
    match c.below(6) {
        0 => Move::First,
        1 => Move::Last,
        2 => Move::Seek(c.below(shape.keys + 4) as u16),
        3 => Move::SeekForPrev(c.below(shape.keys + 4) as u16),
        4 => Move::Next(c.within(1, 12) as u8),
        _ => Move::Prev(c.within(1, 12) as u8),
    }
}

/// Draws for range deletes, apart from all others: a seed means the same as before range deletes
/// existed.
struct Ranges {
    rng: Rng,
    percent: u64,
}

impl Ranges {
    fn of(seed: u64) -> Ranges {
        let mut rng = Rng::of(&[seed, 3]);
        let percent = rng.pick(&[0, 2, 6, 20]);
        Ranges { rng, percent }
    }
    fn next(&mut self, shape: Shape) -> Option<u16> {
        (self.rng.percent(self.percent)).then(|| self.rng.below(shape.keys) as u16)
    }
}

/// Returns the history of a seed.
pub fn history(seed: u64, shape: Shape) -> Vec<Op> {
    let mut c = Rng::of(&[seed, 1]);
    let mut ranges = Ranges::of(seed);
    let ttl = c.percent(60);
    let deletes = c.pick(&[0, 10, 25, 50]);
    let synced = c.pick(&[10, 40, 90]);
    // Weight of each kind of operation. A swarm leaves some out.
    let mut weights: Vec<u64> = vec![
        30, 8, 4, 2, 10, 3, 5, 3, 3, 3, 8, 3, 2, 1, 3, 2, 2, 8, 4, 1, 2, 1,
    ];
    for (i, w) in weights.iter_mut().enumerate() {
        if i > 0 && i != 12 && c.percent(25) {
            *w = 0;
        } else if c.percent(10) {
            *w *= 4;
        }
    }
    if shape.no_tickets {
        weights[1] = 0;
    }
    let total: u64 = weights.iter().sum();
    let snapshot = |c: &mut Rng| c.percent(40).then(|| c.below(8) as u8);
    let mut ops: Vec<Op> = (0..shape.ops)
        .map(|_| {
            let mut dice = c.below(total);
            let kind = weights
                .iter()
                .position(|w| {
                    let hit = dice < *w;
                    dice = dice.wrapping_sub(*w);
                    hit
                })
                .expect("the dice are below the sum");
            let family = c.below(FAMILIES.len() as u64) as usize;
            match kind {
                0 | 1 => {
                    let n = c.pick(&[1, 1, 1, 2, 3, 8, 20]);
                    let items = (0..n)
                        .map(|_| item(&mut c, shape, ttl, deletes, &mut ranges))
                        .collect();
                    let sync = c.percent(synced);
                    if kind == 0 {
                        Op::Write { items, sync }
                    } else {
                        Op::Submit { items, sync }
                    }
                }
                2 => Op::WaitForTickets,
                3 => Op::Sync,
                4 => Op::Get {
                    family,
                    key: c.below(shape.keys + 2) as u16,
                    snapshot: snapshot(&mut c),
                },
                5 => Op::MultiGet {
                    keys: (0..c.within(1, 12))
                        .map(|_| (c.below(4) as usize, c.below(shape.keys) as u16))
                        .collect(),
                    snapshot: snapshot(&mut c),
                },
                6 => Op::Scan {
                    family,
                    snapshot: snapshot(&mut c),
                    reverse: c.percent(50),
                    from: bound(&mut c, shape),
                    to: bound(&mut c, shape),
                },
                7 => Op::TakeSnapshot,
                8 => Op::DropSnapshot(c.below(8) as u8),
                9 => Op::OpenIter {
                    family,
                    snapshot: snapshot(&mut c),
                    from: bound(&mut c, shape),
                    to: bound(&mut c, shape),
                    first: a_move(&mut c, shape),
                },
                10 => Op::MoveIter(c.below(6) as u8, a_move(&mut c, shape)),
                11 => Op::CloseIter(c.below(6) as u8),
                12 => Op::CreateFamily(c.within(1, 4) as usize),
                13 => Op::DropFamily(c.within(1, 4) as usize),
                14 => Op::Flush,
                15 => Op::CompactRange {
                    family,
                    from: bound(&mut c, shape),
                    to: bound(&mut c, shape),
                },
                16 => Op::WaitIdle,
                17 => Op::Step(c.within(1, 6) as u8),
                18 if shape.coarse_time => Op::Advance(COARSE * c.within(1, 6)),
                18 => Op::Advance(c.within(1, 2000)),
                19 if shape.coarse_time => Op::StepWallBack(COARSE * c.within(1, 10)),
                19 => Op::StepWallBack(c.within(1, 100_000)),
                20 => Op::Reopen {
                    end: c.pick(&[End::Close, End::Close, End::Drop, End::Abandon]),
                    options: if c.percent(50) { c.next() } else { 0 },
                    fresh_env: c.percent(50),
                },
                _ => Op::CheckAll,
            }
        })
        .collect();
    append_some(seed, &mut ops);
    cancel_some(seed, &mut ops);
    ingest_some(seed, &mut ops);
    condition_some(seed, shape, &mut ops);
    ops
}

/// Gives a part of the writes preconditions, of which most hold. Inserts a few writes whose
/// preconditions rarely hold, so that the other writes stay. The draws are separate, as below.
fn condition_some(seed: u64, shape: Shape, ops: &mut Vec<Op>) {
    let mut c = Rng::of(&[seed, 10]);
    let percent = c.pick(&[0, 5, 10, 20]);
    let inserted = c.pick(&[0, 2, 4, 8]) * ops.len() as u64 / 100;
    let unchanged = |c: &mut Rng| Condition::Unchanged {
        family: c.below(8).saturating_sub(4) as usize,
        key: c.below(shape.keys) as u16,
        since: c.pick(&[Since::Now, Since::LastChange]),
    };
    for op in ops.iter_mut() {
        let waits = matches!(op, Op::Write { .. });
        if let Op::Write { items, sync } | Op::Submit { items, sync } = op
            && c.percent(percent)
        {
            *op = Op::WriteIf {
                items: std::mem::take(items),
                conditions: (0..c.within(1, 4)).map(|_| unchanged(&mut c)).collect(),
                sync: *sync,
                waits,
            };
        }
    }
    for _ in 0..inserted {
        let items = (0..c.within(1, 4)).map(|_| Item {
            family: c.below(8).saturating_sub(4) as usize,
            key: c.below(shape.keys) as u16,
            what: match c.below(8) {
                0 => What::Delete,
                1 => What::DeleteRange(c.below(shape.keys) as u16),
                2 => What::Append(c.within(1, 40) as u32),
                _ => What::Put(value_len(&mut c)),
            },
        });
        let items = items.collect();
        let mut conditions: Vec<Condition> = (0..c.below(3)).map(|_| unchanged(&mut c)).collect();
        let strict = match c.below(4) {
            0 => Condition::Unchanged {
                family: c.below(8).saturating_sub(4) as usize,
                key: c.below(shape.keys) as u16,
                since: Since::Snapshot(c.below(8) as u8),
            },
            _ => Condition::Outdated(c.below(16) as u8),
        };
        conditions.insert(c.below(conditions.len() as u64 + 1) as usize, strict);
        let op = Op::WriteIf {
            items,
            conditions,
            sync: c.percent(40),
            waits: shape.no_tickets || c.percent(70),
        };
        ops.insert(c.below(ops.len() as u64 + 1) as usize, op);
    }
}

/// Turns a part of the writes into tables that are prepared and added, in a share of histories. The
/// draws are separate, as below.
fn ingest_some(seed: u64, ops: &mut [Op]) {
    let mut c = Rng::of(&[seed, 7]);
    let percent = c.pick(&[0, 0, 5, 15, 40]);
    for op in ops {
        if let Op::Write { items, .. } = op
            && c.percent(percent)
        {
            let items = std::mem::take(items);
            *op = Op::Ingest { items };
        }
    }
}

/// Inserts compactions that are cancelled on their way into half of the histories. The draws are
/// separate, as below.
fn cancel_some(seed: u64, ops: &mut Vec<Op>) {
    let mut c = Rng::of(&[seed, 6]);
    if c.percent(50) {
        return;
    }
    for _ in 0..c.within(1, 4) {
        let at = c.below(ops.len() as u64 + 1) as usize;
        let family = c.below(8).saturating_sub(4) as usize;
        let after = c.within(1, 8) as u8;
        ops.insert(at, Op::CompactCancelled { family, after });
    }
}

/// Turns a part of the writes into appends, in a share of histories. The draws are separate: the
/// rest of a seed's history stays the same.
fn append_some(seed: u64, ops: &mut [Op]) {
    let mut c = Rng::of(&[seed, 4]);
    let percent = c.pick(&[0, 30, 60, 90]);
    for op in ops {
        let (Op::Write { items, .. } | Op::Submit { items, .. }) = op else {
            continue;
        };
        for item in items {
            if let What::Put(len) = item.what
                && c.percent(percent)
            {
                item.what = What::Append(len.min(400));
            }
        }
    }
}

/// Returns the bytes of a key: some share prefixes, some are binary, one is empty, one is long.
pub fn key_bytes(key: u16) -> Vec<u8> {
    match key {
        0 => Vec::new(),
        1 => vec![0],
        2 => vec![0xff; 9],
        3 => [b"long".as_slice(), &[b'x'; 700]].concat(),
        n if n % 7 == 0 => format!("k{n}").into_bytes(),
        n if n % 5 == 0 => format!("shared/prefix/of/some/length/{n:05}").into_bytes(),
        n => format!("key{n:04}").into_bytes(),
    }
}

/// Returns a value that no other commit writes: it starts with a number of its own, and the rest
/// compresses somewhat.
pub fn value_bytes(nonce: u64, len: u32) -> Vec<u8> {
    let head = format!("<{nonce}>");
    let mut c = Rng::of(&[nonce, 77]);
    let mut v: Vec<u8> = head.into_bytes();
    while v.len() < len as usize {
        let b = c.next().to_le_bytes();
        v.extend_from_slice(&b[..2]);
        v.extend_from_slice(b"and so on ");
    }
    v.truncate(len as usize);
    v
}

fn family_options(c: &mut Rng) -> FamilyOptions {
    let trigger = c.within(1, 5) as usize;
    let drawn = FamilyOptions::default()
        .block_bytes(c.pick(&[64, 128, 256, 512, 4096]))
        .filter_bits_per_key(c.pick(&[0, 2, 10]))
        .compression(c.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]))
        .bottom_compression(c.pick(&[None, None, Some(Compression::Lz4), Some(Compression::Zstd)]))
        .table_bytes(c.pick(&[1024, 2048, 4096, 16384]))
        .l0_compaction_trigger(trigger)
        .l0_slowdown(trigger + c.below(8) as usize)
        .base_level_bytes(c.pick(&[1024, 4096, 16384]))
        .level_multiplier(c.within(2, 6) as u32)
        .merge_operator(Some(Arc::new(Append::new(DELIMITER))))
        .min_blob_size(c.pick(&[None, Some(1), Some(12), Some(100)]));
    // The number derives from other draws: a draw of its own would give every seed another history.
    let n = drawn.table_bytes / 1024 + u64::from(drawn.level_multiplier);
    drawn.blob_compression([Compression::None, Compression::Lz4, Compression::Zstd][n as usize % 3])
}

/// Returns an extractor of prefixes for the keys of [`key_bytes`]; the first and last numbers stand
/// for none.
fn extractor(n: u64) -> Option<Prefixes> {
    match n {
        1 => Some(Prefixes::Fixed(4)),
        2 => Some(Prefixes::Capped(6)),
        3 => Some(Prefixes::Delimited(b'/')),
        _ => None,
    }
}

/// Returns the prefix that such an extractor cuts from a key, written anew.
pub fn prefix_of(extractor: &Prefixes, key: &[u8]) -> Option<Vec<u8>> {
    match extractor {
        Prefixes::Fixed(n) => (key.len() >= *n).then(|| key[..*n].to_vec()),
        Prefixes::Capped(n) => Some(key.iter().copied().take(*n).collect()),
        Prefixes::Delimited(byte) => {
            let mut part = Vec::new();
            for b in key {
                part.push(*b);
                if b == byte {
                    return Some(part);
                }
            }
            None
        }
        _ => unreachable!("not drawn"),
    }
}

/// A listener that hears every event, and destructures it.
struct Listening;

impl EventListener for Listening {
    fn on_event(&self, event: &Event) {
        assert!(!format!("{event:?}").is_empty());
    }
}

/// Returns the seed of options that keep most values in blob files and collect them early: one for
/// each `n`.
pub fn collecting(n: u64) -> u64 {
    let wanted = |seed: &u64| {
        let o = options(*seed);
        o.default_family.min_blob_size.is_some() && o.max_space_amp < 1.2
    };
    (n * 1000..).find(wanted).expect("there are many")
}

/// Returns operations after which much of the blob files is garbage, and some is not: values of a
/// few kilobytes, written again and again.
pub fn overwrite_history(seed: u64, rounds: u64) -> Vec<Op> {
    let mut c = Rng::of(&[seed, 8]);
    let mut ops = Vec::new();
    for _ in 0..rounds {
        let items = (0..8).map(|_| Item {
            family: 0,
            key: c.below(16) as u16,
            what: What::Put(c.within(800, 4000) as u32),
        });
        ops.push(Op::Write {
            items: items.collect(),
            sync: c.percent(50),
        });
        ops.push(Op::Flush);
        ops.push(Op::CompactRange {
            family: 0,
            from: None,
            to: None,
        });
        ops.push(Op::Step(c.within(1, 9) as u8));
    }
    ops.push(Op::WaitIdle);
    ops
}

/// The seed of options whose write buffer is larger than the first log.
pub const LARGE_BUFFER: u64 = u64::MAX;

/// Returns small options of a seed: everything happens within a few hundred operations. Seed 0 is
/// one fixed choice.
pub fn options(seed: u64) -> Options {
    let mut c = Rng::of(&[seed, 2]);
    let mut options = Options::default()
        .write_buffer_bytes(c.pick(&[4096, 6000, 8192, 16384]))
        .max_sealed_memtables({
            let n = c.within(1, 4) as usize;
            // This draw belonged to a former setting: seeds keep their meaning.
            c.next();
            n
        })
        .default_family(family_options(&mut c));
    for name in &FAMILIES[1..] {
        if c.percent(60) {
            options
                .families
                .insert(name.to_string(), family_options(&mut c));
        }
    }
    // Later settings are drawn last, so that earlier draws stay the same. In a share of histories
    // an idle store gives back its logs.
    if c.percent(40) {
        options.idle_release = Duration::from_millis(c.within(2, 9));
    }
    let families = options.families.values_mut();
    for f in families.chain([&mut options.default_family]) {
        f.prefix_extractor = extractor(c.below(5));
    }
    if c.percent(30) {
        options.listeners.push(Arc::new(Listening));
    }
    options.max_space_amp = c.pick(&[1.05, 1.1, 1.25, 2.0]);
    if seed == LARGE_BUFFER {
        options.write_buffer_bytes = 600_000;
    }
    let same = options.default_family.clone();
    let family = options.families.entry(IN_PAGES.to_string()).or_insert(same);
    family.pages = Some(pages(&mut Rng::of(&[seed, 3])));
    options
}

/// Returns settings of small pages with short chains, so that short histories have every change of
/// a tree.
fn pages(c: &mut Rng) -> TreeOptions {
    let drawn = TreeOptions::default()
        .page_bytes(c.pick(&[256, 400, 1000]))
        .block_bytes(c.pick(&[16, 64, 4096]))
        .extent_bytes(c.pick(&[4 << 10, 8 << 10, 32 << 10]))
        .max_deltas(c.pick(&[2, 2, 3, 8]))
        .overwrite_ratio(c.pick(&[0.0, 0.5, 2.5]))
        .compression(c.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]))
        .base_garbage(c.pick(&[0.05, 0.3, 0.5]))
        .delta_garbage(c.pick(&[0.05, 0.5, 0.75]))
        .checkpoint_bytes(c.pick(&[0, 300, 4000]));
    // The number derives from other draws: a draw of its own would give every seed other settings.
    let n = drawn.page_bytes / 100 + drawn.max_deltas + drawn.checkpoint_bytes as usize / 300;
    let drawn = drawn.leaf_delta_bytes([None, Some(0), Some(100), Some(1 << 20)][n % 4]);
    let drawn = drawn.cold_merge_ratio([0.25, 0.0, 10.0][n / 2 % 3]);
    let drawn = drawn.max_space_amp([1.5, 1.05, 3.0][n / 3 % 3]);
    let drawn = drawn.mapping_bytes([0, 2000, 16 << 20][n % 3]);
    drawn.usage_bytes([8 << 20, 0, 300][n / 5 % 3])
}
