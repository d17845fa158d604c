//! Manifests that lost their last edits, and damage that looks like it.

use super::integrity::{check, content, content_of, files, repair, store};
use super::*;

/// A manifest that was cut looks as after a crash. An open does not take the files for unused ones
/// whose edits are gone, and a repair has all of their records.
#[test]
fn a_manifest_that_was_cut_costs_no_record() {
    let (mut refused, mut opened) = (0, 0);
    for close in [true, false] {
        let fs = disk(1);
        let before = store(&fs, close);
        let snapshot = fs.snapshot();
        let names = files(&fs);
        let manifest = names
            .iter()
            .find(|path| path.display().to_string().contains("MANIFEST"))
            .unwrap();
        let len = fs.read_all(manifest).unwrap().len() as u64;
        // The first record is the whole state at the beginning; without it there is no manifest.
        for at in (1100..len).step_by(37) {
            let say = format!("closed {close}: {} cut at {at}", manifest.display());
            let cut = snapshot.kill();
            cut.truncate(manifest, at).unwrap();
            let found = check(&cut).unwrap();
            match open(&cut) {
                Ok(engine) => {
                    drop(engine);
                    opened += 1;
                    assert!(found.damage.is_empty(), "{say}: {found:?}");
                    assert_eq!(content(&cut), before.content, "{say}");
                }
                Err(e) => {
                    refused += 1;
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{say}");
                    assert!(!found.damage.is_empty(), "{say}: {e}");
                    let report = repair(&cut).unwrap();
                    let after = content(&cut);
                    for (had, has) in before.content.iter().zip(&after) {
                        for (lsn, data) in had {
                            assert_eq!(has.get(lsn), Some(data), "{say}: {lsn} {report:?}");
                        }
                    }
                }
            }
        }
    }
    println!("cut manifests: {refused} refused, {opened} opened");
    assert!(refused >= 10 && opened >= 1);
}

/// If the only lost edit is the one that named the file of new records, no named file is missing.
#[test]
fn a_file_of_new_records_without_its_edit_is_no_unused_file() {
    let fs = disk(1);
    let engine = LogEngine::open(&env(&fs), DIR, options().file_bytes(1 << 20)).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=5u64 {
        log.append(lsn, &[lsn as u8; 100], SYNC).unwrap();
    }
    engine.engine().cut_power();
    drop((log, engine));
    let snapshot = fs.snapshot();
    let manifest = Path::new(DIR).join("MANIFEST-000001");
    let len = fs.read_all(&manifest).unwrap().len() as u64;
    let mut refused = 0;
    for at in (1100..len).step_by(8) {
        let cut = snapshot.kill();
        cut.truncate(&manifest, at).unwrap();
        let Err(e) = open(&cut) else {
            assert_eq!(content_of(&cut, "a"), [1, 2, 3, 4, 5], "cut at {at}");
            continue;
        };
        refused += 1;
        assert!(
            e.to_string()
                .contains("was written after an edit that the manifest does not have"),
            "{e}"
        );
        assert_eq!(check(&cut).unwrap().damage.len(), 1);
        assert_eq!(repair(&cut).unwrap().lost, [""; 0]);
        assert_eq!(content_of(&cut, "a"), [1, 2, 3, 4, 5], "cut at {at}");
    }
    assert!(refused >= 10, "{refused} of {len} bytes");
}

/// A checkpoint that no edit names was interrupted, if it needs the file that is missing. Then the
/// manifest has lost nothing.
#[test]
fn a_missing_file_beside_an_interrupted_checkpoint_is_the_damage() {
    let fs = disk(1);
    let engine = LogEngine::open(&env(&fs), DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=50u64 {
        log.append(lsn, &[lsn as u8; 100], SYNC).unwrap();
    }
    let before = fs.snapshot().kill();
    engine.engine().checkpoint().unwrap();
    engine.engine().cut_power();
    drop((log, engine));
    // The manifest from before, with the files of the checkpoint.
    for path in files(&fs) {
        let name = path.display().to_string();
        if name.ends_with(".checkpoint") || name.ends_with(".names") {
            before
                .write_file(&path, &fs.read_all(&path).unwrap())
                .unwrap();
        }
    }
    assert!(check(&before).unwrap().damage.is_empty());
    let missing = files(&before);
    let missing = missing
        .iter()
        .find(|path| path.extension().is_some_and(|e| e == "data"));
    before.remove(missing.unwrap()).unwrap();
    let found = check(&before).unwrap();
    assert_eq!(found.damage.len(), 1, "{found:?}");
    assert_eq!(
        found.damage[0].path(),
        missing.map(|p| p.as_path()),
        "{found:?}"
    );
    let e = open(&before).err().unwrap();
    assert_eq!(e.path(), missing.map(|p| p.as_path()), "{e}");
}
