//! Epochs against a store whose commits the test holds back and fails: nobody depends on what may be lost, and after a
//! failure the keyspace is what the store says.

use super::*;
use crate::store::memory::MemoryStore;
use basalt::ErrorKind;
use basalt::env::Random;
use parking_lot::Mutex;
use std::collections::BTreeMap;

type Results = Arc<Mutex<Vec<(usize, Result<()>)>>>;

struct World {
    store: MemoryStore,
    keys: Keyspace,
    results: Results,
}

impl World {
    fn new() -> World {
        World::with(MemoryStore::default(), EpochLimits::default())
    }
    fn with(store: MemoryStore, limits: EpochLimits) -> World {
        let keys = Keyspace::new(Arc::new(store.clone()), limits).unwrap();
        World {
            store,
            keys,
            results: Arc::default(),
        }
    }
    fn command<T>(&mut self, run: impl FnOnce(&mut Keyspace) -> T) -> (T, Epochs) {
        self.keys.begin(1_000);
        let out = run(&mut self.keys);
        (out, self.keys.finish())
    }
    fn submit(&mut self) -> bool {
        let results = self.results.clone();
        self.keys.submit(true, |slot| {
            Box::new(move |r| results.lock().push((slot, r)))
        })
    }
    fn complete(&mut self) -> Vec<Ended> {
        let results = std::mem::take(&mut *self.results.lock());
        results
            .into_iter()
            .flat_map(|(slot, r)| self.keys.complete(slot, r).0)
            .collect()
    }
    fn get(&mut self, key: &str) -> (Option<String>, Epochs) {
        self.command(|k| {
            let value = k.get(key.as_bytes()).unwrap();
            value.map(|v| String::from_utf8(v.data.to_vec()).unwrap())
        })
    }
    fn put(&mut self, key: &str, value: &str) -> Epochs {
        let data = Bytes::copy_from_slice(value.as_bytes());
        self.command(|k| k.put(key.as_bytes(), data, None)).1
    }
    fn scan(&mut self) -> Vec<String> {
        let (from, to) = self.keys.bounds(b"");
        self.command(|k| {
            let mut out = vec![];
            k.scan(&from, &to, u64::MAX, &mut |key, _| {
                out.push(String::from_utf8(key.to_vec()).unwrap());
                true
            })
            .unwrap();
            out
        })
        .0
    }
}

fn io() -> Error {
    Error::new(ErrorKind::Io, "the disk is gone")
}

#[test]
fn replies_depend_on_what_they_saw() {
    let mut w = World::new();
    w.store.hold(true);
    let first = w.put("a", "1");
    assert_ne!(first, 0);
    assert_eq!(w.get("a"), (Some("1".into()), first), "its own epoch");
    assert_eq!(
        w.get("b"),
        (None, 0),
        "a key nobody wrote depends on nothing"
    );
    assert!(w.submit());
    let second = w.put("b", "2");
    assert_eq!(
        second & first,
        0,
        "a blind write depends on its own epoch only"
    );
    assert!(w.submit(), "and is not held back");
    w.store.release(0, Ok(()));
    assert_eq!(w.complete().len(), 1);
    assert_eq!(
        w.get("a"),
        (Some("1".into()), 0),
        "visible in the store now"
    );
    assert_eq!(w.get("b"), (Some("2".into()), second));
    w.store.release(0, Ok(()));
    w.complete();
    assert!(w.keys.is_settled());
    assert!(w.keys.overlay.is_empty());
}

#[test]
fn what_was_computed_from_a_failed_epoch_is_never_submitted() {
    let mut w = World::new();
    w.store.hold(true);
    let first = w.put("n", "1");
    assert!(w.submit());
    let (_, second) = w.command(|k| {
        let n = k.get(b"n").unwrap().unwrap();
        assert_eq!(&n.data[..], b"1");
        k.put(b"n", Bytes::from_static(b"2"), None);
    });
    assert_eq!(second & first, first);
    assert!(!w.submit(), "it waits for what it read");
    w.store.release(0, Err(io()));
    let ended = w.complete();
    assert_eq!(ended.len(), 2);
    assert!(ended.iter().all(|e| e.result.is_err()));
    assert_eq!(
        ended.iter().fold(0, |set, e| set | 1 << e.slot),
        first | second
    );
    assert_eq!(w.get("n"), (None, 0));
    assert!(w.keys.is_settled());
    assert!(w.store.0.lock().entries.is_empty());
}

#[test]
fn an_independent_epoch_survives_the_failure_of_another_and_old_values_show_again() {
    let mut w = World::new();
    w.put("a", "old");
    assert!(w.submit());
    w.complete();
    w.store.hold(true);
    w.put("a", "1");
    w.submit();
    w.put("a", "2");
    w.submit();
    w.store.release(1, Err(io()));
    w.complete();
    assert_eq!(w.get("a").0.as_deref(), Some("1"), "the version below it");
    w.store.release(0, Err(io()));
    w.complete();
    assert_eq!(w.get("a"), (Some("old".into()), 0));
}

#[test]
fn a_flush_is_one_synced_write_and_a_failed_one_brings_everything_back() {
    let mut w = World::new();
    for i in 0..100 {
        w.put(&format!("k{i:02}"), "v");
    }
    w.submit();
    w.complete();
    w.store.hold(true);
    let (r, flush) = w.command(Keyspace::flush);
    r.unwrap();
    assert_eq!(
        w.get("k00"),
        (None, flush),
        "what is seen after depends on it"
    );
    assert!(w.submit());
    assert_eq!(w.store.0.lock().submissions.last(), Some(&(1, true)));
    let after = w.put("k00", "new");
    assert_eq!(after & flush, flush);
    assert!(!w.submit(), "nothing passes a flush");
    assert_eq!(w.scan(), ["k00"]);
    w.store.release(0, Err(io()));
    assert_eq!(w.complete().len(), 2);
    assert_eq!(w.scan().len(), 100);
    assert_eq!(w.get("k00"), (Some("v".into()), 0));
    w.store.hold(false);
    w.command(Keyspace::flush).0.unwrap();
    w.put("x", "1");
    w.command(Keyspace::flush).0.unwrap();
    w.put("y", "1");
    assert!(w.submit());
    w.complete();
    assert_eq!(w.scan(), ["y"]);
    assert_eq!(w.store.0.lock().retired, 2);
    w.store.reclaim().unwrap();
    assert_eq!(
        w.store.0.lock().entries.len(),
        1,
        "the rest is gone for good"
    );
}

#[test]
fn expired_values_are_absent_wherever_they_lie() {
    let mut w = World::new();
    let put = |w: &mut World, key: &'static [u8], at| {
        w.command(|k| k.put(key, Bytes::from_static(b"v"), Some(at)));
    };
    put(&mut w, b"stored-past", 1_000);
    put(&mut w, b"stored-future", 1_001);
    w.submit();
    w.complete();
    w.store.hold(true);
    put(&mut w, b"overlay-past", 999);
    put(&mut w, b"overlay-future", 5_000);
    assert_eq!(w.scan(), ["overlay-future", "stored-future"]);
    assert_eq!(w.get("stored-past").0, None);
    assert_eq!(w.get("overlay-past").0, None);
    assert!(w.get("overlay-future").0.is_some());
}

/// Random commands, submissions, completions in any order and failures, against a model that knows which epochs failed.
#[test]
fn random_histories_agree_with_a_model() {
    let seed = std::env::var("BASALT_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0xba5a);
    println!("BASALT_SEED={seed}");
    let random = Random::from_seed(seed);
    let scale: u64 = std::env::var("BASALT_SCALE")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let (mut failures, mut dependents) = (0, 0);
    for _ in 0..300 * scale {
        let mut w = World::new();
        w.store.hold(true);
        // What was submitted and not failed, in order; and what is still open.
        let mut stored: BTreeMap<String, String> = BTreeMap::new();
        type Writes = Vec<Option<(String, Option<String>)>>;
        let mut flying: Vec<(usize, Writes)> = vec![];
        let mut open: Writes = vec![];
        fn apply(to: &mut BTreeMap<String, String>, writes: &Writes) {
            for write in writes {
                match write {
                    None => to.clear(),
                    Some((k, Some(v))) => {
                        to.insert(k.clone(), v.clone());
                    }
                    Some((k, None)) => {
                        to.remove(k);
                    }
                }
            }
        }
        for step in 0..200 {
            let key = format!("k{}", random.below(6));
            let mut now = stored.clone();
            for (_, writes) in &flying {
                apply(&mut now, writes);
            }
            apply(&mut now, &open);
            match random.below(12) {
                0..3 => {
                    w.put(&key, &step.to_string());
                    open.push(Some((key, Some(step.to_string()))));
                }
                3 => {
                    w.command(|k| k.delete(key.as_bytes()));
                    open.push(Some((key, None)));
                }
                4..6 => {
                    // Reads, then writes what it read elsewhere.
                    let to = format!("k{}", random.below(6));
                    let (read, _) = w.command(|k| {
                        let v = k.get(key.as_bytes()).unwrap().map(|v| v.data);
                        let data = v.clone().unwrap_or_default();
                        k.put(to.as_bytes(), data, None);
                        v
                    });
                    assert_eq!(read.as_deref(), now.get(&key).map(String::as_bytes));
                    let value = now.get(&key).cloned().unwrap_or_default();
                    open.push(Some((to, Some(value))));
                }
                6 => assert_eq!(w.get(&key).0, now.get(&key).cloned()),
                7 => assert_eq!(w.scan(), now.keys().cloned().collect::<Vec<_>>()),
                8 if random.one_in(3) => {
                    w.command(Keyspace::flush).0.unwrap();
                    open.push(None);
                }
                9 | 10 => {
                    let slot = w.keys.open;
                    if w.submit() {
                        flying.push((slot, std::mem::take(&mut open)));
                    }
                }
                _ if !flying.is_empty() => {
                    // The store completes in order; a failure may strike any.
                    let fail = random.one_in(3);
                    let index = if fail {
                        random.below(flying.len() as u64) as usize
                    } else {
                        0
                    };
                    let (slot, writes) = flying.remove(index);
                    if !fail {
                        apply(&mut stored, &writes);
                    }
                    w.store
                        .release(index, if fail { Err(io()) } else { Ok(()) });
                    let ended = w.complete();
                    assert_eq!(ended[0].slot, slot);
                    if fail {
                        failures += 1;
                    }
                    if ended.len() == 2 {
                        dependents += 1;
                        open.clear();
                    }
                }
                _ => {}
            }
        }
    }
    println!("failures={failures} dependents={dependents}");
    assert!(failures > 100 && dependents > 20);
}

/// Eight epochs of 32 MiB each, with values of 512 MiB at their ends, once could wait for a slow disk at the same time.
#[test]
fn writes_on_their_way_are_bounded_over_all_epochs() {
    const VALUE: usize = 10_000;
    let store = MemoryStore::default();
    store.hold(true);
    let limits = EpochLimits {
        pending_bytes: 100_000,
        ..EpochLimits::default()
    };
    let mut w = World::with(store, limits);
    let mut written = 0;
    while !w.keys.is_full() {
        w.put(&format!("k{written}"), &"v".repeat(VALUE));
        w.submit();
        written += 1;
        assert!(written < 100, "never full");
    }
    assert!(written >= 9);
    assert!(w.keys.pending_bytes() < 100_000 + 2 * VALUE);
    // What is on its way counts, whatever epoch it is in; and room comes back when it has ended, well or not.
    let most = w.keys.pending_bytes();
    w.store.release(0, Err(io()));
    w.complete();
    assert!(!w.keys.is_full());
    assert!(w.keys.pending_bytes() < most);
    w.put("huge", &"v".repeat(1_000_000));
    assert!(w.keys.is_full(), "one command fits whatever its length");
    w.store.hold(false);
    while w.store.held() > 0 {
        w.store.release(0, Ok(()));
        w.complete();
        w.submit();
    }
    w.complete();
    assert!(w.keys.is_settled());
    assert_eq!(w.keys.pending_bytes(), 0);
    assert!(w.keys.pending_bytes_peak() >= 1_000_000);
}
