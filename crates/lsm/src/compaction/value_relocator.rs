//! [`ValueRelocator`]: a sink between a merge and its outputs that relocates values out of chosen
//! blob files (see [`super::relocation_pick`]).
//!
//! Entries are queued until there are enough values to relocate. These are read together, and all
//! entries go to the outputs in their order. A value that cannot be read stays where it is, with
//! its old reference.

use crate::compaction::output::{MergeSink, Outputs};
use crate::compaction::run::CompactionJob;
use basalt_blob::batch_read::{InFlight, KeptIndexPages, Located};
use basalt_blob::{Name, ReadMode, Reference};
use basalt_env::{CacheKey, IoPriority};
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{Kind, SeqNo, split_internal_key, trailer_seq};
use std::collections::VecDeque;
use std::iter::Peekable;

/// Most values that are read together.
const BATCH: usize = 64;
/// Most bytes of values that are in memory at once, unless one alone is longer; and most bytes of
/// queued keys.
const MAX_BYTES: usize = 1 << 20;

/// A call of the merge that is queued.
enum Queued {
    /// The begin of a user key.
    Key,
    /// An entry that goes on as it is.
    Entry { value: Vec<u8> },
    /// An entry whose value is relocated.
    Relocated(Reference),
}

/// A sink that relocates values. See the module.
pub(super) struct ValueRelocator<'a, 'o> {
    outputs: &'o mut Outputs<'a>,
    job: &'a CompactionJob<'a>,
    /// The queued calls, each with its user key or its internal key.
    queue: Vec<(Vec<u8>, Queued)>,
    /// Values to relocate in the queue.
    values: usize,
    /// Bytes of keys and values in the queue.
    bytes: usize,
    pages: KeptIndexPages,
    reference: Vec<u8>,
}

impl<'a, 'o> ValueRelocator<'a, 'o> {
    pub(super) fn new(
        job: &'a CompactionJob<'a>,
        outputs: &'o mut Outputs<'a>,
    ) -> ValueRelocator<'a, 'o> {
        ValueRelocator {
            outputs,
            job,
            queue: Vec::new(),
            values: 0,
            bytes: 0,
            pages: KeptIndexPages::default(),
            reference: Vec::new(),
        }
    }

    /// Queues a call, and flushes a full queue.
    fn enqueue(&mut self, key: &[u8], step: Queued) -> Result<()> {
        self.bytes += key.len()
            + match &step {
                Queued::Entry { value } => value.len(),
                _ => 0,
            };
        self.values += usize::from(matches!(step, Queued::Relocated(_)));
        self.queue.push((key.to_vec(), step));
        match self.values >= BATCH || self.bytes >= MAX_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Reads the values to relocate and passes all queued calls to the outputs.
    pub(super) fn flush(&mut self) -> Result<()> {
        let queue = std::mem::take(&mut self.queue);
        (self.values, self.bytes) = (0, 0);
        let blobs = (self.job.blobs)();
        let cmp = &self.job.options.comparator;
        let mut entries = Vec::new();
        for (key, step) in &queue {
            if let Queued::Relocated(to) = step {
                let (user, trailer) = split_internal_key(key);
                let name = Name {
                    family: self.job.family.id,
                    key: user,
                    seq: trailer_seq(trailer),
                };
                entries.push((to.record(&name), to.number, cmp));
            }
        }
        let turn = self.job.env.foreground_io().turn();
        let located = blobs.locate(&entries, &mut self.pages, ReadMode::job(true));
        drop(turn);
        let mut located = located.into_iter().peekable();
        let mut read = VecDeque::new();
        for (key, step) in &queue {
            match step {
                Queued::Key => self.outputs.begin_user_key(key)?,
                Queued::Entry { value } => self.outputs.add(key, value)?,
                Queued::Relocated(to) => {
                    if read.is_empty() {
                        read = self.read(&mut located);
                    }
                    match read.pop_front().expect("one for each") {
                        Ok((value, at)) => self.outputs.add_relocated(key, &value, to, at)?,
                        Err(_) => {
                            self.reference.clear();
                            to.encode(&mut self.reference);
                            self.outputs.add(key, &self.reference)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the next values, at most [`MAX_BYTES`] or one. Returns each with its cache key if it
    /// is in the cache.
    fn read<'l>(
        &self,
        from: &mut Peekable<impl Iterator<Item = Result<Located<'l>>>>,
    ) -> VecDeque<Result<(Bytes, Option<CacheKey>)>> {
        let (env, how) = (&self.job.env, ReadMode::job(false));
        // Values that were not located keep their place in the order.
        let (mut some, mut lost, mut bytes) = (Vec::new(), Vec::new(), 0);
        let fits = |l: &Result<Located<'_>>, bytes: usize| match l {
            Ok(l) => bytes == 0 || bytes + l.read_len() <= MAX_BYTES,
            Err(_) => true,
        };
        while let Some(next) = from.next_if(|l| fits(l, bytes)) {
            match next {
                Ok(l) => {
                    bytes += l.read_len();
                    some.push(l);
                }
                Err(e) => lost.push((some.len() + lost.len(), e)),
            }
        }
        env.io_limit().acquire(bytes as u64, IoPriority::Low);
        let at: Vec<_> = some.iter().map(|l| l.cached_at()).collect();
        let turn = env.foreground_io().turn();
        let read = InFlight::begin(&some, how, false).finish(&some, how);
        drop(turn);
        let read = read.into_iter().zip(at);
        let mut all: VecDeque<_> = read.map(|(value, at)| value.map(|v| (v, at))).collect();
        for (i, e) in lost {
            all.insert(i, Err(e));
        }
        all
    }
}

impl MergeSink for ValueRelocator<'_, '_> {
    fn begin_user_key(&mut self, user_key: &[u8]) -> Result<()> {
        self.enqueue(user_key, Queued::Key)
    }

    fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        let (user, trailer) = split_internal_key(internal_key);
        if trailer as u8 == Kind::BlobRef as u8 {
            let to = Reference::decode(value)?;
            if self.outputs.is_relocated(user, trailer_seq(trailer), &to)? {
                return self.enqueue(internal_key, Queued::Relocated(to));
            }
        }
        let value = value.to_vec();
        self.enqueue(internal_key, Queued::Entry { value })
    }

    fn read_value(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<Bytes> {
        self.outputs.read_value(user_key, seq, to)
    }

    fn drop_reference(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<()> {
        self.outputs.drop_reference(user_key, seq, to)
    }
}
