//! What a change of the tree does to blob files: marks for what lost its reference, names for what was collected, and the end of files
//! without a live record. All of it is settled under the manifest's lock, in the edit that causes it.
//!
//! Jobs run beside each other. One that began before a collection ended has looked references up in files that are gone by the time that it
//! ends: where their records are now is remembered ([`Moved`]) as long as such a job runs. For as long, a name is not forgotten although no
//! table has it: the job may be about to write one that has.

use super::engine::{Engine, RETRY_PAUSE, State};
use crate::version::catalog::{Catalog, CatalogBlob};
use crate::version::edit::Edit;
use basalt_blob::garbage::{Dead, Garbage};
use basalt_blob::lineage::Collected;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::key::Cmp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The longest time after which a file that could not be read is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// What an edit means for blob files besides what stands in it.
#[derive(Default)]
pub(crate) struct BlobChange {
    /// Records that lose their references.
    pub dead: Vec<Dead>,
    /// What a collection did.
    pub collected: Option<Collection>,
}

/// A collection that is about to be installed.
pub(crate) struct Collection {
    /// Sources and targets.
    pub done: Collected,
    /// Where the records are.
    pub moved: Moved,
    /// What was marked in the sources when the collection began.
    pub marked: BTreeMap<u64, Arc<Garbage>>,
    /// The orders of the families as it knew them.
    pub orders: BTreeMap<u32, Cmp>,
}

/// Where a record is after a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewPlace {
    pub file: u64,
    pub ordinal: u32,
    pub family: u32,
    pub bytes: u64,
    pub hash: u64,
}

/// Where the records of collected files are now.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// By source, then by the record's place in it; ascending.
    pub places: HashMap<u64, Vec<(u32, NewPlace)>>,
}

impl Moved {
    fn place(&self, file: u64, ordinal: u32) -> Option<NewPlace> {
        let places = self.places.get(&file)?;
        let at = places.binary_search_by_key(&ordinal, |(o, _)| *o).ok()?;
        Some(places[at].1)
    }
}

/// What the engine knows of blob files besides the catalog.
#[derive(Default)]
pub(crate) struct BlobState {
    /// Tables that have references to each number.
    references: Arc<HashMap<u64, u64>>,
    /// Collections so far.
    epoch: u64,
    /// Jobs that run, by the epoch in which they began.
    running: BTreeMap<u64, usize>,
    /// Records moved by collections that ended while some running job ran, with the epoch that each began.
    moved: Vec<(u64, Arc<Moved>)>,
    /// Names made since the store was opened, with the epoch from which they are names.
    named: Arc<HashMap<u64, u64>>,
    /// Files that a collection reads.
    pub collecting: BTreeSet<u64>,
    /// Files whose values a compaction moves along.
    pub gathering: BTreeSet<u64>,
    /// Collections that run or are queued.
    pub running_collections: usize,
    /// Why the last collection failed, unless it was one of its sources.
    pub error: Option<Error>,
    /// Earliest time of the next one after that.
    pub retry_at: Duration,
    /// Files that could not be read when they were to be collected.
    unreadable: BTreeMap<u64, Unreadable>,
}

/// A file that could not be read. A bit may have flipped on its way: it is tried again, less and less often.
struct Unreadable {
    error: Error,
    pause: Duration,
    retry_at: Duration,
}

impl BlobState {
    pub fn new(catalog: &Catalog) -> BlobState {
        let mut references: HashMap<u64, u64> = HashMap::default();
        for f in catalog.families.values() {
            for (_, meta) in f.tables.values() {
                for (number, _) in meta.references.iter() {
                    *references.entry(*number).or_default() += 1;
                }
            }
        }
        BlobState {
            references: Arc::new(references),
            ..BlobState::default()
        }
    }

    /// Whether a collection may take a file now.
    pub fn may_collect(&self, number: u64, now: Duration) -> bool {
        !self.collecting.contains(&number)
            && !self.gathering.contains(&number)
            && (self.unreadable.get(&number)).is_none_or(|u| u.retry_at <= now)
    }

    /// Returns the files that could not be read and wait for another attempt. No collection may
    /// take them until then.
    pub fn put_off(&self, now: Duration) -> impl Iterator<Item = u64> {
        let waiting = self
            .unreadable
            .iter()
            .filter(move |(_, u)| u.retry_at > now);
        let numbers = waiting.map(|(number, _)| *number);
        numbers.filter(|n| !self.collecting.contains(n) && !self.gathering.contains(n))
    }

    /// A file could not be read. When it may be tried again.
    pub fn unreadable(&mut self, number: u64, error: Error, now: Duration) {
        let pause = (self.unreadable.get(&number))
            .map_or(RETRY_PAUSE, |u| (u.pause * 2).min(LONGEST_PAUSE));
        let retry_at = now + pause;
        let u = Unreadable {
            error,
            pause,
            retry_at,
        };
        self.unreadable.insert(number, u);
    }

    /// Why collections do not get on.
    pub fn failure(&self) -> Option<&Error> {
        (self.error.as_ref()).or_else(|| self.unreadable.values().map(|u| &u.error).next())
    }

    /// A job begins that will look references up, and may write some. To be ended with [`BlobState::end`].
    pub fn begin(&mut self) -> u64 {
        *self.running.entry(self.epoch).or_default() += 1;
        self.epoch
    }

    /// The job that began with this epoch has ended.
    pub fn end(&mut self, epoch: u64) {
        let running = self.running.get_mut(&epoch).expect("it began");
        *running -= 1;
        if *running == 0 {
            self.running.remove(&epoch);
        }
        let oldest = self.oldest_job();
        self.moved.retain(|(from, _)| *from > oldest);
    }

    fn oldest_job(&self) -> u64 {
        let first = self.running.first_key_value();
        first.map_or(u64::MAX, |(epoch, _)| *epoch)
    }

    /// Over how many tables the references to each file are spread: to its number, and to names that stand for it.
    pub fn spread(&self, catalog: &Catalog) -> HashMap<u64, u64> {
        let mut spread = HashMap::clone(&self.references);
        for group in catalog.lineage.groups().values() {
            let tables: u64 = group.names.iter().map(|n| self.references(*n)).sum();
            let targets = group.targets.values().flatten().map(|(_, to)| *to);
            for to in targets.collect::<BTreeSet<u64>>() {
                *spread.entry(to).or_default() += tables;
            }
        }
        spread
    }

    fn moment(&self) -> BlobMoment {
        BlobMoment {
            references: self.references.clone(),
            named: self.named.clone(),
            moved: self.moved.iter().map(|(_, m)| m.clone()).collect(),
            collecting: self.collecting.clone(),
            oldest_job: self.oldest_job(),
        }
    }

    /// Tables that have references to a number.
    pub fn references(&self, number: u64) -> u64 {
        self.references.get(&number).copied().unwrap_or(0)
    }
}

/// What [`Engine::settle_blobs`] asks of [`BlobState`]. Only an install changes the rest of what it depends on, so a holder of `manifest`
/// works on this without `state`.
struct BlobMoment {
    references: Arc<HashMap<u64, u64>>,
    named: Arc<HashMap<u64, u64>>,
    moved: Vec<Arc<Moved>>,
    collecting: BTreeSet<u64>,
    oldest_job: u64,
}

/// What an edit does to [`BlobState`] once it is durable.
pub(crate) struct Settled {
    /// More and fewer tables that have a number.
    references: BTreeMap<u64, i64>,
    moved: Option<(Vec<u64>, Moved)>,
    /// Files that nobody names and nobody read: left of families that are gone.
    pub unnamed: Vec<PathBuf>,
}

impl Settled {
    pub fn is_a_collection(&self) -> bool {
        self.moved.is_some()
    }
}

impl Engine {
    /// Completes an edit by what it means for blob files. The caller holds the manifest's lock.
    pub(super) fn settle_blobs(&self, edit: &mut Edit, change: BlobChange) -> Result<Settled> {
        let mut settled = Settled {
            references: BTreeMap::new(),
            moved: None,
            unnamed: Vec::new(),
        };
        let (catalog, blobs) = {
            let state = self.state.lock();
            (state.catalog.clone(), state.blobs.moment())
        };
        let catalog = &*catalog;
        let dropped: BTreeSet<u32> = edit.drop_families.iter().copied().collect();
        // Blobs of a family that comes with the edit are in none of its files.
        let gone = |id: &u32| dropped.contains(id) || !catalog.families.contains_key(id);
        count_references(catalog, edit, &mut settled.references);
        let touched = !settled.references.is_empty()
            || !change.dead.is_empty()
            || change.collected.is_some()
            || !edit.add_blobs.is_empty();
        if !touched && (edit.drop_families.is_empty() || catalog.blobs.is_empty()) {
            return Ok(settled);
        }
        edit.add_blobs.retain(|b| {
            let dead = b.meta.families.keys().all(gone);
            if dead {
                let mut paths = self.tables.blob_paths(b.number, &b.meta);
                if b.meta.index.is_some() {
                    // The manifest names the log until this edit is durable.
                    paths.remove(0);
                }
                settled.unnamed.extend(paths);
            }
            !dead
        });
        let mut marks = Marks::default();
        if let Some(c) = change.collected {
            collected(catalog, edit, &c, &gone, &mut marks)?;
            settled.moved = Some((c.done.sources, c.moved));
        }
        let latest = settled.moved.as_ref().map(|(_, m)| m);
        for dead in change.dead {
            if gone(&dead.family) {
                continue;
            }
            marks.add(catalog, edit, blobs.now_at(dead, latest))?;
        }
        for (number, marks) in marks.0 {
            edit.mark_blobs.push((number, marks.encode()));
        }
        // What is without a live record leaves at once. A file of a family that goes may be any.
        let mut after = Catalog {
            blobs: catalog.blobs.clone(),
            lineage: catalog.lineage.clone(),
            ..Catalog::default()
        };
        after.apply_blobs(edit)?;
        let mut concerned: BTreeSet<u64> = edit.mark_blobs.iter().map(|(n, _)| *n).collect();
        if !edit.drop_families.is_empty() {
            concerned = after.blobs.keys().copied().collect();
        }
        for number in concerned {
            let alive = |b: &CatalogBlob| b.alive(&|id| !gone(&id)).records > 0;
            if after.blobs.get(&number).is_some_and(|b| !alive(b))
                && !blobs.collecting.contains(&number)
            {
                edit.remove_blobs.push(number);
            }
        }
        for name in after.lineage.names() {
            let tables = blobs.references.get(&name).copied().unwrap_or(0) as i64;
            let change = settled.references.get(&name).copied().unwrap_or(0);
            let from = blobs.named.get(&name).copied().unwrap_or(0);
            let new = settled
                .moved
                .as_ref()
                .is_some_and(|(s, _)| s.contains(&name));
            if tables + change == 0 && from <= blobs.oldest_job && !new {
                edit.forget_names.push(name);
            }
        }
        Ok(settled)
    }

    /// Takes over what [`Engine::settle_blobs`] came to, after the edit is durable.
    pub(super) fn note_settled(&self, state: &mut State, edit: &Edit, settled: Settled) {
        let blobs = &mut state.blobs;
        // The install that shared them has settled its edit: neither is copied.
        let references = Arc::make_mut(&mut blobs.references);
        for (number, change) in settled.references {
            let tables = references.entry(number).or_default();
            *tables = tables.checked_add_signed(change).expect("counted before");
            if *tables == 0 {
                references.remove(&number);
            }
        }
        let named = Arc::make_mut(&mut blobs.named);
        for name in &edit.forget_names {
            named.remove(name);
        }
        let forgotten = edit.forget_names.len() as u64;
        self.counters.names_forgotten.add(forgotten);
        for number in &edit.remove_blobs {
            blobs.unreadable.remove(number);
        }
        if let Some((sources, moved)) = settled.moved {
            sources.iter().for_each(|n| {
                blobs.unreadable.remove(n);
            });
            let lineage = &state.catalog.lineage;
            let made = sources.iter().filter(|n| lineage.is_name(**n)).count();
            self.counters.names_made.add(made as u64);
            blobs.epoch += 1;
            let epoch = blobs.epoch;
            named.extend(sources.iter().map(|s| (*s, epoch)));
            if !blobs.running.is_empty() {
                blobs.moved.push((epoch, Arc::new(moved)));
            }
        }
    }
}

impl BlobMoment {
    /// Where a record is now that was looked up by a job that may be older than some collections.
    fn now_at(&self, mut dead: Dead, latest: Option<&Moved>) -> Dead {
        let all = self.moved.iter().map(|m| &**m).chain(latest);
        for moved in all {
            if let Some(to) = moved.place(dead.file, dead.ordinal) {
                dead = Dead {
                    file: to.file,
                    ordinal: to.ordinal,
                    family: to.family,
                    bytes: to.bytes,
                    hash: to.hash,
                };
            }
        }
        dead
    }
}

/// Marks by file.
#[derive(Default)]
struct Marks(BTreeMap<u64, Garbage>);

impl Marks {
    fn add(&mut self, catalog: &Catalog, edit: &Edit, dead: Dead) -> Result<()> {
        let added = || edit.add_blobs.iter().find(|b| b.number == dead.file);
        let known = catalog
            .blobs
            .get(&dead.file)
            .map(|b| (&b.meta, Some(&b.garbage)));
        let Some((meta, before)) = known.or_else(|| added().map(|b| (&b.meta, None))) else {
            return Err(lost(&dead, "in a blob file that is not there"));
        };
        if u64::from(dead.ordinal) >= meta.records || !meta.families.contains_key(&dead.family) {
            return Err(lost(&dead, "past the records of its blob file"));
        }
        let marks = (self.0.entry(dead.file)).or_insert_with(|| Garbage::none(meta.records as u32));
        let again = before.is_some_and(|g| g.has(dead.ordinal))
            || !marks.mark(dead.ordinal, dead.family, dead.bytes, dead.hash);
        match again {
            true => Err(lost(&dead, "which had lost its reference before")),
            false => Ok(()),
        }
    }
}

fn lost(dead: &Dead, what: &str) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!(
            "a reference is given up to record {} of blob file {}, family {}: {what}; run `basalt check`",
            dead.ordinal, dead.file, dead.family
        ),
    )
}

/// Adds what a collection changes to its edit. `gone` says which families do not exist any more.
fn collected(
    catalog: &Catalog,
    edit: &mut Edit,
    c: &Collection,
    gone: &dyn Fn(&u32) -> bool,
    marks: &mut Marks,
) -> Result<()> {
    let mut lineage = (*catalog.lineage).clone();
    let order = |family: u32| c.orders.get(&family).cloned().unwrap_or_default();
    for id in lineage.collect(&c.done, &order) {
        let group = lineage.groups().get(&id).expect("it was just set");
        edit.lineage.push((id, (**group).clone()));
    }
    edit.remove_blobs.extend(&c.done.sources);
    // What lost its reference while the collection ran did so at its old place.
    for source in &c.done.sources {
        let now = &catalog.blobs.get(source).ok_or_else(|| {
            let what = format!("blob file {source} was collected, and is not there");
            Error::new(ErrorKind::Corruption, what)
        })?;
        for run in now.garbage.runs() {
            for ordinal in run.filter(|o| !c.marked[source].has(*o)) {
                let Some(to) = c.moved.place(*source, ordinal) else {
                    // Of a family that was gone when the collection began.
                    continue;
                };
                if gone(&to.family) {
                    // The family was dropped while the collection ran. A target that held only
                    // records of dropped families has left the edit, so there is nothing to mark.
                    continue;
                }
                let dead = Dead {
                    file: to.file,
                    ordinal: to.ordinal,
                    family: to.family,
                    bytes: to.bytes,
                    hash: to.hash,
                };
                marks.add(catalog, edit, dead)?;
            }
        }
    }
    Ok(())
}

/// How many tables more, or fewer, have each number after an edit.
fn count_references(catalog: &Catalog, edit: &Edit, out: &mut BTreeMap<u64, i64>) {
    let mut count = |meta: &basalt_table::TableMeta, by: i64| {
        for (number, _) in meta.references.iter() {
            let change = out.entry(*number).or_default();
            *change += by;
            if *change == 0 {
                out.remove(number);
            }
        }
    };
    for t in &edit.add_tables {
        count(&t.meta, 1);
    }
    for (family, _, number) in &edit.remove_tables {
        let family = catalog.families.get(family);
        if let Some((_, meta)) = family.and_then(|f| f.tables.get(number)) {
            count(meta, -1);
        }
    }
    for f in edit
        .drop_families
        .iter()
        .filter_map(|id| catalog.families.get(id))
    {
        f.tables.values().for_each(|(_, meta)| count(meta, -1));
    }
}
