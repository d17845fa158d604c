//! A file that a background job, or a bulk load, writes from its first byte to its last.
//!
//! Small pieces are buffered, and large ones go out at multiples of the write unit. All writes go
//! through the I/O limit, and give way to foreground I/O. All bytes are digested. A load's bytes
//! are written behind it, by a thread of the file's own (`write_behind`).
//!
//! Promise: an error ends the file; every later call returns it again.

#[cfg(test)]
mod tests;
mod write_behind;

use crate::{Env, IoPriority, MemoryKind, Reservation};
use basalt_fs::{AlignedBuf, Error, File, Intent, Result};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use write_behind::WriteBehind;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes that are buffered before they are written.
pub const PIECE: usize = 1 << 20;

/// Appends to the file.
struct Appender {
    env: Env,
    file: Arc<dyn File>,
    path: PathBuf,
    io: IoPriority,
    /// Bytes that were appended.
    written: u64,
}

impl Appender {
    /// Appends buffered bytes, in smaller pieces while foreground threads wait for the device.
    fn append_gathered(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let n = self.env.foreground_io().piece(bytes.len()).min(bytes.len());
            self.append(&[IoSlice::new(&bytes[..n])], n)?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    fn append(&mut self, bufs: &[IoSlice<'_>], len: usize) -> Result<()> {
        self.env.io_limit().acquire(len as u64, self.io);
        let turn = self.env.foreground_io().turn();
        let appended = self.file.append(bufs, Intent::Sync);
        drop(turn);
        // Handles contain the offsets that the writer counts. A reader would not find bytes at any
        // other offset.
        assert_eq!(
            appended?,
            self.written,
            "{} was not empty or has another writer",
            self.path.display()
        );
        self.written += len as u64;
        Ok(())
    }
}

/// The way in which bytes get to the file.
enum Output {
    /// The thread that makes the bytes appends them.
    Direct(Appender),
    /// The caller's thread appends until the first piece is full; then a thread of the file's own
    /// appends.
    Deferred(Appender),
    WriteBehind(WriteBehind),
    /// The state while the way changes.
    Failed,
}

/// The chunks of a memtable, see the module.
pub struct FileWriter {
    env: Env,
    file: Arc<dyn File>,
    path: PathBuf,
    unit: usize,
    out: Output,
    staging: AlignedBuf,
    /// Bytes passed to the file.
    written: u64,
    digest: Xxh3Default,
    failed: Option<Error>,
    /// The reservation of the staging buffer's full size in the ledger, or of all buffers when the
    /// writer writes behind.
    booked: Reservation,
}

impl FileWriter {
    /// Makes a writer for an empty file.
    pub fn new(env: &Env, file: Arc<dyn File>, path: &Path, io: IoPriority) -> FileWriter {
        let unit = env.fs().info().write_unit;
        assert!(
            unit.is_power_of_two() && unit <= PIECE,
            "write unit of {unit} bytes"
        );
        FileWriter {
            env: env.clone(),
            file: file.clone(),
            path: path.to_path_buf(),
            unit,
            out: Output::Direct(Appender {
                env: env.clone(),
                file,
                path: path.to_path_buf(),
                io,
                written: 0,
            }),
            staging: AlignedBuf::new(),
            written: 0,
            digest: Xxh3Default::new(),
            failed: None,
            booked: env.ledger().reserve(MemoryKind::Buffer, PIECE as u64),
        }
    }

    /// Lets another thread write from the first full piece on. This is for callers that have other
    /// work meanwhile, and no threads of the pool beside it. Does nothing if the environment steps
    /// its jobs.
    pub fn write_behind(&mut self) {
        if self.env.jobs().is_stepped() {
            return;
        }
        self.out = match std::mem::replace(&mut self.out, Output::Failed) {
            Output::Direct(appender) => Output::Deferred(appender),
            other => other,
        };
    }

    /// Returns the environment.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error that ended the file, if one did.
    pub fn check(&self) -> Result<()> {
        match &self.failed {
            Some(e) => Err(e.clone()),
            None => Ok(()),
        }
    }

    /// Adds the file's first bytes, fewer than one piece. This cannot fail.
    pub fn begin(&mut self, header: &[u8]) {
        assert!(self.position() == 0 && header.len() < PIECE);
        self.digest.update(header);
        self.staging.extend_from_slice(header);
    }

    /// Returns the bytes of the file so far.
    pub fn position(&self) -> u64 {
        self.written + self.staging.len() as u64
    }

    /// Appends bytes.
    pub fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.check()?;
        self.digest.update(bytes);
        while !bytes.is_empty() {
            let n = bytes.len().min(PIECE - self.staging.len());
            self.staging.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if self.staging.len() == PIECE {
                self.append_staging()?;
            }
        }
        Ok(())
    }

    /// Appends bytes as [`FileWriter::put`] does, but writes those that fill whole write units from
    /// the caller's memory.
    pub fn put_vectored(&mut self, mut bytes: &[u8]) -> Result<()> {
        if !matches!(self.out, Output::Direct(_)) {
            return self.put(bytes);
        }
        self.check()?;
        self.digest.update(bytes);
        while !bytes.is_empty() {
            let n = bytes.len().min(PIECE);
            let total = self.staging.len() + n;
            let whole = total - total % self.unit;
            if whole <= self.staging.len() {
                self.staging.extend_from_slice(&bytes[..n]);
                bytes = &bytes[n..];
                continue;
            }
            let direct = whole - self.staging.len();
            self.append_with(&bytes[..direct])?;
            bytes = &bytes[direct..];
            if bytes.len() < self.unit {
                self.staging.extend_from_slice(bytes);
                break;
            }
        }
        Ok(())
    }

    /// Writes the buffered bytes and `more` behind them, on this thread.
    fn append_with(&mut self, more: &[u8]) -> Result<()> {
        let Output::Direct(appender) = &mut self.out else {
            unreachable!("only where nothing is written behind");
        };
        let len = self.staging.len() + more.len();
        let bufs = [IoSlice::new(&self.staging), IoSlice::new(more)];
        let done = appender.append(&bufs, len);
        self.appended(done, len)
    }

    /// Writes the buffered bytes, or passes them to the writing thread.
    fn append_staging(&mut self) -> Result<()> {
        self.check()?;
        let len = self.staging.len();
        if let Output::Deferred(_) = &self.out {
            self.begin_behind();
        }
        match &mut self.out {
            Output::Direct(appender) => {
                let done = appender.append_gathered(&self.staging);
                self.appended(done, len)
            }
            Output::WriteBehind(behind) => {
                let piece = std::mem::replace(&mut self.staging, AlignedBuf::zeroed_direct(0));
                let next = behind.push(piece);
                let done = next.map(|next| self.staging = next);
                self.appended(done, len)
            }
            Output::Deferred(_) | Output::Failed => unreachable!("decided above"),
        }
    }

    fn begin_behind(&mut self) {
        let Output::Deferred(appender) = std::mem::replace(&mut self.out, Output::Failed) else {
            unreachable!("asked before");
        };
        self.out = match WriteBehind::begin(appender) {
            Ok(behind) => {
                // One piece is filled, one waits, one is being written.
                self.booked.resize(3 * PIECE as u64);
                Output::WriteBehind(behind)
            }
            Err(appender) => Output::Direct(appender),
        };
    }

    fn appended(&mut self, done: Result<()>, len: usize) -> Result<()> {
        match done {
            Ok(()) => {
                self.staging.clear();
                self.written += len as u64;
                Ok(())
            }
            Err(e) => {
                self.failed = Some(e.clone());
                Err(e)
            }
        }
    }

    /// Writes the remaining bytes, and syncs data and length. Returns size and XXH3-128 of the
    /// whole file. The caller makes the name durable.
    pub fn finish(mut self) -> Result<(u64, u128)> {
        self.check()?;
        self.out = match std::mem::replace(&mut self.out, Output::Failed) {
            Output::Deferred(appender) => Output::Direct(appender),
            other => other,
        };
        self.append_staging()?;
        if let Output::WriteBehind(behind) = &self.out {
            behind.wait()?;
        }
        self.file.sync_all()?;
        Ok((self.written, self.digest.digest128()))
    }
}
