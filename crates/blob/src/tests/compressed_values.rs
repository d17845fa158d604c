//! Compressed values in blob files: each value comes back as it was put in. No stored byte and no
//! claim of a value about itself is believed unless it holds.

use crate::compressed::{pack, payload_len, unpack};
use crate::*;
use basalt_env::{CacheKey, Env, EnvBuilder, IoPriority, Random};
use basalt_fs::{ErrorKind, Result};
use basalt_kv::codec::Compression;
use basalt_kv::codec::Effort;
use basalt_kv::key::Kind;
use basalt_kv::{MAX_KEY_LEN, MAX_VALUE_LEN};
use basalt_sim::{SimFs, SimOptions};
use basalt_table::ReadBudget;
use std::path::Path;
use std::sync::Arc;

const PATH: &str = "000007.blob";
const FILE_ID: u128 = 99;
const CODECS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

fn env() -> Env {
    EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 5)
        .cache_bytes(8 << 20)
        .build()
}

fn name(key: &[u8]) -> Name<'_> {
    Name {
        family: 3,
        key,
        seq: 41,
    }
}

/// Returns a value of which half is noise: compression makes it about half as long.
fn value(len: usize, seed: u64) -> Vec<u8> {
    let r = Random::from_seed(seed);
    let part = |i: usize| if i.is_multiple_of(2) { r.next_u64() } else { 7 };
    let words = (0..len.div_ceil(8)).map(|i| part(i / 8).to_le_bytes());
    words.flatten().take(len).collect()
}

fn with_expiry(kind: Kind, value: &[u8]) -> Vec<u8> {
    match kind {
        Kind::PutTtl => [&1_800_000_000_000u64.to_le_bytes()[..], value].concat(),
        _ => value.to_vec(),
    }
}

/// Returns the stored bytes of a payload.
fn compressed(kind: Kind, codec: Compression, payload: &[u8]) -> Vec<u8> {
    pack(kind, codec, Effort::Background, payload, |_, stored| {
        stored.to_vec()
    })
    .expect("compressible")
}

/// Writes a file of one record with these bytes as its value, and with checksums that fit.
fn write(env: &Env, form: &Form, stored: &[u8]) -> BlobMeta {
    let path = Path::new(PATH);
    let _ = env.fs().remove(path);
    let file = env.fs().create(path).unwrap();
    let options = BlobOptions {
        file_id: FILE_ID,
        io: IoPriority::High,
        warm_cache: false,
        warm_records: false,
        compressed: true,
    };
    let mut builder = BlobBuilder::new(env, file, path, options);
    builder.add(&name(b"key"), form, stored).unwrap();
    builder.finish().unwrap()
}

fn open(env: &Env, meta: &BlobMeta) -> BlobReader {
    let file = env.fs().open(Path::new(PATH)).unwrap();
    BlobReader::open(env, Arc::new(file), Path::new(PATH), meta).unwrap()
}

fn read(env: &Env, kind: Kind, codec: Compression, stored: &[u8]) -> Result<basalt_fs::Bytes> {
    let meta = write(env, &Form::of(kind, codec, stored), stored);
    open(env, &meta).get(&name(b"key"), false)
}

#[test]
fn a_compressed_value_reads_back_and_is_an_eighth_shorter() {
    for codec in CODECS {
        let cases =
            [Kind::Put, Kind::PutTtl].map(|k| [(k, Effort::Writer), (k, Effort::Background)]);
        for (kind, effort) in cases.into_iter().flatten() {
            for len in [0, 1, 15, 16, 17, 100, 1000, 4096, 300_000] {
                let flat = with_expiry(kind, &vec![9; len]);
                match pack(kind, codec, effort, &flat, |form, stored| {
                    (*form, stored.to_vec())
                }) {
                    None => assert!(len < 60, "{codec:?} {len}"),
                    Some((form, stored)) => {
                        assert_eq!(form, Form::of(kind, codec, &stored));
                        assert_eq!(form.len, stored.len());
                        assert!(flat.len() - stored.len() >= len / 8, "{codec:?} {len}");
                        assert_eq!(payload_len(kind, codec, &stored), Ok(flat.len()));
                        assert_eq!(unpack(kind, codec, &stored, 0).unwrap(), flat);
                        let behind = unpack(kind, codec, &stored, 5).unwrap();
                        assert_eq!(behind[5..], flat[..]);
                    }
                }
                let r = Random::from_seed(len as u64);
                let noise: Vec<u8> = (0..len).map(|_| r.next_u64() as u8).collect();
                let noise = with_expiry(kind, &noise);
                assert!(
                    pack(kind, codec, effort, &noise, |_, _| ()).is_none(),
                    "{len}"
                );
            }
        }
    }
    assert!(
        pack(
            Kind::Put,
            Compression::None,
            Effort::Writer,
            &[0; 1000],
            |_, _| ()
        )
        .is_none()
    );
}

#[test]
fn every_flipped_bit_of_a_compressed_record_is_found() {
    for codec in CODECS {
        for kind in [Kind::Put, Kind::PutTtl] {
            let env = env();
            let stored = compressed(kind, codec, &with_expiry(kind, &value(200, 1)));
            let meta = write(&env, &Form::of(kind, codec, &stored), &stored);
            let file = env.fs().open(Path::new(PATH)).unwrap();
            let record = file.read(64, meta.data_end as usize - 64).unwrap().to_vec();
            let path = Path::new(PATH);
            assert!(record::check_is(path, FILE_ID, 64, &record, &name(b"key")).is_ok());
            for bit in 0..record.len() * 8 {
                let mut flipped = record.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let error = record::check(path, FILE_ID, 64, &flipped).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corruption, "bit {bit}");
                assert_eq!((error.path(), error.offset()), (Some(path), Some(64)));
            }
        }
    }
}

/// The checksum fits a wrong claim, as a faulty writer or an attacker who can compute checksums
/// would leave it.
#[test]
fn a_wrong_length_in_a_compressed_value_is_damage() {
    for codec in CODECS {
        for kind in [Kind::Put, Kind::PutTtl] {
            let env = env();
            let payload = with_expiry(kind, &value(1000, 2));
            let stored = compressed(kind, codec, &payload);
            assert_eq!(read(&env, kind, codec, &stored).unwrap(), payload);
            let length_at = payload.len() - 1000;
            let mut lies = Vec::new();
            for lie in [
                0,
                1,
                999,
                1001,
                255_000,
                MAX_VALUE_LEN as u32,
                MAX_VALUE_LEN as u32 + 1,
                u32::MAX,
            ] {
                let mut lied = stored.clone();
                lied[length_at..length_at + 4].copy_from_slice(&lie.to_le_bytes());
                lies.push((format!("length {lie}"), lied));
            }
            for cut in length_at + 5..stored.len() {
                lies.push((format!("cut at {cut}"), stored[..cut].to_vec()));
            }
            lies.push(("one byte more".into(), [&stored[..], &[0]].concat()));
            let twice = [&stored[..], &stored[length_at + 4..]].concat();
            lies.push(("two of them".into(), twice));
            let mut noise = stored.clone();
            noise[length_at + 4..].fill(0x5a);
            lies.push(("noise".into(), noise));
            for (what, lied) in lies {
                let error = read(&env, kind, codec, &lied).expect_err(&what);
                assert_eq!(error.kind(), ErrorKind::Corruption, "{what}: {error}");
                assert_eq!(error.path(), Some(Path::new(PATH)), "{what}");
                assert_eq!(error.offset(), Some(64), "{what}");
                let report = inspect::verify(&env, Path::new(PATH), &mut |_| ());
                assert!(report.unwrap_err().is_corruption(), "{what}");
                let file = env.fs().open(Path::new(PATH)).unwrap();
                let found = salvage::salvage(&*file, Path::new(PATH), None, &mut |_| Ok(()));
                assert_eq!(found.unwrap().records, 0, "{what}");
            }
            // Another codec than the one that compressed the value. Unknown codecs follow below.
            let other = CODECS[usize::from(codec == Compression::Lz4)];
            assert!(
                read(&env, kind, other, &stored)
                    .unwrap_err()
                    .is_corruption()
            );
        }
    }
    let mut head = vec![0; record::HEADER_LEN];
    for codec in 0..=255u8 {
        record::begin(
            &mut head,
            0,
            0,
            &Form::of(Kind::Put, Compression::None, &[0; 30]),
        );
        head[31] = codec;
        assert_eq!(
            record::BlobRecordHeader::parse(&head).is_ok(),
            codec <= 2,
            "codec {codec}"
        );
    }
    // This value has no room for a length.
    record::begin(
        &mut head,
        0,
        0,
        &Form::of(Kind::Put, Compression::Lz4, &[0; 4]),
    );
    assert!(record::BlobRecordHeader::parse(&head).is_err());
    record::begin(
        &mut head,
        0,
        0,
        &Form::of(Kind::PutTtl, Compression::Zstd, &[0; 12]),
    );
    assert!(record::BlobRecordHeader::parse(&head).is_err());
    assert!(record::MAX_LEN as usize >= MAX_KEY_LEN + MAX_VALUE_LEN);
}

#[test]
fn a_cached_value_is_decompressed_and_charged_at_its_length() {
    for codec in CODECS {
        let env = env();
        let payload = value(20_000, 3);
        let stored = compressed(Kind::Put, codec, &payload);
        let meta = write(&env, &Form::of(Kind::Put, codec, &stored), &stored);
        let reader = open(&env, &meta);
        let key = CacheKey {
            file: FILE_ID,
            offset: 64,
        };
        assert_eq!(reader.get(&name(b"key"), false).unwrap(), payload);
        assert!(env.cache().get(key).is_none(), "it was not to be kept");
        assert_eq!(reader.get(&name(b"key"), true).unwrap(), payload);
        let record = env.cache().get(key).expect("kept");
        assert_eq!(record.len(), record::HEADER_LEN + 3 + payload.len());
        let path = Path::new(PATH);
        let head = record::check_is(path, FILE_ID, 64, &record, &name(b"key")).unwrap();
        assert!(!head.is_compressed());
        let before = env.fs().stats().reads;
        assert_eq!(reader.get(&name(b"key"), true).unwrap(), payload);
        assert_eq!(env.fs().stats().reads, before);
        // The file has the value as it was written.
        reader
            .walk(&|_| true, &mut |_| Ok(()), &mut |_, r| {
                assert_eq!((r.codec, &r.value[..]), (codec, &stored[..]));
                assert_eq!(r.form(), Form::of(Kind::Put, codec, &stored));
                assert_eq!(r.payload_len(), Some(payload.len()));
                assert_eq!(r.payload().unwrap(), payload);
                Ok(())
            })
            .unwrap();
        let place = reader.place(0, true).unwrap();
        assert_eq!(reader.stored_again(&name(b"key"), &place).unwrap(), stored);
    }
}

#[test]
fn a_value_is_read_only_if_all_of_it_fits_the_budget() {
    let env = env();
    let payload = value(20_000, 4);
    let stored = compressed(Kind::Put, Compression::Zstd, &payload);
    let meta = write(
        &env,
        &Form::of(Kind::Put, Compression::Zstd, &stored),
        &stored,
    );
    let reader = open(&env, &meta);
    for fill in [false, true, true] {
        let get = |budget: &mut ReadBudget| {
            let how = ReadMode::user(fill);
            reader.get_within(&name(b"key"), how, budget).unwrap()
        };
        let before = env.fs().stats().reads;
        let mut little = ReadBudget::bytes(stored.len() - 1);
        assert!(get(&mut little).is_none());
        assert!(
            env.fs().stats().reads - before <= 2,
            "nothing but the index is read"
        );
        for bytes in [stored.len(), payload.len() - 1] {
            let mut budget = ReadBudget::bytes(bytes);
            assert!(get(&mut budget).is_none(), "{bytes}");
            assert!(budget.take(bytes) && !budget.take(1), "it is as it was");
        }
        let mut budget = ReadBudget::bytes(payload.len());
        assert_eq!(get(&mut budget).unwrap(), payload);
        assert!(!budget.take(1), "all of it was taken");
    }
}

/// Builds that do not know compressed values would report such records as damaged: the header keeps
/// these builds out.
#[test]
fn the_file_header_says_that_values_may_be_compressed() {
    let env = env();
    let stored = compressed(Kind::Put, Compression::Lz4, &[1; 500]);
    write(
        &env,
        &Form::of(Kind::Put, Compression::Lz4, &stored),
        &stored,
    );
    let file = env.fs().open(Path::new(PATH)).unwrap();
    assert_eq!(file.read(40, 4).unwrap()[..], [1, 0, 0, 0]);
}
