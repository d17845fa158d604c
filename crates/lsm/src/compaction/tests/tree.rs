//! Whole trees of tables in memory: random flushes, compactions that overlap in time, snapshots and
//! reads.

use super::*;
use crate::FamilyOptions;
use crate::compaction::{
    Claim, CompactionReason, DeeperLevels, MergeRules, PickContext, Plan, RangePlan,
    compaction_debt, level_targets, merge, pick, plan_range, scores,
};
use crate::iter::tests::{VecIter, appending, encode, seeds, visible};
use crate::iter::{InternalIter, MergingIter};
use crate::version::{FamilyVersion, LEVELS};
use basalt_env::Random;
use basalt_kv::ranges::NOTHING;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

struct Tree {
    cmp: Cmp,
    options: FamilyOptions,
    store: Arc<TableStore>,
    version: FamilyVersion,
    content: BTreeMap<u64, Entries>,
    next_number: u64,
    seq: SeqNo,
    now_ms: u64,
    snapshots: Vec<SeqNo>,
    /// All versions that were ever written.
    history: History,
    running: Vec<(Plan, Claim, Vec<SeqNo>)>,
    flushed: u64,
    written: u64,
    moves: u64,
    merges: u64,
}

impl Tree {
    fn new() -> Tree {
        let options = FamilyOptions {
            table_bytes: 1024,
            base_level_bytes: 4096,
            level_multiplier: 4,
            ..FamilyOptions::default()
        };
        Tree {
            cmp: Cmp::Bytewise,
            options,
            store: store(),
            version: FamilyVersion::empty(Cmp::Bytewise),
            content: BTreeMap::new(),
            next_number: 1,
            seq: 0,
            now_ms: 1_000_000,
            snapshots: Vec::new(),
            history: Vec::new(),
            running: Vec::new(),
            flushed: 0,
            written: 0,
            moves: 0,
            merges: 0,
        }
    }

    fn context(&self) -> PickContext<'_> {
        PickContext {
            family: 0,
            version: &self.version,
            options: &self.options,
            now_ms: self.now_ms,
            oldest_snapshot: self.snapshots.first().copied().unwrap_or(MAX_SEQ),
            running: &[],
            entering: &[],
            urgent: false,
            still_for: Default::default(),
            hidden_garbage: Default::default(),
            relocation_set: Default::default(),
        }
    }

    fn add_table(&mut self, level: usize, entries: Entries) {
        let number = self.next_number;
        self.next_number += 1;
        let table = self
            .store
            .table(number, meta_of(&entries), self.cmp.clone());
        self.version.insert(level, table);
        self.content.insert(number, entries);
    }

    fn flush(&mut self, ops: Vec<(Vec<u8>, Kind, Vec<u8>)>) {
        let mut entries = Entries::new();
        for (key, kind, payload) in ops {
            self.seq += 1;
            let e = (key, self.seq, kind, payload);
            entries.push(encode(&e));
            self.history.push(e);
        }
        entries.sort_by(|a, b| self.cmp.internal(&a.0, &b.0));
        let bytes = meta_of(&entries).size;
        self.flushed += bytes;
        self.add_table(0, entries);
    }

    fn begin(&mut self, plan: Plan) {
        let claim = Claim::take(&plan).expect("a picked plan's tables are free");
        assert!(Claim::take(&plan).is_none());
        self.running.push((plan, claim, self.snapshots.clone()));
    }

    fn end(&mut self, at: usize) {
        let (plan, claim, snapshots) = self.running.swap_remove(at);
        if plan.trivial_move {
            self.moves += 1;
            for t in plan.input_tables() {
                let t = self
                    .version
                    .remove(plan.level, t.number, &t.meta)
                    .expect("is there");
                self.version.insert(plan.output_level, t);
            }
        } else {
            self.merges += 1;
            let children = plan
                .input_tables()
                .map(|t| {
                    let entries = self.content[&t.number].clone();
                    Box::new(VecIter::new(self.cmp.clone(), entries)) as Box<dyn InternalIter>
                })
                .collect();
            let cancelled = AtomicBool::new(false);
            let rules = MergeRules {
                cmp: &self.cmp,
                snapshots: &snapshots,
                now_ms: self.now_ms,
                filter: None,
                merging: &appending(),
                family: "",
                level: plan.output_level,
                cancelled: &cancelled,
                deleted: &NOTHING,
            };
            let mut sink = VecSink::new(&plan.grandparents, self.options.table_bytes);
            let input = MergingIter::new(self.cmp.clone(), children);
            let deeper = DeeperLevels::new(&self.cmp, &plan.deeper);
            merge(&rules, input, deeper, &mut sink, &|_| None).unwrap();
            let tables = std::mem::take(&mut sink.tables);
            drop(sink);
            for (level, tables) in &plan.inputs {
                for t in tables {
                    self.version
                        .remove(*level, t.number, &t.meta)
                        .expect("is there");
                    self.content.remove(&t.number);
                }
            }
            for entries in tables {
                self.written += meta_of(&entries).size;
                self.add_table(plan.output_level, entries);
            }
        }
        drop(claim);
        self.version.check().unwrap();
    }

    /// Returns the live keys for a reader that stops at the first level with the key, or continues
    /// below operands.
    fn first_hits(&self, seq: SeqNo) -> History {
        // The versions that were read of each key, newest first.
        let mut found: BTreeMap<Vec<u8>, History> = BTreeMap::new();
        for (level, tables) in self.version.levels.iter().enumerate() {
            let mut here: BTreeMap<Vec<u8>, History> = BTreeMap::new();
            for t in tables {
                for e in decode(&self.content[&t.number]) {
                    if e.1 > seq {
                        continue;
                    }
                    let slot = here.entry(e.0.clone()).or_default();
                    assert!(
                        slot.last().is_none_or(|newer| newer.1 >= e.1),
                        "level {level}: an older table comes first"
                    );
                    slot.push(e);
                }
            }
            for (key, entries) in here {
                let slot = found.entry(key).or_default();
                for e in entries {
                    let newer = slot.last();
                    assert!(
                        newer.is_none_or(|n| n.1 >= e.1),
                        "level {level} holds a newer version than above"
                    );
                    if newer.is_none_or(|n| n.2 == Kind::Merge) {
                        slot.push(e);
                    }
                }
            }
        }
        found.into_values().flatten().collect()
    }

    fn check_reads(&self) {
        for seq in self.snapshots.iter().copied().chain([MAX_SEQ]) {
            assert_eq!(
                visible(&self.cmp, &self.first_hits(seq), seq, self.now_ms),
                visible(&self.cmp, &self.history, seq, self.now_ms),
                "snapshot {seq}"
            );
        }
        let tables = self.version.levels.iter().flatten().count();
        assert_eq!(tables, self.content.len());
    }

    /// Compacts until no compaction is due. Fails if that never happens.
    fn wait_idle(&mut self) {
        while !self.running.is_empty() {
            self.end(0);
        }
        let mut rounds = 0;
        while let Some(plan) = pick(&self.context()) {
            self.begin(plan);
            self.end(0);
            rounds += 1;
            assert!(rounds < 20_000, "the tree does not come to rest");
        }
        for (level, score) in scores(&self.version, &self.options) {
            assert!(score < 1.0, "level {level} has score {score} at rest");
        }
        assert_eq!(compaction_debt(&self.version, &self.options), 0);
    }

    fn entries(&self) -> usize {
        self.content.values().map(Vec::len).sum()
    }
}

#[test]
fn random_trees_lose_no_entry_and_stop_compacting() {
    let mut amplification = Vec::new();
    let (mut moves, mut merges) = (0, 0);
    seeds("random_trees_lose_nothing", 100, |seed| {
        let r = Random::from_seed(seed);
        let mut t = Tree::new();
        let keys = 1 << (4 + r.below(8));
        let ascending = r.one_in(4);
        let operands = r.one_in(2);
        let mut next_key = 0;
        for round in 0..120 {
            let ops = (0..5 + r.below(40))
                .map(|_| {
                    let n = if ascending {
                        next_key += 1;
                        next_key
                    } else {
                        r.below(keys)
                    };
                    let key = format!("{n:05}").into_bytes();
                    match r.below(if operands { 12 } else { 8 }) {
                        0 | 1 => (key, Kind::Delete, Vec::new()),
                        8.. => (key, Kind::Merge, vec![b'm'; r.below(9) as usize]),
                        2 => {
                            let at = t.now_ms + r.below(1_000_000);
                            let mut payload = at.to_le_bytes().to_vec();
                            payload.extend_from_slice(b"ttl");
                            (key, Kind::PutTtl, payload)
                        }
                        _ => (key, Kind::Put, vec![b'v'; r.below(40) as usize]),
                    }
                })
                .collect();
            t.flush(ops);
            t.now_ms += r.below(20_000);
            if r.one_in(8) {
                t.snapshots.push(t.seq);
            }
            if r.one_in(8) && !t.snapshots.is_empty() {
                let at = r.below(t.snapshots.len() as u64) as usize;
                t.snapshots.remove(at);
            }
            for _ in 0..r.below(4) {
                if t.running.len() < 4
                    && let Some(plan) = pick(&t.context())
                {
                    t.begin(plan);
                }
                if !t.running.is_empty() && r.one_in(2) {
                    let at = r.below(t.running.len() as u64) as usize;
                    t.end(at);
                }
            }
            if round % 20 == 0 {
                t.check_reads();
            }
        }
        t.wait_idle();
        t.check_reads();
        if !ascending {
            amplification.push((t.flushed + t.written) as f64 / t.flushed as f64);
        }
        moves += t.moves;
        merges += t.merges;

        // Everything expires and no snapshot is left. A manual compaction then leaves exactly the
        // live entries.
        t.snapshots.clear();
        t.now_ms += 10_000_000;
        let (upto, before) = (t.seq, t.next_number);
        for level in 0..LEVELS {
            loop {
                match plan_range(&t.context(), level, None, None, upto, before) {
                    RangePlan::Done => break,
                    RangePlan::Busy => panic!("nothing is running"),
                    RangePlan::Plan(plan) => {
                        assert_eq!(plan.reason, CompactionReason::Manual);
                        t.begin(*plan);
                        t.end(0);
                    }
                }
            }
        }
        t.check_reads();
        let live = visible(&t.cmp, &t.history, MAX_SEQ, t.now_ms).len();
        assert_eq!(t.entries(), live);
        let levels = (0..LEVELS).filter(|&l| !t.version.levels[l].is_empty());
        assert!(levels.count() <= 1);
    });
    let mean = amplification.iter().sum::<f64>() / amplification.len().max(1) as f64;
    println!("write_amplification={mean:.2} moves={moves} merges={merges}");
    assert!(moves > 0 && merges > 0);
}

#[test]
fn a_growing_tree_keeps_its_shape_and_write_amplification() {
    let r = Random::from_seed(7);
    let mut t = Tree::new();
    for _ in 0..1500 {
        let ops = (0..30)
            .map(|_| {
                let key = format!("{:06}", r.below(40_000)).into_bytes();
                (key, Kind::Put, vec![b'v'; 20])
            })
            .collect();
        t.flush(ops);
        while let Some(plan) = pick(&t.context()) {
            t.begin(plan);
            t.end(0);
        }
        let l0 = t.version.levels[0].len();
        assert!(
            l0 < t.options.l0_compaction_trigger,
            "{l0} tables in level 0"
        );
    }
    t.check_reads();
    let targets = level_targets(&t.version, &t.options);
    assert!(targets.base_level < LEVELS - 2, "{targets:?}");
    let total: u64 = (0..LEVELS).map(|l| t.version.level_bytes(l)).sum();
    let live = visible(&t.cmp, &t.history, MAX_SEQ, 0).len() as f64;
    let space = t.entries() as f64 / live;
    let write = (t.flushed + t.written) as f64 / t.flushed as f64;
    println!(
        "base={} bytes={total} write_amplification={write:.2} space_amplification={space:.2}",
        targets.base_level
    );
    assert!(write < 16.0 && space < 1.6);
}

#[test]
fn compactions_free_expired_values_and_old_versions() {
    let mut t = Tree::new();
    let ttl = |t: &Tree, n: u64| {
        let mut payload = (t.now_ms + 1000).to_le_bytes().to_vec();
        payload.extend_from_slice(&[b'v'; 50]);
        (format!("{n:05}").into_bytes(), Kind::PutTtl, payload)
    };
    for round in 0..20 {
        let ops = (0..50).map(|n| ttl(&t, round * 50 + n)).collect();
        t.flush(ops);
    }
    t.wait_idle();
    assert_eq!(t.entries(), 1000);
    t.now_ms += 1000;
    assert!(
        pick(&t.context()).is_none(),
        "expiry is not acted on at once"
    );
    t.now_ms += 60_000;
    t.wait_idle();
    assert_eq!(t.entries(), 0);

    // Tombstones that a snapshot held are dropped after its release.
    for round in 0..20 {
        let ops = (0..50)
            .map(|n| {
                (
                    format!("{:05}", round * 50 + n).into_bytes(),
                    Kind::Put,
                    vec![b'v'; 50],
                )
            })
            .collect();
        t.flush(ops);
    }
    t.wait_idle();
    t.snapshots.push(t.seq);
    for round in 0..20 {
        let ops = (0..50)
            .map(|n| {
                (
                    format!("{:05}", round * 50 + n).into_bytes(),
                    Kind::Delete,
                    Vec::new(),
                )
            })
            .collect();
        t.flush(ops);
    }
    t.wait_idle();
    t.check_reads();
    assert!(t.entries() >= 1000);
    t.snapshots.clear();
    t.wait_idle();
    t.check_reads();
    let left: usize = t.version.levels[1..]
        .iter()
        .flatten()
        .map(|x| x.meta.entries as usize)
        .sum();
    // These are values whose tombstones are still in level 0, which is below its trigger.
    assert!(left <= 150, "{left} entries of deleted keys are left");
}
