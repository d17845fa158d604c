//! Damaged files and records: an opening gives an error that says so, or the right content.

use crate::database::{DIR, Sql, disk, options, storage_log};
use crate::history::{History, Model};
use basalt::env::Env;
use basalt::fs::FileSystem;
use basalt::log::{LogEngine, LogEngineOptions, LogOptions};
use basalt::{LogMode, Options, ReadOptions, Store, StoreOptions, WriteBatch, WriteOptions};
use basalt_sim::campaign::{case, cases, scale};
use basalt_sim::rng::Rng;
use basalt_sim::{SimFs, campaign, repeat};
use basalt_sql::{BinlogReader, DatabaseOptions, SqlError, StorageLog};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Counts of what the campaigns really did.
#[derive(Debug, Default)]
struct Tally {
    images: u64,
    /// Images that an opening, a read or a check refused.
    refused: u64,
    /// Images with the content as of the last transaction, or as of the one that is named.
    intact: u64,
    /// Images whose binlog or store ends earlier.
    shorter: u64,
}

fn files(fs: &Arc<dyn FileSystem>, dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs.list(dir).expect("a sound disk") {
        let path = dir.join(&entry.name);
        match entry.is_dir {
            true => files(fs, &path, found),
            false if entry.name == "LOCK" => {}
            false => found.push(path),
        }
    }
}

/// Returns a database that was closed, or that died after its last step.
fn history(seed: u64, options: &DatabaseOptions, closes: bool) -> (Arc<SimFs>, Model, u64) {
    let disk = disk(seed);
    let env = Env::for_tests(disk.clone(), seed);
    let mut history = History::begin(seed, env, options.clone()).expect("a sound disk");
    for _ in 0..120 {
        history.step();
    }
    let last = history.sql.database.last_transaction();
    if closes {
        history.sql.database.close().expect("a sound disk");
        drop(history.sql);
    } else {
        history.sql.abandon();
    }
    (disk.kill(), history.model, last)
}

fn damage(disk: &SimFs, files: &[PathBuf], rng: &mut Rng) -> String {
    let path = &files[rng.below(files.len() as u64) as usize];
    let len = disk.read_all(path).expect("it is there").len() as u64;
    if len == 0 {
        return format!("nothing in {}", path.display());
    }
    let at = rng.below(len);
    let what = match rng.below(4) {
        0 | 1 => {
            disk.flip_bit(path, at, rng.below(8) as u8).expect("inside");
            format!("a bit at {at}")
        }
        2 => {
            disk.truncate(path, at).expect("inside");
            format!("cut at {at}")
        }
        _ => {
            let start = at / 512 * 512;
            let zeros = vec![0; 512.min((len - start) as usize)];
            disk.overwrite(path, start, &zeros).expect("inside");
            format!("zeros at {start}")
        }
    };
    format!("{what} of {}", path.display())
}

/// Checks that an error is one of a store: it says what is damaged, and is no defect of the
/// program.
fn assert_typed(e: &SqlError, what: &str) {
    let state = e.state().0;
    let is_typed = matches!(
        state,
        "XX001" | "58030" | "53200" | "0A000" | "55000" | "25006"
    );
    assert!(is_typed, "{what}: {e}");
}

/// Opens a damaged database and compares its content.
fn open_damaged(
    disk: &Arc<SimFs>,
    options: &DatabaseOptions,
    model: &Model,
    last: u64,
    what: &str,
    tally: &mut Tally,
) {
    tally.images += 1;
    let env = Env::for_tests(disk.clone(), 5);
    let opened = Sql::open(&env, DIR, options);
    let content = opened.and_then(|mut sql| {
        let content = sql.try_content();
        let report = sql.database.check(&mut |_| ());
        let end = sql.database.last_transaction();
        sql.abandon();
        Ok((content?, report?, end))
    });
    match content {
        Err(e) => {
            assert_typed(&e, what);
            tally.refused += 1;
        }
        Ok((_, report, _)) if !report.problems.is_empty() => tally.refused += 1,
        Ok((content, _, end)) => {
            let states = (0..=end.max(last)).rev();
            let mut states = states.map(|tsn| model.at(tsn));
            assert!(
                states.any(|state| state == content),
                "{what}: the content never was"
            );
            tally.intact += u64::from(content == model.at(last));
            tally.shorter += u64::from(content != model.at(last));
        }
    }
}

#[test]
fn damaged_files_give_errors_or_the_right_content() {
    let mut tally = Tally::default();
    for seed in cases(0..6 * scale()) {
        let _repeat = repeat!(
            damaged_files_give_errors_or_the_right_content,
            "BASALT_CASE={seed}"
        );
        let options = options(seed, storage_log(seed));
        let (disk, model, last) = history(seed, &options, seed % 2 == 0);
        let mut rng = Rng::of(&[seed, 44]);
        let mut paths = Vec::new();
        let fs: Arc<dyn FileSystem> = disk.clone();
        files(&fs, Path::new(DIR), &mut paths);
        let snapshot = disk.snapshot();
        for _ in 0..70 {
            let disk = snapshot.kill();
            let what = damage(&disk, &paths, &mut rng);
            open_damaged(&disk, &options, &model, last, &what, &mut tally);
        }
    }
    campaign!("damaged databases: {tally:?}");
    if case().is_none() {
        assert!(tally.images >= scale().floor(400), "{tally:?}");
        assert!(tally.refused >= scale().floor(80), "{tally:?}");
        assert!(tally.intact >= scale().floor(40), "{tally:?}");
    }
}

/// Changes some bytes of a record.
fn mutated(record: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = record.to_vec();
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(bytes.len().max(1) as u64) as usize;
        match rng.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), rng.below(256) as u8),
            2 if at < bytes.len() => bytes[at] = 0xff,
            _ if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            _ => bytes.push(0),
        }
    }
    bytes
}

/// Opens a database with records that are malformed and have a right checksum. Their content may be
/// anything, so it is read and not compared.
fn open_malformed(env: &Env, options: &DatabaseOptions, tally: &mut Tally) {
    tally.images += 1;
    let read = Sql::open(env, DIR, options).and_then(|mut sql| {
        let content = sql.try_content();
        let report = sql.database.check(&mut |_| ());
        let mut binlog = sql.database.binlog(None)?;
        while binlog.next(Duration::ZERO)?.is_some() {}
        sql.abandon();
        content?;
        report
    });
    match read {
        Ok(report) => tally.intact += u64::from(report.problems.is_empty()),
        Err(e) => {
            // The query of a view is a text, and the executor finds what is wrong with it.
            let is_of_view = e.message().starts_with("SQLite refuses the declaration");
            assert!(e.state().0 != "XX000" || is_of_view, "{e}");
            tally.refused += 1;
        }
    }
}

#[test]
fn malformed_records_of_the_binlog_give_errors() {
    let mut tally = Tally::default();
    for seed in cases(0..4 * scale()) {
        let _repeat = repeat!(
            malformed_records_of_the_binlog_give_errors,
            "BASALT_CASE={seed}"
        );
        let options = options(seed, storage_log(seed * 3)).binlog_retention_bytes(1 << 30);
        let (disk, _, last) = history(seed, &options, true);
        let snapshot = disk.snapshot();
        let mut rng = Rng::of(&[seed, 45]);
        for _ in 0..60 {
            let env = Env::for_tests(snapshot.kill(), rng.next_u64());
            let dir = Store::find_logs(&env, DIR)
                .expect("sound")
                .expect("it has logs");
            let logs = LogEngine::open(&env, dir, LogEngineOptions::default());
            let logs = logs.expect("a sound disk");
            let log = logs.open_or_create("binlog", LogOptions::default());
            let log = log.expect("a sound disk");
            for tsn in last + 1..last + 1 + 1 + rng.below(3) {
                let of = 1 + rng.below(last);
                let record = log.read(of).expect("sound").expect("nothing was trimmed");
                let record = mutated(&record, &mut rng);
                let sync = basalt::log::WriteOptions::SYNC;
                log.append(tsn, &record, &sync).expect("a sound disk");
            }
            logs.close().expect("a sound disk");
            if let Ok(mut reader) = BinlogReader::open(&env, DIR) {
                reader.seek(last + 1).expect("nothing was trimmed");
                while let Ok(Some(_)) = reader.next(Duration::ZERO) {}
            }
            open_malformed(&env, &options, &mut tally);
        }
    }
    campaign!("malformed records: {tally:?}");
    if case().is_none() {
        assert!(tally.images >= scale().floor(200), "{tally:?}");
        assert!(tally.refused >= scale().floor(60), "{tally:?}");
    }
}

#[test]
fn malformed_entries_of_the_catalog_give_errors() {
    let mut tally = Tally::default();
    for seed in cases(0..3 * scale()) {
        let _repeat = repeat!(
            malformed_entries_of_the_catalog_give_errors,
            "BASALT_CASE={seed}"
        );
        let options = options(seed, StorageLog::Own { synced: true });
        let (disk, _, _) = history(seed, &options, true);
        let snapshot = disk.snapshot();
        let mut rng = Rng::of(&[seed, 46]);
        for _ in 0..60 {
            let env = Env::for_tests(snapshot.kill(), rng.next_u64());
            let tables = Options::default().log(LogMode::Own);
            let store = Store::open(&env, DIR, StoreOptions::default().tables(tables));
            let store = store.expect("a sound disk");
            let (db, family) = (store.db(), store.db().default_family());
            let mut entries = Vec::new();
            let mut iter = db.iter(&family, &ReadOptions::default()).expect("sound");
            iter.seek_to_first().expect("sound");
            while iter.valid() {
                entries.push((iter.key().to_vec(), iter.value().to_vec()));
                iter.next().expect("sound");
            }
            drop(iter);
            let (key, value) = &entries[rng.below(entries.len() as u64) as usize];
            let mut batch = WriteBatch::new();
            match rng.below(4) {
                0 => {
                    let key = mutated(key, &mut rng);
                    batch.put(&family, &key, value).expect("small");
                }
                1 => batch.delete(&family, key).expect("small"),
                _ => {
                    let value = mutated(value, &mut rng);
                    batch.put(&family, key, &value).expect("small");
                }
            }
            db.write(batch, &WriteOptions::SYNC).expect("a sound disk");
            store.close().expect("a sound disk");
            open_malformed(&env, &options, &mut tally);
        }
    }
    campaign!("malformed catalogs: {tally:?}");
    if case().is_none() {
        assert!(tally.images >= scale().floor(150), "{tally:?}");
        assert!(tally.refused >= scale().floor(30), "{tally:?}");
    }
}
