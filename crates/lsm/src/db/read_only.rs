//! Opening a store without permission, or intent, to change a byte.
//!
//! The records of the logs are read into memtables and stay there. No file is written, not even a
//! lock file. The lock that a writer holds alone is shared by readers. While a reader has the store
//! open, no writer can open it, so the files do not change during reads. A directory without a lock
//! file (one copied to a read-only medium) is read as it is. Files have ids and checksums. So if
//! another process writes to such a directory after all, a read fails and does not return wrong
//! data.

use super::engine::Engine;
use super::memtable_set::MemtableSet;
use super::open::{bind_families, build_version, check_engines, load_catalog, replay_logs};
use super::pages;
use super::store_files::LOCK;
use super::tree::OpenedTree;
use super::write_path::apply::insert;
use crate::options::Options;
use crate::version::TableStore;
use crate::version::catalog::Catalog;
use crate::version::manifest::Manifest;
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;

/// Number of records after which the growth of the memtables is reserved in the ledger.
const BOOK_EVERY: u64 = 256;

/// Refuses a passive store that has some transactions only in part.
fn check_complete(catalog: &Catalog) -> Result<()> {
    catalog.check_flags()?;
    let flags = || {
        catalog
            .families
            .values()
            .filter_map(|f| Some((&f.name, f.flush_flag?.tsn)))
    };
    let least = flags().min_by_key(|(_, tsn)| *tsn);
    let most = flags().max_by_key(|(_, tsn)| *tsn);
    match (least, most) {
        (Some((behind, least)), Some((ahead, most))) if least < most => {
            Err(Error::invalid(format!(
                "the store is passive and was not closed: family {ahead:?} is persisted up to transaction {most}, and family {behind:?} only up to {least}; its owner must open it and replay its log from transaction {} on",
                least + 1
            )))
        }
        _ => Ok(()),
    }
}

/// Opens a store for reading, as the module's comment describes.
pub(crate) fn open(env: &Env, dir: &Path, options: Options) -> Result<Arc<Engine>> {
    options.validate()?;
    let fs = env.fs();
    let none = || Error::new(ErrorKind::NotFound, "no store here").in_file(dir);
    if !fs.exists(dir)? {
        return Err(none());
    }
    let lock = fs.lock_shared(&dir.join(LOCK))?;
    let names: Vec<String> = fs
        .list(dir)?
        .into_iter()
        .filter(|e| !e.is_dir)
        .map(|e| e.name)
        .collect();
    let Some(loaded) = load_catalog(env, dir, &names)? else {
        return Err(none());
    };
    let catalog = loaded.catalog;
    check_complete(&catalog)?;
    env.clock().observe_wall_ms(catalog.wall_ms);
    let families = bind_families(&catalog, &options)?;
    check_engines(&catalog, &families)?;
    let tables = TableStore::new(env, dir);
    let version = build_version(&tables, &catalog, &families)?;
    let trees = pages::open_all(&tables, dir, &catalog, &families, true)?;
    let cmps = families
        .values()
        .map(|f| (f.id, f.options.comparator.clone()));
    let memtable_set = MemtableSet::new(env, 1, cmps);
    let mut last_seq = catalog.last_seq;
    let mut records = 0u64;
    let (store_id, next_family) = (catalog.store_id, catalog.next_family);
    let known = catalog.last_seq;
    replay_logs(env, dir, store_id, next_family, known, &catalog.logs, |r| {
        insert(&memtable_set, &r.payload, r.first_seq)?;
        last_seq = last_seq.max(r.first_seq + u64::from(r.count) - 1);
        records += 1;
        if records.is_multiple_of(BOOK_EVERY) {
            memtable_set.book_memory();
        }
        Ok(())
    })?;
    memtable_set.book_memory();
    let manifest = Manifest::unwritten(dir, loaded.manifest, store_id);
    let opened = OpenedTree {
        tables,
        manifest,
        catalog,
        families,
        version,
        pages: trees,
        last_seq,
    };
    let engine = Engine::new(env, dir.to_path_buf(), options, opened, lock, true);
    engine.begin_background_work();
    engine
        .tree
        .change_view(|_, view| view.active = memtable_set);
    Ok(engine)
}
