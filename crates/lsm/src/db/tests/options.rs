//! Every option at its extremes: a store works with it, or refuses it with an error that names it.
//! No value makes it panic. And the promises of each durability.

use super::prelude::*;
use crate::options::{Compression, Durability};
use basalt_kv::limits::MAX_KEY_LEN;
use basalt_kv::prefix::Prefixes;
use basalt_sim::{CrashPolicy, SimFs, SimOptions};
use std::time::Duration;

/// Only a write with `Device` waits for a sync. The other two survive the death of the process.
#[test]
fn a_write_survives_the_failures_that_its_durability_names() {
    assert_eq!(WriteOptions::default(), WriteOptions::UNSYNCED);
    assert_eq!(WriteOptions::synced(false), WriteOptions::UNSYNCED);
    assert_eq!(WriteOptions::synced(true), WriteOptions::SYNC);
    for (durability, syncs, after_power_cut) in [
        (Durability::None, 0, false),
        (Durability::Process, 0, false),
        (Durability::Device, 1, true),
    ] {
        let disk = SimFs::new(SimOptions::default());
        let env = Env::for_tests(disk.clone(), 1);
        let db = Db::open(&env, "db", Options::default()).unwrap();
        let family = db.default_family();
        db.put(&family, b"old", b"", &WriteOptions::SYNC).unwrap();
        let before = db.stats().log_syncs;
        let options = WriteOptions::default().durability(durability);
        db.put(&family, b"new", b"", &options).unwrap();
        assert_eq!(db.stats().log_syncs - before, syncs, "{durability:?}");
        let survives = |policy, key: &[u8]| {
            let env = Env::for_tests(disk.crash(policy, 1), 1);
            let db = Db::open(&env, "db", Options::default()).unwrap();
            let found = db.get(&db.default_family(), key, &ReadOptions::default());
            let found = found.unwrap().is_some();
            db.close().unwrap();
            found
        };
        assert!(survives(CrashPolicy::EverythingUnsynced, b"new"));
        assert!(survives(CrashPolicy::NothingUnsynced, b"old"));
        assert_eq!(
            survives(CrashPolicy::NothingUnsynced, b"new"),
            after_power_cut,
            "{durability:?}"
        );
        db.close().unwrap();
    }
}

const SIZES: [u64; 8] = [0, 1, 63, 1 << 10, 1 << 20, 1 << 32, u64::MAX - 1, u64::MAX];

/// Uses a store in most ways that depend on settings.
fn work(db: &Db, family: &Family) -> Result<()> {
    for n in 0..20u8 {
        let mut batch = WriteBatch::new();
        batch.put(family, &[n], &[n; 300])?;
        batch.put_ttl(family, &[n, 1], b"short", u64::MAX)?;
        batch.delete(family, &[n / 2])?;
        let durability = [Durability::None, Durability::Process, Durability::Device];
        let options = WriteOptions::default().durability(durability[usize::from(n % 3)]);
        db.write(batch, &options)?;
        if n % 8 == 7 {
            db.flush()?;
        }
    }
    db.compact_range(family, None, None)?;
    let mut it = db.iter(family, &ReadOptions::default())?;
    it.seek_to_first()?;
    while it.valid() {
        it.next()?;
    }
    db.get(family, &[19], &ReadOptions::default())?;
    db.wait_idle()
}

/// Opens a store with settings and uses it. Returns false if they were refused, with an error that
/// names the setting.
fn accepts(name: &str, options: Options) -> bool {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = match Db::open(&env, "db", options) {
        Ok(db) => db,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{name}: {e}");
            assert!(e.to_string().contains(name), "{name}: {e}");
            return false;
        }
    };
    let family = db.default_family();
    // A typed error is an answer, too: not all of this fits the simulated disk.
    if let Err(e) = work(&db, &family) {
        assert_ne!(e.kind(), ErrorKind::Corruption, "{name}: {e}");
        assert_ne!(e.kind(), ErrorKind::Poisoned, "{name}: {e}");
    }
    let _ = db.close();
    true
}

#[test]
fn settings_of_a_store_work_or_are_refused_by_name() {
    let (mut accepted, mut refused) = (0, 0);
    let mut check = |name: &str, options: Options| match accepts(name, options) {
        true => accepted += 1,
        false => refused += 1,
    };
    let o = Options::default;
    for n in SIZES {
        check("write_buffer_bytes", o().write_buffer_bytes(n));
        check("max_sealed_memtables", o().max_sealed_memtables(n as usize));
        check("idle_release", o().idle_release(Duration::from_secs(n)));
        check("idle_release", o().idle_release(Duration::from_nanos(n)));
    }
    check("write_buffer_bytes", o().write_buffer_bytes(1 << 40));
    check("max_sealed_memtables", o().max_sealed_memtables(1 << 16));
    check("idle_release", o().idle_release(Duration::MAX));
    for amp in [
        0.0,
        1.0,
        1.05,
        1000.0,
        -1.0,
        f64::MAX,
        f64::INFINITY,
        f64::NAN,
    ] {
        check("max_space_amp", o().max_space_amp(amp));
    }
    for name in ["", "\"\n\\", "\u{0}", &"long".repeat(1000)] {
        check("name", o().name(Some(name.to_string())));
        let families = [(name.to_string(), FamilyOptions::default())];
        check("families", o().families(families.into()));
    }
    for flag in [false, true] {
        check("allow_nonempty_dir", o().allow_nonempty_dir(flag));
        check("error_if_exists", o().error_if_exists(flag));
    }
    assert!(accepted > 20 && refused > 15, "{accepted}, {refused}");
}

#[test]
fn settings_of_a_family_work_or_are_refused_by_name() {
    let (mut accepted, mut refused) = (0, 0);
    let mut check = |name: &str, options: FamilyOptions| {
        let of_another = Options::default().families([("more".into(), options.clone())].into());
        let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
        let db = Db::open(&env, "db", Options::default()).unwrap();
        let created = db.create_family("more", options.clone());
        match accepts(name, Options::default().default_family(options)) {
            true => {
                accepted += 1;
                created.unwrap_or_else(|e| panic!("{name}: {e}"));
            }
            false => {
                refused += 1;
                let e = created.expect_err("refused at creation, too");
                assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{name}: {e}");
                assert!(!accepts(name, of_another), "{name}");
            }
        }
    };
    let f = FamilyOptions::default;
    for n in SIZES {
        let size = n as usize;
        check("block_bytes", f().block_bytes(size));
        check("filter_bits_per_key", f().filter_bits_per_key(n as u32));
        check("min_blob_size", f().min_blob_size(Some(size)));
        check("table_bytes", f().table_bytes(n));
        check("l0_compaction_trigger", f().l0_compaction_trigger(size));
        let slowdown = f().l0_slowdown(size);
        check("l0_slowdown", slowdown.clone());
        check("l0_", slowdown.l0_compaction_trigger(size));
        check("debt_slowdown_bytes", f().debt_slowdown_bytes(n));
        check("base_level_bytes", f().base_level_bytes(n));
        check("level_multiplier", f().level_multiplier(n as u32));
        check(
            "prefix_extractor",
            f().prefix_extractor(Some(Prefixes::Fixed(size))),
        );
        check(
            "prefix_extractor",
            f().prefix_extractor(Some(Prefixes::Capped(size))),
        );
    }
    let most = 1 << 20;
    check("l0_", f().l0_slowdown(most).l0_compaction_trigger(most));
    check(
        "base_level_bytes",
        f().base_level_bytes(1 << 50).level_multiplier(1 << 16),
    );
    check("table_bytes", f().table_bytes(1 << 40));
    check(
        "prefix_extractor",
        f().prefix_extractor(Some(Prefixes::Delimited(0))),
    );
    for codec in [Compression::None, Compression::Lz4, Compression::Zstd] {
        check(
            "compression",
            f().compression(codec).bottom_compression(Some(codec)),
        );
        check(
            "blob_compression",
            f().blob_compression(codec).min_blob_size(Some(0)),
        );
    }
    check(
        "l0_compaction_for_reads",
        f().l0_compaction_for_reads(false),
    );
    assert!(accepted > 40 && refused > 25, "{accepted}, {refused}");
}

#[test]
fn settings_of_reads_work_or_are_refused_by_name() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let prefixed = FamilyOptions::default().prefix_extractor(Some(Prefixes::Fixed(1)));
    let prefixed = db.create_family("prefixed", prefixed).unwrap();
    work(&db, &db.default_family()).unwrap();
    work(&db, &prefixed).unwrap();
    let other = Db::open(&env, "other", Options::default()).unwrap();
    let keys: [Option<Vec<u8>>; 6] = [
        None,
        Some(Vec::new()),
        Some(vec![5]),
        Some(vec![0xff; 4]),
        Some(vec![7; MAX_KEY_LEN]),
        Some(vec![0xff; 2 * MAX_KEY_LEN]),
    ];
    let (mut walked, mut refused) = (0, 0);
    let mut check = |name: &str, family: &Family, options: &ReadOptions| {
        let walk = || -> Result<()> {
            let mut it = db.iter(family, options)?;
            it.seek_to_first()?;
            for _ in 0..100 {
                if it.valid() {
                    it.next()?;
                }
            }
            for key in keys.iter().flatten() {
                it.seek(key)?;
                if it.valid() {
                    it.next()?;
                }
                if !options.tailing {
                    it.seek_for_prev(key)?;
                    if it.valid() {
                        it.prev()?;
                    }
                    it.seek_to_last()?;
                }
                it.refresh(options.snapshot.as_ref())?;
                db.get(family, key, options)?;
                db.get_meta(family, key, options)?;
            }
            Ok(())
        };
        match walk() {
            Ok(()) => walked += 1,
            Err(e) if e.kind() == ErrorKind::Busy => {
                assert!(e.to_string().contains("max_skippable_entries"), "{e}");
                walked += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{name}: {e}");
                assert!(e.to_string().contains(name), "{name}: {e}");
                refused += 1;
            }
        }
    };
    let families = [db.default_family(), prefixed];
    let r = ReadOptions::default;
    for family in &families {
        for (lower, upper) in keys.iter().flat_map(|a| keys.iter().map(move |b| (a, b))) {
            let bounds = r().lower_bound(lower.clone()).upper_bound(upper.clone());
            check("bound", family, &bounds);
            check("bound", family, &bounds.clone().keys_only(true));
            check("bound", family, &bounds.clone().tailing(true));
            check("prefix", family, &bounds.prefix_same_as_start(true));
        }
        for most in [0, 1, 2, u64::MAX] {
            check(
                "max_skippable_entries",
                family,
                &r().max_skippable_entries(most),
            );
        }
        check("fill_cache", family, &r().fill_cache(false));
        check("snapshot", family, &r().snapshot(Some(db.snapshot())));
        let both = r().snapshot(Some(db.snapshot())).tailing(true);
        check("tailing", family, &both);
        check("snapshot", family, &r().snapshot(Some(other.snapshot())));
    }
    assert!(walked > 200 && refused > 40, "{walked}, {refused}");
}

#[test]
fn settings_of_compactions_and_checkpoints_work_or_are_refused() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let family = db.default_family();
    work(&db, &family).unwrap();
    let long = vec![0xff; 2 * MAX_KEY_LEN];
    let ends = [None, Some(Vec::new()), Some(vec![3]), Some(long)];
    for (from, to) in ends.iter().flat_map(|a| ends.iter().map(move |b| (a, b))) {
        for bottommost in [Bottommost::Force, Bottommost::Skip, Bottommost::IfFilter] {
            let options = CompactOptions::default()
                .from(from.clone())
                .to(to.clone())
                .bottommost(bottommost)
                .relocate_values(true)
                .exclusive(true);
            if let Err(e) = db.compact(&family, &options) {
                assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
            }
        }
    }
    for (n, bytes) in SIZES.into_iter().enumerate() {
        let options = CheckpointOptions::default()
            .flush_above_bytes(bytes)
            .copy_tables(bytes % 2 == 0);
        db.put(&family, b"key", b"", &WriteOptions::UNSYNCED)
            .unwrap();
        db.checkpoint(format!("copy{n}"), &options).unwrap();
    }
    db.close().unwrap();
}
