//! The memtable: threads insert while other threads look up keys, walk up and walk down, over
//! leaves and inner nodes about to split.

use crate::explore::{CASE, Counts, below, case, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_fs::Bytes;
use basalt_kv::key::{Cmp, Kind, SeqNo, split_internal_key, trailer_seq};
use basalt_lsm_schedules::iter::InternalIter;
use basalt_lsm_schedules::memtable::MemTable;
use basalt_sim::{campaign, repeat};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

type Thread = shuttle::thread::JoinHandle<()>;

/// A key and its sequence number, ordered newest first within a key, as the table has them.
type Place = (Vec<u8>, std::cmp::Reverse<SeqNo>);

/// Entries that were submitted, and those whose insert has returned. The lock is never held where
/// threads change places.
#[derive(Default)]
struct Seen {
    begun: BTreeMap<Place, Vec<u8>>,
    done: BTreeMap<Place, Vec<u8>>,
}

fn key(n: u64) -> Vec<u8> {
    match n % 4 {
        // The heads are equal, so that comparisons read the record.
        0 => format!("shared/head/{n:04}").into_bytes(),
        _ => format!("{n:04}").into_bytes(),
    }
}

fn value(n: u64, seq: SeqNo) -> Vec<u8> {
    // Some values stay in their batch's memory.
    let len = if seq.is_multiple_of(7) { 600 } else { 9 };
    let mut v = format!("{n}@{seq}.").into_bytes();
    v.resize(len.max(v.len()), b'.');
    v
}

fn insert(mem: &MemTable, seen: &Mutex<Seen>, n: u64, seq: SeqNo) {
    let (k, v) = (key(n), value(n, seq));
    let place = (k.clone(), std::cmp::Reverse(seq));
    let begun = seen
        .lock()
        .map(|mut s| s.begun.insert(place.clone(), v.clone()));
    assert_eq!(begun.unwrap(), None, "the model inserts once");
    mem.insert(&k, seq, Kind::Put, &Bytes::from(v.clone()));
    seen.lock().unwrap().done.insert(place, v);
}

/// Walks over all entries, up or down: they are in order, none is invented, and none is lost whose
/// insert had returned before.
fn walk(mem: &Arc<MemTable>, seen: &Mutex<Seen>, down: bool) {
    let due = seen.lock().unwrap().done.clone();
    let mut rows: Vec<(Place, Vec<u8>)> = Vec::new();
    let mut iter = mem.iter();
    if down {
        iter.seek_to_last().unwrap();
    } else {
        iter.seek_to_first().unwrap();
    }
    while iter.valid() {
        let (user, trailer) = split_internal_key(iter.key());
        let place = (user.to_vec(), std::cmp::Reverse(trailer_seq(trailer)));
        rows.push((place, iter.value().to_vec()));
        if down {
            iter.prev().unwrap();
        } else {
            iter.next().unwrap();
        }
    }
    if down {
        rows.reverse();
    }
    assert!(rows.windows(2).all(|w| w[0].0 < w[1].0), "in order");
    let rows: BTreeMap<Place, Vec<u8>> = rows.into_iter().collect();
    for (place, v) in &due {
        assert_eq!(rows.get(place), Some(v), "lost on a walk: {place:?}");
    }
    let begun = &seen.lock().unwrap().begun;
    for (place, v) in &rows {
        assert_eq!(begun.get(place), Some(v), "invented: {place:?}");
    }
}

/// Looks up a key as of a sequence number, and makes a step to each side of it.
fn look(mem: &Arc<MemTable>, seen: &Mutex<Seen>, n: u64, as_of: SeqNo) {
    let k = key(n);
    let from = (k.clone(), std::cmp::Reverse(as_of));
    let newest = |of: &BTreeMap<Place, Vec<u8>>| {
        let next = of.range(&from..).next().map(|(place, _)| place.clone());
        next.filter(|place| place.0 == k).map(|place| place.1.0)
    };
    let due = newest(&seen.lock().unwrap().done);
    let found = mem.get(&k, as_of);
    let have = found.as_ref().map(|f| f.seq);
    assert!(have >= due, "{k:?} as of {as_of}: {have:?} and not {due:?}");
    if let Some(f) = found {
        assert!(f.seq <= as_of, "from later");
        assert_eq!(f.value, value(n, f.seq), "the value of its version");
    }
}

/// Makes a full leaf, and little else, so that changes of threads fall into its split. One thread
/// fills the half that stays, where slots become free, one inserts among the entries that move, and
/// one reads the earlier entries.
fn insert_during_split(mem: &Arc<MemTable>, seen: &Arc<Mutex<Seen>>) -> Vec<Thread> {
    let there = |i: u64| i * 4 + 1;
    for i in 0..15 {
        insert(mem, seen, there(i), i + 1);
    }
    let mut threads = Vec::new();
    for (writer, half) in [(0, 0), (1, 7)] {
        let (mem, seen) = (mem.clone(), seen.clone());
        threads.push(shuttle::thread::spawn(move || {
            for i in 0..2 + below(2) {
                insert(&mem, &seen, there(half + below(8)) + 1, 20 + i * 2 + writer);
            }
        }));
    }
    let (mem, seen) = (mem.clone(), seen.clone());
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..3 {
            match below(4) {
                0 => walk(&mem, &seen, percent(50)),
                _ => look(&mem, &seen, there(below(15)) + below(2), 30),
            }
        }
    }));
    threads
}

/// Inserts up to the point of a first split, of many splits, or of an inner node's, and beyond it.
fn insert_past_splits(mem: &Arc<MemTable>, seen: &Arc<Mutex<Seen>>) -> Vec<Thread> {
    let before = match below(4) {
        0 => below(4),
        1 => 12 + below(4),
        2 => below(60),
        _ => 108 + below(16),
    };
    let ascending = percent(50);
    for i in 0..before {
        let n = if ascending { i * 4 + 1 } else { below(400) };
        insert(mem, seen, n, i + 1);
    }
    let begin = before + 1;
    let wide = if percent(50) { 30 } else { 500 };
    let mut threads = Vec::new();
    for writer in 0..2 {
        let (mem, seen) = (mem.clone(), seen.clone());
        threads.push(shuttle::thread::spawn(move || {
            for i in 0..3 + below(4) {
                insert(&mem, &seen, below(wide), begin + i * 2 + writer);
            }
        }));
    }
    for reader in 0..2 {
        let (mem, seen) = (mem.clone(), seen.clone());
        threads.push(shuttle::thread::spawn(move || {
            for _ in 0..2 {
                walk(&mem, &seen, reader == 1);
                for _ in 0..3 {
                    look(&mem, &seen, below(wide), begin + below(14));
                }
                yield_now();
            }
        }));
    }
    threads
}

fn model(steps: &Counts, one_leaf: bool) {
    let mem = MemTable::new(Cmp::Bytewise);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let threads = if one_leaf {
        insert_during_split(&mem, &seen)
    } else {
        insert_past_splits(&mem, &seen)
    };
    for thread in threads {
        thread.join().unwrap();
    }
    walk(&mem, &seen, false);
    walk(&mem, &seen, true);
    assert_eq!(mem.len(), seen.lock().unwrap().done.len());
    count(steps, 0, shuttle::current::context_switches() as u64);
}

#[test]
fn the_memtable_is_correct_in_every_schedule() {
    let steps = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..200 * campaign::scale()) {
        let _repeat = repeat!(
            the_memtable_is_correct_in_every_schedule,
            "BASALT_CASE={seed}"
        );
        let steps = steps.clone();
        // Both kinds of schedules occur, as every second seed goes by priorities.
        case(seed, move || model(&steps, seed % 8 < 6));
        schedules += CASE;
    }
    basalt_sim::campaign!(
        "memtable_schedules={schedules} steps={}",
        counted(&steps, 0)
    );
}
