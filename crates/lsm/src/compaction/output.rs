//! [`Outputs`]: the tables a compaction writes, and their removal when it does not come to its end.

use crate::compaction::ranges::Cutter;
use crate::compaction::run::Job;
use crate::options::FamilyOptions;
use crate::ranges::Fragments;
use crate::table::{TableBuilder, TableFamily, TableMeta, TableOptions};
use crate::version::TableFile;
use basalt_env::{Env, IoPriority};
use basalt_fs::{ErrorKind, Result};
use std::path::PathBuf;
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
}

/// Files made so far; removes them when dropped, unless kept.
struct Created {
    env: Env,
    paths: Vec<PathBuf>,
}

impl Drop for Created {
    fn drop(&mut self) {
        for path in &self.paths {
            // A failed removal leaves an orphan, which the next open removes.
            let _ = self.env.fs().remove(path);
        }
    }
}

/// Tables written one after the other.
pub(super) struct Outputs<'a> {
    // Dropped before `created`, so that no builder is alive when its file goes.
    builder: Option<(u64, TableBuilder)>,
    created: Created,
    job: &'a Job<'a>,
    finished: Vec<(u64, TableMeta)>,
    grandparents: Grandparents<'a>,
    ranges: Cutter,
}

impl<'a> Outputs<'a> {
    /// `ranges`: the range tombstones that the outputs hold between them.
    pub(super) fn new(job: &'a Job<'a>, ranges: Fragments) -> Outputs<'a> {
        Outputs {
            builder: None,
            created: Created {
                env: job.env.clone(),
                paths: Vec::new(),
            },
            job,
            finished: Vec::new(),
            ranges: Cutter::new(job.options.comparator.clone(), ranges),
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

    fn begin_table(&mut self) -> Result<()> {
        let number = (self.job.new_file_number)();
        let path = self.job.store.path(number);
        let file = self.job.env.fs().create(&path);
        // A create that failed may have made the name all the same. A name that was there before is not ours.
        if !matches!(&file, Err(e) if e.kind() == ErrorKind::AlreadyExists) {
            self.created.paths.push(path.clone());
        }
        let file = file?;
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

    /// Finishes the last table; the files stay from here on.
    pub(super) fn finish(mut self) -> Result<Vec<(u64, TableMeta)>> {
        self.take_in_ranges(None)?;
        self.finish_table(None)?;
        self.created.paths.clear();
        Ok(std::mem::take(&mut self.finished))
    }
}

impl Sink for Outputs<'_> {
    fn begin_user_key(&mut self, user_key: &[u8]) -> Result<()> {
        self.take_in_ranges(Some(user_key))?;
        self.cut_before(user_key)?;
        if self.builder.is_none() {
            self.begin_table()?;
        }
        Ok(())
    }

    fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        let (_, builder) = self
            .builder
            .as_mut()
            .expect("a user key was begun before its entries");
        builder.add(internal_key, value)
    }
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
