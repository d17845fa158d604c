//! Writes that depend on what was read: no update is lost, wherever the newer entry is, and a batch
//! that is refused leaves nothing.

use super::prelude::*;
use crate::TreeOptions;
use basalt_env::Random;
use basalt_kv::merge::AddU64;
use basalt_sim::campaign::scale;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimOptions, When};
use std::collections::BTreeMap;

const FREE: WriteOptions = WriteOptions::UNSYNCED;

fn opened() -> (Env, Db) {
    opened_in(None)
}

/// Opens a store whose default family is in pages, or in levels.
fn opened_in(pages: Option<TreeOptions>) -> (Env, Db) {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let options = Options::default().default_family(FamilyOptions::default().pages(pages));
    let db = Db::open(&env, "db", options).unwrap();
    (env, db)
}

fn get(db: &Db, family: &Family, key: &[u8]) -> Option<Vec<u8>> {
    let value = db.get(family, key, &ReadOptions::default());
    value.unwrap().map(|v| v.to_vec())
}

fn value(family: &Family, key: &[u8], value: &[u8]) -> WriteBatch {
    let mut b = WriteBatch::new();
    b.put(family, key, value).unwrap();
    b
}

/// Writes `a` if `key` is unchanged since `since`.
fn write_if(db: &Db, key: &[u8], since: SeqNo) -> Result<SeqNo> {
    let f = db.default_family();
    let checks = [Precondition::unchanged(&f, key, since)];
    db.write_if(value(&f, b"a", b"written"), &checks, &FREE)
}

fn refused(result: Result<SeqNo>) -> String {
    let e = result.expect_err("the key was changed");
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    assert!(!e.retryable(), "the same call fails again");
    e.to_string()
}

#[test]
fn a_change_of_any_kind_is_a_conflict_and_nothing_is_written() {
    for pages in [None, Some(TreeOptions::default())] {
        changes_are_conflicts(pages);
    }
}

fn changes_are_conflicts(pages: Option<TreeOptions>) {
    let (_env, db) = opened_in(pages.clone());
    let counters = FamilyOptions {
        merge_operator: Some(std::sync::Arc::new(AddU64)),
        pages,
        ..FamilyOptions::default()
    };
    let counters = db.create_family("counters", counters).unwrap();
    let f = db.default_family();
    let one = 1u64.to_le_bytes();
    type Change<'a> = (&'a str, &'a Family, &'a dyn Fn() -> SeqNo);
    let changes: [Change<'_>; 6] = [
        ("put", &f, &|| db.put(&f, b"key", b"2", &FREE).unwrap()),
        ("delete", &f, &|| db.delete(&f, b"key", &FREE).unwrap()),
        ("delete again", &f, &|| {
            db.delete(&f, b"key", &FREE).unwrap()
        }),
        ("range", &f, &|| {
            db.delete_range(&f, b"k", b"l", &FREE).unwrap()
        }),
        ("merge", &counters, &|| {
            db.merge(&counters, b"key", &one, &FREE).unwrap()
        }),
        ("ingest", &f, &|| {
            let mut table = db.prepare(&f).unwrap();
            table.add(b"key", b"3").unwrap();
            db.ingest(&[table.finish().unwrap()]).unwrap()
        }),
    ];
    for flushed in [false, true] {
        for (name, family, change) in &changes {
            let since = db.snapshot().seq();
            let unchanged = [Precondition::unchanged(family, b"key", since)];
            db.write_if(value(family, b"other", b"1"), &unchanged, &FREE)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            let seq = change();
            if flushed {
                db.flush().unwrap();
            }
            let options = ReadOptions::default();
            let latest = db.latest_seq(family, b"key", &options);
            assert_eq!(latest.unwrap(), Some(seq), "{name}");
            let e = refused(db.write_if(value(family, b"b", b"1"), &unchanged, &FREE));
            let names = [format!("{:?}", "key"), format!("sequence number {seq},")];
            assert!(names.iter().all(|n| e.contains(n)), "{name}: {e}");
            assert_eq!(get(&db, family, b"b"), None, "{name}");
            let unchanged = [Precondition::unchanged(family, b"key", seq)];
            db.write_if(WriteBatch::new(), &unchanged, &FREE)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
    // All of several must hold, and a submitted batch is refused by its ticket.
    let since = db.snapshot().seq();
    db.put(&f, b"second", b"", &FREE).unwrap();
    let both = [
        Precondition::unchanged(&f, b"first", since),
        Precondition::unchanged(&f, b"second", since),
    ];
    let ticket = db.submit_if(value(&f, b"b", b"1"), &both, &FREE);
    assert!(refused(ticket.wait()).contains("second"));
    let ticket = db.submit_if(value(&f, b"b", b"1"), &both[..1], &FREE);
    ticket.wait().unwrap();
    assert_eq!(get(&db, &f, b"b"), Some(b"1".to_vec()));
}

/// Each flush counted as a change of all keys in pages, so every longer read, change and write of a
/// key began again.
#[test]
fn pages_know_the_changes_of_the_last_flushes() {
    let (_env, db) = opened_in(Some(TreeOptions::default()));
    let f = db.default_family();
    db.put(&f, b"other", b"", &FREE).unwrap();
    db.flush().unwrap();
    // The family begins to keep changes.
    write_if(&db, b"key", db.snapshot().seq()).unwrap();
    let since = db.snapshot().seq();
    for n in 0..page_changes::KEPT_FLUSHES {
        db.put(&f, b"other", &n.to_be_bytes(), &FREE).unwrap();
        db.flush().unwrap();
        write_if(&db, b"key", since).unwrap();
        refused(write_if(&db, b"other", since));
        let newest = db.latest_seq(&f, b"other", &ReadOptions::default());
        write_if(&db, b"other", newest.unwrap().unwrap()).unwrap();
    }
    // The changes of the first flush are forgotten.
    db.put(&f, b"other", b"", &FREE).unwrap();
    db.flush().unwrap();
    let e = refused(write_if(&db, b"key", since));
    assert!(e.contains("may have been changed"), "{e}");
    // As many flushes of other families make them be forgotten, too.
    let since = db.snapshot().seq();
    let levels = db
        .create_family("levels", FamilyOptions::default())
        .unwrap();
    let unchanged = [Precondition::unchanged(&f, b"key", since)];
    for _ in 0..=2 * page_changes::KEPT_FLUSHES {
        db.put(&levels, b"key", b"", &FREE).unwrap();
        db.flush().unwrap();
        db.write_if(WriteBatch::new(), &unchanged, &FREE).unwrap();
    }
    let view = db.engine().tree.view();
    assert!(!view.pages[&0].changes.has_old(u64::MAX));
}

/// A batch took any number of preconditions, which the commit leader checked while all writers
/// waited. And no counter said how often batches were refused.
#[test]
fn preconditions_are_bounded_and_conflicts_are_counted() {
    let (env, db) = opened();
    let f = db.default_family();
    let seq = db.put(&f, b"key", b"1", &FREE).unwrap();
    let many = vec![Precondition::unchanged(&f, b"key", seq); MAX_PRECONDITIONS + 1];
    for ticket in [false, true] {
        let batch = value(&f, b"a", b"1");
        let e = match ticket {
            false => db.write_if(batch, &many, &FREE).unwrap_err(),
            true => db.submit_if(batch, &many, &FREE).wait().unwrap_err(),
        };
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        let text = e.to_string();
        assert!(text.contains("65537") && text.contains("65536"), "{e}");
    }
    assert_eq!(get(&db, &f, b"a"), None);
    db.write_if(value(&f, b"a", b"1"), &many[1..], &FREE)
        .unwrap();
    assert_eq!(db.stats().conflicts, 0);
    refused(write_if(&db, b"key", seq - 1));
    // This batch is refused by the commit leader: the key changes after the first check.
    let unchanged = [Precondition::unchanged(&f, b"other", db.snapshot().seq())];
    assert!(db.engine().writes.queue().lock().begin_lead());
    let first = db.submit(value(&f, b"other", b"1"), &FREE);
    let second = db.submit_if(value(&f, b"a", b"2"), &unchanged, &FREE);
    db.engine().lead_group(None, throttle::WaitMode::Wait);
    while env.jobs().step() {}
    first.wait().unwrap();
    refused(second.wait());
    assert_eq!(db.stats().conflicts, 2);
    let text = env.metrics().prometheus();
    assert!(
        text.contains("basalt_conflicts_total{store=\"db\"} 2\n"),
        "{text}"
    );
    db.close().unwrap();
}

/// Opens a store whose jobs run only when a thread steps them.
fn stepped_store() -> Db {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .seed(1)
        .stepped()
        .build();
    Db::open(&env, "db", Options::default()).unwrap()
}

/// Batches that were submitted before, and wait in the same queue, are visible to the check.
#[test]
fn a_batch_is_checked_after_all_that_were_submitted_before_it() {
    let db = stepped_store();
    let f = db.default_family();
    let since = db.snapshot().seq();
    let unchanged = [Precondition::unchanged(&f, b"key", since)];
    let tickets: Vec<Ticket> = vec![
        db.submit(value(&f, b"other", b"1"), &FREE),
        db.submit_if(value(&f, b"key", b"first"), &unchanged, &FREE),
        db.submit_if(value(&f, b"key", b"second"), &unchanged, &FREE),
        db.submit(value(&f, b"other", b"2"), &FREE),
    ];
    let results: Vec<bool> = (tickets.into_iter()).map(|t| t.wait().is_ok()).collect();
    assert_eq!(results, [true, true, false, true]);
    assert_eq!(get(&db, &f, b"key"), Some(b"first".to_vec()));
    assert_eq!(get(&db, &f, b"other"), Some(b"2".to_vec()));
}

/// Batches with preconditions were queued before a write, each a commit group of its own. The
/// writer led only the first of these groups, and then slept until the commit lane led the others.
/// Where jobs are stepped, the lane has no thread, and the write never returned.
#[test]
fn a_writer_leads_every_group_before_its_own() {
    let db = stepped_store();
    let f = db.default_family();
    let since = db.snapshot().seq();
    let tickets = [b"a", b"b", b"c"].map(|key| {
        let unchanged = [Precondition::unchanged(&f, key, since)];
        db.submit_if(value(&f, key, b"1"), &unchanged, &FREE)
    });
    db.put(&f, b"last", b"2", &FREE).unwrap();
    for ticket in tickets {
        assert!(matches!(ticket.try_result(), Some(Ok(_))));
    }
    assert_eq!(get(&db, &f, b"last"), Some(b"2".to_vec()));
}

/// A compaction drops the last entry of a deleted key: the tree does not show that it was changed.
#[test]
fn a_deleted_key_stays_changed_when_its_tombstone_is_gone() {
    let (env, db) = opened();
    let f = db.default_family();
    db.put(&f, b"key", b"1", &FREE).unwrap();
    let since = db.snapshot().seq();
    db.delete(&f, b"key", &FREE).unwrap();
    db.compact_range(&f, None, None).unwrap();
    let options = ReadOptions::default();
    let latest = db.latest_seq(&f, b"key", &options);
    assert_eq!(latest.unwrap(), None, "it is gone");
    assert!(refused(write_if(&db, b"key", since)).contains("may have been deleted"));
    let since = db.snapshot().seq();
    write_if(&db, b"key", since).unwrap();
    // A new opening does not know when earlier compactions dropped which tombstones.
    db.delete(&f, b"key", &FREE).unwrap();
    db.compact_range(&f, None, None).unwrap();
    db.close().unwrap();
    let db = Db::open(&env, "db", Options::default()).unwrap();
    refused(write_if(&db, b"key", since));
    write_if(&db, b"key", db.snapshot().seq()).unwrap();
}

/// A compaction drops the newest tombstone of a key and keeps an older tombstone over a range.
#[test]
fn an_older_tombstone_does_not_stand_for_a_newer_one_that_was_dropped() {
    let (_env, db) = opened();
    let f = db.default_family();
    db.put(&f, b"other", b"1", &FREE).unwrap();
    let old = db.snapshot();
    db.delete_range(&f, b"a", b"z", &FREE).unwrap();
    db.put(&f, b"key", b"1", &FREE).unwrap();
    let since = db.snapshot().seq();
    let deleted = db.delete(&f, b"key", &FREE).unwrap();
    db.compact_range(&f, None, None).unwrap();
    let latest = db.latest_seq(&f, b"key", &ReadOptions::default()).unwrap();
    assert!(
        latest.is_some_and(|seq| seq < since),
        "{latest:?}, deleted at {deleted}"
    );
    assert!(refused(write_if(&db, b"key", since)).contains("may have been deleted"));
    write_if(&db, b"key", db.snapshot().seq()).unwrap();
    drop(old);
    // The same with tombstones of the key alone, one for each of two snapshots.
    db.put(&f, b"key", b"1", &FREE).unwrap();
    let older = db.snapshot();
    db.delete(&f, b"key", &FREE).unwrap();
    let newer = db.snapshot();
    db.put(&f, b"key", b"2", &FREE).unwrap();
    let since = db.snapshot().seq();
    db.delete(&f, b"key", &FREE).unwrap();
    db.compact_range(&f, None, None).unwrap();
    let latest = db.latest_seq(&f, b"key", &ReadOptions::default()).unwrap();
    assert!(latest.is_some_and(|seq| seq < since), "{latest:?}");
    assert!(refused(write_if(&db, b"key", since)).contains("may have been deleted"));
    drop((older, newer));
}

/// An empty batch returns a number that a precondition may name, also after a failed append.
#[test]
fn the_number_of_an_empty_batch_is_visible() {
    let sim = SimFs::new(SimOptions::default());
    let faults = FaultFs::new(sim, 1);
    let env = Env::for_tests(faults.clone(), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    db.put(&f, b"key", b"1", &FREE).unwrap();
    faults.inject(Fault {
        op: Some(OpKind::Append),
        path: ".log".into(),
        when: When::Nth(1),
        kind: FaultKind::Eio,
    });
    assert!(db.put(&f, b"key", b"2", &WriteOptions::SYNC).is_err());
    let empty = db.write(WriteBatch::new(), &WriteOptions::SYNC).unwrap();
    assert_eq!(empty, db.snapshot().seq());
    write_if(&db, b"other", empty).unwrap();
}

#[test]
fn what_cannot_be_checked_is_refused() {
    let (env, db) = opened();
    let f = db.default_family();
    let e = write_if(&db, &vec![0; basalt_kv::MAX_KEY_LEN + 1], 0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    let e = write_if(&db, b"key", db.snapshot().seq() + 1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    let gone = db.create_family("gone", FamilyOptions::default()).unwrap();
    db.drop_family(&gone).unwrap();
    let check = [Precondition::unchanged(&gone, b"key", 0)];
    let e = db.write_if(WriteBatch::new(), &check, &FREE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    let other = Db::open(&env, "other", Options::default()).unwrap();
    let check = [Precondition::unchanged(&f, b"key", 0)];
    let e = other
        .write_if(WriteBatch::new(), &check, &FREE)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
}

/// Random writes, flushes and compactions beside a map of what changed when. A changed key is
/// always a conflict. An unchanged one never is, unless it is absent and a compaction may have
/// dropped its tombstone.
#[test]
fn preconditions_agree_with_a_map() {
    let (mut conflicts, mut written, mut cautious) = (0, 0, 0);
    for seed in basalt_sim::campaign::cases(0..300 * scale()) {
        let _repeat = basalt_sim::repeat!(preconditions_agree_with_a_map, "BASALT_CASE={seed}");
        let r = Random::from_seed(seed);
        let env = Env::for_tests(SimFs::new(SimOptions::default()), seed);
        let options = Options {
            default_family: FamilyOptions {
                min_blob_size: r.one_in(2).then_some(100),
                // Small enough for several levels with tables of few keys.
                table_bytes: 4096,
                base_level_bytes: 4096,
                ..FamilyOptions::default()
            },
            ..Options::default()
        };
        let mut db = Db::open(&env, "db", options.clone()).unwrap();
        let mut f = db.default_family();
        // What each key is, and the number of its last change.
        let mut model: BTreeMap<u8, (Option<u8>, SeqNo)> = BTreeMap::new();
        let mut moments: Vec<SeqNo> = vec![0];
        // Held snapshots make compactions keep older versions, and drop newer tombstones.
        let mut held: Vec<Snapshot> = Vec::new();
        for n in 0..150u8 {
            let key = r.below(12) as u8;
            match r.below(14) {
                0..=3 => {
                    let long = [n; 150];
                    let value = if r.one_in(2) { &long[..] } else { &long[..1] };
                    let seq = db.put(&f, &[key], value, &FREE).unwrap();
                    model.insert(key, (Some(n), seq));
                }
                4..=5 => {
                    let seq = db.delete(&f, &[key], &FREE).unwrap();
                    model.insert(key, (None, seq));
                }
                6 => {
                    let to = key + 1 + r.below(4) as u8;
                    let seq = db.delete_range(&f, &[key], &[to], &FREE).unwrap();
                    (key..to).for_each(|key| {
                        model.insert(key, (None, seq));
                    });
                }
                7 => db.flush().unwrap(),
                8 if r.one_in(3) => db.compact_range(&f, None, None).unwrap(),
                8 => while env.jobs().step() {},
                9 if r.one_in(8) => {
                    held.clear();
                    db.close().unwrap();
                    db = Db::open(&env, "db", options.clone()).unwrap();
                    f = db.default_family();
                }
                9 => {
                    let snapshot = db.snapshot();
                    moments.push(snapshot.seq());
                    if r.one_in(2) {
                        held.push(snapshot);
                    }
                    if held.len() > 2 {
                        held.remove(r.below(3) as usize);
                    }
                }
                _ => {
                    let since = match r.one_in(2) {
                        true => moments[r.below(moments.len() as u64) as usize],
                        false => db.snapshot().seq(),
                    };
                    let (shown, changed) = model.get(&key).copied().unwrap_or((None, 0));
                    let name = [key];
                    let check = [Precondition::unchanged(&f, &name, since)];
                    let result = db.write_if(value(&f, &[key], &[n]), &check, &FREE);
                    let at = format!("seed={seed} n={n}: key {key} changed at {changed}");
                    match result {
                        Ok(seq) => {
                            assert!(changed <= since, "{at}, and passed since {since}");
                            model.insert(key, (Some(n), seq));
                            written += 1;
                        }
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::Conflict, "{at}: {e}");
                            if changed <= since {
                                assert!(shown.is_none(), "{at}, and failed since {since}");
                                cautious += 1;
                            }
                            conflicts += 1;
                        }
                    }
                }
            }
            let (shown, changed) = model.get(&key).copied().unwrap_or((None, 0));
            let got = get(&db, &f, &[key]).map(|v| v[0]);
            assert_eq!(got, shown, "seed={seed} n={n}");
            let latest = db.latest_seq(&f, &[key], &ReadOptions::default()).unwrap();
            match latest {
                // Of several tombstones, compactions may keep an older one.
                Some(seq) if shown.is_none() => assert!(seq <= changed, "seed={seed} n={n}"),
                Some(seq) => assert_eq!(seq, changed, "seed={seed} n={n}"),
                None => assert!(shown.is_none(), "seed={seed} n={n}"),
            }
        }
    }
    println!("preconditions: conflicts={conflicts} written={written} cautious={cautious}");
    assert!(
        basalt_sim::campaign::case().is_some()
            || conflicts > scale().floor(4000) && written > scale().floor(6000),
        "{conflicts}, {written}"
    );
}

/// Each of several threads reads a counter, and writes it one higher if it is unchanged.
#[test]
fn threads_that_increment_one_counter_lose_no_update() {
    const THREADS: u64 = 4;
    let each = 100 * scale();
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .seed(1)
        .threads(2)
        .build();
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    let increment = |n: u64| {
        loop {
            let snapshot = db.snapshot();
            let since = snapshot.seq();
            let options = ReadOptions {
                snapshot: Some(snapshot),
                ..ReadOptions::default()
            };
            let now = db.get(&f, b"counter", &options).unwrap();
            let now = now.map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()));
            let next = value(&f, b"counter", &(now + 1).to_le_bytes());
            let check = [Precondition::unchanged(&f, b"counter", since)];
            let done = match n % 2 {
                0 => db.write_if(next, &check, &FREE),
                _ => db.submit_if(next, &check, &FREE).wait(),
            };
            match done {
                Ok(_) => return,
                Err(e) => assert_eq!(e.kind(), ErrorKind::Conflict, "{e}"),
            }
        }
    };
    basalt_env::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..each).for_each(increment));
        }
        // What shares the queue changes nothing of that.
        scope.spawn(|| {
            for n in 0..each {
                db.put(&f, &n.to_be_bytes(), b"", &FREE).unwrap();
                if n % 32 == 0 {
                    db.flush().unwrap();
                }
            }
        });
    });
    let end = get(&db, &f, b"counter").unwrap();
    assert_eq!(end, (THREADS * each).to_le_bytes());
    db.close().unwrap();
}

/// A refused batch leaves no trace in the log: what a recovery replays was committed.
#[test]
fn a_recovery_replays_no_batch_that_was_refused() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::for_tests(sim.clone(), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    let since = db.snapshot().seq();
    let check = [Precondition::unchanged(&f, b"key", since)];
    db.write_if(value(&f, b"key", b"first"), &check, &WriteOptions::SYNC)
        .unwrap();
    refused(db.write_if(value(&f, b"key", b"second"), &check, &WriteOptions::SYNC));
    let crashed = sim.crash(CrashPolicy::NothingUnsynced, 1);
    let env = Env::for_tests(crashed, 2);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    assert_eq!(
        get(&db, &db.default_family(), b"key"),
        Some(b"first".to_vec())
    );
}
