//! [`Departed`]: records that lose their reference in a merge. Their places in their files are looked up many at a time, in the order of the
//! index: a page of it is read once for all of them that it has, and pages that are in no cache are read side by side.

use crate::blob::garbage::Dead;
use crate::blob::together::{Pages, Sought, locate};
use crate::blob::{How, Name, Reference};
use crate::compaction::run::Job;
use crate::key::SeqNo;
use basalt_fs::Result;
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

/// What a merge let go of.
pub(super) struct Departed<'a> {
    job: &'a Job<'a>,
    waiting: Vec<Waiting>,
    keys: Vec<u8>,
    dead: Vec<Dead>,
}

impl<'a> Departed<'a> {
    pub(super) fn new(job: &'a Job<'a>) -> Departed<'a> {
        Departed {
            job,
            waiting: Vec::new(),
            keys: Vec::new(),
            dead: Vec::new(),
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

    /// All of them, looked up.
    pub(super) fn finish(mut self) -> Result<Vec<Dead>> {
        self.look_up()?;
        Ok(self.dead)
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
        for some in sought.chunks(TOGETHER) {
            let mut wanted = Vec::with_capacity(some.len());
            for (file, _, name) in some {
                wanted.push(Sought {
                    reader: file.reader()?,
                    name: *name,
                });
            }
            let turn = env.courtesy().turn();
            let located = locate(wanted, &mut pages, How::job(true));
            drop(turn);
            for ((file, hash, name), located) in some.iter().zip(located) {
                let located = located?;
                self.dead.push(Dead {
                    file: file.number,
                    ordinal: located.ordinal(),
                    family: name.family,
                    bytes: located.read_len() as u64,
                    hash: *hash,
                });
            }
        }
        drop(sought);
        self.waiting.clear();
        self.keys.clear();
        Ok(())
    }
}
