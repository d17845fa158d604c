//! Reads of several ranges of several files with one request to the device.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use basalt_fs::device::{Device, DeviceRead};
use basalt_fs::{Bytes, CompletedReads, File, ReadCompletions, Result};

/// One read of the device, and the request that it answers.
pub struct BatchedRead {
    /// Index of the request.
    pub request: usize,
    pub read: DeviceRead,
    /// The file's path, for errors.
    pub path: PathBuf,
    /// The file, which stays open until the batch ends.
    pub file: Arc<dyn File>,
}

/// The completions of a batch of reads.
pub struct ReadBatch {
    device: Box<dyn ReadCompletions>,
    /// For each read of the device, the index of its request.
    requests: Vec<usize>,
    paths: Vec<PathBuf>,
    /// Requests that were answered without a batched read.
    answered: VecDeque<(usize, Result<Bytes>)>,
    _files: Vec<Arc<dyn File>>,
}

impl ReadBatch {
    /// Submits reads to the device. `answered` has the requests that need no batched read.
    pub fn submit(
        device: &dyn Device,
        reads: Vec<BatchedRead>,
        answered: VecDeque<(usize, Result<Bytes>)>,
    ) -> ReadBatch {
        let mut batch = ReadBatch {
            device: Box::new(CompletedReads(VecDeque::new())),
            requests: Vec::new(),
            paths: Vec::new(),
            answered,
            _files: Vec::new(),
        };
        let mut device_reads = Vec::new();
        for r in reads {
            device_reads.push(r.read);
            batch.requests.push(r.request);
            batch.paths.push(r.path);
            batch._files.push(r.file);
        }
        if !device_reads.is_empty() {
            batch.device = device.submit_reads(device_reads);
        }
        batch
    }

    fn named(&self, (i, result): (usize, Result<Bytes>)) -> (usize, Result<Bytes>) {
        (
            self.requests[i],
            result.map_err(|e| match e.offset() {
                Some(offset) => e.at(&self.paths[i], offset),
                None => e.in_file(&self.paths[i]),
            }),
        )
    }
}

impl ReadCompletions for ReadBatch {
    fn next(&mut self) -> Option<(usize, Result<Bytes>)> {
        let ready = self.answered.pop_front();
        ready.or_else(|| self.device.next().map(|r| self.named(r)))
    }

    fn wait_all(&mut self) {
        self.device.wait_all();
    }

    fn try_next(&mut self) -> Option<(usize, Result<Bytes>)> {
        let ready = self.answered.pop_front();
        ready.or_else(|| self.device.try_next().map(|r| self.named(r)))
    }
}
