//! User checkpoints: sorted changes from memory become delta pages of the leaves that have their
//! keys (ArkDB, section 4.1.2). In an empty tree they become base pages at once.

use crate::compaction::Compaction;
use crate::entries::SortedEntries;
use crate::mapping::Change;
use crate::page::PageKind;
use crate::page_format::{LARGEST_ENTRY_HEAD, PageBuilder};
use crate::page_id::PageId;
use crate::storage::{PageWriteCause, PageWriter, Prepared, Storage, View};
use crate::system_log::SystemTx;
use crate::usage::StreamKind;
use basalt_env::sync::MutexGuard;
use basalt_fs::{Bytes, Result};
use std::sync::Arc;

impl Storage {
    /// Writes the pages of changes, whose keys rise strictly, without a commit. `note` is
    /// kept with the commit, for the memory tier. Runs beside compactions and collections.
    ///
    /// Errors: those of reading and writing; then nothing has changed.
    pub fn prepare_user_checkpoint(
        &self,
        changes: &mut dyn SortedEntries,
        note: Option<Vec<u8>>,
    ) -> Result<Prepared<'_>> {
        let maintenance = self.maintenance.try_lock();
        let view = self.view();
        if let Some(maintenance) = maintenance
            && self.is_empty(&view)?
        {
            return self.prepare_first_pages(changes, note, view, maintenance);
        }
        let mut writer = PageWriter::new(self, StreamKind::Delta);
        let mut builder = PageBuilder::new(PageKind::Delta, 0);
        builder.as_of = self.checkpoint_number(&view);
        // The leaf of each page of the writer.
        let mut leaves: Vec<PageId> = Vec::new();
        let mut current: Option<(PageId, Option<Vec<u8>>)> = None;
        while changes.advance()? {
            let (key, kind, value) = (changes.key(), changes.kind() as u8, changes.value());
            let inside =
                |(_, end): &(PageId, Option<Vec<u8>>)| end.as_deref().is_none_or(|end| key < end);
            let leaf = match current.as_ref().filter(|leaf| inside(leaf)) {
                Some((leaf, _)) => *leaf,
                None => {
                    if let Some((leaf, _)) = current.take().filter(|_| !builder.is_empty()) {
                        writer.add(&mut builder, PageId::NONE)?;
                        leaves.push(leaf);
                    }
                    let path = self.path(&view, key)?;
                    let leaf = path.leaf;
                    current = Some((leaf, path.end()));
                    leaf
                }
            };
            builder.add(key, kind, value);
            if builder.len_estimate() >= self.options.page_bytes {
                writer.add(&mut builder, PageId::NONE)?;
                leaves.push(leaf);
            }
        }
        if let Some((leaf, _)) = current.filter(|_| !builder.is_empty()) {
            writer.add(&mut builder, PageId::NONE)?;
            leaves.push(leaf);
        }
        let ids = writer.finish()?;
        let changes = leaves.into_iter().zip(ids);
        let tx = SystemTx {
            changes: changes
                .map(|(key, delta)| Change::Append { key, delta })
                .collect(),
            note,
            ..SystemTx::default()
        };
        Ok(Prepared {
            tx,
            view,
            _writers: vec![writer],
            _maintenance: None,
        })
    }

    /// Returns the number that the pages of the next user checkpoint get. It is higher than that of
    /// each earlier one, as long as the clock does not go back. It has the wall time, because a
    /// recovery may give the timestamp of a dropped user checkpoint to a new one.
    fn checkpoint_number(&self, view: &View) -> u64 {
        const TIME_BITS: u32 = 20;
        let time = (view.time + 1) & ((1 << TIME_BITS) - 1);
        self.env.clock().wall_ms() << TIME_BITS | time
    }

    /// Returns true if the tree has only an empty leaf.
    fn is_empty(&self, view: &View) -> Result<bool> {
        if view.root.level > 0 {
            return Ok(false);
        }
        let pages = self.pages_of(view, view.root.id)?;
        Ok(pages.deltas.is_empty()
            && self.page_uncached(StreamKind::Base, pages.base)?.count() == 0)
    }

    /// Writes the first entries of a tree as base pages, so that they are written once.
    fn prepare_first_pages<'a>(
        &'a self,
        changes: &mut dyn SortedEntries,
        note: Option<Vec<u8>>,
        view: Arc<View>,
        maintenance: MutexGuard<'a, ()>,
    ) -> Result<Prepared<'a>> {
        let mut builder = PageBuilder::new(PageKind::Leaf, 0);
        builder.as_of = self.checkpoint_number(&view);
        let mut compaction = Compaction::new(self, view);
        compaction.base.cause = PageWriteCause::Flush;
        let mut lows: Vec<Vec<u8>> = Vec::new();
        while changes.advance()? {
            let value = Bytes::copy_from_slice(changes.value());
            let key = changes.key();
            let dropped = &mut compaction.tx.dropped;
            let kept = self.filtered(key, changes.kind() as u8, value, dropped);
            let Some((kind, value)) = kept else {
                continue;
            };
            let bytes = builder.len_estimate() + key.len() + value.len() + LARGEST_ENTRY_HEAD;
            if !builder.is_empty() && bytes > self.options.page_bytes {
                compaction.base.add(&mut builder, PageId::NONE)?;
            }
            if builder.is_empty() {
                // The first leaf also has the keys below its first one.
                lows.push(match lows.is_empty() {
                    true => Vec::new(),
                    false => key.to_vec(),
                });
            }
            builder.add(key, kind, &value);
        }
        if !builder.is_empty() {
            compaction.base.add(&mut builder, PageId::NONE)?;
        }
        let ids = compaction.base.finish()?;
        compaction.replace_root(lows.into_iter().zip(ids).collect())?;
        Ok(Prepared {
            tx: SystemTx {
                note,
                ..compaction.tx
            },
            view: compaction.view,
            _writers: vec![compaction.base, compaction.delta],
            _maintenance: Some(maintenance),
        })
    }
}
