//! The store of a command, opened with the server's own options, so that both see the same entries.
//!
//! Without `--family`, keys and values are those of Redis strings in database 0, in the encoding of
//! `docs/format/redis-keys.md`. With `--family`, they are the stored bytes.

use crate::args::KeyspaceArgs;
use crate::budget::Budget;
use crate::engine;
use crate::escape::unescape;
use crate::failure::Failure;
use crate::filesystem;
use crate::keyspace::{KEY_OVERHEAD, Keyspace, STRING_HEADER, VALUE_OVERHEAD};
pub use crate::location::Access;
use crate::location::StoreLocation;
use crate::text_entry::KvRecord;
use basalt::Iter;
use basalt::env::{EnvBuilder, process_memory};
use basalt::fs::{DirEntry, LockGuard};
use basalt::{
    Bytes, Db, EngineKind, Env, ErrorKind, Family, Options, ReadOptions, StoreOptions, TableWriter,
    WriteBatch,
};
use basalt::{MAX_KEY_LEN, MAX_VALUE_LEN};
use basalt_server::catalog::{self, Retired};
use basalt_server::layout::{KEYS_FAMILY, SERVER_PREFIX};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The file that names the manifest of a store.
pub const CURRENT: &str = "CURRENT";
/// The file whose lock is that of a store.
const LOCK: &str = "LOCK";

/// An open store and the entries of it that the command sees.
pub struct Store {
    place: StoreLocation,
    db: Db,
    selection: KeySelection,
}

/// The entries that a command sees.
enum KeySelection {
    /// The keys of Redis clients.
    Redis(Keyspace),
    /// The keys of Redis clients in a store that never had any.
    Empty,
    /// The stored bytes of a family.
    Raw(Family),
}

/// The longest key and value that a command can store, in bytes.
#[derive(Clone, Copy)]
pub struct Limits {
    pub key: usize,
    pub value: usize,
}

impl Limits {
    /// Returns the limits for the entries of the flags.
    pub fn of(which: &KeyspaceArgs) -> Limits {
        let (key, value) = match which.family {
            None => (KEY_OVERHEAD, VALUE_OVERHEAD),
            Some(_) => (0, 0),
        };
        Limits {
            key: MAX_KEY_LEN - key,
            value: MAX_VALUE_LEN - value,
        }
    }

    /// Checks lengths before a store is opened or a gigabyte copied. The error names the entry.
    pub fn check(
        self,
        key: &[u8],
        value_len: u64,
        name: impl Fn() -> String,
    ) -> Result<(), String> {
        if key.len() > self.key {
            return Err(format!(
                "{}: the key has {} bytes, at most {}{} are allowed",
                name(),
                key.len(),
                self.key,
                match self.key {
                    65_536 => " (64 KiB)",
                    _ => " (64 KiB less what the encoding of Redis keys takes)",
                }
            ));
        }
        if value_len > self.value as u64 {
            return Err(format!(
                "{}: the value has {value_len} bytes or more, at most {} (1 GiB) are allowed",
                name(),
                self.value
            ));
        }
        Ok(())
    }
}

/// The value of a key.
pub enum Value {
    Absent,
    /// A string, and its expiry in ms since 1970.
    Bytes(Bytes, Option<u64>),
    /// A value of another type, which only a Redis client can read: the name of the type.
    Other(&'static str),
}

/// Returns an environment for a command, and the store's directory in it. Without a budget, the
/// environment has the default one.
pub fn environment(
    place: &StoreLocation,
    access: Access,
    budget: Option<&Budget>,
) -> Result<(Env, PathBuf), Failure> {
    let (env, path) = any_environment(place, access, budget)?;
    let entries = env.fs().list(&path).unwrap_or_default();
    if kind_of_store(&entries) == Some(StoreKind::Logs) {
        // A repair of keys would set the manifest of the logs aside.
        return Err(Failure::new(format!(
            "{place} holds a store of logs, not of keys; `basalt log` works on it"
        )));
    }
    Ok((env, path))
}

/// The logs that a command works on.
pub struct LogsLocation {
    pub env: Env,
    /// The directory of the logs: that of a store of logs alone, or a directory inside that of a
    /// store that also has tables.
    pub path: PathBuf,
    /// The store that has the logs beside its tables.
    pub keys: Option<StoreLocation>,
    /// Why the logs cannot be found, although the store of keys had some, or may have had some.
    pub missing: Option<basalt::Error>,
    /// The lock of the store of keys. Dropped when the logs are closed.
    _lock: Option<Box<dyn LockGuard>>,
}

/// Returns the location of the logs of a command, and locks the store of keys that they belong to.
/// `argument` is the location as the command line names it, for advice. A command that makes logs
/// makes them in a store of keys, too.
pub fn environment_for_logs(
    place: &StoreLocation,
    argument: &str,
    access: Access,
) -> Result<LogsLocation, Failure> {
    let (env, path) = match any_environment(place, access, None) {
        Err(failure @ Failure::Message(..)) => lost_logs(place, access).ok_or(failure)?,
        opened => opened?,
    };
    if access != Access::Read && are_of_tree(&env, &path) {
        return Err(Failure::new(format!(
            "{place} has the logs of a tree of pages, which only the tree changes; `basalt tree` shows what is in the tree"
        )));
    }
    let Some(dir) = store_of_keys(&env, &path) else {
        return Ok(LogsLocation {
            env,
            path,
            keys: None,
            missing: None,
            _lock: None,
        });
    };
    let keys = StoreLocation {
        dir: match dir == path {
            true => place.dir.clone(),
            false => dir.clone(),
        },
        image: place.image.clone(),
    };
    let failure = |e: basalt::Error| match e.kind() {
        ErrorKind::Busy | ErrorKind::NotFound => Failure::log_store(place, argument, e),
        _ => Failure::store(&keys, e),
    };
    let lock = dir.join(LOCK);
    if access.make().is_some() {
        // Opening the tables for writing changes the manifest, so a refusal comes before.
        if let Ok(_shared) = env.fs().lock_shared(&lock)
            && let Err(e) = basalt::Store::find_logs(&env, &dir)
            && e.is_corruption()
        {
            return Ok(LogsLocation {
                path: dir.join(EngineKind::Logs.directory()),
                env,
                keys: Some(keys),
                missing: Some(e),
                _lock: None,
            });
        }
        // The manifest of the store must name the logs before anything is in them.
        let tables = engine::options(place, (&env, &dir), access, None)?;
        let options = store_options(Retired::default().add_to(tables));
        let store = basalt::Store::open(&env, &dir, options);
        let made = store.and_then(|store| store.logs().and_then(|_| store.close()));
        made.map_err(failure)?;
    }
    // A shared lock makes no file, so nothing is left where no logs are.
    let shared = env.fs().lock_shared(&lock).map_err(failure)?;
    let (logs, missing) = match basalt::Store::find_logs(&env, &dir) {
        Ok(Some(logs)) => (logs, None),
        Ok(None) => {
            return Err(Failure::new(format!(
                "the store in {keys} has no logs; make one with `basalt log append {argument} LOG`"
            )));
        }
        Err(e) if e.is_corruption() => (dir.join(EngineKind::Logs.directory()), Some(e)),
        Err(e) => return Err(failure(e)),
    };
    let held = match access {
        Access::Read => shared,
        Access::Write(_) | Access::Remove => {
            drop(shared);
            Some(env.fs().lock(&lock).map_err(failure)?)
        }
    };
    Ok(LogsLocation {
        env,
        path: logs,
        keys: Some(keys),
        missing,
        _lock: held,
    })
}

/// Returns true if a path names the logs of a tree of pages: they are beside the streams of pages.
fn are_of_tree(env: &Env, path: &Path) -> bool {
    let is_named = path.file_name() == Some(OsStr::new(EngineKind::Logs.directory()));
    let Some(tree) = path.parent().filter(|_| is_named) else {
        return false;
    };
    let beside = env.fs().list(tree).unwrap_or_default();
    let has = |name: &str| beside.iter().any(|e| e.is_dir && e.name == name);
    has("base") && has("delta")
}

/// Returns the directory of the store of keys whose logs a path names: the path itself, or the
/// directory above it if the path is that of the logs in the store.
fn store_of_keys(env: &Env, path: &Path) -> Option<PathBuf> {
    let entries = |path: &Path| env.fs().list(path).unwrap_or_default();
    let is_current = |e: &DirEntry| !e.is_dir && e.name == CURRENT;
    let own = entries(path);
    match kind_of_store(&own) {
        Some(StoreKind::Keys) => return Some(path.to_path_buf()),
        // A store without tables that has lost its logs looks like this.
        None if own.iter().any(is_current) && Db::engines_of_closed(env, path).is_ok() => {
            return Some(path.to_path_buf());
        }
        _ => {}
    }
    let above = match path.file_name() == Some(OsStr::new(EngineKind::Logs.directory())) {
        true => path.parent()?,
        false => return None,
    };
    let found = entries(above);
    let is_keys = match kind_of_store(&found) {
        Some(kind) => kind == StoreKind::Keys,
        None => Db::engines_of_closed(env, above).is_ok(),
    };
    (is_keys && found.iter().any(is_current)).then(|| above.to_path_buf())
}

/// Returns the missing directory of the logs of a store of keys, and an environment from the
/// directory of the store on. The result is `None` if the path names no such directory.
fn lost_logs(place: &StoreLocation, access: Access) -> Option<(Env, PathBuf)> {
    let (env, path) = any_environment(&store_above(place)?, access, None).ok()?;
    let path = path.join(EngineKind::Logs.directory());
    store_of_keys(&env, &path).map(|_| (env, path))
}

/// Returns the location of the store that has its logs at a path, if the path ends as such a path
/// does.
pub fn store_above(place: &StoreLocation) -> Option<StoreLocation> {
    let is_logs = place.dir.file_name() == Some(OsStr::new(EngineKind::Logs.directory()));
    let above = place.dir.parent().filter(|_| is_logs)?;
    let dir = match above.as_os_str().is_empty() {
        true => Path::new("."),
        false => above,
    };
    Some(StoreLocation {
        dir: dir.to_path_buf(),
        image: place.image.clone(),
    })
}

/// Returns the settings of a store with these tables.
pub fn store_options(tables: Options) -> StoreOptions {
    StoreOptions::default().tables(tables)
}

/// The kinds of stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreKind {
    /// Tables, and perhaps logical logs in a directory of their own.
    Keys,
    /// Logical logs alone.
    Logs,
}

/// Returns the kind of the store whose directory has these entries, if their names tell.
pub fn kind_of_store(entries: &[DirEntry]) -> Option<StoreKind> {
    let has = |extensions: &[&str]| {
        let mut names = entries.iter().filter(|e| !e.is_dir);
        names.any(|e| {
            let parts = e.name.split_once('.');
            parts.is_some_and(|(stem, extension)| {
                stem.parse::<u64>().is_ok() && extensions.contains(&extension)
            })
        })
    };
    let has_logs = |e: &DirEntry| e.is_dir && e.name == EngineKind::Logs.directory();
    let is_current = |e: &DirEntry| !e.is_dir && e.name == CURRENT;
    let holds_logs = entries.iter().any(has_logs) && entries.iter().any(is_current);
    match (
        has(&["tbl", "log"]) || holds_logs,
        has(&["data", "meta", "checkpoint"]),
    ) {
        (true, _) => Some(StoreKind::Keys),
        (false, true) => Some(StoreKind::Logs),
        (false, false) => None,
    }
}

fn any_environment(
    place: &StoreLocation,
    access: Access,
    budget: Option<&Budget>,
) -> Result<(Env, PathBuf), Failure> {
    // The engine owns the process, so this command may configure the allocator.
    process_memory::keep_little();
    let mut env = EnvBuilder::without_fs().trims_memory(true);
    if let Some(budget) = budget {
        env = budget.environment(env)?;
    }
    let parts = env.parts();
    let (fs, path) = filesystem::open(place, access, &parts)?;
    Ok((parts.with_fs(fs), path))
}

/// Opens a store with all of its engines.
pub fn open_all(place: &StoreLocation, access: Access) -> Result<basalt::Store, Failure> {
    let (env, path) = environment(place, access, None)?;
    let tables = engine::options(place, (&env, &path), access, None)?
        .create_if_missing(access.make().is_some());
    let options = store_options(Retired::default().add_to(tables));
    let opened = match access {
        Access::Read => basalt::Store::open_read_only(&env, &path, options),
        Access::Write(_) | Access::Remove => basalt::Store::open(&env, &path, options),
    };
    opened.map_err(|e| Failure::store(place, e))
}

/// Opens the tables of a store.
pub fn open_db(
    place: &StoreLocation,
    access: Access,
    budget: Option<&Budget>,
) -> Result<Db, Failure> {
    open_tables(place, access, budget).map(|(db, _)| db)
}

/// Opens the tables of a store. Returns them with their options, which are those of families that
/// are made, too.
fn open_tables(
    place: &StoreLocation,
    access: Access,
    budget: Option<&Budget>,
) -> Result<(Db, Options), Failure> {
    let (env, path) = environment(place, access, budget)?;
    let retired = Retired::default();
    let options = engine::options(place, (&env, &path), access, budget)?
        .create_if_missing(access.make().is_some())
        .allow_nonempty_dir(access.make().is_some_and(|m| m.allow_nonempty_dir));
    let options = retired.add_to(options);
    let opened = match access {
        // A command that only reads changes nothing. It works on a read-only medium, and beside
        // other readers.
        Access::Read => Db::open_read_only(&env, path, options.clone()),
        Access::Write(_) | Access::Remove => Db::open(&env, path, options.clone()),
    };
    let db = opened.map_err(|e| Failure::store(place, e))?;
    if access == Access::Read {
        return Ok((db, options));
    }
    // Compactions drop the keys that FLUSHALL removed. If the catalog is lost they drop nothing,
    // and commands that need it report that.
    if let Some(keys) = db.family(KEYS_FAMILY)
        && let Ok(Some(generation)) = catalog::read(&db, &keys)
    {
        retired.below(generation);
    }
    Ok((db, options))
}

impl Store {
    /// Opens the store of the flags.
    pub fn open(which: &KeyspaceArgs, access: Access) -> Result<Store, Failure> {
        Store::open_within(which, access, None)
    }

    /// Opens the store of the flags within this budget.
    pub fn open_within(
        which: &KeyspaceArgs,
        access: Access,
        budget: Option<&Budget>,
    ) -> Result<Store, Failure> {
        let place = which.store.clone();
        let (db, options) = open_tables(&place, access, budget)?;
        let failure = |e| Failure::store(&place, e);
        let selection = match &which.family {
            None if access.make().is_some() => {
                KeySelection::Redis(Keyspace::make(&db, &options).map_err(failure)?)
            }
            None => match Keyspace::find(&db).map_err(failure)? {
                Some(keyspace) => KeySelection::Redis(keyspace),
                None => KeySelection::Empty,
            },
            Some(name) if access != Access::Read && name.starts_with(SERVER_PREFIX) => {
                return Err(Failure::new(format!(
                    "the family {name} holds the keys of Redis clients in their encoding; leave --family out to write to it"
                )));
            }
            Some(name) => match db.family(name) {
                Some(family) => KeySelection::Raw(family),
                None if access.make().is_some() => KeySelection::Raw(
                    db.create_family(name, options.family(name).clone())
                        .map_err(failure)?,
                ),
                None => {
                    return Err(Failure::new(format!(
                        "the store has no family {name}; it has {}",
                        db.families().join(", ")
                    )));
                }
            },
        };
        Ok(Store {
            place,
            db,
            selection,
        })
    }

    /// Returns the engine.
    pub fn db(&self) -> &Db {
        &self.db
    }
    /// Returns the location of the store.
    pub fn place(&self) -> &StoreLocation {
        &self.place
    }
    /// Returns an engine error as a failure of this store.
    pub fn failure(&self, e: basalt::Error) -> Failure {
        Failure::store(&self.place, e)
    }
    /// Closes the store. Everything written is then durable.
    pub fn close(self) -> Result<(), Failure> {
        let place = self.place;
        self.db.close().map_err(|e| Failure::store(&place, e))
    }

    fn family(&self) -> Option<&Family> {
        match &self.selection {
            KeySelection::Redis(keyspace) => Some(&keyspace.family),
            KeySelection::Raw(family) => Some(family),
            KeySelection::Empty => None,
        }
    }

    fn stored_key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.selection {
            KeySelection::Redis(keyspace) => keyspace.stored_key(key).into(),
            KeySelection::Raw(_) | KeySelection::Empty => key.into(),
        }
    }

    /// Adds "set `record`" to a batch.
    pub fn put(&self, batch: &mut WriteBatch, record: &KvRecord) -> basalt::Result<()> {
        let key = self.stored_key(&record.key);
        let (value, at) = (&record.value, record.expire_at_ms);
        batch.put_parts(self.family_to_write(), &key, self.header(), value, at)
    }

    /// Returns a writer of tables for records that come in the order of their keys.
    pub fn prepare(&self) -> basalt::Result<TableWriter> {
        self.db.prepare(self.family_to_write())
    }

    /// Adds a record to a table.
    pub fn add(&self, table: &mut TableWriter, record: &KvRecord) -> basalt::Result<()> {
        let key = self.stored_key(&record.key);
        table.add_parts(&key, self.header(), &record.value, record.expire_at_ms)
    }

    fn family_to_write(&self) -> &Family {
        self.family()
            .expect("a store opened to write has its family")
    }

    /// Returns the bytes in front of a stored value.
    fn header(&self) -> &'static [u8] {
        match &self.selection {
            KeySelection::Redis(_) => &STRING_HEADER,
            KeySelection::Raw(_) | KeySelection::Empty => &[],
        }
    }

    /// Adds "remove `key`" to a batch.
    pub fn delete(&self, batch: &mut WriteBatch, key: &[u8]) -> basalt::Result<()> {
        match self.family() {
            Some(family) => batch.delete(family, &self.stored_key(key)),
            None => Ok(()),
        }
    }

    /// Reads one key.
    pub fn get(&self, key: &[u8]) -> Result<Value, Failure> {
        let Some(family) = self.family() else {
            return Ok(Value::Absent);
        };
        let found = self
            .db
            .get_with_expiry(family, &self.stored_key(key), &ReadOptions::default())
            .map_err(|e| self.failure(e))?;
        match found {
            None => Ok(Value::Absent),
            Some(v) => self.decode_value(v.value, v.expire_at_ms),
        }
    }

    fn decode_value(&self, stored: Bytes, expire_at_ms: Option<u64>) -> Result<Value, Failure> {
        if let KeySelection::Raw(_) = self.selection {
            return Ok(Value::Bytes(stored, expire_at_ms));
        }
        match Keyspace::string_at(&stored).map_err(|e| self.failure(e))? {
            Ok(at) => Ok(Value::Bytes(stored.slice(at..), expire_at_ms)),
            Err(kind) => Ok(Value::Other(kind)),
        }
    }

    /// Returns a cursor over the entries whose key begins with `prefix` and lies in `[from, to)`.
    /// With `keys_only` it reads no values.
    pub fn cursor(
        &self,
        prefix: &[u8],
        from: Option<&[u8]>,
        to: Option<&[u8]>,
        reverse: bool,
        keys_only: bool,
    ) -> Result<Cursor<'_>, Failure> {
        let Some(family) = self.family() else {
            return Ok(Cursor {
                store: self,
                iter: None,
                reverse,
                keys_only,
                started: false,
            });
        };
        let lowest = prefix.max(from.unwrap_or_default());
        let lower = self.stored_key(lowest).into_owned();
        // The end of a prefix is computed on the stored bytes: other kinds of entries may follow
        // the last key.
        let mut upper = successor(&self.stored_key(prefix));
        if let Some(to) = to {
            let to = self.stored_key(to).into_owned();
            if upper.as_ref().is_none_or(|u| to < *u) {
                upper = Some(to);
            }
        }
        let options = ReadOptions::default()
            .lower_bound(Some(lower))
            .upper_bound(upper)
            .keys_only(keys_only)
            .fill_cache(false);
        let mut iter = self
            .db
            .iter(family, &options)
            .map_err(|e| self.failure(e))?;
        if reverse {
            iter.seek_to_last()
        } else {
            iter.seek_to_first()
        }
        .map_err(|e| self.failure(e))?;
        Ok(Cursor {
            store: self,
            iter: Some(iter),
            reverse,
            keys_only,
            started: false,
        })
    }
}

/// Returns the smallest byte string above everything that begins with `prefix`, or `None` if there
/// is none.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// A cursor of [`Store::cursor`].
pub struct Cursor<'a> {
    store: &'a Store,
    /// Iterator of the engine, or `None` if there is nothing to read.
    iter: Option<Iter>,
    reverse: bool,
    keys_only: bool,
    started: bool,
}

impl Cursor<'_> {
    /// Returns the next key and its value in the cursor's direction, or `None` at the end. Of a
    /// cursor over keys, every value is `Absent`.
    pub fn next_entry(&mut self) -> Result<Option<(Vec<u8>, Value)>, Failure> {
        let Some(iter) = &mut self.iter else {
            return Ok(None);
        };
        loop {
            if self.started {
                if self.reverse {
                    iter.prev()
                } else {
                    iter.next()
                }
                .map_err(|e| self.store.failure(e))?;
            }
            self.started = true;
            if !iter.valid() {
                return Ok(None);
            }
            let key = match &self.store.selection {
                KeySelection::Redis(keyspace) => match keyspace.user_key(iter.key()) {
                    Some(key) => key.to_vec(),
                    None => continue,
                },
                KeySelection::Raw(_) | KeySelection::Empty => iter.key().to_vec(),
            };
            let value = match self.keys_only {
                true => Value::Absent,
                false => (self.store).decode_value(iter.pinned_value(), iter.expire_at_ms())?,
            };
            return Ok(Some((key, value)));
        }
    }
}

/// Returns an argument of the command line as bytes. With `escaped`, they are the bytes that its
/// escapes stand for.
pub fn argument(text: &OsStr, escaped: bool) -> Result<Vec<u8>, Failure> {
    if escaped {
        unescape(text.as_bytes()).map_err(|e| Failure::new(format!("{}: {e}", text.display())))
    } else {
        Ok(text.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests;
