//! The simulated disk by itself. Synced state survives every power cut, the same seed leaves the
//! same bytes, clones are independent, lies are told, and a full disk is full.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use basalt_fs::{ErrorKind, File, FileSystem, Intent, LogOptions};
use basalt_sim::{CrashPolicy, Lie, LieKind, OpKind, SimFs, SimOptions, When};

fn p(s: &str) -> &Path {
    Path::new(s)
}

fn append(f: &Arc<dyn File>, bytes: &[u8]) -> u64 {
    f.append(&[IoSlice::new(bytes)], Intent::Lazy).unwrap()
}

fn sim(write_unit: usize, seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        write_unit,
        seed,
        ..SimOptions::default()
    })
}

/// Makes the calls of a small store: a log in recycled space, tables, and a pointer file that is
/// renamed into place.
fn play(fs: &Arc<SimFs>) {
    fs.create_dir(p("db")).unwrap();
    fs.sync_metadata(p("")).unwrap();
    let old = fs
        .create_log(
            p("db/1.log"),
            LogOptions {
                capacity: 32 << 10,
                reuse: None,
            },
        )
        .unwrap();
    append(&old, &[1; 9_000]);
    old.sync_data().unwrap();
    fs.sync_metadata(p("db")).unwrap();
    let log = fs
        .create_log(
            p("db/2.log"),
            LogOptions {
                capacity: 48 << 10,
                reuse: Some(p("db/1.log")),
            },
        )
        .unwrap();
    fs.sync_metadata(p("db")).unwrap();
    for i in 0..20u8 {
        append(&log, &[i; 700]);
        log.align_to_unit().unwrap();
        if i % 3 == 0 {
            log.sync_data().unwrap();
        }
    }
    let table = fs.create(p("db/3.table")).unwrap();
    append(&table, &[7; 100_000]);
    table.sync_all().unwrap();
    append(&fs.create(p("db/4.table")).unwrap(), &[8; 30_000]);
    let tmp = fs.create(p("db/tmp")).unwrap();
    append(&tmp, b"3.table");
    tmp.sync_all().unwrap();
    fs.rename(p("db/tmp"), p("db/CURRENT")).unwrap();
    fs.sync_metadata(p("db")).unwrap();
    fs.remove(p("db/4.table")).unwrap();
    append(&log, &[99; 5_000]);
    log.extend_log(64 << 10).unwrap();
}

#[test]
fn the_same_seed_leaves_the_same_bytes() {
    let mut digests = std::collections::BTreeSet::new();
    let mut states = 0;
    for unit in [512, 4096] {
        let (a, b) = (sim(unit, 5), sim(unit, 5));
        a.record_snapshots(1);
        b.record_snapshots(1);
        play(&a);
        play(&b);
        assert_eq!(a.op_count(), b.op_count());
        for (x, y) in a.take_snapshots().iter().zip(&b.take_snapshots()) {
            assert_eq!((x.call, &x.path, x.op), (y.call, &y.path, y.op));
            for &policy in CrashPolicy::ALL {
                for seed in 0..2 {
                    let (x, y) = (x.crash(policy, seed), y.crash(policy, seed));
                    assert_eq!(x.digest(), y.digest(), "{policy:?} seed {seed}");
                    // After a cut, a disk without new calls does not change.
                    assert_eq!(x.crash(CrashPolicy::AnySubset, 3).digest(), x.digest());
                    digests.insert(x.digest());
                    states += 1;
                }
            }
        }
    }
    basalt_sim::campaign!("crash_states={states} distinct={}", digests.len());
    assert!(
        digests.len() > 300,
        "only {} distinct states",
        digests.len()
    );
}

#[test]
fn synced_data_survives_every_power_cut() {
    for seed in basalt_sim::campaign::cases(0..200) {
        let _repeat =
            basalt_sim::repeat!(synced_data_survives_every_power_cut, "BASALT_CASE={seed}");
        let fs = sim(if seed % 2 == 0 { 512 } else { 4096 }, seed);
        play(&fs);
        let before = fs.digest();
        for &policy in CrashPolicy::ALL {
            let cut = fs.crash(policy, seed);
            let what = format!("{policy:?} seed {seed}");
            let table = cut.open(p("db/3.table")).unwrap();
            assert_eq!(table.len(), 100_000, "{what}");
            assert_eq!(table.read(0, 200_000).unwrap(), vec![7; 100_000], "{what}");
            let current = cut.open(p("db/CURRENT")).unwrap();
            assert_eq!(current.read(0, 100).unwrap(), &b"3.table"[..], "{what}");
            assert!(!cut.exists(p("db/1.log")).unwrap(), "{what}");
            assert!(!cut.exists(p("db/tmp")).unwrap(), "{what}");
            let log = cut.open(p("db/2.log")).unwrap();
            assert!(log.allocated() >= 64 << 10, "{what}");
            let unit = cut.info().write_unit as u64;
            for i in 0..=18u8 {
                let at = u64::from(i) * 700u64.next_multiple_of(unit);
                assert_eq!(
                    log.read(at, 700).unwrap(),
                    vec![i; 700],
                    "{what} record {i}"
                );
            }
            cut.create(p("db/new")).unwrap();
        }
        assert_eq!(fs.digest(), before);
        assert!(!fs.exists(p("db/new")).unwrap());
    }
}

#[test]
fn the_observer_gets_a_snapshot_after_every_change() {
    let fs = sim(512, 1);
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    fs.on_mutation(move |s| {
        s.crash(CrashPolicy::AnySubset, s.op);
        sink.lock().push(s);
    });
    play(&fs);
    let seen = seen.lock();
    assert_eq!(seen.len() as u64, fs.op_count());
    assert!(seen.windows(2).all(|w| w[0].op + 1 == w[1].op));
    for kind in [
        OpKind::Create,
        OpKind::CreateLog,
        OpKind::CreateDir,
        OpKind::Rename,
        OpKind::Remove,
        OpKind::SyncMetadata,
        OpKind::Append,
        OpKind::AlignToUnit,
        OpKind::SyncData,
        OpKind::SyncAll,
        OpKind::ExtendLog,
    ] {
        assert!(seen.iter().any(|s| s.call == kind), "{kind:?} never told");
    }
    assert_eq!(seen.last().unwrap().kill().digest(), fs.digest());
}

#[test]
fn a_full_disk_refuses_writes_until_space_returns() {
    let fs = SimFs::new(SimOptions {
        capacity: 64 << 10,
        ..SimOptions::default()
    });
    let a = fs.create(p("a")).unwrap();
    append(&a, &[1; 40 << 10]);
    let b = fs.create(p("b")).unwrap();
    append(&b, &[2; 4 << 10]);
    let e = b
        .append(&[IoSlice::new(&[3; 30 << 10])], Intent::Lazy)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    let e = b.append(&[IoSlice::new(&[3])], Intent::Lazy).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Poisoned);
    assert_eq!(b.len(), 4 << 10);
    assert_eq!(b.read(0, 4 << 10).unwrap(), vec![2; 4 << 10]);
    let e = fs
        .create_log(
            p("log"),
            LogOptions {
                capacity: 50 << 10,
                reuse: None,
            },
        )
        .map(|_| ())
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    assert!(!fs.exists(p("log")).unwrap());
    fs.remove(p("a")).unwrap();
    let free = fs.space(p("")).unwrap().free;
    assert_eq!(
        a.read(0, 10).unwrap(),
        vec![1; 10],
        "open handles keep reading"
    );
    drop(a);
    assert!(fs.space(p("")).unwrap().free >= free + (40 << 10));
    fs.remove(p("b")).unwrap();
    drop(b);
    assert_eq!(fs.space(p("")).unwrap().free, 64 << 10);
    append(&fs.create(p("c")).unwrap(), &[2; 64 << 10]);
}

#[test]
fn disk_lies_happen_only_as_configured() {
    for seed in 0..50 {
        for kind in [
            LieKind::DroppedSync,
            LieKind::MisdirectedSector,
            LieKind::StaleSector,
            LieKind::BitFlip,
        ] {
            let fs = sim(512, seed);
            let f = fs.create(p("f")).unwrap();
            fs.sync_metadata(p("")).unwrap();
            fs.lie(Lie {
                kind,
                path: "f".into(),
                when: When::Nth(2),
            });
            let good: Vec<u8> = (0..8192u32).map(|i| (i / 512) as u8 * 3 + 1).collect();
            append(&f, &good[..4096]);
            f.sync_data().unwrap();
            let cut = fs.crash(CrashPolicy::NothingUnsynced, seed);
            assert_eq!(cut.read_all(p("f")).unwrap(), good[..4096]);
            assert_eq!(fs.lie_count(), 0);
            append(&f, &good[4096..]);
            f.sync_data().unwrap();
            assert_eq!(fs.lie_count(), 1);
            let cut = fs.crash(CrashPolicy::NothingUnsynced, seed);
            assert_ne!(cut.read_all(p("f")).unwrap(), good, "{kind:?} seed {seed}");
        }
    }
}

#[test]
#[should_panic(expected = "contract broken")]
fn appending_into_a_synced_sector_is_the_callers_bug() {
    let fs = sim(512, 0);
    let f = fs.create(p("f")).unwrap();
    append(&f, b"abc");
    f.sync_data().unwrap();
    append(&f, b"def");
}

#[test]
#[should_panic(expected = "contract broken")]
fn writing_through_an_earlier_life_is_the_callers_bug() {
    let fs = sim(512, 0);
    let none = LogOptions {
        capacity: 4096,
        reuse: None,
    };
    let old = fs.create_log(p("a"), none).unwrap();
    let reuse = LogOptions {
        capacity: 4096,
        reuse: Some(p("a")),
    };
    fs.create_log(p("b"), reuse).unwrap();
    append(&old, b"def");
}

/// A campaign crashes a disk of a store's size tens of thousands of times. This test prints the
/// cost of one crash.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the clock is a crate above; nothing is asserted"
)]
fn a_crashed_clone_is_cheap() {
    let fs = sim(512, 1);
    play(&fs);
    let snapshot = fs.snapshot();
    const CLONES: u64 = 5_000;
    let began = std::time::Instant::now();
    let mut names = 0;
    for seed in 0..CLONES {
        let policy = CrashPolicy::ALL[seed as usize % CrashPolicy::ALL.len()];
        names += snapshot
            .crash(policy, seed)
            .list(p("db"))
            .map_or(0, |l| l.len());
    }
    let each = began.elapsed() / CLONES as u32;
    basalt_sim::campaign!(
        "a crashed clone of {} KiB: {each:?}, {names} names",
        64 + 98 + 30
    );
    assert!(names > 0);
}

#[test]
fn a_rename_between_directories_never_loses_the_file() {
    for seed in basalt_sim::campaign::cases(0..100) {
        let _repeat = basalt_sim::repeat!(
            a_rename_between_directories_never_loses_the_file,
            "BASALT_CASE={seed}"
        );
        for synced in 0..4 {
            let fs = sim(512, seed);
            fs.create_dir(p("a")).unwrap();
            fs.create_dir(p("b")).unwrap();
            let f = fs.create(p("a/x")).unwrap();
            append(&f, b"x");
            f.sync_all().unwrap();
            fs.sync_metadata(p("")).unwrap();
            fs.sync_metadata(p("a")).unwrap();
            fs.rename(p("a/x"), p("b/x")).unwrap();
            for (bit, dir) in [(1, "a"), (2, "b")] {
                if synced & bit != 0 {
                    fs.sync_metadata(p(dir)).unwrap();
                }
            }
            for &policy in CrashPolicy::ALL {
                let cut = fs.crash(policy, seed);
                let (a, b) = (cut.exists(p("a/x")).unwrap(), cut.exists(p("b/x")).unwrap());
                let what = format!("{policy:?} seed {seed} synced {synced}");
                match synced {
                    0 => assert!(a != b, "{what}"),
                    2 => assert!(b, "{what}"),
                    _ => assert!(!a && b, "{what}"),
                }
            }
        }
    }
}
