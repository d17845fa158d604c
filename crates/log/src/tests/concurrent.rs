//! Steps of two threads in one fixed order, and what a failing call leaves.

use super::*;
use crate::apply::{PlacedOp, add_entry, apply_to_log};
use crate::catalog::Change;
use crate::checkpoint::{self, CheckpointHead, WrittenCheckpoint};
use crate::engine::Engine;
use crate::index::PageLocation;
use crate::log_ops::LogOp;
use basalt_fs::AlignedBuf;
use basalt_records::{Outgoing, RECORD_HEADER, RecordKind};
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;

pub(super) fn head_of(e: &Engine) -> CheckpointHead {
    let (data, meta, moved) = (e.data.lock(), e.meta.lock(), e.moved.lock());
    CheckpointHead {
        next_seq: e.next_seq.load(SeqCst),
        next_log: e.created_below.load(SeqCst),
        meta: meta.position(),
        data: data.position(),
        moved: moved.position(),
    }
}

/// The second half of `Engine::checkpoint`.
fn write_checkpoint(e: &Engine, head: &CheckpointHead) {
    let all = e.namespace.all_named();
    let ((a, store), (b, _)) = (e.logs.new_file(), e.logs.new_file());
    let WrittenCheckpoint { checkpoint, names } =
        checkpoint::write(&e.env, e.logs.dir(), [a, b], store, head, &all).unwrap();
    e.sync_all().unwrap();
    e.env.fs().sync_metadata(e.logs.dir()).unwrap();
    e.logs
        .install(&[Change::Checkpoint(checkpoint), Change::Names(names)])
        .unwrap();
}

fn filled(fs: &Arc<SimFs>, options: LogOptions) -> (LogEngine, Log) {
    let engine = LogEngine::open(
        &env(fs),
        DIR,
        LogEngineOptions::default().file_bytes(1 << 20),
    )
    .unwrap();
    let log = engine.create("a", options).unwrap();
    for lsn in 1..=300 {
        log.append(lsn, b"old", SYNC).unwrap();
        while engine.engine().env.jobs().step() {}
    }
    (engine, log)
}

/// A checkpoint that encodes a log between the two parts of a removal has the removal, or replays
/// it.
#[test]
fn a_checkpoint_beside_a_removal_keeps_the_removal() {
    let fs = disk(1);
    let (engine, log) = filled(&fs, LogOptions::default());
    let e = engine.engine();
    // A checkpoint takes its points.
    let head = head_of(e);
    // `truncate_suffix(21)`: durable in the metalog, then applied.
    let op = LogOp::Remove {
        log: log.state().number,
        range: 21..=u64::MAX - 1,
    };
    let seq = e.new_seq();
    let mut buf = AlignedBuf::with_capacity(64);
    buf.resize(RECORD_HEADER, 0);
    let mut payload = Vec::new();
    op.encode(&mut payload);
    buf.extend_from_slice(&payload);
    let mut records = [Outgoing {
        kind: RecordKind::LogOps,
        first_seq: seq,
        count: 1,
        payload_crc: basalt_records::payload_crc(&buf[RECORD_HEADER..], &[]),
        separated: &[],
        offset: 0,
        buf: &mut buf,
    }];
    e.meta.lock().append(&mut records, true).unwrap();
    let at = PageLocation {
        file: 0,
        offset: 0,
        len: 0,
    };
    let loads = Cell::new(0);
    let load = |page| {
        // The checkpoint goes on while the page is read without the log's lock.
        loads.set(loads.get() + 1);
        if loads.get() == 1 {
            write_checkpoint(e, &head);
        }
        e.load_page(log.state(), page)
    };
    let freed = apply_to_log(log.state(), &PlacedOp { op: &op, seq, at }, &load);
    e.note_freed(&freed);
    assert!(loads.get() > 0, "no page was cut");
    assert_eq!(log.last(), Some(20));
    engine.cut_power();
    drop((log, engine));
    let fs = fs.kill();
    let engine = open(&fs).unwrap();
    assert_eq!(engine.log("a").unwrap().last(), Some(20));
}

/// The same of an append that replaces a record.
#[test]
fn a_checkpoint_beside_a_replacement_keeps_the_new_record() {
    let fs = disk(1);
    let (engine, log) = filled(&fs, LogOptions::default().duplicates(Duplicates::Replace));
    let e = engine.engine();
    let head = head_of(e);
    // A synced append of LSN 5, up to its place in the index.
    let seq = e.new_seq();
    let mut buf = AlignedBuf::with_capacity(64);
    buf.resize(RECORD_HEADER, 0);
    basalt_records::entries::push_entry(&mut buf, log.state().number, 5, None, b"new");
    let len = (buf.len() - RECORD_HEADER) as u32;
    let mut records = [Outgoing {
        kind: RecordKind::Entries,
        first_seq: seq,
        count: 1,
        payload_crc: 0,
        separated: &[],
        offset: 0,
        buf: &mut buf,
    }];
    let file = e.data.lock().append(&mut records, true).unwrap();
    let location = crate::mapping::Location {
        file: file.number,
        offset: records[0].offset + RECORD_HEADER as u64,
        len,
    };
    file.add_live(u64::from(len));
    let loads = Cell::new(0);
    let load = |page| {
        loads.set(loads.get() + 1);
        if loads.get() == 1 {
            write_checkpoint(e, &head);
        }
        e.load_page(log.state(), page)
    };
    let freed = add_entry(log.state(), seq, 5, location, &load, &mut |_| ());
    e.note_freed(&freed);
    assert!(loads.get() > 0, "no page was cut");
    assert_eq!(log.read(5).unwrap().as_deref(), Some(&b"new"[..]));
    engine.cut_power();
    drop((log, engine));
    let fs = fs.kill();
    let engine = open(&fs).unwrap();
    let found = engine.log("a").unwrap().read(5).unwrap();
    assert_eq!(found.as_deref(), Some(&b"new"[..]));
}

/// A process was killed between the write and the sync of the edit that names checkpoint C2. The
/// next open is on a full disk. It must not remove C1 before it has written a manifest: a power cut
/// takes the edit back, and then the manifest names C1.
#[test]
fn an_open_on_a_full_disk_keeps_the_checkpoint_of_the_edit_before() {
    let fs = SimFs::own(SimOptions {
        seed: 3,
        capacity: 4 << 20,
        ..SimOptions::default()
    });
    let engine = LogEngine::open(&Env::for_tests(fs.clone(), 1), DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=100 {
        log.append(lsn, &[1; 300], SYNC).unwrap();
        while engine.engine().env.jobs().step() {}
    }
    let e = engine.engine();
    e.checkpoint().unwrap();
    let c1 = checkpoint::current_paths(&e.logs);
    log.append(101, &[1; 300], SYNC).unwrap();
    fs.lie(basalt_sim::Lie {
        kind: basalt_sim::LieKind::DroppedSync,
        path: "MANIFEST".into(),
        when: basalt_sim::When::From(1),
    });
    // C2, up to its edit. The process dies in the sync of the edit, so C1 is still there.
    write_checkpoint(e, &head_of(e));
    let c2 = checkpoint::current_paths(&e.logs);
    assert_ne!(c1, c2);
    engine.cut_power();
    drop((log, engine));
    let fs = fs.kill();
    // A power cut now is harmless: C1 is there.
    {
        let cut = fs
            .snapshot()
            .crash(basalt_sim::CrashPolicy::NothingUnsynced, 1);
        let engine = LogEngine::open(&Env::for_tests(cut, 5), DIR, options()).unwrap();
        assert_eq!(engine.log("a").unwrap().last(), Some(101));
    }
    // Another program took the reserve, and the disk is full.
    fs.remove(&Path::new(DIR).join("RESERVE")).unwrap();
    fs.sync_metadata(Path::new(DIR)).unwrap();
    let mut files = Vec::new();
    for (i, len) in [64 << 10, 4 << 10, 512].into_iter().enumerate() {
        let file = fs.create(Path::new(&format!("foreign{i}"))).unwrap();
        let bytes = vec![1; len];
        while file
            .append(&[std::io::IoSlice::new(&bytes)], basalt_fs::Intent::Sync)
            .is_ok()
        {}
        files.push(file);
    }
    let states: Arc<std::sync::Mutex<Vec<basalt_sim::SimSnapshot>>> = Arc::default();
    let to = states.clone();
    fs.on_mutation(move |s| to.lock().unwrap().push(s));
    let opened = LogEngine::open(&Env::for_tests(fs.clone(), 2), DIR, options());
    fs.on_mutation(|_| {});
    drop(opened);
    let states = std::mem::take(&mut *states.lock().unwrap());
    for (i, state) in states.iter().enumerate() {
        let fs = state.crash(basalt_sim::CrashPolicy::NothingUnsynced, 7);
        for i in 0..3 {
            let _ = fs.remove(Path::new(&format!("foreign{i}")));
        }
        fs.sync_metadata(Path::new("")).unwrap();
        let there: Vec<_> = c1.iter().map(|p| fs.exists(p).unwrap()).collect();
        let opened = LogEngine::open(&Env::for_tests(fs.clone(), 3), DIR, options());
        match opened {
            Ok(engine) => assert_eq!(engine.log("a").unwrap().last(), Some(101)),
            Err(e) => panic!("state {i} {state:?}: C1 there: {there:?}: {e}"),
        }
    }
}

use basalt_sim::fault::{Fault, FaultFs, FaultKind};

/// The edit that ends a full file fails (full disk, or EIO), and is tried again.
#[test]
fn a_file_whose_end_is_tried_twice_has_a_whole_reverse_index() {
    let fs = disk(4);
    let faulty = FaultFs::new(fs.clone(), 1);
    let env = Env::for_tests(faulty.clone(), 1);
    let options = LogEngineOptions::default().file_bytes(1 << 20);
    let engine = LogEngine::open(&env, DIR, options).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=70 {
        log.append(lsn, b"record", SYNC).unwrap();
    }
    let e = engine.engine();
    let left = e.data.lock().leave_all().unwrap();
    faulty.inject(Fault {
        op: None,
        path: "MANIFEST".into(),
        when: basalt_sim::When::From(1),
        kind: FaultKind::Enospc,
    });
    // The job of `tend_writer`.
    left[0].end(&e.logs).unwrap_err();
    faulty.clear();
    // The next checkpoint, a `resume`, or the close.
    left[0].end(&e.logs).unwrap();
    let file = e.logs.get(left[0].number()).unwrap();
    assert_eq!(crate::gc::entries_of(&file).unwrap().len(), 70);
    e.data.lock().forget_left(&left[0]);
    engine.close().unwrap();
    drop((log, engine));
    let report =
        LogEngine::check(&super::env(&fs), DIR, &super::options(), &mut |_, _| ()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

/// The creation of the reserve fails once (quota, other program), and the disk has much space.
#[test]
fn a_reserve_never_has_more_than_its_size() {
    let fs = SimFs::new(SimOptions {
        seed: 3,
        capacity: 256 << 20,
        ..SimOptions::default()
    });
    let faulty = FaultFs::new(fs.clone(), 1);
    let env = Env::for_tests(faulty.clone(), 1);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    log.append(1, b"record", SYNC).unwrap();
    engine.engine().logs.release_reserve();
    faulty.inject(Fault {
        op: None,
        path: "RESERVE".into(),
        when: basalt_sim::When::Nth(1),
        kind: FaultKind::Enospc,
    });
    engine.close().unwrap();
    let reserve = fs.stat(&Path::new(DIR).join("RESERVE")).unwrap().allocated;
    assert!(reserve <= 1 << 20, "{} MiB", reserve >> 20);
}

/// A store has a small reserve, from `keep`. An append tries to make it whole, and fails.
#[test]
fn a_failed_growth_of_the_reserve_keeps_what_is_there() {
    let fs = SimFs::new(SimOptions {
        seed: 3,
        capacity: 256 << 20,
        ..SimOptions::default()
    });
    let faulty = FaultFs::new(fs.clone(), 1);
    let env = Env::for_tests(faulty.clone(), 1);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    engine.close().unwrap();
    drop((log, engine));
    let path = Path::new(DIR).join("RESERVE");
    fs.remove(&path).unwrap();
    let small = basalt_fs::LogOptions {
        capacity: 512 << 10,
        reuse: None,
    };
    drop(fs.create_log(&path, small).unwrap());
    assert!(fs.stat(&path).unwrap().allocated >= 512 << 10);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    faulty.inject(Fault {
        op: Some(basalt_sim::OpKind::CreateLog),
        path: "RESERVE".into(),
        when: basalt_sim::When::Nth(1),
        kind: FaultKind::Enospc,
    });
    let done = engine.log("a").unwrap().append(1, b"record", SYNC);
    let left = fs.stat(&path).map(|s| s.allocated);
    assert!(
        done.is_ok() || left.is_ok(),
        "the reserve is gone: {left:?}"
    );
}

/// A record is replaced while a collection (or a merge) copies it. The copy is stale, and has a
/// larger sequence number than the record that replaced it. The source is gone. A repair without
/// the checkpoint takes the stale copy.
#[test]
fn a_repair_without_the_checkpoint_takes_no_stale_copy() {
    let fs = disk(9);
    let replace = LogOptions::default().duplicates(Duplicates::Replace);
    let options = LogEngineOptions::default().file_bytes(1 << 20);
    {
        let engine = LogEngine::open(&Env::for_tests(fs.clone(), 1), DIR, options.clone()).unwrap();
        let log = engine.create("a", replace).unwrap();
        for lsn in 1..=20 {
            log.append(lsn, b"old", SYNC).unwrap();
        }
        engine.close().unwrap();
    }
    let slot: Arc<std::sync::OnceLock<Log>> = Arc::default();
    let of = slot.clone();
    let sleep = Box::new(move |_: Duration| {
        of.get().unwrap().append(5, b"new", SYNC).unwrap();
    });
    let faulty = FaultFs::with_sleep(fs.clone(), 1, sleep);
    let engine = LogEngine::open(&Env::for_tests(faulty.clone(), 2), DIR, options.clone()).unwrap();
    let log = engine.log("a").unwrap();
    let _ = slot.set(engine.log("a").unwrap());
    let e = engine.engine();
    let victim = e
        .logs
        .all()
        .into_iter()
        .find(|f| f.role == Role::Data)
        .unwrap();
    let entries = crate::gc::entries_of(&victim).unwrap();
    faulty.inject(Fault {
        op: Some(basalt_sim::OpKind::Read),
        path: ".data".into(),
        when: basalt_sim::When::Nth(1),
        kind: FaultKind::Latency(Duration::from_secs(1)),
    });
    e.move_live(&victim, &entries).unwrap();
    e.remove_dead_records().unwrap();
    assert!(e.logs.get(victim.number).is_none(), "the source is there");
    assert_eq!(log.read(5).unwrap().as_deref(), Some(&b"new"[..]));
    engine.cut_power();
    let fs = fs.kill();
    {
        let killed = fs.snapshot().kill();
        let engine = LogEngine::open(&Env::for_tests(killed, 3), DIR, options.clone()).unwrap();
        let found = engine.log("a").unwrap().read(5).unwrap();
        assert_eq!(found.as_deref(), Some(&b"new"[..]), "an open");
    }
    let names = fs.list(Path::new(DIR)).unwrap();
    let name = names
        .iter()
        .find(|e| e.name.ends_with(".checkpoint"))
        .unwrap();
    fs.flip_bit(&Path::new(DIR).join(&name.name), 600, 1)
        .unwrap();
    LogEngine::repair(
        &Env::for_tests(fs.clone(), 4),
        DIR,
        &options,
        &mut |_, _| (),
    )
    .unwrap();
    let engine = LogEngine::open(&Env::for_tests(fs.clone(), 5), DIR, options).unwrap();
    let found = engine.log("a").unwrap().read(5).unwrap();
    assert_eq!(found.as_deref(), Some(&b"new"[..]), "a repair");
}

/// Small files of the metalog count as files to merge, and a merge does not take them.
#[test]
fn an_open_with_small_files_of_the_metalog_writes_nothing() {
    let fs = disk(11);
    let options = LogEngineOptions::default().file_bytes(16 << 10);
    let mut seed = 0;
    let mut open = || {
        seed += 1;
        let env = Env::for_tests(fs.clone(), seed);
        let engine = LogEngine::open(&env, DIR, options.clone()).unwrap();
        (env, engine)
    };
    let mut next = 1;
    for _ in 0..12 {
        let (env, engine) = open();
        let log = engine.open_or_create("a", LogOptions::default()).unwrap();
        for _ in 0..60 {
            log.append(next, &[1; 200], UNSYNCED).unwrap();
            next += 1;
            while env.jobs().step() {}
        }
        engine.close().unwrap();
    }
    for _ in 0..8 {
        let (env, engine) = open();
        while env.jobs().step() {}
        engine.close().unwrap();
        drop(engine);
    }
    let before = fs.stats().bytes_written;
    let (env, engine) = open();
    while env.jobs().step() {}
    engine.close().unwrap();
    assert_eq!(fs.stats().bytes_written, before);
}

/// The checkpoint knows a sequence number of which no file has a record any more. Recovery gives it
/// out again, and the next recovery takes the new record for one that the checkpoint has.
#[test]
fn recovery_gives_out_no_sequence_number_that_the_checkpoint_knows() {
    let fs = disk(12);
    let slot: Arc<std::sync::OnceLock<Log>> = Arc::default();
    let of = slot.clone();
    let sleep = Box::new(move |_: Duration| {
        of.get().unwrap().append(20, b"x", SYNC).unwrap();
    });
    let faulty = FaultFs::with_sleep(fs.clone(), 1, sleep);
    let engine = LogEngine::open(&Env::for_tests(faulty.clone(), 1), DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=10 {
        log.append(lsn, b"x", SYNC).unwrap();
    }
    let _ = slot.set(engine.log("a").unwrap());
    let e = engine.engine();
    // A checkpoint takes its points.
    let head = head_of(e);
    // A trim has its number, and is being written. Meanwhile another thread appends a record that
    // the trim then takes.
    faulty.inject(Fault {
        op: Some(basalt_sim::OpKind::Append),
        path: ".meta".into(),
        when: basalt_sim::When::Nth(1),
        kind: FaultKind::Latency(Duration::from_secs(1)),
    });
    log.trim(20, SYNC).unwrap();
    assert_eq!(log.count(), 0);
    // The checkpoint goes on.
    write_checkpoint(e, &head);
    // The file ends (a copy begins, or an append fails on a full disk), and it is dead.
    for left in e.data.lock().leave_all().unwrap() {
        left.end(&e.logs).unwrap();
    }
    e.remove_dead_records().unwrap();
    engine.cut_power();
    drop((log, engine));
    let fs = fs.kill();
    let engine = LogEngine::open(&Env::for_tests(fs.clone(), 2), DIR, options()).unwrap();
    engine.log("a").unwrap().append(21, b"y", SYNC).unwrap();
    engine.engine().cut_power();
    let fs = fs.kill();
    let engine = LogEngine::open(&Env::for_tests(fs.clone(), 3), DIR, options()).unwrap();
    let found = engine.log("a").unwrap().read(21).unwrap();
    assert_eq!(found.as_deref(), Some(&b"y"[..]));
}

/// Edits of the manifest fail. Each refused append must not leave a file.
#[test]
fn appends_that_are_refused_leave_no_files() {
    let fs = disk(13);
    let faulty = FaultFs::new(fs.clone(), 1);
    let engine = LogEngine::open(
        &Env::for_tests(faulty.clone(), 1),
        DIR,
        LogEngineOptions::default(),
    )
    .unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    faulty.inject(Fault {
        op: None,
        path: "MANIFEST".into(),
        when: basalt_sim::When::From(1),
        kind: FaultKind::Eio,
    });
    let before = (
        fs.list(Path::new(DIR)).unwrap().len(),
        fs.space(Path::new("")).unwrap().free,
    );
    for _ in 0..100 {
        log.append(1, b"x", SYNC).unwrap_err();
    }
    let after = (
        fs.list(Path::new(DIR)).unwrap().len(),
        fs.space(Path::new("")).unwrap().free,
    );
    assert!(
        after.0 <= before.0 + 3,
        "files and free bytes {before:?}, then {after:?}"
    );
}

/// Regression test: a checkpoint may have a page that was written behind its point. The replay
/// counted the page's bytes again.
#[test]
fn a_page_behind_the_point_of_a_checkpoint_is_counted_once() {
    let fs = disk(1);
    let options = LogEngineOptions::default().file_bytes(1 << 20);
    let engine = LogEngine::open(&env(&fs), DIR, options).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let e = engine.engine();
    let head = head_of(e);
    for lsn in 1..=60u64 {
        log.append(lsn, b"x", SYNC).unwrap();
        while e.env.jobs().step() {}
    }
    assert!(log.state().lock().index.pages() > 0);
    write_checkpoint(e, &head);
    let killed = fs.kill();
    let report = super::integrity::check(&killed).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert_eq!(open(&killed).unwrap().log("a").unwrap().count(), 60);
}
