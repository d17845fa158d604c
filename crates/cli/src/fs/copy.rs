//! Copies of files and directories into an image and out of one.
//!
//! A file is written under a temporary name beside its own: `.cp-` with a hash of the name. The
//! file gets its own name when it is complete, so that a name always has the old file or the new
//! one. The next copy to the same directory removes the temporary files of an interrupted one. No
//! file of a source has such a name, because sources with such names are left out.

use super::end::{End, Kind};
use super::show::failed;
use crate::escape::escape;
use crate::failure::{Failure, Outcome, is_full};
use crate::filesystem::as_flag;
use crate::location::{Access, in_image};
use crate::output::note;
use crate::progress::{self, count, count_entries, human_bytes, rate};
use basalt::env::Clock;
use basalt::fs::{File, FileSystem, Intent, LockGuard};
use basalt::{Error, ErrorKind};
use indicatif::ProgressBar;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of a store's lock file.
pub const LOCK: &str = "LOCK";
/// Bytes of a read and of a write.
pub const PIECE: usize = 1 << 20;
/// Number of names of left-out files in a message.
const NAMES_LISTED: usize = 5;

/// Returns the end of a file's bytes. If the length is not exact, this is the end of its space,
/// because readers of such files find the end by themselves.
fn end_of(fs: &dyn FileSystem, path: &Path) -> basalt::Result<u64> {
    let stat = fs.stat(path)?;
    Ok(stat.len.max(stat.allocated))
}

/// Returns the temporary name of a file during the copy. It is short, because the file's own name
/// may have the maximum length.
fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    // FNV-1a gives the same name on the next run.
    let hash = (name.as_bytes().iter()).fold(0x811c_9dc5_u32, |h, b| {
        (h ^ u32::from(*b)).wrapping_mul(0x0100_0193)
    });
    path.with_file_name(format!(".cp-{hash:08x}.unfinished"))
}

/// Returns true for a name that [`temporary_path`] returns.
fn is_temporary_name(name: &OsStr) -> bool {
    let hash = |name: &str| -> Option<()> {
        let hash = name.strip_prefix(".cp-")?.strip_suffix(".unfinished")?;
        let digits = hash.bytes().filter(|b| b"0123456789abcdef".contains(b));
        (hash.len() == 8 && digits.count() == 8).then_some(())
    };
    name.to_str().and_then(hash).is_some()
}

/// A file that is being written, and the lock that shows it to other copies.
type Begun = (Arc<dyn File>, Option<Box<dyn LockGuard>>);

/// An end of the copy, and a path there.
type EndPath = (End, PathBuf);

/// A step that remains.
enum Step {
    Copy(PathBuf, PathBuf, Kind),
    /// All files of this directory of the target are copied.
    Done(PathBuf),
}

/// A copy from one end to the other.
struct Copy<'a> {
    from: &'a End,
    to: &'a End,
    overwrite: bool,
    /// The start paths at both ends, and whether the target had nothing there.
    roots: (PathBuf, PathBuf),
    is_new: bool,
    bar: ProgressBar,
    files: u64,
    bytes: u64,
    /// Bytes of completed files.
    whole: u64,
    /// Number of links, pipes, leftovers of earlier copies, and other things that are no files.
    left_out: u64,
    /// Number of names that an image cannot have, and the first of them.
    no_text: u64,
    no_text_names: Vec<String>,
    /// Locks of the stores on both sides, which are held during the copy.
    locks: Vec<Box<dyn LockGuard>>,
}

impl Copy<'_> {
    fn source(&self, e: Error) -> Failure {
        self.from.failure(e)
    }

    fn target(&self, e: Error) -> Failure {
        match &self.to.image {
            Some(image) if is_full(&e) => self.full(image),
            _ => self.to.failure(e),
        }
    }

    /// Returns the failure of a full image: what is there now, and what helps.
    fn full(&self, image: &Path) -> Failure {
        let (from, to) = &self.roots;
        let (name, root) = (image.display(), to.display());
        let total = self.to.fs.space(to).map_or(0, |s| s.total);
        let is_dir = matches!(self.to.has(to), Ok(Some(Kind::Dir)));
        let (there, finish) = match is_dir {
            true => (
                format!(
                    "{name}:{root} is incomplete: {}, {} were copied",
                    count(self.files, "file", "files"),
                    human_bytes(self.whole)
                ),
                format!(
                    "and finish it with `basalt fs cp --overwrite {}/. {name}:{root}`",
                    self.from.display_path(from)
                ),
            ),
            false => (
                format!("{name}:{root} was not made or replaced"),
                "and copy it again".to_string(),
            ),
        };
        let remove = match is_dir && self.is_new {
            true => format!("remove it with `basalt fs rm -r {name} {root}`"),
            false => format!("remove something with `basalt fs rm -r {name} PATH`"),
        };
        Failure::new(format!(
            "the image {name} is full, and {there}; {remove}, or make the image larger, such as with `basalt fs grow {name} --size {}`, {finish}",
            as_flag(total.saturating_mul(2)),
        ))
    }

    /// Returns the bytes of all files below a path, for the progress bar.
    fn measure(&self, path: &Path, kind: Kind) -> Result<u64, Failure> {
        let mut bytes = 0;
        let mut todo = vec![(path.to_path_buf(), kind)];
        while let Some((path, kind)) = todo.pop() {
            match kind {
                Kind::File => {
                    bytes += end_of(&*self.from.fs, &path).map_err(|e| self.source(e))?;
                }
                Kind::Dir => {
                    let all = self.from.entries(&path).map_err(|e| self.source(e))?;
                    todo.extend(all.into_iter().map(|e| (path.join(e.name), e.kind)));
                }
                Kind::Link | Kind::Other => {}
            }
        }
        Ok(bytes)
    }

    /// Copies a file, or a directory with everything in it. The names in `to` are durable when
    /// their directories are synced.
    fn all(&mut self, from: &Path, to: &Path, kind: Kind) -> Result<(), Failure> {
        // A stack replaces recursion: an image's directories may be nested as deep as names have
        // space.
        let mut todo = vec![Step::Copy(from.to_path_buf(), to.to_path_buf(), kind)];
        while let Some(step) = todo.pop() {
            match step {
                Step::Copy(from, to, Kind::File) => self.file(&from, &to)?,
                Step::Copy(from, to, Kind::Dir) => self.directory(&from, to, &mut todo)?,
                Step::Copy(_, _, Kind::Link | Kind::Other) => self.left_out += 1,
                Step::Done(dir) => {
                    self.remove_leftovers(&dir, None);
                    let synced = self.to.fs.sync_metadata(&dir);
                    synced.map_err(|e| self.target(e))?;
                }
            }
        }
        Ok(())
    }

    /// Makes a directory, and adds the copy of its content as the next step.
    fn directory(&mut self, from: &Path, to: PathBuf, todo: &mut Vec<Step>) -> Result<(), Failure> {
        // A copy of a store that another process writes would be no valid store.
        let lock = from.join(LOCK);
        if self.from.has(&lock).map_err(|e| self.source(e))? == Some(Kind::File) {
            let held = self.from.fs.lock_shared(&lock);
            self.locks.extend(held.map_err(|e| self.source(e))?);
        }
        let lock = to.join(LOCK);
        let no_dir = |what: &str| {
            Failure::new(format!(
                "{} is {what}, and a directory is to be copied there; name another target, or remove it",
                self.to.display_path(&to)
            ))
        };
        let is_there = match self.to.has(&to).map_err(|e| self.target(e))? {
            None => false,
            Some(Kind::Dir) => true,
            Some(Kind::Link) => match self.to.followed_kind(&to) {
                Ok(Kind::Dir) => true,
                _ => return Err(no_dir("a link that leads to no directory")),
            },
            Some(Kind::File | Kind::Other) => return Err(no_dir("a file")),
        };
        let mut has_lock = false;
        if is_there && self.to.is_store_lock(&lock).map_err(|e| self.target(e))? {
            let held = self.to.fs.lock(&lock).map_err(|e| self.target(e))?;
            self.locks.push(held);
            has_lock = true;
        }
        self.to.fs.create_dir(&to).map_err(|e| self.target(e))?;
        let entries = self.from.entries(from).map_err(|e| self.source(e))?;
        todo.push(Step::Done(to.clone()));
        for e in entries.into_iter().rev() {
            if e.name == LOCK && has_lock {
                continue;
            }
            if e.kind == Kind::File && is_temporary_name(&e.name) {
                self.left_out += 1;
                continue;
            }
            if e.name.to_str().is_none() {
                self.no_text += 1;
                if self.no_text_names.len() < NAMES_LISTED {
                    let path = from.join(&e.name);
                    self.no_text_names.push(escape(path.as_os_str().as_bytes()));
                }
                continue;
            }
            todo.push(Step::Copy(from.join(&e.name), to.join(&e.name), e.kind));
        }
        Ok(())
    }

    /// Locks the stores that a single file comes from and goes to. [`Copy::directory`] does that
    /// for directories.
    fn lock_stores(&mut self, from: &Path, to: &Path) -> Result<(), Failure> {
        let lock = from.with_file_name(LOCK);
        if self.from.is_store_lock(&lock).map_err(|e| self.source(e))? {
            let held = self.from.fs.lock_shared(&lock);
            self.locks.extend(held.map_err(|e| self.source(e))?);
        }
        let lock = to.with_file_name(LOCK);
        if self.to.is_store_lock(&lock).map_err(|e| self.target(e))? {
            if to.file_name() == lock.file_name() {
                return Err(Failure::new(format!(
                    "{} is the lock of a store, which is not replaced; name another target",
                    self.to.display_path(to)
                )));
            }
            let held = self.to.fs.lock(&lock).map_err(|e| self.target(e))?;
            self.locks.push(held);
        }
        Ok(())
    }

    /// Returns the failure for a name that exists and may not be replaced.
    fn name_taken(&self, to: &Path) -> Failure {
        Failure::new(format!(
            "{} is there already; name another target, or replace files with --overwrite",
            self.to.display_path(to)
        ))
    }

    fn file(&mut self, from: &Path, to: &Path) -> Result<(), Failure> {
        match self.to.has(to).map_err(|e| self.target(e))? {
            None => {}
            Some(Kind::Dir) => {
                return Err(Failure::new(format!(
                    "{} is a directory, which is not replaced by a file; name another target",
                    self.to.display_path(to)
                )));
            }
            Some(Kind::Other) => {
                return Err(Failure::new(format!(
                    "{} is a pipe, a device, or the image itself, which is not replaced; name another target, or see `basalt fs cat`",
                    self.to.display_path(to)
                )));
            }
            Some(_) if !self.overwrite => return Err(self.name_taken(to)),
            Some(_) => {}
        }
        let source = self.from.fs.open(from).map_err(|e| self.source(e))?;
        let end = end_of(&*self.from.fs, from).map_err(|e| self.source(e))?;
        let temporary_path = temporary_path(to);
        let (target, guard) = self.begin(&temporary_path, to)?;
        let written = match (&self.from.image, end) {
            (None, 0) => self.bytes_without_length(from, &*target),
            _ => self.bytes_of(&*source, end, &*target),
        };
        drop(target);
        let done = written.and_then(|()| match self.overwrite {
            true => (self.to.fs.rename(&temporary_path, to)).map_err(|e| self.target(e)),
            false => (self.to.rename_new(&temporary_path, to)).map_err(|e| match e.kind() {
                ErrorKind::AlreadyExists => self.name_taken(to),
                _ => self.target(e),
            }),
        });
        if done.is_err() {
            let _ = self.to.fs.remove(&temporary_path);
        }
        drop(guard);
        done?;
        self.files += 1;
        self.whole = self.bytes;
        Ok(())
    }

    /// Makes a new file under its temporary name, with a lock by which other copies know that it is
    /// no leftover.
    fn begin(&self, temporary_path: &Path, to: &Path) -> Result<Begun, Failure> {
        let busy = || {
            Failure::new(format!(
                "another `basalt fs cp` copies to {} at this moment; wait for it, or stop it",
                self.to.display_path(to)
            ))
        };
        let error = |e: Error| match e.kind() {
            ErrorKind::Busy => busy(),
            _ => self.target(e),
        };
        if self.to.has(temporary_path).map_err(error)? == Some(Kind::File) {
            self.to.remove_leftover(temporary_path).map_err(error)?;
        }
        let file = self
            .to
            .fs
            .create(temporary_path)
            .map_err(|e| match e.kind() {
                ErrorKind::AlreadyExists => busy(),
                _ => self.target(e),
            })?;
        match self.to.fs.lock_shared(temporary_path) {
            Ok(Some(guard)) => Ok((file, Some(guard))),
            Ok(None) => Err(busy()),
            Err(e) if e.kind() == ErrorKind::Busy => Err(busy()),
            // Some filesystems of the kernel have no locks.
            Err(_) => Ok((file, None)),
        }
    }

    /// Removes the leftovers of interrupted copies in a directory of the target. A leftover that
    /// cannot be removed does no harm.
    fn remove_leftovers(&self, dir: &Path, keep: Option<&Path>) {
        for e in self.to.entries(dir).into_iter().flatten() {
            let path = dir.join(&e.name);
            if e.kind == Kind::File && is_temporary_name(&e.name) && keep != Some(&path) {
                // A leftover that another process still writes is locked.
                let _ = self.to.remove_leftover(&path);
            }
        }
    }

    fn bytes_of(&mut self, source: &dyn File, end: u64, target: &dyn File) -> Result<(), Failure> {
        let mut at = 0;
        while at < end {
            let piece = source.read(at, PIECE.min((end - at) as usize));
            let piece = piece.map_err(|e| self.source(e))?;
            if piece.is_empty() {
                return Err(self.source(Error::new(
                    ErrorKind::Io,
                    format!(
                        "the file ends after {at} of {end} bytes: another program made it shorter"
                    ),
                )));
            }
            let appended = target.append(&[IoSlice::new(&piece)], Intent::Bulk);
            appended.map_err(|e| self.target(e))?;
            at += piece.len() as u64;
            self.bytes += piece.len() as u64;
            self.bar.inc(piece.len() as u64);
        }
        target.sync_all().map_err(|e| self.target(e))
    }

    /// Copies a file of the disk whose length is 0. The kernel reports 0 also for files that it
    /// makes on read, such as `/proc/cpuinfo`.
    fn bytes_without_length(&mut self, from: &Path, target: &dyn File) -> Result<(), Failure> {
        let error = |e: Errno| Failure::os("read", from, e);
        // A file that waits for input, such as `/proc/kmsg`, is an error, and not a copy without an
        // end.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(from, flags, Mode::empty()).map_err(error)?;
        let mut piece = vec![0; PIECE];
        loop {
            let n = match rustix::io::read(&fd, &mut piece[..]) {
                Err(Errno::INTR) => continue,
                read => read.map_err(error)?,
            };
            if n == 0 {
                break;
            }
            let appended = target.append(&[IoSlice::new(&piece[..n])], Intent::Bulk);
            appended.map_err(|e| self.target(e))?;
            self.bytes += n as u64;
            self.bar.inc(n as u64);
        }
        target.sync_all().map_err(|e| self.target(e))
    }
}

/// Returns the two ends and the path in each.
fn ends(from: &Path, to: &Path) -> Result<(EndPath, EndPath), Failure> {
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|e| Failure::os("find", path, e));
    let target = in_image(to);
    if target.is_none() {
        refuse_missing_image(to)?;
    }
    match (in_image(from), target) {
        (Some((image, path)), None) => {
            let (image, disk) = End::pair(&image, Access::Read)?;
            Ok(((image, path), (disk, absolute(to)?)))
        }
        (None, Some((image, path))) => {
            let (image, disk) = End::pair(&image, Access::Remove)?;
            Ok(((disk, absolute(from)?), (image, path)))
        }
        (Some(_), Some(_)) => Err(Failure::new(
            "both are in images; copy out of the one first, and then into the other",
        )),
        (None, None) => Err(Failure::new(
            "neither is in an image; write IMAGE:PATH for the one that is, such as store.lava:basalt-data (the image must be there)",
        )),
    }
}

/// Refuses a target such as `other.lava:m2` if the image is missing. It is a mistake far more often
/// than a file of that name.
fn refuse_missing_image(to: &Path) -> Result<(), Failure> {
    let bytes = to.as_os_str().as_bytes();
    let Some(colon) = bytes.iter().position(|b| *b == b':') else {
        return Ok(());
    };
    if colon == 0 || bytes[..colon].contains(&b'/') || rustix::fs::lstat(to).is_ok() {
        return Ok(());
    }
    let (image, to) = (escape(&bytes[..colon]), escape(bytes));
    Err(Failure::new(format!(
        "there is no image {image}; make it with `basalt fs format {image} --size 20G`, or write ./{to} for a file of that name"
    )))
}

/// Fails if the directory of a target is missing: it may be a misspelt name.
fn must_have_parent(to: &End, path: &Path) -> Result<(), Failure> {
    let above = match path.parent() {
        Some(above) => above,
        None => return Ok(()),
    };
    match to.followed_kind(above) {
        Ok(Kind::Dir) => Ok(()),
        Ok(_) => Err(Failure::new(format!(
            "{} is not a directory, so nothing can be copied into it",
            to.display_path(above)
        ))),
        Err(e) if e.is_not_found() => Err(Failure::new(match &to.image {
            Some(image) => format!(
                "there is no directory {}; `basalt fs mkdir {} {}` makes it",
                to.display_path(above),
                image.display(),
                above.display()
            ),
            None => format!("there is no directory {}; make it first", above.display()),
        })),
        Err(e) => Err(to.failure(e)),
    }
}

/// Returns true for `DIR/.`, which means the content of the directory, as for the `cp` of Unix.
fn copies_contents(from: &Path) -> bool {
    let bytes = from.as_os_str().as_bytes();
    let slashes = bytes.iter().rev().take_while(|b| **b == b'/').count();
    let bytes = &bytes[..bytes.len() - slashes];
    bytes == b"." || bytes.ends_with(b"/.")
}

/// Runs `basalt fs cp`.
pub fn copy(from: &Path, to: &Path, overwrite: bool) -> Outcome {
    let ((source, from_path), (target, mut to_path)) = ends(from, to)?;
    let kind = source
        .followed_kind(&from_path)
        .map_err(|e| match &source.image {
            Some(image) => failed(image, &from_path, e),
            None if e.is_not_found() => Failure::new(format!("there is no {}", from.display())),
            None => source.failure(e),
        })?;
    if !matches!(kind, Kind::File | Kind::Dir) {
        return Err(Failure::new(format!(
            "{} is a pipe, a socket, a device, or the image itself; `basalt fs cp` copies files and directories",
            from.display()
        )));
    }
    let there = match target.followed_kind(&to_path) {
        Ok(kind) => Some(kind),
        Err(e) if e.is_not_found() => None,
        Err(e) => return Err(target.failure(e)),
    };
    let contents = copies_contents(from);
    if contents && kind != Kind::Dir {
        return Err(Failure::new(format!(
            "{} is a file, but its name ends like a directory; leave the end out",
            from.display()
        )));
    }
    let mut target_of_rename = String::new();
    match (there, from_path.file_name()) {
        (Some(Kind::Dir), Some(name)) if !contents => {
            let was_there = target.display_path(&to_path);
            to_path.push(name);
            if kind == Kind::Dir {
                // A repeated copy after an interruption ends here. A page says when to use a
                // command that replaces files.
                target_of_rename = format!(
                    "; {was_there} exists already, so they are in {} (FROM/. copies the content of FROM)",
                    target.display_path(&to_path),
                );
            }
        }
        (Some(Kind::Dir), _) => {}
        (Some(_), _) if kind == Kind::Dir => {
            return Err(Failure::new(format!(
                "{} is a file, and a directory is to be copied there; name another target",
                to.display()
            )));
        }
        _ => must_have_parent(&target, &to_path)?,
    }
    let mut copy = Copy {
        from: &source,
        to: &target,
        overwrite,
        roots: (from_path.clone(), to_path.clone()),
        is_new: matches!(target.has(&to_path), Ok(None)),
        bar: ProgressBar::hidden(),
        files: 0,
        bytes: 0,
        whole: 0,
        left_out: 0,
        no_text: 0,
        no_text_names: Vec::new(),
        locks: Vec::new(),
    };
    if progress::watched() {
        let all = copy.measure(&from_path, kind)?;
        copy.bar = progress::bytes("copying", Some(all));
    }
    let clock = Clock::system();
    let began = clock.now();
    if kind == Kind::File {
        copy.lock_stores(&from_path, &to_path)?;
    }
    let done = copy.all(&from_path, &to_path, kind).and_then(|()| {
        let above = to_path.parent().unwrap_or(Path::new(""));
        if kind == Kind::File {
            copy.remove_leftovers(above, Some(&to_path));
        }
        (target.fs.sync_metadata(above)).map_err(|e| target.failure(e))
    });
    copy.bar.finish_and_clear();
    done?;
    note(format_args!(
        "basalt: {} copied to {}, {}{target_of_rename}{}",
        count(copy.files, "file", "files"),
        target.display_path(&to_path),
        rate(copy.bytes, clock.now() - began),
        match copy.left_out {
            0 => String::new(),
            n => format!(
                "; {} left out: links, pipes, devices, leftovers of interrupted copies, and the image itself",
                count_entries(n)
            ),
        }
    ));
    match copy.no_text {
        0 => Ok(0),
        n => Err(Failure::new(format!(
            "the copy is incomplete: {} left out, because names in an image are UTF-8 ({}{})",
            count(n, "entry is", "entries are"),
            copy.no_text_names.join(", "),
            match n as usize - copy.no_text_names.len() {
                0 => String::new(),
                n => format!(", and {n} more"),
            }
        ))),
    }
}

#[cfg(test)]
mod tests;
