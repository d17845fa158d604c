//! Tests indexes over random hashes and places, and over bytes that no builder wrote.

use super::*;
use crate::record::{HEADER_LEN, Name};
use basalt_env::Random;
use basalt_fs::{FileSystem, HostFs, HostOptions};
use std::path::Path;

/// An index over random hashes, and the answers expected from it.
struct Made {
    keys: Vec<(u64, Range<u64>)>,
    pages: IndexPages,
}

fn made(keys: Vec<(u64, Range<u64>)>) -> Made {
    let mut builder = IndexBuilder::default();
    for (hash, place) in &keys {
        builder.add(*hash, place.clone());
    }
    assert_eq!(builder.len(), keys.len());
    Made {
        keys,
        pages: builder.finish(),
    }
}

fn random(count: usize, seed: u64, gaps: bool) -> Made {
    let random = Random::from_seed(seed);
    let mut at = random.below(1 << 40);
    let keys = (0..count).map(|_| {
        // Sizes range from bytes to mebibytes: the longest are far from the rest.
        let len = 1 + random.below(1 << (1 + random.below(22)));
        if gaps {
            at += random.below(5000);
        }
        at += len;
        (random.next_u64(), at - len..at)
    });
    made(keys.collect())
}

fn check(made: &Made) {
    let pages = &made.pages;
    for (i, (hash, place)) in made.keys.iter().enumerate() {
        let page = &pages.hashes[page_of(*hash, pages.hashes.len() as u64) as usize];
        let found = ordinal(page, *hash).unwrap() as usize;
        let found = std::iter::once(found)
            .chain(twins(page, *hash).unwrap().map(|o| o as usize))
            .find(|o| *o == i);
        assert_eq!(found, Some(i), "hash {hash:x}");
        let at = super::place(&pages.places[i / PLACES_A_PAGE], i % PLACES_A_PAGE).unwrap();
        assert_eq!(at, *place, "record {i}");
    }
    let all: Vec<_> = pages
        .places
        .iter()
        .flat_map(|p| places(p).unwrap())
        .collect();
    assert!(all.iter().eq(made.keys.iter().map(|(_, place)| place)));
}

#[test]
fn every_indexed_record_is_found_at_its_offset() {
    for count in [0, 1, 2, 3, 10, 255, 1023, 1024, 1025, 5000, 70_000] {
        for gaps in [false, true] {
            check(&random(count, 7 + count as u64, gaps));
        }
    }
}

#[test]
fn records_with_the_same_hash_are_all_found() {
    let mut made_up = random(3000, 3, true).keys;
    for i in 0..100 {
        made_up[2000 + 7 * i].0 = made_up[i / 3].0;
    }
    let made = made(made_up);
    check(&made);
    let listed: usize = (made.pages.hashes.iter())
        .map(|p| word_at(p, H_TWINS) as u32 as usize)
        .sum();
    assert_eq!(listed, 100);
}

/// No seed separates these hashes: pairs fall into the same cells under each seed.
#[test]
fn keys_without_a_working_seed_are_found() {
    let unmix = |mut x: u64| {
        x ^= x >> 33;
        x = x.wrapping_mul(0x9cb4_b2f8_1293_37db);
        x ^= x >> 33;
        x = x.wrapping_mul(0x4f74_430c_22a5_4005);
        x ^ (x >> 33)
    };
    let mix = |mut x: u64| {
        x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        x ^ (x >> 33)
    };
    assert_eq!(unmix(mix(12_345)), 12_345);
    let mut keys = Vec::new();
    let mut at = 0;
    let mut add = |hash: u64| {
        keys.push((hash, at..at + 10));
        at += 10;
    };
    for seed in 0..=u64::from(u8::MAX) {
        let salt = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = Random::from_seed(seed).next_u64();
        add(hash);
        add(unmix(mix(hash ^ salt) ^ 1 << 32) ^ salt);
    }
    check(&made(keys));
}

/// Returns the bytes a record of hash pages, and of both kinds of pages.
fn bytes_a_record(made: &Made) -> (f64, f64) {
    let bytes = |pages: &[Vec<u8>]| pages.iter().map(Vec::len).sum::<usize>() as f64;
    let n = made.keys.len() as f64;
    let hashes = bytes(&made.pages.hashes);
    (hashes / n, (hashes + bytes(&made.pages.places)) / n)
}

/// Collects paths and lengths of this project's own files.
fn files(fs: &dyn FileSystem, dir: &Path, into: &mut Vec<(Vec<u8>, u64)>) {
    for entry in fs.list(dir).expect("it is there") {
        let path = dir.join(&entry.name);
        if entry.is_dir {
            files(fs, &path, into);
        } else {
            let len = fs.stat(&path).expect("it was listed").len;
            into.push((path.as_os_str().as_encoded_bytes().to_vec(), len));
        }
    }
}

#[test]
fn the_index_size_a_record_is_bounded() {
    // Each case has 64 MB of values: of 16,000 or 1,000 bytes under random keys of 36 bytes, or
    // real files under their paths.
    let random = Random::from_seed(36);
    let keys = |value: u64, count: usize| -> Vec<(Vec<u8>, u64)> {
        let key = || (0..36).map(|_| random.next_u64() as u8).collect();
        (0..count).map(|_| (key(), value)).collect()
    };
    let mut real = Vec::new();
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let fs = HostFs::new(HostOptions::new(project)).expect("it is there");
    for dir in ["crates", "docs/decisions", "docs/format"] {
        files(&*fs, Path::new(dir), &mut real);
    }
    real.retain(|(_, len)| *len >= 4096);
    assert!(real.len() > 100, "only {} files", real.len());
    // The test takes as many copies of the directory, side by side, as fill a blob file.
    let copies = (64 << 20) / real.iter().map(|(_, len)| len).sum::<u64>() + 1;
    let copy = |n: u64| {
        let name = move |path: &[u8]| [format!("copy-{n}/").as_bytes(), path].concat();
        real.iter().map(move |(path, len)| (name(path), *len))
    };
    let mut paths: Vec<_> = (0..copies).flat_map(copy).collect();
    paths.sort();
    for (what, named, most) in [
        ("16,000 bytes", keys(16_000, 4_100), 2.5),
        ("1,000 bytes", keys(1_000, 60_000), 2.6),
        ("real files", paths, 2.5),
    ] {
        // Records lie side by side, or in a log with a batch's header before each.
        for (gap, both) in [(0, 4.5), (60, 6.5)] {
            let mut at = 4096;
            let records = named.iter().enumerate().map(|(seq, (key, value))| {
                let name = Name {
                    family: 1,
                    key,
                    seq: seq as u64,
                };
                let len = value + (HEADER_LEN + key.len()) as u64;
                at += gap + len;
                (name.hash(7), at - len..at)
            });
            let made = made(records.collect());
            let (key_part, all) = bytes_a_record(&made);
            basalt_sim::campaign!(
                "{what}, {} records, gap {gap}: {key_part:.2} bytes a key, {all:.2} with places",
                made.keys.len()
            );
            assert!(key_part <= most, "{what}: {key_part}");
            assert!(all <= both, "{what}: {all}");
        }
    }
}

#[test]
fn no_page_is_much_longer_than_a_block() {
    let made = random(70_000, 5, true);
    let longest = (made.pages.hashes.iter().chain(&made.pages.places))
        .map(Vec::len)
        .max();
    assert!(longest.unwrap() <= 5000, "{longest:?}");
}

#[test]
fn no_bytes_make_a_lookup_panic() {
    let made = random(1500, 9, true);
    let random = Random::from_seed(11);
    let mut refused = 0;
    let scale = basalt_sim::campaign::scale();
    let rounds = 2000 * scale;
    for _ in 0..rounds {
        for page in [&made.pages.hashes[0], &made.pages.places[0]] {
            let mut page = page.clone();
            for _ in 0..1 + random.below(4) {
                // Half of the changes go to the head, where lengths are.
                let within = if random.below(2) == 0 { 16 } else { page.len() };
                let at = random.below(within as u64) as usize;
                page[at] = random.next_u64() as u8;
            }
            if random.below(4) == 0 {
                page.truncate(random.below(page.len() as u64 + 1) as usize);
            }
            let hash = random.next_u64();
            refused += u64::from(ordinal(&page, hash).is_err());
            let _ = twins(&page, hash).map(|t| t.count());
            let n = random.below(2048) as usize;
            refused += u64::from(super::place(&page, n).is_err());
            let _ = places(&page);
        }
    }
    basalt_sim::campaign!("{rounds} rounds, {refused} refusals");
    assert!(refused > rounds, "{refused}");
}
