//! [`Departed`]: records that lose their reference in a merge. Their places in their files are looked up many at a time, in the order of the
//! index: a page of it is read once for all of them that it has, and pages that are in no cache are read side by side.
//! Where a page cannot be read, the places are derived from the file's records.

use crate::blob::derive::is_worth_deriving;
use crate::blob::garbage::Dead;
use crate::blob::together::{Pages, Place, Sought, locate};
use crate::blob::{How, Name, Reference};
use crate::compaction::run::Job;
use crate::key::SeqNo;
use crate::version::BlobFile;
use basalt_fs::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// So many wait at most, with so many bytes of keys.
const WAITING: usize = 16 << 10;
const KEY_BYTES: usize = 4 << 20;
/// So many are looked up together: they take two pages of an index each at most.
const TOGETHER: usize = 256;

/// One that waits.
struct Waiting {
    number: u64,
    seq: SeqNo,
    /// In `keys`.
    key: Range<usize>,
}

fn dead(file: &BlobFile, hash: u64, name: &Name<'_>, (ordinal, place): Place) -> Dead {
    Dead {
        file: file.number,
        ordinal,
        family: name.family,
        bytes: place.end - place.start,
        hash,
    }
}

/// What a merge let go of.
pub(super) struct Departed<'a> {
    job: &'a Job<'a>,
    waiting: Vec<Waiting>,
    keys: Vec<u8>,
    dead: Vec<Dead>,
    /// Indexes that could not be read, by the number of their blob file.
    unreadable: BTreeMap<u64, Error>,
}

impl<'a> Departed<'a> {
    pub(super) fn new(job: &'a Job<'a>) -> Departed<'a> {
        Departed {
            job,
            waiting: Vec::new(),
            keys: Vec::new(),
            dead: Vec::new(),
            unreadable: BTreeMap::new(),
        }
    }

    /// The record behind a reference of this version of a key loses it.
    pub(super) fn add(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<()> {
        let from = self.keys.len();
        self.keys.extend_from_slice(user_key);
        self.waiting.push(Waiting {
            number: to.number,
            seq: to.seq.unwrap_or(seq),
            key: from..self.keys.len(),
        });
        match self.waiting.len() < WAITING && self.keys.len() < KEY_BYTES {
            true => Ok(()),
            false => self.look_up(),
        }
    }

    /// All of them, looked up, and what was met in indexes that could not be read.
    pub(super) fn finish(mut self) -> Result<(Vec<Dead>, Vec<Error>)> {
        self.look_up()?;
        Ok((self.dead, self.unreadable.into_values().collect()))
    }

    fn look_up(&mut self) -> Result<()> {
        let (env, cmp) = (&self.job.env, &self.job.options.comparator);
        // Of now: files that were collected since the references were written are not kept for longer.
        let blobs = (self.job.blobs)();
        let mut sought = Vec::with_capacity(self.waiting.len());
        for w in &self.waiting {
            let name = Name {
                family: self.job.family.id,
                key: &self.keys[w.key.clone()],
                seq: w.seq,
            };
            let file = blobs.file(w.number, &name, cmp)?;
            let hash = name.hash(file.meta.file_id);
            sought.push((file, hash, name));
        }
        // Pages of an index are in the order of hashes.
        sought.sort_unstable_by_key(|(file, hash, _)| (file.number, *hash));
        let mut pages = Pages::default();
        self.dead.reserve(sought.len());
        let mut not_found: Vec<(&BlobFile, u64, Name<'_>)> = Vec::new();
        for some in sought.chunks(TOGETHER) {
            let mut wanted = Vec::with_capacity(some.len());
            let mut failed = Vec::with_capacity(some.len());
            for (file, _, name) in some {
                match file.reader() {
                    Ok(reader) => {
                        wanted.push(Sought {
                            reader,
                            name: *name,
                        });
                        failed.push(None);
                    }
                    Err(e) => failed.push(Some(e)),
                }
            }
            let turn = env.courtesy().turn();
            let mut located = locate(wanted, &mut pages, How::job(true)).into_iter();
            drop(turn);
            for ((file, hash, name), failed) in some.iter().zip(failed) {
                let located = match failed {
                    Some(e) => Err(e),
                    None => located.next().expect("each that has a reader"),
                };
                match located {
                    Ok(at) => self.dead.push(dead(file, *hash, name, at.place())),
                    Err(e) if is_worth_deriving(&e) => {
                        not_found.push((file, *hash, *name));
                        self.unreadable.entry(file.number).or_insert(e);
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        // One bad page must not stop every merge that drops a reference into its file.
        for of_file in not_found.chunk_by(|(a, ..), (b, ..)| a.number == b.number) {
            let file = of_file[0].0;
            let names: Vec<Name<'_>> = of_file.iter().map(|(_, _, name)| *name).collect();
            let places = file.places_from_records(&names, &mut || self.job.check_cancelled());
            let places = places.map_err(|e| match e.kind() {
                ErrorKind::Closed => e,
                _ => self.unreadable[&file.number].clone(),
            })?;
            for ((_, hash, name), place) in of_file.iter().zip(places) {
                self.dead.push(dead(file, *hash, name, place));
            }
        }
        drop(sought);
        self.waiting.clear();
        self.keys.clear();
        Ok(())
    }
}
