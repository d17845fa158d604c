//! The store that a command works on: opened with the server's own settings, so that both see the same entries.
//!
//! Without `--family`, keys and values are those of Redis strings in database 0, in the encoding of
//! `docs/format/redis-keys.md`. With `--family`, they are the stored bytes as they are.

use crate::args::Which;
use crate::escape::unescape;
use crate::failure::Failure;
use crate::keyspace;
use crate::record::Record;
use basalt::lsm::db::Iter;
use basalt::{Bytes, Db, Env, Family, FamilyOptions, ReadOptions, WriteBatch};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a command is about to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only look: a store that is not there is an error.
    Read,
    /// Write: a store, or a family, that is not there is made.
    Write,
    /// Write, but make nothing.
    Remove,
}

/// An open store and the entries of it that the command sees.
pub struct Store {
    dir: PathBuf,
    db: Db,
    family: Family,
    raw: bool,
}

/// What is under a key.
pub enum Value {
    Absent,
    /// A string, and when it ends.
    Bytes(Bytes, Option<u64>),
    /// A value that only a Redis client can read: its type.
    Other(&'static str),
}

/// The environment of a command over the files in `dir`.
pub fn environment(dir: &Path) -> Result<Env, Failure> {
    basalt_server::environment(dir, &basalt_server::Budget::default())
        .map_err(|e| Failure::store(dir, e))
}

/// Fails when there is no directory: a command that only looks makes none.
pub fn must_exist(dir: &Path) -> Result<(), Failure> {
    match rustix::fs::stat(dir) {
        Ok(s) if rustix::fs::FileType::from_raw_mode(s.st_mode) == rustix::fs::FileType::Directory => Ok(()),
        Ok(_) => Err(Failure::new(format!(
            "{} is not a directory; name the store's directory with --dir",
            dir.display()
        ))),
        Err(rustix::io::Errno::NOENT) => Err(Failure::new(format!(
            "there is no store in {}; name another with --dir, or make one with `basalt serve` or `basalt put`",
            dir.display()
        ))),
        Err(e) => Err(Failure::os("look at", dir, e)),
    }
}

/// Opens the store in `dir`.
pub fn open_db(dir: &Path, access: Access) -> Result<Db, Failure> {
    if access != Access::Write {
        must_exist(dir)?;
    }
    let env = environment(dir)?;
    let mut options = basalt_server::store_options();
    options.create_if_missing = access == Access::Write;
    Db::open(&env, "", options).map_err(|e| Failure::store(dir, e))
}

impl Store {
    /// Opens what the flags name.
    pub fn open(which: &Which, access: Access) -> Result<Store, Failure> {
        let dir = which.store.dir.clone();
        let db = open_db(&dir, access)?;
        let family = match &which.family {
            None => db.default_family(),
            Some(name) => match db.family(name) {
                Some(f) if access != Access::Read && f.id() == db.default_family().id() => {
                    return Err(Failure::new(format!(
                        "the family {name} holds the keys of Redis clients in their encoding; leave --family out to write to it"
                    )));
                }
                Some(f) => f,
                None if access == Access::Write => db
                    .create_family(name, FamilyOptions::default())
                    .map_err(|e| Failure::store(&dir, e))?,
                None => {
                    return Err(Failure::new(format!(
                        "the store has no family {name}; it has {}",
                        db.families().join(", ")
                    )));
                }
            },
        };
        Ok(Store {
            raw: which.family.is_some(),
            dir,
            db,
            family,
        })
    }

    /// The engine.
    pub fn db(&self) -> &Db {
        &self.db
    }
    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
    /// An engine error as this store's failure.
    pub fn failure(&self, e: basalt::Error) -> Failure {
        Failure::store(&self.dir, e)
    }
    /// Closes it; everything written is durable then.
    pub fn close(self) -> Result<(), Failure> {
        let dir = self.dir;
        self.db.close().map_err(|e| Failure::store(&dir, e))
    }


    fn stored_key(&self, key: &[u8]) -> Vec<u8> {
        if self.raw {
            key.to_vec()
        } else {
            keyspace::string_key(key)
        }
    }

    /// Adds "set `record`" to a batch.
    pub fn put(&self, batch: &mut WriteBatch, record: &Record) -> basalt::Result<()> {
        let key = self.stored_key(&record.key);
        let value: std::borrow::Cow<'_, [u8]> = if self.raw {
            (&record.value).into()
        } else {
            keyspace::string_value(&record.value).into()
        };
        match record.expire_at_ms {
            None => batch.put(&self.family, &key, &value),
            Some(at) => batch.put_ttl(&self.family, &key, &value, at),
        }
    }

    /// Adds "remove `key`" to a batch.
    pub fn delete(&self, batch: &mut WriteBatch, key: &[u8]) -> basalt::Result<()> {
        batch.delete(&self.family, &self.stored_key(key))
    }

    /// Reads one key.
    pub fn get(&self, key: &[u8]) -> Result<Value, Failure> {
        let stored = self.stored_key(key);
        let found = self
            .db
            .get_with_expiry(&self.family, &stored, &ReadOptions::default())
            .map_err(|e| self.failure(e))?;
        Ok(match found {
            None => Value::Absent,
            Some(v) => self.decode_value(v.value, v.expire_at_ms),
        })
    }

    fn decode_value(&self, stored: Bytes, expire_at_ms: Option<u64>) -> Value {
        if self.raw {
            return Value::Bytes(stored, expire_at_ms);
        }
        match keyspace::string_of(&stored) {
            Ok(at) => Value::Bytes(stored.slice(at..), expire_at_ms),
            Err(kind) => Value::Other(kind),
        }
    }

    /// A cursor over the entries whose key begins with `prefix` and lies in `[from, to)`.
    pub fn cursor(
        &self,
        prefix: &[u8],
        from: Option<&[u8]>,
        to: Option<&[u8]>,
        reverse: bool,
    ) -> Result<Cursor<'_>, Failure> {
        let lowest = prefix.max(from.unwrap_or_default());
        let lower = self.stored_key(lowest);
        // The end of a prefix is formed on the stored bytes: behind the last key there may be other kinds of entries.
        let mut upper = successor(&self.stored_key(prefix));
        if let Some(to) = to {
            let to = self.stored_key(to);
            if upper.as_ref().is_none_or(|u| to < *u) {
                upper = Some(to);
            }
        }
        let options = ReadOptions {
            lower_bound: Some(lower),
            upper_bound: upper,
            fill_cache: false,
            ..ReadOptions::default()
        };
        let mut iter = self
            .db
            .iter(&self.family, &options)
            .map_err(|e| self.failure(e))?;
        if reverse {
            iter.seek_to_last()
        } else {
            iter.seek_to_first()
        }
        .map_err(|e| self.failure(e))?;
        Ok(Cursor {
            store: self,
            iter,
            reverse,
            started: false,
        })
    }
}

/// The smallest byte string above everything that begins with `prefix`; `None` when there is none.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// See [`Store::cursor`].
pub struct Cursor<'a> {
    store: &'a Store,
    iter: Iter,
    reverse: bool,
    started: bool,
}

impl Cursor<'_> {
    /// The next key and its value, in the cursor's direction. `None` at the end.
    pub fn next_entry(&mut self) -> Result<Option<(Vec<u8>, Value)>, Failure> {
        loop {
            if self.started {
                if self.reverse {
                    self.iter.prev()
                } else {
                    self.iter.next()
                }
                .map_err(|e| self.store.failure(e))?;
            }
            self.started = true;
            if !self.iter.valid() {
                return Ok(None);
            }
            let key = if self.store.raw {
                self.iter.key().to_vec()
            } else {
                match keyspace::user_key(self.iter.key()) {
                    Some(key) => key.to_vec(),
                    // An inner part of a larger value, which is not a key to anyone.
                    None => continue,
                }
            };
            let value = self
                .store
                .decode_value(self.iter.pinned_value(), self.iter.expire_at_ms());
            return Ok(Some((key, value)));
        }
    }
}

/// Text of a command line as bytes; with `escaped`, the bytes that its escapes stand for.
pub fn argument(text: &OsStr, escaped: bool) -> Result<Vec<u8>, Failure> {
    if escaped {
        unescape(text.as_bytes()).map_err(|e| Failure::new(format!("{}: {e}", text.display())))
    } else {
        Ok(text.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::successor;

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(successor(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(successor(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(successor(b"\xff"), None);
        assert_eq!(successor(b""), None);
    }
}
