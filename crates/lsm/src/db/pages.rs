//! Families that are kept in pages (decision 0044): their trees, and what readers see of them.
//!
//! A flush writes a memtable of such a family to its tree. The write counts once the edit of the
//! manifest is durable that records it, together with the tables of all other families. Until then,
//! the next open drops it. So a flush is one step for all families, as a flush to tables is.

use super::families::FamilyEntry;
use super::page_changes::{FlushedChanges, PageChanges};
use super::page_values::{DroppedReferences, FinishedBlobs};
use super::page_versions::{entry_of, found_entry, versions_of};
use crate::options::{CompactionFilter, FamilyOptions, FilterContext, FilterDecision, KeyDecision};
use crate::version::TableStore;
use crate::version::catalog::Catalog;
use basalt_blob::{Name, ReadMode, Reference};
use basalt_env::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use basalt_env::sync::{Mutex, named};
use basalt_env::{Env, JobPriority};
use basalt_fs::{Bytes, Error, ErrorKind, Reach, Result};
use basalt_kv::entry::{FoundEntry, expiry_of};
use basalt_kv::key::{Cmp, Kind, SeqNo};
use basalt_kv::merge::Merging;
use basalt_tree::{
    EntryDecision, EntryFilter, PageTree, SortedEntries, TreeCheck, TreeOptions, TreeSnapshot,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory of all trees of a store.
pub(crate) const PAGES_DIR: &str = "pages";

/// Writers are slowed when the leaves and index pages that are due for a compaction have more
/// bytes of delta pages than this number plus the bytes of the tree's base pages. Trees of tests
/// under the scheduler are small, and also have helpers.
const LEAST_DELTA_BYTES: u64 = if cfg!(feature = "schedules") {
    256
} else {
    256 << 20
};

/// The debt in thousandths that begins a further helper: a job that compacts a tree while another
/// job maintains it. Writers are slowed at 1000. With a smaller number, leaves would be compacted
/// earlier and written more often.
const DEBT_PER_HELPER: u64 = 500;

/// Most helpers of a tree at the same time, if the store has background threads for them.
const MOST_HELPERS: usize = 2;

/// Reads between two requests for merges that have not begun.
const READS_BETWEEN_ASKS: u64 = 256;

/// The tree of a family.
pub(crate) struct FamilyPages {
    /// What the store's files share: its jobs among them.
    tables: Arc<TableStore>,
    /// The family's name, which the notes of writes have.
    family: Box<str>,
    dir: PathBuf,
    tree: PageTree,
    dropped_references: Arc<DroppedReferences>,
    /// The blob files that the last flush refers to, until its edit is durable. A flush that is
    /// tried again finds its entries in the tree, and must record the same files.
    unrecorded_blobs: Mutex<FinishedBlobs>,
    /// True once a precondition has named the family: flushes keep their changes from then on.
    keeps_changes: AtomicBool,
    /// True while the tree may have entries of an ingestion whose edit is not durable.
    is_in_doubt: AtomicBool,
    /// True while a job maintains the tree.
    maintaining: AtomicBool,
    /// Number of jobs that compact the tree while another one maintains it.
    helpers: AtomicUsize,
    /// True if a helper has failed since maintenance last began.
    has_failed_helper: AtomicBool,
    /// True if a failure was reported since maintenance last began.
    is_reported: AtomicBool,
    /// Reads that found merges owed to readers, since maintenance last ended.
    owed_reads: AtomicU64,
    /// True if the tree was written since it was last maintained.
    was_written: AtomicBool,
    /// The debt when it was last computed, in thousandths.
    debt_permille: AtomicU64,
    /// True if maintenance has failed.
    has_failed: AtomicBool,
    /// True once the family is dropped: the last one to use the tree removes it.
    dropped: AtomicBool,
    /// True once the directory may belong to another store.
    left: AtomicBool,
}

/// What readers see of a family's tree.
#[derive(Clone)]
pub(crate) struct PageView {
    pub pages: Arc<FamilyPages>,
    pub snapshot: TreeSnapshot,
    /// No entry in the tree has a higher sequence number.
    pub flushed: SeqNo,
    /// The changes of the last flushes.
    pub changes: PageChanges,
    /// The debt of compactions, a ratio ([`PageTree::debt`]): bytes that compactions are behind
    /// for each byte that they may be. Writers are slowed above 1, and wait from 2 on. If the debt
    /// is not 0, maintenance is due.
    pub debt: f64,
}

/// The trees of a view, by family.
pub(crate) type PageViews = Arc<BTreeMap<u32, PageView>>;

/// Drops expired values, and asks the compaction filter of a family about the others.
struct FamilyFilter {
    tables: Arc<TableStore>,
    id: u32,
    family: Arc<str>,
    filter: Option<Arc<dyn CompactionFilter>>,
    merging: Merging,
}

impl EntryFilter for FamilyFilter {
    fn decide(&self, key: &[u8], kind: Kind, value: &[u8]) -> EntryDecision {
        if kind == Kind::Put && self.filter.is_none() {
            return EntryDecision::Keep;
        }
        let now_ms = self.tables.env().clock().wall_ms();
        let expiry = match kind {
            Kind::PutTtl => match expiry_of(value) {
                Ok(at) if at <= now_ms => return EntryDecision::Remove,
                Ok(_) => 8,
                // A reader reports it.
                Err(_) => return EntryDecision::Keep,
            },
            Kind::Put => 0,
            Kind::Merge => return self.decide_list(key, value, now_ms),
            Kind::BlobRef => return self.decide_reference(key, value, now_ms),
            _ => return EntryDecision::Keep,
        };
        self.ask(key, kind, value, expiry, now_ms)
    }
}

impl FamilyFilter {
    /// Asks the compaction filter about a value, which follows an expiry of `expiry` bytes.
    fn ask(
        &self,
        key: &[u8],
        kind: Kind,
        value: &[u8],
        expiry: usize,
        now_ms: u64,
    ) -> EntryDecision {
        let Some(filter) = &self.filter else {
            return EntryDecision::Keep;
        };
        match filter.filter(&self.context(now_ms), key, &value[expiry..]) {
            FilterDecision::Keep => EntryDecision::Keep,
            FilterDecision::Remove => EntryDecision::Remove,
            FilterDecision::Change(new) => {
                let mut changed = value[..expiry].to_vec();
                changed.extend_from_slice(&new);
                EntryDecision::Change(kind, changed)
            }
        }
    }

    fn context(&self, now_ms: u64) -> FilterContext<'_> {
        FilterContext {
            family: &self.family,
            level: 0,
            seq: 0,
            now_ms,
        }
    }

    /// Drops an expired reference. Reads the value of another one if there is a compaction filter.
    /// A value that the filter changes is in the page from then on.
    fn decide_reference(&self, key: &[u8], value: &[u8], now_ms: u64) -> EntryDecision {
        // A reader reports what is wrong.
        let Ok(to) = Reference::decode(value) else {
            return EntryDecision::Keep;
        };
        if to.is_over(now_ms) {
            return EntryDecision::Remove;
        }
        let Some(filter) = &self.filter else {
            return EntryDecision::Keep;
        };
        match filter.filter_key(&self.context(now_ms), key) {
            Some(KeyDecision::Keep) => return EntryDecision::Keep,
            Some(KeyDecision::Remove) => return EntryDecision::Remove,
            None => {}
        }
        let name = Name {
            family: self.id,
            key,
            seq: 0,
        };
        // The blob files of a flush are not there before its edit. A later compaction asks again.
        let read = self.tables.newest_blobs().map(|blobs| {
            let (kind, payload) = blobs.read(&name, &to, &Cmp::Bytewise, ReadMode::job(false))?;
            let expiry = to.expire_at_ms.map_or(0, |_| 8);
            if payload.len() < expiry {
                expiry_of(&payload)?;
            }
            Ok::<_, Error>(self.ask(key, kind, &payload, expiry, now_ms))
        });
        match read {
            Some(Ok(decision)) => decision,
            Some(Err(_)) | None => EntryDecision::Keep,
        }
    }

    /// Merges operands once the value below them has expired.
    fn decide_list(&self, key: &[u8], value: &[u8], now_ms: u64) -> EntryDecision {
        let list = (Kind::Merge, Bytes::copy_from_slice(value));
        let merged =
            versions_of(list).and_then(|versions| entry_of(versions, &self.merging, key, now_ms));
        match merged {
            Ok((kind, merged)) if merged[..] != *value => {
                EntryDecision::Change(kind, merged.to_vec())
            }
            // A reader reports what is wrong.
            Ok(_) | Err(_) => EntryDecision::Keep,
        }
    }
}

/// Returns the directory of a family's tree with a number.
pub(crate) fn tree_dir(dir: &Path, family: u32, tree: u32) -> PathBuf {
    dir.join(PAGES_DIR).join(tree_name(family, tree))
}

/// Returns the name of the directory of a family's tree with a number.
pub(crate) fn tree_name(family: u32, tree: u32) -> String {
    match tree {
        0 => family.to_string(),
        _ => format!("{family}.{tree}"),
    }
}

/// End of the name of a tree that a repair has not finished.
const UNFINISHED: &str = ".unfinished";

/// Returns the name of the directory of a tree that a repair writes.
pub(crate) fn unfinished_name(family: u32, tree: u32) -> String {
    tree_name(family, tree) + UNFINISHED
}

/// Returns the family and the number of the tree whose directory has this name.
fn parse_tree_name(name: &str) -> Option<(u32, u32)> {
    let (family, tree) = name.split_once('.').unwrap_or((name, "0"));
    let parsed = (family.parse().ok()?, tree.parse().ok()?);
    (tree_name(parsed.0, parsed.1) == name).then_some(parsed)
}

/// Returns the note of a write: the highest sequence number in it, and the name of the family.
pub(crate) fn note_of(seq: SeqNo, family: &str) -> Vec<u8> {
    [&seq.to_le_bytes(), family.as_bytes()].concat()
}

/// Returns the sequence number of a note; `None` if it is none.
pub(crate) fn seq_of(note: &[u8]) -> Option<SeqNo> {
    Some(SeqNo::from_le_bytes(*note.first_chunk()?))
}

/// Returns the name of the family in a note; `None` if it has none.
pub(crate) fn family_name_of(note: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(note.get(8..)?).ok()?;
    (!name.is_empty()).then_some(name)
}

fn tree_options(
    tables: &Arc<TableStore>,
    id: u32,
    name: &str,
    options: &FamilyOptions,
) -> TreeOptions {
    let filter = FamilyFilter {
        tables: tables.clone(),
        id,
        family: name.into(),
        filter: options.compaction_filter.clone(),
        merging: Merging::new(name.into(), options.merge_operator.clone()),
    };
    let options = options.pages.clone().unwrap_or_default();
    options.filter(Some(Arc::new(filter)))
}

impl FamilyPages {
    pub fn new(
        tables: &Arc<TableStore>,
        family: &str,
        dir: PathBuf,
        tree: PageTree,
    ) -> Arc<FamilyPages> {
        let nothing_dropped = DroppedReferences::new(tables.env().ledger());
        FamilyPages::observed(tables, family, dir, tree, Arc::new(nothing_dropped))
    }

    /// Returns the tree of a family that reports its dropped references to `dropped_references`.
    fn observed(
        tables: &Arc<TableStore>,
        family: &str,
        dir: PathBuf,
        tree: PageTree,
        dropped_references: Arc<DroppedReferences>,
    ) -> Arc<FamilyPages> {
        Arc::new(FamilyPages {
            tables: tables.clone(),
            dropped_references,
            unrecorded_blobs: named("FamilyPages::unrecorded_blobs", Mutex::default()),
            keeps_changes: AtomicBool::new(false),
            is_in_doubt: AtomicBool::new(false),
            debt_permille: AtomicU64::new(0),
            family: family.into(),
            dir,
            tree,
            maintaining: AtomicBool::new(false),
            helpers: AtomicUsize::new(0),
            has_failed_helper: AtomicBool::new(false),
            is_reported: AtomicBool::new(false),
            owed_reads: AtomicU64::new(0),
            was_written: AtomicBool::new(true),
            has_failed: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            left: AtomicBool::new(false),
        })
    }

    pub fn tree(&self) -> &PageTree {
        &self.tree
    }

    /// Returns the references that the tree has dropped.
    pub fn dropped_references(&self) -> &DroppedReferences {
        &self.dropped_references
    }

    /// Returns true if the last write was that of entries up to `seq`.
    pub fn has_written(&self, seq: SeqNo) -> bool {
        seq_of(&self.tree.note()) == Some(seq)
    }

    /// Notes the blob files that the last write refers to. They stay until
    /// [`FamilyPages::note_recorded`].
    pub fn note_blobs(&self, blobs: FinishedBlobs) {
        *self.unrecorded_blobs.lock() = blobs;
    }

    /// Returns the blob files of the last write that no durable edit has.
    pub fn unrecorded_blobs(&self) -> FinishedBlobs {
        self.unrecorded_blobs.lock().clone()
    }

    /// Notes that the edit is durable that records the last write.
    pub fn note_recorded(&self) {
        self.unrecorded_blobs.lock().clear();
        self.tree.confirm();
        if !self.dropped_references.is_empty() {
            self.note_written();
        }
    }

    /// Writes the entries of a memtable. `seq` is the highest sequence number up to which the tree
    /// has all entries then. Writes nothing if an earlier attempt has written them.
    pub fn write(&self, entries: &mut dyn SortedEntries, seq: SeqNo) -> Result<()> {
        let note = note_of(seq, &self.family);
        if !self.has_written(seq) {
            self.tree.restart()?;
            if let Err(e) = self.tree.write_unconfirmed(entries, note) {
                // What was written would keep its space. If it cannot be given back now, the next
                // failure or maintenance does it.
                let _ = self.tree.reclaim();
                return Err(e);
            }
            self.compute_debt();
        }
        self.note_written();
        Ok(())
    }

    /// Marks the tree before an ingestion writes to it. The mark stays if the ingestion fails.
    /// [`FamilyPages::end_doubt`] removes it after the edit is durable, [`FamilyPages::roll_back`]
    /// after a failure. The next flush may write to the tree only after one of them.
    pub fn note_doubt(&self) {
        self.is_in_doubt.store(true, SeqCst);
    }

    /// Returns true while the tree may have entries of an ingestion whose edit is not durable.
    pub fn is_in_doubt(&self) -> bool {
        self.is_in_doubt.load(SeqCst)
    }

    /// Notes that the ingestion counts.
    pub fn end_doubt(&self) {
        self.is_in_doubt.store(false, SeqCst);
    }

    /// Drops the entries of an ingestion that has failed: those above `flushed`. A durable manifest
    /// says that they do not count.
    pub fn roll_back(&self, flushed: SeqNo) -> Result<()> {
        let keep = |note: &[u8]| seq_of(note).is_some_and(|seq| seq <= flushed);
        self.tree.restart()?;
        self.tree.roll_back(&keep)?;
        self.is_in_doubt.store(false, SeqCst);
        // What was written would keep its space. If it cannot be given back now, the next failure
        // or maintenance does it.
        let _ = self.tree.reclaim();
        Ok(())
    }

    /// Lets flushes keep their changes from now on.
    pub fn keep_changes(&self) {
        self.keeps_changes.store(true, SeqCst);
    }

    /// Returns true if flushes keep their changes.
    pub fn keeps_changes(&self) -> bool {
        self.keeps_changes.load(SeqCst)
    }

    /// Computes how far maintenance is behind. The views that are made from now on have the debt.
    pub fn compute_debt(&self) {
        let debt = self.tree.debt(LEAST_DELTA_BYTES);
        self.debt_permille.store((debt * 1000.0) as u64, SeqCst);
    }

    /// Sets the debt, in thousandths, until it is computed again.
    #[cfg(test)]
    pub fn set_debt(&self, permille: u64) {
        self.debt_permille.store(permille, SeqCst);
    }

    /// Asks the store for merges of leaves if readers have paid for them. The first read asks, and
    /// then each [`READS_BETWEEN_ASKS`]th: the store may not begin the merges now.
    pub fn note_reads(&self) {
        if self.owes_readers() {
            let before = self.owed_reads.fetch_add(1, Relaxed);
            if before.is_multiple_of(READS_BETWEEN_ASKS) {
                self.tables.note_extra_reads();
            }
        }
    }

    /// Returns true if readers have paid for merges of leaves (decision 0017), and no maintenance
    /// runs.
    pub fn owes_readers(&self) -> bool {
        self.tree.owes_readers() && !self.maintaining.load(SeqCst)
    }

    /// Begins merges for readers. Returns false if maintenance runs.
    pub fn begin_merges(&self) -> bool {
        let begins = self.tree.owes_readers() && !self.maintaining.swap(true, SeqCst);
        if begins {
            self.is_reported.store(false, SeqCst);
        }
        begins
    }

    /// Returns true once the family is dropped.
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(SeqCst)
    }

    /// Notes that the tree was written, so that maintenance may be due.
    pub fn note_written(&self) {
        self.was_written.store(true, SeqCst);
    }

    /// Begins maintenance. Returns false if it runs, or if the tree was not written since.
    pub fn begin_maintenance(&self) -> bool {
        if !self.was_written.load(SeqCst) || self.maintaining.swap(true, SeqCst) {
            return false;
        }
        self.was_written.store(false, SeqCst);
        self.is_reported.store(false, SeqCst);
        if self.has_failed_helper.swap(false, SeqCst) {
            self.has_failed.store(true, SeqCst);
        }
        true
    }

    /// Begins a helper. Returns false if no job maintains the tree, if its debt wants no further
    /// helper, or if `max_helpers` helpers run.
    pub fn begin_help(&self, max_helpers: usize) -> bool {
        let wanted = self.wanted_helpers().min(max_helpers);
        let more = |helpers: usize| (helpers < wanted).then_some(helpers + 1);
        self.maintaining.load(SeqCst) && self.helpers.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    fn wanted_helpers(&self) -> usize {
        let wanted = (self.debt_permille.load(SeqCst) / DEBT_PER_HELPER) as usize;
        wanted.min(MOST_HELPERS)
    }

    /// Returns false if more helpers run than the debt wants.
    pub fn helpers_are_wanted(&self) -> bool {
        self.helpers.load(SeqCst) <= self.wanted_helpers()
    }

    /// Notes that a helper has failed. The next maintenance gives back what it has written.
    pub fn note_failed_helper(&self) {
        self.has_failed_helper.store(true, SeqCst);
    }

    /// Returns true if a failure of maintenance or a helper is the first one since maintenance last
    /// began.
    pub fn begin_report(&self) -> bool {
        !self.is_reported.swap(true, SeqCst)
    }

    /// Ends a helper.
    pub fn end_help(&self) {
        self.helpers.fetch_sub(1, SeqCst);
    }

    /// Ends maintenance. If it is not done, it is tried again.
    pub fn end_maintenance(&self, has_failed: bool, is_done: bool) {
        if has_failed || !is_done {
            self.was_written.store(true, SeqCst);
        }
        self.has_failed.store(has_failed, SeqCst);
        self.maintaining.store(false, SeqCst);
        self.owed_reads.store(0, Relaxed);
    }

    /// Returns true if maintenance has failed, and was not tried again since.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(SeqCst) || self.has_failed_helper.load(SeqCst)
    }

    /// Returns true while maintenance runs.
    pub fn is_maintained(&self) -> bool {
        self.maintaining.load(SeqCst) || self.helpers.load(SeqCst) > 0
    }

    /// Returns true while maintenance runs or is due.
    pub fn is_busy(&self) -> bool {
        self.is_maintained() || self.was_written.load(SeqCst)
    }

    /// Notes that the family is dropped, durably.
    pub fn note_dropped(&self) {
        self.dropped.store(true, SeqCst);
    }

    /// Gives the directory back. With `whole`, takes a system checkpoint before.
    pub fn leave(&self, whole: bool) -> Result<()> {
        self.left.store(true, SeqCst);
        match whole {
            true => self.tree.close(),
            false => self.tree.abandon(),
        }
    }
}

impl Drop for FamilyPages {
    fn drop(&mut self) {
        if self.dropped.load(SeqCst) && !self.left.load(SeqCst) {
            // As a job: the last one to let go may hold any lock of the store.
            let (env, tree) = (self.tables.env().clone(), self.tree.clone());
            let dir = std::mem::take(&mut self.dir);
            let tables = self.tables.clone();
            let blobs = std::mem::take(&mut *self.unrecorded_blobs.lock());
            self.tables
                .jobs()
                .spawn(JobPriority::Housekeeping, move || {
                    // If a file cannot be removed now, the next open of the store removes it.
                    let _ = tree.abandon();
                    let _ = PageTree::destroy(&env, &dir);
                    // The manifest that has dropped the family names none of these files.
                    for (number, _) in blobs {
                        tables.remove(&tables.blob_path(number));
                    }
                });
        }
    }
}

impl PageView {
    /// Returns the newest content of a tree. The changes up to `flushed` are not known.
    pub fn of(pages: &Arc<FamilyPages>, flushed: SeqNo) -> PageView {
        PageView {
            debt: pages.debt_permille.load(SeqCst) as f64 / 1000.0,
            snapshot: pages.tree.snapshot(),
            pages: pages.clone(),
            flushed,
            changes: PageChanges::unknown(flushed),
        }
    }

    /// Returns the content of the tree after its maintenance.
    pub fn maintained(&self) -> PageView {
        PageView {
            changes: self.changes.clone(),
            ..PageView::of(&self.pages, self.flushed)
        }
    }

    /// Returns the content of the tree after a flush of entries up to `flushed`. `changes` are
    /// those of the flush, if they were kept.
    pub fn after_flush(&self, flushed: SeqNo, changes: Option<FlushedChanges>) -> PageView {
        let mut after = PageView::of(&self.pages, flushed);
        if let Some(changes) = changes {
            after.changes = self.changes.clone();
            after.changes.push(flushed, changes);
        }
        after
    }

    /// Returns the entry of a key, which may be a tombstone.
    pub fn get(&self, key: &[u8], fill_cache: bool) -> Result<Option<(Kind, Bytes)>> {
        let found = self.pages.tree.entry(&self.snapshot, key, fill_cache);
        self.pages.note_reads();
        found
    }

    /// Returns the entry of a key as [`PageView::get`] does, for a flush. A flush is no reader that
    /// pays for merges, and it holds locks of the tree, under which the store must not be asked.
    pub fn entry_for_flush(&self, key: &[u8]) -> Result<Option<(Kind, Bytes)>> {
        (self.pages.tree).entry_for_write(&self.snapshot, key)
    }

    /// Returns the newest version of a key as a reader finds it. Its sequence number is not that
    /// of the write: it is only known to be at most [`PageView::flushed`].
    pub fn found(&self, key: &[u8], fill_cache: bool) -> Result<Option<FoundEntry>> {
        self.get(key, fill_cache)?.map(found_entry).transpose()
    }
}

/// Creates the tree of a new family. A left-over of a family that was never recorded is removed.
pub(crate) fn create(
    tables: &Arc<TableStore>,
    dir: &Path,
    family: u32,
    name: &str,
    options: &FamilyOptions,
) -> Result<PageView> {
    let env = tables.env();
    env.fs().create_dir(&dir.join(PAGES_DIR))?;
    env.fs().sync_metadata(dir)?;
    let dir = tree_dir(dir, family, 0);
    PageTree::destroy(env, &dir)?;
    let dropped = Arc::new(DroppedReferences::new(env.ledger()));
    let tree_options = tree_options(tables, family, name, options);
    let tree_options = match options.min_blob_size {
        Some(_) => tree_options.drop_observer(Some(dropped.clone())),
        None => tree_options,
    };
    let tree = PageTree::open(env, &dir, &tree_options)?;
    let pages = FamilyPages::observed(tables, name, dir, tree, dropped);
    Ok(PageView::of(&pages, 0))
}

/// Opens the trees of all families of a catalog that are kept in pages.
pub(crate) fn open_all(
    tables: &Arc<TableStore>,
    dir: &Path,
    catalog: &Catalog,
    families: &BTreeMap<u32, FamilyEntry>,
    read_only: bool,
) -> Result<BTreeMap<u32, PageView>> {
    let env = tables.env();
    let mut trees = BTreeMap::new();
    for (id, family) in &catalog.families {
        let Some(recorded) = family.pages else {
            continue;
        };
        let dir = tree_dir(dir, *id, family.tree);
        let dropped = Arc::new(DroppedReferences::new(env.ledger()));
        let of_family = &families[id].options;
        let mut options = tree_options(tables, *id, &family.name, of_family);
        options.create_if_missing = false;
        // Without references, a tree has nothing to report.
        let mut blobs = catalog.blobs.values();
        if of_family.min_blob_size.is_some() || blobs.any(|b| b.meta.families.contains_key(id)) {
            options.drop_observer = Some(dropped.clone());
        }
        let keep = |note: &[u8]| seq_of(note).is_some_and(|seq| seq <= recorded);
        let opened = match read_only {
            true => PageTree::open_read_only(env, &dir, &options, &keep),
            false => PageTree::open_keeping(env, &dir, &options, &keep),
        };
        let tree = opened.map_err(|e| match e.kind() {
            ErrorKind::NotFound => missing(&dir),
            _ => e.context(format!("opening the pages of family {:?}", family.name)),
        })?;
        check_is_whole(&dir, &tree.note(), recorded)?;
        let pages = FamilyPages::observed(tables, &family.name, dir, tree, dropped);
        pages.compute_debt();
        trees.insert(*id, PageView::of(&pages, recorded));
    }
    Ok(trees)
}

/// Checks that a tree has all writes that the manifest knows.
fn check_is_whole(dir: &Path, note: &[u8], recorded: SeqNo) -> Result<()> {
    let found = seq_of(note).unwrap_or(0);
    match found == recorded {
        true => Ok(()),
        false => Err(Error::corruption(
            dir,
            0,
            format!(
                "the pages have writes up to sequence number {found}, the manifest says {recorded}: the system log has lost its end"
            ),
        )
        .with_reach(Reach::Store)),
    }
}

fn missing(dir: &Path) -> Error {
    Error::corruption(
        dir,
        0,
        "the manifest says that the family is kept in pages here, and they are missing",
    )
    .with_reach(Reach::Store)
}

/// Removes the trees of a store that is being built.
///
/// Errors: `InvalidArgument` if a file is there that no tree has.
pub(crate) fn remove_all(env: &Env, dir: &Path) -> Result<()> {
    let all = dir.join(PAGES_DIR);
    for entry in env.fs().list(&all)? {
        PageTree::destroy(env, all.join(entry.name))?;
    }
    env.fs().remove(&all)
}

/// Reads and verifies the trees of a catalog. Returns what was found in the tree of each family.
pub(crate) fn check(
    env: &Env,
    dir: &Path,
    catalog: &Catalog,
    families: &BTreeMap<u32, FamilyEntry>,
) -> Result<Vec<(u32, TreeCheck)>> {
    let of_pages = (catalog.families.iter()).filter_map(|(id, f)| Some((id, f, f.pages?)));
    let tables = TableStore::new(env, dir);
    let checked = of_pages.map(|(id, family, recorded)| {
        let options = tree_options(&tables, *id, &family.name, &families[id].options);
        let keep = |note: &[u8]| seq_of(note).is_some_and(|seq| seq <= recorded);
        let dir = tree_dir(dir, *id, family.tree);
        let mut found = PageTree::check(env, &dir, &options, &keep)?;
        if let Some(note) = &found.note {
            found
                .damage
                .extend(check_is_whole(&dir, note, recorded).err());
        }
        Ok((*id, found))
    });
    checked.collect()
}

/// Passes each reference in the tree of a family to `each`, with its key, as the catalog knows the
/// tree. The tree is closed.
pub(crate) fn walk_references(
    env: &Env,
    dir: &Path,
    catalog: &Catalog,
    id: u32,
    each: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<()> {
    let family = &catalog.families[&id];
    let recorded = family.pages.unwrap_or(0);
    let keep = |note: &[u8]| seq_of(note).is_some_and(|seq| seq <= recorded);
    let dir = tree_dir(dir, id, family.tree);
    let tree = PageTree::open_read_only(env, &dir, &TreeOptions::default(), &keep)?;
    let mut walk = || {
        let mut cursor = tree.cursor(&tree.snapshot(), false);
        cursor.seek(b"")?;
        let mut key = Vec::new();
        while cursor.next_entry()? {
            key.clear();
            if let (Kind::BlobRef, value) = cursor.take(&mut key)? {
                each(&key, &value);
            }
        }
        Ok(())
    };
    let walked = walk();
    tree.abandon()?;
    walked
}

/// Returns the families and the numbers of all trees of a store.
///
/// Errors: those of the filesystem. A caller that took one for "no trees" would lose them.
fn trees_of(env: &Env, dir: &Path) -> Result<Vec<(u32, u32)>> {
    let entries = match env.fs().list(&dir.join(PAGES_DIR)) {
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        listed => listed?,
    };
    let names = entries.iter().filter(|e| e.is_dir);
    Ok(names.filter_map(|e| parse_tree_name(&e.name)).collect())
}

/// Returns the families and the numbers of trees that no family of a catalog has: their families
/// were dropped, or never recorded, or a repair has replaced them.
pub(crate) fn unnamed(env: &Env, dir: &Path, catalog: &Catalog) -> Result<Vec<(u32, u32)>> {
    let is_named = |(id, tree): &(u32, u32)| {
        let family = catalog.families.get(id).filter(|f| f.pages.is_some());
        family.is_some_and(|f| f.tree == *tree)
    };
    let mut trees = trees_of(env, dir)?;
    trees.retain(|tree| !is_named(tree));
    Ok(trees)
}

/// Returns the errors of trees that a later version wrote. The call reads all writes of a tree,
/// also those that the manifest does not know. It leaves out the families for which `without` is
/// true.
pub(crate) fn unsupported(
    env: &Env,
    dir: &Path,
    without: impl Fn(u32) -> bool,
) -> Result<Vec<Error>> {
    let options = TreeOptions::default();
    let trees = trees_of(env, dir)?.into_iter();
    let errors = trees.filter(|(id, _)| !without(*id));
    let errors = errors.filter_map(|(id, tree)| {
        let dir = tree_dir(dir, id, tree);
        let opened = PageTree::open_read_only(env, dir, &options, &|_| true);
        opened.and_then(|tree| tree.abandon()).err()
    });
    Ok(errors
        .filter(|e| e.kind() == ErrorKind::Unsupported)
        .collect())
}

/// Returns a number that no tree of a family has.
pub(crate) fn unused_tree(env: &Env, dir: &Path, family: u32) -> Result<u32> {
    let trees = trees_of(env, dir)?.into_iter();
    let of_family = trees.filter(|(id, _)| *id == family);
    Ok(of_family.map(|(_, tree)| tree).max().unwrap_or(0) + 1)
}

/// Refuses a store with a tree that was written, and whose family the manifest never knew: it has
/// lost its last edits. Families from `next_family` on are unknown.
pub(crate) fn check_unnamed(
    env: &Env,
    dir: &Path,
    catalog: &Catalog,
    next_family: u32,
) -> Result<()> {
    for (id, tree) in unnamed(env, dir, catalog)? {
        if id < next_family {
            continue;
        }
        let path = tree_dir(dir, id, tree);
        if PageTree::was_written(env, &path)? {
            let what = format!(
                "pages of family {id} were written, and the manifest knows no family from {next_family} on: it has lost its last edits"
            );
            return Err(Error::corruption(&path, 0, what).with_reach(Reach::Store));
        }
    }
    Ok(())
}

/// Returns the path of a tree that was written, in the directory of a store without a manifest.
pub(crate) fn any_written(env: &Env, dir: &Path) -> Result<Option<PathBuf>> {
    // A file of another program may have the name.
    let entries = env.fs().list(dir)?;
    if !entries.iter().any(|e| e.is_dir && e.name == PAGES_DIR) {
        return Ok(None);
    }
    for (id, tree) in trees_of(env, dir)? {
        if PageTree::was_written(env, tree_dir(dir, id, tree))? {
            return Ok(Some(Path::new(PAGES_DIR).join(tree_name(id, tree))));
        }
    }
    Ok(None)
}

/// Removes the trees that no family of a catalog has.
pub(crate) fn remove_unnamed(env: &Env, dir: &Path, catalog: &Catalog) {
    // Garbage stays until the next open if it cannot be listed.
    for (id, tree) in unnamed(env, dir, catalog).unwrap_or_default() {
        // If the removal fails, the next open tries again.
        let _ = PageTree::destroy(env, tree_dir(dir, id, tree));
    }
    let all = dir.join(PAGES_DIR);
    for entry in env.fs().list(&all).unwrap_or_default() {
        if entry.is_dir && entry.name.ends_with(UNFINISHED) {
            let _ = PageTree::destroy(env, all.join(entry.name));
        }
    }
}
