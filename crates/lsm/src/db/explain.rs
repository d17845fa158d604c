//! Explains a read of a key: memtables, then pages or tables, in the order in which the read visits
//! them, and why.

use super::engine::Engine;
use super::page_versions::versions_of;
use super::view::View;
use super::{Family, ValueWithExpiry};
use crate::memtable::MemTable;
use crate::options::ReadOptions;
use crate::version::table_name;
use basalt_blob::Reference;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::entry::{FoundEntry, expiry_of};
use basalt_kv::key::{Kind, SeqNo, internal_key, seek_trailer, split_internal_key, trailer_seq};
use basalt_table::InternalIter;
use basalt_tree::PageExplanation;
use std::sync::Arc;

/// A version of a key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExplainedVersion {
    /// Its sequence number; `None` in pages, which keep none.
    pub seq: Option<SeqNo>,
    /// Its kind.
    pub kind: Kind,
    /// The value, without an expiry in front of it. Empty for a tombstone, and for a value that is
    /// in a blob file.
    pub value: Bytes,
    /// The expiry in ms since 1970, if there is one.
    pub expire_at_ms: Option<u64>,
    /// True if the expiry is reached.
    pub is_expired: bool,
    /// The number of the blob file that has the value, or that led to it when it was written.
    pub blob_file: Option<u64>,
}

/// A memtable, in a read of a key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExplainedMemtable {
    /// True for the memtable that takes writes; false for one that waits for its flush.
    pub is_active: bool,
    /// Number of entries of the family in it.
    pub entries: u64,
    /// The versions of the key, the newest one first.
    pub versions: Vec<ExplainedVersion>,
    /// The sequence number of the newest range tombstone over the key.
    pub range_deleted_at: Option<SeqNo>,
}

/// What a table has to do with a read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TableVerdict {
    /// The filter says that the table has no version of the key.
    Filtered,
    /// The table has no version of the key.
    Absent,
    /// The newest version that the table has. A newer source has none that decides.
    Found(ExplainedVersion),
    /// A newer source decides, so the table is not read. The newest version that the table has.
    Hidden(Option<ExplainedVersion>),
    /// The table cannot be read.
    Damaged(Error),
}

/// A table whose range of keys has the key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExplainedTable {
    /// Its level.
    pub level: u64,
    /// The name of its file.
    pub file: String,
    /// Bytes of its file.
    pub bytes: u64,
    /// What it has to do with the read.
    pub verdict: TableVerdict,
}

/// A read of a key: what it visits, the newest source first.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReadExplanation {
    /// The memtables of the family, the newest one first. After the opening of a store for reading,
    /// one has all records of the log that are not flushed.
    pub memtables: Vec<ExplainedMemtable>,
    /// True if a memtable decides, so that neither pages nor tables are read.
    pub memtables_decide: bool,
    /// The lookup in pages, if the family is kept in pages. If memtables decide, a read leaves it
    /// out.
    pub pages: Option<PageExplanation>,
    /// The versions that the deciding entry of pages stands for, the newest one first. There are
    /// several if operands wait for their merge.
    pub page_versions: Vec<ExplainedVersion>,
    /// The tables whose range of keys has the key, if the family is kept in levels.
    pub tables: Vec<ExplainedTable>,
    /// The number of tables whose range of keys does not have the key.
    pub tables_out_of_range: u64,
    /// The value that the read returns, with its expiry; `None` if the key has none.
    pub answer: Result<Option<ValueWithExpiry>>,
}

impl ExplainedVersion {
    fn new(
        seq: Option<SeqNo>,
        kind: Kind,
        payload: Bytes,
        now_ms: u64,
    ) -> Result<ExplainedVersion> {
        let mut version = ExplainedVersion {
            seq,
            kind,
            value: Bytes::new(),
            expire_at_ms: None,
            is_expired: false,
            blob_file: None,
        };
        match kind {
            Kind::PutTtl => {
                version.expire_at_ms = Some(expiry_of(&payload)?);
                version.value = payload.slice(8..);
            }
            Kind::BlobRef => {
                let to = Reference::decode(&payload)?;
                version.expire_at_ms = to.expire_at_ms;
                version.blob_file = Some(to.number);
            }
            _ => version.value = payload,
        }
        version.is_expired = version.expire_at_ms.is_some_and(|at| at <= now_ms);
        Ok(version)
    }

    fn of_found(found: FoundEntry, now_ms: u64) -> Result<ExplainedVersion> {
        ExplainedVersion::new(Some(found.seq), found.kind, found.value, now_ms)
    }

    /// Returns true if nothing older counts for a reader.
    fn decides(&self) -> bool {
        self.kind != Kind::Merge
    }
}

impl ExplainedMemtable {
    fn new(
        mem: &Arc<MemTable>,
        is_active: bool,
        key: &[u8],
        seq: SeqNo,
        now_ms: u64,
    ) -> Result<ExplainedMemtable> {
        let mut versions = Vec::new();
        let mut iter = mem.iter();
        iter.seek(&internal_key(key, seek_trailer(seq)))?;
        while iter.valid() {
            let (user, trailer) = split_internal_key(iter.key());
            if !mem.cmp().user(user, key).is_eq() {
                break;
            }
            let kind = Kind::from_u8(trailer as u8).expect("inserted with a kind");
            let (of_entry, value) = (trailer_seq(trailer), iter.pinned_value());
            let version = ExplainedVersion::new(Some(of_entry), kind, value, now_ms)?;
            versions.push(version);
            iter.next()?;
        }
        Ok(ExplainedMemtable {
            is_active,
            entries: mem.len() as u64,
            versions,
            range_deleted_at: mem.deleted_at(key, seq),
        })
    }

    fn decides(&self) -> bool {
        self.range_deleted_at.is_some() || self.versions.iter().any(ExplainedVersion::decides)
    }
}

impl Engine {
    /// See [`super::Db::explain`].
    pub fn explain(&self, family: &Family, key: &[u8]) -> Result<ReadExplanation> {
        // The explanation and its answer are as of one moment.
        let moment = Some(self.snapshot());
        let options = ReadOptions::default().fill_cache(false).snapshot(moment);
        let (view, seq) = self.read_view(&options)?;
        self.check_family(&view, family)?;
        let now_ms = self.ctx.env.clock().wall_ms();
        let mut memtables = Vec::new();
        for (i, mem) in view.memtables(family.id()).enumerate() {
            memtables.push(ExplainedMemtable::new(mem, i == 0, key, seq, now_ms)?);
        }
        let memtables_decide = memtables.iter().any(ExplainedMemtable::decides);
        let mut out = ReadExplanation {
            memtables,
            memtables_decide,
            pages: None,
            page_versions: Vec::new(),
            tables: Vec::new(),
            tables_out_of_range: 0,
            answer: self.get(family, key, &options),
        };
        match view.pages.get(&family.id()) {
            Some(pages) => {
                let explained = pages.pages.tree().explain(&pages.snapshot, key);
                out.page_versions = page_versions(&explained, now_ms).unwrap_or_default();
                out.pages = Some(explained);
            }
            None => explain_tables(&view, family, key, seq, now_ms, &mut out),
        }
        Ok(out)
    }
}

/// Returns the versions that the deciding entry of pages stands for.
fn page_versions(explained: &PageExplanation, now_ms: u64) -> Result<Vec<ExplainedVersion>> {
    let Some((kind, entry)) = explained
        .found()
        .and_then(|entry| Some((entry.kind?, entry)))
    else {
        return Ok(Vec::new());
    };
    let versions = versions_of((kind, entry.value.clone()))?.into_iter();
    let versions = versions.map(|(kind, value)| ExplainedVersion::new(None, kind, value, now_ms));
    versions.collect()
}

fn explain_tables(
    view: &View,
    family: &Family,
    key: &[u8],
    seq: SeqNo,
    now_ms: u64,
    out: &mut ReadExplanation,
) {
    let Some(tables) = view.version.families.get(&family.id()) else {
        return;
    };
    let mut is_decided = out.memtables_decide;
    for (level, all) in tables.levels.iter().enumerate() {
        // Level 0 has the table with the newest entries first.
        let inside = all.iter().filter(|t| t.overlaps(Some(key), Some(key)));
        let mut found_here = 0;
        for table in inside {
            found_here += 1;
            let read = table.reader().and_then(|reader| {
                if !reader.may_hold(key, false)? {
                    return Ok(None);
                }
                let found = reader.get(key, seq, false)?;
                let version = found.map(|found| ExplainedVersion::of_found(found, now_ms));
                Ok(Some(version.transpose()?))
            });
            let verdict = match read {
                Err(e) => TableVerdict::Damaged(e),
                Ok(version) if is_decided => TableVerdict::Hidden(version.flatten()),
                Ok(None) => TableVerdict::Filtered,
                Ok(Some(None)) => TableVerdict::Absent,
                Ok(Some(Some(version))) => TableVerdict::Found(version),
            };
            if let TableVerdict::Found(version) = &verdict {
                is_decided |= version.decides();
            }
            out.tables.push(ExplainedTable {
                level: level as u64,
                file: table_name(table.number),
                bytes: table.meta.size,
                verdict,
            });
        }
        out.tables_out_of_range += all.len() as u64 - found_here;
    }
}
