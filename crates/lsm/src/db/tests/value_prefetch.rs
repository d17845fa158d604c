//! Cursors that read values ahead yield the same as cursors that do not: the same entries, errors
//! and pauses, with the same number of skips left.

use super::prelude::*;
use crate::iter::ValuePrefetch;
use basalt_env::{Clock, EnvBuilder, ManualClock, Random};
use basalt_fs::{FileSystem, Intent};
use basalt_kv::merge::Append;
use basalt_sim::{SimFs, SimOptions};
use std::io::IoSlice;
use std::path::Path;
use std::time::Duration;

const NOW: u64 = 1_700_000_000_000;
const FREE: WriteOptions = WriteOptions::UNSYNCED;

fn pick<T: Copy>(r: &Random, from: &[T]) -> T {
    from[r.below(from.len() as u64) as usize]
}

fn key(r: &Random) -> Vec<u8> {
    format!("{:03}", r.below(400)).into_bytes()
}

fn options(r: &Random) -> Options {
    let mut options = Options {
        write_buffer_bytes: 16 << 10,
        ..Options::default()
    };
    let f = &mut options.default_family;
    f.min_blob_size = pick(r, &[Some(1), Some(60)]);
    f.merge_operator = Some(Arc::new(Append::new(*b"|")));
    f.prefix_extractor = r.one_in(3).then_some(crate::Prefixes::Fixed(1));
    f.table_bytes = 2048;
    f.base_level_bytes = 8 << 10;
    options
}

fn fill(db: &Db, env: &Env, r: &Random) {
    let f = db.default_family();
    // Some stretches are deleted whole, others are full.
    for round in 0..r.below(4) + 1 {
        for _ in 0..300 {
            let (k, v) = (key(r), vec![b'a' + round as u8; r.below(200) as usize]);
            let mut batch = WriteBatch::new();
            match r.below(30) {
                0..=3 => batch.delete(&f, &k).unwrap(),
                4 => {
                    let to = format!("{}+", String::from_utf8(key(r)).unwrap());
                    if k < to.clone().into_bytes() && r.one_in(3) {
                        batch.delete_range(&f, &k, to.as_bytes()).unwrap();
                    }
                }
                5..=7 => batch.merge(&f, &k, &v).unwrap(),
                8..=10 => {
                    let at = NOW + r.below(3000);
                    batch.put_ttl(&f, &k, &v, at).unwrap();
                }
                _ => batch.put(&f, &k, &v).unwrap(),
            }
            db.write(batch, &FREE).unwrap();
        }
        if r.one_in(2) {
            db.flush().unwrap();
            while r.one_in(2) && env.jobs().step() {}
        }
    }
    if r.one_in(2) {
        db.flush().unwrap();
        // A long stretch without a live key.
        for n in 100..250 {
            db.delete(&f, format!("{n:03}").as_bytes(), &FREE).unwrap();
        }
    }
}

/// Flips a few bytes of blob files. Returns how many.
fn damage(fs: &SimFs, r: &Random) -> u64 {
    let mut flipped = 0;
    for entry in fs.list(Path::new("db")).unwrap() {
        if !entry.name.ends_with(".blob") {
            continue;
        }
        let path = Path::new("db").join(&entry.name);
        let file = fs.open(&path).unwrap();
        let mut bytes = file.read(0, file.len() as usize).unwrap().to_vec();
        for _ in 0..r.below(3) {
            // The bytes are those of records and not of the index, so that some values stay
            // readable.
            let at = 64 + r.below(bytes.len() as u64 / 2) as usize;
            bytes[at] ^= 1;
            flipped += 1;
        }
        fs.remove(&path).unwrap();
        let file = fs.create(&path).unwrap();
        file.append(&[IoSlice::new(&bytes)], Intent::Lazy).unwrap();
        file.sync_all().unwrap();
    }
    flipped
}

/// Returns the entry of a cursor after a movement, and the skips that are left if they are limited.
fn shown(it: &ValuePrefetch, moved: &Result<()>, budget: bool) -> String {
    let moved = moved.as_ref().map_err(|e| e.to_string());
    match it.valid() {
        true => format!(
            "{moved:?} {:?} {:?} {:?} {:?}",
            it.key().escape_ascii().to_string(),
            it.value(),
            it.expire_at_ms(),
            budget.then(|| it.skips_left())
        ),
        false => format!("{moved:?} {:?}", it.resume_key()),
    }
}

#[test]
fn answers_do_not_depend_on_value_prefetch() {
    let scale = basalt_sim::campaign::scale();
    let (mut moves, mut entries, mut errors, mut pauses, mut cases) = (0, 0, 0, 0, 0);
    let (mut ahead, mut flying) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..60 * scale) {
        let _repeat = basalt_sim::repeat!(
            answers_do_not_depend_on_value_prefetch,
            "BASALT_CASE={seed}"
        );
        cases += 1;
        let r = Random::from_seed(seed);
        let fs = SimFs::new(SimOptions::default());
        let manual_clock = ManualClock::new(NOW);
        let env = EnvBuilder::for_tests(fs.clone(), seed)
            .clock(Clock::manual(manual_clock.clone()))
            .cache_bytes(pick(&r, &[0, 64 << 10, 8 << 20]))
            .build();
        let options = options(&r);
        let db = Db::open(&env, "db", options.clone()).unwrap();
        fill(&db, &env, &r);
        let damaged = r.one_in(2);
        let db = match damaged {
            true => {
                db.flush().unwrap();
                db.close().unwrap();
                damage(&fs, &r);
                Db::open(&env, "db", options.clone()).unwrap()
            }
            false => db,
        };
        let f = db.default_family();
        for _ in 0..6 {
            let mut read = ReadOptions {
                fill_cache: r.one_in(2),
                max_skippable_entries: pick(&r, &[u64::MAX, u64::MAX, 5, 50, 200]),
                ..ReadOptions::default()
            };
            read.lower_bound = r.one_in(3).then(|| key(&r));
            read.upper_bound = r.one_in(3).then(|| key(&r));
            read.prefix_same_as_start =
                options.default_family.prefix_extractor.is_some() && r.one_in(2);
            let (view, seq) = db.engine().read_view(&read).unwrap();
            let mut now = env.clock().wall_ms();
            let make = || db.engine().cursor(&view, seq, &f, &read).unwrap();
            let (mut a, mut b) = (
                make().with_max_batch(pick(&r, &[2, 5, 64])),
                make().with_max_batch(1),
            );
            let (mut way, budget) = (0, read.max_skippable_entries != u64::MAX);
            for _ in 0..150 {
                moves += 1;
                if !r.one_in(12) && way >= 4 && a.valid() {
                    // Both cursors continue as before.
                } else {
                    way = r.below(10);
                }
                if !a.valid() && way >= 4 {
                    way = r.below(4);
                }
                let k = key(&r);
                // A cursor that begins anew may need one more seek, which counts.
                if !budget && r.one_in(40) {
                    now = (now + r.below(700)).saturating_sub(r.below(100));
                    a.set_limits(now, u64::MAX);
                    b.set_limits(now, u64::MAX);
                    let (a, b) = (shown(&a, &Ok(()), budget), shown(&b, &Ok(()), budget));
                    assert_eq!(a, b, "at another time");
                }
                if r.one_in(200) {
                    a.refresh(seq, now, read.max_skippable_entries);
                    b.refresh(seq, now, read.max_skippable_entries);
                    way = way.min(3);
                }
                let go = |it: &mut ValuePrefetch| match way {
                    0 => it.seek_to_first(),
                    1 => it.seek_to_last(),
                    2 => it.seek(&k),
                    3 => it.seek_for_prev(&k),
                    4..=7 => it.next(),
                    _ => it.prev(),
                };
                let (ra, rb) = (go(&mut a), go(&mut b));
                assert_eq!(
                    shown(&a, &ra, budget),
                    shown(&b, &rb, budget),
                    "way {way}, {k:?}"
                );
                entries += u64::from(a.valid());
                errors += u64::from(ra.is_err());
                pauses += u64::from(a.resume_key().is_some());
                ahead += u64::from(a.is_ahead());
                flying += u64::from(a.has_pending_reads());
                if let Err(e) = ra {
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                    assert!(damaged && !a.valid(), "{e}");
                }
            }
        }
        manual_clock.advance(Duration::from_millis(1));
    }
    basalt_sim::campaign!(
        "stores={cases} moves={moves} entries={entries} of_a_run={ahead} others_on_their_way={flying} errors={errors} pauses={pauses}"
    );
    assert!(entries >= cases * 300, "{entries} entries shown");
    assert!(ahead >= cases * 50, "{ahead} of them read ahead");
    assert!(
        flying >= cases * 10,
        "{flying} while others were on their way"
    );
    assert!(errors >= cases / 2, "{errors} errors");
    assert!(pauses >= cases, "{pauses} pauses");
}
