//! A directory of the host as entries: the key is the path of a file, the value is its content.

use crate::Stop;
use crate::drive::Worker;
use crate::engine::host_directory;
use crate::flags::Switch;
use basalt::fs::FileSystem;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of a directory, in the order of their paths.
pub struct Folder {
    fs: Arc<dyn FileSystem>,
    files: Vec<(PathBuf, u64)>,
    /// The directory that an export writes to.
    out: PathBuf,
}

impl Folder {
    /// Lists all files below `dir`. An export goes to `out`.
    pub fn new(dir: &Path, out: PathBuf) -> Result<Folder, Stop> {
        // This check comes before the directory is opened as the directory of a store, which would
        // make it.
        let kind = rustix::fs::stat(dir).map(|s| rustix::fs::FileType::from_raw_mode(s.st_mode));
        if kind != Ok(rustix::fs::FileType::Directory) {
            return Err(Stop::new(format!(
                "--folder {} is not a directory",
                dir.display()
            )));
        }
        let fs = host_directory(dir, Switch::Off)?;
        let mut files = Vec::new();
        walk(fs.as_ref(), Path::new(""), &mut files)?;
        if files.is_empty() {
            return Err(Stop::new(format!(
                "--folder {} has no files",
                dir.display()
            )));
        }
        Ok(Folder { fs, files, out })
    }

    /// Returns the number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the bytes of all paths and contents.
    pub fn bytes(&self) -> u64 {
        let of = |(path, len): &(PathBuf, u64)| path.as_os_str().len() as u64 + len;
        self.files.iter().map(of).sum()
    }

    /// Returns the path and the content of the n-th file.
    pub fn read(&self, n: usize) -> Result<(Vec<u8>, Vec<u8>), Stop> {
        let (path, len) = &self.files[n];
        let content = self.fs.open(path)?.read(0, *len as usize)?;
        Ok((path.as_os_str().as_bytes().to_vec(), content.to_vec()))
    }

    /// Writes all entries as files and syncs them. Fails unless they are those of the directory.
    pub fn export(&self, worker: &mut Worker) -> Result<(), Stop> {
        let mut made: BTreeSet<PathBuf> = BTreeSet::new();
        let mut n = 0;
        let mut failed = None;
        worker.scan_all(&mut |key, value| {
            let path = Path::new(OsStr::from_bytes(key));
            let right = self
                .files
                .get(n)
                .is_some_and(|f| f.0 == path && f.1 == value.len() as u64);
            if failed.is_some() {
                return;
            }
            if !right {
                failed = Some(format!("{} is not what was loaded", path.display()));
            } else if let Err(e) = self.write(path, value, &mut made) {
                failed = Some(format!(
                    "cannot write {}: {}",
                    path.display(),
                    std::io::Error::from(e)
                ));
            }
            n += 1;
        })?;
        if failed.is_none() && n != self.files.len() {
            failed = Some(format!("{n} of {} files came back", self.files.len()));
        }
        if let Some(what) = failed {
            return Err(Stop::new(format!("export: {what}")));
        }
        let dir = rustix::fs::open(&self.out, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let synced = dir.and_then(rustix::fs::syncfs);
        synced.map_err(|e| Stop::new(format!("export: cannot sync: {}", std::io::Error::from(e))))
    }

    fn write(&self, path: &Path, value: &[u8], made: &mut BTreeSet<PathBuf>) -> Result<(), Errno> {
        let full = self.out.join(path);
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        for dir in above.into_iter().rev() {
            if made.insert(dir.to_path_buf()) {
                match rustix::fs::mkdir(self.out.join(dir), Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(&full, flags, Mode::from_raw_mode(0o600))?;
        let mut done = 0;
        while done < value.len() {
            done += rustix::io::write(&file, &value[done..])?;
        }
        Ok(())
    }
}

fn walk(fs: &dyn FileSystem, path: &Path, out: &mut Vec<(PathBuf, u64)>) -> Result<(), Stop> {
    let mut entries = fs.list(path)?;
    // Paths sort in this way if the name of a directory ends with a slash.
    let name = |e: &basalt::fs::DirEntry| {
        let mut name = e.name.as_bytes().to_vec();
        if e.is_dir {
            name.push(b'/');
        }
        name
    };
    entries.sort_by_key(name);
    for entry in entries {
        let inner = path.join(&entry.name);
        if entry.is_dir {
            walk(fs, &inner, out)?;
        } else if let Ok(stat) = fs.stat(&inner)
            && stat.len <= basalt::MAX_VALUE_LEN as u64
        {
            out.push((inner, stat.len));
        }
    }
    Ok(())
}
