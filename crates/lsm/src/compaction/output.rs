//! [`Outputs`]: the tables a compaction writes, and their removal when it does not come to its end.

use crate::compaction::run::Job;
use crate::key::Cmp;
use crate::options::FamilyOptions;
use crate::table::{TableBuilder, TableFamily, TableMeta, TableOptions};
use crate::version::TableFile;
use basalt_env::{Env, IoPriority};
use basalt_fs::{ErrorKind, Result};
use std::cmp::Ordering;
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
}

impl<'a> Outputs<'a> {
    pub(super) fn new(job: &'a Job<'a>) -> Outputs<'a> {
        Outputs {
            builder: None,
            created: Created {
                env: job.env.clone(),
                paths: Vec::new(),
            },
            job,
            finished: Vec::new(),
            grandparents: Grandparents::new(
                &job.options.comparator,
                &job.plan.grandparents,
                job.options.table_bytes.saturating_mul(GRANDPARENT_FACTOR),
            ),
        }
    }

    fn finish_table(&mut self) -> Result<()> {
        if let Some((number, builder)) = self.builder.take() {
            self.finished.push((number, builder.finish()?));
        }
        Ok(())
    }

    /// Finishes the last table; the files stay from here on.
    pub(super) fn finish(mut self) -> Result<Vec<(u64, TableMeta)>> {
        self.finish_table()?;
        self.created.paths.clear();
        Ok(std::mem::take(&mut self.finished))
    }
}

impl Sink for Outputs<'_> {
    fn begin_user_key(&mut self, user_key: &[u8]) -> Result<()> {
        let wide = self.grandparents.passes_limit(user_key);
        let full = self
            .builder
            .as_ref()
            .is_some_and(|(_, b)| wide || b.estimated_size() >= self.job.options.table_bytes);
        if full {
            self.finish_table()?;
        }
        if self.builder.is_none() {
            self.grandparents.restart();
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
    cmp: &'a Cmp,
    tables: &'a [Arc<TableFile>],
    at: usize,
    overlapped: u64,
    limit: u64,
}

impl<'a> Grandparents<'a> {
    pub(super) fn new(cmp: &'a Cmp, tables: &'a [Arc<TableFile>], limit: u64) -> Grandparents<'a> {
        Grandparents {
            cmp,
            tables,
            at: 0,
            overlapped: 0,
            limit,
        }
    }

    /// Passes on to `user_key`; true when the output overlaps too much to take it in.
    pub(super) fn passes_limit(&mut self, user_key: &[u8]) -> bool {
        while let Some(t) = self.tables.get(self.at)
            && self.cmp.user(t.largest_user(), user_key) == Ordering::Less
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
