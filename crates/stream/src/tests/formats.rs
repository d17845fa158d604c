//! Formats: bytes of the extent's header and of edits, and hostile bytes.

use super::*;
use crate::catalog::{Catalog, Change, decode, encode};
use crate::extent::check_header;

/// The bytes are those that docs/format/stream.md shows.
#[test]
fn bytes_are_those_of_the_page() {
    let id = ExtentId(0x0123_4567_89ab_cdef);
    assert_eq!(id.file_name(), "0123456789abcdef.extent");
    assert_eq!(ExtentId::of_file_name("0123456789abcdef.extent"), Some(id));
    for wrong in [
        "0123456789ABCDEF.extent",
        "123.extent",
        "0123456789abcdef",
        "+123456789abcdef.extent",
    ] {
        assert_eq!(ExtentId::of_file_name(wrong), None, "{wrong}");
    }
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    let stream = Stream::create(&env, "d", options()).unwrap();
    let at = append(&stream, b"page").unwrap();
    stream.seal().unwrap();
    let bytes = fs
        .read_all(&Path::new("d").join(at.extent.file_name()))
        .unwrap();
    let unit = fs.info().write_unit;
    assert_eq!(at.offset, unit as u64);
    assert_eq!(&bytes[..8], b"BSLTEXT1");
    assert_eq!(bytes[8..16], at.extent.0.to_le_bytes());
    assert_eq!(bytes[16..28], [0; 12]);
    assert_eq!(bytes[28..32], crc32c::crc32c(&bytes[..28]).to_le_bytes());
    assert!(bytes[32..unit].iter().all(|b| *b == 0));
    assert_eq!(&bytes[unit..unit + 4], b"page");

    let changes = [
        Change::Stream(1),
        Change::NextManifest(2),
        Change::Add(ExtentId(3)),
        Change::Seal(ExtentId(3), 300),
        Change::Erase(ExtentId(3)),
    ];
    let bytes = encode(&changes);
    let id = [3, 0, 0, 0, 0, 0, 0, 0];
    let expected: Vec<u8> = [
        &[1, 16, 1][..],
        &[0; 15],
        &[2, 1, 2],
        &[3, 8],
        &id,
        &[4, 10],
        &id,
        &[0xac, 2],
        &[5, 8],
        &id,
    ]
    .concat();
    assert_eq!(bytes, expected);
    assert_eq!(decode(&bytes).unwrap(), changes);
}

/// Cut, changed and random edits are errors, and never panics. An edit that does not fit is
/// refused.
#[test]
fn hostile_edits_are_refused() {
    let changes = [Change::Add(ExtentId(7)), Change::Seal(ExtentId(7), 1 << 40)];
    let bytes = encode(&changes);
    for cut in 1..bytes.len() {
        match decode(&bytes[..cut]) {
            Ok(found) => assert_eq!(found[..], changes[..1]),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption),
        }
    }
    let random = Random::from_seed(1);
    for _ in 0..20_000 {
        let mut bytes = encode(&changes);
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        if let Ok(found) = decode(&bytes) {
            let _ = Catalog::default().apply(&found);
        }
    }
    assert_eq!(decode(&[6, 0]).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(decode(&[200, 1, 1, 5]).unwrap(), []);
    let seven = ExtentId(7);
    for wrong in [
        &[Change::Erase(seven)][..],
        &[Change::Seal(seven, 1)],
        &[Change::Add(seven), Change::Add(seven)],
        &[
            Change::Add(seven),
            Change::Seal(seven, 1),
            Change::Seal(seven, 2),
        ],
    ] {
        let e = Catalog::default().apply(wrong).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{wrong:?}");
    }
}

/// Every flipped bit of a header is found, and so is the file of another extent.
#[test]
fn damaged_headers_and_missing_files_are_found() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    let stream = Stream::create(&env, "d", options()).unwrap();
    let places = [b"one", b"two"].map(|data| {
        let at = append(&stream, data).unwrap();
        stream.seal().unwrap();
        at
    });
    drop(stream);
    let path = |at: Place| Path::new("d").join(at.extent.file_name());
    let header = fs.read_all(&path(places[0])).unwrap();
    assert!(check_header(&header[..32], places[0].extent).is_ok());
    assert!(check_header(&header[..31], places[0].extent).is_err());
    for bit in 0..32 * 8 {
        let mut damaged = header[..32].to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(
            check_header(&damaged, places[0].extent).is_err(),
            "bit {bit}"
        );
    }
    let snapshot = fs.snapshot();
    let swapped = snapshot.kill();
    swapped
        .swap_files(&path(places[0]), &path(places[1]))
        .unwrap();
    let stream = Stream::open(&Env::for_tests(swapped, 1), "d", options()).unwrap();
    let e = stream.read(places[0], 3).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert_eq!(e.path(), Some(&*path(places[0])));
    let missing = snapshot.kill();
    missing.remove(&path(places[1])).unwrap();
    let e = Stream::open(&Env::for_tests(missing, 1), "d", options()).err();
    assert_eq!(e.unwrap().path(), Some(&*path(places[1])));
    let cut = snapshot.kill();
    cut.truncate(&path(places[1]), places[1].offset).unwrap();
    let e = Stream::open(&Env::for_tests(cut, 1), "d", options()).err();
    let e = e.unwrap();
    assert_eq!(
        (e.kind(), e.path()),
        (ErrorKind::Corruption, Some(&*path(places[1])))
    );
}
