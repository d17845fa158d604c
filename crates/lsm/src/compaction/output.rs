//! [`Outputs`]: the tables a compaction writes, and their removal when it does not come to its end.

use crate::compaction::dropped_refs::DroppedRefs;
use crate::compaction::ranges::Cutter;
use crate::compaction::run::Job;
use crate::options::{Compression, FamilyOptions};
use crate::version::BlobSet;
use crate::version::TableFile;
use basalt_blob::garbage::Dead;
use basalt_blob::{BlobMeta, How, Separator};
use basalt_env::file_writer::PIECE;
use basalt_env::store_dir::Created;
use basalt_env::{CacheKey, IoPriority};
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::{
    Kind, SeqNo, encode_internal_key, pack_trailer, split_internal_key, trailer_seq,
};
use basalt_kv::ranges::Fragments;
use basalt_kv::separated::{Name, Reference, record};
use basalt_table::{TableBuilder, TableFamily, TableMeta, TableOptions};
use std::sync::Arc;

/// A table is cut when it overlaps more than so many times `table_bytes` of the level below its own: its later
/// compaction stays that small.
pub(super) const GRANDPARENT_FACTOR: u64 = 10;

/// How a family's tables are built. `bottommost`: nothing older lies below, so the bottom's compression applies.
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
    }
}

/// Where merged entries go.
pub(crate) trait Sink {
    /// The entries that follow are of this user key, which is new: the only place where a table may end.
    fn begin_user_key(&mut self, user_key: &[u8]) -> Result<()>;
    /// The next entry.
    fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()>;
    /// The payload behind a reference, in an entry that was read.
    fn open(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<Bytes> {
        unreachable!("{to:?} of {user_key:02x?} at {seq} where there are no references")
    }
    /// An entry with a reference was read and is not added.
    fn let_go(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<()> {
        unreachable!("{to:?} of {user_key:02x?} at {seq} where there are no references")
    }
}

/// What a merge wrote and let go of.
pub(super) struct Written {
    pub(super) tables: Vec<(u64, TableMeta)>,
    pub(super) blobs: Vec<(u64, BlobMeta)>,
    pub(super) dead: Vec<Dead>,
    pub(super) unreadable_indexes: Vec<Error>,
    pub(super) moved: u64,
    pub(super) moved_records: u64,
    pub(super) renamed: Vec<(CacheKey, CacheKey)>,
}

/// References are looked up in the blob files of a moment that is at most so many lookups old: files that were collected since are not
/// kept for longer.
const LOOKUPS_A_MOMENT: u32 = 16 << 10;

/// Tables written one after the other.
pub(super) struct Outputs<'a> {
    // This field is dropped before `created`, so that no builder is alive when its file is removed.
    builder: Option<(u64, TableBuilder)>,
    created: Created,
    job: &'a Job<'a>,
    finished: Vec<(u64, TableMeta)>,
    grandparents: Grandparents<'a>,
    ranges: Cutter,
    separator: Separator<'a>,
    blobs: Arc<BlobSet>,
    /// Lookups left in `blobs`.
    lookups: u32,
    departed: DroppedRefs<'a>,
    /// Bytes that may be added before there is another look at the free space.
    allowed: u64,
    /// Bytes of records that were moved along, and where the cache has those that it has.
    moved: u64,
    moved_records: u64,
    renamed: Vec<(CacheKey, CacheKey)>,
    payload: Vec<u8>,
    key: Vec<u8>,
}

impl<'a> Outputs<'a> {
    /// `ranges`: the range tombstones that the outputs hold between them.
    pub(super) fn new(job: &'a Job<'a>, ranges: Fragments) -> Outputs<'a> {
        Outputs {
            builder: None,
            created: Created::new(job.store.clone()),
            job,
            finished: Vec::new(),
            ranges: Cutter::new(job.options.comparator.clone(), ranges),
            separator: Separator::new(
                &job.env,
                job.store.clone(),
                Box::new(job.new_file_number),
                IoPriority::Low,
                false,
            )
            .with_packed(job.options.blob_compression != Compression::None),
            blobs: (job.blobs)(),
            lookups: LOOKUPS_A_MOMENT,
            departed: DroppedRefs::new(job),
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

    /// Ends the table being written before `end`, or for good. It may hold nothing but range tombstones.
    fn finish_table(&mut self, end: Option<&[u8]>) -> Result<()> {
        if self.builder.is_none() && self.ranges.has_before(end) {
            self.begin_table()?;
        }
        if let Some((number, mut builder)) = self.builder.take() {
            self.ranges.give(end, &mut builder);
            self.finished.push((number, builder.finish()?));
        }
        Ok(())
    }

    /// Ends the table being written before `user_key` when it is large enough or overlaps too much below.
    fn cut_before(&mut self, user_key: &[u8]) -> Result<()> {
        if self.job.plan.output_level == 0 {
            // Level 0 is to have fewer tables.
            return Ok(());
        }
        let wide = self.grandparents.passes_limit(user_key);
        let entries = self.builder.as_ref().map_or(0, |(_, b)| b.estimated_size());
        let any = entries > 0 || self.ranges.bytes() > 0;
        let full = entries + self.ranges.bytes() >= self.job.options.table_bytes;
        if any && (wide || full) {
            self.finish_table(Some(user_key))?;
            self.grandparents.restart();
        } else if !any && !self.ranges.has_before(Some(user_key)) {
            // The first table begins here.
            self.grandparents.restart();
        }
        Ok(())
    }

    /// Takes in the range tombstones that begin at or before `user_key`, or all: a table may be cut where one begins.
    fn take_in_ranges(&mut self, user_key: Option<&[u8]>) -> Result<()> {
        while let Some(from) = self.ranges.next_begin(user_key) {
            let from = from.to_vec();
            self.cut_before(&from)?;
            self.ranges.take_in();
        }
        Ok(())
    }

    /// The blob files of now, or of a moment ago.
    fn blobs(&mut self) -> &Arc<BlobSet> {
        self.lookups -= 1;
        if self.lookups == 0 {
            self.lookups = LOOKUPS_A_MOMENT;
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
            table_options(
                self.job.options,
                self.job.family.clone(),
                self.job.plan.bottommost,
            ),
            IoPriority::Low,
        );
        self.builder = Some((number, builder));
        Ok(())
    }

    /// Looks at the free space now and then. `bytes` are about to be added.
    fn check_space(&mut self, bytes: usize) -> Result<()> {
        if let Some(left) = self.allowed.checked_sub(bytes as u64) {
            self.allowed = left;
            return Ok(());
        }
        let table = self.builder.as_ref().map_or(0, |(_, b)| b.estimated_size());
        self.allowed = (self.job.allowance)(table.min(PIECE as u64) + bytes as u64)?;
        Ok(())
    }

    /// True for a reference to a value that is to be moved along.
    pub(super) fn is_gathered(
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
        Ok(job.plan.gathered.contains(&file.number))
    }

    /// The next entry, whose value was read out of another file and goes on in one of ours. `cached`: where it is in the cache.
    pub(super) fn add_moved(
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
        // What is in the cache has the sequence number of the old record.
        let cached = cached.filter(|_| from.seq.is_none());
        self.renamed.extend(cached.map(|from| (from, to)));
        self.departed.add(user, name.seq, from)
    }

    /// Finishes the last table; the files stay from here on.
    pub(super) fn finish(mut self) -> Result<Written> {
        self.take_in_ranges(None)?;
        self.finish_table(None)?;
        let (dead, unreadable_indexes) = self.departed.finish()?;
        let blobs = self.separator.finish()?;
        self.created.keep();
        Ok(Written {
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

impl Sink for Outputs<'_> {
    fn begin_user_key(&mut self, user_key: &[u8]) -> Result<()> {
        self.take_in_ranges(Some(user_key))?;
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
            // What was collected since it was written is found in one step from here on.
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

    fn open(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<Bytes> {
        let name = Name {
            family: self.job.family.id,
            key: user_key,
            seq,
        };
        let cmp = &self.job.options.comparator;
        Ok(self.blobs().read(&name, to, cmp, How::job(false))?.1)
    }

    fn let_go(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<()> {
        self.departed.add(user_key, seq, to)
    }
}

/// The internal key of a reference.
pub(crate) fn internal_key_of<'k>(out: &'k mut Vec<u8>, user_key: &[u8], seq: SeqNo) -> &'k [u8] {
    out.clear();
    encode_internal_key(out, user_key, pack_trailer(seq, Kind::BlobRef));
    out
}

/// Bytes of the level below the output level that the present output overlaps.
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

    /// Passes on to `user_key`; true when the output overlaps too much to take it in.
    pub(super) fn passes_limit(&mut self, user_key: &[u8]) -> bool {
        while let Some(t) = self.tables.get(self.at)
            && t.ends_before(user_key)
        {
            self.overlapped += t.meta.size;
            self.at += 1;
        }
        self.overlapped > self.limit
    }

    /// A new output begins here.
    pub(super) fn restart(&mut self) {
        self.overlapped = 0;
    }
}
