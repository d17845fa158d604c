//! Epochs against a store whose commits the test holds back and fails. No reply depends on a write
//! that may be lost, and after a failure the keyspace equals the store.

mod epochs;
mod layers;
mod live_streams;
mod many_names;
mod model;
mod reads;
mod sweep_retries;

use super::*;
use crate::answers::{ManyAnswer, places};
use crate::fetch::Need;
use crate::fetch::many_names::{ManyPiece, read_many};
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

impl World {
    /// Writes a layer of one key, and commits it.
    fn commit_layer(&mut self, key: &str) {
        self.put_many(&[(key.to_string(), "x".to_string())]);
        assert!(self.submit());
        self.complete();
    }
}

fn numbered(n: usize) -> Vec<String> {
    (0..n).map(|n| format!("n{n}")).collect()
}
