//! [`Outputs`]: the tables that a compaction writes, and their removal if the compaction fails.

use crate::compaction::dropped_refs::{DroppedRefs, DroppingJob};
use crate::compaction::ranges::TombstoneCutter;
use crate::compaction::run::CompactionJob;
use crate::options::{Compression, FamilyOptions};
use crate::version::BlobSet;
use crate::version::TableFile;
use basalt_blob::garbage::Dead;
use basalt_blob::{BlobMeta, Name, ReadMode, Reference, Separator, record};
use basalt_env::file_writer::PIECE;
use basalt_env::store_dir::Created;
use basalt_env::{CacheKey, IoPriority};
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::{
    Kind, SeqNo, encode_internal_key, pack_trailer, split_internal_key, trailer_seq,
};
use basalt_kv::ranges::Fragments;
use basalt_table::{TableBuilder, TableFamily, TableMeta, TableOptions};
use std::sync::Arc;

/// A table is cut when it overlaps more than this many times `table_bytes` in the level below its
/// own. Its later compaction stays that small.
pub(super) const GRANDPARENT_FACTOR: u64 = 10;

/// Returns how a family's tables are built. `bottommost`: no older data lies below, so the
/// compression of the bottom applies.
pub fn table_options(
    options: &FamilyOptions,
    family: TableFamily,
    bottommost: bool,
) -> TableOptions {
    TableOptions {
        family,
        cmp: options.comparator.clone(),
        block_bytes: options.block_bytes,
        filter_bits_per_key: options.filter_bits_per_key,
        prefix_extractor: options.prefix_extractor.clone(),
        compression: match options.bottom_compression {
            Some(c) if bottommost => c,
            _ => options.compression,
        },
        warm_cache: false,
        flush_flag: None,
    }
}

/// The receiver of merged entries.
pub(crate) trait MergeSink {
    /// Begins a new user key, which the next entries have. A table may end only here.
    fn begin_user_key(&mut self, user_key: &[u8]) -> Result<()>;
    /// Adds the next entry.
    fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()>;
    /// Reads the payload of the blob record that an input entry refers to.
    fn read_value(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<Bytes> {
        unreachable!("{to:?} of {user_key:02x?} at {seq} where there are no references")
    }
    /// Reports an input entry with a reference that is not added.
    fn drop_reference(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<()> {
        unreachable!("{to:?} of {user_key:02x?} at {seq} where there are no references")
    }
}

/// The finished files of a merge, and the records that lost their reference.
/// [`Outcome`](super::outcome::Outcome) has the meaning of the fields.
pub(super) struct WrittenFiles {
    pub(super) tables: Vec<(u64, TableMeta)>,
    pub(super) blobs: Vec<(u64, BlobMeta)>,
    pub(super) dead: Vec<Dead>,
    pub(super) unreadable_indexes: Vec<Error>,
    pub(super) moved: u64,
    pub(super) moved_records: u64,
    pub(super) renamed: Vec<(CacheKey, CacheKey)>,
}

/// Lookups of references after which the set of blob files is taken anew. Files that garbage
/// collection has replaced are kept no longer than that.
const LOOKUPS_A_SET: u32 = 16 << 10;

/// The output tables of a job, written one after the other.
pub(super) struct Outputs<'a> {
    // The builder is dropped before `created`, which removes its file.
    builder: Option<(u64, TableBuilder)>,
    created: Created,
    job: &'a CompactionJob<'a>,
    finished: Vec<(u64, TableMeta)>,
    grandparents: Grandparents<'a>,
    tombstones: TombstoneCutter,
    separator: Separator<'a>,
    blobs: Arc<BlobSet>,
    /// Lookups after which `blobs` is taken anew.
    lookups: u32,
    dropped_refs: DroppedRefs<'a>,
    /// Bytes that may be added before the free space is checked again.
    allowed: u64,
    /// Bytes of relocated records.
    moved: u64,
    /// Number of relocated records.
    moved_records: u64,
    /// Old and new cache key of relocated values.
    renamed: Vec<(CacheKey, CacheKey)>,
    payload: Vec<u8>,
    key: Vec<u8>,
}

impl<'a> Outputs<'a> {
    /// `tombstones`: the range tombstones that the outputs hold between them.
    pub(super) fn new(job: &'a CompactionJob<'a>, tombstones: Fragments) -> Outputs<'a> {
        Outputs {
            builder: None,
            created: Created::new(job.store.clone()),
            job,
            finished: Vec::new(),
            tombstones: TombstoneCutter::new(job.options.comparator.clone(), tombstones),
            separator: Separator::new(
                &job.env,
                job.store.clone(),
                Box::new(job.new_file_number),
                IoPriority::Low,
                false,
            )
            .with_compressed(job.options.blob_compression != Compression::None),
            blobs: (job.blobs)(),
            lookups: LOOKUPS_A_SET,
            dropped_refs: DroppedRefs::new(DroppingJob {
                env: &job.env,
                family: job.family.id,
                cmp: &job.options.comparator,
                blobs: job.blobs,
                cancelled: job.cancelled,
            }),
            allowed: 0,
            moved: 0,
            moved_records: 0,
            renamed: Vec::new(),
            payload: Vec::new(),
            key: Vec::new(),
            grandparents: Grandparents::new(
                &job.plan.grandparents,
                job.options.table_bytes.saturating_mul(GRANDPARENT_FACTOR),
            ),
        }
    }

    /// Finishes the current table, which ends before `end` (`None`: the last one). The table may
    /// hold only range tombstones.
    fn finish_table(&mut self, end: Option<&[u8]>) -> Result<()> {
        if self.builder.is_none() && self.tombstones.has_before(end) {
            self.begin_table()?;
        }
        if let Some((number, mut builder)) = self.builder.take() {
            self.tombstones.write_before(end, &mut builder);
            self.finished.push((number, builder.finish()?));
        }
        Ok(())
    }

    /// Finishes the current table before `user_key` if it is large enough or overlaps too much
    /// below.
    fn cut_before(&mut self, user_key: &[u8]) -> Result<()> {
        if self.job.plan.output_level == 0 {
            // A merge inside level 0 makes one table of several.
            return Ok(());
        }
        let wide = self.grandparents.passes_limit(user_key);
        let entries = self.builder.as_ref().map_or(0, |(_, b)| b.estimated_size());
        let any = entries > 0 || self.tombstones.bytes() > 0;
        let full = entries + self.tombstones.bytes() >= self.job.options.table_bytes;
        if any && (wide || full) {
            self.finish_table(Some(user_key))?;
            self.grandparents.restart();
        } else if !any && !self.tombstones.has_before(Some(user_key)) {
            // The first table begins at this key.
            self.grandparents.restart();
        }
        Ok(())
    }

    /// Counts the range tombstones that begin at or before `user_key` (`None`: all) for the current
    /// table, which may be cut where one begins.
    fn count_tombstones(&mut self, user_key: Option<&[u8]>) -> Result<()> {
        while let Some(from) = self.tombstones.next_start(user_key) {
            let from = from.to_vec();
            self.cut_before(&from)?;
            self.tombstones.count_next();
        }
        Ok(())
    }

    /// Returns the set of blob files, which is at most [`LOOKUPS_A_SET`] lookups old.
    fn blobs(&mut self) -> &Arc<BlobSet> {
        self.lookups -= 1;
        if self.lookups == 0 {
            self.lookups = LOOKUPS_A_SET;
            self.blobs = (self.job.blobs)();
        }
        &self.blobs
    }

    fn begin_table(&mut self) -> Result<()> {
        let number = (self.job.new_file_number)();
        let path = self.job.store.path(number);
        let file = self.created.create(&path)?;
        let builder = TableBuilder::new(
            &self.job.env,
            file,
            &path,
            self.job.env.random().next_u128(),
            TableOptions {
                flush_flag: self.job.flush_flag,
                ..table_options(
                    self.job.options,
                    self.job.family.clone(),
                    self.job.plan.bottommost,
                )
            },
            IoPriority::Low,
        );
        self.builder = Some((number, builder));
        Ok(())
    }

    /// Checks the free space when the allowance is used up. `bytes` are about to be added.
    fn check_space(&mut self, bytes: usize) -> Result<()> {
        if let Some(left) = self.allowed.checked_sub(bytes as u64) {
            self.allowed = left;
            return Ok(());
        }
        let table = self.builder.as_ref().map_or(0, |(_, b)| b.estimated_size());
        self.allowed = (self.job.allowance)(table.min(PIECE as u64) + bytes as u64)?;
        Ok(())
    }

    /// Returns true if the plan relocates the value that an entry refers to.
    pub(super) fn is_relocated(
        &mut self,
        user_key: &[u8],
        seq: SeqNo,
        to: &Reference,
    ) -> Result<bool> {
        let name = Name {
            family: self.job.family.id,
            key: user_key,
            seq,
        };
        let job = self.job;
        let file = self
            .blobs()
            .file(to.number, &name, &job.options.comparator)?;
        Ok(job.plan.relocated_files.contains(&file.number))
    }

    /// Adds an entry whose value was read from another blob file, and writes the value to a new
    /// one. `cached`: the cache key of the old value, if it is in the cache.
    pub(super) fn add_relocated(
        &mut self,
        internal_key: &[u8],
        value: &[u8],
        from: &Reference,
        cached: Option<CacheKey>,
    ) -> Result<()> {
        self.check_space(internal_key.len() + value.len())?;
        let (user, trailer) = split_internal_key(internal_key);
        let name = Name {
            family: self.job.family.id,
            key: user,
            seq: trailer_seq(trailer),
        };
        let codec = self.job.options.blob_compression;
        let payload = self.separator.put(&name, from.kind(), value, codec)?;
        let (_, builder) = self.builder.as_mut().expect("a user key was begun before");
        builder.add(internal_key, payload)?;
        self.moved += (record::HEADER_LEN + user.len() + value.len()) as u64;
        self.moved_records += 1;
        let to = self.separator.last_cached();
        // Cached values carry the sequence number of their old record, so only a record with the
        // sequence number of its entry keeps its place in the cache.
        let cached = cached.filter(|_| from.seq.is_none());
        self.renamed.extend(cached.map(|from| (from, to)));
        self.dropped_refs.add(user, name.seq, from)
    }

    /// Finishes the last table. The files are kept from here on.
    pub(super) fn finish(mut self) -> Result<WrittenFiles> {
        self.count_tombstones(None)?;
        self.finish_table(None)?;
        let (dead, unreadable_indexes) = self.dropped_refs.finish()?;
        let blobs = self.separator.finish()?;
        self.created.keep();
        Ok(WrittenFiles {
            tables: self.finished,
            blobs,
            dead,
            unreadable_indexes,
            moved: self.moved,
            moved_records: self.moved_records,
            renamed: self.renamed,
        })
    }
}

impl MergeSink for Outputs<'_> {
    fn begin_user_key(&mut self, user_key: &[u8]) -> Result<()> {
        self.count_tombstones(Some(user_key))?;
        self.cut_before(user_key)?;
        if self.builder.is_none() {
            self.begin_table()?;
        }
        self.separator.begin_user_key()
    }

    fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        const BEGUN: &str = "a user key was begun before its entries";
        self.check_space(internal_key.len() + value.len())?;
        let (user, trailer) = split_internal_key(internal_key);
        let name = Name {
            family: self.job.family.id,
            key: user,
            seq: trailer_seq(trailer),
        };
        let kind = Kind::from_u8(trailer as u8).expect("an entry that was checked");
        if kind == Kind::BlobRef {
            // The reference names the present file of the value, so that later lookups take one
            // step.
            let mut to = Reference::decode(value)?;
            let cmp = &self.job.options.comparator;
            to.number = self.blobs().file(to.number, &name, cmp)?.number;
            self.payload.clear();
            to.encode(&mut self.payload);
            let (_, builder) = self.builder.as_mut().expect(BEGUN);
            return builder.add(internal_key, &self.payload);
        }
        let (_, builder) = self.builder.as_mut().expect(BEGUN);
        if Separator::wants(self.job.options.min_blob_size, kind, value) {
            let codec = self.job.options.blob_compression;
            let payload = self.separator.put(&name, kind, value, codec)?;
            let internal_key = internal_key_of(&mut self.key, user, name.seq);
            return builder.add(internal_key, payload);
        }
        builder.add(internal_key, value)
    }

    fn read_value(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<Bytes> {
        let name = Name {
            family: self.job.family.id,
            key: user_key,
            seq,
        };
        let cmp = &self.job.options.comparator;
        Ok(self.blobs().read(&name, to, cmp, ReadMode::job(false))?.1)
    }

    fn drop_reference(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<()> {
        self.dropped_refs.add(user_key, seq, to)
    }
}

/// Builds the internal key of a reference in `out` and returns it.
pub(crate) fn internal_key_of<'k>(out: &'k mut Vec<u8>, user_key: &[u8], seq: SeqNo) -> &'k [u8] {
    out.clear();
    encode_internal_key(out, user_key, pack_trailer(seq, Kind::BlobRef));
    out
}

/// Counts the bytes of the level below the output level that the current output overlaps.
pub(super) struct Grandparents<'a> {
    tables: &'a [Arc<TableFile>],
    at: usize,
    overlapped: u64,
    limit: u64,
}

impl<'a> Grandparents<'a> {
    pub(super) fn new(tables: &'a [Arc<TableFile>], limit: u64) -> Grandparents<'a> {
        Grandparents {
            tables,
            at: 0,
            overlapped: 0,
            limit,
        }
    }

    /// Moves on to `user_key`. Returns true if the output overlaps too much to take the key.
    pub(super) fn passes_limit(&mut self, user_key: &[u8]) -> bool {
        while let Some(t) = self.tables.get(self.at)
            && t.ends_before(user_key)
        {
            self.overlapped += t.meta.size;
            self.at += 1;
        }
        self.overlapped > self.limit
    }

    /// Begins a new output.
    pub(super) fn restart(&mut self) {
        self.overlapped = 0;
    }
}
