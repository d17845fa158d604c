//! [`PageTree`]: the storage tier of the tree engine, for programs that collect changes themselves.

use crate::cursor::{KindAndValue, TreeCursor};
use crate::entries::{Change, CheckedChanges, SortedEntries, is_delete};
use crate::explain::PageExplanation;
use crate::inspect::{InspectedExtent, InspectedNode, PageCounts};
use crate::options::TreeOptions;
use crate::page_reads::PartReads;
use crate::recovery::CURRENT;
use crate::salvage::{TreeSalvage, has_entries};
use crate::stats::PageTreeStats;
use crate::storage::{BASE, DELTA, LOGS, Storage, View};
use crate::usage::StreamKind;
use basalt_env::Env;
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::key::Kind;
use basalt_log::{LogCopy, LogEngine, LogEngineOptions};
use basalt_stream::Stream;
use std::path::Path;
use std::sync::Arc;

/// The newest entry of a key, if the tree has one.
pub type FoundEntry = Option<(Kind, Bytes)>;

/// A tree of pages on two append-only streams, without a memory tier: each write is a user
/// checkpoint (ArkDB, section 3).
///
/// A write is atomic. When [`PageTree::write`] returns `Ok`, it is durable. After an error, the
/// next open may still find it, unless a later write succeeded. A write costs two syncs, of the
/// delta stream and of the log, so it should be large: tens of megabytes. Reads,
/// [`PageTree::maintain`] and other writes go on beside a write.
#[derive(Clone)]
pub struct PageTree {
    pub(crate) storage: Arc<Storage>,
}

/// The content of a tree at a moment. Pages that it needs stay while it lives.
#[derive(Clone)]
pub struct TreeSnapshot {
    view: Arc<View>,
}

impl PageTree {
    /// Opens the tree in a directory, or creates one. Reads the last system checkpoint and the
    /// system log, and no page.
    ///
    /// Errors: `Busy` if another process has it open; `NotFound` if there is none and the options
    /// do not allow to create one; `InvalidArgument` for options outside their ranges; `Corruption`
    /// names what is damaged; `Unsupported` names the features of a tree that a later version
    /// wrote.
    pub fn open(env: &Env, path: impl AsRef<Path>, options: &TreeOptions) -> Result<PageTree> {
        PageTree::open_keeping(env, path, options, &|_| true)
    }

    /// Opens the tree as [`PageTree::open`] does. From the first write on whose note `keep`
    /// refuses, everything is dropped: the memory tier has no record that the write took effect.
    ///
    /// Errors: those of [`PageTree::open`]; `Corruption` if the tree needs a write that `keep`
    /// refuses, because it was confirmed.
    pub fn open_keeping(
        env: &Env,
        path: impl AsRef<Path>,
        options: &TreeOptions,
        keep: &dyn Fn(&[u8]) -> bool,
    ) -> Result<PageTree> {
        let path = path.as_ref();
        let logs = path.join(LOGS);
        if options.create_if_missing
            && !env.fs().exists(&logs.join(CURRENT))?
            && has_entries(env, path)?
        {
            // To create a tree here would make garbage of all pages.
            let what = "the logs of the tree are missing, and its pages have entries";
            return Err(Error::corruption(&logs, 0, what));
        }
        let storage = Storage::open_keeping(env, path, options, keep)?;
        Ok(PageTree {
            storage: Arc::new(storage),
        })
    }

    /// Opens the tree for reading, as [`PageTree::open_keeping`] would show it. Nothing is written,
    /// and other readers may have it open. The caller must not call methods that change the tree.
    ///
    /// Errors: `NotFound` if there is no tree; those of [`PageTree::open_keeping`].
    pub fn open_read_only(
        env: &Env,
        path: impl AsRef<Path>,
        options: &TreeOptions,
        keep: &dyn Fn(&[u8]) -> bool,
    ) -> Result<PageTree> {
        let storage = Storage::open_read_only(env, path.as_ref(), options, keep)?;
        Ok(PageTree {
            storage: Arc::new(storage),
        })
    }

    /// Removes a tree, which must not be open. A call that a crash interrupts leaves no tree; the
    /// next call removes the rest.
    ///
    /// Errors: `InvalidArgument` if a file is in the directory that no tree has.
    pub fn destroy(env: &Env, path: impl AsRef<Path>) -> Result<()> {
        let (fs, dir) = (env.fs(), path.as_ref());
        if !fs.exists(dir)? {
            return Ok(());
        }
        let logs = dir.join(LOGS);
        if fs.exists(&logs)? {
            LogEngine::remove_unfinished_copy(env, &logs)?;
        }
        for stream in [BASE, DELTA] {
            let stream = dir.join(stream);
            if fs.exists(&stream)? {
                Stream::destroy(env, &stream)?;
                fs.remove(&stream)?;
            }
        }
        fs.remove(dir)
    }

    /// Returns true if something was written to a closed tree: it has a note, or it cannot be
    /// opened, and has an extent of delta pages or a page with entries. A tree that is being
    /// created has none of these.
    ///
    /// Cost: reads the logs. If they are damaged, and there are no delta pages, reads all pages.
    ///
    /// Errors: `Busy`, `Unsupported`, and those of the filesystem.
    pub fn was_written(env: &Env, path: impl AsRef<Path>) -> Result<bool> {
        let path = path.as_ref();
        match PageTree::open_read_only(env, path, &TreeOptions::default(), &|_| true) {
            Ok(tree) => {
                let has_note = !tree.note().is_empty();
                tree.abandon().map(|()| has_note)
            }
            Err(e) if e.is_not_found() || e.is_corruption() => {
                let deltas = match Stream::extent_files(env, path.join(DELTA)) {
                    Err(e) if e.is_not_found() => Vec::new(),
                    deltas => deltas?,
                };
                if !deltas.is_empty() {
                    return Ok(true);
                }
                has_entries(env, path)
            }
            Err(e) => Err(e),
        }
    }

    /// Reads and verifies every byte of a closed tree that has a meaning. Returns the bytes of its
    /// files, its note, and the damage. Nothing is changed.
    ///
    /// Errors: `Busy` if a process has the tree open to change it; `Io`.
    pub fn check(
        env: &Env,
        path: impl AsRef<Path>,
        options: &TreeOptions,
        keep: &dyn Fn(&[u8]) -> bool,
    ) -> Result<TreeCheck> {
        let path = path.as_ref();
        let (mut files, mut bytes, mut note) = (0, 0, None);
        let mut damage = Vec::new();
        let log_options = LogEngineOptions::default();
        let logs = path.join(LOGS);
        let mut progress = |_, total| bytes = total;
        match LogEngine::check(env, &logs, &log_options, &mut progress) {
            Ok(found) => (files, damage) = (found.files, found.damage),
            Err(e) if e.is_not_found() => {
                damage.push(Error::corruption(
                    &logs,
                    0,
                    "the logs of the tree are missing",
                ));
            }
            Err(e) if e.is_damage() => damage.push(e),
            Err(e) => return Err(e),
        }
        let tree = PageTree::open_read_only(env, path, options, keep);
        let mut counts = PageCounts::default();
        let verified = tree.and_then(|tree| {
            let extents = tree.storage.inspect_extents();
            files += extents.iter().filter(|extent| extent.bytes > 0).count() as u64;
            bytes += tree.stats().extent_bytes();
            note = Some(tree.note());
            let survey = tree.storage.survey();
            counts = survey.counts;
            tree.abandon().map(|()| survey.damage)
        });
        match verified {
            Ok(of_pages) => {
                // A device that fails is no damage.
                if let Some(failed) = of_pages.iter().find(|e| !e.is_damage()) {
                    return Err(failed.clone());
                }
                damage.extend(of_pages);
            }
            // The log engine has reported it. But it does not know what a later version has
            // written.
            Err(e) if e.is_damage() && !damage.is_empty() && e.kind() != ErrorKind::Unsupported => {
            }
            Err(e) if e.is_damage() => damage.push(e),
            Err(e) => return Err(e),
        }
        Ok(TreeCheck {
            files,
            bytes,
            note,
            damage,
            counts,
        })
    }

    /// Reads every page of a damaged tree that is closed, to write what can be read to another
    /// tree. `keep` is that of [`PageTree::open_keeping`]. Nothing is changed.
    ///
    /// Cost: reads all pages here, those of damaged subtrees twice, and once more in
    /// [`PageTree::write_salvaged`]. Memory holds the first key of each page, and without logs also
    /// the last key of each leaf.
    ///
    /// Errors: `Busy` if a process has the tree open to change it; `Unsupported` if a later version
    /// wrote it; those of the filesystem.
    pub fn salvage(
        env: &Env,
        path: impl AsRef<Path>,
        options: &TreeOptions,
        keep: &dyn Fn(&[u8]) -> bool,
    ) -> Result<TreeSalvage> {
        TreeSalvage::open(env, path.as_ref(), options, keep)
    }

    /// Writes what could be read of a damaged tree to this one, which must be new, as one write
    /// with a note. Returns the number of entries.
    ///
    /// Errors: those of reading, if a page cannot be read any more, and of writing.
    pub fn write_salvaged(&self, salvage: TreeSalvage, note: Vec<u8>) -> Result<u64> {
        salvage.write_to(&self.storage, note)
    }

    /// Writes changes, all or none of them. Their keys must rise strictly.
    ///
    /// Errors: `InvalidArgument` for keys that do not rise, or that are longer than 64 KiB, and for
    /// values above 1 GiB; those of the filesystem. After an error nothing has changed, but it is
    /// unknown whether the next open finds the changes, unless a later write succeeds.
    pub fn write<'a>(&self, changes: impl IntoIterator<Item = Change<'a>>) -> Result<()> {
        let mut checked = CheckedChanges::new(changes.into_iter());
        let prepared = self.storage.prepare_user_checkpoint(&mut checked, None)?;
        self.storage.commit_prepared(&prepared).map(|_| ())
    }

    /// Writes entries as [`PageTree::write`] does, for a memory tier whose own record decides
    /// whether they count. Readers see them at once. If the process ends before
    /// [`PageTree::confirm`], the next open asks about `note` ([`PageTree::open_keeping`]). Until
    /// then the pages of the content before stay. Several writes may wait for one confirmation if
    /// one record decides about all of them: pages of a content between them may be erased.
    pub fn write_unconfirmed(&self, entries: &mut dyn SortedEntries, note: Vec<u8>) -> Result<()> {
        let prepared = (self.storage).prepare_user_checkpoint(entries, Some(note))?;
        self.storage.commit_unconfirmed(&prepared).map(|_| ())
    }

    /// Lets writes go on after a sync has failed. What was written and not committed is lost, so no
    /// write may run. Waits for maintenance.
    ///
    /// Errors: those of the filesystem; then the call may be repeated.
    pub fn restart(&self) -> Result<()> {
        self.storage.restart()
    }

    /// Restores the content before the first unconfirmed write, whose note `keep` refuses. The
    /// memory tier has recorded durably that this write does not count. No write may run, and no
    /// snapshot may be newer than the restored content. Waits for maintenance, and reads the system
    /// log.
    ///
    /// Errors: those of the filesystem; then the call may be repeated.
    pub fn roll_back(&self, keep: &dyn Fn(&[u8]) -> bool) -> Result<()> {
        self.storage.roll_back(keep)
    }

    /// Notes that the record of the memory tier is durable for all writes so far.
    pub fn confirm(&self) {
        self.storage.confirm();
    }

    /// Returns true if a write is not confirmed.
    pub fn has_unconfirmed(&self) -> bool {
        self.storage.has_unconfirmed()
    }

    /// Returns the note of the last write that had one; empty if none had.
    pub fn note(&self) -> Vec<u8> {
        self.storage.note()
    }

    /// Returns the content of this moment.
    pub fn snapshot(&self) -> TreeSnapshot {
        TreeSnapshot {
            view: self.storage.view(),
        }
    }

    /// Returns the value of a key; `None` if the tree does not have it.
    ///
    /// Errors: those of the filesystem, and `Corruption`, which names the extent and the offset of
    /// the page.
    ///
    /// Cost: what the cache does not have is read. These are the index pages above the leaf, the
    /// heads of the delta pages and of the base page of the leaf, as one batch, and one block of
    /// each page up to the one that has the key. The filters of delta pages spare most blocks
    /// without the key. Reads of delta pages from the device pay for a merge of the leaf (decision
    /// 0017).
    pub fn get(&self, snapshot: &TreeSnapshot, key: &[u8]) -> Result<Option<Bytes>> {
        let found = self.storage.get(&snapshot.view, key, true)?;
        Ok(found.and_then(|(kind, value)| (!is_delete(kind)).then_some(value)))
    }

    /// Returns the newest entry of a key, which may be a deletion. If `fill_cache` is false, pages
    /// that are read stay out of the cache, but for index pages, and the reads pay for no merge.
    ///
    /// Errors: those of [`PageTree::get`], and `Unsupported` for a kind of entry that a later
    /// version wrote. The cost is that of [`PageTree::get`].
    pub fn entry(
        &self,
        snapshot: &TreeSnapshot,
        key: &[u8],
        fill_cache: bool,
    ) -> Result<FoundEntry> {
        found_entry(self.storage.get(&snapshot.view, key, fill_cache)?)
    }

    /// Returns the newest entry of a key as [`PageTree::entry`] does, for a write that needs it.
    /// Its reads fill the cache, and do not count as those of readers, who pay for merges of
    /// leaves.
    pub fn entry_for_write(&self, snapshot: &TreeSnapshot, key: &[u8]) -> Result<FoundEntry> {
        let reads = PartReads::paid(&self.storage, true, false);
        found_entry(self.storage.get_by(&snapshot.view, key, reads)?)
    }

    /// Returns the newest entries of many keys, in the order of `keys`. `admit` is asked for the
    /// bytes of heads and blocks before they are read, and of values that are in the cache. A key
    /// that it refuses has no answer (`None`), and the caller may ask again.
    ///
    /// Errors: those of [`PageTree::entry`], for each key apart. An error of one key leaves the
    /// answers of the others as they are.
    ///
    /// Cost: that of [`PageTree::entry`] for each key, but the reads of all keys are made
    /// together: one batch for the heads that are not in the cache, and one batch for each round
    /// of blocks. Index pages that are not in the cache are read one by one. The reads pay for no
    /// merge.
    pub fn entries(
        &self,
        snapshot: &TreeSnapshot,
        keys: &[&[u8]],
        fill_cache: bool,
        admit: &mut dyn FnMut(usize) -> bool,
    ) -> Vec<Option<Result<FoundEntry>>> {
        let found = (self.storage).get_many(&snapshot.view, keys, fill_cache, admit);
        let of_key = |found: Result<KindAndValue>| found.and_then(found_entry);
        found.into_iter().map(|found| found.map(of_key)).collect()
    }

    /// Returns the keys from `from` on and their values, in rising order.
    ///
    /// Errors: those of [`PageTree::get`], of the first leaf. Later ones are items of the
    /// iterator, and end it.
    pub fn iter(&self, snapshot: &TreeSnapshot, from: &[u8]) -> Result<TreeIter> {
        let cursor = TreeCursor::at(self.storage.clone(), snapshot.view.clone(), from, true)?;
        Ok(TreeIter {
            cursor,
            forward: true,
            ended: false,
        })
    }

    /// Returns the keys below `to` and their values, in falling order.
    ///
    /// Errors: those of [`PageTree::iter`].
    pub fn iter_back(&self, snapshot: &TreeSnapshot, to: &[u8]) -> Result<TreeIter> {
        Ok(TreeIter {
            forward: false,
            ..self.iter(snapshot, to)?
        })
    }

    /// Returns a cursor over all entries, deletions included. It is not positioned. Without
    /// `fill_cache`, nothing that it reads goes into the cache, but for index pages, and its reads
    /// do not pay for merges. A long scan puts little into a cache that is full.
    pub fn cursor(&self, snapshot: &TreeSnapshot, fill_cache: bool) -> EntryCursor {
        EntryCursor {
            storage: self.storage.clone(),
            view: snapshot.view.clone(),
            fill_cache,
            cursor: None,
        }
    }

    /// Begins a copy of the tree as of this moment. The copy is written beside changes of the tree.
    ///
    /// Errors: those of [`LogEngine::begin_copy`].
    pub fn begin_copy(&self) -> Result<TreeCopy> {
        let (views, log) = self.storage.begin_copy()?;
        Ok(TreeCopy {
            storage: self.storage.clone(),
            log,
            _views: views,
        })
    }

    /// Compacts what is due, merges leaves without recent changes within a budget
    /// ([`TreeOptions::cold_merge_ratio`]), collects garbage, keeps the page mapping table and the
    /// valid ranges of extents within their limits, erases extents that no snapshot needs, and
    /// takes a system checkpoint if the system log is long. Writes and reads go on beside it.
    ///
    /// Errors: those of the filesystem, and `Corruption`; what was done before stays done.
    pub fn maintain(&self) -> Result<()> {
        self.maintain_while(&|| true)
    }

    /// Does the same as [`PageTree::maintain`], and ends soon after `goes_on` returns false.
    pub fn maintain_while(&self, goes_on: &dyn Fn() -> bool) -> Result<()> {
        // On a full disk, the other steps may need the space that the erasure gives back.
        let erased = self.storage.erase_dead().map(|_| ());
        let compacted = self.storage.compact(goes_on).map(|_| ());
        let compacted = compacted.and_then(|()| self.storage.merge_cold(goes_on));
        let collected = self.storage.collect_garbage(goes_on).map(|_| ());
        let limited = self.storage.limit_mapping(goes_on);
        if !goes_on() {
            return erased.and(compacted).and(limited).and(collected);
        }
        let checkpointed = match self.storage.checkpoint_is_due() {
            true => self.storage.take_checkpoint(),
            false => Ok(()),
        };
        let written = erased.and(compacted).and(limited).and(collected);
        written.and(checkpointed)
    }

    /// Compacts what was due when the call began, while another thread runs [`PageTree::maintain`].
    /// Ends early if `goes_on` returns false. Returns the number of compactions. Compactions of
    /// different index pages run concurrently; a small tree has one index page, or none. A page
    /// that another compaction works on is left out, and may be due again afterwards.
    ///
    /// Errors: those of the filesystem, and `Corruption`; what was compacted stays so.
    pub fn compact_concurrently(&self, goes_on: &dyn Fn() -> bool) -> Result<usize> {
        self.storage.compact_from_end(goes_on)
    }

    /// Erases extents without pages that a snapshot needs, and releases the space of other garbage
    /// pages in sealed extents (decision 0050). [`PageTree::maintain`] does it, too.
    ///
    /// Errors: those of erasing files. The next call repeats what was not done. A release that
    /// fails is only counted ([`PageTreeStats::failed_releases`]).
    ///
    /// Cost: a removal of a file for each erased extent, and an opening of the file and one call
    /// of the filesystem for each range of garbage. Waits for another thread that erases.
    pub fn release_space(&self) -> Result<()> {
        self.storage.erase_dead().map(|_| ())
    }

    /// Reads and verifies all pages, and checks that they, the page mapping table and the usage of
    /// the extents agree. Reads and writes go on beside it.
    ///
    /// Errors: the first `Corruption` names what is damaged.
    pub fn verify(&self) -> Result<()> {
        self.storage.verify()
    }

    /// Calls `each` with all index pages and leaves, in the order of their keys, an index page
    /// before those below it, as long as it returns true. If `with_entries`, leaves come with their
    /// entries. Pages are read past the cache. After a damaged page, the walk goes on with the next
    /// one that it can reach.
    pub fn inspect(
        &self,
        snapshot: &TreeSnapshot,
        with_entries: bool,
        each: &mut dyn FnMut(InspectedNode) -> bool,
    ) {
        self.storage.inspect(&snapshot.view, with_entries, each);
    }

    /// Explains a lookup of a key: which pages it visits, and why. Reads all pages that the lookup
    /// may read, past the cache. Damage is a part of the explanation.
    pub fn explain(&self, snapshot: &TreeSnapshot, key: &[u8]) -> PageExplanation {
        self.storage.explain(&snapshot.view, key)
    }

    /// Returns all extents, those of base pages first.
    pub fn inspect_extents(&self) -> Vec<InspectedExtent> {
        self.storage.inspect_extents()
    }

    /// Returns the number of leaves. Reads all index pages, through the cache.
    ///
    /// Errors: those of reading an index page.
    pub fn count_leaves(&self, snapshot: &TreeSnapshot) -> Result<u64> {
        self.storage.count_leaves(&snapshot.view)
    }

    /// Returns an estimate of the bytes that the pages of a range of keys have, from the index
    /// pages. `to` is exclusive, and `None` is the end. The pages of the leaves at both ends count
    /// as a whole.
    ///
    /// Errors: those of reading an index page.
    pub fn approximate_bytes(
        &self,
        snapshot: &TreeSnapshot,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<u64> {
        self.storage.bytes_of_range(&snapshot.view, from, to)
    }

    /// Returns the debt of compactions, a ratio from 0 on: the bytes of delta pages of the leaves
    /// and index pages that are due, divided by the bytes of valid base pages plus `spare`. Looks
    /// at each page that has delta pages.
    pub fn debt(&self, spare: u64) -> f64 {
        let allowed = self.storage.base_bytes() + spare;
        self.storage.due_delta_bytes() as f64 / allowed as f64
    }

    /// Returns true if readers have paid for merges of leaves: they have read delta pages from the
    /// device as often as the merges cost. [`PageTree::merge_for_readers`] merges the leaves.
    pub fn owes_readers(&self) -> bool {
        self.storage.paid.are_due()
    }

    /// Merges the pages of leaves that readers have paid for, as long as `goes_on` returns true: a
    /// read then visits one page of such a leaf. Writes their bytes once.
    ///
    /// Errors: those of the filesystem, and `Corruption`; what was merged stays so.
    pub fn merge_for_readers(&self, goes_on: &dyn Fn() -> bool) -> Result<()> {
        self.storage.merge_paid(goes_on)
    }

    /// Gives back the space of what a failed write or failed maintenance has written.
    ///
    /// Errors: those of the filesystem; the next call goes on.
    pub fn reclaim(&self) -> Result<()> {
        self.storage.reclaim()
    }

    /// Returns the bytes of pages that were written since the tree was opened.
    pub fn bytes_written(&self) -> u64 {
        let written = &self.storage.written;
        written.by_stream(StreamKind::Base) + written.by_stream(StreamKind::Delta)
    }

    /// Returns what the tree has and costs.
    pub fn stats(&self) -> PageTreeStats {
        self.storage.stats()
    }

    /// Writes all leaves again that have keys of a range, merged with their delta pages. Leaves
    /// with other keys below the same index pages are written, too. `to` is exclusive, and `None`
    /// is the end. The call ends soon after `goes_on` returns false.
    ///
    /// Errors: those of the filesystem, and `Corruption`. The first error ends the call; what was
    /// compacted before stays so. A damaged leaf keeps all leaves below its index page from being
    /// written.
    ///
    /// Cost: a read and a write of all pages of the range. Each index page with its leaves, at
    /// most 128 of them, is one transaction with two or three syncs. Other maintenance waits
    /// during a transaction; reads and user checkpoints go on.
    pub fn compact_range(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        self.storage.rewrite_range(from, to, goes_on)
    }

    /// Returns true if [`PageTree::maintain`] has something to do. Looks at each page that has
    /// delta pages, and reads nothing.
    pub fn maintenance_is_due(&self) -> bool {
        self.storage.maintenance_is_due()
    }

    /// Takes a system checkpoint, so that the next open reads nothing else, and gives the
    /// directory back to other processes.
    ///
    /// Errors: those of the filesystem.
    pub fn close(&self) -> Result<()> {
        self.storage.close()
    }

    /// Gives the directory back to other processes without a system checkpoint. The next open
    /// replays the system log, and finds everything.
    ///
    /// Errors: those of the filesystem.
    pub fn abandon(&self) -> Result<()> {
        self.storage.abandon()
    }
}

/// Returns the entry that a search has found, with its kind decoded.
///
/// Errors: those of [`known`].
fn found_entry(found: KindAndValue) -> Result<FoundEntry> {
    let known = found.map(|(kind, value)| Ok((known(kind)?, value)));
    known.transpose()
}

/// Returns the kind of an entry.
///
/// Errors: `Unsupported` for a kind that this version does not know.
fn known(kind: u8) -> Result<Kind> {
    Kind::from_u8(kind).ok_or_else(|| {
        Error::unsupported(format!(
            "a page has an entry of kind {kind}, which a later version of Basalt wrote; open the store with that version"
        ))
    })
}

/// The findings of [`PageTree::check`].
#[derive(Debug)]
#[non_exhaustive]
pub struct TreeCheck {
    /// Number of extents, and of files of the system log, that were read.
    pub files: u64,
    /// Bytes of the tree's files.
    pub bytes: u64,
    /// The note of the last write that had one, if the tree can be opened.
    pub note: Option<Vec<u8>>,
    /// All damage that was found.
    pub damage: Vec<Error>,
    /// What the tree has, as far as it is reached through sound pages.
    pub counts: PageCounts,
}

/// The files of a copy that [`TreeCopy::write`] has made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeCopyReport {
    /// Number of extents, and of files of the system log.
    pub files: u64,
    /// Bytes of files that were linked.
    pub linked_bytes: u64,
    /// Bytes of files that were copied: the end of the system log, and what could not be linked.
    pub copied_bytes: u64,
}

/// A copy of a tree that is being made.
pub struct TreeCopy {
    storage: Arc<Storage>,
    log: LogCopy,
    /// Views that keep the copied pages from being erased.
    _views: Vec<Arc<View>>,
}

impl TreeCopy {
    /// Writes the copy into a directory that does not exist. Extents are linked. With `copy_files`,
    /// files that cannot be linked there are copied, garbage included, and then all pages of the
    /// copy are verified. Everything in the directory but its name is durable when the call
    /// returns. `check_continue` is called as [`Stream::link_or_copy`] says, and between pages that
    /// are verified. If it returns an error, the call ends with that error.
    ///
    /// Errors: `Unsupported` if files cannot be linked there and must not be copied; `Corruption`
    /// if a page of the copy is damaged; those of `check_continue` and of the filesystem. After an
    /// error, [`PageTree::destroy`] removes what is there.
    pub fn write(
        self,
        dir: impl AsRef<Path>,
        copy_files: bool,
        check_continue: &dyn Fn() -> Result<()>,
    ) -> Result<TreeCopyReport> {
        let (fs, dir) = (self.storage.env.fs(), dir.as_ref());
        fs.create_dir(dir)?;
        let mut report = TreeCopyReport::default();
        for (name, stream) in [(BASE, &self.storage.base), (DELTA, &self.storage.delta)] {
            let made = stream.link_or_copy(dir.join(name), copy_files, check_continue)?;
            report.files += made.extents;
            report.linked_bytes += made.linked_bytes;
            report.copied_bytes += made.copied_bytes;
        }
        let log = self.log.write(dir.join(LOGS), copy_files)?;
        report.files += log.files;
        report.linked_bytes += log.linked_bytes;
        let has_copied_pages = report.copied_bytes > 0;
        report.copied_bytes += log.copied_bytes;
        fs.sync_metadata(dir)?;
        if has_copied_pages {
            let verified = verify_copy(&self.storage.env, dir, check_continue);
            verified.map_err(|e| e.context("verifying the copied pages"))?;
        }
        Ok(report)
    }
}

/// Reads all pages of a copy. In copied extents, damage of the source is zeros.
fn verify_copy(env: &Env, dir: &Path, check_continue: &dyn Fn() -> Result<()>) -> Result<()> {
    let copy = Storage::open_read_only(env, dir, &TreeOptions::default(), &|_| true)?;
    let mut verified = Ok(());
    copy.inspect(&copy.view(), false, &mut |node| {
        verified = match node.damage().next() {
            Some(damage) => Err(damage.clone()),
            None => check_continue(),
        };
        verified.is_ok()
    });
    copy.abandon()?;
    verified
}

/// A cursor over the entries of a tree in a snapshot, deletions included.
pub struct EntryCursor {
    storage: Arc<Storage>,
    view: Arc<View>,
    /// If true, blocks that the cursor reads go into the cache.
    fill_cache: bool,
    /// `None` before the first seek.
    cursor: Option<TreeCursor<Arc<Storage>>>,
}

impl EntryCursor {
    /// Moves to the gap before the first key that is not below `key`. [`EntryCursor::next_entry`]
    /// then moves to that key, and [`EntryCursor::prev_entry`] to the key before it.
    ///
    /// Errors: those of [`PageTree::get`].
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        match &mut self.cursor {
            Some(cursor) => cursor.seek(key),
            None => {
                let (storage, view) = (self.storage.clone(), self.view.clone());
                self.cursor = Some(TreeCursor::at(storage, view, key, self.fill_cache)?);
                Ok(())
            }
        }
    }

    /// Moves to behind the last key.
    ///
    /// Errors: those of [`PageTree::get`].
    pub fn seek_to_end(&mut self) -> Result<()> {
        if self.cursor.is_none() {
            self.seek(b"")?;
        }
        self.cursor.as_mut().expect("set above").seek_to_end()
    }

    /// Moves to the next key. Returns false at the end. Panics before the first seek.
    ///
    /// Errors: those of [`PageTree::get`].
    pub fn next_entry(&mut self) -> Result<bool> {
        self.sought().next()
    }

    /// Moves to the key before. Returns false at the beginning. Panics before the first seek.
    ///
    /// Errors: those of [`PageTree::get`].
    pub fn prev_entry(&mut self) -> Result<bool> {
        self.sought().prev()
    }

    fn sought(&mut self) -> &mut TreeCursor<Arc<Storage>> {
        self.cursor.as_mut().expect("the cursor was sought")
    }

    /// Appends the current key to `out`, and returns kind and value of the entry. There must be
    /// one.
    ///
    /// Errors: `Unsupported` for an entry of a later version.
    pub fn take(&self, out: &mut Vec<u8>) -> Result<(Kind, Bytes)> {
        Ok((self.take_key(out)?, self.pinned_value()))
    }

    /// Appends the current key to `out`, and returns the kind of the entry. There must be one.
    ///
    /// Errors: those of [`EntryCursor::take`].
    pub fn take_key(&self, out: &mut Vec<u8>) -> Result<Kind> {
        let cursor = self.current();
        cursor.key_into(out);
        known(cursor.entry_ref().0)
    }

    /// Returns the value of the current entry. There must be one.
    pub fn value(&self) -> &[u8] {
        self.current().entry_ref().1
    }

    /// Returns the same as [`EntryCursor::value`], pinned: the value outlives the cursor, and is
    /// not copied. It keeps its block in memory. In a long scan, which decodes pages whole, it
    /// keeps all entries of its page, uncompressed. The memory ledger does not count what pinned
    /// values keep, so a caller that holds many of them should copy small ones.
    pub fn pinned_value(&self) -> Bytes {
        self.current().entry().1
    }

    fn current(&self) -> &TreeCursor<Arc<Storage>> {
        self.cursor.as_ref().expect("the cursor was sought")
    }
}

/// The entries of a tree from a key on.
pub struct TreeIter {
    cursor: TreeCursor<Arc<Storage>>,
    forward: bool,
    ended: bool,
}

impl Iterator for TreeIter {
    type Item = Result<(Vec<u8>, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let moved = match self.forward {
                true => self.cursor.next(),
                false => self.cursor.prev(),
            };
            match moved {
                Ok(true) => {
                    let (kind, value) = self.cursor.entry();
                    if !is_delete(kind) {
                        return Some(Ok((self.cursor.key(), value)));
                    }
                }
                Ok(false) => self.ended = true,
                Err(e) => {
                    self.ended = true;
                    return Some(Err(e));
                }
            }
        }
        None
    }
}
