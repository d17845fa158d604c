//! A file that a background job writes from its first byte to its last: small pieces are gathered, large ones go out at multiples of the
//! write unit, through the I/O limit and in courtesy to those who wait for the device, and all bytes are digested.
//!
//! Promise: an error ends the file; every later call returns it again.

use crate::version::TableStore;
use basalt_env::{Env, IoPriority, MemoryKind, Reservation};
use basalt_fs::{AlignedBuf, Error, File, Intent, Result};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes gathered before they are written.
const PIECE: usize = 1 << 20;

/// Files made so far; removes them when dropped, unless kept.
pub(crate) struct Created {
    store: Arc<TableStore>,
    paths: Vec<PathBuf>,
}

impl Created {
    pub fn new(store: &Arc<TableStore>) -> Created {
        Created {
            store: store.clone(),
            paths: Vec::new(),
        }
    }

    pub fn add(&mut self, path: PathBuf) {
        self.paths.push(path);
    }

    /// They stay.
    pub fn keep(&mut self) {
        self.paths.clear();
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        for path in &self.paths {
            self.store.remove_unnamed(path);
        }
    }
}

/// See the module.
pub(crate) struct Sink {
    env: Env,
    file: Arc<dyn File>,
    path: PathBuf,
    io: IoPriority,
    unit: usize,
    staging: AlignedBuf,
    /// Bytes handed to the file.
    written: u64,
    digest: Xxh3Default,
    failed: Option<Error>,
    /// What the staging buffer grows to, in the ledger.
    _booked: Reservation,
}

impl Sink {
    /// Over an empty file.
    pub fn new(env: &Env, file: Arc<dyn File>, path: &Path, io: IoPriority) -> Sink {
        let unit = env.fs().info().write_unit;
        assert!(
            unit.is_power_of_two() && unit <= PIECE,
            "write unit of {unit} bytes"
        );
        Sink {
            env: env.clone(),
            file,
            path: path.to_path_buf(),
            io,
            unit,
            staging: AlignedBuf::new(),
            written: 0,
            digest: Xxh3Default::new(),
            failed: None,
            _booked: env.ledger().reserve(MemoryKind::Buffer, PIECE as u64),
        }
    }

    /// The environment.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The error that ended the file, if one did.
    pub fn check(&self) -> Result<()> {
        match &self.failed {
            Some(e) => Err(e.clone()),
            None => Ok(()),
        }
    }

    /// The file's first bytes, few of them: cannot fail.
    pub fn begin(&mut self, header: &[u8]) {
        assert!(self.position() == 0 && header.len() < PIECE);
        self.digest.update(header);
        self.staging.extend_from_slice(header);
    }

    /// Bytes so far.
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
                self.append(&[])?;
            }
        }
        Ok(())
    }

    /// As `put`, but what fills whole write units is written from where it is.
    pub fn put_vectored(&mut self, mut bytes: &[u8]) -> Result<()> {
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
            self.append(&bytes[..direct])?;
            bytes = &bytes[direct..];
            if bytes.len() < self.unit {
                self.staging.extend_from_slice(bytes);
                break;
            }
        }
        Ok(())
    }

    /// Writes what is gathered and `more`, in smaller pieces while somebody waits for the device.
    fn append(&mut self, more: &[u8]) -> Result<()> {
        self.check()?;
        let staging = std::mem::replace(&mut self.staging, AlignedBuf::zeroed_direct(0));
        let done = if more.is_empty() {
            let mut rest = &staging[..];
            let mut done = Ok(());
            while !rest.is_empty() && done.is_ok() {
                let n = self.env.courtesy().piece(rest.len()).min(rest.len());
                done = self.append_piece(&[IoSlice::new(&rest[..n])], n);
                rest = &rest[n..];
            }
            done
        } else {
            let bufs = [IoSlice::new(&staging), IoSlice::new(more)];
            self.append_piece(&bufs, staging.len() + more.len())
        };
        self.staging = staging;
        if done.is_ok() {
            self.staging.clear();
        }
        done
    }

    fn append_piece(&mut self, bufs: &[IoSlice<'_>], len: usize) -> Result<()> {
        self.env.io_limit().acquire(len as u64, self.io);
        let turn = self.env.courtesy().turn();
        let appended = self.file.append(bufs, Intent::Sync);
        drop(turn);
        match appended {
            Ok(at) => {
                // Handles hold the offsets we count; bytes anywhere else would be lost to every reader.
                assert_eq!(
                    at,
                    self.written,
                    "{} was not empty or has another writer",
                    self.path.display()
                );
            }
            Err(e) => {
                self.failed = Some(e.clone());
                return Err(e);
            }
        }
        self.written += len as u64;
        Ok(())
    }

    /// Writes what is left and syncs data and length. Size and XXH3-128 of the whole file. The name's durability is the caller's.
    pub fn finish(mut self) -> Result<(u64, u128)> {
        self.append(&[])?;
        self.file.sync_all()?;
        Ok((self.written, self.digest.digest128()))
    }
}
