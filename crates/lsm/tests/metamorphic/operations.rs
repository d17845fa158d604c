//! The operations of a history, and how a history is drawn. Each seed leaves out some kinds of
//! operations, so that rare ones also happen undisturbed by frequent ones.

use crate::rng::Rng;

/// Names of the families; the first always exists.
pub const FAMILIES: [&str; 4] = [
    "default",
    "second",
    "a family with a longer name",
    "passing",
];
/// Distinct keys a family.
const KEYS: u64 = 70;
/// Length in ms of the steps in which time passes: longer than all delays of writers can add up to.
pub const STEP_MS: u64 = 100_000_000;
/// Number of snapshots, and of iterators, held at a time.
pub const HELD: usize = 6;

#[derive(Clone, Debug)]
pub enum What {
    /// A value of this many bytes.
    Put(u32),
    /// A value of this many bytes that expires after this many steps of time.
    PutTtl(u32, u64),
    /// A value of this many bytes that every reader takes for absent, and that a compaction filter
    /// may remove.
    Expirable(u32),
    /// An operand of the family's operator, of about this many bytes.
    Merge(u32),
    /// An operand that the operator accepts and never merges, if it has one.
    Poison,
    Delete,
    /// Deletes all keys from this one to the item's, the larger one exclusive; if both are one key,
    /// that key alone.
    DeleteRange(u64),
}

#[derive(Clone, Debug)]
pub struct Item {
    pub family: usize,
    pub key: u64,
    pub what: What,
}

/// A precondition of a write. Without its family it is left out.
#[derive(Clone, Debug)]
pub enum Condition {
    /// A key is unchanged since the moment of this number, counted back from now. If the key is
    /// absent and unchanged, the moment is now: otherwise compactions would decide the answer.
    Unchanged {
        family: usize,
        key: u64,
        back: usize,
    },
    /// A key that was changed in this life is unchanged since the moment before. The number counts
    /// changed keys back from the last one. Without such a key the condition is left out.
    Outdated(usize),
}

/// Family, moment and bounds of one read.
#[derive(Clone, Debug)]
pub struct ReadTarget {
    pub family: usize,
    /// Number of the held snapshot. If fewer are held, the read is of the present.
    pub snapshot: Option<usize>,
    pub from: Option<u64>,
    pub to: Option<u64>,
}

#[derive(Clone, Debug)]
pub enum Move {
    First,
    Last,
    Seek(u64),
    SeekForPrev(u64),
    Next(u64),
    Prev(u64),
}

#[derive(Clone, Debug)]
pub enum Op {
    Write {
        items: Vec<Item>,
        sync: bool,
    },
    /// A write that takes effect if all conditions hold.
    WriteIf {
        items: Vec<Item>,
        conditions: Vec<Condition>,
        sync: bool,
        submits: bool,
    },
    /// Several batches in the queue at once; the last step waits for them.
    Burst(Vec<Vec<Item>>),
    Get {
        look: ReadTarget,
        key: u64,
    },
    MultiGet {
        keys: Vec<(usize, u64)>,
        snapshot: Option<usize>,
    },
    /// A `MultiGet` by calls that each answer a part.
    MultiGetWithin {
        keys: Vec<(usize, u64)>,
        snapshot: Option<usize>,
    },
    /// A walk over all keys between the bounds, in one direction.
    Scan {
        look: ReadTarget,
        down: bool,
    },
    /// A scan by several iterators, one after the other, each of which skips only a limited number
    /// of hidden entries.
    ScanInPieces {
        look: ReadTarget,
        down: bool,
        skips: u64,
    },
    /// A walk over all keys with the prefix of the first one, by the family's own extractor, or
    /// over all keys if it has none. After this many rows the walk turns.
    Prefix {
        look: ReadTarget,
        from: Move,
        turn: Option<u64>,
    },
    /// A walk over all keys between bounds that leave keys with one prefix.
    Beginning {
        look: ReadTarget,
        with: usize,
        down: bool,
    },
    OpenIter {
        look: ReadTarget,
        first: Move,
    },
    MoveIter(usize, Move),
    /// A held iterator moves on to the present or to a snapshot.
    RefreshIter {
        iter: usize,
        snapshot: Option<usize>,
        to: Move,
    },
    CloseIter(usize),
    /// Opens a tailing cursor.
    OpenTail {
        look: ReadTarget,
        first: Move,
    },
    MoveTail(usize, Move),
    /// A tailing cursor is at the end when a key is written there, and moves on to it. The
    /// memtables are flushed before that or not.
    Follow {
        family: usize,
        len: u32,
        flush: bool,
    },
    TakeSnapshot,
    DropSnapshot(usize),
    CreateFamily(usize),
    DropFamily(usize),
    /// A request that must be refused, by the number of a mistake.
    Mistake(u64),
    Flush,
    Compact(ReadTarget),
    /// A compaction with the settings of the options, cancelled before it begins or not.
    CompactAs {
        look: ReadTarget,
        cancelled: bool,
    },
    /// A checkpoint that is checked at once.
    Checkpoint,
    /// Opens one of the checkpoints made so far, for reading or for writing.
    OpenCopy {
        copy: u64,
        write: bool,
    },
    /// Ends the store's life, opens two readers of the closed store, then begins the next life.
    ReadOnly {
        way: u64,
        fresh: bool,
    },
    WaitIdle,
    Sync,
    /// Lets this many steps of time pass.
    Advance(u64),
    /// Sets the wall clock back by steps.
    StepBack(u64),
    /// Ends the store's life in the way of this number, and begins the next life.
    Reopen {
        way: u64,
        fresh: bool,
    },
    /// Checks everything that exists.
    All,
}

fn value_len(c: &mut Rng) -> u32 {
    (match c.below(20) {
        0 => 0,
        1..=9 => c.within(1, 40),
        10..=17 => c.within(40, 400),
        18 => c.within(400, 1500),
        _ => c.within(1500, 9000),
    }) as u32
}

/// The prefixes of keys that bounds leave.
pub const BEGINNINGS: [&[u8]; 8] = [
    b"key00", b"key000", b"key003", b"shared", b"shared/", b"k", b"absent", b"k\xff",
];

struct Draw {
    c: Rng,
    ranges: u64,
    merges: u64,
    poison: u64,
    deletes: u64,
    ttl: u64,
    mortal: u64,
    /// True if keys come in runs of neighbours.
    runs: bool,
    at: u64,
}

impl Draw {
    fn key(&mut self) -> u64 {
        if self.runs && self.c.percent(80) {
            self.at = (self.at + 1) % KEYS;
        } else {
            self.at = self.c.below(KEYS);
        }
        self.at
    }
    fn family(&mut self) -> usize {
        // Half of all operations go to the first family.
        self.c.below(7).saturating_sub(3) as usize
    }
    fn items(&mut self) -> Vec<Item> {
        let n = match self.c.below(10) {
            0 => self.c.within(10, 60),
            1..=4 => self.c.within(2, 8),
            _ => 1,
        };
        let mut items = Vec::new();
        for _ in 0..n {
            let what = match self.c.below(100) {
                _ if self.c.percent(self.ranges) => What::DeleteRange(self.c.below(KEYS)),
                _ if self.c.percent(self.merges) => match self.c.percent(self.poison) {
                    true => What::Poison,
                    false => What::Merge(value_len(&mut self.c)),
                },
                p if p < self.deletes => What::Delete,
                p if p < self.deletes + self.ttl => {
                    What::PutTtl(value_len(&mut self.c), self.c.within(1, 30))
                }
                p if p < self.deletes + self.ttl + self.mortal => {
                    What::Expirable(value_len(&mut self.c))
                }
                _ => What::Put(value_len(&mut self.c)),
            };
            let (family, key) = (self.family(), self.key());
            items.push(Item { family, key, what });
        }
        items
    }
    fn snapshot(&mut self) -> Option<usize> {
        (self.c.percent(40)).then(|| self.c.below(HELD as u64) as usize)
    }
    fn look(&mut self) -> ReadTarget {
        let family = self.family();
        let snapshot = self.snapshot();
        let mut bound = || self.c.percent(40).then(|| self.c.below(KEYS));
        ReadTarget {
            family,
            snapshot,
            from: bound(),
            to: bound(),
        }
    }
    fn a_move(&mut self) -> Move {
        match self.c.below(6) {
            0 => Move::First,
            1 => Move::Last,
            2 => Move::Seek(self.c.below(KEYS + 4)),
            3 => Move::SeekForPrev(self.c.below(KEYS + 4)),
            4 => Move::Next(self.c.within(1, 12)),
            _ => Move::Prev(self.c.within(1, 12)),
        }
    }
    fn op(&mut self, kind: usize) -> Op {
        match kind {
            0 => Op::Write {
                items: self.items(),
                sync: self.c.percent(30),
            },
            1 => Op::Burst((0..self.c.within(2, 9)).map(|_| self.items()).collect()),
            2 => Op::Get {
                look: self.look(),
                key: self.c.below(KEYS + 2),
            },
            3 => Op::MultiGet {
                keys: (0..self.c.within(1, 30))
                    .map(|_| (self.family(), self.c.below(KEYS + 2)))
                    .collect(),
                snapshot: self.snapshot(),
            },
            4 => Op::Scan {
                look: self.look(),
                down: self.c.percent(50),
            },
            5 => Op::ScanInPieces {
                look: self.look(),
                down: self.c.percent(50),
                skips: self.c.within(1, 9),
            },
            6 => Op::OpenIter {
                look: self.look(),
                first: self.a_move(),
            },
            7 => Op::MoveIter(self.c.below(HELD as u64) as usize, self.a_move()),
            8 => Op::CloseIter(self.c.below(HELD as u64) as usize),
            9 => Op::TakeSnapshot,
            10 => Op::DropSnapshot(self.c.below(HELD as u64) as usize),
            11 => Op::CreateFamily(self.c.within(1, 4) as usize),
            12 => Op::DropFamily(self.c.within(1, 4) as usize),
            13 => Op::Mistake(self.c.next()),
            14 => Op::Flush,
            15 => Op::Compact(self.look()),
            16 => Op::WaitIdle,
            17 => Op::Sync,
            18 => Op::Advance(self.c.within(1, 8)),
            19 => Op::StepBack(self.c.within(1, 9)),
            20 => Op::Reopen {
                way: self.c.below(4),
                fresh: self.c.percent(50),
            },
            21 => Op::All,
            22 => Op::MultiGetWithin {
                keys: (0..self.c.within(1, 30))
                    .map(|_| (self.family(), self.c.below(KEYS + 2)))
                    .collect(),
                snapshot: self.snapshot(),
            },
            23 => Op::Prefix {
                look: self.look(),
                from: match self.c.below(8) {
                    0 => Move::First,
                    1 => Move::Last,
                    2..=4 => Move::Seek(self.c.below(KEYS + 4)),
                    _ => Move::SeekForPrev(self.c.below(KEYS + 4)),
                },
                turn: (self.c.percent(40)).then(|| self.c.within(1, 9)),
            },
            24 => Op::Beginning {
                look: self.look(),
                with: self.c.below(BEGINNINGS.len() as u64) as usize,
                down: self.c.percent(50),
            },
            25 => Op::RefreshIter {
                iter: self.c.below(HELD as u64) as usize,
                snapshot: self.snapshot(),
                to: self.a_move(),
            },
            26 => Op::OpenTail {
                look: self.look(),
                first: self.a_move(),
            },
            27 => Op::MoveTail(
                self.c.below(HELD as u64) as usize,
                match self.c.below(8) {
                    0 => self.a_move(),
                    1 => Move::Seek(self.c.below(KEYS)),
                    _ => Move::Next(self.c.within(1, 12)),
                },
            ),
            28 => Op::CompactAs {
                look: self.look(),
                cancelled: self.c.percent(20),
            },
            29 => Op::Checkpoint,
            30 => Op::OpenCopy {
                copy: self.c.next(),
                write: self.c.percent(40),
            },
            31 => Op::Follow {
                family: self.c.within(1, 4) as usize,
                len: value_len(&mut self.c),
                flush: self.c.percent(50),
            },
            _ => Op::ReadOnly {
                way: self.c.below(4),
                fresh: self.c.percent(50),
            },
        }
    }
}

/// Weight of each kind of operation, in the order of [`Draw::op`].
const WEIGHTS: [u64; 33] = [
    28, 5, 10, 4, 7, 4, 4, 9, 2, 4, 3, 3, 1, 2, 4, 3, 2, 2, 4, 1, 3, 2, 3, 6, 4, 4, 2, 8, 2, 2, 2,
    2, 2,
];

/// Returns the history of a seed.
pub fn history(seed: u64, operations: usize) -> Vec<Op> {
    let mut c = Rng::of(&[seed, 31]);
    let mut weights = WEIGHTS;
    for weight in &mut weights[1..] {
        if c.percent(15) {
            *weight = 0;
        } else if c.percent(10) {
            *weight *= 4;
        }
    }
    let mut draw = Draw {
        ranges: c.pick(&[0, 2, 6]),
        merges: c.pick(&[0, 30, 60]),
        poison: c.pick(&[0, 0, 2]),
        deletes: c.pick(&[0, 10, 25, 40]),
        ttl: c.pick(&[0, 15, 40]),
        mortal: c.pick(&[0, 10, 25]),
        runs: c.percent(40),
        at: 0,
        c,
    };
    let total: u64 = weights.iter().sum();
    // All families exist from the beginning, so that most operations meet one.
    let mut ops: Vec<Op> = (1..FAMILIES.len()).map(Op::CreateFamily).collect();
    while ops.len() < operations {
        let mut at = draw.c.below(total);
        let kind = weights.iter().position(|w| {
            let here = at < *w;
            at = at.saturating_sub(*w);
            here
        });
        let op = draw.op(kind.expect("below the sum of all"));
        ops.push(op);
    }
    condition_some(seed, &mut ops);
    ops
}

/// Gives a part of the writes preconditions, of which most hold. Inserts a few writes whose
/// preconditions rarely hold, so that the other writes stay. The draws are separate: the rest of a
/// seed's history stays the same.
fn condition_some(seed: u64, ops: &mut Vec<Op>) {
    let mut c = Rng::of(&[seed, 36]);
    let unchanged = |c: &mut Rng, back: usize| Condition::Unchanged {
        family: c.below(7).saturating_sub(3) as usize,
        key: c.below(KEYS),
        back,
    };
    for op in ops.iter_mut() {
        if let Op::Write { items, sync } = op
            && c.percent(8)
        {
            *op = Op::WriteIf {
                items: std::mem::take(items),
                conditions: (0..c.within(1, 4)).map(|_| unchanged(&mut c, 0)).collect(),
                sync: *sync,
                submits: c.percent(40),
            };
        }
    }
    for _ in 0..ops.len() / 20 {
        let items = (0..c.within(1, 4)).map(|_| Item {
            family: c.below(7).saturating_sub(3) as usize,
            key: c.below(KEYS),
            what: match c.below(4) {
                0 => What::Delete,
                _ => What::Put(value_len(&mut c)),
            },
        });
        let items = items.collect();
        let mut conditions: Vec<Condition> = (0..c.below(3))
            .map(|_| {
                let back = c.below(12) as usize;
                unchanged(&mut c, back)
            })
            .collect();
        if c.percent(70) {
            conditions.push(Condition::Outdated(c.below(30) as usize));
        }
        let op = Op::WriteIf {
            items,
            conditions,
            sync: c.percent(30),
            submits: c.percent(40),
        };
        ops.insert(
            c.within(FAMILIES.len() as u64 - 1, ops.len() as u64 + 1) as usize,
            op,
        );
    }
}

/// Returns the bytes of a key: some share prefixes, some are binary, one is empty, one is long.
pub fn key_bytes(key: u64) -> Vec<u8> {
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
