//! File headers: their two copies, earlier lives of the space, and features of later versions.

use super::*;
use crate::header::{self, COPIES, HEADER_LEN};
use crate::verify::{Padding, check_spare};
use basalt_fs::ErrorKind;

#[test]
fn empty_stale_and_damaged_file_headers_are_distinguished() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let open = |e: &Expect| RecordReader::open_expecting(fs.open(path).unwrap(), path, e);
    recycled_log(&fs, path, 512, 16 << 10);
    // The earlier life had id 77 and number 1.
    assert!(open(&expect(5, 0)).unwrap().is_none(), "not this life");
    let by_number = |number| Expect {
        number: Some(number),
        file_id: None,
        ..expect(0, 0)
    };
    assert!(open(&by_number(2)).unwrap().is_none());
    assert!(
        open(&expect(5, 512)).is_err_and(|e| e.is_corruption()),
        "known to be synced"
    );
    let other_store = Expect {
        store_id: Some(1),
        ..by_number(1)
    };
    assert!(open(&other_store).unwrap().is_none());

    small_log_over(&fs, path);
    let good = fs.read_all(path).unwrap();
    assert!(open(&expect(5, 0)).unwrap().is_some());
    // If one copy decays, the other one serves. If both decay, that is damage.
    fs.flip_bit(path, 40, 1).unwrap();
    assert_eq!(open(&by_number(1)).unwrap().unwrap().header().file_id, 5);
    fs.flip_bit(path, COPIES[1] as u64 + 20, 1).unwrap();
    assert!(open(&by_number(1)).is_err_and(|e| e.is_corruption()));
    // The whole unit is lost or stale. The records of this life prove it.
    for unit in [vec![0; 512], header::encode(&file_header(512, 77, 1))] {
        fs.overwrite(path, 0, &unit).unwrap();
        let e = open(&expect(5, 0)).err().expect("damage");
        assert!(
            e.to_string().contains("proves that the file was synced"),
            "{e}"
        );
    }
    fs.overwrite(path, 0, &good[..512]).unwrap();
    let manifest = Expect {
        kind: FileKind::Manifest,
        ..expect(5, 0)
    };
    assert!(
        open(&manifest).is_err_and(|e| e.is_corruption()),
        "of another kind"
    );
}

fn small_log_over(fs: &SimFs, path: &Path) {
    fs.remove(path).unwrap();
    small_log(fs, path, 512);
}

#[test]
fn headers_round_trip_and_unknown_features_are_refused() {
    let r = Random::from_seed(4);
    let path = Path::new("1.log");
    for i in 0..200 {
        let h = FileHeader {
            kind: [FileKind::Log, FileKind::Manifest][i % 2],
            file_id: r.next_u128(),
            store_id: r.next_u128(),
            number: r.next_u64(),
            write_unit: 512 << r.below(4),
            compatible: r.next_u64() as u32,
            incompatible: 0,
            previous: r.one_in(2).then(|| PreviousLog {
                number: r.next_u64(),
                file_id: r.next_u128(),
                end: r.next_u64(),
            }),
        };
        let slot = header::encode(&h);
        assert_eq!(slot.len(), h.write_unit as usize);
        match header::decode(&slot, path).unwrap() {
            header::Slot::Header(got) => assert_eq!(got, h),
            other => panic!("{other:?}"),
        }
        for cut in [0, 1, 127, 300] {
            let _ = header::decode(&slot[..cut], path);
        }
        assert!(matches!(
            header::decode(&slot[..HEADER_LEN - 1], path).unwrap(),
            header::Slot::Absent
        ));
        let future = FileHeader {
            incompatible: 1 << (i % 32),
            ..h
        };
        if future.incompatible == COMPRESSED_VALUES {
            // Logs may have this feature, and other files may not.
            assert!(header::decode(&header::encode(&future), path).is_ok());
            let other = FileHeader {
                kind: FileKind::Manifest,
                ..future.clone()
            };
            let e = header::decode(&header::encode(&other), path).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported);
            continue;
        }
        let e = header::decode(&header::encode(&future), path).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
    }
}

/// A file that ends inside of its header is called cut, whichever bytes are missing.
#[test]
fn a_file_cut_inside_of_its_header_is_called_cut() {
    for len in [0, 100, 128, 200, 300, 400, 511] {
        let (fs, path) = (disk(512, 2), Path::new("1.log"));
        small_log(&fs, path, 512);
        fs.truncate(path, len).unwrap();
        let file = fs.open(path).unwrap();
        let opened = RecordReader::open_expecting(file.clone(), path, &expect(5, 600));
        let spare = check_spare(&*file, path, FileKind::Log, 5, u64::MAX, Padding::All).unwrap();
        let found: Vec<String> = match opened {
            Err(e) => vec![e.to_string()],
            Ok(_) => spare.iter().map(ToString::to_string).collect(),
        };
        let cut = format!("the file is cut at byte {len}, inside of its header");
        assert_eq!(found.len(), 1, "{len}: {found:?}");
        assert!(found[0].contains(&cut), "{len}: {found:?}");
    }
}
