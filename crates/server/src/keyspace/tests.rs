//! Epochs against a store whose commits the test holds back and fails: nobody depends on what may be lost, and after a
//! failure the keyspace is what the store says.

use super::*;
use crate::answers::{ManyAnswer, places};
use crate::fetch::Need;
use crate::fetch::many::{ManyPiece, read_many};
use crate::names::Names;
use crate::resp::request::Request;
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
        let keys = Keyspace::new(Arc::new(store.clone()), limits, SECRET).unwrap();
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
    /// Carries out an MSET as a layer.
    fn put_many(&mut self, pairs: &[(String, String)]) -> Epochs {
        let arguments = pairs.iter().flat_map(|(k, v)| [&k[..], v]);
        let names = names(arguments, 2);
        let layer = Layer::new(names, self.keys.generation(), None);
        self.command(|k| k.put_layer(layer, 0)).1
    }
    /// Fetches names in pieces of up to `most` names, and takes one piece after the other.
    fn fetch_many(&mut self, names: &Arc<Names>, need: Need, most: usize) {
        self.begin_many(names, need);
        while let Some(piece) = self.keys.next_many(CLIENT, most, usize::MAX, 1_000) {
            let read = read_many(&self.store, piece, || true);
            self.keys.take_many(CLIENT, read, 1_000);
        }
    }
    fn begin_many(&mut self, names: &Arc<Names>, need: Need) {
        let places = places(names.len());
        self.keys.begin_many(CLIENT, need, names.clone(), places);
    }
    /// Deletes the names of a fetch that has all answers. Returns the number of keys that existed.
    fn delete_many(&mut self) -> (usize, Epochs) {
        while self.keys.catch_up(CLIENT, 1, 1_000) {}
        let (fetch, seen) = self.keys.freeze(CLIENT).expect("all are answered");
        let there = fetch.there();
        let names = fetch.names().clone();
        let layer = Layer::new(names, self.keys.generation(), Some(Arc::new(fetch)));
        (there, self.command(|k| k.put_layer(layer, seen)).1)
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

/// The secret of hashes of keys.
const SECRET: u64 = 5;

/// Id of the client whose request has many names.
const CLIENT: u64 = 9;

fn names<'a>(arguments: impl IntoIterator<Item = &'a str>, step: usize) -> Arc<Names> {
    let request: Vec<&str> = std::iter::once("command").chain(arguments).collect();
    Arc::new(Names::new(
        Request::from_arguments(&request),
        step,
        true,
        SECRET,
    ))
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

/// `SET n 5` and `SET n 100` were two epochs in flight. The engine committed them in this order and ran the callback of
/// the second first. The overlay then held only the 5, though 100 was stored and acknowledged: GET answered 5, and INCR
/// stored 6, so that the acknowledged 100 was lost.
#[test]
fn a_later_epoch_that_completes_first_is_not_hidden_by_an_earlier_one() {
    let mut w = World::new();
    w.store.hold(true);
    let first = w.put("n", "5");
    w.put("other", "1");
    assert!(w.submit());
    w.put("n", "100");
    assert!(w.submit());
    w.store.decide(Ok(()));
    w.store.decide(Ok(()));
    w.store.call_back(1);
    assert_eq!(w.complete().len(), 1);
    assert_eq!(w.get("n"), (Some("100".into()), 0), "acknowledged");
    assert_eq!(
        w.get("other"),
        (Some("1".into()), first),
        "still on its way"
    );
    assert_eq!(w.scan(), ["n", "other"]);
    // What is computed from it is computed from 100, and nothing holds it back.
    let (_, next) = w.command(|k| {
        let n = k.get(b"n").unwrap().unwrap();
        let n: u64 = std::str::from_utf8(&n.data).unwrap().parse().unwrap();
        k.put(b"n", Bytes::from((n + 1).to_string()), None);
    });
    assert!(w.submit());
    w.store.call_back(0);
    assert_eq!(w.complete().len(), 1);
    assert_eq!(w.get("n"), (Some("101".into()), next));
    w.store.decide(Ok(()));
    w.store.call_back(0);
    w.complete();
    assert_eq!(w.get("n"), (Some("101".into()), 0));
    assert!(w.keys.is_settled());
    assert!(w.keys.overlay.is_empty());
    assert_eq!(w.keys.pending_bytes(), 0);
}

/// As above with a delete: the deleted key came back while the earlier epoch was on its way, for GET, SCAN and the
/// walks of DBSIZE and KEYS. And an earlier epoch that failed took nothing from the later one.
#[test]
fn a_deleted_key_stays_deleted_whatever_epoch_completes_first() {
    for failed in [false, true] {
        let mut w = World::new();
        w.store.hold(true);
        w.put("k", "old");
        assert!(w.submit());
        w.command(|k| k.delete(b"k"));
        assert!(w.submit());
        w.store.decide(if failed { Err(io()) } else { Ok(()) });
        w.store.decide(Ok(()));
        w.store.call_back(1);
        w.complete();
        assert_eq!(w.get("k"), (None, 0));
        assert!(w.scan().is_empty());
        let capture = w.command(|k| k.capture(b"")).0;
        capture
            .scan(&mut |_, _, _| panic!("a deleted key"))
            .unwrap();
        w.store.call_back(0);
        w.complete();
        assert_eq!(w.get("k"), (None, 0));
        assert!(w.keys.is_settled());
        assert_eq!(w.keys.pending_bytes(), 0);
    }
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

/// An epoch of the model: its writes (`None` for a flush, no value for a delete), and how far it has come.
struct ModelEpoch {
    slot: usize,
    writes: Vec<Option<(String, Option<String>)>>,
    /// The engine has decided it: true for a success.
    decided: Option<bool>,
    /// Its callback has run.
    told: bool,
}

impl ModelEpoch {
    fn new() -> ModelEpoch {
        ModelEpoch {
            slot: usize::MAX,
            writes: vec![],
            decided: None,
            told: false,
        }
    }

    fn has_failed(&self) -> bool {
        self.told && self.decided == Some(false)
    }
}

/// All epochs that were ever submitted and have not failed for the keyspace, in order, and the open one.
fn model_state<'a>(epochs: impl Iterator<Item = &'a ModelEpoch>) -> BTreeMap<String, String> {
    let mut state = BTreeMap::new();
    for write in epochs.flat_map(|e| &e.writes) {
        match write {
            None => state.clear(),
            Some((k, Some(v))) => {
                state.insert(k.clone(), v.clone());
            }
            Some((k, None)) => {
                state.remove(k);
            }
        }
    }
    state
}

/// The slot of the last epoch that wrote a key or flushed it away, if its callback has not run.
fn pending_writer<'a>(
    epochs: impl Iterator<Item = &'a ModelEpoch>,
    open: usize,
    key: &str,
) -> Option<usize> {
    let writes = |e: &&ModelEpoch| {
        let mut writes = e.writes.iter();
        writes.any(|w| w.as_ref().is_none_or(|(k, _)| k == key))
    };
    let last = epochs.filter(writes).last()?;
    match last.slot {
        usize::MAX => Some(open),
        slot => (!last.told).then_some(slot),
    }
}

/// If a generation is retired before the record of its flush is durable, a compaction drops its keys, and a crash or a
/// failed commit brings the flush back without them. So nothing is retired when FLUSHALL runs, when its epoch is
/// submitted, when earlier epochs complete, or when it fails.
#[test]
fn a_generation_is_retired_when_its_flush_is_durable_and_not_before() {
    let mut w = World::new();
    w.put("old", "v");
    assert!(w.submit());
    w.complete();
    w.store.hold(true);
    let retired = |w: &World| w.store.0.lock().retired;
    w.put("earlier", "v");
    assert!(w.submit());
    w.command(Keyspace::flush).0.unwrap();
    assert_eq!(retired(&w), 0, "it runs");
    assert!(w.submit());
    assert_eq!(retired(&w), 0, "it is submitted");
    w.command(Keyspace::flush).0.unwrap();
    assert_eq!(retired(&w), 0, "a second one depends on it");
    w.store.decide(Ok(()));
    w.store.call_back(0);
    w.complete();
    assert_eq!(retired(&w), 0, "an earlier epoch has completed");
    w.store.decide(Err(io()));
    assert_eq!(retired(&w), 0);
    w.store.call_back(0);
    assert_eq!(w.complete().len(), 2);
    assert_eq!(retired(&w), 0, "both have failed");
    w.store.reclaim().unwrap();
    assert_eq!(w.scan(), ["earlier", "old"], "nothing was lost");
    // Two of them, and the second is on its way when the first is durable.
    w.command(Keyspace::flush).0.unwrap();
    assert!(w.submit());
    w.command(Keyspace::flush).0.unwrap();
    w.put("new", "v");
    w.store.decide(Ok(()));
    w.store.call_back(0);
    w.complete();
    assert_eq!(retired(&w), 1);
    assert!(w.submit());
    assert_eq!(retired(&w), 1, "the second is submitted");
    assert!(w.store.0.lock().submissions.last().unwrap().1, "synced");
    w.store.decide(Ok(()));
    w.store.call_back(0);
    w.complete();
    assert_eq!(retired(&w), 2);
    assert_eq!(w.scan(), ["new"]);
}

/// A walk in pieces, each of which looks at few keys, deleted ones included, while commits complete and other keys
/// change. The store gives up in the middle of deleted keys, and the overlay has keys behind that place: a walk that
/// went on after those left out keys of the store that were there throughout.
#[test]
fn a_walk_in_pieces_finds_every_key_that_is_there_throughout() {
    let seed = std::env::var("BASALT_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0xba5a);
    println!("BASALT_SEED={seed}");
    let random = Random::from_seed(seed);
    const KEYS: u64 = 120;
    let (mut gave_up, mut changes) = (0, 0);
    for _ in 0..300 {
        let mut w = World::new();
        // Even keys stay as they are during the walk.
        let mut stable = std::collections::BTreeSet::new();
        let dense = 1 + random.below(6);
        for phase in 0..4 {
            w.store.hold(phase >= 2);
            for n in 0..KEYS {
                let key = format!("k{n:03}");
                if random.below(8) < dense && phase % 2 == 1 {
                    w.command(|k| k.delete(key.as_bytes()));
                    stable.remove(&key);
                } else if random.one_in(3) {
                    w.put(&key, "v");
                    if n % 2 == 0 {
                        stable.insert(key);
                    }
                }
            }
            w.submit();
            w.complete();
        }
        let (start, to) = w.keys.bounds(b"");
        let mut from = start.clone();
        let mut found: Vec<String> = vec![];
        loop {
            let work = 1 + random.below(12);
            let count = 1 + random.below(12);
            let mut seen = 0;
            let mut next = None;
            let (paused, _) = w.command(|k| {
                k.scan(&from, &to, work, &mut |key, _| {
                    if seen == count {
                        next = Some(key.to_vec());
                        return false;
                    }
                    seen += 1;
                    found.push(String::from_utf8(key.to_vec()).unwrap());
                    true
                })
                .unwrap()
            });
            gave_up += u64::from(paused.is_some());
            let Some(next) = next.or(paused) else { break };
            let goes_on = [&start[..], &next].concat();
            assert!(goes_on > from, "a piece makes progress");
            from = goes_on;
            let key = format!("k{:03}", random.below(KEYS / 2) * 2 + 1);
            match random.below(6) {
                0 => {
                    w.put(&key, "w");
                }
                1 => {
                    w.command(|k| k.delete(key.as_bytes()));
                }
                2 => {
                    w.submit();
                }
                3 if w.store.held() > 0 => w.store.decide(Ok(())),
                4 if !w.store.0.lock().decided.is_empty() => {
                    let n = w.store.0.lock().decided.len() as u64;
                    w.store.call_back(random.below(n) as usize);
                    w.complete();
                    changes += 1;
                }
                _ => {}
            }
        }
        assert!(found.is_sorted_by(|a, b| a < b), "in order, each once");
        found.retain(|k| k[1..].parse::<u64>().unwrap() % 2 == 0);
        assert_eq!(found, stable.into_iter().collect::<Vec<_>>());
    }
    println!("gave_up={gave_up} changes={changes}");
    assert!(gave_up > 1000 && changes > 300);
}

/// A command with many names of the model, whose names are being fetched.
struct ModelFetch {
    names: Vec<String>,
    /// The command: it reads, deletes, or sets if all keys are absent.
    kind: u64,
    piece: Option<ManyPiece>,
    has_all: bool,
}

/// Random commands, submissions and failures, and callbacks in any order, against a model in plain
/// maps. The engine decides commits in the order of submission; its callbacks run on several
/// threads, so the keyspace hears of them in any order. Among the commands are those with many
/// names: their reads go on over many steps, and their writes are layers.
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
    let (mut failures, mut dependents, mut overtaken) = (0, 0, 0);
    let (mut layers, mut held_back, mut fetched, mut void, mut behind) = (0, 0, 0, 0, 0);
    for history in 0..600 * scale {
        let mut w = World::new();
        w.store.hold(true);
        let mut submitted: Vec<ModelEpoch> = vec![];
        let mut open = ModelEpoch::new();
        // Epochs whose callback may run, in the order of the store's list.
        let mut decided: Vec<usize> = vec![];
        let mut fetch: Option<ModelFetch> = None;
        for step in 0..300 {
            let key = format!("k{}", random.below(6));
            let now = || submitted.iter().filter(|e| !e.has_failed()).chain([&open]);
            let state = model_state(now());
            // At the end everything is submitted, decided and told.
            let choice = if step < 200 {
                // Layers keep epochs in order, so half of the histories have no layers.
                random.below(if history % 2 == 0 { 16 } else { 28 })
            } else {
                10 + step % 5
            };
            match choice {
                0..4 => {
                    w.put(&key, &step.to_string());
                    open.writes.push(Some((key, Some(step.to_string()))));
                }
                4 => {
                    w.command(|k| k.delete(key.as_bytes()));
                    open.writes.push(Some((key, None)));
                }
                5 => {
                    // Reads, then writes what it read elsewhere.
                    let to = format!("k{}", random.below(6));
                    let writer = pending_writer(now(), w.keys.open, &key);
                    let (read, depends_on) = w.command(|k| {
                        let v = k.get(key.as_bytes()).unwrap().map(|v| v.data);
                        let data = v.clone().unwrap_or_default();
                        k.put(to.as_bytes(), data, None);
                        v
                    });
                    assert_eq!(read.as_deref(), state.get(&key).map(String::as_bytes));
                    assert!(writer.is_none_or(|slot| depends_on & 1 << slot != 0));
                    let value = state.get(&key).cloned().unwrap_or_default();
                    open.writes.push(Some((to, Some(value))));
                }
                6 => {
                    let writer = pending_writer(now(), w.keys.open, &key);
                    let (read, depends_on) = w.get(&key);
                    assert_eq!(read, state.get(&key).cloned());
                    assert!(writer.is_none_or(|slot| depends_on & 1 << slot != 0));
                    let (from, to) = w.keys.bounds(b"");
                    let last = w.keys.last(&from, &to, u64::MAX).unwrap();
                    let last = last.map(|k| String::from_utf8(k).unwrap());
                    assert!(last.as_ref() >= state.keys().next_back());
                }
                7 => assert_eq!(w.scan(), state.keys().cloned().collect::<Vec<_>>()),
                8 if random.one_in(6) => {
                    w.command(Keyspace::flush).0.unwrap();
                    open.writes.push(None);
                }
                9 => {
                    let capture = w.command(|k| k.capture(b"")).0;
                    let mut found = vec![];
                    let mut show = |k: &[u8], _, _| {
                        found.push(String::from_utf8(k.to_vec()).unwrap());
                        true
                    };
                    capture.scan(&mut show).unwrap();
                    assert_eq!(found, state.keys().cloned().collect::<Vec<_>>());
                }
                10 | 11 => {
                    open.slot = w.keys.open;
                    if w.submit() {
                        submitted.push(std::mem::replace(&mut open, ModelEpoch::new()));
                    } else {
                        open.slot = usize::MAX;
                    }
                }
                12 | 13 => {
                    if let Some(i) = submitted.iter().position(|e| e.decided.is_none()) {
                        let ok = !random.one_in(4);
                        submitted[i].decided = Some(ok);
                        decided.push(i);
                        w.store.decide(if ok { Ok(()) } else { Err(io()) });
                    }
                }
                16 | 17 => {
                    // An MSET, in which a key may stand twice.
                    let pair = |n| (format!("k{}", random.below(6)), format!("{step}.{n}"));
                    let pairs: Vec<_> = (0..1 + random.below(5)).map(pair).collect();
                    if w.keys.is_full() {
                        continue;
                    }
                    w.put_many(&pairs);
                    layers += 1;
                    let written = pairs.into_iter().map(|(k, v)| Some((k, Some(v))));
                    open.writes.extend(written);
                }
                18 | 19 if fetch.is_none() => {
                    let name = |_| format!("k{}", random.below(6));
                    let list: Vec<String> = (0..1 + random.below(6)).map(name).collect();
                    let kind = random.below(3);
                    // The argument after each name of an MSETNX is its value.
                    let arguments = list.iter().flat_map(|name| match kind {
                        2 => vec![&name[..], "absent"],
                        _ => vec![&name[..]],
                    });
                    let index = names(arguments, if kind == 2 { 2 } else { 1 });
                    let need = if kind == 0 { Need::Strings } else { Need::Meta };
                    w.begin_many(&index, need);
                    fetch = Some(ModelFetch {
                        names: list,
                        kind,
                        piece: None,
                        has_all: false,
                    });
                }
                20..28 => {
                    let Some(f) = &mut fetch else { continue };
                    if random.one_in(3) {
                        behind += u64::from(w.keys.catch_up(CLIENT, 1, 1_000));
                    } else if let Some(piece) = f.piece.take() {
                        let read = read_many(&w.store, piece, || true);
                        w.keys.take_many(CLIENT, read, 1_000);
                    } else if !f.has_all {
                        let most = 1 + random.below(2) as usize;
                        f.piece = w.keys.next_many(CLIENT, most, usize::MAX, 1_000);
                        f.has_all = f.piece.is_none();
                    } else if w.keys.many(CLIENT).unwrap().is_void {
                        void += 1;
                        w.keys.end_many(CLIENT);
                        fetch = None;
                    } else if !w.keys.catch_up(CLIENT, 1, 1_000) {
                        let ModelFetch { names, kind, .. } = fetch.take().unwrap();
                        let (answers, seen) = w.keys.freeze(CLIENT).unwrap();
                        fetched += 1;
                        for (n, name) in names.iter().enumerate() {
                            let value = state.get(name).map(String::as_bytes);
                            match (answers.answer(n, 1_000), value) {
                                (ManyAnswer::Absent, None) => {}
                                (ManyAnswer::There, Some(_)) => assert_ne!(kind, 0),
                                (ManyAnswer::String(data), Some(v)) => assert_eq!(data, v),
                                (ManyAnswer::Shared(data), Some(v)) => assert_eq!(data, v),
                                (_, v) => panic!("{name} is {v:?} in the model"),
                            }
                            let writer = pending_writer(now(), w.keys.open, name);
                            assert!(writer.is_none_or(|slot| seen & 1 << slot != 0));
                        }
                        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
                        let there = distinct.iter().filter(|n| state.contains_key(**n)).count();
                        assert_eq!(answers.there(), there);
                        if kind == 0 || w.keys.is_full() || (kind == 2 && there > 0) {
                            continue;
                        }
                        layers += 1;
                        let index = answers.names().clone();
                        let answers = (kind == 1).then(|| Arc::new(answers));
                        let layer = Layer::new(index, w.keys.generation(), answers);
                        w.command(|k| k.put_layer(layer, seen));
                        let value = (kind == 2).then(|| "absent".to_string());
                        let written = names.into_iter().map(|k| Some((k, value.clone())));
                        open.writes.extend(written);
                    }
                }
                14 | 15 if !decided.is_empty() => {
                    let index = random.below(decided.len() as u64) as usize;
                    let i = decided.remove(index);
                    w.store.call_back(index);
                    let ended = w.complete();
                    held_back += u64::from(ended.is_empty());
                    for end in ended {
                        let is_it = |e: &ModelEpoch| e.slot == end.slot && !e.told;
                        let Some(i) = submitted.iter().position(is_it) else {
                            assert_eq!(end.slot, w.keys.open);
                            dependents += 1;
                            open = ModelEpoch::new();
                            continue;
                        };
                        assert_eq!(submitted[i].decided, Some(end.result.is_ok()));
                        overtaken += u64::from(submitted[..i].iter().any(|e| !e.told));
                        submitted[i].told = true;
                        failures += u64::from(submitted[i].has_failed());
                    }
                    // The epoch waits for an earlier epoch, or has ended.
                    assert!(submitted[i].told || submitted[..i].iter().any(|e| !e.told));
                }
                _ => {}
            }
        }
        let state = model_state(submitted.iter().filter(|e| !e.has_failed()));
        assert!(w.keys.is_settled() && w.keys.overlay.is_empty() && w.keys.layers.is_empty());
        // A fetch holds the layers that it is behind by.
        w.keys.end_many(CLIENT);
        assert_eq!(w.keys.pending_bytes(), 0);
        assert_eq!(w.scan(), state.keys().cloned().collect::<Vec<_>>());
        for (key, value) in state {
            assert_eq!(w.get(&key), (Some(value), 0));
        }
    }
    println!("failures={failures} dependents={dependents} overtaken={overtaken}");
    println!("layers={layers} held_back={held_back} fetched={fetched} void={void} behind={behind}");
    assert!(failures > 100 && dependents > 20 && overtaken > 500);
    assert!(layers > 1000 && held_back > 100 && fetched > 500 && void > 50 && behind > 100);
}

/// The writes of a command with many names take effect and leave in one step, in the order of the
/// epoch's other writes. The batch has them in the same order.
#[test]
fn a_layer_stands_between_the_writes_before_and_after_it() {
    let pair = |k: &str, v: &str| (k.to_string(), v.to_string());
    for fails in [false, true] {
        let mut w = World::new();
        w.put("a", "stored");
        assert!(w.submit());
        w.complete();
        w.store.hold(true);
        w.put("a", "before");
        w.put("b", "before");
        let epoch = w.put_many(&[
            pair("a", "1"),
            pair("b", "2"),
            pair("c", "3"),
            pair("a", "4"),
        ]);
        w.put("b", "after");
        w.command(|k| k.delete(b"c"));
        w.put_many(&[pair("d", "5"), pair("c", "6")]);
        w.put("d", "after");
        for _ in 0..2 {
            for (key, value) in [("a", "4"), ("b", "after"), ("c", "6"), ("d", "after")] {
                assert_eq!(w.get(key), (Some(value.into()), epoch));
            }
            assert_eq!(w.scan(), ["a", "b", "c", "d"]);
            w.submit();
        }
        assert!(w.keys.pending_bytes() > 0);
        w.store.release(0, if fails { Err(io()) } else { Ok(()) });
        assert_eq!(w.complete().len(), 1);
        assert!(w.keys.is_settled() && w.keys.layers.is_empty());
        assert_eq!(w.keys.pending_bytes(), 0);
        assert_eq!(w.keys.take_discarded().len(), 2, "freed elsewhere");
        if fails {
            assert_eq!(w.get("a"), (Some("stored".into()), 0));
            assert_eq!(w.scan(), ["a"]);
            continue;
        }
        // The batch had the writes in their order.
        for (key, value) in [("a", "4"), ("b", "after"), ("c", "6"), ("d", "after")] {
            assert_eq!(w.get(key), (Some(value.into()), 0));
        }
    }
}

/// A layer leaves without a look at its keys. So an epoch that wrote one of these keys later must
/// end after the layer, even if its callback ran first. Otherwise its version would be gone, and
/// the layer's older value would show.
#[test]
fn an_epoch_after_a_layer_ends_after_it() {
    let pair = |k: &str, v: &str| (k.to_string(), v.to_string());
    let mut w = World::new();
    w.store.hold(true);
    w.put("n", "0");
    assert!(w.submit());
    w.put_many(&[pair("n", "1"), pair("m", "1")]);
    assert!(w.submit());
    w.put("n", "2");
    assert!(w.submit());
    for _ in 0..3 {
        w.store.decide(Ok(()));
    }
    w.store.call_back(2);
    assert!(w.complete().is_empty(), "held back");
    assert_eq!(w.get("n").0.as_deref(), Some("2"));
    w.store.call_back(1);
    assert!(
        w.complete().is_empty(),
        "the layer waits for the first epoch"
    );
    assert_eq!(w.get("n").0.as_deref(), Some("2"));
    w.store.call_back(0);
    let ended = w.complete();
    assert_eq!(ended.len(), 3);
    assert_eq!(w.get("n"), (Some("2".into()), 0));
    assert_eq!(w.get("m"), (Some("1".into()), 0));
    assert!(w.keys.is_settled());
}

/// The count of a DEL with many names is that of the moment at which the DEL takes effect. The
/// count follows single writes, the layers of other commands, and writes after these layers.
#[test]
fn a_fetch_of_many_names_follows_layers() {
    let pair = |k: &str, v: &str| (k.to_string(), v.to_string());
    let list = ["a", "b", "c", "d", "e", "a"];
    let mut w = World::new();
    w.put("a", "0");
    w.put("b", "0");
    assert!(w.submit());
    w.complete();
    w.store.hold(true);
    // More names than the layer has, and fewer.
    for others in [0, 20] {
        w.fetch_many(&names(list, 1), Need::Meta, 2);
        let mut pairs: Vec<_> = (0..others).map(|n| pair(&format!("x{n}"), "1")).collect();
        pairs.extend([pair("c", "1"), pair("d", "1")]);
        let layer = w.put_many(&pairs);
        w.command(|k| k.delete(b"d"));
        w.put("e", "2");
        assert!(w.keys.catch_up(CLIENT, 1, 1_000), "it is behind the layer");
        let (there, depends_on) = w.delete_many();
        assert_eq!(there, 4, "a, b, c and e");
        assert_ne!(depends_on & layer, 0, "it saw what the layer wrote");
        for name in list {
            assert_eq!(w.get(name).0, None);
        }
        // The store has none of these writes, and the layer that the command saw fails together
        // with it.
        w.submit();
        w.store.release(0, Err(io()));
        w.complete();
        assert_eq!(w.scan(), ["a", "b"]);
    }
    // A layer whose epoch failed before the fetch applied it changes no answer.
    w.fetch_many(&names(list, 1), Need::Meta, 2);
    w.put_many(&[pair("c", "1"), pair("d", "1")]);
    w.submit();
    w.store.release(0, Err(io()));
    w.complete();
    assert_eq!(w.delete_many().0, 2);
}

/// A small command forgets its answer for a key when a layer writes the key. This holds even if the
/// layer's epoch has ended before the command runs.
#[test]
fn a_layer_makes_a_fetch_forget() {
    let pair = |k: &str, v: &str| (k.to_string(), v.to_string());
    let mut w = World::new();
    w.put("a", "old");
    w.put("b", "old");
    assert!(w.submit());
    w.complete();
    w.keys.begin_fetch(CLIENT, Need::Value, (1, 2));
    let keys: [&[u8]; 2] = [b"a", b"b"];
    let piece = w.keys.next_piece(CLIENT, usize::MAX, &mut keys.into_iter());
    let read = crate::fetch::read(&w.store, piece.unwrap(), || true);
    w.keys.take_answers(CLIENT, read);
    w.put_many(&[pair("a", "new")]);
    assert!(w.submit());
    w.complete();
    w.store.0.lock().reads.clear();
    w.keys.use_fetch(Some(CLIENT));
    assert_eq!(w.get("a"), (Some("new".into()), 0));
    assert_eq!(w.store.0.lock().reads.len(), 1, "read again");
    assert_eq!(w.get("b"), (Some("old".into()), 0));
    assert_eq!(w.store.0.lock().reads.len(), 1, "the answer is good");
    w.keys.use_fetch(None);
}

/// A deletion of many names writes only the keys that exist.
#[test]
fn a_layer_deletes_what_is_there() {
    let mut w = World::new();
    w.put("b", "0");
    assert!(w.submit());
    w.complete();
    w.fetch_many(&names(["a", "b", "c", "b"], 1), Need::Meta, 2);
    assert_eq!(w.delete_many().0, 1);
    assert!(w.submit());
    w.complete();
    let deleted: Vec<_> = w.store.0.lock().deleted.iter().cloned().collect();
    assert_eq!(deleted, [&layout::encode_key(DATABASE, 0, b"b")[..]]);
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

/// A command whose keys had been fetched for too often read all other strings in one batch. A
/// thousand names of 64 MiB each came into memory before the reply was refused as too long.
#[test]
fn a_command_fetched_for_too_often_reads_no_more_strings_than_its_reply_has_room_for() {
    use crate::fetch::{Need, ROUNDS};
    const LEN: usize = 1 << 20;
    let mut w = World::new();
    let names: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    for name in &names {
        w.put(name, &"v".repeat(LEN));
        assert!(w.submit());
        w.complete();
    }
    for _ in 0..ROUNDS {
        w.keys.begin_fetch(7, Need::Strings, (1, 2));
    }
    for (room, most) in [(usize::MAX, 40), (20 * LEN, 21), (0, 1)] {
        w.keys.use_fetch(Some(7));
        let keys = names.iter().map(|n| n.as_bytes());
        let (found, _) = w.command(|k| k.get_strings(keys, room).unwrap());
        w.keys.use_fetch(None);
        let found = found.iter().flatten().count();
        assert_eq!(found, most, "room for {room} bytes");
    }
}

/// A value that counts the values in memory.
struct Tracked(Vec<u8>, Arc<std::sync::atomic::AtomicUsize>);

impl Tracked {
    fn value(len: usize, alive: &Arc<std::sync::atomic::AtomicUsize>) -> Bytes {
        alive.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Bytes::from_owner(Tracked(vec![7; len], alive.clone()))
    }
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.1.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    }
}

fn numbered(n: usize) -> Vec<String> {
    (0..n).map(|n| format!("n{n}")).collect()
}

/// Regression test: a deleted value stayed in the list of values of a fetch, and the next value got
/// another place. Pairs of SET and DEL filled the memory, and nothing counted it.
#[test]
fn a_fetch_of_many_names_keeps_no_value_that_is_no_answer() {
    const LEN: usize = 10_000;
    let mut w = World::new();
    let list = numbered(1500);
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Strings);
    let piece = w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000);
    let before = w.keys.fetch_memory(CLIENT);
    let alive = Arc::default();
    for _ in 0..100 {
        let value = Tracked::value(LEN, &alive);
        w.command(|k| k.put(b"n3", value, None));
        w.submit();
        w.complete();
        assert!(w.keys.fetch_memory(CLIENT) >= before + LEN, "it is counted");
        w.command(|k| k.delete(b"n3"));
        w.submit();
        w.complete();
        let alive = alive.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(alive, 0, "values in memory");
    }
    assert!(w.keys.fetch_memory(CLIENT) < before + LEN);
    drop(piece);
}

/// Regression test: a fetch kept the buffers of its pieces whole, and counted only the strings that
/// were still answers. A client that wrote each name after it was read made 24 MB count as nothing.
#[test]
fn a_fetch_of_many_names_counts_its_buffers_and_frees_what_is_no_answer() {
    const LEN: usize = 1000;
    let mut w = World::new();
    let list = numbered(3000);
    for name in &list {
        w.put(name, &format!("{name}{}", "v".repeat(LEN)));
    }
    w.submit();
    w.complete();
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Strings);
    let mut done = 0;
    while let Some(piece) = w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000) {
        let read = read_many(&w.store, piece, || true);
        w.keys.take_many(CLIENT, read, 1_000);
        let to = (done + 1024).min(list.len());
        for (n, name) in list[done..to].iter().enumerate() {
            let fetch = w.keys.many(CLIENT).unwrap();
            let (held, memory) = (fetch.answers().strings_in_memory(), fetch.memory());
            assert!(held <= memory, "{held} bytes in memory, {memory} counted");
            assert!(
                held <= 2 * fetch.bytes() + 2 * LEN,
                "{held} bytes in memory"
            );
            // Every tenth name keeps its answer.
            if n % 10 != 0 {
                w.put(name, "x");
            }
        }
        done = to;
        w.submit();
        w.complete();
    }
    let fetch = w.keys.many(CLIENT).unwrap();
    for (n, name) in list.iter().enumerate() {
        let kept = (n % 1024).is_multiple_of(10);
        let expected = match kept {
            true => format!("{name}{}", "v".repeat(LEN)),
            false => "x".into(),
        };
        let found = match fetch.answers().answer(n, 1_000) {
            ManyAnswer::String(data) => data.to_vec(),
            ManyAnswer::Shared(data) => data.to_vec(),
            _ => panic!("no string for {name}"),
        };
        assert_eq!(String::from_utf8(found).unwrap(), expected);
    }
}

impl World {
    /// Writes a layer of one key, and commits it.
    fn commit_layer(&mut self, key: &str) {
        self.put_many(&[(key.to_string(), "x".to_string())]);
        assert!(self.submit());
        self.complete();
    }
}

/// Regression test: each fetch counted each layer that took effect meanwhile as memory of its
/// client. One MSET of 60 MB counted as 300 MB for five readers of other keys, and they were
/// disconnected.
#[test]
fn a_layer_counts_once_and_for_no_reader() {
    const LEN: usize = 1 << 20;
    let mut w = World::new();
    let list = numbered(1500);
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Meta);
    let small: u64 = CLIENT + 1;
    w.keys.begin_fetch(small, Need::Value, (1, 2));
    let mut keys = [&b"a"[..]].into_iter();
    let piece = w.keys.next_piece(small, usize::MAX, &mut keys);
    let many_piece = w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000);
    let before = (w.keys.fetch_memory(CLIENT), w.keys.fetch_memory(small));
    w.put_many(&[("other".to_string(), "v".repeat(LEN))]);
    let pending = w.keys.pending_bytes();
    assert!((LEN..2 * LEN).contains(&pending), "{pending} bytes pending");
    let after = (w.keys.fetch_memory(CLIENT), w.keys.fetch_memory(small));
    assert!(after.0 < before.0 + LEN && after.1 < before.1 + LEN);
    assert!(w.submit());
    w.complete();
    assert_eq!(w.keys.pending_bytes(), pending, "the fetch holds the layer");
    while w.keys.catch_up(CLIENT, 1024, 1_000) {}
    assert_eq!(w.keys.pending_bytes(), 0);
    // A fetch that ends early gives back what it is behind by.
    w.put_many(&[("other".to_string(), "v".repeat(LEN))]);
    assert!(w.submit());
    w.complete();
    assert!(w.keys.pending_bytes() >= LEN);
    let ended = w.keys.end_many(CLIENT);
    assert_eq!(w.keys.pending_bytes(), 0);
    drop((ended, piece, many_piece));
}

/// Regression test: after nine layers of other keys, a fetch forgot all its answers. After three
/// such fetches, the loop read a value of any length itself.
#[test]
fn layers_of_other_keys_spoil_no_fetch() {
    let mut w = World::new();
    w.store.0.lock().apart_from = 1000;
    w.put("long", &"v".repeat(LOOP_BYTES + 1));
    assert!(w.submit());
    w.complete();
    let (found, _) = w.command(|k| k.get(b"long"));
    let Err(Missed::Fetch(need)) = found else {
        panic!("the loop read a long value");
    };
    w.keys.begin_fetch(CLIENT, need, (1, 2));
    let mut keys = [&b"long"[..]].into_iter();
    let piece = w.keys.next_piece(CLIENT, usize::MAX, &mut keys);
    let read = crate::fetch::read(&w.store, piece.unwrap(), || true);
    for n in 0..100 {
        w.commit_layer(&format!("other{n}"));
        if n == 50 {
            w.keys.take_answers(CLIENT, read.clone());
        }
    }
    let spent = w.keys.spent();
    w.keys.use_fetch(Some(CLIENT));
    let (found, _) = w.command(|k| k.get(b"long").unwrap());
    assert_eq!(found.map(|v| v.data.len()), Some(LOOP_BYTES + 1));
    assert_eq!(w.keys.spent(), spent, "the loop read nothing");
    w.commit_layer("long");
    let (found, _) = w.command(|k| k.get(b"long").unwrap());
    assert_eq!(found.map(|v| v.data.len()), Some(1), "its own key counts");
    w.keys.use_fetch(None);
}

/// Regression test: a fetch of a flushed keyspace was read to its end before it began again.
#[test]
fn a_fetch_of_a_flushed_keyspace_reads_no_further() {
    let mut w = World::new();
    let list = numbered(3000);
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Meta);
    assert!(w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000).is_some());
    w.keys.begin_fetch(CLIENT, Need::Meta, (1, 2));
    w.command(|k| k.flush().unwrap());
    assert!(w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000).is_none());
    let mut keys = list.iter().map(|s| s.as_bytes());
    let piece = w.keys.next_piece(CLIENT, usize::MAX, &mut keys);
    assert!(piece.is_none());
    assert!(w.keys.freeze(CLIENT).is_none());
}

/// Regression test: other clients wrote layers faster than a fetch applied them, so its command
/// never took effect. Layers in flight had no limit besides their bytes.
#[test]
fn no_layer_is_taken_while_a_fetch_is_far_behind_or_many_are_in_flight() {
    let mut w = World::new();
    let list = numbered(3000);
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Meta);
    assert!(w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000).is_some());
    let mut layers = 0;
    while !w.keys.is_full_of_layers() {
        w.commit_layer("other");
        layers += 1;
        assert!(layers <= 8, "never full");
    }
    assert!(!w.keys.is_full(), "single writes go on");
    w.keys.take_room_came();
    assert!(!w.keys.catch_up(CLIENT, 1024, 1_000), "within one step");
    assert!(!w.keys.is_full_of_layers());
    assert!(w.keys.take_room_came(), "writes that wait look again");
    w.keys.end_many(CLIENT);
    w.store.hold(true);
    let mut layers = 0;
    while !w.keys.is_full_of_layers() {
        w.put_many(&[("k".to_string(), "x".to_string())]);
        layers += 1;
        if layers % 4 == 0 {
            w.submit();
        }
        assert!(layers <= 32, "never full");
    }
    assert!(!w.keys.is_full(), "single writes go on");
}

/// Regression test: a step looked at 1,024 names, however long they were, and hashed each of them
/// once for each layer.
#[test]
fn a_step_of_long_names_is_bounded_in_bytes() {
    const LEN: usize = 60_000;
    let mut w = World::new();
    w.store.hold(true);
    for n in 0..10 {
        w.put_many(&[(format!("other{n}"), "x".to_string())]);
    }
    let list: Vec<_> = (0..40).map(|n| format!("{n}{}", "x".repeat(LEN))).collect();
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Meta);
    let hashed = crate::names::hashed::bytes();
    let (mut steps, mut bytes) = (0, 0);
    while let Some(piece) = w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000) {
        let step = piece.key_bytes();
        assert!(step <= (256 << 10) + 2 * LEN, "{step} bytes in a step");
        (steps, bytes) = (steps + 1, bytes + step);
        let read = read_many(&w.store, piece, || true);
        w.keys.take_many(CLIENT, read, 1_000);
    }
    assert!(steps >= 8 && bytes >= 40 * LEN, "{steps} steps");
    let hashed = crate::names::hashed::bytes() - hashed;
    assert_eq!(hashed, 0, "the table of names has the hashes");
    let many: Vec<_> = list.iter().map(|k| (k.clone(), "v".to_string())).collect();
    w.put_many(&many);
    let before = w.keys.names();
    let mut steps = 0;
    while w.keys.catch_up(CLIENT, 1024, 1_000) {
        steps += 1;
    }
    assert!(
        steps >= 7,
        "{steps} steps for {} names",
        w.keys.names() - before
    );
    let hashed_before = crate::names::hashed::bytes();
    w.command(|k| k.meta(list[3].as_bytes()).unwrap());
    let hashed = crate::names::hashed::bytes() - hashed_before;
    assert_eq!(hashed, list[3].len(), "one hash for all layers");
}
