//! The decoders of blob files as targets of mutators: what each may be fed with, and what must hold
//! whatever it is fed with.
//!
//! Compiled for tests and under coverage-guided fuzzing (`--cfg fuzzing`) only. The list with the
//! promise that each checks is in `docs/testing/fuzzing.md`.

use super::builder::{BlobBuilder, BlobOptions};
use super::index::{self, IndexBuilder, PLACES_A_PAGE};
use super::layout::{Directory, FOOTER_LEN, Footer};
use super::reader::BlobReader;
use super::record::{self, BlobRecordHeader, Form, Name};
use super::{BlobMeta, FamilyShare, compressed, inspect, salvage};
use basalt_env::{Env, IoPriority};
use basalt_kv::codec::Compression;
use basalt_kv::codec::Effort;
use basalt_kv::key::Kind;
use basalt_sim::mutate::{Target, Verdict};
use basalt_sim::{SimFs, SimOptions};
use std::path::Path;
use std::sync::{Arc, OnceLock};

const PATH: &str = "000001.blob";
const FILE_ID: u128 = 99;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "blob_record",
        run: blob_record,
        seeds: || sample().records.clone(),
        words: &[],
    },
    Target {
        name: "blob_hash_page",
        run: blob_hash_page,
        seeds: || vec![[&7u64.to_le_bytes()[..], &pages(true).0].concat()],
        words: &[],
    },
    Target {
        name: "blob_position_page",
        run: blob_position_page,
        seeds: || vec![pages(true).1, pages(false).1],
        words: &[],
    },
    Target {
        name: "blob_directory",
        run: blob_directory,
        seeds: || vec![sample().directory.clone()],
        words: &[],
    },
    Target {
        name: "blob_file",
        run: blob_file,
        seeds: || vec![sample().file.clone()],
        words: &[b"BSLTblb\x01", b"BSLTbln\x01"],
    },
];

struct Sample {
    file: Vec<u8>,
    meta: BlobMeta,
    /// Records that are uncompressed, compressed by lz4, and compressed by zstd.
    records: Vec<Vec<u8>>,
    directory: Vec<u8>,
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:03}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    vec![n as u8; 20 + n as usize]
}

fn sample_name(key: &[u8], n: u64) -> Name<'_> {
    Name {
        family: (n % 2) as u32,
        key,
        seq: n + 1,
    }
}

const RECORDS: u64 = 30;

fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
        let path = Path::new(PATH);
        let file = env.fs().create(path).expect("create");
        let options = BlobOptions {
            file_id: FILE_ID,
            io: IoPriority::High,
            warm_cache: false,
            warm_records: false,
            compressed: true,
        };
        let mut builder = BlobBuilder::new(&env, file, path, options);
        let mut begins = Vec::new();
        for n in 0..RECORDS {
            let (key, value) = (key(n), value(n));
            let name = sample_name(&key, n);
            let codec = [Compression::None, Compression::Lz4, Compression::Zstd][n as usize % 3];
            begins.push(builder.size() as usize);
            compressed::pack(Kind::Put, codec, Effort::Writer, &value, |form, stored| {
                builder.add(&name, form, stored).expect("add");
            })
            .unwrap_or_else(|| {
                let form = Form::plain(Kind::Put, &value);
                builder.add(&name, &form, &value).expect("add");
            });
        }
        let meta = builder.finish().expect("finish");
        let file = env.fs().open(path).expect("open");
        let bytes = file.read(0, meta.size as usize).expect("read").to_vec();
        let footer = &bytes[bytes.len() - FOOTER_LEN..];
        let footer = Footer::decode(path, FILE_ID, meta.size, footer).expect("footer");
        let at = footer.directory as usize;
        Sample {
            records: (27..30)
                .map(|n| bytes[begins[n]..][..136].to_vec())
                .collect(),
            directory: bytes[at..at + footer.directory_len as usize].to_vec(),
            file: bytes,
            meta,
        }
    })
}

/// Returns a hash page and a position page.
fn pages(gaps: bool) -> (Vec<u8>, Vec<u8>) {
    let mut builder = IndexBuilder::default();
    for n in 0..200u64 {
        let at = n * 1000;
        builder.add(
            n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            at..at + 1000 - u64::from(gaps),
        );
    }
    let mut pages = builder.finish();
    (pages.hashes.remove(0), pages.places.remove(0))
}

/// Reads any bytes as a record. An accepted record lies inside the bytes, and a record encoded anew
/// from its parts is accepted.
fn blob_record(bytes: &[u8]) -> Verdict {
    let path = Path::new(PATH);
    let Ok(head) = BlobRecordHeader::parse(bytes) else {
        assert!(record::check(path, FILE_ID, 64, bytes).is_err());
        return Verdict::Refused;
    };
    if let Ok(checked) = record::check(path, FILE_ID, 64, bytes) {
        assert!(checked.record_len() <= bytes.len());
    }
    let Some(parts) = bytes.get(record::HEADER_LEN..head.record_len()) else {
        return Verdict::Refused;
    };
    let (key, value) = parts.split_at(head.key_len);
    let name = Name {
        family: head.family,
        key,
        seq: head.seq,
    };
    let form = Form::of(head.kind, head.codec, value);
    let mut again = Vec::new();
    record::encode_head(&mut again, FILE_ID, 64, &name, &form);
    again.extend_from_slice(value);
    let found = record::check_is(path, FILE_ID, 64, &again, &name).expect("sealed");
    assert_eq!(found.value(), head.value());
    assert!(record::check(path, FILE_ID, 65, &again).is_err());
    if head.is_compressed()
        && let Ok(plain) = record::unpacked(path, FILE_ID, 64, &again)
    {
        let plain_head = record::check_is(path, FILE_ID, 64, &plain, &name).expect("made anew");
        let len = compressed::payload_len(head.kind, head.codec, value);
        assert_eq!(Ok(plain_head.value_len), len);
        assert!(!plain_head.is_compressed() && plain.len() == plain_head.record_len());
    }
    Verdict::Accepted
}

/// Looks up a hash in any bytes as a hash page.
fn blob_hash_page(input: &[u8]) -> Verdict {
    let Some((hash, page)) = input.split_first_chunk::<8>() else {
        return Verdict::Refused;
    };
    let hash = u64::from_le_bytes(*hash);
    assert!(index::page_of(hash, 9) < 9);
    match (index::ordinal(page, hash), index::twins(page, hash)) {
        (Ok(_), Ok(twins)) => {
            assert!(twins.count() <= page.len());
            Verdict::Accepted
        }
        (Err(_), Err(_)) => Verdict::Refused,
        _ => panic!("a page is sound for one question and not for the other"),
    }
}

/// Reads any bytes as a position page. If all places are accepted, they are in order, and each is
/// found alone.
fn blob_position_page(page: &[u8]) -> Verdict {
    for n in [0, 1, PLACES_A_PAGE - 1, usize::MAX / 4] {
        if let Ok(place) = index::place(page, n) {
            assert!(place.start < place.end);
        }
    }
    let Ok(all) = index::places(page) else {
        return Verdict::Refused;
    };
    assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
    for (n, place) in all.iter().enumerate() {
        assert_eq!(index::place(page, n).as_ref(), Ok(place));
    }
    Verdict::Accepted
}

/// Reads any bytes as a directory. An accepted directory is written back the same.
fn blob_directory(bytes: &[u8]) -> Verdict {
    match Directory::decode(bytes) {
        Some(d) => {
            // Fields that later versions add are skipped.
            assert!(bytes.starts_with(&d.encode()));
            Verdict::Accepted
        }
        None => Verdict::Refused,
    }
}

/// Reads any bytes as the blob file that the manifest has for the sample: every lookup ends, with a
/// value or an error.
fn blob_file(bytes: &[u8]) -> Verdict {
    let disk = SimFs::new(SimOptions::default());
    let path = Path::new(PATH);
    disk.write_file(path, bytes).expect("write");
    let env = Env::for_tests(disk, 1);
    let meta = BlobMeta {
        size: bytes.len() as u64,
        ..sample().meta.clone()
    };
    let file = env.fs().open(path).expect("open");
    let _ = inspect::verify(&env, path, &mut |_| ());
    let mut given = 0;
    let walked = salvage::salvage(&*file, path, Some(FILE_ID), &mut |_| {
        given += 1;
        Ok(())
    });
    if let Ok(w) = walked {
        let apart = w.lost.windows(2).all(|two| two[0].end <= two[1].start);
        assert!(apart && w.records <= given, "{w:?}");
    }
    let Ok(reader) = BlobReader::open(&env, Arc::new(file), path, &meta) else {
        return Verdict::Refused;
    };
    let shares = reader.families().values();
    assert_eq!(
        shares.map(|s: &FamilyShare| s.records).sum::<u64>(),
        RECORDS
    );
    let mut right = 0;
    for n in 0..RECORDS {
        let key = key(n);
        let name = sample_name(&key, n);
        // A checksum can be made to fit. The value that it then covers is another one.
        right += u64::from(reader.get(&name, true).is_ok_and(|found| found == value(n)));
        let _ = reader.find(&name, false);
    }
    Verdict::of(right == RECORDS)
}

#[cfg(test)]
mod tests;
