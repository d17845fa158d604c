//! Repair of a store that lost power inside a flush, a compaction or a garbage collection and is
//! damaged besides: every synced write survives, except for those that the damage itself hit.

use super::*;
use basalt_sim::repeat;

/// The background work that the power cut interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Flush,
    Compaction,
    Gc,
}

/// The damage beside the power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// One flipped bit of a table that existed before the work began.
    Table,
    /// One flipped bit near the end of the manifest.
    Manifest,
    /// A missing `CURRENT`.
    Current,
}

/// The values of one key, the last one last; `None` is a deletion.
type Values = Vec<Option<Vec<u8>>>;

/// A store of synced writes, and its disk after every change that some background work made. No
/// thread writes meanwhile.
struct Interrupted {
    seed: u64,
    /// The values of each key, by family and key.
    model: BTreeMap<(String, Vec<u8>), Values>,
    before: BTreeSet<String>,
    crash_points: Vec<SimSnapshot>,
}

impl Interrupted {
    fn new(seed: u64, work: Work) -> Interrupted {
        let fs = SimFs::new(SimOptions {
            seed,
            ..SimOptions::default()
        });
        let env = env(&fs, seed);
        let r = Random::from_seed(seed);
        let db = Db::open(&env, DIR, options(seed)).unwrap();
        let second = db.create_family("second", options(seed).default_family);
        let families = [db.default_family(), second.unwrap()];
        let mut model: BTreeMap<_, Values> = BTreeMap::new();
        let rounds = if work == Work::Flush { 3 } else { 5 };
        for round in 0..rounds {
            for step in 0..24 {
                let mut batch = WriteBatch::new();
                for family in &families {
                    let key = format!("key {:03}", r.below(40)).into_bytes();
                    let mut value = (!r.one_in(6))
                        .then(|| format!("{round} {step} of {}", family.name()).into_bytes());
                    match &mut value {
                        None => batch.delete(family, &key).unwrap(),
                        Some(v) => {
                            // Most values are large, so that the log stays as a blob file.
                            if family.name() == "default" || r.one_in(2) {
                                fill(v, 4000 + r.below(8000) as usize);
                            }
                            batch.put(family, &key, v).unwrap();
                        }
                    }
                    let versions = model.entry((family.name().to_string(), key)).or_default();
                    versions.push(value);
                }
                db.write(batch, &WriteOptions::SYNC).unwrap();
            }
            if round + 1 < rounds {
                db.flush().unwrap();
                while work == Work::Flush && env.jobs().step() {}
            }
        }
        let before = names(&fs);
        let collections = db.stats().blobs.collections;
        fs.record_snapshots(1);
        match work {
            Work::Flush => db.flush().unwrap(),
            Work::Compaction => {
                for family in &families {
                    db.compact_range(family, None, None).unwrap();
                }
            }
            Work::Gc => {
                for family in &families {
                    db.compact_range(family, None, None).unwrap();
                }
                while env.jobs().step() {}
                assert!(db.stats().blobs.collections > collections, "seed {seed}");
            }
        }
        fs.record_snapshots(0);
        let crash_points = fs.take_snapshots();
        db.abandon();
        Interrupted {
            seed,
            model,
            before,
            crash_points,
        }
    }

    fn damage(&self, fs: &SimFs, damage: Damage, r: &Random) -> Option<String> {
        let there = names(fs);
        match damage {
            Damage::Current => {
                fs.remove(&path("CURRENT")).unwrap();
                fs.sync_metadata(Path::new(DIR)).unwrap();
                Some("CURRENT".into())
            }
            Damage::Table => {
                let old = self.before.iter().filter(|n| n.ends_with(".tbl"));
                let tables: Vec<_> = old.filter(|n| there.contains(*n)).collect();
                let name = tables.get(r.below(tables.len().max(1) as u64) as usize)?;
                let len = fs.stat(&path(name)).unwrap().len;
                fs.flip_bit(&path(name), r.below(len), 3).unwrap();
                Some(name.to_string())
            }
            Damage::Manifest => {
                let name = there.iter().rfind(|n| n.starts_with("MANIFEST"))?;
                let len = fs.stat(&path(name)).unwrap().len;
                let at = len.checked_sub(1 + r.below(len.clamp(1, 3000)))?;
                fs.flip_bit(&path(name), at, 3).unwrap();
                Some(format!("{name} at {at} of {len}"))
            }
        }
    }

    /// Repairs and opens the store, and looks up every key. Returns false if there was nothing to
    /// repair.
    fn repair(&self, fs: &Arc<SimFs>, damage: Damage, what: &str) -> bool {
        let seed = self.seed;
        let report = Db::repair(&env(fs, seed ^ 7), DIR, &options(seed), &mut |_, _| {})
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let db = Db::open(&env(fs, seed ^ 9), DIR, options(seed))
            .unwrap_or_else(|e| panic!("{what}: {e}\n{report:#?}"));
        let reappear = report.notes.iter().any(|n| n.contains("may show again"));
        for ((name, key), versions) in &self.model {
            // The edit that names the second family may be lost, and no table may name it either.
            let Some(family) = db.family(name).or_else(|| db.family("recovered-1")) else {
                panic!("{what}: no family {name}; {report:#?}");
            };
            let found = db.get(&family, key, &ReadOptions::default()).unwrap();
            let found = found.as_deref().map(<[u8]>::to_vec);
            let expected = versions.last().unwrap();
            if found == *expected {
                continue;
            }
            assert!(
                found.is_none() || versions.contains(&found),
                "{what}: {key:?} has a value that was never written: {report:#?}"
            );
            let hit = report.losses.iter().any(|l| {
                let inside = |k: &basalt_lsm::db::KeyRange| {
                    k.from.as_ref().is_none_or(|a| a <= key)
                        && k.to.as_ref().is_none_or(|b| key <= b)
                };
                l.keys.as_ref().is_some_and(inside) && l.family.as_ref().is_none_or(|f| f == name)
            });
            let allowed = match damage {
                Damage::Table => hit,
                // A manifest with a damaged last edit looks torn: the store is one of an earlier
                // moment.
                Damage::Manifest if report.sound => true,
                Damage::Manifest | Damage::Current => expected.is_none() && reappear,
            };
            assert!(
                allowed,
                "{what}: {name} {:?}: expected {:?}, found {:?}; {report:#?}",
                key.escape_ascii().to_string(),
                expected
                    .as_ref()
                    .map(|v| v[..v.len().min(30)].escape_ascii().to_string()),
                found
                    .as_ref()
                    .map(|v| v[..v.len().min(30)].escape_ascii().to_string()),
            );
        }
        db.close().unwrap();
        !report.sound
    }
}

/// Regression test. A flush writes a table for each family and an index beside its log, and makes
/// their names durable together. A power cut before that can keep the index and the first family's
/// table, and lose the second family's. Repair took the index and a table that refers to the log as
/// proof of the whole flush, and did not replay the log. The second family's synced writes were
/// gone, and the report named no loss.
#[test]
fn repair_survives_a_power_cut_in_a_flush_and_table_damage() {
    let seed = 600;
    let store = Interrupted::new(seed, Work::Flush);
    let mut cut = 0;
    for (i, crash_point) in store.crash_points.iter().enumerate() {
        for rng in 0..40 {
            let fs = crash_point.crash(CrashPolicy::AnySubset, rng);
            let fresh: Vec<String> = names(&fs).difference(&store.before).cloned().collect();
            let of = |end: &str| fresh.iter().filter(|n| n.ends_with(end)).count();
            // The flush is cut in halves: of its files the log's index and one of two tables exist.
            if of(".index") != 1 || of(".tbl") != 1 {
                continue;
            }
            cut += 1;
            for draw in 0..4 {
                let what = format!("change {i}, rng {rng}, draw {draw}, new: {fresh:?}");
                let fs = fs.kill();
                let r = Random::from_seed(draw);
                store.damage(&fs, Damage::Table, &r).unwrap();
                assert!(store.repair(&fs, Damage::Table, &what), "{what}");
            }
        }
    }
    basalt_sim::campaign!(
        "flushes_cut_in_halves={cut}, moments={}",
        store.crash_points.len()
    );
    assert!(cut > 0, "no flush was cut in halves");
}

/// For every change that a flush, a compaction and a garbage collection make: a power cut after it,
/// and one more damage.
#[test]
fn repair_survives_a_power_cut_and_one_damage() {
    let (mut states, mut repaired) = (0, 0);
    for case in basalt_sim::campaign::cases(0..3 * scale()) {
        let _repeat = repeat!(
            repair_survives_a_power_cut_and_one_damage,
            "BASALT_CASE={case}"
        );
        let work = [Work::Flush, Work::Compaction, Work::Gc][case as usize % 3];
        let seed = 603 + case / 3;
        let store = Interrupted::new(seed, work);
        let r = Random::from_seed(case);
        // Each kind of work gets about as many moments.
        let every = store.crash_points.len().div_ceil(80).max(1);
        for (i, crash_point) in store.crash_points.iter().enumerate().step_by(every) {
            for damage in [Damage::Table, Damage::Manifest, Damage::Current] {
                let policy = [
                    CrashPolicy::AnySubset,
                    CrashPolicy::AnySubset,
                    CrashPolicy::NothingUnsynced,
                    CrashPolicy::EverythingUnsynced,
                    CrashPolicy::Suffix,
                ][r.below(5) as usize];
                let fs = crash_point.crash(policy, r.next_u64());
                let Some(name) = store.damage(&fs, damage, &r) else {
                    continue;
                };
                let what = format!("{work:?}, seed {seed}, change {i}, {policy:?}, {name}");
                states += 1;
                repaired += u64::from(store.repair(&fs, damage, &what));
            }
        }
    }
    basalt_sim::campaign!("repair_states={states}, with damage that shows: {repaired}");
    if basalt_sim::campaign::case().is_none() {
        assert!(states >= scale().floor(150), "{states} states");
        assert!(repaired >= scale().floor(100), "{repaired} repaired");
    }
}

/// Two families are created one after the other. The edit that created the first is damaged, and
/// the edit of the second is readable. So the manifest knows a higher family id than the first's.
/// The first family's data is only in the log, and only the log's operations name the family.
#[test]
fn operations_of_a_family_whose_edit_is_lost_are_kept() {
    let seed = 1;
    let fs = SimFs::new(SimOptions::default());
    let store_env = env(&fs, seed);
    let db = Db::open(&store_env, DIR, options(seed)).unwrap();
    let manifest = names(&fs).into_iter().find(|n| n.starts_with("MANIFEST"));
    let manifest = path(&manifest.unwrap());
    let begin = fs.stat(&manifest).unwrap().len;
    let first = db
        .create_family("first", options(seed).default_family)
        .unwrap();
    let end = fs.stat(&manifest).unwrap().len;
    assert!(begin < end, "{begin} {end}");
    let second = db
        .create_family("second", options(seed).default_family)
        .unwrap();
    for n in 0..20u32 {
        for family in [&first, &second] {
            let value = format!("{n} of {}", family.name());
            db.put(
                family,
                &n.to_be_bytes(),
                value.as_bytes(),
                &WriteOptions::SYNC,
            )
            .unwrap();
        }
    }
    db.abandon();
    let fs = fs.kill();
    fs.flip_bit(&manifest, end - 1 - (end - begin) / 2, 2)
        .unwrap();
    fs.flip_bit(&manifest, begin + 10, 2).unwrap();

    let report = Db::repair(&env(&fs, 2), DIR, &options(seed), &mut |_, _| {}).unwrap();
    let edits = report.lost.iter().any(|l| l.contains("edit"));
    assert!(
        edits && !report.losses.iter().any(|l| l.keys.is_some()),
        "{report:#?}"
    );
    let noted = report.notes.iter().any(|n| n.contains("recovered-1"));
    assert!(noted, "{report:#?}");
    let db = Db::open(&env(&fs, 3), DIR, options(seed)).unwrap();
    for (family, name) in [("recovered-1", "first"), ("second", "second")] {
        let family = db.family(family).unwrap();
        for n in 0..20u32 {
            let found = db
                .get(&family, &n.to_be_bytes(), &ReadOptions::default())
                .unwrap();
            assert_eq!(found.as_deref(), Some(format!("{n} of {name}").as_bytes()));
        }
    }
    db.close().unwrap();
}
