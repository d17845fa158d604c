//! [`DroppedRefs`]: blob records that lose their reference in a merge.
//!
//! The places of the records in their files are looked up many at a time, in the order of the
//! index. An index page is read once for all records that it has, and pages that are in no cache
//! are read together.
//!
//! If a page cannot be read, the places are derived from the records of the file. This reads the
//! whole file, so it is done once, at the end of the merge, for all records whose page could not be
//! read; earlier only if their names fill [`UNREADABLE_BYTES`] or the memory budget.

use crate::compaction::run::cancelled;
use crate::version::{BlobFile, BlobSet};
use basalt_blob::batch_read::{KeptIndexPages, RecordPlace, ValueRequest, locate};
use basalt_blob::derive::is_worth_deriving;
use basalt_blob::garbage::Dead;
use basalt_blob::{Name, ReadMode, Reference};
use basalt_env::sync::atomic::{AtomicBool, Ordering::Relaxed};
use basalt_env::{Env, MemoryKind, Reservation};
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::key::{Cmp, SeqNo};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Most records that wait for their lookup.
const MAX_WAITING: usize = 16 << 10;
/// Most bytes of keys of records that wait for their lookup.
const MAX_KEY_BYTES: usize = 4 << 20;
/// Records that are looked up together. Each takes at most two pages of an index.
const BATCH: usize = 256;

/// Most bytes of names that wait until their blob file is read, because their index page cannot be
/// read. Includes the memory for deriving their places.
const UNREADABLE_BYTES: u64 = 64 << 20;
/// Bytes of memory for deriving one place, without the key: the name in each list and map on the
/// way.
const DERIVED_BYTES: usize = 320;

/// An entry that lost its reference.
struct Entry {
    /// The blob file that the reference names.
    number: u64,
    /// Sequence number of the record.
    seq: SeqNo,
    /// Position of the user key in [`Entries::keys`].
    key: Range<usize>,
}

/// Entries that lost their references, with their keys.
#[derive(Default)]
struct Entries {
    entries: Vec<Entry>,
    keys: Vec<u8>,
}

impl Entries {
    fn push(&mut self, number: u64, seq: SeqNo, key: &[u8]) {
        let from = self.keys.len();
        self.keys.extend_from_slice(key);
        self.entries.push(Entry {
            number,
            seq,
            key: from..self.keys.len(),
        });
    }

    /// Returns the bytes of memory for deriving the places of the entries.
    fn to_derive(&self) -> u64 {
        (self.entries.len() * DERIVED_BYTES + self.keys.len()) as u64
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.keys.clear();
    }
}

fn dead(file: &BlobFile, hash: u64, name: &Name<'_>, (ordinal, place): RecordPlace) -> Dead {
    Dead {
        file: file.number,
        ordinal,
        family: name.family,
        bytes: place.end - place.start,
        hash,
    }
}

/// The merge that drops references: of tables, or of the pages of a family.
#[derive(Clone, Copy)]
pub(crate) struct DroppingJob<'a> {
    pub env: &'a Env,
    /// The family's id.
    pub family: u32,
    /// Order of the family's keys.
    pub cmp: &'a Cmp,
    /// Returns the present blob files.
    pub blobs: &'a dyn Fn() -> Arc<BlobSet>,
    /// The job ends with `Cancelled` soon after this is set.
    pub cancelled: &'a AtomicBool,
}

impl DroppingJob<'_> {
    fn check_cancelled(&self) -> Result<()> {
        match self.cancelled.load(Relaxed) {
            false => Ok(()),
            true => Err(cancelled()),
        }
    }
}

/// The records that lose their reference in a merge. See the module.
pub(crate) struct DroppedRefs<'a> {
    job: DroppingJob<'a>,
    waiting: Entries,
    dead: Vec<Dead>,
    /// Indexes that could not be read, by the number of their blob file.
    unreadable: BTreeMap<u64, Error>,
    /// Entries whose places have to be derived.
    underived: Entries,
    /// The memory of `underived` in the ledger.
    booked: Reservation,
}

impl<'a> DroppedRefs<'a> {
    pub(crate) fn new(job: DroppingJob<'a>) -> DroppedRefs<'a> {
        DroppedRefs {
            job,
            waiting: Entries::default(),
            dead: Vec::new(),
            unreadable: BTreeMap::new(),
            underived: Entries::default(),
            booked: job.env.ledger().reserve(MemoryKind::Buffer, 0),
        }
    }

    /// Adds the record that a dropped reference of this entry means. Fails with the error of a
    /// lookup.
    pub(crate) fn add(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<()> {
        let seq = to.seq.unwrap_or(seq);
        self.waiting.push(to.number, seq, user_key);
        match self.waiting.entries.len() < MAX_WAITING && self.waiting.keys.len() < MAX_KEY_BYTES {
            true => Ok(()),
            false => self.look_up_waiting(),
        }
    }

    /// Returns all records with their places, and one error for each index that could not be read.
    pub(crate) fn finish(mut self) -> Result<(Vec<Dead>, Vec<Error>)> {
        self.look_up_waiting()?;
        self.derive()?;
        Ok((self.dead, self.unreadable.into_values().collect()))
    }

    fn look_up_waiting(&mut self) -> Result<()> {
        let mut some = std::mem::take(&mut self.waiting);
        self.look_up(&some, false)?;
        some.clear();
        self.waiting = some;
        let bytes = self.underived.to_derive();
        self.booked.resize(bytes);
        let full = bytes >= UNREADABLE_BYTES || self.job.env.ledger().free() == 0;
        match full && bytes > 0 {
            true => self.derive(),
            false => Ok(()),
        }
    }

    /// Derives the places that could not be looked up.
    fn derive(&mut self) -> Result<()> {
        let all = std::mem::take(&mut self.underived);
        self.look_up(&all, true)?;
        self.booked.resize(0);
        Ok(())
    }

    /// Looks up the places of entries. If an index page cannot be read, derives the places if
    /// `derive`, and leaves the entries for later otherwise.
    fn look_up(&mut self, entries: &Entries, derive: bool) -> Result<()> {
        let (env, cmp) = (self.job.env, self.job.cmp);
        // Takes the present blob files, so that files replaced by garbage collection are not kept
        // longer.
        let blobs = (self.job.blobs)();
        let mut sought = Vec::with_capacity(entries.entries.len());
        for w in &entries.entries {
            let name = Name {
                family: self.job.family,
                key: &entries.keys[w.key.clone()],
                seq: w.seq,
            };
            let file = blobs.file(w.number, &name, cmp)?;
            let hash = name.hash(file.meta.file_id);
            sought.push((file, hash, name, w.number));
        }
        // Pages of an index are in the order of hashes.
        sought.sort_unstable_by_key(|(file, hash, ..)| (file.number, *hash));
        let mut pages = KeptIndexPages::default();
        self.dead.reserve(sought.len());
        let mut not_found: Vec<(&BlobFile, u64, Name<'_>)> = Vec::new();
        for some in sought.chunks(BATCH) {
            let mut wanted = Vec::with_capacity(some.len());
            let mut failed = Vec::with_capacity(some.len());
            for (file, _, name, _) in some {
                // A page that could not be read is not read again.
                let known = self.unreadable.get(&file.number).filter(|_| derive);
                match known.map_or_else(|| file.reader(), |e| Err(e.clone())) {
                    Ok(reader) => {
                        wanted.push(ValueRequest {
                            reader,
                            name: *name,
                        });
                        failed.push(None);
                    }
                    Err(e) => failed.push(Some(e)),
                }
            }
            let turn = env.foreground_io().turn();
            let mut located = locate(wanted, &mut pages, ReadMode::job(true)).into_iter();
            drop(turn);
            for ((file, hash, name, number), failed) in some.iter().zip(failed) {
                let located = match failed {
                    Some(e) => Err(e),
                    None => located.next().expect("each that has a reader"),
                };
                match located {
                    Ok(at) => self.dead.push(dead(file, *hash, name, at.place())),
                    Err(e) if is_worth_deriving(&e) => {
                        match derive {
                            true => not_found.push((file, *hash, *name)),
                            false => self.underived.push(*number, name.seq, name.key),
                        }
                        self.unreadable.entry(file.number).or_insert(e);
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        // One unreadable page must not stop every merge that drops a reference into its file.
        for of_file in not_found.chunk_by(|(a, ..), (b, ..)| a.number == b.number) {
            let file = of_file[0].0;
            let names: Vec<Name<'_>> = of_file.iter().map(|(_, _, name)| *name).collect();
            let places = file.places_from_records(&names, &mut || self.job.check_cancelled());
            let places = places.map_err(|e| match e.kind() {
                ErrorKind::Cancelled => e,
                _ => self.unreadable[&file.number].clone(),
            })?;
            for ((_, hash, name), place) in of_file.iter().zip(places) {
                self.dead.push(dead(file, *hash, name, place));
            }
        }
        Ok(())
    }
}
