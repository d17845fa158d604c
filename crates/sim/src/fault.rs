//! `FaultFs`: wraps any filesystem and makes its calls fail, by the n-th call, by path, by seed.
//!
//! The effect of a failed call is as open as on a real device, and the seed decides. After a failed
//! append, any part of the bytes may be in the file. A failed sync may have made the bytes durable
//! or not. A call on names that failed with EIO may have happened. Handles are poisoned as the
//! contract says. Calls are counted by kind, and so are the faults that struck. So a test can fail
//! every k-th call for every k, and prove that each kind of call met each kind of fault.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::rng::Rng;
use crate::{OpKind, When};
use basalt_fs::{
    DirEntry, Error, ErrorKind, File, FileStat, FileSystem, FsInfo, FsMetric, FsStats, Intent,
    LockGuard, LogOptions, ReadCompletions, ReadRequest, Result, Space,
};

/// The effect of a rule on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultKind {
    /// The call fails with `Io`. With [`When::From`] it fails from then on.
    Eio,
    /// The call fails with `NoSpace`.
    Enospc,
    /// An append writes a part of its bytes and fails with `Io`.
    ShortWrite,
    /// A sync fails with `Io`. It is unknown whether it did its work.
    FailedSync,
    /// A read returns one wrong bit.
    BitFlip,
    /// The call fails with `Unsupported`, as on a filesystem without this feature.
    Unsupported,
    /// The call takes this much longer.
    Latency(Duration),
}

impl FaultKind {
    /// The kinds that fail or falsify a call.
    pub const ALL: &'static [FaultKind] = &[
        FaultKind::Eio,
        FaultKind::Enospc,
        FaultKind::ShortWrite,
        FaultKind::FailedSync,
        FaultKind::BitFlip,
    ];

    /// Returns true if a call of kind `op` can meet this fault.
    pub fn applies_to(self, op: OpKind) -> bool {
        match self {
            FaultKind::Eio => !matches!(op, OpKind::AlignToUnit | OpKind::Lock | OpKind::Space),
            FaultKind::Enospc => matches!(
                op,
                OpKind::Create
                    | OpKind::CreateLog
                    | OpKind::CreateDir
                    | OpKind::Rename
                    | OpKind::Link
                    | OpKind::Append
                    | OpKind::ExtendLog
                    | OpKind::SyncData
                    | OpKind::SyncAll
                    | OpKind::SyncFiles
                    | OpKind::SyncMetadata
            ),
            FaultKind::ShortWrite => op == OpKind::Append,
            FaultKind::FailedSync => op.syncs(),
            FaultKind::BitFlip => op == OpKind::Read,
            FaultKind::Unsupported => matches!(op, OpKind::ReleaseRange | OpKind::Link),
            FaultKind::Latency(_) => true,
        }
    }

    fn error(self, op: OpKind, path: &Path) -> Error {
        let code = match self {
            FaultKind::Enospc => rustix::io::Errno::NOSPC,
            FaultKind::Unsupported => rustix::io::Errno::OPNOTSUPP,
            _ => rustix::io::Errno::IO,
        };
        Error::io(op.name(), path, code.into()).context("injected fault")
    }
}

/// A rule: which calls fail, and how.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The kind of call. `None` stands for every kind that can meet the fault.
    pub op: Option<OpKind>,
    /// A part of the path (of one of the paths, if a call has several). An empty text matches all.
    pub path: String,
    /// The matching calls that fail.
    pub when: When,
    /// The effect on these calls.
    pub kind: FaultKind,
}

/// A rule with its count of matching calls.
struct Rule {
    fault: Fault,
    seen: u64,
    rng: Rng,
}

struct Rules {
    rules: Vec<Rule>,
    calls: BTreeMap<OpKind, u64>,
    fired: BTreeMap<(OpKind, FaultKind), u64>,
    rng: Rng,
}

type Sleep = Box<dyn Fn(Duration) + Send + Sync>;

/// The rules and counters of a [`FaultFs`].
struct FaultState {
    rules: Mutex<Rules>,
    sleep: Sleep,
}

impl FaultState {
    /// Counts the call. Returns the fault that strikes it, if one does, and the random numbers that
    /// decide the rest.
    fn strike(&self, op: OpKind, paths: &[&Path]) -> Option<(FaultKind, Rng)> {
        let mut hit = None;
        let mut delay = Duration::ZERO;
        {
            let mut guard = self.rules.lock();
            let Rules {
                rules,
                calls,
                fired,
                rng,
            } = &mut *guard;
            *calls.entry(op).or_insert(0) += 1;
            for r in rules {
                let f = &r.fault;
                let matches = f.op.is_none_or(|o| o == op)
                    && f.kind.applies_to(op)
                    && (f.path.is_empty()
                        || paths.iter().any(|p| p.to_string_lossy().contains(&f.path)));
                if !matches {
                    continue;
                }
                r.seen += 1;
                if !f.when.strikes(r.seen, &mut r.rng) {
                    continue;
                }
                if let FaultKind::Latency(d) = f.kind {
                    delay += d;
                } else if hit.is_none() {
                    hit = Some((f.kind, Rng::new(rng.next_u64())));
                } else {
                    continue;
                }
                *fired.entry((op, f.kind)).or_insert(0) += 1;
            }
        }
        if delay > Duration::ZERO {
            (self.sleep)(delay);
        }
        hit
    }

    /// Runs a call on names. It fails before or, with `Eio`, perhaps after its effect.
    fn on_names<R>(
        &self,
        op: OpKind,
        paths: &[&Path],
        call: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        match self.strike(op, paths) {
            None => call(),
            Some((kind, mut rng)) => {
                let may_be_done = !matches!(kind, FaultKind::Enospc | FaultKind::Unsupported);
                if op.mutates() && may_be_done && rng.coin() {
                    call()?;
                }
                Err(kind.error(op, paths[0]))
            }
        }
    }
}

/// A filesystem whose calls fail by rules.
pub struct FaultFs {
    inner: Arc<dyn FileSystem>,
    shared: Arc<FaultState>,
}

impl FaultFs {
    /// Wraps `inner`. Without rules, every call passes through. The calling thread sleeps for a
    /// latency.
    pub fn new(inner: Arc<dyn FileSystem>, seed: u64) -> Arc<FaultFs> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the clock is a crate above; a test that simulates time passes its own sleep"
        )]
        FaultFs::with_sleep(inner, seed, Box::new(std::thread::sleep))
    }

    /// Wraps `inner` as [`FaultFs::new`] does. `sleep` spends the latency.
    pub fn with_sleep(inner: Arc<dyn FileSystem>, seed: u64, sleep: Sleep) -> Arc<FaultFs> {
        Arc::new(FaultFs {
            inner,
            shared: Arc::new(FaultState {
                rules: Mutex::new(Rules {
                    rules: Vec::new(),
                    calls: BTreeMap::new(),
                    fired: BTreeMap::new(),
                    rng: Rng::new(seed),
                }),
                sleep,
            }),
        })
    }

    /// Adds a rule, and returns its number for [`FaultFs::seen`]. If several rules strike one call,
    /// the first one decides.
    pub fn inject(&self, fault: Fault) -> usize {
        let mut rules = self.shared.rules.lock();
        let rng = Rng::new(rules.rng.next_u64());
        rules.rules.push(Rule {
            fault,
            seen: 0,
            rng,
        });
        rules.rules.len() - 1
    }

    /// Removes all rules. Poisoned handles stay poisoned.
    pub fn clear(&self) {
        self.shared.rules.lock().rules.clear();
    }

    /// Returns the number of calls that matched a rule so far, struck or not. It is 0 after the
    /// rule was removed.
    pub fn seen(&self, rule: usize) -> u64 {
        self.shared
            .rules
            .lock()
            .rules
            .get(rule)
            .map_or(0, |r| r.seen)
    }

    /// Returns the number of calls of one kind so far.
    pub fn calls(&self, op: OpKind) -> u64 {
        self.shared
            .rules
            .lock()
            .calls
            .get(&op)
            .copied()
            .unwrap_or(0)
    }

    /// Returns the number of calls so far.
    pub fn total_calls(&self) -> u64 {
        self.shared.rules.lock().calls.values().sum()
    }

    /// Returns how often each fault struck each kind of call.
    pub fn fired(&self) -> BTreeMap<(OpKind, FaultKind), u64> {
        self.shared.rules.lock().fired.clone()
    }

    /// Returns the wrapped filesystem.
    pub fn inner(&self) -> &Arc<dyn FileSystem> {
        &self.inner
    }

    fn wrap(&self, path: &Path, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(FaultFile {
            inner,
            shared: Arc::clone(&self.shared),
            path: path.to_path_buf(),
            poisoned: AtomicBool::new(false),
            end: Mutex::new(None),
        })
    }
}

impl FileSystem for FaultFs {
    fn info(&self) -> FsInfo {
        let mut info = self.inner.info();
        info.description = format!("{}, with injected faults", info.description);
        info
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        let file = self
            .shared
            .on_names(OpKind::Create, &[path], || self.inner.create(path))?;
        Ok(self.wrap(path, file))
    }

    fn create_log(&self, path: &Path, options: LogOptions<'_>) -> Result<Arc<dyn File>> {
        let mut paths = vec![path];
        paths.extend(options.reuse);
        let file = self.shared.on_names(OpKind::CreateLog, &paths, || {
            self.inner.create_log(path, options)
        })?;
        Ok(self.wrap(path, file))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        let file = self
            .shared
            .on_names(OpKind::Open, &[path], || self.inner.open(path))?;
        Ok(self.wrap(path, file))
    }

    fn stat(&self, path: &Path) -> Result<FileStat> {
        self.shared
            .on_names(OpKind::Stat, &[path], || self.inner.stat(path))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.shared
            .on_names(OpKind::List, &[dir], || self.inner.list(dir))
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.shared
            .on_names(OpKind::CreateDir, &[dir], || self.inner.create_dir(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.shared
            .on_names(OpKind::Rename, &[from, to], || self.inner.rename(from, to))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.shared
            .on_names(OpKind::Remove, &[path], || self.inner.remove(path))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.shared
            .on_names(OpKind::Link, &[from, to], || self.inner.link(from, to))
    }

    fn sync_metadata(&self, dir: &Path) -> Result<()> {
        self.shared.on_names(OpKind::SyncMetadata, &[dir], || {
            self.inner.sync_metadata(dir)
        })
    }

    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        let wrapped: Vec<&FaultFile> = files
            .iter()
            .filter_map(|f| f.as_any().downcast_ref())
            .collect();
        for f in &wrapped {
            f.check_poison()?;
        }
        let bare: Vec<Arc<dyn File>> = files.iter().map(unwrap).collect();
        let paths: Vec<&Path> = wrapped.iter().map(|f| f.path.as_path()).collect();
        let result = match self.shared.strike(OpKind::SyncFiles, &paths) {
            None => self.inner.sync_files(&bare),
            Some((kind, mut rng)) => {
                // One device flush may have reached some of the files and not the others.
                for f in &bare {
                    if rng.coin() {
                        let _ = f.sync_data();
                    }
                }
                let first = paths.first().copied().unwrap_or(Path::new(""));
                Err(kind.error(OpKind::SyncFiles, first))
            }
        };
        if result.is_err() {
            wrapped.iter().for_each(|f| f.poison());
        }
        result
    }

    fn submit_reads(&self, reads: Vec<ReadRequest>) -> Box<dyn ReadCompletions> {
        let mut plans = Vec::with_capacity(reads.len());
        let mut bare = Vec::with_capacity(reads.len());
        for r in reads {
            let path = match r.file.as_any().downcast_ref::<FaultFile>() {
                Some(f) => f.path.clone(),
                None => PathBuf::new(),
            };
            let fault = self.shared.strike(OpKind::Read, &[&path]);
            plans.push((path, fault));
            bare.push(ReadRequest {
                file: unwrap(&r.file),
                ..r
            });
        }
        Box::new(FaultReads {
            inner: self.inner.submit_reads(bare),
            plans,
        })
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        match self.shared.strike(OpKind::Lock, &[path]) {
            None => self.inner.lock(path),
            Some((kind, _)) => Err(kind.error(OpKind::Lock, path)),
        }
    }

    fn lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        match self.shared.strike(OpKind::Lock, &[path]) {
            None => self.inner.lock_shared(path),
            Some((kind, _)) => Err(kind.error(OpKind::Lock, path)),
        }
    }

    fn space(&self, path: &Path) -> Result<Space> {
        self.shared
            .on_names(OpKind::Space, &[path], || self.inner.space(path))
    }

    fn stats(&self) -> FsStats {
        self.inner.stats()
    }

    fn metrics(&self) -> Vec<FsMetric> {
        self.inner.metrics()
    }
}

fn unwrap(file: &Arc<dyn File>) -> Arc<dyn File> {
    match file.as_any().downcast_ref::<FaultFile>() {
        Some(f) => Arc::clone(&f.inner),
        None => Arc::clone(file),
    }
}

struct FaultFile {
    inner: Arc<dyn File>,
    shared: Arc<FaultState>,
    path: PathBuf,
    poisoned: AtomicBool,
    /// The append position before a failed append. It must not seem to have moved.
    end: Mutex<Option<u64>>,
}

impl FaultFile {
    fn poison(&self) {
        self.poisoned.store(true, SeqCst);
    }

    fn check_poison(&self) -> Result<()> {
        if self.poisoned.load(SeqCst) {
            return Err(Error::new(
                ErrorKind::Poisoned,
                "an earlier append or sync of this file failed",
            )
            .in_file(&self.path));
        }
        Ok(())
    }

    fn sync(&self, op: OpKind, call: impl FnOnce() -> Result<()>) -> Result<()> {
        self.check_poison()?;
        match self.shared.strike(op, &[&self.path]) {
            None => call(),
            Some((kind, mut rng)) => {
                self.poison();
                if rng.coin() {
                    let _ = call();
                }
                Err(kind.error(op, &self.path))
            }
        }
    }
}

impl File for FaultFile {
    fn append(&self, bufs: &[IoSlice<'_>], intent: Intent) -> Result<u64> {
        self.check_poison()?;
        // Appends run one at a time, so that the position kept for a failed append is the right
        // one.
        let mut end = self.end.lock();
        self.check_poison()?;
        let Some((kind, mut rng)) = self.shared.strike(OpKind::Append, &[&self.path]) else {
            return self.inner.append(bufs, intent);
        };
        let bytes: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        let total = bytes.len() as u64;
        let part = match kind {
            FaultKind::ShortWrite if total > 1 => 1 + rng.below(total - 1),
            FaultKind::ShortWrite => 0,
            _ => rng.below(total + 1),
        };
        *end = Some(self.inner.len());
        self.poison();
        if part > 0 {
            // A read-only handle fails by itself, and its error is the one to return.
            match self
                .inner
                .append(&[IoSlice::new(&bytes[..part as usize])], intent)
            {
                Err(e) if e.kind() == ErrorKind::ReadOnly => return Err(e),
                _ => {}
            }
        }
        Err(kind.error(OpKind::Append, &self.path))
    }

    fn align_to_unit(&self) -> Result<u64> {
        self.check_poison()?;
        match self.shared.strike(OpKind::AlignToUnit, &[&self.path]) {
            None => self.inner.align_to_unit(),
            Some((kind, _)) => {
                self.poison();
                Err(kind.error(OpKind::AlignToUnit, &self.path))
            }
        }
    }

    fn sync_data(&self) -> Result<()> {
        self.sync(OpKind::SyncData, || self.inner.sync_data())
    }

    fn sync_data_to(&self, to: u64) -> Result<()> {
        self.sync(OpKind::SyncData, || self.inner.sync_data_to(to))
    }

    fn sync_all(&self) -> Result<()> {
        self.sync(OpKind::SyncAll, || self.inner.sync_all())
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        match self.shared.strike(OpKind::Read, &[&self.path]) {
            None => self.inner.read(offset, len),
            Some(fault) => spoil_read(&self.path, Some(fault), self.inner.read(offset, len)),
        }
    }

    fn len(&self) -> u64 {
        self.end.lock().unwrap_or_else(|| self.inner.len())
    }

    fn allocated(&self) -> u64 {
        self.inner.allocated()
    }

    fn extend_log(&self, capacity: u64) -> Result<()> {
        self.shared.on_names(OpKind::ExtendLog, &[&self.path], || {
            self.inner.extend_log(capacity)
        })
    }

    fn expect_appends(&self, to: u64) {
        self.inner.expect_appends(to);
    }

    fn release_range(&self, range: Range<u64>) -> Result<()> {
        self.shared
            .on_names(OpKind::ReleaseRange, &[&self.path], || {
                self.inner.release_range(range)
            })
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

fn spoil_read(
    path: &Path,
    fault: Option<(FaultKind, Rng)>,
    result: Result<Bytes>,
) -> Result<Bytes> {
    match fault {
        None => result,
        Some((FaultKind::BitFlip, mut rng)) => result.map(|bytes| {
            let mut bytes = bytes.to_vec();
            if !bytes.is_empty() {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
            bytes.into()
        }),
        Some((kind, _)) => Err(kind.error(OpKind::Read, path)),
    }
}

struct FaultReads {
    inner: Box<dyn ReadCompletions>,
    plans: Vec<(PathBuf, Option<(FaultKind, Rng)>)>,
}

impl FaultReads {
    fn spoil(&self, done: (usize, Result<Bytes>)) -> (usize, Result<Bytes>) {
        let (path, fault) = &self.plans[done.0];
        (done.0, spoil_read(path, fault.clone(), done.1))
    }
}

impl ReadCompletions for FaultReads {
    fn wait_all(&mut self) {
        self.inner.wait_all();
    }

    fn next(&mut self) -> Option<(usize, Result<Bytes>)> {
        let done = self.inner.next()?;
        Some(self.spoil(done))
    }

    fn try_next(&mut self) -> Option<(usize, Result<Bytes>)> {
        let done = self.inner.try_next()?;
        Some(self.spoil(done))
    }
}
