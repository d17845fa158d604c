//! Repair of stores with blob files.

use super::*;

/// Returns where the records of a blob file end and where its directory is, if the bytes are one.
fn regions(bytes: &[u8]) -> (u64, u64) {
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let directory = u64_at(bytes.len() - 48);
    let mut end = 0;
    for (i, b) in bytes[directory as usize + 24..].iter().enumerate() {
        end |= u64::from(b & 0x7f) << (7 * i);
        if b & 0x80 == 0 {
            break;
        }
    }
    (end, directory)
}

fn separated(seed: u64, closed: bool) -> Store {
    assert!(separation(seed).is_some());
    let store = Store::build(seed, 2, closed);
    let blobs = store.files(".blob");
    assert!(blobs.len() > 1, "seed {seed}: {blobs:?}");
    store
}

fn keys_lost(report: &RepairReport) -> usize {
    report.losses.iter().filter(|l| l.keys.is_some()).count()
}

fn remove(fs: &SimFs, name: &str) {
    fs.remove(&path(name)).unwrap();
    fs.sync_metadata(Path::new(DIR)).unwrap();
}

#[test]
fn repair_survives_flipped_bits_in_blob_files() {
    let mut cases = 0;
    let seeds = 101..101 + 2 * scale();
    for seed in basalt_sim::campaign::cases(seeds) {
        let _repeat = basalt_sim::repeat!(
            repair_survives_flipped_bits_in_blob_files,
            "BASALT_CASE={seed}"
        );
        let store = separated(seed, true);
        let r = Random::from_seed(seed);
        for (name, len) in store.files(".blob") {
            let (data_end, directory) = regions(&store.disk.kill().read_all(&path(&name)).unwrap());
            let records = (0..6).map(|_| 64 + r.below(data_end - 64));
            let index = (0..6).map(|_| data_end + r.below(len - data_end));
            let ends = [
                0,
                20,
                60,
                directory,
                directory + 20,
                len - 1,
                len - 60,
                len - 20,
            ];
            for at in ends.into_iter().chain(records).chain(index) {
                let what =
                    format!("bit of byte {at} of {name} ({data_end} of records, {len} bytes)");
                let report = store.try_damage(&what, |fs| {
                    fs.flip_bit(&path(&name), at, (at % 8) as u8).unwrap();
                });
                assert!(!report.sound, "{what}");
                assert!(
                    report.set_aside.contains(&format!("lost/{name}")),
                    "{what}: {report:#?}"
                );
                let least = usize::from((64..data_end).contains(&at));
                assert!(keys_lost(&report) <= least, "{what}: {report:#?}");
                assert_eq!(
                    keys_lost(&report),
                    report.losses.len(),
                    "{what}: {report:#?}"
                );
                assert!(report.blobs_kept > 0, "{what}: {report:#?}");
                cases += 1;
            }
        }
    }
    basalt_sim::campaign!("damages={cases}");
    assert!(cases >= 100);
}

#[test]
fn repair_survives_damaged_and_missing_blob_files() {
    let seeds = 201..201 + 2 * scale();
    for seed in basalt_sim::campaign::cases(seeds) {
        let _repeat = basalt_sim::repeat!(
            repair_survives_damaged_and_missing_blob_files,
            "BASALT_CASE={seed}"
        );
        let store = separated(seed, true);
        let blobs = store.files(".blob");
        let r = Random::from_seed(seed);
        for (i, (name, len)) in blobs.iter().enumerate() {
            let to = r.below(*len);
            store.try_damage(&format!("{name} cut to {to} of {len}"), |fs| {
                fs.truncate(&path(name), to).unwrap();
            });
            let report = store.try_damage(&format!("{name} removed"), |fs| remove(fs, name));
            assert!(keys_lost(&report) > 0, "{report:#?}");
            let other = &blobs[(i + 1) % blobs.len()].0;
            let what = format!("{name} and {other} exchanged");
            let report = store.try_damage(&what, |fs| {
                fs.swap_files(&path(name), &path(other)).unwrap();
            });
            assert!(report.lost.is_empty(), "seed {seed}, {what}: {report:#?}");
            let at = r.below(*len) / 512 * 512;
            store.try_damage(&format!("zeros at {at} of {name}"), |fs| {
                let n = (len - at).min(512) as usize;
                fs.overwrite(&path(name), at, &vec![0; n]).unwrap();
            });
            let begin = store.disk.kill().read_all(&path(other)).unwrap();
            let n = (*len as usize).min(begin.len()).min(300);
            store.try_damage(&format!("{other} begins in {name}"), |fs| {
                fs.overwrite(&path(name), 0, &begin[..n]).unwrap();
            });
        }
    }
}

/// Numbers have lost their meaning: every value is found by its name.
#[test]
fn repair_finds_values_without_a_manifest() {
    let seeds = 301..301 + 3 * scale();
    for seed in basalt_sim::campaign::cases(seeds) {
        let _repeat =
            basalt_sim::repeat!(repair_finds_values_without_a_manifest, "BASALT_CASE={seed}");
        let store = separated(seed, seed % 3 > 0);
        let r = Random::from_seed(seed);
        let (manifest, len) = store.files("MANIFEST").pop().unwrap();
        let blobs = store.files(".blob");
        let report = store.try_damage("nothing but tables and blob files", |fs| {
            remove(fs, &manifest);
            remove(fs, "CURRENT");
        });
        assert_eq!(store.keys_missed(&report), 0, "seed {seed}: {report:#?}");
        let report = store.try_damage("and two of them exchanged", |fs| {
            remove(fs, &manifest);
            fs.swap_files(&path(&blobs[0].0), &path(&blobs[1].0))
                .unwrap();
        });
        assert_eq!(store.keys_missed(&report), 0, "seed {seed}: {report:#?}");
        for i in 0..20 {
            let (name, size) = &blobs[r.below(blobs.len() as u64) as usize];
            let (at, to) = (r.below(len), r.below(*size));
            let what = format!("{manifest} at {at} of {len}, {name} at {to} of {size}, kind {i}");
            store.try_damage(&what, |fs| {
                match i % 4 {
                    0 => fs.truncate(&path(&manifest), at).unwrap(),
                    1 => remove(fs, &manifest),
                    _ => fs.flip_bit(&path(&manifest), at, (at % 8) as u8).unwrap(),
                }
                match i % 5 {
                    0 => fs.truncate(&path(name), to).unwrap(),
                    1 => remove(fs, name),
                    _ => fs.flip_bit(&path(name), to, (to % 8) as u8).unwrap(),
                }
            });
        }
    }
}

/// A file that no edit names may be the rest of a collected one: repair reads it before it gives a
/// value up.
#[test]
fn repair_reads_unreferenced_files_for_lost_values() {
    let seeds = 501..501 + 2 * scale();
    for seed in basalt_sim::campaign::cases(seeds) {
        let _repeat = basalt_sim::repeat!(
            repair_reads_unreferenced_files_for_lost_values,
            "BASALT_CASE={seed}"
        );
        let store = separated(seed, true);
        for (name, _) in store.files(".blob") {
            let copy = |fs: &SimFs| {
                let bytes = fs.read_all(&path(&name)).unwrap();
                fs.write_file(&path("900000.blob"), &bytes).unwrap();
            };
            let what = format!("zeros in {name}, with a copy");
            let report = store.try_damage(&what, |fs| {
                copy(fs);
                fs.overwrite(&path(&name), 64, &[0; 2000]).unwrap();
            });
            assert!(report.lost.is_empty(), "seed {seed}, {what}: {report:#?}");
            // The file is gone with an unnamed copy beside it: a lost edit may have removed the
            // file.
            let what = format!("{name} removed, with a copy");
            let report = store.try_damage(&what, |fs| {
                copy(fs);
                remove(fs, &name);
            });
            assert_eq!(keys_lost(&report), 0, "seed {seed}, {what}: {report:#?}");
        }
    }
}

/// Damages tables, logs, blob files and the manifest at any place.
#[test]
fn repair_survives_any_damage_beside_blob_files() {
    let mut cases = 0;
    let seeds = 401..401 + 4 * scale();
    for seed in basalt_sim::campaign::cases(seeds) {
        let _repeat = basalt_sim::repeat!(
            repair_survives_any_damage_beside_blob_files,
            "BASALT_CASE={seed}"
        );
        let store = separated(seed, seed % 3 > 0);
        let r = Random::from_seed(seed);
        for _ in 0..25 {
            let mut hits = Vec::new();
            for (name, len) in store.files.iter().filter(|f| f.0 != "LOCK" && f.1 > 0) {
                let odds = match name.ends_with(".log") || name.starts_with('C') {
                    true => 8,
                    false => 4,
                };
                if r.one_in(odds) {
                    hits.push((name.clone(), r.below(*len)));
                }
            }
            store.try_damage(&format!("{hits:?}"), |fs| {
                for (name, at) in &hits {
                    fs.flip_bit(&path(name), *at, (at % 8) as u8).unwrap();
                }
            });
            cases += 1;
        }
    }
    basalt_sim::campaign!("damages={cases}");
}

/// Damages logs that are blob files, and their indexes.
#[test]
fn repair_survives_damaged_logs_with_values() {
    let mut cases = 0;
    let seeds = 600..600 + (3 * scale()).min(90);
    for seed in basalt_sim::campaign::cases(seeds) {
        let _repeat = basalt_sim::repeat!(
            repair_survives_damaged_logs_with_values,
            "BASALT_CASE={seed}"
        );
        let closed = seed % 3 > 0;
        let store = Store::build(seed, 2, closed);
        let indexes = store.files(".index");
        let logs = store.files(".log");
        assert!(indexes.len() > 1, "seed {seed}: {:?}", store.files);
        // An open store has a log that is no blob file.
        assert_eq!(closed, logs.len() == indexes.len(), "{:?}", store.files);
        let r = Random::from_seed(seed);
        for (name, len) in &indexes {
            for at in [0, 20, 60, len / 2, len - 20, r.below(*len), r.below(*len)] {
                let what = format!("bit of byte {at} of {name}, {len} bytes");
                let report = store.try_damage(&what, |fs| {
                    fs.flip_bit(&path(name), at, (at % 8) as u8).unwrap();
                });
                assert!(!report.sound, "{what}");
                assert!(report.lost.is_empty(), "seed {seed}, {what}: {report:#?}");
                cases += 1;
            }
            let to = r.below(*len);
            for (what, cut) in [("removed", false), ("cut", true)] {
                let what = format!("{name} {what}");
                let report = store.try_damage(&what, |fs| match cut {
                    true => fs.truncate(&path(name), to).unwrap(),
                    false => remove(fs, name),
                });
                assert!(report.lost.is_empty(), "seed {seed}, {what}: {report:#?}");
            }
        }
        let (manifest, _) = store.files("MANIFEST").pop().unwrap();
        for (name, len) in &logs {
            for _ in 0..8 {
                let at = r.below(*len);
                let what = format!("bit of byte {at} of {name}, {len} bytes");
                let report = store.try_damage(&what, |fs| {
                    fs.flip_bit(&path(name), at, (at % 8) as u8).unwrap();
                });
                assert!(keys_lost(&report) <= 1, "seed {seed}, {what}: {report:#?}");
                cases += 1;
            }
            let to = r.below(*len);
            store.try_damage(&format!("{name} cut to {to} of {len}"), |fs| {
                fs.truncate(&path(name), to).unwrap();
            });
            store.try_damage(&format!("{name} removed"), |fs| remove(fs, name));
            store.try_damage(&format!("zeros in {name}"), |fs| {
                let n = (len - to).min(5000) as usize;
                fs.overwrite(&path(name), to, &vec![0; n]).unwrap();
            });
        }
        // The last edits are damaged. Some made logs blob files, whose holes are no damage.
        let (_, len) = store.files("MANIFEST").pop().unwrap();
        for i in 0..30 {
            let at = len - 1 - r.below(len.min(6000));
            let what = format!("{manifest} at {at} of {len}, kind {i}");
            store.try_damage(&what, |fs| match i % 3 {
                0 => fs.truncate(&path(&manifest), at / 512 * 512).unwrap(),
                1 => {
                    let n = (len - at / 512 * 512).min(1024) as usize;
                    fs.overwrite(&path(&manifest), at / 512 * 512, &vec![0; n])
                        .unwrap();
                }
                _ => fs.flip_bit(&path(&manifest), at, (at % 8) as u8).unwrap(),
            });
            cases += 1;
        }
        let report = store.try_damage("no manifest", |fs| {
            remove(fs, &manifest);
            remove(fs, "CURRENT");
        });
        assert_eq!(keys_lost(&report), 0, "seed {seed}: {report:#?}");
        // In a log that is no blob file, records behind the last proof of a sync may be missing
        // without a trace.
        let kept: Vec<(String, u64)> = {
            let env = env(&store.disk.kill(), seed);
            let db = Db::open_read_only(&env, DIR, options(seed)).unwrap();
            let names: Vec<String> = db.blob_files().into_iter().map(|b| b.name).collect();
            logs.iter()
                .filter(|l| names.contains(&l.0))
                .cloned()
                .collect()
        };
        assert_eq!(kept.len(), indexes.len());
        for i in 0..10 {
            let (name, len) = &kept[r.below(kept.len() as u64) as usize];
            let (index, _) = &indexes[r.below(indexes.len() as u64) as usize];
            let at = r.below(*len);
            let what = format!("no manifest, {name} at {at} of {len}, {index}, kind {i}");
            store.try_damage(&what, |fs| {
                remove(fs, &manifest);
                match i % 4 {
                    0 => fs.truncate(&path(name), at).unwrap(),
                    1 => remove(fs, index),
                    2 => fs.flip_bit(&path(index), 30, 1).unwrap(),
                    _ => fs.flip_bit(&path(name), at, (at % 8) as u8).unwrap(),
                }
            });
            cases += 1;
        }
    }
    basalt_sim::campaign!("damages={cases}");
    assert!(basalt_sim::campaign::case().is_some() || cases >= 100);
}
