//! [`Gathering`]: between a merge and its tables, it takes values along out of the files that were chosen (see [`super::scattered`]): what
//! comes is kept until some of them are met, these are read side by side, and everything goes on in its order.

use crate::blob::together::{InFlight, Located, Pages};
use crate::blob::{How, Name, Reference};
use crate::compaction::output::{Outputs, Sink};
use crate::compaction::run::Job;
use crate::key::{Kind, SeqNo, split_internal_key, trailer_seq};
use basalt_env::IoPriority;
use basalt_fs::{Bytes, Result};

/// Values that are read side by side at most.
const TOGETHER: usize = 64;
/// Bytes of values that are in memory at once, unless one alone is longer; and of keys that wait.
const MOST_BYTES: usize = 1 << 20;

/// What came from the merge.
enum Step {
    Key,
    Entry { value: Vec<u8> },
    Moved(Reference),
}

/// See the module.
pub(super) struct Gathering<'a, 'o> {
    outputs: &'o mut Outputs<'a>,
    job: &'a Job<'a>,
    /// Each with its user key, or its internal one.
    waiting: Vec<(Vec<u8>, Step)>,
    values: usize,
    bytes: usize,
    pages: Pages,
}

impl<'a, 'o> Gathering<'a, 'o> {
    pub(super) fn new(job: &'a Job<'a>, outputs: &'o mut Outputs<'a>) -> Gathering<'a, 'o> {
        Gathering {
            outputs,
            job,
            waiting: Vec::new(),
            values: 0,
            bytes: 0,
            pages: Pages::default(),
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
        match self.values >= TOGETHER || self.bytes >= MOST_BYTES {
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
                entries.push((name, to.number, cmp));
            }
        }
        let turn = self.job.env.courtesy().turn();
        let located = blobs.locate(&entries, &mut self.pages, How::job(true));
        drop(turn);
        let located: Result<Vec<Located<'_>>> = located.into_iter().collect();
        let located = located?;
        let mut left = &located[..];
        let mut read = Vec::new().into_iter();
        for (key, step) in &waiting {
            match step {
                Step::Key => self.outputs.begin_user_key(key)?,
                Step::Entry { value } => self.outputs.add(key, value)?,
                Step::Moved(to) => {
                    if read.len() == 0 {
                        let (some, rest) = left.split_at(fitting(left));
                        left = rest;
                        read = self.read(some)?.into_iter();
                    }
                    let (value, at): (Bytes, _) = read.next().expect("one for each");
                    self.outputs.add_moved(key, &value, to, at)?;
                }
            }
        }
        Ok(())
    }

    /// Values, and where each is in the cache if it is there.
    fn read(&self, some: &[Located<'_>]) -> Result<Vec<(Bytes, Option<basalt_env::CacheKey>)>> {
        let (env, how) = (&self.job.env, How::job(false));
        let bytes: usize = some.iter().map(|l| l.read_len()).sum();
        env.io_limit().acquire(bytes as u64, IoPriority::Low);
        let at: Vec<_> = some.iter().map(|l| l.cached_at()).collect();
        let turn = env.courtesy().turn();
        let read = InFlight::begin(some, how, false).finish(some, how);
        drop(turn);
        read.into_iter()
            .zip(at)
            .map(|(value, at)| Ok((value?, at)))
            .collect()
    }
}

/// How many of the first are read at once.
fn fitting(located: &[Located<'_>]) -> usize {
    let mut bytes = 0;
    let fits = located.iter().take_while(|l| {
        bytes += l.read_len();
        bytes <= MOST_BYTES
    });
    fits.count().max(1)
}

impl Sink for Gathering<'_, '_> {
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
