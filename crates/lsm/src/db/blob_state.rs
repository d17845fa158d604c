//! The state of blob files in an open store that the catalog does not hold: their readers, moved
//! records, and files that could not be read.

use super::counters::Counters;
use super::health::RETRY_PAUSE;
use crate::version::catalog::{Catalog, CatalogTable};
use crate::version::edit::Edit;
use basalt_blob::garbage::Dead;
use basalt_blob::lineage::Lineage;
use basalt_fs::Error;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The longest time after which a file that could not be read is tried again.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(3600);

/// The place of a record after a garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewRecordPlace {
    pub file: u64,
    pub ordinal: u32,
    pub family: u32,
    pub bytes: u64,
    pub hash: u64,
}

/// The new places of records whose files garbage collection rewrote.
#[derive(Debug, Default)]
pub(crate) struct MovedRecords {
    /// By source, then by the record's place in it; ascending.
    pub places: HashMap<u64, Vec<(u32, NewRecordPlace)>>,
}

impl MovedRecords {
    pub fn place(&self, file: u64, ordinal: u32) -> Option<NewRecordPlace> {
        let places = self.places.get(&file)?;
        let at = places.binary_search_by_key(&ordinal, |(o, _)| *o).ok()?;
        Some(places[at].1)
    }
}

/// The state of blob files that the catalog does not hold.
#[derive(Default)]
pub(crate) struct BlobState {
    /// Tables that have references to each number.
    references: Arc<HashMap<u64, u64>>,
    /// Number of garbage collections since the store was opened.
    epoch: u64,
    /// Jobs that run, by the epoch in which they began.
    running: BTreeMap<u64, usize>,
    /// Records moved by garbage collections that ended while some running job ran, with the epoch
    /// that each began.
    moved: Vec<(u64, Arc<MovedRecords>)>,
    /// Names made since the store was opened, with the epoch from which they are names.
    named: Arc<HashMap<u64, u64>>,
    /// Numbers of the files that a garbage collection reads.
    pub collecting: BTreeSet<u64>,
    /// Files whose values a compaction moves along.
    pub relocating: BTreeSet<u64>,
    /// Number of garbage collections that run or are queued.
    pub running_gcs: usize,
    /// The error of the last garbage collection, unless one of its sources caused it.
    pub error: Option<Error>,
    /// Earliest time of the next garbage collection after `error`.
    pub retry_at: Duration,
    /// Files that garbage collection could not read.
    unreadable: BTreeMap<u64, UnreadableFile>,
}

/// A file that could not be read. A bit may have flipped during the transfer, so the read is tried
/// again, less and less often.
struct UnreadableFile {
    error: Error,
    pause: Duration,
    retry_at: Duration,
}

impl BlobState {
    pub fn new(catalog: &Catalog) -> BlobState {
        let mut references: HashMap<u64, u64> = HashMap::default();
        for f in catalog.families.values() {
            for CatalogTable { meta, .. } in f.tables.values() {
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

    /// Returns whether a garbage collection may take a file now.
    pub fn may_collect(&self, number: u64, now: Duration) -> bool {
        !self.collecting.contains(&number)
            && !self.relocating.contains(&number)
            && (self.unreadable.get(&number)).is_none_or(|u| u.retry_at <= now)
    }

    /// Returns the files that could not be read and wait for another attempt. No garbage collection
    /// may take them until then.
    pub fn postponed(&self, now: Duration) -> impl Iterator<Item = u64> {
        let waiting = self
            .unreadable
            .iter()
            .filter(move |(_, u)| u.retry_at > now);
        let numbers = waiting.map(|(number, _)| *number);
        numbers.filter(|n| !self.collecting.contains(n) && !self.relocating.contains(n))
    }

    /// Records that a file could not be read, and when it may be tried again.
    pub fn unreadable(&mut self, number: u64, error: Error, now: Duration) {
        let pause = (self.unreadable.get(&number))
            .map_or(RETRY_PAUSE, |u| (u.pause * 2).min(MAX_RETRY_DELAY));
        let retry_at = now + pause;
        let u = UnreadableFile {
            error,
            pause,
            retry_at,
        };
        self.unreadable.insert(number, u);
    }

    /// Returns the error that keeps garbage collection from making progress.
    pub fn failure(&self) -> Option<&Error> {
        (self.error.as_ref()).or_else(|| self.unreadable.values().map(|u| &u.error).next())
    }

    /// Begins a job that will read references, and may write some. The caller ends it with
    /// [`BlobState::end`].
    pub fn begin(&mut self) -> u64 {
        *self.running.entry(self.epoch).or_default() += 1;
        self.epoch
    }

    /// Ends a job that began with this epoch.
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

    /// Returns, for each file, the number of tables that refer to its number or to a name that
    /// stands for it.
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

    pub fn snapshot(&self) -> BlobStateSnapshot {
        BlobStateSnapshot {
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

    /// Takes over the effects of an edit on blob files, after the edit is durable. `lineage` is
    /// that of the catalog with the edit.
    pub fn apply(
        &mut self,
        lineage: &Lineage,
        counters: &Counters,
        edit: &Edit,
        update: BlobStateUpdate,
    ) {
        let blobs = self;
        // The install that shared them has dropped its copy: neither map is copied here.
        let references = Arc::make_mut(&mut blobs.references);
        for (number, change) in update.references {
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
        counters.names_forgotten.add(forgotten);
        for number in &edit.remove_blobs {
            blobs.unreadable.remove(number);
        }
        if let Some((sources, moved)) = update.moved {
            sources.iter().for_each(|n| {
                blobs.unreadable.remove(n);
            });
            let made = sources.iter().filter(|n| lineage.is_name(**n)).count();
            counters.names_made.add(made as u64);
            blobs.epoch += 1;
            let epoch = blobs.epoch;
            named.extend(sources.iter().map(|s| (*s, epoch)));
            if !blobs.running.is_empty() {
                blobs.moved.push((epoch, Arc::new(moved)));
            }
        }
    }
}

/// The part of [`BlobState`] that `Tree::add_blob_edits` reads. Only an install changes the other
/// inputs, so a holder of `manifest` works on this copy without `state`.
pub(crate) struct BlobStateSnapshot {
    pub references: Arc<HashMap<u64, u64>>,
    pub named: Arc<HashMap<u64, u64>>,
    pub moved: Vec<Arc<MovedRecords>>,
    pub collecting: BTreeSet<u64>,
    pub oldest_job: u64,
}

/// The changes of [`BlobState`] that an edit causes once it is durable.
pub(crate) struct BlobStateUpdate {
    /// More and fewer tables that have a number.
    pub references: BTreeMap<u64, i64>,
    pub moved: Option<(Vec<u64>, MovedRecords)>,
    /// Paths of files that no edit names and no reader opened: they held records of dropped
    /// families.
    pub unnamed: Vec<PathBuf>,
}

impl BlobStateUpdate {
    pub fn is_gc(&self) -> bool {
        self.moved.is_some()
    }
}

impl BlobStateSnapshot {
    /// Returns the current place of a record, as looked up by a job that may be older than some
    /// garbage collections.
    pub fn now_at(&self, mut dead: Dead, latest: Option<&MovedRecords>) -> Dead {
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
