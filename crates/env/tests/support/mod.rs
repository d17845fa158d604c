//! A filesystem without files, for tests that need an environment and touch no file.
#![allow(dead_code, reason = "each test file uses its part")]

use basalt_fs::*;
use std::path::Path;
use std::sync::Arc;

/// A filesystem whose every call on a file fails.
pub struct NoFiles;

fn none<T>() -> Result<T> {
    Err(Error::unsupported("this filesystem holds no files"))
}

impl FileSystem for NoFiles {
    fn info(&self) -> FsInfo {
        FsInfo::new("no files", 512)
    }
    fn create(&self, _: &Path) -> Result<Arc<dyn File>> {
        none()
    }
    fn create_log(&self, _: &Path, _: LogOptions<'_>) -> Result<Arc<dyn File>> {
        none()
    }
    fn open(&self, _: &Path) -> Result<Arc<dyn File>> {
        none()
    }
    fn stat(&self, _: &Path) -> Result<FileStat> {
        none()
    }
    fn list(&self, _: &Path) -> Result<Vec<DirEntry>> {
        none()
    }
    fn create_dir(&self, _: &Path) -> Result<()> {
        none()
    }
    fn rename(&self, _: &Path, _: &Path) -> Result<()> {
        none()
    }
    fn remove(&self, _: &Path) -> Result<()> {
        none()
    }
    fn link(&self, _: &Path, _: &Path) -> Result<()> {
        none()
    }
    fn sync_metadata(&self, _: &Path) -> Result<()> {
        none()
    }
    fn submit_reads(&self, _: Vec<ReadRequest>) -> Box<dyn ReadCompletions> {
        struct Nothing;
        impl ReadCompletions for Nothing {
            fn next(&mut self) -> Option<(usize, Result<Bytes>)> {
                None
            }
            fn try_next(&mut self) -> Option<(usize, Result<Bytes>)> {
                None
            }
        }
        Box::new(Nothing)
    }
    fn lock(&self, _: &Path) -> Result<Box<dyn LockGuard>> {
        none()
    }
    fn space(&self, _: &Path) -> Result<Space> {
        none()
    }
    fn stats(&self) -> FsStats {
        FsStats::default()
    }
}
