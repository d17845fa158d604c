//! Tests of streams that lose their keys, with a store in memory whose commits are delayed and
//! fail, and with the engines on a disk that loses power. In the end, only live streams have logs.
//! At every moment, each live stream has its log.

use super::super::reading::Missed;
use super::*;
use crate::keyspace::{StreamKey, StreamNeed};
use crate::options::engine_defaults;
use crate::store::DbStore;
use crate::stream::StreamId;
use crate::stream::record::decode_state;
use crate::stream::registry::{Registered, StreamRegistry};
use crate::stream::sweep::{DroppedStream, SweepJob, sweep};
use basalt::env::EnvBuilder;
use basalt::env::thread::StopSignal;
use basalt_sim::{CrashPolicy, SimFs, SimOptions};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// The slot of an epoch, and the result of its commit.
type CommitEnd = (usize, Result<()>);

/// A keyspace with streams over any store.
pub(super) struct StreamWorld {
    pub store: Arc<dyn Store>,
    pub keys: Keyspace,
    results: (Sender<CommitEnd>, Receiver<CommitEnd>),
    now_ms: u64,
    added: u64,
    sync: bool,
}

impl StreamWorld {
    pub fn over(store: Arc<dyn Store>) -> StreamWorld {
        let mut keys = Keyspace::new(store.clone(), EpochLimits::default(), SECRET).unwrap();
        if store.existing_logs().is_some() {
            keys.sweep_earlier_than(store.next_incarnation().unwrap());
        }
        StreamWorld {
            store,
            keys,
            results: channel(),
            now_ms: 1_000,
            added: 0,
            sync: true,
        }
    }

    fn command<T>(&mut self, run: impl FnOnce(&mut Keyspace) -> T) -> T {
        self.keys.begin(self.now_ms);
        let out = run(&mut self.keys);
        self.keys.finish();
        out
    }

    fn submit(&mut self) -> bool {
        let to = self.results.0.clone();
        self.keys.submit(self.sync, |slot| {
            let to = to.clone();
            Box::new(move |r| to.send((slot, r)).unwrap())
        })
    }

    /// Waits for the commits in flight.
    fn complete(&mut self) {
        while self.keys.in_flight() > 0 {
            let (slot, result) = self.results.1.recv().unwrap();
            self.keys.complete(slot, result);
        }
    }

    pub fn commit(&mut self) {
        self.submit();
        while self.keys.in_flight() > 0 {
            let (slot, result) = self.results.1.recv().unwrap();
            self.keys.complete(slot, result);
            self.submit();
        }
    }

    /// Adds an entry to a stream, which is created if the key is absent. Returns false if the key
    /// has another type.
    pub fn add(&mut self, key: &str) -> bool {
        self.added += 1;
        let id = StreamId::new(self.added, 0);
        loop {
            self.keys.begin(self.now_ms);
            let key = key.as_bytes();
            let found = match self.keys.stream(key) {
                Ok(StreamKey::Absent) => self.keys.spare_log().map(|(incarnation, log)| {
                    self.keys.create_stream(key, incarnation, log);
                    true
                }),
                found => found.map(|found| found == StreamKey::Loaded),
            };
            if let Ok(true) = found {
                let first = self.keys.loaded_stream(key).state.first_lsn;
                let words: [&[u8]; 2] = [b"f", b"v"];
                (self.keys).append_entry(key, id, first, words.into_iter());
            }
            self.keys.finish();
            match found {
                Ok(there) => {
                    self.keys.end_stream_request(0);
                    return there;
                }
                Err(Missed::Stream(StreamNeed::Job(job))) => {
                    let answer = crate::stream::jobs::run(&*self.store, *job);
                    self.keys.take_stream_answer(0, answer);
                }
                Err(Missed::Stream(StreamNeed::Busy)) => self.commit(),
                Err(e) => panic!("{e:?}"),
            }
        }
    }

    /// Gives the stream of a key another group with a pending entry, and deletes the newest entry.
    /// The stream must be loaded.
    fn add_elements(&mut self, key: &str) {
        self.added += 1;
        let (id, group) = (StreamId::new(self.added, 0), self.added.to_string());
        self.command(|k| {
            let key = key.as_bytes();
            assert_eq!(k.stream(key).unwrap(), StreamKey::Loaded);
            let (state, len) = (k.loaded_stream(key).state, k.loaded_stream(key).len());
            let entry = (state.next_lsn - 1, state.last_id);
            k.create_group(key, group.as_bytes(), StreamId::MIN, None);
            if len > 0 && k.loaded_stream(key).is_live(entry.0) {
                k.deliver(key, group.as_bytes(), b"c", &[entry], id, false);
                k.delete_entries(key, &BTreeMap::from([(entry.1, entry.0)]));
            }
        });
    }

    fn set(&mut self, key: &str) {
        self.command(|k| k.put(key.as_bytes(), Bytes::from_static(b"v"), None));
    }

    pub fn delete(&mut self, key: &str) {
        self.command(|k| k.delete(key.as_bytes()));
    }

    /// Sets the expiry of a stream. Returns false if there is no stream.
    fn expire(&mut self, key: &str, at: u64) -> bool {
        self.commit();
        let there = self.command(|k| match k.stream(key.as_bytes()) {
            Ok(StreamKey::Loaded) => {
                k.expire_stream(key.as_bytes(), Some(at));
                true
            }
            _ => false,
        });
        self.keys.end_stream_request(0);
        there
    }

    /// Runs one sweep. Returns false if no stream waits for a sweep.
    fn sweep_once(&mut self) -> bool {
        self.keys.step_streams();
        let Some(job) = self.keys.take_sweep(Duration::ZERO) else {
            return false;
        };
        let result = sweep(&*self.store, job, &StopSignal::default());
        assert_eq!(result.error.as_ref().map(|e| e.to_string()), None);
        self.keys.take_swept(result, Duration::ZERO);
        true
    }

    /// Runs sweeps until no work remains.
    pub fn sweep(&mut self) {
        while self.sweep_once() || self.keys.has_stream_steps() {}
    }

    pub fn logs(&self) -> BTreeSet<u64> {
        let names = self.store.existing_logs().map(|logs| logs.list());
        let number = |name: &String| name.rsplit('.').next().unwrap().parse().unwrap();
        names.iter().flatten().map(number).collect()
    }

    /// Returns the elements of the current generation by incarnation.
    fn elements(&self) -> BTreeMap<u64, Vec<Vec<u8>>> {
        let mut elements: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        let prefix = layout::key_prefix(DATABASE, self.store.generation().unwrap());
        let mut visit = |key: &[u8], _: &[u8]| {
            let incarnation = key[layout::KEY_PREFIX_LEN..][..8].try_into().unwrap();
            let of = elements.entry(u64::from_be_bytes(incarnation)).or_default();
            of.push(key.to_vec());
            Ok(())
        };
        self.store.elements(&prefix, &mut visit).unwrap();
        elements
    }

    /// Returns the incarnations of the streams that the store's keys have.
    pub fn live(&self) -> BTreeSet<u64> {
        live(&*self.store)
    }
}

fn live(store: &dyn Store) -> BTreeSet<u64> {
    let from = layout::key_prefix(DATABASE, store.generation().unwrap());
    let to = layout::prefix_end(&from);
    let mut live = BTreeSet::new();
    let mut visit = |_: &[u8], value: Option<&[u8]>, _| {
        if let Some(value) = value.filter(|v| v[0] == DataType::Stream as u8) {
            live.insert(decode_state(&value[1..]).unwrap().0.incarnation);
        }
        true
    };
    store.view().scan(&from, &to, u64::MAX, &mut visit).unwrap();
    live
}

/// Ends the delayed commit of an epoch whose appends may still be in flight.
fn release_held(store: &MemoryStore, result: Result<()>) {
    while store.held() == 0 {
        std::thread::yield_now();
    }
    store.release(0, result);
}

pub(super) fn in_memory() -> (StreamWorld, MemoryStore) {
    let store = MemoryStore::default();
    (StreamWorld::over(Arc::new(store.clone())), store)
}

#[test]
fn every_way_to_lose_a_key_removes_the_log() {
    let (mut w, _) = in_memory();
    let keys = ["deleted", "set", "ended", "layered", "stays"];
    for key in keys {
        assert!(w.add(key));
    }
    w.commit();
    assert_eq!(w.logs().len(), keys.len());
    w.delete("deleted");
    w.set("set");
    assert!(w.expire("ended", 2_000));
    let layer = Layer::new(names(["layered", "v", "other", "v"], 2), 0, None);
    w.command(|k| k.put_layer(layer, 0));
    w.commit();
    // The stream was not read since, and its commit has not ended.
    w.keys.expire_streams(1_999);
    w.commit();
    w.sweep();
    assert_eq!(w.logs(), w.live());
    assert_eq!(w.logs().len(), 2);
    assert_eq!(w.keys.next_stream_expiry(), Some(2_000));
    w.now_ms = 2_000;
    w.keys.expire_streams(2_000);
    w.commit();
    w.sweep();
    assert_eq!((w.logs().len(), w.logs()), (1, w.live()));
    assert_eq!(w.keys.next_stream_expiry(), None);
    // A stream of the same key is another stream, in the same epoch or in a later one.
    w.delete("stays");
    assert!(w.add("stays") && w.add("new"));
    w.delete("new");
    assert!(w.add("new"));
    w.commit();
    w.sweep();
    assert_eq!((w.logs().len(), w.logs()), (2, w.live()));
    // Streams before and after a flush.
    assert!(w.add("before"));
    w.command(|k| k.flush().unwrap());
    assert!(w.add("after"));
    w.commit();
    w.sweep();
    assert_eq!((w.logs().len(), w.logs()), (1, w.live()));
    let stats = w.keys.live_stream_stats();
    assert_eq!((stats.streams, stats.dropped), (1, 0));
}

/// Regression test: the stream of a key was not registered any more after a flush had failed, if
/// the next epoch had created a stream of the same key. Its log was never removed.
#[test]
fn a_failed_flush_restores_a_stream_that_the_next_epoch_had_created_again() {
    let (mut w, store) = in_memory();
    assert!(w.add("k"));
    w.commit();
    let before = w.logs();
    store.hold(true);
    w.command(|k| k.flush().unwrap());
    assert!(w.submit());
    assert!(w.add("k"));
    store.release(0, Err(io()));
    w.complete();
    store.hold(false);
    assert_eq!(w.live(), before);
    assert_eq!(w.keys.live_stream_stats().streams, 1);
    w.set("k");
    w.commit();
    w.sweep();
    assert!(w.logs().is_disjoint(&before), "the log of a lost key");
}

/// While the commit of a drop is in flight, no stream is swept. If the commit fails, the stream
/// exists as before.
#[test]
fn a_drop_counts_when_it_is_committed() {
    for fails in [false, true] {
        for way in 0..4 {
            let (mut w, store) = in_memory();
            assert!(w.add("k"));
            w.commit();
            store.hold(true);
            match way {
                0 => w.delete("k"),
                1 => w.set("k"),
                2 => {
                    let layer = Layer::new(names(["k", "v"], 2), 0, None);
                    w.command(|k| k.put_layer(layer, 0));
                }
                _ => w.command(|k| k.flush().unwrap()),
            }
            assert!(w.submit());
            assert!(!w.sweep_once(), "way {way}");
            store.release(0, if fails { Err(io()) } else { Ok(()) });
            w.complete();
            store.hold(false);
            w.sweep();
            assert_eq!(w.logs().len(), usize::from(fails), "way {way}");
            assert_eq!(w.logs(), w.live(), "way {way}");
            if fails {
                // The next drop is detected, too, for every kind of first drop.
                w.keys.expire_streams(w.now_ms);
                assert!(w.add("k"));
                w.commit();
                w.delete("k");
                w.commit();
                w.sweep();
                assert_eq!(w.logs().len(), 0, "way {way}");
            }
        }
    }
}

/// A stream whose creation is in flight is not in the store yet. A sweep of an earlier stream of
/// the same key does not remove the new stream.
#[test]
fn a_sweep_leaves_streams_that_are_being_created() {
    for (appended, by_layer) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut w, store) = in_memory();
        assert!(w.add("k") && w.add("l") && w.add("stays"));
        w.commit();
        w.delete("k");
        if by_layer {
            // The layer is searched after the new stream was registered.
            let deleted = Layer::new(names(["k", "v", "l", "v"], 2), 0, None);
            w.command(|k| k.put_layer(deleted, 0));
            w.delete("k");
        }
        w.delete("l");
        w.commit();
        match appended {
            true => store.hold(true),
            false => store.0.lock().hold_appends = true,
        }
        assert!(w.add("k"));
        assert!(w.submit());
        w.sweep();
        assert_eq!(w.logs().len(), 2);
        match appended {
            true => release_held(&store, Ok(())),
            false => store.release_append(Ok(())),
        }
        w.complete();
        w.sweep();
        assert_eq!((w.logs().len(), w.logs()), (2, w.live()));
    }
}

/// Groups, consumers, pending entries and tombstones are removed with their stream, for every way
/// in which it loses its key. Those of other streams stay.
#[test]
fn a_dropped_stream_loses_its_elements() {
    for way in 0..6 {
        let (mut w, store) = in_memory();
        for key in ["k", "l", "stays"] {
            assert!(w.add(key) && w.add(key));
            w.add_elements(key);
        }
        w.commit();
        let before = w.elements();
        assert!(before.len() == 3 && before.values().all(|keys| keys.len() == 4));
        match way {
            0 => w.delete("k"),
            1 => w.set("k"),
            2 => {
                assert!(w.expire("k", 2_000));
                w.commit();
                w.now_ms = 2_000;
                w.keys.expire_streams(2_000);
            }
            3 => {
                let layer = Layer::new(names(["k", "v"], 2), 0, None);
                w.command(|k| k.put_layer(layer, 0));
            }
            4 => {
                w.delete("k");
                assert!(w.add("k"));
                w.add_elements("k");
            }
            _ => w.command(|k| k.flush().unwrap()),
        }
        if way == 5 {
            assert!(w.add("k") && w.add("l"));
            w.add_elements("k");
            w.add_elements("l");
        }
        w.commit();
        // The first sweep is stopped after the removal of elements, as in a crash.
        let stopped = StopSignal::default();
        stopped.send();
        w.keys.step_streams();
        let job = w.keys.take_sweep(Duration::ZERO).unwrap();
        assert!(
            !w.keys
                .take_swept(sweep(&*w.store, job, &stopped), Duration::ZERO)
        );
        assert_ne!(w.logs(), w.live(), "way {way}");
        if way % 2 == 0 {
            w = StreamWorld::over(Arc::new(store.clone()));
        }
        w.sweep();
        assert_eq!(
            (w.logs(), w.logs().len()),
            (w.live(), [2, 3][way / 4 % 2] - way / 5)
        );
        let after = w.elements();
        let left: BTreeSet<u64> = after.keys().copied().collect();
        assert_eq!(left, w.live(), "way {way}");
        for (incarnation, keys) in after {
            let same = before
                .get(&incarnation)
                .is_none_or(|before| *before == keys);
            assert!(same && !keys.is_empty(), "way {way}");
        }
        let all = store.0.lock().elements.len();
        assert_eq!(all, w.elements().values().map(Vec::len).sum::<usize>());
    }
}

/// The log of a failed creation stays until the next start. The registry does not have the failed
/// stream, and it has a new stream of the same key.
#[test]
fn a_failed_creation_leaves_its_log_until_the_next_start() {
    let (mut w, store) = in_memory();
    store.hold(true);
    assert!(w.add("k"));
    assert!(w.submit());
    release_held(&store, Err(io()));
    w.complete();
    store.hold(false);
    w.sweep();
    assert_eq!((w.logs().len(), w.live().len()), (1, 0));
    assert_eq!(w.keys.live_stream_stats().streams, 0);
    assert!(w.add("k"));
    w.commit();
    w.delete("k");
    w.commit();
    w.sweep();
    assert_eq!(w.logs().len(), 1);
    let mut w = StreamWorld::over(Arc::new(store));
    w.sweep();
    assert_eq!(w.logs().len(), 0);
}

/// The sweep of a start handles streams that are written during the sweep: before its scan, while
/// the keyspace registers its result, and by epochs in flight.
#[test]
fn streams_found_at_a_start_are_looked_at_twice() {
    for way in 0..3 {
        let (mut w, store) = in_memory();
        for key in ["a", "b", "c"] {
            assert!(w.add(key));
        }
        w.commit();
        let mut w = StreamWorld::over(Arc::new(store.clone()));
        let job = w
            .keys
            .take_sweep(Duration::ZERO)
            .expect("the sweep of the start");
        let result = sweep(&store, job, &StopSignal::default());
        assert_eq!(result.found.len(), 3);
        // The store has these writes before the streams are registered.
        if way == 0 {
            w.set("a");
            w.command(|k| k.delete(b"b"));
            w.commit();
        }
        if way == 1 {
            store.hold(true);
            w.set("a");
            assert!(w.submit());
            w.command(|k| k.delete(b"b"));
        }
        w.keys.take_swept(result, Duration::ZERO);
        w.sweep();
        if way == 1 {
            assert_eq!(w.logs().len(), 3, "nothing is committed");
            store.release(0, Ok(()));
            w.complete();
            store.hold(false);
            w.commit();
        }
        if way == 2 {
            w.set("a");
            w.command(|k| k.delete(b"b"));
            w.commit();
        }
        w.sweep();
        assert_eq!((w.logs().len(), w.logs()), (1, w.live()), "way {way}");
        assert_eq!(w.keys.live_stream_stats().streams, 1, "way {way}");
    }
}

/// A sweep that fails is repeated later. A sweep keeps a stream that its key still has.
#[test]
fn a_sweep_asks_the_store_and_is_repeated_after_a_failure() {
    let (mut w, store) = in_memory();
    assert!(w.add("k") && w.add("l"));
    w.commit();
    let live = w.live();
    let wrong = DroppedStream {
        stored_key: layout::encode_key(DATABASE, 0, b"k"),
        incarnation: *live.first().unwrap(),
    };
    let job = SweepJob {
        dropped: vec![wrong.clone()],
        ..SweepJob::default()
    };
    let result = sweep(&store, job, &StopSignal::default());
    assert_eq!(
        (result.kept.clone(), result.removed.len()),
        (vec![wrong], 0)
    );
    assert!(w.keys.take_swept(result, Duration::ZERO));
    assert_eq!(w.logs(), live);

    w.delete("k");
    w.commit();
    let job = w.keys.take_sweep(Duration::ZERO).unwrap();
    let stopped = StopSignal::default();
    stopped.send();
    let result = sweep(&store, job, &stopped);
    assert!(!w.keys.take_swept(result, Duration::ZERO));
    assert_eq!(w.logs(), live);
    w.sweep();
    assert_eq!((w.logs().len(), w.logs()), (1, w.live()));
}

#[test]
fn a_registry_counts_its_bytes_and_orders_ends() {
    let mut r = StreamRegistry::default();
    let stream = |incarnation, expire_at_ms| Registered {
        incarnation,
        expire_at_ms,
        rank: 0,
    };
    for (n, key) in ["a", "b", "c"].iter().enumerate() {
        let end = (n != 1).then_some(10 - n as u64);
        assert_eq!(r.insert(key.as_bytes(), stream(n as u64, end)), None);
    }
    assert_eq!((r.len(), r.next_expiry()), (3, Some(8)));
    assert_eq!(r.next_ended(7), None);
    assert_eq!(r.next_ended(8).as_deref(), Some(&b"c"[..]));
    let before = r.memory();
    assert_eq!(r.insert(b"c", stream(9, None)), Some(stream(2, Some(8))));
    assert_eq!((r.memory(), r.next_expiry()), (before, Some(10)));
    let (some, next) = r.some_from(b"", 2);
    assert_eq!((some.len(), next.as_deref()), (2, Some(&b"c"[..])));
    for key in ["a", "b", "c"] {
        assert!(r.remove(key.as_bytes()).is_some());
    }
    assert_eq!((r.memory(), r.next_expiry()), (0, None));
}

/// Adds an entry with a value of this many bytes.
fn add_long(w: &mut StreamWorld, key: &str, bytes: usize) {
    assert!(w.add(key));
    w.commit();
    w.added += 1;
    let (id, value) = (StreamId::new(w.added, 0), vec![b'v'; bytes]);
    let key = key.as_bytes();
    w.command(|k| {
        assert_eq!(k.stream(key).unwrap(), StreamKey::Loaded);
        let words: [&[u8]; 2] = [b"f", &value];
        k.append_entry(key, id, 1, words.into_iter());
    });
    w.commit();
}

/// Streams in memory stay within their budget of bytes. The least recently used ones lose their
/// windows, and clients can read and write them as before.
#[test]
fn loaded_streams_stay_within_their_budget() {
    const LIMIT: usize = 100_000;
    let (mut w, _) = in_memory();
    w.keys.limit_streams(LIMIT);
    let window = |w: &StreamWorld, key: &str| w.keys.loaded_stream(key.as_bytes()).window.len();
    for n in 0..40 {
        add_long(&mut w, &format!("s{n}"), 10_000);
        // The first one is used again and again.
        add_long(&mut w, "s0", 10);
        let (loaded, bytes, _) = w.keys.stream_stats();
        assert!(bytes <= LIMIT, "{bytes}");
        assert_eq!(loaded, n + 1);
    }
    assert!(window(&w, "s0") > 30 && window(&w, "s39") == 2);
    assert_eq!(window(&w, "s1"), 0);
    assert!(w.keys.stream_budget().1 >= 30);
    // A stream without a window accepts entries, which become its window.
    add_long(&mut w, "s1", 10);
    assert_eq!(window(&w, "s1"), 2);
    assert_eq!(w.keys.loaded_stream(b"s1").len(), 4);
    // Entries in flight stay in memory, however many bytes they are.
    let long = vec![b'v'; LIMIT * 2];
    w.command(|k| {
        assert_eq!(k.stream(b"s2").unwrap(), StreamKey::Loaded);
        let words: [&[u8]; 2] = [b"f", &long];
        k.append_entry(b"s2", StreamId::new(1_000_000, 0), 1, words.into_iter());
    });
    assert_eq!(window(&w, "s2"), 1);
    assert!(w.keys.stream_stats().1 > LIMIT);
    w.commit();
    assert!(w.keys.stream_stats().1 <= LIMIT);
    // Everything that is counted is given back.
    w.command(|k| k.flush().unwrap());
    w.commit();
    assert_eq!((w.keys.stream_stats().1, w.keys.stream_memory()), (0, 0));
}

/// The number of loaded streams is bounded, and the most recently used ones stay.
#[test]
fn the_streams_used_last_stay_loaded() {
    let (mut w, _) = in_memory();
    for n in 0..1100 {
        assert!(w.add(&format!("s{n}")) && w.add("first"));
        if n % 100 == 0 {
            w.commit();
        }
    }
    w.commit();
    assert_eq!(w.keys.stream_stats().0, 1024);
    assert_eq!(w.keys.loaded_stream(b"first").len(), 1100);
    assert_eq!(w.keys.loaded_stream(b"s1099").len(), 1);
    let mut is_loaded = |key: &str| w.command(|k| k.stream(key.as_bytes()).is_ok());
    assert!(!is_loaded("s0") && !is_loaded("s50") && is_loaded("s200"));
    // No stream stays under a tiny budget.
    w.keys.limit_streams(1);
    assert!(w.add("first"));
    w.commit();
    assert_eq!(w.keys.stream_stats(), (0, 0, 2201));
}

/// Runs a command of a client that needs a stream. Returns the need if the stream is not loaded.
fn find_as(w: &mut StreamWorld, client: u64, key: &str) -> Option<StreamNeed> {
    w.keys.set_client(client, false);
    let found = w.command(|k| k.stream(key.as_bytes()));
    w.keys.set_client(0, false);
    match found {
        Ok(found) => {
            assert_eq!(found, StreamKey::Loaded);
            None
        }
        Err(Missed::Stream(need)) => Some(need),
        Err(e) => panic!("{e:?}"),
    }
}

fn run_job(w: &mut StreamWorld, client: u64, need: Option<StreamNeed>) {
    let Some(StreamNeed::Job(job)) = need else {
        panic!("there is no job");
    };
    let answer = crate::stream::jobs::run(&*w.store, *job);
    w.keys.take_stream_answer(client, answer);
}

/// A request gets the streams that it needs under any budget, however many other streams are in
/// memory and have writes in flight. Afterwards they leave.
#[test]
fn pinned_streams_stay_until_their_request_ends() {
    let (mut w, _) = in_memory();
    assert!(w.add("a") && w.add("b"));
    w.commit();
    assert!(find_as(&mut w, 7, "a").is_none());
    w.keys.limit_streams(1);
    // The request of client 7 needs both streams.
    w.keys.end_stream_request(7);
    assert_eq!(w.keys.stream_stats().0, 0);
    let need = find_as(&mut w, 7, "a");
    run_job(&mut w, 7, need);
    let need = find_as(&mut w, 7, "b");
    for n in 0..600 {
        assert!(w.add(&format!("s{n}")));
    }
    assert_eq!(w.keys.stream_stats().0, 601);
    w.commit();
    assert_eq!(w.keys.stream_stats().0, 1);
    run_job(&mut w, 7, need);
    assert!(find_as(&mut w, 7, "a").is_none() && find_as(&mut w, 7, "b").is_none());
    // Another request uses one of the streams, and writes it.
    assert!(w.add("b"));
    w.commit();
    assert_eq!((w.keys.stream_stats().0, w.keys.stream_pins()), (2, (2, 0)));
    // The windows leave, and another thread reads the entries.
    assert_eq!(w.keys.loaded_stream(b"a").window.len(), 0);
    w.keys.end_stream_request(7);
    assert_eq!(w.keys.stream_stats(), (0, 0, 603));
    assert_eq!(w.keys.stream_pins(), (0, 0));
}

/// A stream that was in memory before its request had to wait stays, too.
#[test]
fn a_request_pins_the_streams_that_it_finds_again() {
    let (mut w, _) = in_memory();
    assert!(w.add("a") && w.add("b"));
    w.commit();
    w.keys.limit_streams(1);
    w.keys.end_stream_request(7);
    let need = find_as(&mut w, 7, "b");
    w.keys.limit_streams(usize::MAX);
    assert!(w.add("a"));
    w.commit();
    assert!(find_as(&mut w, 7, "a").is_none());
    run_job(&mut w, 7, need);
    w.keys.limit_streams(1);
    assert!(w.add("c"));
    w.commit();
    assert!(find_as(&mut w, 7, "a").is_none() && find_as(&mut w, 7, "b").is_none());
    w.keys.end_stream_request(7);
    assert_eq!(w.keys.stream_stats().0, 0);
}

/// Streams without pins stay within the budget, whatever their groups take. A stream that is larger
/// than the budget serves its request.
#[test]
fn groups_do_not_hold_streams_above_the_budget() {
    const LIMIT: usize = 50_000;
    let (mut w, _) = in_memory();
    w.keys.limit_streams(LIMIT);
    let grow = |w: &mut StreamWorld, key: &str, groups: usize| {
        assert!(w.add(key));
        w.command(|k| {
            for n in 0..groups {
                k.create_group(
                    key.as_bytes(),
                    n.to_string().as_bytes(),
                    StreamId::MIN,
                    None,
                );
            }
        });
    };
    for n in 0..20 {
        grow(&mut w, &format!("s{n}"), 40);
        w.commit();
        assert!(w.keys.stream_stats().1 <= LIMIT);
    }
    assert!((1..20).contains(&w.keys.stream_stats().0));
    grow(&mut w, "large", 1_000);
    assert!(w.keys.stream_stats().1 > LIMIT);
    w.commit();
    assert_eq!(w.keys.stream_stats().1, 0);
    let need = find_as(&mut w, 7, "large");
    run_job(&mut w, 7, need);
    assert!(find_as(&mut w, 7, "large").is_none());
    assert!(w.keys.loaded_stream(b"large").groups.get(b"999").is_some());
    w.keys.end_stream_request(7);
    assert_eq!(w.keys.stream_stats().1, 0);
}

/// The groups and tombstones of a stream count in the budget, and their removal reduces the count
/// by the same bytes.
#[test]
fn groups_and_tombstones_count_in_the_budget() {
    let (mut w, _) = in_memory();
    assert!(w.add("s"));
    w.commit();
    let before = w.keys.stream_stats().1;
    for n in 0..200 {
        assert!(w.add("s"));
        if n % 2 == 0 {
            w.add_elements("s");
        }
        w.commit();
    }
    let bytes = w.keys.stream_stats().1;
    let of_groups = w.keys.loaded_stream(b"s").groups.memory();
    assert!(of_groups > 100 * 256, "{of_groups}");
    assert!(bytes > before + of_groups + 100 * 8, "{bytes}");
    for group in 0..1_000 {
        let name = group.to_string();
        w.command(|k| {
            let there = k.loaded_stream(b"s").groups.get(name.as_bytes()).is_some();
            if there {
                k.destroy_group(b"s", name.as_bytes());
            }
        });
    }
    w.commit();
    assert_eq!(w.keys.loaded_stream(b"s").groups.memory(), 0);
    assert_eq!(w.keys.stream_stats().1, bytes - of_groups);
    w.delete("s");
    assert_eq!(w.keys.stream_stats().1, 0);
}

/// After a power cut at any change of the disk, with synced and unsynced commits, every key with a
/// stream has its log, and the log is readable. The sweep of the next start removes all other logs.
#[test]
fn no_power_cut_leaves_a_stream_without_its_log() {
    let (mut states, mut left_elements) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..4 * basalt_sim::campaign::scale()) {
        let fs = SimFs::new(SimOptions::default());
        let open = |fs: &Arc<SimFs>| {
            let env = EnvBuilder::new(fs.clone()).build();
            DbStore::open(&env, Path::new("db"), engine_defaults()).unwrap()
        };
        let points: Arc<Mutex<Vec<basalt_sim::SimSnapshot>>> = Arc::default();
        let mut w = StreamWorld::over(Arc::new(open(&fs)));
        w.sync = seed % 2 == 0;
        let to = points.clone();
        fs.on_mutation(move |snapshot| to.lock().push(snapshot));
        let r = Random::from_seed(seed);
        for _ in 0..40 {
            let key = format!("k{}", r.below(4));
            match r.below(12) {
                0..3 => drop(w.add(&key)),
                3..5 => {
                    if w.add(&key) {
                        w.add_elements(&key);
                    }
                }
                5..7 => w.delete(&key),
                7 => w.set(&key),
                8 => drop(w.expire(&key, w.now_ms + 1)),
                9 => {
                    w.now_ms += 1;
                    w.keys.expire_streams(w.now_ms);
                }
                10 if r.below(4) == 0 => w.command(|k| k.flush().unwrap()),
                10 => w.store.sync().unwrap(),
                _ => w.commit(),
            }
            if r.below(3) == 0 {
                // A deletion that is not synced follows a creation that is.
                w.sync = r.below(2) == 0;
                w.commit();
                w.sweep();
            }
        }
        w.commit();
        w.sweep();
        assert_eq!(w.logs(), w.live(), "seed {seed}");
        let with_elements = |w: &StreamWorld| w.elements().into_keys().collect::<BTreeSet<_>>();
        assert!(with_elements(&w).is_subset(&w.live()), "seed {seed}");
        fs.on_mutation(|_| {});
        w.store.close().unwrap();
        let points = std::mem::take(&mut *points.lock());
        for (i, point) in points.iter().enumerate().filter(|(i, _)| i % 2 == 0) {
            let policy = CrashPolicy::ALL[i / 2 % CrashPolicy::ALL.len()];
            let say = format!("seed {seed}, change {i}, {policy:?}");
            let store = Arc::new(open(&point.crash(policy, seed * 1000 + i as u64)));
            let mut w = StreamWorld::over(store.clone());
            let logs = w.logs();
            assert!(w.live().is_subset(&logs), "{say}: {:?}, {logs:?}", w.live());
            let (mut before, live) = (w.elements(), w.live());
            left_elements += u64::from(before.keys().any(|of| !live.contains(of)));
            w.sweep();
            assert_eq!(w.logs(), w.live(), "{say}");
            before.retain(|incarnation, _| live.contains(incarnation));
            assert_eq!(w.elements(), before, "{say}");
            store.close().unwrap();
            states += 1;
        }
    }
    basalt_sim::campaign!(
        "dropped_stream_crash_states={states}, with elements to be removed: {left_elements}"
    );
    let floor = basalt_sim::campaign::scale().floor(100);
    assert!(
        basalt_sim::campaign::case().is_some() || states >= floor,
        "{states}"
    );
}
