//! User checkpoints: sorted changes from memory become delta pages of the leaves that have their
//! keys (ArkDB, section 4.1.2), or of the index pages above, if they are few for each leaf
//! (decision 0048). In an empty tree they become base pages at once.

use crate::checkpoint_lock::CheckpointGuard;
use crate::compaction::Compaction;
use crate::entries::SortedEntries;
use crate::maintenance_lock::MaintenanceGuard;
use crate::mapping::Change;
use crate::page::PageKind;
use crate::page_format::{LARGEST_ENTRY_HEAD, PageBuilder};
use crate::page_id::PageId;
use crate::path::Path;
use crate::storage::{PageWriteCause, PageWriter, Prepared, Storage, View};
use crate::system_log::SystemTx;
use crate::usage::StreamKind;
use basalt_fs::Result;
use std::sync::Arc;

/// When this many bytes of changes below an index page have come, they decide where all changes
/// below it go.
const DECIDING_BYTES: usize = 1 << 20;
/// Most bytes of a delta page of an index page, about.
const INDEX_DELTA_BYTES: usize = 1 << 20;

/// Where the changes below an index page go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeltaTarget {
    Undecided,
    Leaves,
    Index,
}

/// Writes the delta pages of a user checkpoint. The changes come in the order of their keys.
struct CheckpointWriter<'a> {
    storage: &'a Storage,
    writer: PageWriter<'a>,
    /// The page of each delta page of the writer, and whether it is an index page.
    targets: Vec<(PageId, bool)>,
    number: u64,
    is_exclusive: bool,
    /// The index page above the current leaf. Without one, the leaf is the root.
    parent: Option<PageId>,
    /// True once there is a current leaf.
    has_leaf: bool,
    target: DeltaTarget,
    leaf: PageId,
    /// Changes of the current leaf.
    builder: PageBuilder,
    /// Leaves below the index page with their changes, whose target is not chosen yet.
    waiting: Vec<(PageId, PageBuilder)>,
    waiting_bytes: usize,
    /// Changes for the delta page of the index page.
    index_delta: PageBuilder,
    /// Delta pages of leaves so far, and their bytes before compression.
    leaf_deltas: (usize, usize),
}

impl<'a> CheckpointWriter<'a> {
    fn new(storage: &'a Storage, number: u64, is_exclusive: bool) -> CheckpointWriter<'a> {
        CheckpointWriter {
            storage,
            writer: PageWriter::new(storage, StreamKind::Delta),
            targets: Vec::new(),
            number,
            is_exclusive,
            parent: None,
            has_leaf: false,
            target: DeltaTarget::Leaves,
            leaf: PageId::NONE,
            builder: CheckpointWriter::builder(number),
            waiting: Vec::new(),
            waiting_bytes: 0,
            index_delta: CheckpointWriter::builder(number),
            leaf_deltas: (0, 0),
        }
    }

    fn builder(number: u64) -> PageBuilder {
        let mut builder = PageBuilder::new(PageKind::Delta, 0);
        builder.as_of = number;
        builder
    }

    /// Ends the changes of the current leaf: the next ones are of the leaf at the end of a path.
    fn begin_leaf(&mut self, view: &View, path: &Path) -> Result<()> {
        self.flush_leaf()?;
        let parent = path.steps.last().map(|step| step.key);
        if !std::mem::replace(&mut self.has_leaf, true) || parent != self.parent {
            self.end_index_page()?;
            self.parent = parent;
            self.target = match parent {
                Some(parent) if self.is_exclusive => {
                    let deltas = &self.storage.pages_of(view, parent)?.deltas;
                    match deltas.is_empty() {
                        true => DeltaTarget::Undecided,
                        // What the leaves get would be hidden.
                        false => DeltaTarget::Index,
                    }
                }
                _ => DeltaTarget::Leaves,
            };
        }
        self.leaf = path.leaf;
        Ok(())
    }

    fn add(&mut self, key: &[u8], kind: u8, value: &[u8]) -> Result<()> {
        self.builder.add(key, kind, value);
        match self.builder.len_estimate() >= self.storage.options.page_bytes {
            true => self.flush_leaf(),
            false => Ok(()),
        }
    }

    /// Passes on the changes of the current leaf so far.
    fn flush_leaf(&mut self) -> Result<()> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let fresh = CheckpointWriter::builder(self.number);
        let piece = std::mem::replace(&mut self.builder, fresh);
        match self.target {
            DeltaTarget::Leaves => self.write(self.leaf, false, piece),
            DeltaTarget::Index => self.add_to_index(piece),
            DeltaTarget::Undecided => {
                self.waiting_bytes += piece.len_estimate();
                self.waiting.push((self.leaf, piece));
                match self.waiting_bytes >= DECIDING_BYTES {
                    true => self.decide(),
                    false => Ok(()),
                }
            }
        }
    }

    /// Decides where the changes below the index page go.
    fn decide(&mut self) -> Result<()> {
        let mut leaves: Vec<PageId> = self.waiting.iter().map(|(leaf, _)| *leaf).collect();
        leaves.dedup();
        let least = leaves.len() * self.storage.options.least_leaf_delta();
        let is_small = leaves.len() > 1 && self.waiting_bytes < least;
        self.target = if is_small {
            DeltaTarget::Index
        } else {
            DeltaTarget::Leaves
        };
        self.waiting_bytes = 0;
        for (leaf, piece) in std::mem::take(&mut self.waiting) {
            match is_small {
                true => self.add_to_index(piece)?,
                false => self.write(leaf, false, piece)?,
            }
        }
        Ok(())
    }

    fn add_to_index(&mut self, mut piece: PageBuilder) -> Result<()> {
        self.index_delta.append(&mut piece);
        match self.index_delta.len_estimate() >= INDEX_DELTA_BYTES {
            true => self.write_index(),
            false => Ok(()),
        }
    }

    fn write_index(&mut self) -> Result<()> {
        if self.index_delta.is_empty() {
            return Ok(());
        }
        let parent = self
            .parent
            .expect("changes for an index page have a parent");
        let fresh = CheckpointWriter::builder(self.number);
        let page = std::mem::replace(&mut self.index_delta, fresh);
        self.write(parent, true, page)
    }

    /// Ends the changes below the index page.
    fn end_index_page(&mut self) -> Result<()> {
        if self.target == DeltaTarget::Undecided {
            self.decide()?;
        }
        self.write_index()
    }

    fn write(&mut self, of: PageId, is_index: bool, mut page: PageBuilder) -> Result<()> {
        if !is_index && self.parent.is_some() {
            self.leaf_deltas.0 += 1;
            self.leaf_deltas.1 += page.len_estimate();
        }
        self.writer.add(&mut page, PageId::NONE)?;
        self.targets.push((of, is_index));
        Ok(())
    }

    /// Returns the transaction, and the writer of its pages.
    fn finish(mut self) -> Result<(SystemTx, PageWriter<'a>)> {
        self.flush_leaf()?;
        self.end_index_page()?;
        let (pages, bytes) = self.leaf_deltas;
        if pages > 1 && bytes < pages * self.storage.options.least_leaf_delta() {
            self.storage.checkpoints.allow_index_deltas();
        }
        let changes = self.targets.into_iter().zip(self.writer.finish()?);
        let changes = changes.map(|((key, to_index), delta)| Change::Append {
            key,
            delta,
            to_index,
        });
        let tx = SystemTx {
            changes: changes.collect(),
            ..SystemTx::default()
        };
        Ok((tx, self.writer))
    }
}

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
        let mut guard = self.checkpoints.enter();
        if self.is_empty(&self.view())? {
            drop(guard);
            guard = self.checkpoints.enter_alone();
        }
        let maintenance = self.maintenance.try_exclusive();
        let view = self.view();
        // Maintenance may have emptied the tree since the look above.
        if let Some(maintenance) = maintenance
            && !matches!(guard, CheckpointGuard::Concurrent(_))
            && self.is_empty(&view)?
        {
            let first = self.prepare_first_pages(changes, note, view, maintenance)?;
            return Ok(Prepared {
                _checkpoint: Some(guard),
                ..first
            });
        }
        let number = self.checkpoint_number(&view);
        let mut changed =
            CheckpointWriter::new(self, number, matches!(guard, CheckpointGuard::Exclusive(_)));
        // The first key behind the current leaf.
        let mut end: Option<Option<Vec<u8>>> = None;
        while changes.advance()? {
            let (key, kind, value) = (changes.key(), changes.kind() as u8, changes.value());
            let is_inside = |end: &Option<Vec<u8>>| end.as_deref().is_none_or(|end| key < end);
            if !end.as_ref().is_some_and(is_inside) {
                let path = self.path(&view, key)?;
                changed.begin_leaf(&view, &path)?;
                end = Some(path.end());
            }
            changed.add(key, kind, value)?;
        }
        let (tx, writer) = changed.finish()?;
        Ok(Prepared {
            tx: SystemTx { note, ..tx },
            view,
            damage: None,
            _writers: vec![writer],
            _structure: None,
            _maintenance: None,
            _checkpoint: Some(guard),
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
        maintenance: MaintenanceGuard<'a>,
    ) -> Result<Prepared<'a>> {
        let mut builder = PageBuilder::new(PageKind::Leaf, 0);
        builder.as_of = self.checkpoint_number(&view);
        let mut compaction = Compaction::new(self, view);
        compaction.base.cause = PageWriteCause::Flush;
        let mut lows: Vec<Vec<u8>> = Vec::new();
        while changes.advance()? {
            let (key, value) = (changes.key(), changes.value());
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
            damage: None,
            _writers: vec![compaction.base, compaction.delta],
            _structure: None,
            _maintenance: Some(maintenance),
            _checkpoint: None,
        })
    }
}
