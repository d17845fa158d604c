//! Values in blob files: they are read ahead of scans, together for calls that want many, and from
//! the cache when it has them. The tests count device reads.

use crate::watched::{Batch, Watched};
use basalt_env::MemoryKind;
use basalt_fs::{FileSystem, Intent};
use basalt_lsm::{Db, ErrorKind, Family, Options, ReadOptions, WriteOptions};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

const UNSYNCED: WriteOptions = WriteOptions::UNSYNCED;
const KEYS: u32 = 600;
const LEN: usize = 3000;

fn key(n: u32) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    let mut v = n.to_string().into_bytes();
    v.resize(LEN, n as u8);
    v
}

fn options() -> Options {
    let mut options = Options::default();
    options.default_family.min_blob_size = Some(1000);
    options
}

/// Makes keys with values in blob files. No value is in a cache; the blocks of the tables and the
/// indexes of the blob files are.
fn filled(cache_bytes: u64) -> (Arc<Watched>, Db, Family) {
    let disk = Watched::new();
    let db = Db::open(&disk.env(cache_bytes), "db", options()).expect("open");
    let f = db.default_family();
    for part in 0..3 {
        for n in (0..KEYS).filter(|n| n % 3 == part) {
            db.put(&f, &key(n), &value(n), &UNSYNCED).expect("put");
        }
        db.flush().expect("flush");
    }
    db.close().expect("close");
    let db = Db::open(&disk.env(cache_bytes), "db", options()).expect("open");
    let f = db.default_family();
    let keys_only = ReadOptions::default().keys_only(true);
    let mut it = db.iter(&f, &keys_only).expect("iter");
    it.seek_to_first().expect("seek");
    while it.valid() {
        it.next().expect("next");
    }
    // One value of each file brings its index pages into the cache.
    let uncached = ReadOptions::default();
    for n in 0..3 {
        db.get(&f, &key(n), &uncached).expect("get");
    }
    (disk, db, f)
}

fn uncached() -> ReadOptions {
    ReadOptions::default().fill_cache(false)
}

fn values_of(batches: &[Batch]) -> usize {
    batches.iter().map(|b| b.reads).sum()
}

#[test]
fn long_scans_read_values_in_batches_and_short_ones_do_not() {
    for (fill_cache, up) in [(true, true), (true, false), (false, true), (false, false)] {
        let (disk, db, f) = filled(64 << 20);
        let read = ReadOptions::default().fill_cache(fill_cache);
        let mut it = db.iter(&f, &read).expect("iter");
        let at = |i: u32| if up { 10 + i } else { KEYS - 10 - i };
        let values_read = || db.stats().blob_reads.reads as usize;
        let before = values_read();
        let (sought, alone, batches) = disk.watch(|| match up {
            true => it.seek(&key(at(0))),
            false => it.seek_for_prev(&key(at(0))),
        });
        sought.expect("seek");
        assert_eq!((it.key(), it.value()), (&key(at(0))[..], &value(at(0))[..]));
        assert_eq!((alone, batches.len()), (1, 0), "one value for a seek");
        let ((), alone, batches) = disk.watch(|| {
            match up {
                true => it.next(),
                false => it.prev(),
            }
            .expect("step");
        });
        assert_eq!((alone, batches.len()), (1, 0), "one value for a step");
        let (mut shown, mut rounds, mut reads) = (2usize, 0, 0);
        let (mut most, mut read_values) = (0, values_read() - before);
        assert_eq!(read_values, 2);
        while shown < 500 {
            let (moved, alone, batches) = disk.watch(|| match up {
                true => it.next(),
                false => it.prev(),
            });
            moved.expect("step");
            let n = at(shown as u32);
            assert_eq!((it.key(), it.value()), (&key(n)[..], &value(n)[..]));
            rounds += alone as usize + batches.len();
            reads += alone as usize + values_of(&batches);
            let last = std::mem::replace(&mut read_values, values_read() - before);
            most = most.max(read_values - last);
            shown += 1;
            assert!(
                read_values <= 2 * shown,
                "{read_values} values read for {shown}"
            );
        }
        basalt_sim::campaign!(
            "fill_cache={fill_cache} up={up} shown={shown} rounds={rounds} reads={reads} values={read_values} in_a_batch={most}"
        );
        assert!((200..=350).contains(&most), "{most} values in 1 MiB");
        assert!(rounds <= 12, "{rounds} rounds for {shown} values");
        // The values lie side by side in each of three files.
        assert!(
            reads <= 4 * rounds,
            "{reads} reads in {rounds} rounds for {shown} values"
        );
    }
}

#[test]
fn a_scan_can_reverse_inside_a_batch_of_values() {
    let (disk, db, f) = filled(64 << 20);
    let mut it = db.iter(&f, &uncached()).expect("iter");
    it.seek(&key(100)).expect("seek");
    // The walk stops in the middle of a batch and at its ends, again and again.
    let mut n = 100;
    for (steps, up) in [
        (9, true),
        (5, false),
        (40, true),
        (1, false),
        (1, true),
        (33, false),
        (3, true),
    ] {
        for _ in 0..steps {
            match up {
                true => it.next().expect("next"),
                false => it.prev().expect("prev"),
            }
            n = if up { n + 1 } else { n - 1 };
            assert_eq!((it.key(), it.value()), (&key(n)[..], &value(n)[..]));
        }
    }
    // Values that a bound hides are not read.
    let bounded = uncached()
        .lower_bound(Some(key(50)))
        .upper_bound(Some(key(60)));
    let mut it = db.iter(&f, &bounded).expect("iter");
    let before = db.stats().blob_reads.reads;
    let (shown, alone, batches) = disk.watch(|| {
        it.seek_to_first().expect("seek");
        let mut shown = 0;
        while it.valid() {
            assert_eq!(it.value(), value(50 + shown));
            shown += 1;
            it.next().expect("next");
        }
        shown
    });
    assert_eq!(shown, 10);
    assert_eq!(db.stats().blob_reads.reads - before, 10, "{batches:?}");
    // Values side by side are one read.
    assert!(alone as usize + values_of(&batches) <= 10, "{batches:?}");
}

#[test]
fn value_prefetch_resumes_after_a_memory_shortage() {
    let (disk, db, f) = filled(16 << 20);
    let ledger = db.env().ledger().clone();
    let taken = ledger.reserve(MemoryKind::Buffer, ledger.free());
    let mut it = db.iter(&f, &uncached()).expect("iter");
    it.seek(&key(100)).expect("seek");
    for n in 101..150 {
        let (moved, alone, batches) = disk.watch(|| it.next());
        moved.expect("next");
        assert_eq!((it.key(), it.value()), (&key(n)[..], &value(n)[..]));
        assert_eq!(alone as usize + values_of(&batches), 1, "{batches:?}");
    }
    drop(taken);
    let ((), alone, batches) = disk.watch(|| {
        for _ in 0..200 {
            it.next().expect("next");
        }
    });
    assert_eq!((it.key(), it.value()), (&key(349)[..], &value(349)[..]));
    assert!(alone as usize + batches.len() <= 10, "{alone} {batches:?}");
}

/// A damaged value in the middle of a batch that is read ahead: all values before it are shown,
/// from either side.
#[test]
fn a_damaged_value_in_a_batch_fails_at_its_own_entry() {
    let (disk, db, _) = filled(64 << 20);
    db.close().expect("close");
    let wanted = value(200);
    let mut found = 0;
    for entry in disk.list(Path::new("db")).expect("list") {
        let path = Path::new("db").join(&entry.name);
        if !entry.name.ends_with(".blob") && !entry.name.ends_with(".log") {
            continue;
        }
        let file = disk.open(&path).expect("open");
        let mut bytes = file.read(0, file.len() as usize).expect("read").to_vec();
        let Some(at) = bytes.windows(LEN).position(|w| w == wanted) else {
            continue;
        };
        found += 1;
        bytes[at + 1234] ^= 1;
        disk.remove(&path).expect("remove");
        let file = disk.create(&path).expect("create");
        file.append(&[IoSlice::new(&bytes)], Intent::Lazy)
            .expect("append");
        file.sync_all().expect("sync");
    }
    assert_eq!(found, 1);
    let db = Db::open(&disk.env(64 << 20), "db", options()).expect("open");
    let f = db.default_family();
    for up in [true, false] {
        let mut it = db.iter(&f, &ReadOptions::default()).expect("iter");
        let (from, steps) = if up { (150, 50) } else { (250, 50) };
        it.seek(&key(from)).expect("seek");
        for i in 0..steps {
            let n = if up { from + i } else { from - i };
            assert_eq!((it.key(), it.value()), (&key(n)[..], &value(n)[..]));
            let moved = if up { it.next() } else { it.prev() };
            match (i + 1 == steps, moved) {
                (false, moved) => moved.expect("what lies before is shown"),
                (true, moved) => {
                    let e = moved.expect_err("the value is damaged");
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                    assert!(!it.valid());
                }
            }
        }
    }
    let keys: Vec<Vec<u8>> = (190..210).map(key).collect();
    let asked: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&f, &k[..])).collect();
    let many = db.multi_get(&asked, &ReadOptions::default());
    for (n, got) in (190..210).zip(many) {
        match n {
            200 => assert_eq!(got.expect_err("damaged").kind(), ErrorKind::Corruption),
            n => assert_eq!(got.expect("read").as_deref(), Some(&value(n)[..])),
        }
    }
}

#[test]
fn values_of_many_keys_are_read_together_and_within_the_budget() {
    let (disk, db, f) = filled(64 << 20);
    let keys: Vec<Vec<u8>> = (0..150).map(|n| key(n * 4)).collect();
    let asked: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&f, &k[..])).collect();
    let pinned = || db.env().ledger().usage().pinned;
    let before = pinned();
    let (got, alone, batches) = disk.watch(|| db.multi_get(&asked, &uncached()));
    for (i, got) in got.iter().enumerate() {
        let got = got.as_ref().expect("read").as_deref();
        assert_eq!(got, Some(&value(i as u32 * 4)[..]));
    }
    assert_eq!(alone, 0);
    let sizes: Vec<usize> = batches.iter().map(|b| b.reads).collect();
    // One of the values was in the cache.
    assert_eq!(sizes, [63, 64, 22], "{batches:?}");
    assert!(batches.iter().all(|b| b.files == 3), "{batches:?}");
    // Bytes that a reader holds beside the cache are reserved.
    assert!(pinned() - before >= 149 * LEN as u64, "{}", pinned());
    drop(got);
    assert_eq!(pinned(), before);
    // The bound applies before any value is read.
    for budget in [LEN + 100, 10 * LEN, 70 * LEN] {
        let (got, alone, batches) = disk.watch(|| db.multi_get_within(&asked, &uncached(), budget));
        let answered = got.iter().flatten().count();
        let read = alone as usize + values_of(&batches);
        assert_eq!(read + 1, answered, "nothing is read in vain");
        let most = budget / LEN;
        assert!(
            (most.saturating_sub(2).max(1)..=most).contains(&answered),
            "{answered} in {budget}"
        );
    }
    // A value beyond the whole budget is still answered, if it is asked for alone or first.
    let got = db.multi_get_within(&asked, &uncached(), 10);
    assert_eq!(got.iter().flatten().count(), 1);
    assert!(got[0].is_some());
}

#[test]
fn small_values_are_cached_if_fill_cache_is_set() {
    let (disk, db, f) = filled(64 << 20);
    let cached = ReadOptions::default();
    let scan = |read: &ReadOptions| {
        let mut it = db.iter(&f, read).expect("iter");
        it.seek_to_first().expect("seek");
        let mut n = 0;
        while it.valid() {
            assert_eq!(it.value(), value(n));
            n += 1;
            it.next().expect("next");
        }
        assert_eq!(n, KEYS);
    };
    let reads = |run: &dyn Fn()| {
        let ((), alone, batches) = disk.watch(run);
        alone as usize + values_of(&batches)
    };
    // Counts values that were read from the device; those side by side were one read.
    let values = |run: &dyn Fn()| {
        let before = db.stats().blob_reads.reads;
        assert!(reads(run) > 0);
        (db.stats().blob_reads.reads - before) as usize
    };
    assert!(values(&|| scan(&uncached())) >= KEYS as usize - 3);
    assert!(
        values(&|| scan(&uncached())) >= KEYS as usize - 3,
        "not kept"
    );
    assert!(values(&|| scan(&cached)) >= KEYS as usize - 3);
    assert_eq!(reads(&|| scan(&cached)), 0);
    assert_eq!(reads(&|| scan(&uncached())), 0, "what is there is used");
    for n in 0..KEYS {
        let get = || {
            let got = db.get(&f, &key(n), &cached).expect("get");
            assert_eq!(got.as_deref(), Some(&value(n)[..]));
        };
        assert_eq!(reads(&get), 0);
    }
    // A cache does not take a value that would be a large part of it.
    let (disk, db, f) = filled(16 << 10);
    for _ in 0..3 {
        let (got, alone, _) = disk.watch(|| db.get(&f, &key(300), &cached).expect("get"));
        assert_eq!(got.as_deref(), Some(&value(300)[..]));
        assert!(alone >= 1);
    }
}

#[test]
fn a_tailing_cursor_reads_ahead_and_yields_new_writes() {
    let (disk, db, f) = filled(64 << 20);
    let tailing = uncached().tailing(true);
    let mut it = db.iter(&f, &tailing).expect("iter");
    it.seek_to_first().expect("seek");
    let ((), alone, batches) = disk.watch(|| {
        for n in 0..300 {
            assert_eq!((it.key(), it.value()), (&key(n)[..], &value(n)[..]));
            it.next().expect("next");
        }
    });
    assert!(
        alone as usize + batches.len() <= 25,
        "{alone} {batches:?} for 300 values"
    );
    // In the middle of a batch the next key gets another value, the key behind it is deleted, and a
    // new key comes between them.
    db.put(&f, &key(301), b"new", &UNSYNCED).expect("put");
    db.delete(&f, &key(302), &UNSYNCED).expect("delete");
    db.put(&f, b"key000302+", &value(7), &UNSYNCED)
        .expect("put");
    assert_eq!((it.key(), it.value()), (&key(300)[..], &value(300)[..]));
    it.next().expect("next");
    assert_eq!((it.key(), it.value()), (&key(301)[..], &b"new"[..]));
    it.next().expect("next");
    assert_eq!((it.key(), it.value()), (&b"key000302+"[..], &value(7)[..]));
    it.next().expect("next");
    for n in 303..KEYS {
        assert_eq!((it.key(), it.value()), (&key(n)[..], &value(n)[..]));
        it.next().expect("next");
    }
    assert!(!it.valid());
}
