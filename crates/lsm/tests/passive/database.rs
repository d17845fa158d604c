//! The database above a passive store: it logs a record, then applies it, and replays its log when
//! it opens the store.

use crate::owner::{Change, Content, Log, Record};
use basalt_env::Env;
use basalt_kv::merge::AddU64;
use basalt_lsm::db::{Prepared, Replay, Replayed, TableWriter};
use basalt_lsm::{
    Db, Family, FamilyOptions, LogMode, Options, PassiveOptions, ReadOptions, Result, TreeOptions,
    WriteBatch,
};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const DIR: &str = "store";
/// The expiry of values that expire after the end of the test, ms since 1970.
const LATE_MS: u64 = 4_000_000_000_000;

/// The settings of a family, by the first letter of its name.
pub fn family_options(name: &str) -> FamilyOptions {
    let options = FamilyOptions::default()
        .block_bytes(512)
        .table_bytes(8 << 10);
    match name.as_bytes()[0] {
        b's' => options.merge_operator(Some(Arc::new(AddU64))),
        b'v' => options.min_blob_size(Some(64)),
        b'p' => options.pages(Some(TreeOptions::default())),
        _ => options,
    }
}

/// The settings of the store.
pub fn options(log: &Arc<Log>, names: &[&str], pinned: Option<u64>, atomic_flush: bool) -> Options {
    let passive = PassiveOptions::default()
        .owner_log(Some(log.clone()))
        .atomic_flush(atomic_flush)
        .max_pinned_log_bytes(pinned);
    let families = names
        .iter()
        .map(|name| (name.to_string(), family_options(name)));
    Options::default()
        .log(LogMode::Passive(passive))
        .write_buffer_bytes(12 << 10)
        .default_family(family_options("default"))
        .families(families.collect())
}

fn batch(changes: &[(String, Change)], family: &dyn Fn(&str) -> Family) -> Result<WriteBatch> {
    let mut batch = WriteBatch::new();
    for (name, change) in changes {
        let family = family(name);
        match change {
            Change::Put(key, value) => batch.put(&family, key, value)?,
            Change::PutTtl(key, value) => batch.put_ttl(&family, key, value, LATE_MS)?,
            Change::Delete(key) => batch.delete(&family, key)?,
            // A family that was dropped has no operator any more, and any item takes its number.
            Change::Add(key, _) if family.name().is_empty() => batch.delete(&family, key)?,
            Change::Add(key, more) => batch.merge(&family, key, &more.to_le_bytes())?,
            Change::DeleteRange(from, to) => batch.delete_range(&family, from, to)?,
        }
    }
    Ok(batch)
}

fn table(mut table: TableWriter, entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Prepared> {
    for (key, value) in entries {
        table.add(key, value)?;
    }
    table.finish()
}

/// Applies a record that is in the log.
pub fn apply(db: &Db, tsn: u64, record: &Record) -> Result<()> {
    let mut items = WriteBatch::new();
    match record {
        // An attempt before may have made or dropped the family.
        Record::Create(name) => {
            if db.family(name).is_none() {
                db.create_family(name, family_options(name))?;
            }
        }
        Record::Drop(name) => {
            if let Some(family) = db.family(name) {
                db.drop_family(&family)?;
            }
        }
        Record::Ingest(families) => {
            let mut prepared = Vec::new();
            for (name, entries) in families {
                let family = db.family(name).expect("the history knows it");
                prepared.push(table(db.prepare(&family)?, entries)?);
            }
            return db.ingest_at(tsn, &prepared).map(|_| ());
        }
        Record::Transaction(changes) => {
            items = batch(changes, &|name| {
                db.family(name).expect("the history knows it")
            })?;
        }
    }
    db.write_at(tsn, items).map(|_| ())
}

/// Replays a record.
pub fn replay(replay: &mut Replay, tsn: u64, record: &Record) -> Result<Replayed> {
    let mut items = WriteBatch::new();
    match record {
        Record::Create(name) => {
            if replay.family(name).is_none() {
                replay.create_family(name, family_options(name))?;
            }
        }
        Record::Drop(name) => {
            if let Some(family) = replay.family(name) {
                replay.drop_family(&family)?;
            }
        }
        Record::Ingest(families) => {
            let of = |name: &String| replay.family(name);
            let handles: Vec<Family> = families.keys().filter_map(of).collect();
            let handles: Vec<&Family> = handles.iter().collect();
            return replay.ingest(tsn, &handles, |replay| {
                let existing = families
                    .iter()
                    .filter_map(|(name, e)| Some((replay.family(name)?, e)));
                existing
                    .map(|(family, entries)| table(replay.prepare(&family)?, entries))
                    .collect()
            });
        }
        Record::Transaction(changes) => {
            let dropped = replay.dropped_family();
            items = batch(changes, &|name| {
                replay.family(name).unwrap_or_else(|| dropped.clone())
            })?;
        }
    }
    replay.replay(tsn, items)
}

/// What a recovery did.
#[derive(Debug, Default)]
pub struct Recovery {
    /// True if families were persisted up to different transactions.
    pub uneven: bool,
    pub applied: u64,
    pub dropped: u64,
}

/// Opens the store and replays the log from `from` on.
pub fn open(
    env: &Env,
    options: Options,
    log: &Log,
    from: impl Fn(u64) -> u64,
) -> Result<(Db, Recovery)> {
    let mut run = Db::open_passive(env, DIR, options)?;
    let state = log.state();
    let needed = run.points().replay_from();
    assert!(
        state.begin <= needed,
        "the store let its owner trim the log to {} and needs it from {needed} on",
        state.begin
    );
    let mut recovery = Recovery::default();
    let points = &run.points().families;
    recovery.uneven = points.iter().any(|p| p.flag.tsn != points[0].flag.tsn);
    for tsn in from(needed).clamp(state.begin, needed)..=state.end {
        let replayed = replay(&mut run, tsn, &log.record(tsn))?;
        recovery.applied += replayed.applied;
        recovery.dropped += replayed.dropped;
    }
    Ok((run.finish(state.end)?, recovery))
}

/// Returns everything in the store.
pub fn read_all(db: &Db) -> Result<Content> {
    let mut all = Content::new();
    for name in db.families() {
        let family = db.family(&name).expect("it was just named");
        let mut keys = BTreeMap::new();
        let mut iter = db.iter(&family, &ReadOptions::default())?;
        iter.seek_to_first()?;
        while iter.valid() {
            keys.insert(iter.key().to_vec(), iter.value().to_vec());
            iter.next()?;
        }
        all.insert(name, keys);
    }
    Ok(all)
}
