//! The real engine: walks over keys, and compactions of flushed ones, read no separated value.

use super::*;
use crate::options::engine_defaults;
use basalt::env::EnvBuilder;
use basalt::{Bottommost, CompactOptions, WriteBatch};
use basalt_sim::{CrashPolicy, SimFs, SimOptions};

const KEYS: u64 = 50;
const LEN: usize = 64 << 10;

/// Makes a store of large strings with small ones between them, all in files.
fn filled() -> (Env, DbStore) {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let store = DbStore::open(&env, Path::new("db"), engine_defaults()).unwrap();
    for n in 0..KEYS {
        for (key, len) in [(2 * n, LEN), (2 * n + 1, 10)] {
            let expiry = (key % 3 == 0).then_some(u64::MAX - key);
            let at = layout::encode_key(DATABASE, 0, format!("{key:03}").as_bytes());
            let value = vec![key as u8; len];
            let mut batch = WriteBatch::new();
            batch
                .put_parts(&store.keys, &at, &STRING_HEADER, &value, expiry)
                .unwrap();
            store.db.write(batch, &WriteOptions::UNSYNCED).unwrap();
        }
    }
    store.db.flush().unwrap();
    assert_eq!(store.stats().blobs.live_records, KEYS);
    (env, store)
}

#[test]
fn a_walk_over_keys_reads_no_separated_value() {
    let (env, store) = filled();
    let before = env.fs().stats().bytes_read;
    let (from, to) = (
        layout::key_prefix(DATABASE, 0),
        layout::key_prefix(DATABASE, 1),
    );
    let mut seen = 0;
    let mut small = 0;
    let paused = store
        .view()
        .scan(&from, &to, u64::MAX, &mut |key, value, expiry| {
            let (_, _, key) = layout::decode_key(key).unwrap();
            assert_eq!(key, format!("{seen:03}").as_bytes());
            assert_eq!(expiry, (seen % 3 == 0).then_some(u64::MAX - seen));
            assert_eq!(value.is_some(), seen % 2 == 1, "{seen}");
            if let Some(value) = value {
                assert_eq!(value, [&STRING_HEADER[..], &[seen as u8; 10]].concat());
                small += 1;
            }
            seen += 1;
            true
        });
    assert_eq!((paused.unwrap(), seen, small), (None, 2 * KEYS, KEYS));
    assert!(store.view().last(&from, &to, u64::MAX).unwrap().is_some());
    assert_eq!(catalog::read(&store.db, &store.keys).unwrap(), Some(0));
    let read = env.fs().stats().bytes_read - before;
    assert!(read < LEN as u64, "{read} bytes read");
}

#[test]
fn keys_of_flushed_generations_are_dropped_without_value_reads() {
    let (env, store) = filled();
    let at = layout::generation_key(DATABASE);
    let record = 1u32.to_le_bytes();
    (store.db)
        .put(&store.keys, &at, &record, &WriteOptions::SYNC)
        .unwrap();
    store.retire_below(1);
    store.db.flush().unwrap();
    let before = env.fs().stats().bytes_read;
    let force = CompactOptions::default().bottommost(Bottommost::Force);
    store.db.compact(&store.keys, &force).unwrap();
    let read = env.fs().stats().bytes_read - before;
    assert!(read < LEN as u64, "{read} bytes read");
    store.db.wait_idle().unwrap();
    assert_eq!(store.stats().blobs.files, 0);
    store.reclaim().unwrap();
}

#[test]
fn collection_headers_are_never_separated() {
    let mut options = engine_defaults();
    options.default_family.min_blob_size = Some(1);
    let options = Retired::default().add_to(options);
    let least = options.family(KEYS_FAMILY).min_blob_size;
    assert_eq!(least, Some(layout::LEAST_MIN_BLOB_SIZE));
    const { assert!(layout::COLLECTION_HEADER_LEN * 4 < layout::LEAST_MIN_BLOB_SIZE) };
}

/// Regression test: cursor numbers were given out before the store had made that durable. After a
/// power cut the same numbers were given out again, for other positions, and a SCAN that continued
/// skipped keys.
#[test]
fn cursor_numbers_are_not_reused_after_a_power_cut() {
    let sim = SimFs::new(SimOptions::default());
    let mut disk = sim;
    let mut next = 1;
    for seed in 1..5 {
        let env = Env::for_tests(disk.clone(), seed);
        let store = DbStore::open(&env, Path::new("db"), engine_defaults()).unwrap();
        assert_eq!(store.reserve_cursors().unwrap(), next);
        next += CURSOR_BLOCK;
        disk = disk.crash(CrashPolicy::NothingUnsynced, seed);
    }
}

/// A long batch is encoded on a thread. Short batches behind it go to the same thread, so that they
/// do not overtake it.
#[test]
fn epochs_are_submitted_in_order_from_any_thread() {
    const EPOCHS: u8 = 60;
    let env = EnvBuilder::new(SimFs::new(SimOptions::default())).build();
    let store = DbStore::open(&env, Path::new("db"), engine_defaults()).unwrap();
    let key = layout::encode_key(DATABASE, 0, b"k");
    let (sender, ended) = std::sync::mpsc::channel();
    for n in 0..EPOCHS {
        let len = if n % 4 == 0 { 1 << 20 } else { 8 };
        let value = Value {
            data_type: DataType::String,
            data: vec![n; len].into(),
            expire_at_ms: None,
        };
        let sender = sender.clone();
        let write = Write::Put {
            key: key.clone(),
            value,
        };
        let done = Box::new(move |r: Result<()>| sender.send(r).unwrap());
        store.submit(vec![write], false, done);
    }
    for _ in 0..EPOCHS {
        ended.recv().unwrap().unwrap();
    }
    let found = store.get(&key).unwrap().unwrap();
    assert_eq!(&found.data[..], [EPOCHS - 1; 8]);
    store.close().unwrap();
}

/// Regression test: a panic ended the thread that encodes batches, and the results of the epochs in
/// its queue were lost. Their clients waited for ever, and the server could not stop.
#[test]
fn a_panic_while_an_epoch_is_submitted_loses_no_result() {
    let env = EnvBuilder::new(SimFs::new(SimOptions::default())).build();
    let store = DbStore::open(&env, Path::new("db"), engine_defaults()).unwrap();
    let write = |key: &[u8]| Write::Put {
        key: Bytes::copy_from_slice(key),
        value: Value {
            data_type: DataType::String,
            data: vec![1; 1 << 20].into(),
            expire_at_ms: None,
        },
    };
    let (sender, results) = std::sync::mpsc::channel();
    for n in 0..4 {
        let sender = sender.clone();
        let key = layout::encode_key(DATABASE, 0, b"k");
        // The engine refuses the long key, so the callback runs on the thread that encodes.
        let (write, panics) = match n % 2 {
            0 => (write(&vec![b'k'; 100_000]), true),
            _ => (write(&key), false),
        };
        let done = Box::new(move |r: Result<()>| {
            sender.send((n, r.is_ok())).unwrap();
            assert!(!panics, "a callback that panics");
        });
        store.submit(vec![write], false, done);
    }
    drop(sender);
    let mut results: Vec<_> = results.iter().collect();
    results.sort();
    assert_eq!(results, [(0, false), (1, true), (2, false), (3, true)]);
    store.close().unwrap();
}

/// A sync covers both engines, no matter which one has unsynced writes.
#[test]
fn a_sync_makes_strings_and_streams_durable() {
    for synced in [false, true] {
        let disk = SimFs::new(SimOptions::default());
        let env = EnvBuilder::new(disk.clone()).build();
        let store = DbStore::open(&env, Path::new("db"), engine_defaults()).unwrap();
        let logs = store.logs().unwrap();
        let log = logs.create("redis.stream.0.1", Default::default()).unwrap();
        let (sender, ended) = std::sync::mpsc::channel();
        let to = sender.clone();
        let append = Append {
            log,
            lsn: 1,
            record: Bytes::from_static(b"entry"),
        };
        store.append(vec![append], false, Box::new(move |r| to.send(r).unwrap()));
        let value = Value {
            data_type: DataType::String,
            data: Bytes::from_static(b"v"),
            expire_at_ms: None,
        };
        let key = layout::encode_key(DATABASE, 0, b"k");
        let write = Write::Put {
            key: key.clone(),
            value,
        };
        store.submit(
            vec![write],
            false,
            Box::new(move |r| sender.send(r).unwrap()),
        );
        for _ in 0..2 {
            ended.recv().unwrap().unwrap();
        }
        if synced {
            store.sync().unwrap();
        }
        let after = disk.crash(CrashPolicy::NothingUnsynced, 1);
        let after = EnvBuilder::new(after).build();
        let store = DbStore::open(&after, Path::new("db"), engine_defaults()).unwrap();
        let log = store.existing_logs().unwrap().log("redis.stream.0.1");
        assert_eq!(log.unwrap().last(), synced.then_some(1));
        assert_eq!(store.get(&key).unwrap().is_some(), synced);
    }
}

#[test]
fn the_defaults_open_a_store_in_pages_and_one_in_levels() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let mut in_pages = engine_defaults();
    in_pages.default_family.pages = Some(basalt::TreeOptions::default());
    for (dir, first, is_in_pages) in [
        ("pages", in_pages, true),
        ("levels", engine_defaults(), false),
    ] {
        for options in [first, engine_defaults()] {
            let store = DbStore::open(&env, Path::new(dir), options).unwrap();
            for family in store.stats().families {
                let found = family.pages.is_some();
                assert_eq!(found, is_in_pages, "{dir} {}", family.name);
            }
            store.close().unwrap();
        }
    }
}
