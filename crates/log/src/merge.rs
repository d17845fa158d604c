//! Merges of small files of records (datalog and moved records). The first append after an open
//! begins a new file, and a program that has the store open for a few records leaves small ones,
//! which have no garbage. Their records are written again, to one file.

use crate::catalog::Role;
use crate::engine::{Engine, IS_SMALL};
use crate::gc::entries_of;
use crate::physical::ReadableFile;
use basalt_env::JobPriority;
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_fs::{ErrorKind, Result};
use std::sync::Arc;

/// A file is small if it ended before this part of the bytes of a full one, and before
/// [`LARGEST_SMALL`] bytes.
const SMALL_PART: u64 = if IS_SMALL { 4 } else { 64 };
const LARGEST_SMALL: u64 = 1 << 20;
/// A merge begins when there are this many small files. So a record is written again at most once
/// in this many opens, until its file is large.
const LEAST_FILES: usize = if IS_SMALL { 4 } else { 32 };
/// Bytes of the files of one merge: a close waits for it. Otherwise a program that opens the store
/// for a moment would never finish one.
const MERGE_BYTES: u64 = 8 << 20;

impl Engine {
    /// Schedules a job that merges small files after an open, if there are many. Files that no
    /// checkpoint covers get one first, because a program that is always killed never writes one.
    pub fn schedule_merge(&self) {
        let files = self.logs.all().into_iter();
        let small = files.filter(|file| self.is_small(file)).count();
        if small < LEAST_FILES || self.collecting.swap(true, SeqCst) {
            return;
        }
        self.in_background(JobPriority::Gc, |engine| {
            // After a failure the files stay. The next open tries again.
            if engine.small_files().is_none() {
                let _ = engine.checkpoint_unless_running();
            }
            let _ = engine.merge_small_files();
            engine.collecting.store(false, SeqCst);
        });
    }

    fn is_small(&self, file: &ReadableFile) -> bool {
        let small = self.logs.target_bytes(Role::Data) / SMALL_PART;
        let ends_before = |end: u64| end < small.min(LARGEST_SMALL);
        file.role != Role::Meta && file.end().is_some_and(|end| ends_before(end.offset))
    }

    /// Returns the small files of the next merge, the oldest first, or `None` if none is due.
    pub fn small_files(&self) -> Option<Vec<Arc<ReadableFile>>> {
        let head = *self.head.lock();
        let mut files = self.logs.all();
        files.retain(|file| self.may_be_collected(file, &head) && self.is_small(file));
        if files.len() < LEAST_FILES {
            return None;
        }
        let mut bytes = 0;
        files.retain(|file| {
            bytes += file.end().map_or(0, |end| end.offset);
            bytes <= MERGE_BYTES
        });
        Some(files)
    }

    /// Moves the records of many small files to one file, and removes the small ones.
    ///
    /// Errors: those of writing. A file with damage is left as it is.
    pub fn merge_small_files(&self) -> Result<()> {
        let Some(small) = self.small_files() else {
            return Ok(());
        };
        for file in small {
            match entries_of(&file).and_then(|entries| self.move_live(&file, &entries)) {
                Err(e) if e.kind() == ErrorKind::Corruption => self.leave_damaged(&file),
                moved => moved?,
            }
        }
        self.logs.counters.merges.add(1);
        self.remove_dead_records()
    }
}
