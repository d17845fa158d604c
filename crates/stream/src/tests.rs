//! Streams on a simulated disk: the promises of the interface, a model with power cuts at every
//! change of the disk, failing calls, and damage.

mod crash;
mod faults;
mod formats;
mod promises;

use crate::{EXTENT_HEADER, ExtentAddress, ExtentId, Stream, StreamOptions};
use basalt_env::{Env, Random};
use basalt_fs::{ErrorKind, FileSystem, Intent, Result};
use basalt_sim::{SimFs, SimOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn disk(seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        seed,
        ..SimOptions::default()
    })
}

/// Small extents, so that short tests use several.
fn options() -> StreamOptions {
    StreamOptions::default().extent_bytes(8 << 10)
}

/// Returns the number of files of extents in a directory.
fn extent_files(fs: &dyn FileSystem, dir: &Path) -> usize {
    let names = fs.list(dir).unwrap().into_iter();
    names.filter(|e| e.name.ends_with(".extent")).count()
}

fn append(stream: &Stream, data: &[u8]) -> Result<ExtentAddress> {
    stream.append(&[IoSlice::new(data)], Intent::Bulk)
}
