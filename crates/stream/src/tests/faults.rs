//! Failing calls: each k-th call of a history fails, for every kind of error. Errors are allowed,
//! wrong bytes are not, and a stream that was opened again goes on.

use super::*;
use basalt_fs::Error;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, When};

const FAULTS: [FaultKind; 4] = [
    FaultKind::Eio,
    FaultKind::Enospc,
    FaultKind::ShortWrite,
    FaultKind::FailedSync,
];
/// Runs with a failing call that are made at `BASALT_SCALE=1`.
const LEAST_RUNS: u64 = 300;

/// Opens the stream. Only one call fails, so the second attempt succeeds.
fn reopened(env: &Env, failed: &mut u64) -> Stream {
    Stream::open(env, "s", options())
        .or_else(|_| {
            *failed += 1;
            Stream::open(env, "s", options())
        })
        .unwrap()
}

/// Runs a history in which call `k` fails. Returns the number of calls, and of failed steps.
fn run(kind: FaultKind, k: u64, seed: u64) -> (u64, u64) {
    let say = format!("{kind:?} at call {k}");
    let disk = disk(seed);
    let faulty = FaultFs::new(disk.clone(), seed);
    let env = Env::for_tests(faulty.clone(), seed);
    let mut stream = Stream::create(&env, "s", options()).unwrap();
    let rule = faulty.inject(Fault {
        op: None,
        path: String::new(),
        when: When::Nth(k),
        kind,
    });
    let random = Random::from_seed(seed);
    let (mut failed, mut linked) = (0, 0);
    let mut records: Vec<(ExtentAddress, Vec<u8>, bool)> = Vec::new();
    let mut erased: BTreeSet<ExtentId> = BTreeSet::new();
    let mut doubtful: BTreeSet<ExtentId> = BTreeSet::new();
    for n in 0..24u8 {
        let done: Result<()> = match n % 8 {
            5 => {
                let ids: Vec<ExtentId> = (stream.extents().iter())
                    .filter(|e| e.sealed && random.below(2) == 0)
                    .map(|e| e.id)
                    .collect();
                // A failed erasure may be on the device or not.
                let result = stream.erase(&ids);
                match &result {
                    Ok(()) => erased.extend(ids),
                    Err(_) => doubtful.extend(ids),
                }
                result
            }
            6 => {
                linked += 1;
                stream.link(format!("link{linked}")).map(|_| ())
            }
            7 => {
                stream = reopened(&env, &mut failed);
                Ok(())
            }
            _ => {
                let data = vec![n; 1 + random.below(3000) as usize];
                append(&stream, &data).map(|at| records.push((at, data, false)))
            }
        };
        let synced = done.and_then(|()| stream.sync());
        match synced {
            Ok(()) => records.iter_mut().for_each(|(.., synced)| *synced = true),
            Err(e) => {
                failed += 1;
                if e.kind() == ErrorKind::Poisoned {
                    // What was not synced before the failed sync is unknown.
                    records.retain(|(.., synced)| *synced);
                    stream = reopened(&env, &mut failed);
                }
            }
        }
        for (at, data, _) in records
            .iter()
            .filter(|(at, ..)| !erased.contains(&at.extent))
        {
            // A read may be the failing call.
            if let Ok(found) = stream.read(*at, data.len()) {
                assert_eq!(&found[..], &data[..], "{say}");
            }
        }
    }
    let calls = faulty.seen(rule);
    faulty.clear();
    for fs in [
        disk.crash(CrashPolicy::NothingUnsynced, seed),
        disk.snapshot().kill(),
    ] {
        let env = Env::for_tests(fs.clone(), seed);
        let stream = Stream::open(&env, "s", options()).unwrap_or_else(|e| panic!("{say}: {e}"));
        for (at, data, synced) in &records {
            if *synced && !erased.contains(&at.extent) {
                match stream.read(*at, data.len()) {
                    Ok(found) => assert_eq!(&found[..], &data[..], "{say}"),
                    Err(e) => assert!(
                        doubtful.contains(&at.extent) && e.kind() == ErrorKind::NotFound,
                        "{say}: {at:?}: {e}"
                    ),
                }
            }
        }
        append(&stream, b"goes on").unwrap();
        stream.sync().unwrap();
        assert_eq!(
            extent_files(&*fs, Path::new("s")),
            stream.extents().len(),
            "{say}"
        );
    }
    (calls, failed)
}

#[test]
fn every_failing_call_keeps_the_promises() {
    let (mut runs, mut failed) = (0u64, 0);
    for seed in basalt_sim::campaign::cases(0..2 * basalt_sim::campaign::scale()) {
        for kind in FAULTS {
            let _repeat =
                basalt_sim::repeat!(every_failing_call_keeps_the_promises, "BASALT_CASE={seed}");
            let (calls, _) = run(kind, u64::MAX, seed);
            for k in 1..=calls {
                failed += run(kind, k, seed).1;
                runs += 1;
            }
        }
    }
    basalt_sim::campaign!("stream_fault_runs={runs} failed_steps={failed}");
    let floor = basalt_sim::campaign::scale().floor(LEAST_RUNS);
    let is_enough = runs >= floor && failed >= floor / 2;
    assert!(
        basalt_sim::campaign::case().is_some() || is_enough,
        "only {runs} runs, {failed} failed steps"
    );
}

/// After a failed sync, another thread's sync must not succeed: its bytes may have been lost with
/// the failed one. Reads go on, and so does the stream when it was opened again.
#[test]
fn a_failed_sync_stops_the_stream_until_it_is_opened_again() {
    let disk = disk(1);
    let faulty = FaultFs::new(disk.clone(), 1);
    let env = Env::for_tests(faulty.clone(), 1);
    let stream = Stream::create(&env, "s", options()).unwrap();
    let at = append(&stream, b"before").unwrap();
    stream.sync().unwrap();
    append(&stream, b"after").unwrap();
    faulty.inject(Fault {
        op: None,
        path: ".extent".to_string(),
        when: When::Nth(1),
        kind: FaultKind::FailedSync,
    });
    assert_eq!(stream.sync().unwrap_err().kind(), ErrorKind::Io);
    for e in [
        stream.sync().err(),
        append(&stream, b"x").err(),
        stream.seal().err(),
    ] {
        let e = e.unwrap();
        assert_eq!(e.kind(), ErrorKind::Poisoned);
        assert!(e.to_string().contains("open it again"), "{e}");
    }
    assert_eq!(stream.read(at, 6).unwrap(), &b"before"[..]);
    drop(stream);
    let stream = Stream::open(&env, "s", options()).unwrap();
    assert_eq!(stream.read(at, 6).unwrap(), &b"before"[..]);
    append(&stream, b"goes on").unwrap();
    stream.sync().unwrap();
}

/// A full disk is a state that ends: appends fail, reads and erasures go on, the stream opens, and
/// takes appends again without being opened when there is space.
#[test]
fn a_full_disk_is_over_when_space_returns() {
    for intent in [Intent::Lazy, Intent::Sync] {
        for reopen in [false, true] {
            let disk = disk(1);
            let faulty = FaultFs::new(disk.clone(), 1);
            let env = Env::for_tests(faulty.clone(), 1);
            let mut stream = Stream::create(&env, "s", options()).unwrap();
            let put = |stream: &Stream, n: u8| stream.append(&[IoSlice::new(&[n; 500])], intent);
            let mut records: Vec<(ExtentAddress, u8)> = Vec::new();
            for n in 0..30 {
                records.push((put(&stream, n).unwrap(), n));
            }
            stream.sync().unwrap();
            records.push((put(&stream, 30).unwrap(), 30));
            let full = |path: &str| {
                faulty.inject(Fault {
                    op: None,
                    path: path.to_string(),
                    when: When::From(1),
                    kind: FaultKind::Enospc,
                });
            };
            full("");
            for _ in 0..20 {
                let e = put(&stream, 99).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
            }
            let check = |stream: &Stream| {
                for (at, n) in &records {
                    assert_eq!(stream.read(*at, 500).unwrap(), &[*n; 500][..]);
                }
            };
            check(&stream);
            assert!(
                extent_files(&*disk, Path::new("s")) <= 7,
                "attempts leave no files"
            );
            if reopen {
                drop(stream);
                stream = Stream::open(&env, "s", options()).unwrap();
                check(&stream);
            }
            faulty.clear();
            stream.sync().unwrap();
            records.push((put(&stream, 31).unwrap(), 31));
            stream.sync().unwrap();
            for (at, n) in &records {
                assert_eq!(stream.read(*at, 500).unwrap(), &[*n; 500][..]);
            }
            drop(stream);
            let crashed = disk.crash(CrashPolicy::NothingUnsynced, 1);
            let again = Stream::open(&Env::for_tests(crashed, 1), "s", options()).unwrap();
            for (at, n) in &records {
                assert_eq!(again.read(*at, 500).unwrap(), &[*n; 500][..]);
            }
        }
    }
}

#[test]
fn a_restarted_stream_has_what_was_synced() {
    let disk = disk(3);
    let faulty = FaultFs::new(disk.clone(), 3);
    let env = Env::for_tests(faulty.clone(), 3);
    let stream = Stream::create(&env, "s", options()).unwrap();
    stream.restart().unwrap();
    let mut kept = Vec::new();
    for round in 0..5u8 {
        let synced = append(&stream, &[round; 700]).unwrap();
        stream.sync().unwrap();
        kept.push((synced, round));
        let lost = append(&stream, &[0xee; 700]).unwrap();
        faulty.inject(Fault {
            op: None,
            path: String::new(),
            when: When::Nth(1),
            kind: FaultKind::FailedSync,
        });
        assert!(stream.sync().is_err() && stream.has_failed());
        let refused = append(&stream, &[1; 10]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Poisoned);
        stream.restart().unwrap();
        assert!(!stream.has_failed());
        assert_eq!(
            stream.read(lost, 700).unwrap_err().kind(),
            ErrorKind::Corruption
        );
        let later = append(&stream, &[round + 100; 300]).unwrap();
        stream.sync().unwrap();
        kept.push((later, round + 100));
    }
    drop(stream);
    let disk = disk.snapshot().crash(CrashPolicy::NothingUnsynced, 3);
    let stream = Stream::open(&Env::for_tests(disk, 4), "s", options()).unwrap();
    for (at, byte) in kept {
        assert_eq!(stream.read(at, 300).unwrap()[..], [byte; 300]);
    }
}

/// Runs releases of which call `k` fails. Returns the number of calls, and whether a release
/// failed.
fn release_with_fault(kind: FaultKind, k: u64, seed: u64) -> (u64, bool) {
    let say = format!("{kind:?} at call {k}");
    let disk = disk(seed);
    let faulty = FaultFs::new(disk.clone(), seed);
    let env = Env::for_tests(faulty.clone(), seed);
    let large = || options().extent_bytes(64 << 10);
    let stream = Stream::create(&env, "s", large()).unwrap();
    let records: Vec<(ExtentAddress, u8)> = (0..10)
        .map(|n| (append(&stream, &[n; 5000]).unwrap(), n))
        .collect();
    stream.seal().unwrap();
    let begins = |n: usize| records[n].0.offset;
    let ranges = [
        begins(1)..begins(3),
        begins(4)..begins(6),
        begins(7)..begins(9),
    ];
    let check = |stream: &Stream| {
        for (at, n) in [0, 3, 6, 9].map(|n: usize| records[n]) {
            let found = stream.read(at, 5000);
            let found = found.unwrap_or_else(|e| panic!("{say}: {e}"));
            assert_eq!(found, &[n; 5000][..], "{say}");
        }
    };
    let (id, len) = (records[0].0.extent, stream.extents()[0].len);
    let rule = faulty.inject(Fault {
        op: None,
        path: ".extent".to_string(),
        when: When::Nth(k),
        kind,
    });
    let result = stream.release(id, &ranges);
    let calls = faulty.seen(rule);
    faulty.clear();
    if let Err(e) = &result {
        let expected = match kind {
            FaultKind::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        assert_eq!(e.kind(), expected, "{say}: {e}");
    }
    check(&stream);
    // The stream goes on, and the next release frees the rest.
    let at = append(&stream, b"goes on").unwrap();
    stream.sync().unwrap();
    let first = result.as_ref().map_or(0, |freed| freed.unwrap());
    let freed = first + stream.release(id, &ranges).unwrap().unwrap();
    assert!(freed > 0 || result.is_err(), "{say}");
    let on_disk = stream.extents()[0].on_disk;
    assert!(on_disk <= len - 3 * 4096, "{say}: {on_disk} bytes");
    check(&stream);
    for fs in [
        disk.crash(CrashPolicy::NothingUnsynced, seed),
        disk.snapshot().kill(),
    ] {
        let stream = Stream::open(&Env::for_tests(fs, seed), "s", large());
        let stream = stream.unwrap_or_else(|e| panic!("{say}: {e}"));
        check(&stream);
        assert_eq!(stream.read(at, 7).unwrap(), &b"goes on"[..], "{say}");
    }
    (calls, result.is_err())
}

#[test]
fn a_failed_release_leaves_all_other_bytes() {
    for kind in [FaultKind::Eio, FaultKind::Unsupported] {
        let (calls, has_failed) = release_with_fault(kind, u64::MAX, 1);
        assert!(calls >= 3 && !has_failed, "one call for each range");
        for k in 1..=calls {
            assert!(release_with_fault(kind, k, 1).1, "{kind:?} at call {k}");
        }
    }
}

/// Extents that cannot be linked are copied, also while other extents are erased.
#[test]
fn without_links_extents_are_copied() {
    let faults = FaultFs::new(disk(1), 1);
    faults.inject(Fault {
        op: Some(OpKind::Link),
        path: String::new(),
        when: When::From(1),
        kind: FaultKind::Unsupported,
    });
    let env = Env::for_tests(faults.clone(), 1);
    let stream = Stream::create(&env, "d", options()).unwrap();
    let places: Vec<ExtentAddress> = (0..5)
        .map(|n| {
            let at = append(&stream, &[n; 3000]).unwrap();
            stream.seal().unwrap();
            at
        })
        .collect();
    let refused = stream.link_or_copy("refused", false, &|| Ok(()));
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("allow copies"), "{refused}");
    let ended = || Err(Error::new(ErrorKind::Closed, "the store is closed"));
    let ended = stream.link_or_copy("ended", true, &ended).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Closed);
    for gone in ["refused", "ended"] {
        assert_eq!(extent_files(&**env.fs(), Path::new(gone)), 0);
    }
    // Erases the extent that is being copied, and one that is not yet copied.
    let calls = std::cell::Cell::new(0);
    let check_continue = || {
        calls.set(calls.get() + 1);
        match calls.get() {
            2 => stream.erase(&[places[0].extent, places[2].extent]),
            _ => Ok(()),
        }
    };
    let made = stream.link_or_copy("copy", true, &check_continue).unwrap();
    assert_eq!((made.extents, made.linked_bytes), (4, 0));
    let copy = Stream::open(&env, "copy", options()).unwrap();
    assert_eq!(
        copy.extents().iter().map(|e| e.len).sum::<u64>(),
        made.copied_bytes
    );
    for (n, at) in places.iter().enumerate() {
        let found = copy
            .read(*at, 3000)
            .map(|bytes| bytes[..] == [n as u8; 3000]);
        match n {
            2 => assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound),
            _ => assert!(found.unwrap(), "extent {n}"),
        }
    }
}

/// Some extents are linked and others copied. A lost one is not taken for one that was erased, and
/// space that was released takes none in the copy.
#[test]
fn a_copy_has_all_extents_of_the_stream() {
    let fs = disk(1);
    let faults = FaultFs::new(fs.clone(), 1);
    let env = Env::for_tests(faults.clone(), 1);
    let stream = Stream::create(&env, "d", options()).unwrap();
    let places: Vec<ExtentAddress> = (1..6)
        .map(|n| {
            // With pieces of 4 KiB, so that whole blocks lie inside of ranges.
            let at = append(&stream, &[n; 20_000]).unwrap();
            append(&stream, &[n; 3000]).unwrap();
            stream.seal().unwrap();
            at
        })
        .collect();
    let released = places[0].offset..places[0].offset + 15_000;
    let freed = stream.release(places[0].extent, &[released]).unwrap();
    assert!(freed > Some(8000));
    for n in [0, 3] {
        faults.inject(Fault {
            op: Some(OpKind::Link),
            path: places[n].extent.file_name(),
            when: When::From(1),
            kind: FaultKind::Unsupported,
        });
    }
    let made = stream.link_or_copy("copy", true, &|| Ok(())).unwrap();
    assert!(made.linked_bytes > 60_000 && made.copied_bytes > 40_000);
    let copy = Stream::open(&env, "copy", options()).unwrap();
    for (n, at) in (1..).zip(&places) {
        let end = ExtentAddress {
            offset: at.offset + 16_000,
            ..*at
        };
        assert_eq!(copy.read(end, 4000).unwrap()[..], [n; 4000]);
    }
    let on_disk = |stream: &Stream| -> Vec<u64> {
        stream
            .extents()
            .iter()
            .map(|extent| extent.on_disk)
            .collect()
    };
    assert_eq!(on_disk(&copy), on_disk(&stream));

    let lost = Path::new("d").join(places[2].extent.file_name());
    fs.remove(&lost).unwrap();
    let e = stream.link_or_copy("more", true, &|| Ok(())).unwrap_err();
    assert_eq!((e.kind(), e.path()), (ErrorKind::Corruption, Some(&*lost)));
    assert_eq!(extent_files(&*fs, Path::new("more")), 0);
}
