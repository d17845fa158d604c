//! Damaged files: an error that names the file, or the right records.

use super::*;

/// Makes a small store and closes it. Returns what its logs have.
fn small_store(fs: &Arc<SimFs>) -> Content {
    let random = Random::from_seed(3);
    let mut store = Store::open(fs).unwrap();
    for step in history(&random, 60) {
        let _ = store.run(&step);
    }
    let content = store.content().unwrap();
    store.engine.close().unwrap();
    content
}

#[test]
fn every_flipped_byte_is_reported_or_harmless() {
    let fs = disk(1);
    let content = small_store(&fs);
    let (mut reported, mut harmless) = (0, 0);
    let names = basalt_fs::FileSystem::list(&*fs, Path::new(DIR)).unwrap();
    let snapshot = fs.snapshot();
    for entry in names.iter().filter(|e| !e.is_dir) {
        let path = Path::new(DIR).join(&entry.name);
        let len = fs.read_all(&path).unwrap().len() as u64;
        let step = 1 + len / 400;
        for at in (0..len).step_by(step as usize) {
            let damaged = snapshot.kill();
            damaged.flip_bit(&path, at, (at % 8) as u8).unwrap();
            let say = format!("byte {at} of {}", path.display());
            let found = Store::open(&damaged).and_then(|store| store.content());
            match found {
                Ok(found) => {
                    assert_eq!(found, content, "{say}: wrong records");
                    harmless += 1;
                }
                Err(e) => {
                    let kinds = [ErrorKind::Corruption, ErrorKind::Unsupported];
                    assert!(kinds.contains(&e.kind()), "{say}: {e}");
                    assert!(e.path().is_some(), "{say}: no file in {e}");
                    reported += 1;
                }
            }
        }
    }
    println!("log flips: reported={reported} harmless={harmless}");
    assert!(reported > 300 && harmless > 50);
}

#[test]
fn a_missing_file_is_named() {
    let fs = disk(1);
    small_store(&fs);
    let names = basalt_fs::FileSystem::list(&*fs, Path::new(DIR)).unwrap();
    let snapshot = fs.snapshot();
    let mut removed = 0;
    // The lock and the reserve have no data.
    let has_data = |name: &str| !["LOCK", "RESERVE"].contains(&name);
    for entry in names.iter().filter(|e| !e.is_dir && has_data(&e.name)) {
        let damaged = snapshot.kill();
        let path = Path::new(DIR).join(&entry.name);
        basalt_fs::FileSystem::remove(&*damaged, &path).unwrap();
        if entry.name.ends_with(".names") {
            // An open does not need the names file, and the next checkpoint makes it anew.
            let check = || LogEngine::check(&env(&damaged), DIR, &options(), &mut |_, _| ());
            let damage = check().unwrap().damage;
            assert_eq!(damage[0].path(), Some(&*path), "{damage:?}");
            Store::open(&damaged).unwrap().engine.close().unwrap();
            assert!(check().unwrap().damage.is_empty());
            continue;
        }
        let e = Store::open(&damaged).err().expect("a file is missing");
        assert!(
            e.is_corruption() && e.path().is_some(),
            "{}: {e}",
            entry.name
        );
        removed += 1;
    }
    assert!(removed > 3);
}

/// A record that is damaged on the disk after the store was opened is an error that names log, LSN,
/// file and offset. Records beside it can be read.
#[test]
fn a_damaged_record_is_named_when_it_is_read() {
    let fs = disk(1);
    let engine = open(&fs).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=20 {
        log.append(lsn, &[lsn as u8; 300], SYNC).unwrap();
    }
    let location = log.location(7).unwrap();
    let path = format!("{DIR}/{:06}.data", location.file);
    fs.flip_bit(Path::new(&path), location.offset + 100, 3)
        .unwrap();
    let e = log.read(7).unwrap_err();
    assert!(e.is_corruption(), "{e}");
    for part in ["LSN 7", "\"a\"", &path] {
        assert!(e.to_string().contains(part), "{e} does not name {part}");
    }
    let read = log.iter(1).filter(|item| item.is_ok()).count();
    assert_eq!(read, 19);
}
