//! The rules of the merge, the choices of the picker, and whole trees, each against a model.

mod files;
mod picker;
mod rules;
mod tree;

use super::output::{Grandparents, MergeSink};
use crate::iter::tests::History;
use crate::version::{TableFile, TableStore};
use basalt_env::Env;
use basalt_fs::{Bytes, Result};
use basalt_kv::entry::expiry_of;
use basalt_kv::key::*;
use basalt_sim::{SimFs, SimOptions};
use basalt_table::TableMeta;
use std::path::Path;
use std::sync::Arc;

pub(super) type Entries = Vec<(Vec<u8>, Bytes)>;

pub(super) fn store() -> Arc<TableStore> {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .stepped()
        .seed(1)
        .build();
    TableStore::new(&env, Path::new("store"))
}

/// Returns the metadata that a builder would give a table of these entries.
pub(super) fn meta_of(entries: &Entries) -> TableMeta {
    let mut meta = TableMeta {
        file_id: 1,
        size: 0,
        digest: 0,
        entries: entries.len() as u64,
        deletes: 0,
        smallest: entries.first().expect("entries").0.clone(),
        largest: entries.last().expect("entries").0.clone(),
        min_seq: MAX_SEQ,
        max_seq: 0,
        raw_key_bytes: 0,
        raw_value_bytes: 0,
        soonest_expiry_ms: u64::MAX,
        range_deletes: 0,
        references: Default::default(),
        shift: 0,
    };
    for (k, v) in entries {
        let (_, seq, kind) = parse_internal_key(k).unwrap();
        meta.size += (k.len() + v.len()) as u64;
        meta.min_seq = meta.min_seq.min(seq);
        meta.max_seq = meta.max_seq.max(seq);
        match kind {
            Kind::Delete => meta.deletes += 1,
            Kind::PutTtl => {
                meta.soonest_expiry_ms = meta.soonest_expiry_ms.min(expiry_of(v).unwrap());
            }
            _ => {}
        }
    }
    meta
}

/// Returns a table's metadata for tests of the picker: the keys by name, one entry a byte.
pub(super) fn meta(smallest: &str, largest: &str, size: u64) -> TableMeta {
    TableMeta {
        file_id: 1,
        size,
        digest: 0,
        entries: size,
        deletes: 0,
        smallest: internal_key(smallest.as_bytes(), pack_trailer(2, Kind::Put)),
        largest: internal_key(largest.as_bytes(), pack_trailer(1, Kind::Put)),
        min_seq: 1,
        max_seq: 2,
        raw_key_bytes: 0,
        raw_value_bytes: 0,
        soonest_expiry_ms: u64::MAX,
        range_deletes: 0,
        references: Default::default(),
        shift: 0,
    }
}

/// A sink that keeps tables in memory, cut as the real ones are.
pub(super) struct VecSink<'a> {
    pub(super) tables: Vec<Entries>,
    bytes: u64,
    limit: u64,
    grandparents: Grandparents<'a>,
}

impl<'a> VecSink<'a> {
    pub(super) fn new(grandparents: &'a [Arc<TableFile>], limit: u64) -> VecSink<'a> {
        VecSink {
            tables: Vec::new(),
            bytes: 0,
            limit,
            grandparents: Grandparents::new(grandparents, limit * 10),
        }
    }
}

impl MergeSink for VecSink<'_> {
    fn begin_user_key(&mut self, user_key: &[u8]) -> Result<()> {
        let wide = self.grandparents.passes_limit(user_key);
        if self.tables.is_empty() || wide || self.bytes >= self.limit {
            self.grandparents.restart();
            self.tables.push(Vec::new());
            self.bytes = 0;
        }
        Ok(())
    }
    fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        self.bytes += (internal_key.len() + value.len()) as u64;
        self.tables
            .last_mut()
            .expect("begun")
            .push((internal_key.to_vec(), Bytes::copy_from_slice(value)));
        Ok(())
    }
}

/// Returns entries in the model's form.
pub(super) fn decode<'a>(entries: impl IntoIterator<Item = &'a (Vec<u8>, Bytes)>) -> History {
    entries
        .into_iter()
        .map(|(k, v)| {
            let (user, seq, kind) = parse_internal_key(k).unwrap();
            (user.to_vec(), seq, kind, v.to_vec())
        })
        .collect()
}
