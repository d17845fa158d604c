//! The fault injector. Every kind of call meets every kind of fault that it can meet. Handles are
//! poisoned as the contract says. Bytes that were synced before stay.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use basalt_fs::{ErrorKind, FileSystem, Intent, Lifetime, LogOptions, ReadRequest, Result};
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{CrashPolicy, FaultFs, OpKind, SimFs, SimOptions, When};

fn p(s: &str) -> &Path {
    Path::new(s)
}

fn wrapped(seed: u64) -> (Arc<SimFs>, Arc<FaultFs>) {
    let sim = SimFs::new(SimOptions {
        seed,
        ..SimOptions::default()
    });
    (Arc::clone(&sim), FaultFs::new(sim, seed))
}

fn fault(kind: FaultKind, when: When) -> Fault {
    Fault {
        op: None,
        path: String::new(),
        when,
        kind,
    }
}

const RECORD: [u8; 700] = [5; 700];

/// Makes calls of every kind. Returns how many records it knows to be durable in `d/log`.
fn workload(fs: &FaultFs, durable: &mut u64) -> Result<()> {
    fs.create_dir(p("d"))?;
    fs.sync_metadata(p(""))?;
    let _lock = fs.lock(p("LOCK"))?;
    fs.space(p(""))?;
    let old = fs.create_log(
        p("d/old"),
        LogOptions {
            capacity: 8_192,
            reuse: None,
        },
    )?;
    drop(old);
    let log = fs.create_log(
        p("d/log"),
        LogOptions {
            capacity: 16_384,
            reuse: Some(p("d/old")),
        },
    )?;
    fs.sync_metadata(p("d"))?;
    for i in 0..4 {
        log.append(&[IoSlice::new(&RECORD)], Intent::Sync)?;
        if i % 2 == 0 {
            log.sync_data()?;
        } else {
            fs.sync_files(&[Arc::clone(&log)])?;
        }
        *durable = i + 1;
        log.align_to_unit()?;
    }
    log.extend_log(32_768)?;
    let table = fs.create(p("d/tmp"))?;
    table.append(&[IoSlice::new(&[1; 20_000])], Intent::Lazy)?;
    table.sync_all()?;
    fs.rename(p("d/tmp"), p("d/table"))?;
    fs.link(p("d/table"), p("d/second"))?;
    fs.sync_metadata(p("d"))?;
    table.release_range(0..8_192)?;
    fs.remove(p("d/second"))?;
    let opened = fs.open(p("d/table"))?;
    let got = opened.read(10_000, 5_000)?;
    if got != vec![1; 5_000] {
        return Err(basalt_fs::Error::corruption(
            p("d/table"),
            10_000,
            "not what was written",
        ));
    }
    let mut reads = fs.submit_reads(vec![ReadRequest {
        file: opened,
        offset: 9_000,
        len: 100,
        lifetime: Lifetime::Cached,
    }]);
    while let Some((_, got)) = reads.next() {
        if got? != vec![1; 100] {
            return Err(basalt_fs::Error::corruption(
                p("d/table"),
                9_000,
                "not what was written",
            ));
        }
    }
    fs.stat(p("d/table"))?;
    fs.list(p("d"))?;
    Ok(())
}

#[test]
fn every_kth_call_fails_with_every_fault() {
    let mut fired = BTreeSet::new();
    let mut runs = 0;
    for &kind in FaultKind::ALL {
        let (_, fs) = wrapped(0);
        let rule = fs.inject(fault(kind, When::Nth(u64::MAX)));
        workload(&fs, &mut 0).unwrap();
        let calls = fs.seen(rule);
        for k in 1..=calls {
            for when in [When::Nth(k), When::From(k)] {
                let (sim, fs) = wrapped(k);
                fs.inject(fault(kind, when));
                let mut durable = 0;
                let e = workload(&fs, &mut durable).expect_err("a fault was injected");
                let want = match kind {
                    FaultKind::Enospc => ErrorKind::NoSpace,
                    FaultKind::BitFlip => ErrorKind::Corruption,
                    _ => ErrorKind::Io,
                };
                assert_eq!(e.kind(), want, "{kind:?} {when:?}: {e}");
                fired.extend(fs.fired().into_keys());
                for &policy in CrashPolicy::ALL {
                    if durable == 0 {
                        break;
                    }
                    let cut = sim.crash(policy, k);
                    let log = cut.open(p("d/log")).unwrap();
                    for i in 0..durable {
                        assert_eq!(
                            log.read(i * 1_024, 700).unwrap(),
                            RECORD[..],
                            "{kind:?} {when:?}"
                        );
                    }
                }
                runs += 1;
            }
        }
    }
    let expected: BTreeSet<(OpKind, FaultKind)> = FaultKind::ALL
        .iter()
        .flat_map(|&f| OpKind::ALL.iter().map(move |&op| (op, f)))
        .filter(|(op, f)| f.applies_to(*op))
        .collect();
    basalt_sim::campaign!("runs={runs} pairs={}", fired.len());
    assert_eq!(fired, expected, "every pair fires");
}

#[test]
fn a_failed_append_poisons_the_file_and_hides_its_bytes() {
    let mut left = BTreeSet::new();
    for seed in basalt_sim::campaign::cases(0..50) {
        let _repeat = basalt_sim::repeat!(
            a_failed_append_poisons_the_file_and_hides_its_bytes,
            "BASALT_CASE={seed}"
        );
        for kind in [FaultKind::ShortWrite, FaultKind::Eio, FaultKind::Enospc] {
            let (sim, fs) = wrapped(seed);
            fs.inject(Fault {
                op: Some(OpKind::Append),
                path: "f".into(),
                when: When::Nth(2),
                kind,
            });
            let (f, other) = (fs.create(p("f")).unwrap(), fs.create(p("other")).unwrap());
            f.append(&[IoSlice::new(&[1; 100])], Intent::Lazy).unwrap();
            other
                .append(&[IoSlice::new(&[1; 100])], Intent::Lazy)
                .unwrap();
            let e = f
                .append(&[IoSlice::new(&[2; 1_000])], Intent::Lazy)
                .unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::Io | ErrorKind::NoSpace));
            assert!(e.os_error().is_some());
            assert_eq!(f.len(), 100);
            let e = f.append(&[IoSlice::new(&[3])], Intent::Lazy).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Poisoned);
            assert_eq!(f.sync_data().unwrap_err().kind(), ErrorKind::Poisoned);
            assert_eq!(f.read(0, 100).unwrap(), vec![1; 100]);
            other
                .append(&[IoSlice::new(&[1; 100])], Intent::Lazy)
                .unwrap();
            left.insert(sim.open(p("f")).unwrap().len());
        }
    }
    assert!(
        left.len() > 20 && left.iter().all(|l| (100..=1_100).contains(l)),
        "{left:?}"
    );
}

#[test]
fn a_failed_sync_poisons_the_file_and_its_bytes_are_uncertain() {
    let mut kept = [0; 2];
    for seed in basalt_sim::campaign::cases(0..100) {
        let _repeat = basalt_sim::repeat!(
            a_failed_sync_poisons_the_file_and_its_bytes_are_uncertain,
            "BASALT_CASE={seed}"
        );
        let (sim, fs) = wrapped(seed);
        fs.inject(fault(FaultKind::FailedSync, When::Nth(2)));
        let f = fs.create(p("f")).unwrap();
        fs.sync_metadata(p("")).unwrap();
        f.append(&[IoSlice::new(&[1; 100])], Intent::Sync).unwrap();
        let failed = if seed % 2 == 0 {
            f.sync_data()
        } else {
            fs.sync_files(&[Arc::clone(&f)])
        };
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(f.sync_data().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(
            fs.sync_files(&[Arc::clone(&f)]).unwrap_err().kind(),
            ErrorKind::Poisoned
        );
        let e = f.append(&[IoSlice::new(&[1])], Intent::Sync).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Poisoned);
        let cut = sim.crash(CrashPolicy::NothingUnsynced, seed);
        let got = cut.open(p("f")).unwrap().read(0, 100).unwrap();
        kept[usize::from(got == vec![1; 100])] += 1;
    }
    assert!(kept[0] > 10 && kept[1] > 10, "{kept:?}");
}

#[test]
fn latency_takes_time_and_fails_no_call() {
    let spent = Arc::new(parking_lot::Mutex::new(Duration::ZERO));
    let sink = Arc::clone(&spent);
    let sim = SimFs::new(SimOptions::default());
    let fs = FaultFs::with_sleep(sim, 1, Box::new(move |d| *sink.lock() += d));
    let rule = fs.inject(fault(
        FaultKind::Latency(Duration::from_millis(10)),
        When::EveryKth(2),
    ));
    workload(&fs, &mut 0).unwrap();
    assert_eq!(spent.lock().as_millis() as u64, fs.seen(rule) / 2 * 10);
    assert_eq!(fs.total_calls(), fs.seen(rule));
    fs.clear();
    assert_eq!(fs.calls(OpKind::Rename), 1);
}
