//! Failing calls: each k-th call of a history fails, for every k and every kind of error, once or
//! from then on. Errors are allowed, wrong answers are not (P5). When the fault is gone the store
//! resumes by itself. After a reopening every acknowledged commit exists, and every failed one
//! exists whole or not at all.

use crate::history::{End, Item, Op, Shape, What, history};
use crate::model::{digest, visible};
use crate::rng::{Rng, numbers_of, on_two_threads, scale};
use crate::runner::{
    Collected, Conditional, DIR, Runner, environment, read_all, sim_disk, verify_closed,
};
use basalt_fs::FileSystem;
use basalt_lsm::{Db, ErrorKind, ReadOptions, WriteOptions};
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{CrashPolicy, FaultFs, Lie, LieKind, OpKind, When, campaign, repeat};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const SHAPE: Shape = Shape {
    ops: 60,
    keys: 30,
    coarse_time: false,
    no_tickets: false,
};

/// The faults, and whether they stay.
const FAULTS: [(FaultKind, bool); 7] = [
    (FaultKind::Eio, false),
    (FaultKind::Eio, true),
    (FaultKind::Enospc, false),
    (FaultKind::Enospc, true),
    (FaultKind::ShortWrite, false),
    (FaultKind::FailedSync, false),
    (FaultKind::BitFlip, false),
];

type Fired = BTreeMap<(OpKind, FaultKind), u64>;

struct Run {
    /// Number of calls that could have met the fault.
    calls: u64,
    made: Vec<OpKind>,
    fired: Fired,
    errors: u64,
    releases: u64,
    conditional: Conditional,
    collected: Collected,
}

/// Runs a history whose `k`-th call fails.
fn run(seed: u64, fault: usize, k: u64) -> Run {
    let _repeat = repeat!(
        every_failing_call_keeps_the_promises,
        "BASALT_FAULT={seed},{fault},{k}"
    );
    let (kind, sticks) = FAULTS[fault];
    let disk = sim_disk(seed, 512, 1 << 40);
    let faulty = FaultFs::with_sleep(disk.clone(), k, Box::new(|_| ()));
    let rule = faulty.inject(Fault {
        op: None,
        path: String::new(),
        when: if sticks { When::From(k) } else { When::Nth(k) },
        kind,
    });
    let mut r = Runner::unopened_over(faulty.clone(), seed, seed);
    if kind == FaultKind::BitFlip {
        r.allow_damage();
    }
    r.open();
    for op in &history(7000 + seed, SHAPE) {
        r.run(op);
    }
    let calls = faulty.seen(rule);
    let fired = faulty.fired();
    faulty.clear();

    // The fault is gone. A third of the runs lose power now, the others go on.
    if k.is_multiple_of(3) && k != u64::MAX {
        let durable = r.progress.durable.load(SeqCst) as usize;
        r.drop_process();
        r.disk = disk.crash(CrashPolicy::ALL[(k / 3 % 10) as usize], k);
        r.renew_env();
        r.set_tolerant(false);
        r.open_expecting(durable);
    }
    r.set_tolerant(true);
    let mut tries = 0;
    loop {
        // Longer than any pause between attempts.
        r.manual_clock.advance(Duration::from_secs(100));
        let before = r.errors;
        let item = Item {
            family: 0,
            key: 5,
            what: What::Put(20),
        };
        r.run(&Op::Write {
            items: vec![item],
            sync: true,
        });
        if r.db.is_some() && r.errors == before {
            break;
        }
        tries += 1;
        assert!(
            tries < 4,
            "the fault is gone and the store takes no writes: {}",
            r.last_error
        );
    }
    let errors = r.errors;
    r.set_tolerant(false);
    r.check_all();
    r.run(&Op::Flush);
    r.run(&Op::WaitIdle);
    r.check_all();
    r.reopen(
        if k.is_multiple_of(2) {
            End::Close
        } else {
            End::Abandon
        },
        0,
        true,
    );
    r.check_all();
    r.finish();
    Run {
        calls,
        made: OpKind::ALL
            .iter()
            .copied()
            .filter(|op| faulty.calls(*op) > 0)
            .collect(),
        fired,
        errors,
        releases: r.releases,
        conditional: r.conditional,
        collected: r.collected,
    }
}

#[test]
fn every_failing_call_keeps_the_promises() {
    if let Some(n) = numbers_of("BASALT_FAULT") {
        run(n[0], n[1] as usize, n[2]);
        return;
    }
    let histories = 6 * scale();
    let results = on_two_threads(histories * FAULTS.len() as u64, |i| {
        let (seed, fault) = (i / FAULTS.len() as u64, (i % FAULTS.len() as u64) as usize);
        let dry = run(seed, fault, u64::MAX);
        assert_eq!(dry.errors, 0, "nothing struck");
        let mut fired = Fired::new();
        let (mut errors, mut releases) = (0, 0);
        let mut conditional = Conditional::default();
        let mut collected = Collected::default();
        for k in 1..=dry.calls {
            let r = run(seed, fault, k);
            errors += r.errors;
            releases += r.releases;
            conditional.add(r.conditional);
            collected.add(r.collected);
            for (pair, n) in r.fired {
                *fired.entry(pair).or_default() += n;
            }
        }
        let counts = (conditional, collected);
        (dry.calls, dry.made, fired, errors, releases, counts)
    });
    let mut fired = Fired::new();
    let (mut runs, mut errors, mut releases) = (0, 0, 0);
    let mut made = Vec::new();
    let mut conditional = Conditional::default();
    let mut collected = Collected::default();
    for (calls, kinds, f, e, released, counts) in results {
        conditional.add(counts.0);
        collected.add(counts.1);
        runs += calls;
        errors += e;
        releases += released;
        made.extend(kinds);
        f.into_iter()
            .for_each(|(pair, n)| *fired.entry(pair).or_default() += n);
    }
    basalt_sim::campaign!(
        "fault_runs={runs} errors_met={errors} idle_releases={releases} {conditional:?} {collected:?} pairs={} wrong_bits={}",
        fired.len(),
        fired.get(&(OpKind::Read, FaultKind::BitFlip)).unwrap_or(&0)
    );
    assert!(runs >= scale().floor(4000), "only {runs} runs");
    assert!(
        releases >= scale().floor(8000),
        "only {releases} idle stores gave back their logs"
    );
    assert!(
        conditional.accepted >= scale().floor(1000) && conditional.refused >= scale().floor(1000),
        "only {conditional:?}"
    );
    assert!(
        collected.collections >= scale().floor(2000)
            && collected.made >= scale().floor(2000)
            && collected.forgotten >= scale().floor(1000)
            && collected.relocated >= scale().floor(300_000),
        "only {collected:?}"
    );
    for op in made {
        for (kind, _) in FAULTS {
            assert!(
                !kind.applies_to(op) || fired.contains_key(&(op, kind)),
                "{kind:?} never struck {}",
                op.name()
            );
        }
    }
}

/// Kernels do this after a failed writeback: the pages count as clean, a later sync returns `Ok`,
/// and a part of the unsynced data is gone for good. An engine that retries a failed sync and
/// believes it loses acknowledged data here.
#[test]
fn a_failed_sync_is_not_taken_for_durable_after_a_retry() {
    let n = 250 * scale();
    let lies_done = on_two_threads(n, |i| {
        let _repeat = repeat!(
            a_failed_sync_is_not_taken_for_durable_after_a_retry,
            "BASALT_CASE={i}"
        );
        let mut c = Rng::of(&[i, 71]);
        let disk = sim_disk(i, 512, 1 << 40);
        let mut r = Runner::new(disk.clone(), i, i, true);
        let path = c.pick(&["", ".log", ".tbl", "MANIFEST", "CURRENT"]);
        disk.lie(Lie {
            kind: LieKind::FailedSync,
            path: path.to_string(),
            when: When::Nth(c.within(1, 25)),
        });
        for op in &history(40_000 + i, SHAPE) {
            r.run(op);
            r.manual_clock.advance(Duration::from_millis(30));
        }
        if r.db.is_some() {
            r.wait_for_tickets();
        }
        let lies_done = disk.lie_count();
        let durable = r.progress.durable.load(SeqCst) as usize;
        r.drop_process();
        r.disk = disk.crash(c.pick(CrashPolicy::ALL), i);
        r.renew_env();
        r.set_tolerant(false);
        r.open_expecting(durable);
        r.check_all();
        r.finish();
        lies_done
    });
    let lies_done: u64 = lies_done.iter().sum();
    basalt_sim::campaign!("failed_syncs={lies_done} of {n} runs");
    assert!(
        campaign::case().is_some() || lies_done > n / 3,
        "only {lies_done} syncs failed"
    );
}

#[test]
fn a_flipped_bit_in_a_read_is_an_error() {
    let n = 40 * scale();
    let hits = on_two_threads(n, |seed| {
        let _repeat = repeat!(a_flipped_bit_in_a_read_is_an_error, "BASALT_CASE={seed}");
        let disk = sim_disk(seed, 512, 1 << 40);
        let mut r = Runner::new(disk.clone(), seed, seed, false);
        for op in &history(9000 + seed, SHAPE) {
            r.run(op);
        }
        r.end(End::Close);
        let want = visible(r.model.state(), r.env.clock().wall_ms());
        let mut caught = 0;
        for round in 0..30 {
            let faulty = FaultFs::new(disk.kill(), seed * 100 + round);
            faulty.inject(Fault {
                op: None,
                path: String::new(),
                when: When::Nth(1 + round),
                kind: FaultKind::BitFlip,
            });
            let fs: Arc<dyn FileSystem> = faulty.clone();
            let (env, _) = environment(&fs, round, r.env.clock().wall_ms());
            let shown = Db::open(&env, DIR, crate::history::options(seed)).and_then(|db| {
                let all = read_all(&db);
                db.abandon();
                all
            });
            match shown {
                Ok(all) => assert!(
                    digest(&all) == digest(&want),
                    "a wrong answer after a wrong bit"
                ),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                    assert!(e.path().is_some(), "damage names its file: {e}");
                    caught += 1;
                }
            }
        }
        caught
    });
    let caught: u64 = hits.iter().sum();
    basalt_sim::campaign!("wrong_bits_caught={caught}");
    assert!(campaign::case().is_some() || caught > n * 5);
}

#[test]
fn a_full_disk_is_a_state_that_ends_when_there_is_space() {
    for seed in campaign::cases(0..12 * scale()) {
        let _repeat = repeat!(
            a_full_disk_is_a_state_that_ends_when_there_is_space,
            "BASALT_CASE={seed}"
        );
        let mut c = Rng::of(&[seed, 3]);
        let disk = sim_disk(seed, 512, 1 << 20);
        disk.write_file(Path::new("ballast"), &vec![7; 500_000])
            .expect("it fits");
        let fs: Arc<dyn FileSystem> = disk.clone();
        let (env, manual_clock) = environment(&fs, seed, 1_700_000_000_000);
        let mut options = crate::history::options(seed).write_buffer_bytes(c.pick(&[8192, 32768]));
        // With tables far below a block of the disk, the space between them would fill it.
        options.default_family.table_bytes = 32 << 10;
        let db = Db::open(&env, DIR, options.clone()).expect("there is space");
        let family = db.default_family();
        let mut there: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut maybe: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut refused = 0;
        let mut n = 0u64;
        while refused < 30 {
            n += 1;
            assert!(n < 5000, "the disk never fills");
            let key = format!("key{:04}", c.below(900)).into_bytes();
            let value = crate::history::value_bytes(n, c.within(100, 4000) as u32);
            let sync = WriteOptions::synced(c.percent(50));
            match db.put(&family, &key, &value, &sync) {
                Ok(_) => {
                    maybe.clear();
                    there.insert(key, value);
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                    assert!(e.retryable(), "a full disk passes: {e}");
                    maybe.insert(key, value);
                    refused += 1;
                    // Writers come and go; the store tries again as time passes.
                    manual_clock.advance(Duration::from_millis(c.within(0, 300)));
                }
            }
        }
        for (k, v) in &there {
            let got = db
                .get(&family, k, &ReadOptions::default())
                .expect("reads go on");
            assert_eq!(got.as_deref(), Some(v.as_slice()));
        }
        let reopened = c.percent(40);
        let db = if reopened {
            // Closing may fail for want of space, and so may opening: both say so, and lose
            // nothing.
            if let Err(e) = db.close() {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
            }
            let first = Db::open(&env, DIR, options.clone());
            if let Err(e) = &first {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
            }
            disk.remove(Path::new("ballast")).expect("it is there");
            match first {
                Ok(db) => db,
                Err(_) => Db::open(&env, DIR, options.clone()).expect("there is space again"),
            }
        } else {
            disk.remove(Path::new("ballast")).expect("it is there");
            db
        };
        manual_clock.advance(Duration::from_secs(100));
        let family = db.default_family();
        let mut tries = 0;
        while let Err(e) = db.put(&family, b"resumed", b"yes", &WriteOptions::SYNC) {
            manual_clock.advance(Duration::from_secs(100));
            tries += 1;
            assert!(
                tries < 4,
                "space is back and the store takes no writes: {e}"
            );
        }
        db.wait_idle().expect("there is space to compact");
        for (k, v) in &there {
            let got = db
                .get(&family, k, &ReadOptions::default())
                .expect("reads go on");
            let whole = got.as_deref() == Some(v.as_slice())
                || (reopened && got.as_deref() == maybe.get(k).map(|v| v.as_slice()));
            assert!(whole, "{} is lost", String::from_utf8_lossy(k));
        }
        db.close().expect("there is space");
        verify_closed(&env);
    }
}
