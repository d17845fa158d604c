//! A power cut leaves a prefix that has every acknowledged record.

use super::*;
use basalt_sim::{CrashPolicy, SimSnapshot};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

struct CrashPoint {
    snapshot: SimSnapshot,
    acked: u64,
    synced: u64,
}

/// Writes random groups. After every change of the disk, the test cuts the power in every way and
/// checks what is read back.
fn crash_run(seed: u64, groups: u64) -> u64 {
    let ((sector, unit), recycled) = (units(seed), seed % 4 < 2);
    let r = Random::from_seed(seed);
    let (fs, path) = (disk(sector, seed), Path::new("1.log"));
    let file = fresh_log(&fs, path, unit, 64 << 10, recycled);
    let crash_points: Arc<Mutex<Vec<CrashPoint>>> = Arc::default();
    let (acked, synced) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (m, a, s) = (crash_points.clone(), acked.clone(), synced.clone());
    fs.on_mutation(move |snapshot| {
        m.lock().push(CrashPoint {
            snapshot,
            acked: a.load(SeqCst),
            synced: s.load(SeqCst),
        });
    });
    let mut w = RecordWriter::create(file, path, &file_header(unit, 5, 1)).unwrap();
    let mut all: Vec<Vec<u8>> = Vec::new();
    for _ in 0..groups {
        // Some records are written from their own memory if they are not synced.
        let group = small_group(&r, if r.one_in(2) { 3000 } else { 9000 });
        let sync = r.one_in(2);
        append(&mut w, all.len() as u64 + 1, &group, sync).unwrap();
        all.extend(group);
        if !sync && r.one_in(4) {
            w.sync().unwrap();
        }
        if w.synced() == w.end() {
            acked.store(all.len() as u64, SeqCst);
            synced.store(w.synced(), SeqCst);
        }
    }
    fs.on_mutation(|_| {});
    let mut states = 0;
    for crash_point in crash_points.lock().iter() {
        for &policy in CrashPolicy::ALL {
            let cut = seed * 1000 + states;
            let after = crash_point.snapshot.crash(policy, cut);
            for proven in [0, crash_point.synced] {
                let say = format!(
                    "wal crash seed={seed} at {:?} policy={policy:?} cut={cut} proven={proven}",
                    crash_point.snapshot
                );
                let (got, tail) = read_all(&*after, path, &expect(5, proven))
                    .unwrap_or_else(|e| panic!("{say}: {e}"));
                assert!(
                    got.len() as u64 >= crash_point.acked,
                    "{say}: {} of {} acknowledged",
                    got.len(),
                    crash_point.acked
                );
                assert!(all.starts_with(&got), "{say}: not a prefix");
                assert!(
                    tail.is_some() || crash_point.synced == 0,
                    "{say}: no header"
                );
                assert!(tail.is_none_or(|t| t.end >= crash_point.synced), "{say}");
            }
            states += 1;
        }
    }
    states
}

#[test]
fn a_power_cut_leaves_a_prefix_with_all_that_was_acknowledged() {
    let mut states = 0;
    for seed in basalt_sim::campaign::cases(0..24 * scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_leaves_a_prefix_with_all_that_was_acknowledged,
            "BASALT_CASE={seed}"
        );
        states += crash_run(seed, 12);
    }
    println!("wal crash_states={states}");
    assert!(
        basalt_sim::campaign::case().is_some() || states >= scale().floor(4000),
        "only {states} crash states"
    );
}

#[test]
fn nothing_after_a_torn_tail_is_replayed() {
    // There are three unsynced records. The second one loses its sectors. The third one stays whole
    // and starts at a unit boundary.
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let file = fresh_log(&fs, path, 512, 64 << 10, false);
    let mut w = RecordWriter::create(file, path, &file_header(512, 5, 1)).unwrap();
    append(&mut w, 1, &[vec![1; 100]], true).unwrap();
    let hole = w.position();
    append(&mut w, 2, &[vec![2; 1024 - RECORD_HEADER]], false).unwrap();
    append(&mut w, 3, &[vec![3; 10]], false).unwrap();
    let end = w.synced();
    fs.overwrite(path, hole, &[0; 1024]).unwrap();
    let (got, tail) = read_all(&*fs, path, &expect(5, end)).unwrap();
    assert_eq!(got, [vec![1; 100]]);
    assert_eq!(tail, Some(Tail { end, torn: true }));
    // The same hole is damage once a record says that it had been synced.
    let mut w2 = w;
    w2.sync().unwrap();
    append(&mut w2, 4, &[vec![4; 10]], false).unwrap();
    let e = read_all(&*fs, path, &expect(5, 0)).unwrap_err();
    assert!(e.is_corruption() && e.offset() == Some(end), "{e}");
    assert!(e.to_string().contains("proves that bytes up to"), "{e}");
}
