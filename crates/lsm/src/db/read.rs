//! Reads: point reads, reads of many keys, cursors and snapshots.

use super::engine::Engine;
use super::multi_get::PendingReference;
use super::page_iter::PageIter;
use super::view::{OpenedValue, View};
use super::{Family, ValueMeta, ValueWithExpiry};
use crate::iter::user::{BlobAccess, IterBounds, UserIter};
use crate::iter::{Cover, LevelIter, MaskedIter, MergingIter, TombstoneSource, ValuePrefetch};
use crate::options::ReadOptions;
use basalt_blob::{Name, ReadMode, Reference};
use basalt_env::sync::atomic::AtomicU64;
use basalt_env::sync::spin_loop;
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::entry::{FoundEntry, expiry_of};
use basalt_kv::key::{Cmp, Kind, SeqNo};
use basalt_kv::merge::Merging;
use basalt_kv::prefix::Narrowing;
use basalt_kv::snapshot::Snapshot;
use basalt_table::{InternalIter, ReadBudget, ReadPattern};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Parameters of a point read.
struct PointRead<'a> {
    view: &'a View,
    family: u32,
    seq: SeqNo,
    fill_cache: bool,
}

impl Engine {
    pub fn snapshot(&self) -> Snapshot {
        if let Some(snapshot) = self.snapshot_of_pages() {
            return snapshot;
        }
        let mut live = self.tree.snapshots().lock();
        // This is read under the lock. A compaction that does not see this snapshot has chosen its
        // inputs before. So its inputs hold no entry newer than this snapshot that would make it
        // drop older versions.
        let seq = self.tree.visible();
        *live.entry(seq).or_default() += 1;
        Snapshot::new(seq, self.ctx.jobs.number(), self.tree.snapshots().clone())
    }

    /// Returns a snapshot of the entries up to a sequence number, for a store that is being opened:
    /// no compaction has dropped older versions.
    pub fn snapshot_at(&self, seq: SeqNo) -> Snapshot {
        let mut live = self.tree.snapshots().lock();
        *live.entry(seq).or_default() += 1;
        Snapshot::new(seq, self.ctx.jobs.number(), self.tree.snapshots().clone())
    }

    /// Takes a snapshot of a store that has families in pages; `None` if it has none. Entries in
    /// pages have no sequence number, so the snapshot keeps the view of its moment.
    fn snapshot_of_pages(&self) -> Option<Snapshot> {
        loop {
            let view = self.tree.view();
            if view.pages.is_empty() {
                return None;
            }
            let mut live = self.tree.snapshots().lock();
            let seq = self.tree.visible();
            *live.entry(seq).or_default() += 1;
            drop(live);
            let made = Snapshot::new(seq, self.ctx.jobs.number(), self.tree.snapshots().clone());
            // If the view is the same as before, it had all entries up to the number.
            if Arc::ptr_eq(&view, &self.tree.view()) && self.tree.ingested() <= view.ingested {
                return Some(made.with_view(view));
            }
            spin_loop();
        }
    }

    /// Returns the view to read from with a snapshot, if that is not the newest one.
    fn pinned_view(&self, snapshot: &Snapshot) -> Option<Arc<View>> {
        let view = self.tree.view();
        if let Some(pinned) = snapshot.view() {
            let pinned = pinned.clone().downcast::<View>();
            let pinned = pinned.expect("snapshots of this store have its views");
            // Families that were made since are empty, and those that were dropped are gone.
            return Some(match Arc::ptr_eq(&pinned.families, &view.families) {
                true => pinned,
                false => Arc::new(View {
                    families: view.families.clone(),
                    ..(*pinned).clone()
                }),
            });
        }
        if view.pages.is_empty() {
            return None;
        }
        // The first family with pages was made after the snapshot, which sees nothing of it.
        Some(Arc::new(View {
            pages: Arc::default(),
            ..(*view).clone()
        }))
    }

    /// Returns the view to read from, and the sequence number to read as of. The view is taken
    /// first. Writes missing in the view are newer than all writes in it, so any later sequence
    /// number shows a prefix of history. The exception is tables that were added since
    /// ([`super::ingest`]), because older memtables in the view do not wait for them; the view is
    /// then taken again.
    pub(super) fn read_view(&self, options: &ReadOptions) -> Result<(Arc<View>, SeqNo)> {
        self.ctx.check_open()?;
        loop {
            if let Some(snapshot) = &options.snapshot
                && snapshot.store() == self.ctx.jobs.number()
                && let Some(pinned) = self.pinned_view(snapshot)
            {
                return Ok((pinned, snapshot.seq()));
            }
            let view = self.tree.view();
            let seq = match &options.snapshot {
                Some(s) if s.store() != self.ctx.jobs.number() => {
                    return Err(Error::invalid("the snapshot belongs to another store"));
                }
                Some(s) => s.seq(),
                None => self.tree.visible(),
            };
            if self.tree.ingested() <= view.ingested {
                return Ok((view, seq));
            }
            // The view with the added tables is about to be set.
            spin_loop();
        }
    }

    pub(super) fn check_family(&self, view: &View, family: &Family) -> Result<()> {
        if family.store() != self.ctx.jobs.number() {
            return Err(Error::invalid(format!(
                "family {:?} belongs to another store",
                family.name()
            )));
        }
        if !view.families.contains_key(&family.id()) {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("family {:?} was dropped", family.name()),
            ));
        }
        Ok(())
    }

    /// Returns the live value of a key whose newest version was found. `None` if the key is
    /// deleted, expired or absent.
    fn live_value(
        &self,
        asked: &PointRead<'_>,
        key: &[u8],
        found: Option<FoundEntry>,
    ) -> Result<Option<ValueWithExpiry>> {
        let shown = self.live_value_within(asked, key, found, &mut ReadBudget::unbounded());
        shown.map(|v| v.expect("nothing is put off without a bound"))
    }

    /// Returns the same as [`Engine::live_value`]. Operands and the value below them are taken from
    /// `budget`. Returns `None` if the budget is too small.
    fn live_value_within(
        &self,
        asked: &PointRead<'_>,
        key: &[u8],
        found: Option<FoundEntry>,
        budget: &mut ReadBudget,
    ) -> Result<Option<Option<ValueWithExpiry>>> {
        match found {
            Some(found) if found.kind == Kind::Merge => self.merged_value(asked, key, budget),
            Some(found) if found.kind == Kind::BlobRef => {
                let now_ms = self.ctx.env.clock().wall_ms();
                let name = Name {
                    family: asked.family,
                    key,
                    seq: found.seq,
                };
                let (view, fill_cache) = (asked.view, asked.fill_cache);
                match view.open_reference(&name, &found.value, now_ms, fill_cache, budget)? {
                    OpenedValue::Is(kind, value) => {
                        let seq = found.seq;
                        self.plain_value(Some(FoundEntry { seq, kind, value }))
                            .map(Some)
                    }
                    OpenedValue::Over => Ok(Some(None)),
                    OpenedValue::Later => Ok(None),
                }
            }
            other => self.plain_value(other).map(Some),
        }
    }

    #[cold]
    fn merged_value(
        &self,
        asked: &PointRead<'_>,
        key: &[u8],
        budget: &mut ReadBudget,
    ) -> Result<Option<Option<ValueWithExpiry>>> {
        let now_ms = self.ctx.env.clock().wall_ms();
        let (family, seq) = (asked.family, asked.seq);
        let chain = asked
            .view
            .operands(family, key, seq, now_ms, asked.fill_cache, budget)?;
        let Some(chain) = chain else { return Ok(None) };
        let entry = &asked.view.families[&family];
        let (value, expire_at_ms) = chain.merge(
            &Merging::new(entry.name.clone(), entry.options.merge_operator.clone()),
            key,
        )?;
        let shown = budget.take(value.len()).then(|| {
            Some(ValueWithExpiry {
                value,
                expire_at_ms,
            })
        });
        Ok(shown)
    }

    fn plain_value(&self, found: Option<FoundEntry>) -> Result<Option<ValueWithExpiry>> {
        let Some(found) = found else { return Ok(None) };
        match found.kind {
            Kind::Put => Ok(Some(ValueWithExpiry {
                value: found.value,
                expire_at_ms: None,
            })),
            Kind::PutTtl => {
                let at = expiry_of(&found.value)?;
                let live = at > self.ctx.env.clock().wall_ms();
                Ok(live.then(|| ValueWithExpiry {
                    value: found.value.slice(8..),
                    expire_at_ms: Some(at),
                }))
            }
            Kind::Delete => Ok(None),
            other => Err(Error::unsupported(format!(
                "entry kind {other:?} is reserved for a later version"
            ))),
        }
    }

    pub fn get(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<ValueWithExpiry>> {
        let (view, seq) = self.read_view(options)?;
        self.check_family(&view, family)?;
        let found = view.get(family.id(), key, seq, options.fill_cache)?;
        let asked = PointRead {
            view: &view,
            family: family.id(),
            seq,
            fill_cache: options.fill_cache,
        };
        self.live_value(&asked, key, found)
    }

    /// See [`super::Db::latest_seq`].
    pub fn latest_seq(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<SeqNo>> {
        let (view, seq) = self.read_view(options)?;
        self.check_family(&view, family)?;
        for mem in view.memtables(family.id()) {
            if let Some(found) = mem.get(key, seq) {
                return Ok(Some(found.seq));
            }
        }
        let found = view.get(family.id(), key, seq, options.fill_cache)?;
        Ok(found.map(|found| match view.pages.get(&family.id()) {
            Some(pages) => pages.changes.newest(key).0,
            None => found.seq,
        }))
    }

    /// Returns the same as [`Engine::get`]. A value in a blob file is taken from `budget` before it
    /// is read. Returns `None` if the budget is too small.
    pub fn get_within(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
        budget: &mut ReadBudget,
    ) -> Result<Option<Option<ValueWithExpiry>>> {
        let (view, seq) = self.read_view(options)?;
        self.check_family(&view, family)?;
        let found = view.get(family.id(), key, seq, options.fill_cache)?;
        let asked = PointRead {
            view: &view,
            family: family.id(),
            seq,
            fill_cache: options.fill_cache,
        };
        self.live_value_within(&asked, key, found, budget)
    }

    /// Returns what the tree says about a key's value, without a read of the value from a blob
    /// file. With a budget, also returns the value's length. A compressed value must be read for
    /// its length, and is charged to the budget. Returns `None` if the budget is too small for
    /// that.
    pub fn get_meta(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
        lengths: Option<&mut ReadBudget>,
    ) -> Result<Option<Option<ValueMeta>>> {
        let (view, seq) = self.read_view(options)?;
        self.check_family(&view, family)?;
        let fill_cache = options.fill_cache;
        let found = view.get(family.id(), key, seq, fill_cache)?;
        if let Some(found) = &found
            && found.kind == Kind::BlobRef
        {
            let to = Reference::decode(&found.value)?;
            if to.is_over(self.ctx.env.clock().wall_ms()) {
                return Ok(Some(None));
            }
            let mut meta = ValueMeta {
                expire_at_ms: to.expire_at_ms,
                inline: None,
                len: None,
            };
            if let Some(budget) = lengths {
                let name = Name {
                    family: family.id(),
                    key,
                    seq: found.seq,
                };
                let (blobs, how) = (&view.version.blobs, ReadMode::user(fill_cache));
                let cmp = &view.families[&family.id()].options.comparator;
                let Some(len) = blobs.payload_len_within(&name, &to, cmp, how, budget)? else {
                    return Ok(None);
                };
                let expiry = if to.expire_at_ms.is_some() { 8 } else { 0 };
                meta.len = Some(len.saturating_sub(expiry));
            }
            return Ok(Some(Some(meta)));
        }
        let asked = PointRead {
            view: &view,
            family: family.id(),
            seq,
            fill_cache,
        };
        let value = self.live_value(&asked, key, found)?;
        Ok(Some(value.map(|v| ValueMeta {
            expire_at_ms: v.expire_at_ms,
            len: Some(v.value.len()),
            inline: Some(v.value),
        })))
    }

    pub fn multi_get(
        &self,
        keys: &[(&Family, &[u8])],
        options: &ReadOptions,
        budget: &mut ReadBudget,
        at_least_one: bool,
    ) -> Vec<Option<Result<Option<Bytes>>>> {
        let (view, seq) = match self.read_view(options) {
            Ok(m) => m,
            Err(e) => return keys.iter().map(|_| Some(Err(e.clone()))).collect(),
        };
        // The keys of each family are grouped, so that their reads from the device are one batch.
        let mut by_family: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut out: Vec<Option<Result<Option<Bytes>>>> = Vec::with_capacity(keys.len());
        for (i, (family, _)) in keys.iter().enumerate() {
            let checked = self.check_family(&view, family);
            if checked.is_ok() {
                by_family.entry(family.id()).or_default().push(i);
            }
            out.push(Some(checked.map(|()| None)));
        }
        // Values outside the tree are read in one batch for all families.
        let now_ms = self.ctx.env.clock().wall_ms();
        let mut elsewhere: Vec<(usize, PendingReference<'_>)> = Vec::new();
        for (family, places) in by_family {
            let asked: Vec<&[u8]> = places.iter().map(|i| keys[*i].1).collect();
            let found = view.get_many(family, &asked, seq, options.fill_cache, budget);
            let asked = PointRead {
                view: &view,
                family,
                seq,
                fill_cache: options.fill_cache,
            };
            for (i, found) in places.into_iter().zip(found) {
                if let Some(Ok(Some(found))) = &found
                    && found.kind == Kind::BlobRef
                {
                    let name = Name {
                        family,
                        key: keys[i].1,
                        seq: found.seq,
                    };
                    match Reference::decode(&found.value) {
                        Ok(to) if to.is_over(now_ms) => {}
                        Ok(to) => elsewhere.push((i, PendingReference { name, to })),
                        Err(e) => out[i] = Some(Err(e)),
                    }
                    continue;
                }
                let shown = found.map(|found| {
                    self.live_value_within(&asked, keys[i].1, found?, budget)
                        .map(|shown| shown.map(|value| value.map(|v| v.value)))
                });
                out[i] = shown.and_then(Result::transpose);
            }
        }
        let referred: Vec<PendingReference<'_>> = elsewhere.iter().map(|(_, r)| *r).collect();
        let values = view.values_of(&referred, options.fill_cache, budget);
        for ((i, to), value) in elsewhere.into_iter().zip(values) {
            out[i] = value.map(|payload| {
                let found = FoundEntry {
                    seq: to.name.seq,
                    kind: to.to.kind(),
                    value: payload?,
                };
                self.plain_value(Some(found)).map(|v| v.map(|v| v.value))
            });
        }
        // A caller that asks again for the remaining keys must make progress.
        if at_least_one
            && let Some((family, key)) = keys.first()
            && out.iter().all(Option::is_none)
        {
            let found = view.get(family.id(), key, seq, options.fill_cache);
            let asked = PointRead {
                view: &view,
                family: family.id(),
                seq,
                fill_cache: options.fill_cache,
            };
            let value = found.and_then(|f| self.live_value(&asked, key, f));
            out[0] = Some(value.map(|v| v.map(|v| v.value)));
        }
        out
    }

    /// Returns a cursor over a family's entries in a view, as of `seq`. The cursor reads the view's
    /// newest memtable while that grows.
    pub(super) fn cursor(
        &self,
        view: &Arc<View>,
        seq: SeqNo,
        family: &Family,
        options: &ReadOptions,
    ) -> Result<ValuePrefetch> {
        self.check_family(view, family)?;
        let entry = &view.families[&family.id()];
        let cmp = entry.options.comparator.clone();
        let merging = Merging::new(entry.name.clone(), entry.options.merge_operator.clone());
        let prefixes = entry.options.prefix_extractor.clone();
        if prefixes.is_none() && options.prefix_same_as_start {
            return Err(Error::invalid(format!(
                "prefix_same_as_start on family {:?}, which has no prefix_extractor in its options",
                family.name()
            )));
        }
        let pattern = if options.fill_cache {
            ReadPattern::Cached
        } else {
            ReadPattern::Uncached
        };
        let mut sources = ViewSources::default();
        for (n, mem) in view.memtables(family.id()).enumerate() {
            // The newest memtable may still gain entries, so it has a cursor even if it is empty.
            if n == 0 || mem.has_entries() {
                sources.add(Box::new(mem.iter()), 0);
            }
            for run in mem.ranges() {
                sources.deleted.push(TombstoneSource::Run(run));
            }
        }
        if let Some(pages) = view.pages.get(&family.id()) {
            sources.add(Box::new(PageIter::new(pages, options.fill_cache)), 0);
        } else if let Some(tables) = view.version.families.get(&family.id()) {
            let (from, to) = (
                options.lower_bound.as_deref(),
                options.upper_bound.as_deref(),
            );
            for t in tables.levels[0].iter().filter(|t| t.overlaps(from, to)) {
                if t.meta.entries > 0 {
                    // Tables of level 0 are ordered by their newest sequence numbers only. So a
                    // tombstone hides all of a table if it is newer than every entry of the table.
                    sources.add(Box::new(t.reader()?.iter(pattern)), t.meta.max_seq);
                }
                if t.meta.range_deletes > 0 {
                    sources
                        .deleted
                        .push(TombstoneSource::Tables(vec![t.clone()]));
                }
            }
            let deepest = tables.levels.iter().rposition(|l| !l.is_empty());
            for level in 1..tables.levels.len() {
                let (mut tables, mut deleted) = (tables.overlapping(level, from, to), Vec::new());
                if tables.iter().any(|t| t.meta.range_deletes > 0) {
                    deleted.extend(tables.iter().filter(|t| t.meta.range_deletes > 0).cloned());
                    tables.retain(|t| t.meta.entries > 0);
                }
                if !tables.is_empty() {
                    let mut run = LevelIter::new(tables, cmp.clone(), pattern);
                    if Some(level) == deepest {
                        run = run.with_next();
                    }
                    sources.add(Box::new(run), 0);
                }
                if !deleted.is_empty() {
                    sources.deleted.push(TombstoneSource::Tables(deleted));
                }
            }
        }
        let shown = IterBounds {
            seq,
            lower: options.lower_bound.clone(),
            upper: options.upper_bound.clone(),
            now_ms: self.ctx.env.clock().wall_ms(),
        };
        let (children, deleted, jumps) = sources.masked(&cmp, seq);
        // The snapshot is not pinned here; its holder keeps it.
        let pins: Vec<Arc<dyn Any + Send + Sync>> = vec![view.clone()];
        let merged = MergingIter::new(cmp.clone(), children);
        let made = UserIter::new(merged, cmp, shown, pins)
            .with_merging(merging)
            .with_range_tombstones(deleted, jumps)
            .with_blobs(BlobAccess::of(
                &view.version.blobs,
                family.id(),
                &entry.scan_history,
                options,
            ))
            .with_max_skippable_entries(options.max_skippable_entries);
        Ok(ValuePrefetch::new(match prefixes {
            Some(p) => made.with_prefixes(Narrowing::new(p, options.prefix_same_as_start)),
            None => made,
        }))
    }
}

/// Cursors and range tombstones of a view, newest first.
#[derive(Default)]
struct ViewSources {
    /// Cursors, each with two figures. The first is the number of entries of `deleted` that come
    /// before the cursor. The second is the sequence number that such a tombstone must exceed to
    /// hide all entries of the cursor.
    cursors: Vec<(Box<dyn InternalIter>, usize, SeqNo)>,
    deleted: Vec<TombstoneSource>,
}

impl ViewSources {
    fn add(&mut self, cursor: Box<dyn InternalIter>, above: SeqNo) {
        self.cursors.push((cursor, self.deleted.len(), above));
    }

    /// Returns the cursors, all range tombstones as of `seq`, and the count of jumps. A cursor with
    /// newer tombstones jumps over the ranges that these delete.
    fn masked(self, cmp: &Cmp, seq: SeqNo) -> (Vec<Box<dyn InternalIter>>, Cover, Arc<AtomicU64>) {
        let jumps = Arc::new(AtomicU64::new(0));
        let deleted = Arc::new(self.deleted);
        let cover = |upto| Cover::new(cmp.clone(), deleted.clone(), upto, seq);
        let masked = self.cursors.into_iter().map(|(cursor, newer, above)| {
            if newer == 0 {
                return cursor;
            }
            Box::new(MaskedIter::new(cursor, cover(newer), above, jumps.clone())) as _
        });
        (masked.collect(), cover(deleted.len()), jumps)
    }
}
