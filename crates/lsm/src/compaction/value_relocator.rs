//! [`ValueRelocator`]: between a merge and its tables, it takes values along out of the files that were chosen (see [`super::scattered`]): what
//! comes is kept until some of them are met, these are read side by side, and everything goes on in its order. A value that cannot be read stays
//! where it is, with the reference that it had.

use crate::compaction::output::{Outputs, Sink};
use crate::compaction::run::Job;
use basalt_blob::How;
use basalt_blob::batch_read::{InFlight, Located, Pages};
use basalt_env::{CacheKey, IoPriority};
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{Kind, SeqNo, split_internal_key, trailer_seq};
use basalt_kv::separated::{Name, Reference};
use std::collections::VecDeque;
use std::iter::Peekable;

/// Values that are read side by side at most.
const BATCH: usize = 64;
/// Bytes of values that are in memory at once, unless one alone is longer; and of keys that wait.
const MAX_BYTES: usize = 1 << 20;

/// What came from the merge.
enum Step {
    Key,
    Entry { value: Vec<u8> },
    Moved(Reference),
}

/// The chunks of a memtable, see the module.
pub(super) struct ValueRelocator<'a, 'o> {
    outputs: &'o mut Outputs<'a>,
    job: &'a Job<'a>,
    /// Each with its user key, or its internal one.
    waiting: Vec<(Vec<u8>, Step)>,
    values: usize,
    bytes: usize,
    pages: Pages,
    reference: Vec<u8>,
}

impl<'a, 'o> ValueRelocator<'a, 'o> {
    pub(super) fn new(job: &'a Job<'a>, outputs: &'o mut Outputs<'a>) -> ValueRelocator<'a, 'o> {
        ValueRelocator {
            outputs,
            job,
            waiting: Vec::new(),
            values: 0,
            bytes: 0,
            pages: Pages::default(),
            reference: Vec::new(),
        }
    }

    fn wait(&mut self, key: &[u8], step: Step) -> Result<()> {
        self.bytes += key.len()
            + match &step {
                Step::Entry { value } => value.len(),
                _ => 0,
            };
        self.values += usize::from(matches!(step, Step::Moved(_)));
        self.waiting.push((key.to_vec(), step));
        match self.values >= BATCH || self.bytes >= MAX_BYTES {
            true => self.pass_on(),
            false => Ok(()),
        }
    }

    /// Everything that waits goes on.
    pub(super) fn pass_on(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        (self.values, self.bytes) = (0, 0);
        let blobs = (self.job.blobs)();
        let cmp = &self.job.options.comparator;
        let mut entries = Vec::new();
        for (key, step) in &waiting {
            if let Step::Moved(to) = step {
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
        let located = blobs.locate(&entries, &mut self.pages, How::job(true));
        drop(turn);
        let mut located = located.into_iter().peekable();
        let mut read = VecDeque::new();
        for (key, step) in &waiting {
            match step {
                Step::Key => self.outputs.begin_user_key(key)?,
                Step::Entry { value } => self.outputs.add(key, value)?,
                Step::Moved(to) => {
                    if read.is_empty() {
                        read = self.read(&mut located);
                    }
                    match read.pop_front().expect("one for each") {
                        Ok((value, at)) => self.outputs.add_moved(key, &value, to, at)?,
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

    /// The next values, at most [`MAX_BYTES`] or one, and where each is in the cache if it is there.
    fn read<'l>(
        &self,
        from: &mut Peekable<impl Iterator<Item = Result<Located<'l>>>>,
    ) -> VecDeque<Result<(Bytes, Option<CacheKey>)>> {
        let (env, how) = (&self.job.env, How::job(false));
        // What was not found keeps its place among the others.
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

impl Sink for ValueRelocator<'_, '_> {
    fn begin_user_key(&mut self, user_key: &[u8]) -> Result<()> {
        self.wait(user_key, Step::Key)
    }

    fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        let (user, trailer) = split_internal_key(internal_key);
        if trailer as u8 == Kind::BlobRef as u8 {
            let to = Reference::decode(value)?;
            if self.outputs.is_gathered(user, trailer_seq(trailer), &to)? {
                return self.wait(internal_key, Step::Moved(to));
            }
        }
        let value = value.to_vec();
        self.wait(internal_key, Step::Entry { value })
    }

    fn open(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<Bytes> {
        self.outputs.open(user_key, seq, to)
    }

    fn let_go(&mut self, user_key: &[u8], seq: SeqNo, to: &Reference) -> Result<()> {
        self.outputs.let_go(user_key, seq, to)
    }
}
