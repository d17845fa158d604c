//! Failing calls: each k-th call of a history fails, for every k and every kind of error. Errors
//! are allowed, wrong answers are not. When the fault is gone, the store takes writes again by
//! itself, or says that it must be opened again.

use super::*;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, Lie, LieKind, OpKind, When};

/// The faults, and whether they stay for several calls.
const FAULTS: [(FaultKind, bool); 6] = [
    (FaultKind::Eio, false),
    (FaultKind::Eio, true),
    (FaultKind::Enospc, false),
    (FaultKind::Enospc, true),
    (FaultKind::ShortWrite, false),
    (FaultKind::FailedSync, false),
];
const STEPS: usize = 30;
/// Steps that may fail before a fault that stays goes away.
const MOST_FAILED: usize = 4;
/// Runs with a failing call that are made at `BASALT_SCALE=1`.
const LEAST_RUNS: u64 = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The step was refused, and has changed nothing.
    Refused,
    /// The step failed. It is unknown whether it has an effect after the next open.
    Failed,
}

/// What was done, and what came of it.
type Past = Vec<(Step, Outcome)>;

/// Returns what the logs have if the appends before step `until` are on the disk, and the failed
/// steps of which `mask` has the bit.
fn content_of(past: &Past, mask: u32, until: usize) -> Content {
    let mut model = Model::new();
    let mut failed = 0;
    for (i, (step, outcome)) in past.iter().enumerate() {
        let counts = match outcome {
            Outcome::Done => true,
            Outcome::Refused => false,
            Outcome::Failed => {
                failed += 1;
                mask >> (failed - 1) & 1 == 1 && model.refusal(step).is_none()
            }
        };
        let is_lost = matches!(step, Step::Append(..)) && i >= until;
        if counts && !is_lost {
            model.apply(step);
        }
    }
    model.logs
}

/// Returns true if the logs have what they may have. Appends before step `durable` must be there.
fn is_possible(past: &Past, durable: usize, found: &Content) -> bool {
    let failed = past.iter().filter(|(_, o)| *o == Outcome::Failed).count();
    assert!(failed <= 10, "{failed} failed steps are too many to try");
    (0..1u32 << failed).any(|mask| {
        (durable..=past.len())
            .rev()
            .any(|until| content_of(past, mask, until) == *found)
    })
}

/// Returns the steps of a history that leave the store open, and are one call.
fn steps(seed: u64) -> Vec<Step> {
    let all = history(&Random::from_seed(seed), STEPS);
    let stays = |step: &Step| !matches!(step, Step::Reopen | Step::Replace(_));
    all.into_iter().filter(stays).collect()
}

/// Returns the number of steps whose appends a power cut must leave: those up to the last synced
/// one.
fn durable_steps(past: &Past) -> usize {
    let syncs = |(step, outcome): &(Step, Outcome)| {
        *outcome == Outcome::Done
            && match step {
                Step::Append(entries, sync) => *sync && !entries.is_empty(),
                Step::Sync | Step::Remove(..) => true,
                Step::Trim(..) | Step::Replace(_) | Step::Reopen => false,
            }
    };
    past.iter().rposition(syncs).map_or(0, |i| i + 1)
}

/// Runs a step, and notes what came of it.
fn run_step(store: &mut Store, step: &Step, past: &mut Past) {
    let outcome = match store.run(step) {
        Ok(()) => Outcome::Done,
        Err(e) => match e.kind() {
            ErrorKind::AlreadyExists | ErrorKind::InvalidArgument => Outcome::Refused,
            _ => Outcome::Failed,
        },
    };
    past.push((step.clone(), outcome));
}

/// What happened in a run.
#[derive(Default)]
struct Ran {
    calls: u64,
    failed: usize,
    reopened: bool,
}

fn run(seed: u64, fault: usize, k: u64) -> Ran {
    let _repeat = basalt_sim::repeat!(
        every_failing_call_keeps_the_promises,
        "BASALT_FAULT={seed},{fault},{k}"
    );
    let (kind, stays) = FAULTS[fault];
    let say = format!("seed={seed} {kind:?} stays={stays} call {k}");
    let disk = disk(seed);
    let faulty = FaultFs::new(disk.clone(), k);
    let open = |fs: Arc<dyn FileSystem>| Store::open_on(&disk, fs, disk.op_count());
    let mut store = open(faulty.clone()).unwrap();
    let rule = faulty.inject(Fault {
        op: None,
        path: String::new(),
        when: if stays { When::From(k) } else { When::Nth(k) },
        kind,
    });
    let mut past = Past::new();
    let mut ran = Ran::default();
    for step in &steps(seed) {
        run_step(&mut store, step, &mut past);
        store.pass_time(Duration::from_millis(30));
        ran.failed = past.iter().filter(|(_, o)| *o == Outcome::Failed).count();
        if ran.failed >= MOST_FAILED {
            faulty.clear();
            store.pass_time(Duration::from_secs(1));
        }
        // What failed changed nothing.
        let found = store.content();
        match found {
            Ok(found) => assert_eq!(found, content_of(&past, 0, past.len()), "{say}"),
            Err(e) => assert!(ran.failed > 0 || faulty.total_calls() > 0, "{say}: {e}"),
        }
        if ran.failed > MOST_FAILED {
            break;
        }
    }
    ran.calls = faulty.seen(rule);
    faulty.clear();
    store.pass_time(Duration::from_secs(1));
    // The store takes writes again, unless records that it has acknowledged are in doubt.
    match store.engine.sync() {
        Ok(()) => past.push((Step::Sync, Outcome::Done)),
        Err(e) => {
            assert!(
                e.kind() == ErrorKind::Poisoned && kind != FaultKind::ShortWrite,
                "{say}: the fault is gone, and the store takes no writes: {e}"
            );
            ran.reopened = true;
        }
    }
    let closes = !ran.reopened && k.is_multiple_of(2);
    if closes {
        store
            .engine
            .close()
            .unwrap_or_else(|e| panic!("{say}: {e}"));
    } else {
        store.engine.cut_power();
    }
    drop(store);
    // The process ends, or the machine does.
    let loses_power = !closes && k.is_multiple_of(3);
    let (fs, durable) = match loses_power {
        true => {
            let policy = CrashPolicy::ALL[k as usize % CrashPolicy::ALL.len()];
            (disk.crash(policy, k), durable_steps(&past))
        }
        false => (disk.kill(), past.len()),
    };
    let store = Store::open(&fs).unwrap_or_else(|e| panic!("{say}: {e}"));
    let found = store.content().unwrap_or_else(|e| panic!("{say}: {e}"));
    assert!(
        is_possible(&past, durable, &found),
        "{say}: found {found:?} after {past:?}"
    );
    store.engine.close().unwrap();
    ran
}

#[test]
fn every_failing_call_keeps_the_promises() {
    if let Ok(case) = std::env::var("BASALT_FAULT") {
        let n: Vec<u64> = case.split(',').map(|n| n.parse().unwrap()).collect();
        run(n[0], n[1] as usize, n[2]);
        return;
    }
    let (mut runs, mut failed, mut reopened) = (0, 0, 0);
    for seed in 0..3 * basalt_sim::campaign::scale() {
        for fault in 0..FAULTS.len() {
            let calls = run(seed, fault, u64::MAX).calls;
            for k in 1..=calls {
                let ran = run(seed, fault, k);
                runs += 1;
                failed += ran.failed as u64;
                reopened += u64::from(ran.reopened);
            }
        }
    }
    basalt_sim::campaign!("log_fault_runs={runs} failed_steps={failed} in_doubt={reopened}");
    let floor = |n: u64| basalt_sim::campaign::scale().floor(n);
    assert!(
        runs >= floor(LEAST_RUNS) && failed >= floor(LEAST_RUNS / 2) && reopened >= floor(20),
        "only {runs} runs, {failed} failed steps, {reopened} stores in doubt"
    );
}

/// Kernels do this after a failed writeback: a later sync returns `Ok`, and a part of the unsynced
/// bytes is gone for good.
#[test]
fn a_failed_sync_is_not_taken_for_durable_after_a_retry() {
    let mut lies = 0;
    for seed in basalt_sim::campaign::cases(0..60 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            a_failed_sync_is_not_taken_for_durable_after_a_retry,
            "BASALT_CASE={seed}"
        );
        let random = Random::from_seed(seed);
        // LavaFS has its own test of this.
        let disk = SimFs::own(SimOptions {
            seed,
            ..SimOptions::default()
        });
        let mut store = Store::open(&disk).unwrap();
        disk.lie(Lie {
            kind: LieKind::FailedSync,
            path: String::new(),
            when: When::Nth(1 + random.below(25)),
        });
        let mut past = Past::new();
        for step in &steps(500 + seed) {
            run_step(&mut store, step, &mut past);
            store.pass_time(Duration::from_secs(1));
            if past.iter().filter(|(_, o)| *o == Outcome::Failed).count() > 8 {
                break;
            }
        }
        lies += disk.lie_count();
        store.engine.cut_power();
        drop(store);
        let policy = CrashPolicy::ALL[random.below(CrashPolicy::ALL.len() as u64) as usize];
        let store = Store::open(&disk.crash(policy, seed)).unwrap();
        let found = store.content().unwrap();
        assert!(
            is_possible(&past, durable_steps(&past), &found),
            "seed={seed}: found {found:?} after {past:?}"
        );
    }
    let least = basalt_sim::campaign::scale().floor(40);
    assert!(
        lies >= least || basalt_sim::campaign::case().is_some(),
        "only {lies} syncs failed"
    );
}

/// A disk that is full is a state that ends when space returns.
#[test]
fn a_full_disk_is_over_when_space_returns() {
    let disk = disk(5);
    let faulty = FaultFs::new(disk.clone(), 5);
    let mut store = Store::open_on(&disk, faulty.clone(), 5).unwrap();
    let append = |lsn: u64, sync| Step::Append(vec![(0, lsn, vec![7; 100])], sync);
    for lsn in 1..=50 {
        store.run(&append(lsn, lsn % 3 == 0)).unwrap();
    }
    for op in [
        OpKind::Append,
        OpKind::Create,
        OpKind::CreateLog,
        OpKind::ExtendLog,
    ] {
        faulty.inject(Fault {
            op: Some(op),
            path: String::new(),
            when: When::From(1),
            kind: FaultKind::Enospc,
        });
    }
    for lsn in 51..=300 {
        let e = store.run(&append(lsn, lsn % 3 == 0)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        store.pass_time(Duration::from_millis(60));
        assert_eq!(store.logs[0].count(), 50, "reads go on");
    }
    faulty.clear();
    store.pass_time(Duration::from_secs(1));
    for lsn in 51..=100 {
        store.run(&append(lsn, true)).unwrap();
    }
    assert_eq!(store.logs[0].count(), 100);
    store.engine.close().unwrap();
    drop(store);
    let again = Store::open(&disk).unwrap();
    assert_eq!(
        (again.logs[0].count(), again.logs[0].last()),
        (100, Some(100))
    );
}

/// A sync beside appends opened its file by name after another job had removed the file, and a
/// checkpoint failed with "not found".
#[test]
fn a_sync_beside_appends_leaves_out_a_file_that_was_removed_since() {
    let fs = disk(1);
    let store = Store::open(&fs).unwrap();
    let (engine, log) = (&store.engine, &store.logs[0]);
    log.append(1, b"unsynced", UNSYNCED).unwrap();
    let inner = engine.engine();
    let file = log.location(1).unwrap().file;
    let sync = inner.data.lock().begin_sync().unwrap();
    inner.data.lock().end_all().unwrap();
    log.trim(1, UNSYNCED).unwrap();
    inner.logs.remove(file, false).unwrap();
    let outcome = sync.run(&inner.logs);
    inner.data.lock().end_sync(&sync, outcome).unwrap();
    engine.close().unwrap();
}
