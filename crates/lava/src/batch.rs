//! Reads of many places of many files.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use basalt_fs::{Bytes, File, ReadCompletions, Result};

/// Reads of a batch: those in one piece go to the device together.
pub struct Batch {
    pub inner: Box<dyn ReadCompletions>,
    /// The request that each read of the device is for.
    pub of: Vec<usize>,
    pub paths: Vec<PathBuf>,
    pub done: VecDeque<(usize, Result<Bytes>)>,
    /// Files stay open until they are read.
    pub _files: Vec<Arc<dyn File>>,
}

impl Batch {
    fn named(&self, (i, result): (usize, Result<Bytes>)) -> (usize, Result<Bytes>) {
        (
            self.of[i],
            result.map_err(|e| match e.offset() {
                Some(offset) => e.at(&self.paths[i], offset),
                None => e.in_file(&self.paths[i]),
            }),
        )
    }
}

impl ReadCompletions for Batch {
    fn next(&mut self) -> Option<(usize, Result<Bytes>)> {
        let ready = self.done.pop_front();
        ready.or_else(|| self.inner.next().map(|r| self.named(r)))
    }

    fn wait_all(&mut self) {
        self.inner.wait_all();
    }

    fn try_next(&mut self) -> Option<(usize, Result<Bytes>)> {
        let ready = self.done.pop_front();
        ready.or_else(|| self.inner.try_next().map(|r| self.named(r)))
    }
}
