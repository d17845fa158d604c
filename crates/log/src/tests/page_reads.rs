//! Reads of pages of the index.

use super::*;
use crate::index::{EntryPlace, PAGE};
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, When};

/// A read of a page brings the log's pages around it into the cache. So reads by LSN, which meet
/// all pages for the first time, cost few device reads beyond those of the records.
#[test]
fn a_read_of_a_page_brings_those_around_it() {
    const RECORDS: u64 = 4000;
    let fs = disk(1);
    let data = |lsn: u64| lsn.to_be_bytes();
    let env = super::env(&fs);
    let engine = LogEngine::open(&env, DIR, options().file_bytes(1 << 20)).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let other = engine.create("b", LogOptions::default()).unwrap();
    for lsn in 1..=RECORDS {
        log.append(lsn, &data(lsn), UNSYNCED).unwrap();
        if lsn % 3 == 0 {
            other.append(lsn, &data(lsn), UNSYNCED).unwrap();
        }
        while env.jobs().step() {}
    }
    engine.close().unwrap();
    let reopened = || {
        let env = super::env(&fs);
        let engine = LogEngine::open(&env, DIR, options().file_bytes(1 << 20)).unwrap();
        (env, engine.log("a").unwrap(), engine)
    };
    let (env, log, engine) = reopened();
    let pages = engine.stats().index_pages;
    let before = env.fs().stats().reads;
    // Steps of a number that shares no factor with the number of records visit each record once.
    let shuffled = |n: u64| 1 + n * 1237 % RECORDS;
    for lsn in (0..RECORDS).map(shuffled) {
        assert_eq!(log.read(lsn).unwrap().unwrap(), &data(lsn)[..]);
    }
    let more = env.fs().stats().reads - before - RECORDS;
    assert!(
        pages > 60 && (1..=pages / 8).contains(&more),
        "{more} of {pages}"
    );

    // A damaged page costs its own records alone, and its error names it.
    let EntryPlace::OnPage(page) = log.state().lock().index.find(RECORDS / 2).unwrap() else {
        panic!("the record is in memory");
    };
    let meta = Path::new(DIR).join(format!("{:06}.meta", page.file));
    fs.flip_bit(&meta, page.end() - 2, 1).unwrap();
    drop((log, engine));
    let (_env, log, _engine) = reopened();
    let damaged = (0..RECORDS)
        .map(shuffled)
        .filter(|lsn| match log.read(*lsn) {
            Ok(found) => {
                assert_eq!(found.unwrap(), &data(*lsn)[..]);
                false
            }
            Err(e) => {
                let named = format!("{} at offset {}", meta.display(), page.offset);
                assert!(e.to_string().contains(&named), "{e}");
                true
            }
        });
    assert!((2..=PAGE as usize).contains(&damaged.count()));
}

/// Regression test: bytes of a page went to the cache before they were verified. One wrong bit in
/// one read was then the error of all later reads.
#[test]
fn a_wrong_bit_in_one_read_of_a_page_does_not_stay() {
    let fs = disk(1);
    let env = super::env(&fs);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=300u64 {
        log.append(lsn, b"old", SYNC).unwrap();
        while env.jobs().step() {}
    }
    engine.close().unwrap();
    for seed in 0..20 {
        let faulty = FaultFs::new(fs.clone(), seed);
        let env = Env::for_tests(faulty.clone(), 9);
        let engine = LogEngine::open_read_only(&env, DIR, options()).unwrap();
        let log = engine.log("a").unwrap();
        let rule = faulty.inject(Fault {
            op: Some(OpKind::Read),
            path: ".meta".into(),
            when: When::Nth(1),
            kind: FaultKind::BitFlip,
        });
        let _ = match seed % 2 {
            0 => log.read(5),
            _ => log.read_many(&[5]).remove(0),
        };
        assert!(faulty.seen(rule) > 0);
        faulty.clear();
        // The wrong bit may be in another page than that of the record.
        for lsn in 1..=200 {
            assert_eq!(log.read(lsn).unwrap().as_deref(), Some(&b"old"[..]));
        }
    }
}

/// A damaged page stays where it is, and the metalog's other old files are compacted.
#[test]
fn a_damaged_page_keeps_no_other_file_from_a_compaction() {
    let fs = disk(1);
    let env = super::env(&fs);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=6000u64 {
        log.append(lsn, b"x", UNSYNCED).unwrap();
        while env.jobs().step() {}
    }
    // One record of each page stays.
    for first in (1..6000).step_by(50) {
        log.remove(first..=first + 47).unwrap();
    }
    let e = engine.engine();
    e.checkpoint().unwrap();
    let replayed_from = e.head.lock().meta.file;
    let old = || {
        let all = e.logs.all().into_iter();
        let old = all.filter(|f| f.role == Role::Meta && f.number < replayed_from);
        let live =
            |f: &crate::physical::ReadableFile| f.live.load(std::sync::atomic::Ordering::SeqCst);
        old.filter(|f| live(f) > 0)
            .map(|f| f.number)
            .collect::<Vec<_>>()
    };
    let before = old();
    assert!(before.len() > 2, "{before:?}");
    let pages = log.state().lock().index.pages_in(before[0]);
    let meta = Path::new(DIR).join(format!("{:06}.meta", before[0]));
    fs.flip_bit(&meta, pages[0].end() - 2, 1).unwrap();
    env.cache().remove(basalt_env::CacheKey {
        file: e.logs.get(before[0]).unwrap().file_id,
        offset: pages[0].offset,
    });
    e.compact_metalog().unwrap();
    let after = old();
    assert!(
        after.contains(&before[0]) && after.len() < before.len(),
        "{before:?} {after:?}"
    );
}
