//! Ingestion: tables are prepared beside the store and become part of it in one step. A bulk load
//! so writes every byte once, without log and memtables.
//!
//! A [`TableWriter`] takes ascending keys and writes them into tables and blob files that no edit
//! names yet. Its result, a [`Prepared`], is added by [`super::Db::ingest`], with others if they
//! belong together. One edit of the manifest adds all of them or none, and all become visible at
//! one moment.
//!
//! All entries of a writer have the writer's own sequence number. When the entries are added, they
//! are as new as that moment: their tables count from that number ([`TableMeta::shift`]). The
//! records of their values keep their number, and references give it
//! ([`basalt_blob::Reference::seq`]). So no byte is written a second time. The reasons and the
//! alternatives are in `docs/decisions/0024-ingestion.md`.
//!
//! The files of a dropped writer are removed, and so are those of a `Prepared` that was never
//! added. After a crash, the next open removes them.

use super::commit::panic_text;
use super::engine::Engine;
use super::families::FamilyEntry;
use super::flush::table_info;
use super::log_position::{Logged, check_seqs};
use super::pages::{FamilyPages, PageView};
use super::throttle::WaitMode;
use super::view::View;
use super::write_path::Writer;
use crate::compaction::{OutputRange, internal_key_of, level_targets, table_options};
use crate::iter::InternalIter;
use crate::listener::{Event, TableInfo};
use crate::options::Compression;
use crate::version::FileLocation;
use crate::version::edit::{AddBlob, AddTable, Edit};
use crate::version::{FamilyVersion, FlushFlag, LEVELS, TableFile};
use basalt_blob::{BlobMeta, Name, Separator};
use basalt_env::IoPriority;
use basalt_env::store_dir::Created;
use basalt_env::sync::atomic::{AtomicU8, Ordering::SeqCst};
use basalt_env::sync::{Mutex, named};
use basalt_fs::{AlignedBuf, Error, ErrorKind, Result};
use basalt_kv::batch::check_lens;
use basalt_kv::family::Family;
use basalt_kv::key::{
    Cmp, Kind, SeqNo, encode_internal_key, pack_trailer, parse_internal_key, readable_key, user_key,
};
use basalt_records::{Outgoing, RECORD_HEADER, RecordKind};
use basalt_table::{ReadPattern, TableBuilder, TableMeta};
use basalt_tree::SortedEntries;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;

/// Most bytes that are written between two checks of the free disk space.
const BYTES_PER_SPACE_CHECK: usize = 1 << 20;
/// Memory for a value with its header is kept for the next one up to this length.
const MAX_KEPT_BUFFER: usize = 1 << 20;
/// Number of flushes of overlapping memtables while writers go on, before one more while writers
/// wait.
const MAX_CONCURRENT_FLUSHES: usize = 2;

/// Writes keys in ascending order into tables that [`super::Db::ingest`] adds to the store. See
/// [`super::Db::prepare`].
///
/// After an error of the disk, every later call returns that error again. Any other error leaves
/// the writer unchanged.
pub struct TableWriter {
    // Dropped before `created`, so that no builder is alive when its file goes.
    table: Option<(u64, TableBuilder)>,
    separator: Separator<'static>,
    created: Created,
    engine: Arc<Engine>,
    family: FamilyEntry,
    /// Sequence number of all entries of the writer.
    seq: SeqNo,
    tables: Vec<(u64, TableMeta)>,
    last: Option<Vec<u8>>,
    /// Bytes written since the free disk space was last checked.
    unseen: usize,
    user_bytes: u64,
    entries: u64,
    failed: Option<Error>,
    key: Vec<u8>,
    payload: Vec<u8>,
}

/// Tables that wait to be added by [`super::Db::ingest`]. Clones share the same tables. Unless the
/// tables were added, their files are removed with the last clone.
#[derive(Clone)]
pub struct Prepared(Arc<PreparedSet>);

struct PreparedSet {
    /// Holds the files of tables until they are added.
    created: Mutex<Created>,
    /// Holds the blob files until they are added.
    created_blobs: Mutex<Created>,
    engine: Arc<Engine>,
    family: FamilyEntry,
    seq: SeqNo,
    tables: Vec<(u64, TableMeta)>,
    blobs: Vec<(u64, Arc<BlobMeta>)>,
    user_bytes: u64,
    entries: u64,
    /// [`STATE_READY`], [`STATE_INGESTED`] or [`STATE_IN_DOUBT`].
    fate: AtomicU8,
}

/// A set that may be added.
const STATE_READY: u8 = 0;
/// One that was.
const STATE_INGESTED: u8 = 1;
/// One that was about to be when the manifest failed.
const STATE_IN_DOUBT: u8 = 2;

impl TableWriter {
    /// Adds a key with its value. Returns `InvalidArgument` if the key does not come after the last
    /// key, or if key or value is too long.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.push(key, Kind::Put, value, value.len())
    }

    /// Adds a key whose value expires at the wall time `expire_at_ms` (ms since 1970) for every
    /// reader. Errors are those of [`TableWriter::add`].
    pub fn add_ttl(&mut self, key: &[u8], value: &[u8], expire_at_ms: u64) -> Result<()> {
        self.add_parts(key, &[], value, Some(expire_at_ms))
    }

    /// Adds a key with `header` followed by `value`, until `expire_at_ms` if one is given, as
    /// [`WriteBatch::put_parts`](crate::WriteBatch::put_parts).
    pub fn add_parts(
        &mut self,
        key: &[u8],
        header: &[u8],
        value: &[u8],
        expire_at_ms: Option<u64>,
    ) -> Result<()> {
        if header.is_empty() && expire_at_ms.is_none() {
            return self.push(key, Kind::Put, value, value.len());
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        let kind = match expire_at_ms {
            None => Kind::Put,
            Some(at) => {
                payload.extend_from_slice(&at.to_le_bytes());
                Kind::PutTtl
            }
        };
        payload.extend_from_slice(header);
        payload.extend_from_slice(value);
        let pushed = self.push(key, kind, &payload, header.len() + value.len());
        if payload.capacity() <= MAX_KEPT_BUFFER {
            self.payload = payload;
        }
        pushed
    }

    /// Adds a key that is to be gone, whatever the store has of it.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.push(key, Kind::Delete, &[], 0)
    }

    /// Keys so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of keys and values so far.
    pub fn user_bytes(&self) -> u64 {
        self.user_bytes
    }

    fn push(&mut self, key: &[u8], kind: Kind, payload: &[u8], value_len: usize) -> Result<()> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        check_lens(key.len(), value_len)?;
        let cmp = &self.family.options.comparator;
        if let Some(last) = &self.last
            && cmp.user(last, key) != Ordering::Less
        {
            return Err(Error::invalid(format!(
                "keys of a table of family {:?} must come in its order, each once: {} came after {}",
                self.family.name,
                readable_key(key),
                readable_key(last)
            )));
        }
        let unseen = self.unseen + key.len() + payload.len();
        if unseen >= BYTES_PER_SPACE_CHECK {
            self.engine.ctx.check_open()?;
            self.engine.admit_bytes(unseen as u64)?;
        }
        if let Err(e) = self.write(key, kind, payload) {
            self.failed = Some(e.clone());
            return Err(e);
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        self.unseen = unseen % BYTES_PER_SPACE_CHECK;
        self.entries += 1;
        self.user_bytes += (key.len() + value_len) as u64;
        Ok(())
    }

    fn write(&mut self, key: &[u8], kind: Kind, payload: &[u8]) -> Result<()> {
        let options = self.family.options.clone();
        self.separator.begin_user_key()?;
        let full = |(_, b): &(u64, TableBuilder)| {
            b.entries() > 0 && b.estimated_size() >= options.table_bytes
        };
        if self.table.as_ref().is_some_and(full) {
            self.end_table()?;
        }
        if self.table.is_none() {
            self.table = Some(self.begin_table()?);
        }
        let (_, table) = self.table.as_mut().expect("just made");
        if Separator::wants(options.min_blob_size, kind, payload) {
            let name = Name {
                family: self.family.id,
                key,
                seq: self.seq,
            };
            let codec = options.blob_compression;
            let reference = self.separator.put(&name, kind, payload, codec)?;
            return table.add(internal_key_of(&mut self.key, key, self.seq), reference);
        }
        self.key.clear();
        encode_internal_key(&mut self.key, key, pack_trailer(self.seq, kind));
        table.add(&self.key, payload)
    }

    fn begin_table(&mut self) -> Result<(u64, TableBuilder)> {
        let engine = &self.engine;
        let number = engine.tree.new_file_number();
        let path = engine.ctx.tables.path(number);
        let file = self.created.create(&path)?;
        let mut builder = TableBuilder::new(
            &engine.ctx.env,
            file,
            &path,
            engine.ctx.env.random().next_u128(),
            // Most ingested data goes to the bottom level, so the tables get its options.
            table_options(&self.family.options, self.family.in_table(), true),
            IoPriority::Low,
        );
        builder.write_behind();
        Ok((number, builder))
    }

    fn end_table(&mut self) -> Result<()> {
        if let Some((number, builder)) = self.table.take() {
            self.tables.push((number, builder.finish()?));
        }
        Ok(())
    }

    /// Finishes the files and syncs their content. [`super::Db::ingest`] adds the result; otherwise
    /// the files are removed. A writer without keys returns a set that adds no tables.
    pub fn finish(mut self) -> Result<Prepared> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        self.end_table()?;
        let mut created_blobs = Created::new(self.engine.ctx.tables.clone());
        let mut blobs = Vec::new();
        for (number, meta) in self.separator.finish()? {
            created_blobs.add(self.engine.ctx.tables.blob_path(number));
            blobs.push((number, Arc::new(meta)));
        }
        Ok(Prepared(Arc::new(PreparedSet {
            created: named("PreparedSet::created", Mutex::new(self.created)),
            created_blobs: named("PreparedSet::created_blobs", Mutex::new(created_blobs)),
            engine: self.engine,
            family: self.family,
            seq: self.seq,
            tables: self.tables,
            blobs,
            user_bytes: self.user_bytes,
            entries: self.entries,
            fate: AtomicU8::new(STATE_READY),
        })))
    }
}

impl std::fmt::Debug for TableWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "TableWriter({:?}, {} keys)",
            self.family.name, self.entries
        )
    }
}

impl Prepared {
    /// Keys in it.
    pub fn entries(&self) -> u64 {
        self.0.entries
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Name of its family.
    pub fn family(&self) -> &str {
        &self.0.family.name
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prepared({:?}, {} keys)", self.family(), self.entries())
    }
}

impl PreparedSet {
    fn bytes(&self) -> u64 {
        let tables = self.tables.iter().map(|(_, m)| m.size);
        tables.chain(self.blobs.iter().map(|(_, m)| m.size)).sum()
    }

    /// Returns the paths of the files that an edit adds. If the entries are in pages, these are the
    /// blob files.
    fn paths(&self, is_in_pages: bool) -> Vec<PathBuf> {
        let store = &self.engine.ctx.tables;
        let tables = self.tables.iter().filter(|_| !is_in_pages);
        let tables = tables.map(|(n, _)| store.path(*n));
        let blobs = self.blobs.iter().map(|(n, _)| store.blob_path(*n));
        tables.chain(blobs).collect()
    }

    /// The files that an edit adds go with it from here on. Tables whose entries are in pages stay
    /// with the set.
    fn give(&self, is_in_pages: bool) {
        self.created_blobs.lock().keep();
        if !is_in_pages {
            self.fate.store(STATE_IN_DOUBT, SeqCst);
            self.created.lock().keep();
        }
    }

    fn check_ready(&self, twice: bool) -> Result<()> {
        let family = &self.family.name;
        match self.fate.load(SeqCst) {
            STATE_READY if !twice => Ok(()),
            STATE_IN_DOUBT => Err(Error::invalid(format!(
                "the manifest failed while tables were added to family {family:?}, and the outcome is not known: reopen the store, check whether their keys are there, and prepare the tables again if they are not"
            ))),
            _ => Err(Error::invalid(format!(
                "a set of tables of family {family:?} is added for the second time"
            ))),
        }
    }
}

/// Returns the first and last user key of a prepared table.
fn ends(meta: &TableMeta) -> (&[u8], &[u8]) {
    (user_key(&meta.smallest), user_key(&meta.largest))
}

/// Returns the tables of all sets that are to be added, by family and key.
fn in_order<'p>(sets: &[&'p PreparedSet]) -> Result<Vec<(&'p PreparedSet, &'p (u64, TableMeta))>> {
    let mut all: Vec<_> = sets
        .iter()
        .flat_map(|s| s.tables.iter().map(move |t| (*s, t)))
        .collect();
    all.sort_by(|(a, (_, at)), (b, (_, bt))| {
        let cmp = &a.family.options.comparator;
        (a.family.id.cmp(&b.family.id)).then_with(|| cmp.user(ends(at).0, ends(bt).0))
    });
    for pair in all.windows(2) {
        let ((a, (_, at)), (b, (_, bt))) = (pair[0], pair[1]);
        let cmp = &a.family.options.comparator;
        if a.family.id == b.family.id && cmp.user(ends(at).1, ends(bt).0) != Ordering::Less {
            return Err(Error::invalid(format!(
                "prepared tables of family {:?} overlap: one ends at {}, another begins at {}; add them one after the other",
                a.family.name,
                readable_key(ends(at).1),
                readable_key(ends(bt).0)
            )));
        }
    }
    Ok(all)
}

/// Returns the deepest level that a table with these ends may enter: no newer entry is at or below
/// that level, no older entry is above it, and no running compaction will write there. Levels above
/// the family's base stay empty: tables there would cost every read, and no target size would move
/// them down.
pub(super) fn level_for(
    version: Option<(&FamilyVersion, usize)>,
    (family, cmp): (u32, &Cmp),
    running: &[OutputRange],
    (from, to): (&[u8], &[u8]),
) -> usize {
    let Some((version, base)) = version else {
        return LEVELS - 1;
    };
    let meets = |level: usize| match level {
        0 => (version.levels[0].iter()).any(|t| t.overlaps(Some(from), Some(to))),
        _ => {
            let tables = &version.levels[level];
            let first = tables.partition_point(|t| t.ends_before(from));
            (tables.get(first)).is_some_and(|t| t.overlaps(Some(from), Some(to)))
        }
    };
    let is_free = |level: usize| {
        let own = OutputRange::of_keys(family, level, from, to);
        !meets(level) && !running.iter().any(|r| r.overlaps(cmp, &own))
    };
    let deepest = (0..LEVELS).take_while(|l| is_free(*l)).last();
    deepest.filter(|l| *l >= base).unwrap_or(0)
}

/// The entries of prepared tables of one family, in the order of their keys.
struct PreparedEntries {
    /// Tables behind the current one.
    files: VecDeque<Arc<TableFile>>,
    iter: Option<Box<dyn InternalIter>>,
    /// Kind of the current entry.
    kind: Kind,
}

impl PreparedEntries {
    fn current(&self) -> &dyn InternalIter {
        &**self.iter.as_ref().expect("the entries were advanced")
    }

    /// Reads the kind of the current entry, whose byte comes from the disk.
    fn read_kind(&mut self) -> Result<bool> {
        let (_, _, kind) = parse_internal_key(self.current().key())?;
        self.kind = kind;
        Ok(true)
    }
}

impl SortedEntries for PreparedEntries {
    fn advance(&mut self) -> Result<bool> {
        if let Some(iter) = &mut self.iter {
            iter.next()?;
            if iter.valid() {
                return self.read_kind();
            }
        }
        while let Some(file) = self.files.pop_front() {
            let mut iter = Box::new(file.reader()?.iter(ReadPattern::Uncached));
            iter.seek_to_first()?;
            let is_valid = iter.valid();
            self.iter = Some(iter);
            if is_valid {
                return self.read_kind();
            }
        }
        Ok(false)
    }

    fn key(&self) -> &[u8] {
        user_key(self.current().key())
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn value(&self) -> &[u8] {
        self.current().value()
    }
}

/// The place of an ingestion in the log of a passive store's owner.
#[derive(Debug, Clone, Copy)]
pub(crate) enum IngestedAt {
    /// The next transaction.
    Next(Logged),
    /// A later transaction: the store has all up to it.
    Later(Logged),
}

/// Memtables that are in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OverlappingMemtables {
    /// Among them those that take writes.
    Active,
    Sealed,
}

impl Engine {
    /// Implements [`super::Db::prepare`].
    pub(super) fn prepare(self: &Arc<Self>, family: &Family) -> Result<TableWriter> {
        let engine = self;
        engine.ctx.check_writable()?;
        engine.admit_bytes(0)?;
        let mut writer = engine.writes.lock();
        // The store may have been closed while this thread waited for the lock.
        engine.ctx.check_open()?;
        engine.health.check_jobs()?;
        let view = engine.tree.view();
        engine.check_family(&view, family)?;
        let seq = match engine.persistence {
            None => writer.take_seqs(1)?,
            Some(_) => engine
                .tree
                .catalog()
                .prepared_seq(engine.tree.new_file_number())?,
        };
        drop(writer);
        let family = view.families[&family.id()].clone();
        let numbers = engine.clone();
        let separator = Separator::new(
            &engine.ctx.env,
            engine.ctx.tables.clone(),
            Box::new(move || numbers.tree.new_file_number()),
            IoPriority::Low,
            false,
        );
        let may_compress = family.options.blob_compression != Compression::None;
        Ok(TableWriter {
            table: None,
            separator: separator.with_compressed(may_compress).of_prepared(),
            created: Created::new(engine.ctx.tables.clone()),
            engine: engine.clone(),
            family,
            seq,
            tables: Vec::new(),
            last: None,
            unseen: 0,
            user_bytes: 0,
            entries: 0,
            failed: None,
            key: Vec::new(),
            payload: Vec::new(),
        })
    }

    /// Implements [`super::Db::ingest`], and [`super::Db::ingest_at`] and [`super::Db::rebase`] for
    /// a passive store.
    pub(super) fn ingest(
        self: &Arc<Self>,
        prepared: &[Prepared],
        at: Option<IngestedAt>,
    ) -> Result<SeqNo> {
        let mut sets: Vec<&PreparedSet> = prepared.iter().map(|p| &*p.0).collect();
        if let Some(IngestedAt::Next(at)) = at {
            // During a replay, some families may have these tables already.
            let mut writer = self.writes.lock();
            let position = self.position(&mut writer)?;
            sets.retain(|set| !position.has(set.family.id, at.tsn));
        }
        for (i, set) in sets.iter().enumerate() {
            if !Arc::ptr_eq(&set.engine, self) {
                let what =
                    "a set of tables was prepared for another store, or before this one was opened";
                return Err(Error::invalid(what));
            }
            set.check_ready(sets[..i].iter().any(|s| std::ptr::eq(*s, *set)))?;
        }
        let tables = in_order(&sets)?;
        if !tables.is_empty() {
            // Their names are durable before the manifest has them, and no writer waits for that.
            self.ctx.env.fs().sync_metadata(&self.ctx.dir)?;
        }
        for _ in 0..MAX_CONCURRENT_FLUSHES {
            match self.overlapping_memtables(&self.tree.view(), &tables)? {
                Some(OverlappingMemtables::Active) if self.persistence.is_some() => {
                    self.seal_of(&mut self.writes.lock(), &sets)?;
                    self.flush_all()?;
                }
                Some(OverlappingMemtables::Active) => self.seal_and_flush()?,
                Some(OverlappingMemtables::Sealed) => self.flush_all()?,
                None => break,
            }
        }
        let mut writer = self.writes.lock();
        // The store may have been closed while this thread waited for the lock.
        self.ctx.check_open()?;
        self.health.check_jobs()?;
        self.resume_if_halted(&mut writer)?;
        // With `WaitMode::Wait`, the call returns when there is room, or fails.
        let _ = self.delay_writes(&mut writer, self.tree.view(), WaitMode::Wait)?;
        self.pressure.release_writers();
        let view = self.tree.view();
        for set in &sets {
            if !view.families.contains_key(&set.family.id) {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "family {:?} was dropped since tables were prepared for it",
                        set.family.name
                    ),
                ));
            }
            set.check_ready(false)?;
        }
        // The log is synced, as when a family is made: after a power cut, a prefix of all
        // operations survives.
        self.sync_log(&mut writer)?;
        match at {
            None => {}
            Some(IngestedAt::Next(at)) => self.position(&mut writer)?.check_next(at.tsn)?,
            Some(IngestedAt::Later(at)) => self.position(&mut writer)?.check_later(at.tsn)?,
        }
        let is_whole = matches!(at, Some(IngestedAt::Later(_)))
            || at.is_some_and(|_| self.flushes_atomically());
        if is_whole {
            // All families are persisted up to the transaction.
            self.rotate(&mut writer)?;
            self.flush_all()?;
        } else if let Some(met) = self.overlapping_memtables(&view, &tables)? {
            if met == OverlappingMemtables::Active {
                self.seal_of(&mut writer, &sets)?;
            }
            let _urgent = self.ctx.env.foreground_io().urgent();
            self.flush_all()?;
        }
        if tables.is_empty() && at.is_none() {
            return Ok(self.tree.visible());
        }
        let added = self.add_tables(&mut writer, &sets, &tables, at);
        drop(writer);
        self.background.schedule();
        added
    }

    /// Seals the memtables that sets may meet: in a passive store those of their families.
    fn seal_of(self: &Arc<Self>, writer: &mut Writer, sets: &[&PreparedSet]) -> Result<()> {
        match self.persistence {
            None => self.rotate(writer),
            Some(_) => {
                let families = sets.iter().map(|set| set.family.id).collect();
                self.seal_families(writer, &families)
            }
        }
    }

    /// Returns which memtables have a key or a deleted range between the ends of a table. Inserts
    /// made before the view was taken count.
    fn overlapping_memtables(
        &self,
        view: &View,
        tables: &[(&PreparedSet, &(u64, TableMeta))],
    ) -> Result<Option<OverlappingMemtables>> {
        let mut met = None;
        for (set, (_, meta)) in tables {
            let (from, to) = ends(meta);
            // Pages have everything up to a sequence number, so all older entries come first. A
            // family of a passive store has everything up to a transaction.
            let is_whole = view.pages.contains_key(&set.family.id) || self.persistence.is_some();
            for (n, mem) in view.memtables(set.family.id).enumerate() {
                if (is_whole && !mem.is_empty()) || mem.overlaps(from, to)? {
                    if n == 0 {
                        return Ok(Some(OverlappingMemtables::Active));
                    }
                    met = Some(OverlappingMemtables::Sealed);
                }
            }
        }
        Ok(met)
    }

    /// Notes in the log that its later records came after the edit that added the tables. If the
    /// manifest loses its end, the log shows the loss. Without the note, later writes would be
    /// there and the tables not.
    fn note_ingestion(self: &Arc<Self>, writer: &mut Writer, seq: SeqNo) {
        if writer.log.is_none() {
            // No log can show that the edit is lost, so `CURRENT` does. The tables are in the store
            // even if this fails.
            let _ = self.tree.point_current();
            return;
        }
        let mut buf = AlignedBuf::new();
        buf.resize(RECORD_HEADER, 0);
        let record = Outgoing {
            buf: &mut buf,
            kind: RecordKind::Ingestion,
            first_seq: seq,
            count: 1,
            payload_crc: basalt_records::payload_crc(&[], &[]),
            separated: &[],
            offset: 0,
        };
        // The tables are in the store even if this append fails. A log that takes no record has
        // halted writes.
        let _ = self.append_to_log(writer, &mut [record], false);
    }

    /// Writes the entries of prepared tables to the pages of their families. Returns the trees. If
    /// one family of several has failed, the others are in doubt.
    fn write_to_pages(
        &self,
        view: &View,
        tables: &[(&PreparedSet, &(u64, TableMeta))],
        seq: SeqNo,
    ) -> Result<Vec<(u32, Arc<FamilyPages>)>> {
        let mut written = Vec::new();
        for (id, tree) in view.pages.iter() {
            let of_family = tables.iter().filter(|(set, _)| set.family.id == *id);
            let files: VecDeque<Arc<TableFile>> = of_family
                .map(|(set, (number, meta))| {
                    let cmp = set.family.options.comparator.clone();
                    self.ctx.tables.table(*number, Arc::new(meta.clone()), cmp)
                })
                .collect();
            if !files.is_empty() {
                let mut entries = PreparedEntries {
                    files,
                    iter: None,
                    kind: Kind::Delete,
                };
                // The mark is set first, because a panic may end the ingestion before its edit is
                // durable.
                tree.pages.note_doubt();
                tree.pages.write(&mut entries, seq)?;
                written.push((*id, tree.pages.clone()));
            }
        }
        Ok(written)
    }

    /// Returns the sequence number of tables that are to be added. In a passive store, adds to the
    /// edit that their families are persisted up to transaction `at`.
    fn number_tables(
        &self,
        writer: &mut Writer,
        tables: &[(&PreparedSet, &(u64, TableMeta))],
        at: Option<IngestedAt>,
        edit: &mut Edit,
    ) -> Result<SeqNo> {
        let Some(ingested) = at else {
            return writer.take_seqs(1);
        };
        let (at, is_later) = match ingested {
            IngestedAt::Next(at) => (at, false),
            IngestedAt::Later(at) => (at, true),
        };
        let first = self.position(writer)?.next_seq();
        check_seqs(first, 1)?;
        let families: BTreeSet<u32> = match is_later || self.flushes_atomically() {
            true => self.tree.view().families.keys().copied().collect(),
            false => tables.iter().map(|(s, _)| s.family.id).collect(),
        };
        if !families.is_empty() {
            let flag = FlushFlag::of(at.tsn, first, 1);
            edit.flush_flags = vec![(flag, families.into_iter().collect())];
        }
        if !is_later {
            self.make_owner_durable(at.tsn)?;
        }
        Ok(first)
    }

    /// Notes that transaction `at` has added prepared tables.
    fn note_ingested_at(&self, writer: &mut Writer, at: Logged, families: &[u32]) -> Result<()> {
        let position = self.position(writer)?;
        position.note_applied(at.tsn, 1, at.bytes.unwrap_or(0), std::iter::empty());
        let log_end = position.log_end();
        self.note_applied(at.tsn, log_end);
        families
            .iter()
            .for_each(|id| self.note_caught_up(*id, log_end));
        self.report_point();
        Ok(())
    }

    /// Adds the tables to the tree. The caller makes sure that no write is in progress, and that no
    /// memtable overlaps the tables.
    fn add_tables(
        self: &Arc<Self>,
        writer: &mut Writer,
        sets: &[&PreparedSet],
        tables: &[(&PreparedSet, &(u64, TableMeta))],
        at: Option<IngestedAt>,
    ) -> Result<SeqNo> {
        let mut edit = Edit::default();
        let seq = self.number_tables(writer, tables, at, &mut edit)?;
        let persisted: Vec<u32> = edit.flush_flags.iter().flat_map(|f| f.1.clone()).collect();
        let _alone = self.flushing.lock();
        self.drop_failed_ingestions()?;
        let view = self.tree.view();
        let trees = self.write_to_pages(&view, tables, seq)?;
        edit.pages = trees.iter().map(|(id, _)| (*id, seq)).collect();
        let is_table = |set: &PreparedSet| !view.pages.contains_key(&set.family.id);
        let tables: Vec<_> = tables.iter().filter(|(set, _)| is_table(set)).collect();
        {
            // A compaction that is chosen after this sees where these tables will be.
            let mut state = self.tree.lock();
            let view = self.tree.view();
            let mut reaches = Vec::with_capacity(tables.len());
            let families = sets.iter().map(|s| &s.family);
            let bases: BTreeMap<u32, usize> = families
                .filter_map(|f| {
                    let version = view.version.families.get(&f.id)?;
                    Some((f.id, level_targets(version, &f.options).base_level))
                })
                .collect();
            for (set, (number, meta)) in &tables {
                let family = set.family.id;
                let cmp = &set.family.options.comparator;
                let version = view.version.families.get(&family);
                let (from, to) = ends(meta);
                let version = version.map(|v| (&**v, bases[&family]));
                let level = level_for(version, (family, cmp), &state.jobs.compactions, (from, to));
                reaches.push(OutputRange::of_keys(family, level, from, to));
                let shifted = meta.clone().shifted(seq - set.seq);
                edit.add_tables.push(AddTable {
                    family,
                    level: level as u32,
                    number: *number,
                    meta: shifted.expect("a number that was given out, without range tombstones"),
                    location: FileLocation::Local,
                });
            }
            state.jobs.ingesting = reaches;
        }
        for set in sets {
            edit.add_blobs
                .extend(set.blobs.iter().map(|(number, meta)| AddBlob {
                    number: *number,
                    meta: meta.clone(),
                    location: FileLocation::Local,
                }));
        }
        let made: Vec<TableInfo> = (edit.add_tables.iter().zip(&tables))
            .map(|(t, (set, _))| table_info(&set.family.name, t.level as usize, t.number, &t.meta))
            .collect();
        // From here on the files go with the edit.
        sets.iter().for_each(|s| s.give(!is_table(s)));
        let files = sets.iter().flat_map(|s| s.paths(!is_table(s))).collect();
        let install = || {
            self.tree.install(edit, files, |_, view| {
                view.ingested = seq;
                for (id, tree) in &trees {
                    let pages = Arc::make_mut(&mut view.pages);
                    pages.insert(*id, PageView::of(tree, seq));
                }
                // A reader with an older view that sees this sequence number, or a later one, takes
                // a new view. The number must be set before a merge can pick the new tables: a
                // snapshot that such a merge does not know of must see their content.
                self.tree.note_ingested(seq);
                self.tree.publish(seq);
            })
        };
        let installed = catch_unwind(AssertUnwindSafe(install));
        self.tree.lock().jobs.ingesting.clear();
        self.ctx.env.jobs().notify();
        let installed = installed.unwrap_or_else(|panic| {
            // As after a failed commit, the state of the tree is not known.
            self.health.set_broken(panic_text(&*panic));
            resume_unwind(panic)
        });
        if let Err(e) = installed {
            // The pages have the entries, whether the edit is durable or not. They are in doubt,
            // and the next flush or maintenance drops them.
            if !trees.is_empty() {
                sets.iter()
                    .for_each(|s| s.fate.store(STATE_IN_DOUBT, SeqCst));
            }
            let what =
                "whether prepared tables were added is not known before the store is opened anew";
            return Err(e.context(what));
        }
        for (_, tree) in &trees {
            tree.note_recorded();
            tree.end_doubt();
        }
        sets.iter()
            .for_each(|s| s.fate.store(STATE_INGESTED, SeqCst));
        match at {
            None => self.note_ingestion(writer, seq),
            Some(IngestedAt::Next(at) | IngestedAt::Later(at)) => {
                self.note_ingested_at(writer, at, &persisted)?;
            }
        }
        self.ctx.counters.ingestions.add(1);
        for set in sets {
            self.ctx.counters.ingested_bytes.add(set.bytes());
            self.ctx.counters.user_bytes.add(set.user_bytes);
        }
        for t in made {
            self.ctx.notify(|| Event::TableCreated(t));
        }
        Ok(seq)
    }
}
