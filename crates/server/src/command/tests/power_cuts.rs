//! Streams and groups in the real store, on a simulated disk that loses power.

use super::*;
use crate::store::DbStore;
use basalt::env::Random;
use basalt_sim::{CrashPolicy, SimFs, SimOptions, SimSnapshot};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Opens the store on a disk as a starting server does.
fn open(w: &mut World, fs: &Arc<SimFs>) {
    let env = EnvBuilder::new(fs.clone()).build();
    let store = DbStore::open(&env, Path::new("store"), basalt::Options::default()).unwrap();
    w.exec.keys = Keyspace::new(Arc::new(store), EpochLimits::default(), 5).unwrap();
}

/// Returns the ids of entries and, for each group, its last id and its pending entries.
fn state(w: &mut World) -> String {
    let full = w.run("XINFO STREAM s FULL COUNT 0");
    format!("{full}{}", w.run("XRANGE s - +"))
}

/// Returns the numbers of a stream's entries. The value of an entry is its number, too.
fn entries(w: &mut World) -> Vec<u64> {
    let reply = w.run("XRANGE s - +");
    let words: Vec<&str> = reply.split("\r\n").collect();
    let ids = words.iter().filter_map(|word| word.strip_suffix("-1"));
    let ids: Vec<u64> = ids.filter_map(|n| n.parse().ok()).collect();
    for n in &ids {
        assert_eq!(
            reply.matches(&format!("\r\nv{n}\r\n")).count(),
            1,
            "{n} in {reply}"
        );
    }
    assert_eq!(w.run("XLEN s"), format!(":{}\r\n", ids.len()));
    ids
}

/// Draws the commands of an epoch: all are XADDs, or none is.
fn commands(random: &Random, added: &mut u64) -> Vec<String> {
    let appends = random.below(2) == 0;
    let some = 1 + random.below(4);
    let mut command = |_| {
        let id = || format!("{}-1", 1 + random.below(*added + 1));
        let group = ["g", "h"][random.below(2) as usize];
        let consumer = ["a", "b"][random.below(2) as usize];
        if appends {
            *added += 1;
            return match random.below(5) {
                0 => format!("XADD s MAXLEN 8 {added}-1 f v{added}"),
                _ => format!("XADD s {added}-1 f v{added}"),
            };
        }
        match random.below(10) {
            0..=2 => format!("XREADGROUP GROUP {group} {consumer} COUNT 3 STREAMS s >"),
            3 => format!("XACK s {group} {} {}", id(), id()),
            4..=5 => format!("XDEL s {} {}", id(), id()),
            6 => format!("XCLAIM s {group} {consumer} 0 {} {} FORCE", id(), id()),
            7 => format!("XTRIM s MINID {}", id()),
            8 => format!("XGROUP DELCONSUMER s {group} {consumer}"),
            _ => format!("XGROUP CREATE s h {}-1", random.below(*added + 1)),
        }
    };
    (0..some).map(&mut command).collect()
}

/// After a power cut, a loaded stream accepts an entry. The entry exists after the next start and
/// is delivered.
fn check_goes_on(w: &mut World, fs: &Arc<SimFs>) {
    let before = entries(w);
    w.run("XADD s 1000-1 f v1000");
    w.commit();
    w.exec.keys.store().close().unwrap();
    open(w, fs);
    let expected: Vec<u64> = before.into_iter().chain([1000]).collect();
    assert_eq!(entries(w), expected);
    w.run("XGROUP CREATE s new 999");
    assert!(
        w.run("XREADGROUP GROUP new a STREAMS s >")
            .contains("v1000")
    );
    w.commit();
}

/// With a sync of each commit, a power cut leaves the last acknowledged commit or the next one.
#[test]
fn a_power_cut_leaves_streams_and_groups_as_they_were_acknowledged() {
    let mut states = 0;
    for seed in basalt_sim::campaign::cases(0..12 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_leaves_streams_and_groups_as_they_were_acknowledged,
            "BASALT_CASE={seed}"
        );
        let (random, fs) = (Random::from_seed(seed), SimFs::new(SimOptions::default()));
        let (mut w, mut added) = (World::new(), 0);
        open(&mut w, &fs);
        w.run("XGROUP CREATE s g 0 MKSTREAM");
        w.commit();
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let points: Arc<Mutex<Vec<(SimSnapshot, usize)>>> = Arc::default();
        let (to, at) = (points.clone(), acknowledged.clone());
        fs.on_mutation(move |snapshot| to.lock().push((snapshot, at.load(SeqCst))));
        let mut known = vec![state(&mut w)];
        for _ in 0..14 {
            for command in commands(&random, &mut added) {
                w.run(&command);
            }
            if !w.exec.keys.is_drained() {
                known.push(state(&mut w));
                w.commit();
                acknowledged.fetch_add(1, SeqCst);
            }
        }
        fs.on_mutation(|_| {});
        let points = std::mem::take(&mut *points.lock());
        for (n, (point, acknowledged)) in points.into_iter().enumerate() {
            let policy = CrashPolicy::ALL[n % CrashPolicy::ALL.len()];
            let fs = point.crash(policy, seed << 20 | n as u64);
            open(&mut w, &fs);
            let found = state(&mut w);
            let is_known = known[acknowledged..].iter().take(2).any(|s| *s == found);
            assert!(
                is_known,
                "change {n}, {policy:?}: {found}\n{:?}",
                known[acknowledged]
            );
            check_goes_on(&mut w, &fs);
            states += 1;
        }
    }
    basalt_sim::campaign!("crash states of synced streams: {states}");
    assert!(states >= basalt_sim::campaign::scale().floor(250));
}

/// Without syncs, log and tables may lose different writes. All synced writes must exist, no entry
/// that was deleted before the sync may come back, and no entry may get the LSN of a lost entry.
#[test]
fn a_power_cut_of_unsynced_streams_loses_nothing_synced() {
    let (mut states, mut lost) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..200 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_of_unsynced_streams_loses_nothing_synced,
            "BASALT_CASE={seed}"
        );
        let (random, fs) = (Random::from_seed(seed), SimFs::new(SimOptions::default()));
        let (mut w, mut added) = (World::new(), 0);
        open(&mut w, &fs);
        w.run("XGROUP CREATE s g 0 MKSTREAM");
        w.commit();
        // True for each entry that existed at the last sync. Each entry is changed at most once.
        let mut synced: BTreeMap<u64, bool> = BTreeMap::new();
        for _ in 0..random.below(12) {
            for command in commands(&random, &mut added) {
                w.run(&command);
            }
            if !w.exec.keys.is_drained() {
                w.commit_with(false);
            }
            if random.one_in(4) {
                w.exec.keys.store().sync().unwrap();
                let there = entries(&mut w);
                synced = (1..=added).map(|n| (n, there.contains(&n))).collect();
            }
        }
        let before = entries(&mut w);
        let policy = CrashPolicy::ALL[random.below(CrashPolicy::ALL.len() as u64) as usize];
        let fs = fs.crash(policy, seed);
        open(&mut w, &fs);
        let found = entries(&mut w);
        for (n, was_there) in &synced {
            // A later command may have deleted the entry, and this deletion may be lost.
            let is_there = found.contains(n);
            let may_be_there = *was_there;
            let must_be_there = *was_there && before.contains(n);
            assert!(
                is_there <= may_be_there,
                "{policy:?}: the deleted entry {n} is back"
            );
            assert!(
                is_there >= must_be_there,
                "{policy:?}: the synced entry {n} is lost"
            );
        }
        lost += before.iter().filter(|n| !found.contains(n)).count();
        // The id of an entry that a group delivered is not used again.
        for line in w.run("XINFO GROUPS s").split("\r\n") {
            let last = line.strip_suffix("-1").and_then(|n| n.parse::<u64>().ok());
            if let Some(last) = last.filter(|last| *last > 0) {
                let reply = w.run(&format!("XADD s {last}-1 f again"));
                assert!(reply.starts_with("-ERR"), "{last}: {reply}");
            }
        }
        check_goes_on(&mut w, &fs);
        states += 1;
    }
    basalt_sim::campaign!("crash states of unsynced streams: {states}, lost entries: {lost}");
    assert!(lost > 0, "no power cut lost an entry");
}

/// Entries whose records are removed from the log do not come back after a power cut at any step:
/// before the removal, after it, and after the deletion of their tombstones.
#[test]
fn entries_that_have_left_the_log_stay_deleted() {
    let live: Vec<u64> = (1..=100).chain(401..=500).collect();
    let mut states = 0;
    for (n, policy) in CrashPolicy::ALL.iter().enumerate() {
        for steps in 0..4 {
            let fs = SimFs::new(SimOptions::default());
            let mut w = World::new();
            open(&mut w, &fs);
            for n in 1..=500 {
                w.run(&format!("XADD s {n}-1 f v{n}"));
            }
            w.commit();
            let ids: String = (101..=400).map(|n| format!(" {n}-1")).collect();
            assert_eq!(w.run(&format!("XDEL s{ids}")), ":300\r\n");
            w.commit();
            for step in 0..steps {
                match step {
                    0 => assert!(groups::remove_in_background(&mut w)),
                    1 => {
                        // The tombstones go with this change, which is not synced.
                        w.run("XGROUP CREATE s g 0");
                        w.commit_with(false);
                    }
                    _ => w.exec.keys.store().sync().unwrap(),
                }
            }
            let fs = fs.crash(*policy, n as u64);
            open(&mut w, &fs);
            assert_eq!(entries(&mut w), live, "{policy:?}, {steps} steps");
            check_goes_on(&mut w, &fs);
            states += 1;
        }
    }
    basalt_sim::campaign!("crash states of deleted entries: {states}");
}
