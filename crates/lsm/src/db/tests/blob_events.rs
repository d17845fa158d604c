//! Events of blob files for listeners, compared with the blob files of the store; and the ages of
//! blob files.

use super::prelude::*;
use crate::listener::{BlobFileInfo, BlobFileReason, Event, EventListener, GcInfo};
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_sim::{CrashPolicy, SimFs, SimOptions};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NOW: u64 = 1_700_000_000_000;
const FREE: WriteOptions = WriteOptions::UNSYNCED;

#[derive(Default)]
struct EventRecorder(Mutex<Vec<Event>>);

impl EventListener for EventRecorder {
    fn on_event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

fn separating() -> FamilyOptions {
    FamilyOptions {
        min_blob_size: Some(100),
        table_bytes: 4096,
        base_level_bytes: 16 << 10,
        ..FamilyOptions::default()
    }
}

fn options(listener: &Arc<EventRecorder>) -> Options {
    Options {
        default_family: separating(),
        listeners: vec![listener.clone()],
        ..Options::default()
    }
}

/// Overwrites a part of the keys, and merges now and then.
fn round(db: &Db, n: u64) {
    for f in db.families() {
        let f = db.family(&f).unwrap();
        for key in (0..60u64).filter(|k| n == 0 || k % 7 == n % 7) {
            let value = vec![n as u8; 100 + 5 * key as usize];
            db.put(&f, &key.to_be_bytes(), &value, &FREE).unwrap();
        }
    }
    db.flush().unwrap();
    if n % 3 == 2 {
        for f in db.families() {
            db.compact_range(&db.family(&f).unwrap(), None, None)
                .unwrap();
        }
    }
    db.wait_idle().unwrap();
}

/// The blob files that exist according to the events.
#[derive(Default)]
struct ReportedFiles {
    files: BTreeMap<u64, BlobFileInfo>,
    deleted: BTreeSet<u64>,
    running: Vec<GcInfo>,
    reasons: BTreeMap<BlobFileReason, u64>,
    collections: u64,
    failed: u64,
    read: u64,
    written: u64,
}

impl ReportedFiles {
    fn apply(&mut self, env: &Env, events: Vec<Event>) {
        for event in events {
            match event {
                Event::BlobFileCreated(info) => {
                    assert!(!self.deleted.contains(&info.number));
                    assert!(!info.families.is_empty() && info.records > 0);
                    *self.reasons.entry(info.reason).or_default() += 1;
                    assert!(self.files.insert(info.number, info).is_none());
                }
                Event::BlobFileDeleted { number, path } => {
                    assert!(path.to_str().unwrap().contains(&format!("{number:06}")));
                    assert!(path.extension().unwrap() == "log" || !env.fs().exists(&path).unwrap());
                    assert!(self.files.remove(&number).is_some());
                    self.deleted.insert(number);
                }
                Event::GcBegin(c) => {
                    let of = |n: &u64| self.files[n].bytes;
                    assert_eq!(c.sources.iter().map(of).sum::<u64>(), c.source_bytes);
                    assert!(c.live_bytes < c.source_bytes, "{c:?}");
                    self.running.push(c);
                }
                Event::GcEnd {
                    gc,
                    targets,
                    bytes_read,
                    bytes_written,
                    error,
                    ..
                } => {
                    let at = self.running.iter().position(|c| *c == gc);
                    self.running.remove(at.expect("it had begun"));
                    if error.is_some() {
                        assert!(targets.is_empty() && bytes_written == 0);
                        self.failed += 1;
                        continue;
                    }
                    self.collections += 1;
                    (self.read, self.written) =
                        (self.read + bytes_read, self.written + bytes_written);
                    assert_eq!(targets.iter().map(|t| t.bytes).sum::<u64>(), bytes_written);
                    assert!(bytes_read >= gc.live_bytes && bytes_written >= gc.live_bytes);
                    for t in targets {
                        // The file may have lost its last value since.
                        let there = self.files.get(&t.number);
                        assert!(there == Some(&t) || self.deleted.contains(&t.number));
                    }
                }
                _ => {}
            }
        }
    }

    fn expect(&self, db: &Db) {
        let there: BTreeMap<u64, (u64, u64)> = (db.blob_files().iter())
            .map(|f| (f.number, (f.bytes(), f.meta.records)))
            .collect();
        let reported: BTreeMap<u64, (u64, u64)> = (self.files.iter())
            .map(|(n, f)| (*n, (f.bytes, f.records)))
            .collect();
        assert_eq!(reported, there);
        let blobs = db.stats().blobs;
        assert_eq!(self.collections, blobs.collections);
        assert_eq!(self.read, blobs.collected_bytes_read);
        assert_eq!(self.written, blobs.collected_bytes_written);
        assert!(self.running.is_empty());
    }
}

#[test]
fn events_report_every_change_of_blob_files() {
    let recorder = Arc::new(EventRecorder::default());
    let disk = SimFs::new(SimOptions::default());
    let env = Env::for_tests(disk.clone(), 1);
    let db = Db::open(&env, "db", options(&recorder)).unwrap();
    db.create_family("more", separating()).unwrap();
    let mut reported = ReportedFiles::default();
    let apply = |reported: &mut ReportedFiles| {
        // Jobs remove files.
        while env.jobs().step() {}
        db.wait_for_listeners();
        reported.apply(&env, std::mem::take(&mut *recorder.0.lock()));
    };
    for n in 0..20 {
        round(&db, n);
        apply(&mut reported);
        reported.expect(&db);
    }
    assert!(reported.collections > 2 && !reported.deleted.is_empty());
    let known = [BlobFileReason::Gc, BlobFileReason::Flush];
    assert!(
        known.iter().all(|r| reported.reasons.contains_key(r)),
        "{:?}",
        reported.reasons
    );
    // A file cannot be read: the event of the end has the reason.
    let of_more = db.blob_files();
    let bad = of_more.iter().max_by_key(|f| f.live_records()).unwrap();
    let path = std::path::Path::new("db").join(&bad.name);
    for at in (100..bad.meta.data_end).step_by(90) {
        disk.flip_bit(&path, at, 3).unwrap();
    }
    let more = db.family("more").unwrap();
    for key in 0..50u64 {
        let (f, key) = (db.default_family(), key.to_be_bytes());
        db.delete(&f, &key, &FREE).unwrap();
        db.delete(&more, &key, &FREE).unwrap();
    }
    db.flush().unwrap();
    let mut failed = 0;
    for f in [&db.default_family(), &more] {
        failed += u64::from(db.compact_range(f, None, None).is_err());
    }
    failed += u64::from(db.wait_idle().is_err());
    apply(&mut reported);
    assert!(
        failed > 0 && reported.failed > 0,
        "{failed} {}",
        reported.failed
    );
    // A dropped family takes along the files that have no other family's values.
    db.drop_family(&more).unwrap();
    let _ = db.wait_idle();
    apply(&mut reported);
    reported.expect(&db);
    db.close().unwrap();
}

#[test]
fn events_report_the_blob_files_of_a_merge() {
    let recorder = Arc::new(EventRecorder::default());
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let mut inline = options(&recorder);
    inline.default_family.min_blob_size = None;
    let db = Db::open(&env, "db", inline).unwrap();
    round(&db, 0);
    db.close().unwrap();
    let db = Db::open(&env, "db", options(&recorder)).unwrap();
    let force = CompactOptions {
        bottommost: Bottommost::Force,
        ..CompactOptions::default()
    };
    db.compact(&db.default_family(), &force).unwrap();
    db.wait_for_listeners();
    let mut reported = ReportedFiles::default();
    reported.apply(&env, std::mem::take(&mut *recorder.0.lock()));
    reported.expect(&db);
    assert_eq!(
        reported.reasons.keys().collect::<Vec<_>>(),
        [&BlobFileReason::Compaction]
    );
    db.close().unwrap();
}

#[test]
fn blob_files_record_their_creation_time() {
    let manual_clock = ManualClock::new(NOW);
    let disk = SimFs::new(SimOptions::default());
    let env = EnvBuilder::for_tests(disk.clone(), 1)
        .clock(Clock::manual(manual_clock.clone()))
        .build();
    let recorder = Arc::new(EventRecorder::default());
    let mut db = Db::open(&env, "db", options(&recorder)).unwrap();
    let mut made: BTreeMap<u64, u64> = BTreeMap::new();
    for n in 0..12u64 {
        if n == 5 {
            // The store opens again, and begins a new manifest.
            db.close().unwrap();
            db = Db::open(&env, "db", options(&recorder)).unwrap();
        }
        manual_clock.advance(Duration::from_secs(60));
        round(&db, n);
        for f in db.blob_files() {
            let since = made.entry(f.number).or_insert(NOW + 60_000 * (n + 1));
            assert_eq!(f.made_ms, Some(*since), "{} in round {n}", f.name);
        }
    }
    assert!(made.len() > 5);
    // Files that recovery writes have a time as well.
    let f = db.default_family();
    db.put(&f, b"late", &[1; 5000], &WriteOptions::SYNC)
        .unwrap();
    let env = EnvBuilder::for_tests(disk.crash(CrashPolicy::NothingUnsynced, 1), 1)
        .clock(Clock::manual(manual_clock))
        .build();
    let again = Db::open(&env, "db", options(&recorder)).unwrap();
    let late = again
        .blob_files()
        .into_iter()
        .max_by_key(|f| f.number)
        .unwrap();
    assert!(!made.contains_key(&late.number));
    assert_eq!(late.made_ms, Some(NOW + 12 * 60_000));
    again.close().unwrap();
}
