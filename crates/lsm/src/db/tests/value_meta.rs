//! Presence, expiry and length of a value: answered without a read of the value, and never wrong if
//! bytes are damaged.

use super::prelude::*;
use crate::db::tests::blobs::{FREE, NOW};
use crate::options::Compression;
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_fs::FileSystem;
use basalt_sim::{SimFs, SimOptions};
use basalt_table::read_exact;
use std::path::Path;
use std::time::Duration;

const LONG: usize = 1 << 20;

/// Has no cache, so that a read of a blob file is a read of the device.
fn env(fs: &Arc<SimFs>) -> (Env, Arc<ManualClock>) {
    let clock = ManualClock::new(NOW);
    let env = EnvBuilder::for_tests(fs.clone(), 1)
        .clock(Clock::manual(clock.clone()))
        .cache_bytes(0)
        .build();
    (env, clock)
}

fn options(codec: Compression) -> Options {
    Options {
        default_family: FamilyOptions {
            min_blob_size: Some(1000),
            blob_compression: codec,
            ..FamilyOptions::default()
        },
        ..Options::default()
    }
}

fn meta(db: &Db, key: &[u8]) -> Option<ValueMeta> {
    let f = db.default_family();
    db.get_meta(&f, key, &ReadOptions::default()).unwrap()
}

fn len(db: &Db, key: &[u8]) -> Option<usize> {
    let (f, options) = (db.default_family(), ReadOptions::default());
    let meta = db.get_len_within(&f, key, &options, 0).unwrap();
    meta.expect("no value has to be read")
        .map(|m| m.len.unwrap())
}

/// Regression test: a program that asked only whether a key exists, or for the length of its value,
/// read the whole value from its blob file. A hundred such calls for a value of 32 MiB took 17
/// seconds.
#[test]
fn presence_expiry_and_length_read_no_value() {
    let fs = SimFs::new(SimOptions::default());
    let (env, clock) = env(&fs);
    let db = Db::open(&env, "db", options(Compression::None)).unwrap();
    let f = db.default_family();
    db.put(&f, b"long", &vec![7; LONG], &FREE).unwrap();
    let mut batch = WriteBatch::new();
    let ends = vec![8; LONG + 1];
    batch.put_ttl(&f, b"ends", &ends, NOW + 1000).unwrap();
    db.write(batch, &FREE).unwrap();
    db.put(&f, b"short", b"12345", &FREE).unwrap();
    db.put(&f, b"gone", &vec![9; LONG], &FREE).unwrap();
    db.delete(&f, b"gone", &FREE).unwrap();
    for flushed in [false, true] {
        if flushed {
            db.flush().unwrap();
        }
        let before = (db.stats().blob_reads, fs.stats().bytes_read);
        let long = meta(&db, b"long").unwrap();
        assert_eq!((long.expire_at_ms, long.inline.is_none()), (None, flushed));
        let ends = meta(&db, b"ends").unwrap();
        assert_eq!(ends.expire_at_ms, Some(NOW + 1000));
        let short = meta(&db, b"short").unwrap();
        assert_eq!(short.inline.as_deref(), Some(&b"12345"[..]));
        assert_eq!((meta(&db, b"gone"), meta(&db, b"never")), (None, None));
        assert_eq!(len(&db, b"long"), Some(LONG));
        assert_eq!(len(&db, b"ends"), Some(LONG + 1));
        assert_eq!(len(&db, b"short"), Some(5));
        assert_eq!((len(&db, b"gone"), len(&db, b"never")), (None, None));
        let after = db.stats().blob_reads;
        assert_eq!(after.reads, before.0.reads, "values read");
        let heads = if flushed { 2 } else { 0 };
        assert_eq!(after.heads - before.0.heads, heads);
        let bytes = fs.stats().bytes_read - before.1;
        assert!(bytes < 64 << 10, "{bytes} bytes read");
    }
    // Presence alone does not read the blob file.
    let heads = db.stats().blob_reads.heads;
    for _ in 0..10 {
        assert!(meta(&db, b"long").is_some());
    }
    assert_eq!(db.stats().blob_reads.heads, heads);
    clock.advance(Duration::from_secs(2));
    assert_eq!((meta(&db, b"ends"), len(&db, b"ends")), (None, None));
    assert_eq!(len(&db, b"long"), Some(LONG));
    // A value that exceeds the budget is not read.
    let options = ReadOptions::default();
    let reads = db.stats().blob_reads.reads;
    assert!(
        db.get_within(&f, b"long", &options, LONG - 1)
            .unwrap()
            .is_none()
    );
    assert_eq!(
        db.get_within(&f, b"never", &options, 0).unwrap(),
        Some(None)
    );
    assert!(db.get_within(&f, b"short", &options, 0).unwrap().is_some());
    assert_eq!(db.stats().blob_reads.reads, reads);
    let whole = db.get_within(&f, b"long", &options, LONG).unwrap();
    assert_eq!(whole.unwrap().unwrap().value.len(), LONG);
    assert_eq!(db.stats().blob_reads.reads, reads + 1);
}

/// The length of a compressed value is covered by the checksum of the value only. The engine uses
/// it after it has verified the checksum.
#[test]
fn the_length_of_a_compressed_value_is_verified() {
    let fs = SimFs::new(SimOptions::default());
    let (env, _) = env(&fs);
    let db = Db::open(&env, "db", options(Compression::Zstd)).unwrap();
    let f = db.default_family();
    db.put(&f, b"k", &vec![7; LONG], &FREE).unwrap();
    db.flush().unwrap();
    let options = ReadOptions::default();
    let reads = db.stats().blob_reads.reads;
    assert!(meta(&db, b"k").unwrap().inline.is_none());
    assert!(db.get_len_within(&f, b"k", &options, 1).unwrap().is_none());
    assert_eq!(db.stats().blob_reads.reads, reads);
    let known = db.get_len_within(&f, b"k", &options, 64 << 10).unwrap();
    assert_eq!(known.unwrap().unwrap().len, Some(LONG));
    assert_eq!(db.stats().blob_reads.reads, reads + 1);
}

/// Regression test: highly compressible values were judged by their stored lengths. A value with
/// 100 bytes in a file was decompressed to 1 MiB for a call that asked for its length, and for a
/// read that then refused it. A value that is decompressed goes into the cache, where the next read
/// would find it.
#[test]
fn a_compressed_value_is_decompressed_only_within_the_budget() {
    for codec in [Compression::Lz4, Compression::Zstd] {
        let fs = SimFs::new(SimOptions::default());
        let env = EnvBuilder::for_tests(fs, 1).cache_bytes(64 << 20).build();
        let db = Db::open(&env, "db", options(codec)).unwrap();
        let f = db.default_family();
        db.put(&f, b"k", &vec![7; LONG], &FREE).unwrap();
        db.flush().unwrap();
        let options = ReadOptions::default();
        let (budget, before) = (64 << 10, db.stats().blob_reads);
        for n in 1..4 {
            let known = db.get_len_within(&f, b"k", &options, budget).unwrap();
            assert_eq!(known.unwrap().unwrap().len, Some(LONG));
            let value = db.get_within(&f, b"k", &options, budget).unwrap();
            assert!(value.is_none());
            let values = db.multi_get_up_to(&[(&f, b"k"), (&f, b"k")], &options, budget);
            assert!(values.iter().all(Option::is_none));
            let now = db.stats().blob_reads;
            assert_eq!(
                now.hits, before.hits,
                "a decompressed value is in the cache"
            );
            assert_eq!(now.reads, before.reads + 3 * n);
        }
        let value = db.get_within(&f, b"k", &options, LONG).unwrap();
        assert_eq!(value.unwrap().unwrap().value.len(), LONG);
        let value = db.get_within(&f, b"k", &options, LONG).unwrap();
        assert_eq!(value.unwrap().unwrap().value.len(), LONG);
        assert_eq!(db.stats().blob_reads.hits, before.hits + 1);
        let both = [(&f, &b"k"[..]), (&f, &b"never"[..])];
        let values = db.multi_get_up_to(&both, &options, 2 * LONG);
        assert!(values.iter().all(|v| matches!(v, Some(Ok(_)))));
    }
}

/// Each bit of a record's header and key is flipped: the length is right, or the error names the
/// file. A flipped bit in the value does not change the length, and reads still refuse the value.
#[test]
fn a_damaged_header_gives_no_length() {
    let fs = SimFs::new(SimOptions::default());
    let (env, _) = env(&fs);
    let db = Db::open(&env, "db", options(Compression::None)).unwrap();
    let f = db.default_family();
    let value: Vec<u8> = (0..5000u32).flat_map(|n| n.to_be_bytes()).collect();
    db.put(&f, b"the key", &value, &FREE).unwrap();
    db.flush().unwrap();
    let path = Path::new("db").join(&db.blob_files()[0].name);
    let file = fs.open(&path).unwrap();
    let bytes = read_exact(&*file, &path, 0, 10_000).unwrap();
    let at = bytes.windows(7).position(|w| w == b"the key").unwrap();
    let read = |budget| db.get_len_within(&f, b"the key", &ReadOptions::default(), budget);
    let sound = read(0).unwrap().unwrap().unwrap();
    assert_eq!(sound.len, Some(value.len()));
    for byte in at - 32..at + 7 {
        for bit in 0..8 {
            fs.flip_bit(&path, byte as u64, bit).unwrap();
            let e = read(1 << 20).expect_err("a damaged header");
            assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
            assert!(e.to_string().contains(".log"), "{e}");
            fs.flip_bit(&path, byte as u64, bit).unwrap();
        }
    }
    fs.flip_bit(&path, (at + 7 + 100) as u64, 0).unwrap();
    assert_eq!(read(0).unwrap().unwrap().unwrap().len, Some(value.len()));
    let e = db.get(&f, b"the key", &ReadOptions::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
}
