//! Merges of real tables on a simulated disk: results, key ranges, failing calls, damage.

use super::*;
use crate::FamilyOptions;
use crate::compaction::{
    CompactionJob, Outcome, PickContext, Plan, combine, pick, run, subranges, table_options,
};
use crate::iter::tests::{add_operands, encode, random_cmp, random_history, seeds, visible};
use crate::iter::{InternalIter, LevelIter};
use crate::version::FamilyVersion;
use basalt_env::{IoPriority, Random};
use basalt_fs::{ErrorKind, FileSystem};
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{FaultFs, OpKind, When};
use basalt_table::{ReadPattern, TableBuilder, TableFamily};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Fixture {
    sim: Arc<SimFs>,
    faults: Arc<FaultFs>,
    env: Env,
    store: Arc<TableStore>,
    options: FamilyOptions,
    next: AtomicU64,
}

impl Fixture {
    fn new(cmp: Cmp, table_bytes: u64) -> Fixture {
        let sim = SimFs::new(SimOptions::default());
        sim.create_dir(Path::new("store")).unwrap();
        let faults = FaultFs::new(sim.clone(), 1);
        let env = Env::builder(faults.clone()).stepped().seed(1).build();
        Fixture {
            store: TableStore::new(&env, Path::new("store")),
            sim,
            faults,
            env,
            options: FamilyOptions {
                comparator: cmp,
                block_bytes: 128,
                table_bytes,
                base_level_bytes: 1024,
                l0_compaction_trigger: 1,
                merge_operator: Some(Arc::new(basalt_kv::merge::Append::new("|"))),
                ..FamilyOptions::default()
            },
            next: AtomicU64::new(1),
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    fn write(&self, mut entries: Entries) -> Arc<TableFile> {
        let cmp = &self.options.comparator;
        entries.sort_by(|a, b| cmp.internal(&a.0, &b.0));
        let number = self.number();
        let path = self.store.path(number);
        let mut b = TableBuilder::new(
            &self.env,
            self.env.fs().create(&path).unwrap(),
            &path,
            self.env.random().next_u128(),
            table_options(&self.options, TableFamily::default(), false),
            IoPriority::High,
        );
        for (k, v) in &entries {
            b.add(k, v).unwrap();
        }
        self.store.table(number, b.finish().unwrap(), cmp.clone())
    }

    fn read(&self, tables: &[Arc<TableFile>]) -> Entries {
        let mut out = Entries::new();
        for t in tables {
            let mut i = t.reader().unwrap().iter(ReadPattern::Uncached);
            i.seek_to_first().unwrap();
            while i.valid() {
                out.push((i.key().to_vec(), i.pinned_value()));
                i.next().unwrap();
            }
        }
        out
    }

    fn plan(&self, version: &FamilyVersion) -> Plan {
        let plan = pick(&PickContext {
            family: 0,
            version,
            options: &self.options,
            now_ms: 50,
            oldest_snapshot: 0,
            running: &[],
            entering: &[],
            urgent: false,
            still_for: Default::default(),
            hidden_garbage: Default::default(),
            relocation_set: Default::default(),
        });
        plan.expect("level 0 is due")
    }

    fn run(
        &self,
        plan: &Plan,
        snapshots: &[SeqNo],
        range: Option<crate::compaction::SplitRange>,
    ) -> Result<Outcome> {
        let cancelled = AtomicBool::new(false);
        run(&CompactionJob {
            blobs: &Default::default,
            allowance: &|_| Ok(u64::MAX),
            env: self.env.clone(),
            store: self.store.clone(),
            plan,
            options: &self.options,
            family: TableFamily::default(),
            snapshots,
            now_ms: 50,
            new_file_number: &|| self.number(),
            cancelled: &cancelled,
            range,
            flush_flag: None,
        })
    }

    fn tables(&self, outcome: &Outcome) -> Vec<Arc<TableFile>> {
        let cmp = &self.options.comparator;
        outcome
            .outputs
            .iter()
            .map(|(n, m)| self.store.table(*n, m.clone(), cmp.clone()))
            .collect()
    }

    fn files(&self) -> Vec<String> {
        let entries = self.sim.list(Path::new("store")).unwrap();
        entries.into_iter().map(|e| e.name).collect()
    }
}

/// A tree with a random history: the older half in level 6, the rest in overlapping tables of level
/// 0.
fn random_tree(fixture: &Fixture, r: &Random, history: &History) -> FamilyVersion {
    let cmp = fixture.options.comparator.clone();
    let mut v = FamilyVersion::empty(cmp.clone());
    let half = history.len() / 2;
    let mut old: Vec<_> = history[..half].iter().map(encode).collect();
    old.sort_by(|a, b| cmp.internal(&a.0, &b.0));
    let mut part = Entries::new();
    for (i, e) in old.iter().enumerate() {
        part.push(e.clone());
        let ends = old
            .get(i + 1)
            .is_none_or(|n| cmp.user(user_key(&n.0), user_key(&e.0)).is_ne());
        if ends && (i + 1 == old.len() || r.one_in(4)) {
            v.insert(6, fixture.write(std::mem::take(&mut part)));
        }
    }
    let mut rest = &history[half..];
    while !rest.is_empty() {
        let n = (1 + r.below(40) as usize).min(rest.len());
        v.insert(0, fixture.write(rest[..n].iter().map(encode).collect()));
        rest = &rest[n..];
    }
    v.check().unwrap();
    v
}

#[test]
fn a_merge_reads_the_same_whole_and_in_subranges() {
    let mut split = 0;
    seeds("merged_files_read_the_same", 300, |seed| {
        let r = Random::from_seed(seed);
        let cmp = random_cmp(&r);
        let fixture = Fixture::new(cmp.clone(), 1024);
        let mut history = random_history(&r, 100 + r.below(400), 2 + r.below(4));
        if r.one_in(2) {
            add_operands(&r, &mut history);
        }
        let v = random_tree(&fixture, &r, &history);
        let mut snapshots: Vec<SeqNo> = (0..r.below(4))
            .map(|_| r.below(history.len() as u64))
            .collect();
        snapshots.sort_unstable();
        snapshots.dedup();
        let plan = fixture.plan(&v);
        if plan.trivial_move {
            return;
        }
        let inputs = decode(&fixture.read(&plan.input_tables().cloned().collect::<Vec<_>>()));

        let whole = fixture.run(&plan, &snapshots, None).unwrap();
        assert_eq!(whole.entries_in, inputs.len() as u64);
        assert_eq!(whole.bytes_read, plan.input_bytes());
        let tables = fixture.tables(&whole);
        let entries = fixture.read(&tables);
        for seq in snapshots.iter().copied().chain([MAX_SEQ]) {
            assert_eq!(
                visible(&cmp, &decode(&entries), seq, 50),
                visible(&cmp, &inputs, seq, 50),
                "snapshot {seq}"
            );
        }
        // The outputs form a sorted level, and a cursor over them yields their entries.
        let mut level = FamilyVersion::empty(cmp.clone());
        for t in &tables {
            t.reader().unwrap().verify(&t.meta).unwrap();
            level.insert(6, t.clone());
        }
        level.check().unwrap();
        let mut cursor = LevelIter::new(tables, cmp.clone(), ReadPattern::Cached);
        cursor.seek_to_first().unwrap();
        for e in &entries {
            assert_eq!((cursor.key(), cursor.value()), (&e.0[..], &e.1[..]));
            cursor.next().unwrap();
        }
        assert!(!cursor.valid());
        cursor.seek_to_last().unwrap();
        for e in entries.iter().rev() {
            assert_eq!(cursor.key(), &e.0[..]);
            cursor.prev().unwrap();
        }
        for _ in 0..20 {
            let e = &entries[r.below(entries.len() as u64) as usize];
            let target = internal_key(user_key(&e.0), pack_trailer(r.below(500), Kind::Put));
            cursor.seek(&target).unwrap();
            let at = entries.partition_point(|x| cmp.internal(&x.0, &target).is_lt());
            assert_eq!(cursor.valid(), at < entries.len());
            if cursor.valid() {
                assert_eq!(cursor.key(), &entries[at].0[..]);
            }
            cursor.seek_for_prev(&target).unwrap();
            let at = entries.partition_point(|x| cmp.internal(&x.0, &target).is_le());
            assert_eq!(cursor.valid(), at > 0);
            if cursor.valid() {
                assert_eq!(cursor.key(), &entries[at - 1].0[..]);
            }
        }

        // The key ranges of a split together give the same entries.
        let ranges = subranges(&cmp, &plan, 512, 4);
        split += usize::from(ranges.len() > 1);
        let parts = ranges
            .into_iter()
            .map(|range| fixture.run(&plan, &snapshots, Some(range)).unwrap())
            .collect();
        let union = combine(&plan, parts).unwrap();
        assert_eq!(fixture.read(&fixture.tables(&union)), entries);
        assert_eq!(
            (union.entries_in, union.entries_out, union.expired),
            (whole.entries_in, whole.entries_out, whole.expired)
        );
    });
    println!("split={split}");
    assert!(split > 0 || std::env::var("BASALT_SEED").is_ok());
}

#[test]
fn a_failed_call_fails_the_merge_and_leaves_no_file() {
    let mut runs = 0;
    seeds("a_failing_call_ends_the_merge", 8, |seed| {
        let mut k = 1;
        loop {
            let struck = fail_each_call(seed, k);
            if struck == 0 {
                break;
            }
            runs += struck;
            k += 1;
        }
    });
    println!("failing_calls={runs}");
    assert!(runs > 50, "only {runs} calls failed");
}

/// Merges with the `k`-th call of each kind failing. Returns how many kinds had that many calls.
fn fail_each_call(seed: u64, k: u64) -> u64 {
    let mut history = random_history(&Random::from_seed(seed), 400, 5);
    if seed % 2 == 1 {
        add_operands(&Random::from_seed(seed), &mut history);
    }
    let mut struck = 0;
    for (op, kind) in [
        (OpKind::Open, FaultKind::Eio),
        (OpKind::Read, FaultKind::Eio),
        (OpKind::Read, FaultKind::BitFlip),
        (OpKind::Create, FaultKind::Eio),
        (OpKind::Append, FaultKind::Enospc),
        (OpKind::Append, FaultKind::ShortWrite),
        (OpKind::SyncAll, FaultKind::FailedSync),
    ] {
        // Each merge has a new environment: no open table, no cached block.
        let fixture = Fixture::new(Cmp::Bytewise, 1024);
        let v = random_tree(&fixture, &Random::from_seed(seed + 1), &history);
        let plan = fixture.plan(&v);
        if plan.trivial_move {
            return 0;
        }
        let before = fixture.files();
        let rule = fixture.faults.inject(Fault {
            op: Some(op),
            path: String::new(),
            when: When::Nth(k),
            kind,
        });
        let result = fixture.run(&plan, &[100, 300], None);
        if fixture.faults.seen(rule) < k {
            assert!(result.is_ok());
            continue;
        }
        struck += 1;
        match result {
            Err(e) => {
                assert_eq!(fixture.files(), before, "{op:?} {k}: {e}");
                assert!(e.path().is_some(), "{op:?} {k}: {e} names no file");
            }
            // A flipped bit may hit unused bytes. The result is then right.
            Ok(outcome) => {
                assert_eq!(kind, FaultKind::BitFlip, "{op:?} {k}");
                fixture.faults.clear();
                let inputs: Vec<_> = plan.input_tables().cloned().collect();
                let merged = decode(&fixture.read(&fixture.tables(&outcome)));
                let unmerged = decode(&fixture.read(&inputs));
                assert_eq!(
                    visible(&Cmp::Bytewise, &merged, MAX_SEQ, 50),
                    visible(&Cmp::Bytewise, &unmerged, MAX_SEQ, 50)
                );
            }
        }
    }
    struck
}

#[test]
fn a_cancelled_merge_leaves_no_file() {
    let r = Random::from_seed(3);
    let fixture = Fixture::new(Cmp::Bytewise, 1024);
    let v = random_tree(&fixture, &r, &random_history(&r, 400, 5));
    let plan = fixture.plan(&v);
    let before = fixture.files();
    // The merge is cancelled when the third table begins: two are finished by then.
    let cancelled = AtomicBool::new(false);
    let made = AtomicU64::new(0);
    let result = run(&CompactionJob {
        blobs: &Default::default,
        allowance: &|_| Ok(u64::MAX),
        env: fixture.env.clone(),
        store: fixture.store.clone(),
        plan: &plan,
        options: &fixture.options,
        family: TableFamily::default(),
        snapshots: &[],
        now_ms: 50,
        new_file_number: &|| {
            cancelled.store(made.fetch_add(1, Ordering::SeqCst) == 2, Ordering::SeqCst);
            fixture.number()
        },
        cancelled: &cancelled,
        flush_flag: None,
        range: None,
    });
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(made.load(Ordering::SeqCst), 3);
    assert_eq!(fixture.files(), before);
}

#[test]
fn a_table_with_fewer_entries_than_recorded_is_damage() {
    let fixture = Fixture::new(Cmp::Bytewise, 1 << 20);
    let e = |k: &str, seq| {
        let key = internal_key(k.as_bytes(), pack_trailer(seq, Kind::Put));
        (key, Bytes::from_static(b"v"))
    };
    let good = fixture.write(vec![e("a", 1), e("c", 2)]);
    let short = fixture.write(vec![e("b", 3), e("c", 4)]);
    let mut meta = basalt_table::TableMeta::clone(&short.meta);
    meta.entries += 1;
    let short = fixture.store.table(short.number, meta, Cmp::Bytewise);
    let mut v = FamilyVersion::empty(Cmp::Bytewise);
    v.insert(0, good);
    v.insert(0, short.clone());
    let plan = fixture.plan(&v);
    let before = fixture.files();
    let error = fixture.run(&plan, &[], None).unwrap_err();
    assert!(error.is_corruption());
    assert_eq!(error.path(), Some(&*short.path()));
    // In a split the missing entries show when the outcomes are combined.
    let parts = [(None, Some(b"c".to_vec())), (Some(b"c".to_vec()), None)]
        .map(|range| fixture.run(&plan, &[], Some(range)).unwrap());
    assert!(combine(&plan, parts.to_vec()).unwrap_err().is_corruption());
    assert!(fixture.files().len() > before.len());
}
