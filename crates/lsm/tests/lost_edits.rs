//! Manifests that lost their last edits, by a cut or by damage. An open either has every
//! acknowledged synced write, or refuses and leaves all files to a repair, which finds them.

use basalt_env::Env;
use basalt_env::sync::atomic::AtomicU64;
use basalt_env::sync::atomic::Ordering::Relaxed;
use basalt_fs::{Error, FileSystem};
use basalt_lsm::db::{Db, VerifyReport};
use basalt_lsm::{ErrorKind, FamilyOptions, Options, ReadOptions, WriteOptions};
use basalt_sim::{CrashPolicy, SimFs, SimOptions, SimSnapshot};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

const DIR: &str = "store";

/// Returns an environment. Each one has its own seed, as no two openings make the same file ids.
fn env(fs: &Arc<SimFs>) -> Env {
    static SEED: AtomicU64 = AtomicU64::new(1);
    Env::for_tests(fs.clone(), SEED.fetch_add(1, Relaxed))
}

/// Values, by family and key.
type Content = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// A store and its acknowledged synced writes.
struct Store {
    say: &'static str,
    options: Options,
    disk: SimSnapshot,
    content: Content,
}

fn check(fs: &Arc<SimFs>, options: &Options) -> VerifyReport {
    Db::verify_store(&env(fs), DIR, options, &mut |_, _| {}).unwrap()
}

/// Returns the path and the bytes of the manifest that `CURRENT` names.
fn manifest(fs: &SimFs) -> (PathBuf, Vec<u8>) {
    let current = fs.read_all(&Path::new(DIR).join("CURRENT")).unwrap();
    let number = u64::from_le_bytes(current[8..16].try_into().unwrap());
    let path = Path::new(DIR).join(format!("MANIFEST-{number:06}"));
    let bytes = fs.read_all(&path).unwrap();
    (path, bytes)
}

impl Store {
    /// Makes a store with `fill`, which returns what it wrote, and ends it.
    fn new(
        say: &'static str,
        options: Options,
        end: fn(Db),
        fill: impl FnOnce(&Db) -> Content,
    ) -> Store {
        let fs = SimFs::new(SimOptions::default());
        let db = Db::open(&env(&fs), DIR, options.clone()).unwrap();
        let f = db.default_family();
        db.put(&f, b"first", b"1", &WriteOptions::SYNC).unwrap();
        db.close().unwrap();
        let db = Db::open(&env(&fs), DIR, options.clone()).unwrap();
        let mut content = fill(&db);
        content.insert(("default".into(), b"first".to_vec()), b"1".to_vec());
        end(db);
        let disk = fs.snapshot();
        let store = Store {
            say,
            options,
            disk,
            content,
        };
        let whole = store.disk.kill();
        assert!(check(&whole, &store.options).damage.is_empty(), "{say}");
        store.expect_all(&store.read(&whole), say);
        store
    }

    /// Reads what the store should have, through an open for writing.
    fn read(&self, fs: &Arc<SimFs>) -> Content {
        let db = Db::open(&env(fs), DIR, self.options.clone());
        let db = db.unwrap_or_else(|e| panic!("{}: {e}", self.say));
        let content = self.read_db(&db);
        db.close().unwrap();
        content
    }

    fn read_db(&self, db: &Db) -> Content {
        let mut out = Content::new();
        for (family, key) in self.content.keys() {
            // A repair cannot know the name of a family whose edit is lost.
            let found = db.family(family).or_else(|| db.family("recovered-1"));
            if let Some(f) = found
                && let Some(value) = db.get(&f, key, &ReadOptions::default()).unwrap()
            {
                out.insert((family.clone(), key.clone()), value.to_vec());
            }
        }
        out
    }

    /// Checks that nothing is missing or different.
    fn expect_all(&self, found: &Content, say: &str) {
        let differs =
            |(name, value): &(&(String, Vec<u8>), &Vec<u8>)| found.get(name) != Some(value);
        let lost = self.content.iter().filter(differs);
        let lost: Vec<String> = lost
            .map(|((family, key), _)| format!("{family}: {}", String::from_utf8_lossy(key)))
            .collect();
        assert!(lost.is_empty(), "{say}: {lost:?}");
    }

    /// Damages a copy of the disk, and checks that no write is lost. Returns whether the store
    /// refused to open.
    fn try_damage(&self, what: &str, damage: impl Fn(&SimFs)) -> bool {
        let say = format!("{}, {what}", self.say);
        let fs = self.disk.kill();
        damage(&fs);
        let found = check(&fs, &self.options);
        let read_only = Db::open_read_only(&env(&fs), DIR, self.options.clone());
        match &read_only {
            Ok(db) => self.expect_all(&self.read_db(db), &format!("{say}: read-only")),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption, "{say}: {e}"),
        }
        let readable = read_only.is_ok();
        if let Ok(db) = read_only {
            db.close().unwrap();
        }
        let names = |fs: &SimFs| -> Vec<String> {
            let entries = fs.list(Path::new(DIR)).unwrap();
            entries.into_iter().map(|e| e.name).collect()
        };
        let before = names(&fs);
        match Db::open(&env(&fs), DIR, self.options.clone()) {
            Ok(db) => {
                self.expect_all(&self.read_db(&db), &say);
                let harmless = |e: &Error| e.to_string().contains("no entry is touched");
                let sound = found.damage.iter().all(harmless);
                assert!(readable && sound, "{say}: {found:#?}");
                db.close().unwrap();
                false
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{say}: {e}");
                assert!(!readable && !found.damage.is_empty(), "{say}: {e}");
                assert!(found.unused_files.is_empty(), "{say}: {found:#?}");
                assert_eq!(names(&fs), before, "{say}: files are gone");
                let report = Db::repair(&env(&fs), DIR, &self.options, &mut |_, _| {});
                let report = report.unwrap_or_else(|e| panic!("{say}: {e}"));
                self.expect_all(&self.read(&fs), &format!("{say}: {report:#?}"));
                assert!(check(&fs, &self.options).damage.is_empty(), "{say}");
                true
            }
        }
    }

    /// Cuts the manifest, and flips bytes in its last edits. Returns the number of damages and of
    /// refusals.
    fn try_all(&self) -> (u64, u64) {
        let (path, bytes) = manifest(&self.disk.kill());
        let len = bytes.len() as u64;
        // The first edit is the whole state, and `CURRENT` vouches for it.
        let first = 1024;
        let (mut tried, mut refused) = (0, 0);
        let mut count = |r: bool| {
            tried += 1;
            refused += u64::from(r);
        };
        for at in (first..len).step_by(64) {
            count(self.try_damage(&format!("cut at {at}"), |fs| {
                fs.truncate(&path, at).unwrap();
            }));
            count(self.try_damage(&format!("zeros from {at}"), |fs| {
                let zeros = vec![0; (len - at) as usize];
                fs.overwrite(&path, at, &zeros).unwrap();
            }));
        }
        for at in (len.saturating_sub(1024).max(first)..len).step_by(7) {
            count(self.try_damage(&format!("bit flipped at {at}"), |fs| {
                fs.flip_bit(&path, at, 3).unwrap();
            }));
        }
        println!("{}: {refused} of {tried} refused, {len} bytes", self.say);
        (tried, refused)
    }
}

fn put_all(db: &Db, family: &str, keys: std::ops::Range<u32>, len: usize, out: &mut Content) {
    let f = db.family(family).unwrap();
    for n in keys {
        let key = format!("key {:03}", n % 400).into_bytes();
        let value = format!("{n}").repeat(len).into_bytes();
        db.put(&f, &key, &value, &WriteOptions::SYNC).unwrap();
        out.insert((family.into(), key), value);
    }
}

/// Regression test: one damaged byte in the edit that names the newest log made the log an unused
/// file. Check called the store sound, and the next open deleted the log with all its writes.
#[test]
fn the_edit_that_names_the_newest_log_is_lost() {
    let store = Store::new("two keys", Options::default(), Db::abandon, |db| {
        let mut out = Content::new();
        put_all(db, "default", 1..3, 1, &mut out);
        out
    });
    let (tried, refused) = store.try_all();
    assert!(refused >= 10, "{refused} of {tried}");
    // The error names the manifest, the log, and what to do.
    let fs = store.disk.kill();
    let (path, bytes) = manifest(&fs);
    fs.truncate(&path, bytes.len() as u64 - 512).unwrap();
    let e = Db::open(&env(&fs), DIR, Options::default()).err().unwrap();
    assert_eq!(e.path(), Some(path.as_path()), "{e}");
    let text = e.to_string();
    assert!(
        text.contains(".log") && text.contains("basalt repair"),
        "{e}"
    );
    let found = check(&fs, &Options::default());
    assert_eq!(found.damage.len(), 1, "{found:#?}");
    assert_eq!(found.damage[0].path(), Some(path.as_path()));
}

fn small() -> Options {
    Options::default()
        .write_buffer_bytes(16 << 10)
        .default_family(
            FamilyOptions::default()
                .table_bytes(4096)
                .base_level_bytes(8192)
                .l0_compaction_trigger(3)
                .min_blob_size(Some(400)),
        )
}

/// Stores with flushes, compactions, spare logs, blob files and a second family.
fn busy(say: &'static str, end: fn(Db), rounds: u32) -> Store {
    Store::new(say, small(), end, |db| {
        let mut out = Content::new();
        db.create_family("second", FamilyOptions::default())
            .unwrap();
        for round in 0..rounds {
            let from = round * 40;
            put_all(db, "default", from..from + 40, 30, &mut out);
            put_all(db, "second", from..from + 5, 300, &mut out);
        }
        out
    })
}

#[test]
fn lost_edits_of_killed_stores_cost_no_write() {
    let (mut tried, mut refused) = (0, 0);
    for rounds in [1, 2, 3, 5, 8] {
        let (t, r) = busy("killed", Db::abandon, rounds).try_all();
        (tried, refused) = (tried + t, refused + r);
    }
    println!("lost_edits={tried} refused={refused}");
    assert!(tried >= 100 && refused * 2 >= tried, "{refused} of {tried}");
}

#[test]
fn lost_edits_of_closed_stores_cost_no_write() {
    for rounds in [1, 4] {
        let (tried, refused) = busy("closed", |db| db.close().unwrap(), rounds).try_all();
        assert!(tried >= 20 && refused >= 10, "{refused} of {tried}");
    }
}

fn ingest(db: &Db, keys: std::ops::Range<u32>, out: &mut Content) {
    let mut table = db.prepare(&db.default_family()).unwrap();
    for n in keys {
        let (key, value) = (format!("prepared {n:03}").into_bytes(), vec![n as u8; 500]);
        table.add(&key, &value).unwrap();
        out.insert(("default".into(), key), value);
    }
    db.ingest(&[table.finish().unwrap()]).unwrap();
}

/// The tables of an ingestion are in no log. The note of the ingestion shows that its edit is lost
/// or, if no log could take the note, `CURRENT` does. Repair then keeps the tables.
#[test]
fn the_edit_of_an_ingestion_is_lost() {
    let stores = [
        Store::new("ingestion without a log", small(), Db::abandon, |db| {
            let mut out = Content::new();
            ingest(db, 0..30, &mut out);
            out
        }),
        Store::new("ingestion beside a log", small(), Db::abandon, |db| {
            let mut out = Content::new();
            put_all(db, "default", 0..5, 1, &mut out);
            ingest(db, 0..30, &mut out);
            out
        }),
        Store::new("ingestion, then writes", small(), Db::abandon, |db| {
            let mut out = Content::new();
            ingest(db, 0..30, &mut out);
            put_all(db, "default", 0..5, 1, &mut out);
            ingest(db, 30..60, &mut out);
            put_all(db, "default", 5..60, 30, &mut out);
            out
        }),
    ];
    for store in stores {
        let (tried, refused) = store.try_all();
        assert!(refused >= 10, "{refused} of {tried}");
    }
}

/// A power cut may take unsynced bytes, and nothing else. It is never taken for lost edits,
/// wherever it comes: while a log is prepared, recycled or named.
#[test]
fn a_power_cut_is_not_taken_for_lost_edits() {
    let fs = SimFs::new(SimOptions::default());
    let db = Db::open(&env(&fs), DIR, small()).unwrap();
    fs.record_snapshots(1);
    let mut content = Content::new();
    put_all(&db, "default", 0..120, 30, &mut content);
    db.abandon();
    let (mut states, mut prepared) = (0, 0);
    for (i, snapshot) in fs.take_snapshots().into_iter().enumerate() {
        for policy in CrashPolicy::ALL {
            let fs = snapshot.crash(*policy, i as u64);
            let found = check(&fs, &small());
            assert!(found.damage.is_empty(), "state {i} {policy:?}: {found:#?}");
            prepared += u64::from(found.unused_files.iter().any(|n| n.ends_with(".log")));
            let db = Db::open(&env(&fs), DIR, small());
            let db = db.unwrap_or_else(|e| panic!("state {i} {policy:?}: {e}"));
            db.abandon();
            states += 1;
        }
    }
    println!("crash_states={states} with_unused_logs={prepared}");
    assert!(states >= 500 && prepared >= 10, "{states}, {prepared}");
}
