//! Repairs of passive stores whose manifest has lost its last edits, or is gone.

use crate::campaign::disk;
use crate::database::{self, DIR, read_all};
use crate::owner::{Change, Log, Record, content};
use basalt_env::Env;
use basalt_fs::{FileSystem, Intent};
use basalt_lsm::{Db, ErrorKind, Options};
use basalt_sim::campaign::{case, cases, scale};
use basalt_sim::rng::Rng;
use basalt_sim::{SimFs, campaign, repeat};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns the path of the manifest.
pub fn manifest(fs: &Arc<SimFs>) -> PathBuf {
    let entries = fs.list(Path::new(DIR)).expect("a store is there");
    let names = entries.into_iter().map(|e| e.name);
    let newest = names.filter(|n| n.starts_with("MANIFEST")).max();
    Path::new(DIR).join(newest.expect("a store has a manifest"))
}

/// Changes the bytes of a file.
pub fn rewrite(fs: &Arc<SimFs>, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let file = fs.open(path).expect("it is there");
    let len = usize::try_from(file.len()).expect("a small file");
    let mut bytes = file.read(0, len).expect("a sound disk").to_vec();
    change(&mut bytes);
    fs.remove(path).expect("it is there");
    let file = fs.create(path).expect("the name is free");
    file.append(&[IoSlice::new(&bytes)], Intent::Lazy)
        .expect("a sound disk");
    file.sync_all().expect("a sound disk");
    fs.sync_metadata(Path::new(DIR)).expect("a sound disk");
}

/// Cuts a file to its first `len` bytes.
pub fn cut(fs: &Arc<SimFs>, path: &Path, len: usize) {
    rewrite(fs, path, |bytes| bytes.truncate(len));
}

/// Counts of what the campaign really did.
#[derive(Debug, Default)]
struct Tally {
    repaired: u64,
    /// Stores of which nothing was lost.
    whole: u64,
    with_losses: u64,
    /// Items that replays into whole stores found there.
    dropped: u64,
    forgotten: u64,
}

/// Returns the settings of the store. Nothing is compacted: where a table and one that it was
/// compacted into are both there, a repair that has lost the edit between them counts operands
/// twice, and says so.
fn options(log: &Arc<Log>) -> Options {
    let mut options = database::options(log, &FAMILIES, None, false);
    let families = options.families.values_mut();
    for family in families.chain([&mut options.default_family]) {
        family.l0_compaction_trigger = 1 << 20;
        family.l0_slowdown = 1 << 20;
        family.l0_compaction_for_reads = false;
    }
    options
}

const FAMILIES: [&str; 3] = ["sums", "sums-cold", "values"];

/// Returns a transaction without deletes: where edits are lost, deleted keys may show again.
fn transaction(rng: &mut Rng) -> Record {
    let mut changes = Vec::new();
    for _ in 0..1 + rng.below(6) {
        let family = match rng.below(100) {
            0 => "sums-cold",
            1..50 => "sums",
            50..70 => "values",
            _ => "default",
        };
        let key = format!("key{}", rng.below(40)).into_bytes();
        let change = match family.starts_with("sums") {
            true => Change::Add(key, 1 + rng.below(1000)),
            false => Change::Put(
                key,
                vec![rng.below(256) as u8; 20 + rng.below(200) as usize],
            ),
        };
        changes.push((family.to_string(), change));
    }
    Record::Transaction(changes)
}

fn run(seed: u64, tally: &mut Tally) {
    let mut rng = Rng::of(&[seed, 29]);
    let disk = disk(seed);
    let log = Log::new(&disk, &[], 1, 0);
    let env = Env::for_tests(disk.clone(), seed);
    let opened = database::open(&env, options(&log), &log, |from| from);
    let (db, _) = opened.expect("an empty log");
    let create = FAMILIES.map(|name| Record::Create(name.to_string()));
    let transactions = (0..400).map(|_| transaction(&mut rng));
    for record in create.into_iter().chain(transactions) {
        let tsn = log.append(record.clone());
        database::apply(&db, tsn, &record).expect("a sound disk");
        while tsn.is_multiple_of(3) && env.jobs().step() {}
    }
    // Tables that a compaction wrote say as much as those of flushes. The manifest is then lost as
    // a whole: nothing names a table and one that it was compacted into.
    let is_compacted = seed.is_multiple_of(3);
    if is_compacted {
        for name in db.families() {
            let family = db.family(&name).expect("it was just named");
            db.compact_range(&family, None, None).expect("a sound disk");
        }
    }
    let trimmed = db
        .persistence_points()
        .expect("it is passive")
        .replay_from();
    db.abandon();
    let (records, end) = (log.records(), log.state().end);
    let disk = disk.kill();
    let path = manifest(&disk);
    let len = disk.stat(&path).expect("it is there").len as usize;
    let kept = match rng.below(4) {
        _ if is_compacted => 0,
        0 => 0,
        _ => 512 + rng.below(len as u64 - 512) as usize,
    };
    cut(&disk, &path, kept);
    let log = Log::new(&disk, &records, 1, end);
    let env = Env::for_tests(disk.clone(), rng.next_u64());
    // `CURRENT` vouches for the edits of flushes. The loss of other edits is none, also if the log
    // was trimmed as far as the store had allowed.
    let short = Log::new(&disk, &records, trimmed, end);
    match database::open(&env, options(&short), &short, |from| from) {
        Ok((db, _)) => {
            let found = read_all(&db).expect("nothing is lost");
            assert_eq!(found, content(&records, end), "{kept} of {len} bytes");
            return;
        }
        Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption, "{e}"),
    }
    let report = Db::repair(&env, DIR, &options(&log), &mut |_, _| ());
    let report = report.expect("it is not refused");
    assert!(!report.sound, "{report:#?}");
    tally.repaired += 1;
    let (db, recovery) = match database::open(&env, options(&log), &log, |from| from) {
        Ok(opened) => opened,
        // If nothing says when a family was persisted, the store may ask for a replay with other
        // numbers than before. It notices.
        Err(e) => {
            assert!(
                report.losses.iter().any(|loss| loss.family.is_some()),
                "{e}\n{report:#?}"
            );
            tally.with_losses += 1;
            return;
        }
    };
    let found = read_all(&db).expect("a repaired store can be read");
    let mut expected = content(&records, end);
    let forgotten = expected.extract_if(.., |name, _| !found.contains_key(name));
    for (name, _) in forgotten {
        // It had no table yet, and nothing but the lost manifest named it.
        assert_eq!((name.as_str(), kept, is_compacted), ("sums-cold", 0, false));
        let said = |note: &String| note.contains("one that had no table is missing");
        assert!(report.notes.iter().any(said), "{report:#?}");
        tally.forgotten += 1;
    }
    if is_compacted {
        assert!(
            report.losses.iter().all(|loss| loss.family.is_none()),
            "{report:#?}"
        );
    }
    if report.losses.iter().all(|loss| loss.family.is_none()) {
        assert_eq!(found, expected, "{recovery:?}\n{report:#?}");
        tally.whole += 1;
        tally.dropped += recovery.dropped;
    } else {
        tally.with_losses += 1;
    }
    db.close().expect("a sound disk");
}

#[test]
fn a_repair_applies_no_operand_twice() {
    if basalt_sim::is_on_lava() {
        return;
    }
    let mut tally = Tally::default();
    for seed in cases(0..60 * scale()) {
        let _repeat = repeat!(a_repair_applies_no_operand_twice, "BASALT_CASE={seed}");
        run(seed, &mut tally);
    }
    campaign!("passive repairs: {tally:?}");
    if case().is_none() {
        assert!(tally.whole >= scale().floor(10), "{tally:?}");
        assert!(tally.dropped >= scale().floor(1000), "{tally:?}");
    }
}
