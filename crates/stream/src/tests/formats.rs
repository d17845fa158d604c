//! Formats: bytes of the extent's header and of edits, and hostile bytes.

use super::*;
use crate::catalog::{Catalog, Change, NewExtent, decode, encode};
use crate::extent::check_header;

fn new(id: u64, seq: u64) -> Change {
    let id = ExtentId(id);
    Change::Add(NewExtent { id, life: 9, seq })
}

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
    assert!(bytes[16..32].iter().any(|b| *b > 0));
    assert_eq!(bytes[32..44], [0; 12]);
    assert_eq!(bytes[44..48], crc32c::crc32c(&bytes[..44]).to_le_bytes());
    assert!(bytes[48..unit].iter().all(|b| *b == 0));
    assert_eq!(&bytes[unit..unit + 4], b"page");

    let changes = [
        Change::Stream(1),
        Change::NextManifest(2),
        new(3, 5),
        Change::Seal(ExtentId(3), 300),
        Change::Erase(ExtentId(3)),
    ];
    let bytes = encode(&changes);
    let id = [3, 0, 0, 0, 0, 0, 0, 0];
    let expected: Vec<u8> = [
        &[1, 16, 1][..],
        &[0; 15],
        &[2, 1, 2],
        &[3, 25],
        &id,
        &[9],
        &[0; 15],
        &[5],
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
    let changes = [new(7, 0), Change::Seal(ExtentId(7), 1 << 40)];
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
            let mut catalog = Catalog::default();
            let _ = catalog.apply(&[Change::Stream(1)]);
            let _ = catalog.apply(&found);
        }
    }
    assert_eq!(decode(&[6, 0]).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(decode(&[200, 1, 1, 5]).unwrap(), []);
    let seven = ExtentId(7);
    let first = Change::Stream(1);
    for wrong in [
        &[new(7, 0)][..],
        &[first, first],
        &[first, Change::Erase(seven)],
        &[first, Change::Seal(seven, 1)],
        &[first, new(7, 0), new(7, 1)],
        &[first, new(7, 1), new(8, 1)],
        &[first, new(7, u64::MAX)],
        &[
            first,
            new(7, 0),
            Change::Seal(seven, 1),
            Change::Seal(seven, 2),
        ],
    ] {
        let e = Catalog::default().apply(wrong).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{wrong:?}");
    }
    let mut catalog = Catalog::default();
    let right = [first, new(8, 0), new(7, 3), Change::Seal(seven, 1)];
    catalog.apply(&right).unwrap();
    let mut again = Catalog::default();
    again.apply(&catalog.changes()).unwrap();
    assert_eq!(again, catalog);
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
    let path = |at: ExtentAddress| Path::new("d").join(at.extent.file_name());
    let header = fs.read_all(&path(places[0])).unwrap();
    let (id, life) = (
        places[0].extent,
        u128::from_le_bytes(header[16..32].try_into().unwrap()),
    );
    assert!(check_header(&header[..48], id, life).is_ok());
    assert!(check_header(&header[..47], id, life).is_err());
    assert!(check_header(&header[..48], id, life + 1).is_err());
    for bit in 0..48 * 8 {
        let mut damaged = header[..48].to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(check_header(&damaged, id, life).is_err(), "bit {bit}");
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

/// A stream with missing or truncated extents can be opened only for reading. Reads return all
/// bytes that are left.
#[test]
fn a_reader_has_what_is_left_of_a_damaged_stream() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    let stream = Stream::create(&env, "d", options()).unwrap();
    let places: Vec<ExtentAddress> = (0..6)
        .map(|n| {
            let at = append(&stream, &[n; 1000]).unwrap();
            if n % 2 == 1 {
                stream.seal().unwrap();
            }
            at
        })
        .collect();
    drop(stream);
    let path = |at: ExtentAddress| Path::new("d").join(at.extent.file_name());
    fs.remove(&path(places[1])).unwrap();
    fs.truncate(&path(places[3]), places[3].offset + 10)
        .unwrap();
    let expected = [false, false, true, false, true, true];
    let e = Stream::open(&env, "d", options()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    let reader = Stream::open_read_only(&env, "d", options()).unwrap();
    let damaged: BTreeSet<PathBuf> = (reader.damage().iter())
        .map(|e| e.path().unwrap().to_path_buf())
        .collect();
    assert_eq!(damaged, [path(places[1]), path(places[3])].into());
    for (n, (at, is_there)) in places.iter().zip(expected).enumerate() {
        match reader.read(*at, 1000) {
            Ok(bytes) => assert!(is_there && bytes[..] == [n as u8; 1000]),
            Err(e) => {
                assert!(!is_there, "{e}");
                // All pages that are missing have one error.
                assert!(
                    reader
                        .damage()
                        .iter()
                        .any(|d| d.to_string() == e.to_string())
                );
            }
        }
    }
    let e = reader.link("linked").err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Corruption);

    // Without a manifest, and without headers.
    for entry in fs.list(Path::new("d")).unwrap() {
        if !entry.name.ends_with(".extent") {
            fs.remove(&Path::new("d").join(&entry.name)).unwrap();
        }
    }
    fs.flip_bit(&path(places[5]), 3, 1).unwrap();
    let files = Stream::open_for_salvage(&env, "d", options()).unwrap();
    for (n, (at, is_there)) in places.iter().zip(expected).enumerate() {
        match files.read(*at, 1000) {
            Ok(bytes) => assert!(is_there && bytes[..] == [n as u8; 1000]),
            Err(e) => assert!(!is_there, "{e}"),
        }
    }
    let e = files.read(places[1], 1000).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    let e = append(&files, b"more").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ReadOnly);
    let none = Stream::open_for_salvage(&env, "missing", options()).unwrap();
    assert_eq!(none.extents(), []);
    // A link would have extents with unknown headers.
    let e = files.link("linked").err().unwrap();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);

    // A header of a later version is intact.
    let mut header = fs.read_all(&path(places[2])).unwrap()[..48].to_vec();
    header[32] = 1;
    let crc = crc32c::crc32c(&header[..44]);
    header[44..].copy_from_slice(&crc.to_le_bytes());
    fs.overwrite(&path(places[2]), 0, &header).unwrap();
    let e = Stream::open_for_salvage(&env, "d", options())
        .err()
        .unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
}

/// If `CURRENT` is lost, an open reports `Corruption`, and does not advise to create the stream.
#[test]
fn a_lost_current_is_damage() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    drop(Stream::create(&env, "d", options()).unwrap());
    fs.remove(Path::new("d/CURRENT")).unwrap();
    for opened in [Stream::open, Stream::open_read_only] {
        let e = opened(&env, "d", options()).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Corruption);
        assert!(e.to_string().contains("CURRENT is missing"), "{e}");
    }
}
