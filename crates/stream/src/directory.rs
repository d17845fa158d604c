//! The directory of a stream, before there is a stream in it.

use crate::catalog::{self, Catalog, Change};
use crate::extent::ExtentId;
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_records::manifest::{CURRENT, Manifest};
use std::collections::BTreeMap;
use std::path::Path;

pub(crate) const MANIFEST_PREFIX: &str = "MANIFEST-";
const CURRENT_TMP: &str = "CURRENT.tmp";

/// Makes a directory ready for a stream: what an interrupted creation or link left is removed.
pub(crate) fn prepare(env: &Env, dir: &Path) -> Result<()> {
    let fs = env.fs();
    fs.create_dir(dir)?;
    if fs.exists(&dir.join(CURRENT))? {
        let what = format!("there is a stream in {} already", dir.display());
        return Err(Error::new(ErrorKind::AlreadyExists, what));
    }
    let entries = fs.list(dir)?;
    let is_own = |name: &str| {
        ExtentId::of_file_name(name).is_some()
            || name.starts_with(MANIFEST_PREFIX)
            || name == CURRENT_TMP
    };
    if let Some(foreign) = entries.iter().find(|e| e.is_dir || !is_own(&e.name)) {
        return Err(Error::invalid(format!(
            "{} has other files, such as {}; name an empty or missing directory",
            dir.display(),
            foreign.name
        )));
    }
    entries
        .iter()
        .try_for_each(|entry| fs.remove(&dir.join(&entry.name)))
}

/// Makes the files of a directory a stream.
pub(crate) fn install(env: &Env, dir: &Path, extents: &BTreeMap<ExtentId, u64>) -> Result<()> {
    let mut catalog = Catalog {
        stream_id: env.random().next_u128(),
        next_manifest: 2,
        ..Catalog::default()
    };
    for (id, len) in extents {
        catalog.apply(&[Change::Add(*id), Change::Seal(*id, *len)])?;
    }
    // The names of the extents, and of the directory, must be there before the manifest is.
    env.fs().sync_metadata(dir)?;
    env.fs()
        .sync_metadata(dir.parent().unwrap_or_else(|| Path::new("")))?;
    let state = catalog::encode(&catalog.changes());
    Manifest::create(env, dir, catalog.stream_id, 1, &state)?;
    Ok(())
}
