//! Compaction of the metalog: pages in files that have few of them are written again, and the files
//! are removed with the next checkpoint (pageserver 5.2).
//!
//! Operations need no compaction, because a checkpoint has their outcome. Only pages pin a file of
//! the metalog. The entries that a page still answers for go back to L0, and from there to new
//! pages with their neighbours. So pages that lost most of their entries become dense again.

use crate::catalog::Role;
use crate::engine::Engine;
use crate::index::Freed;
use crate::namespace::LogState;
use crate::pages;
use crate::physical::ReadableFile;
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_fs::{ErrorKind, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of old files of the metalog for each byte of pages in them above which they are compacted.
const MAX_SPACE_AMP: u64 = 2;
/// Old files of the metalog may also have the bytes of all live records divided by this number.
/// Trims empty the pages of a log in the order in which they were written, so most files lose all
/// their pages without a compaction.
const UNCOMPACTED_PART: u64 = 32;

impl Engine {
    /// Compacts the metalog until most of its old files are pages in use.
    pub fn compact_metalog(&self) -> Result<()> {
        let mut stays = BTreeSet::new();
        while let Some(victim) = self.metalog_victim(&stays) {
            self.check_open()?;
            for log in self.namespace.all() {
                match self.rewrite_pages(&log, victim.number) {
                    // The other pages can be written again.
                    Err(e) if e.kind() == ErrorKind::Corruption => {}
                    done => done?,
                }
            }
            if victim.live.load(SeqCst) > 0 {
                // A page is damaged, or a trim that runs beside has not counted its garbage yet.
                stays.insert(victim.number);
            }
        }
        Ok(())
    }

    /// Returns the old file of which the smallest part is in use, if too little is in use in all.
    /// `stays` has the numbers of files that could not be emptied.
    fn metalog_victim(&self, stays: &BTreeSet<u64>) -> Option<Arc<ReadableFile>> {
        let replayed_from = self.head.lock().meta.file;
        let (mut total, mut live) = (0, 0);
        let mut victim: Option<(f64, Arc<ReadableFile>)> = None;
        let all = self.logs.all();
        for file in all.iter().filter(|f| f.role == Role::Meta) {
            let of_file = file.live.load(SeqCst);
            let Some(end) = file.end() else { continue };
            // The next checkpoint removes files without pages.
            if file.number >= replayed_from || of_file == 0 || stays.contains(&file.number) {
                continue;
            }
            total += end.offset;
            live += of_file;
            let part = of_file as f64 / end.offset as f64;
            if victim.as_ref().is_none_or(|(least, _)| part < *least) {
                victim = Some((part, file.clone()));
            }
        }
        let too_much = total > live * MAX_SPACE_AMP + self.logs.live_bytes() / UNCOMPACTED_PART;
        victim.filter(|_| too_much).map(|(_, file)| file)
    }

    /// Moves the entries of a log's pages in a file back to L0, and from there to new pages.
    fn rewrite_pages(&self, log: &Arc<LogState>, file: u64) -> Result<()> {
        let old = log.lock().index.pages_in(file);
        for at in &old {
            let Some(mapping) = pages::load(&self.env, &self.logs, log.number, *at)? else {
                continue;
            };
            let mut freed = Freed::default();
            let exact = log.lock().index.unload_page(*at, &mapping, &mut freed);
            // The exact counts are added before the old ones are subtracted. A file without live
            // bytes would be removed in between.
            for (file, bytes) in exact.iter().flat_map(|exact| exact.iter()) {
                if let Some(file) = self.logs.get(file) {
                    file.add_live(bytes);
                }
            }
            self.note_freed(&freed);
        }
        if !old.is_empty() && !std::mem::replace(&mut log.lock().flushing, true) {
            self.flush_index(log);
        }
        Ok(())
    }
}
