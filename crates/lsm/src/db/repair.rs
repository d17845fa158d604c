//! Repair of a closed store.

use crate::options::Options;
use basalt_env::Env;
use basalt_fs::{Error, Result};
use std::path::Path;

/// What [`super::Db::repair`] did.
#[derive(Debug, Clone, Default)]
pub struct RepairReport {
    /// Tables kept.
    pub tables_kept: u64,
    /// Entries kept.
    pub entries_kept: u64,
    /// Exactly what is lost: file, range of keys or bytes, reason.
    pub lost: Vec<String>,
    /// Where damaged files were moved to.
    pub set_aside: Vec<String>,
}

pub(super) fn repair(
    _env: &Env,
    _path: &Path,
    _options: &Options,
    _progress: &mut dyn FnMut(u64, u64),
) -> Result<RepairReport> {
    Err(Error::unsupported("not built yet"))
}
