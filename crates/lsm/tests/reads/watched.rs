//! A simulated disk that counts reads, and how many of them were in flight together.

use basalt_env::{Env, EnvBuilder};
use basalt_fs::{
    DirEntry, File, FileStat, FileSystem, FsInfo, FsStats, LockGuard, LogOptions, ReadCompletions,
    ReadRequest, Result, Space,
};
use basalt_sim::{SimFs, SimOptions};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A batch of reads: the number of reads, and of files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    pub reads: usize,
    pub files: usize,
}

pub struct Watched {
    inner: Arc<SimFs>,
    batches: Mutex<Vec<Batch>>,
}

impl Watched {
    pub fn new() -> Arc<Watched> {
        Arc::new(Watched {
            inner: SimFs::new(SimOptions::default()),
            batches: Mutex::default(),
        })
    }

    /// Returns an environment over the disk.
    pub fn env(self: &Arc<Self>, cache_bytes: u64) -> Env {
        EnvBuilder::for_tests(self.clone(), 7)
            .memory_bytes(256 << 20)
            .cache_bytes(cache_bytes)
            .build()
    }

    /// Runs `run`. Returns its result, the number of its reads outside of batches, and its batches.
    pub fn watch<T>(&self, run: impl FnOnce() -> T) -> (T, u64, Vec<Batch>) {
        let before = self.inner.stats().reads;
        self.batches.lock().expect("not in a panic").clear();
        let answer = run();
        let batches = std::mem::take(&mut *self.batches.lock().expect("not in a panic"));
        // The simulated disk counts a batch, and each read in it.
        let batched: usize = batches.iter().map(|b| b.reads + 1).sum();
        let reads = self.inner.stats().reads - before - batched as u64;
        (answer, reads, batches)
    }
}

impl FileSystem for Watched {
    fn info(&self) -> FsInfo {
        self.inner.info()
    }
    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.inner.create(path)
    }
    fn create_log(&self, path: &Path, options: LogOptions<'_>) -> Result<Arc<dyn File>> {
        self.inner.create_log(path, options)
    }
    fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.inner.open(path)
    }
    fn stat(&self, path: &Path) -> Result<FileStat> {
        self.inner.stat(path)
    }
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.inner.create_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)
    }
    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.link(from, to)
    }
    fn sync_metadata(&self, dir: &Path) -> Result<()> {
        self.inner.sync_metadata(dir)
    }
    fn submit_reads(&self, reads: Vec<ReadRequest>) -> Box<dyn ReadCompletions> {
        let mut files: Vec<_> = reads.iter().map(|r| Arc::as_ptr(&r.file)).collect();
        files.sort_by_key(|f| f.cast::<()>());
        files.dedup_by_key(|f| f.cast::<()>());
        self.batches.lock().expect("not in a panic").push(Batch {
            reads: reads.len(),
            files: files.len(),
        });
        // The disk does all reads at once, so that they count where they were requested.
        let mut batch = self.inner.submit_reads(reads);
        Box::new(Ready(std::iter::from_fn(|| batch.next()).collect()))
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.inner.lock(path)
    }
    fn space(&self, path: &Path) -> Result<Space> {
        self.inner.space(path)
    }
    fn stats(&self) -> FsStats {
        self.inner.stats()
    }
}

/// Reads that have ended.
struct Ready(VecDeque<(usize, Result<basalt_fs::Bytes>)>);

impl ReadCompletions for Ready {
    fn next(&mut self) -> Option<(usize, Result<basalt_fs::Bytes>)> {
        self.0.pop_front()
    }
    fn try_next(&mut self) -> Option<(usize, Result<basalt_fs::Bytes>)> {
        self.0.pop_front()
    }
}
