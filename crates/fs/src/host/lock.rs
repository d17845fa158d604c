//! The exclusive lock on a store: an advisory `flock` of a file that names its holder.
//!
//! The lock belongs to the kernel and ends with the process, however the process dies. The file's
//! content is only for people. The next holder overwrites the text of a dead one. The file itself
//! stays, because removing it would let two processes lock two files of one name. Network
//! filesystems emulate `flock` by locks that belong to the process. There, the set of locks that
//! this process holds detects a second opening by the same process.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::probe::{FileFacts, file_facts};
use crate::{Error, ErrorKind, LockGuard, Result};

/// The locks that this process holds, by device and inode number: the number of shared holders, or
/// `EXCLUSIVE`.
static HELD: Mutex<BTreeMap<(u64, u64), usize>> = Mutex::new(BTreeMap::new());
const EXCLUSIVE: usize = usize::MAX;

/// Longest command line that a message shows, in bytes.
const COMMAND_MAX: usize = 160;

/// A lock that this process holds. Dropping it removes its record.
struct HeldLock((u64, u64));

impl Drop for HeldLock {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        match held.get_mut(&self.0) {
            Some(n) if *n != EXCLUSIVE && *n > 1 => *n -= 1,
            _ => {
                held.remove(&self.0);
            }
        }
    }
}

impl HeldLock {
    /// Records a lock of this process. Returns `None` if it conflicts with a lock that the process
    /// already holds.
    fn take(key: (u64, u64), shared: bool) -> Option<HeldLock> {
        let mut held = HELD.lock();
        match held.get_mut(&key) {
            None => {
                held.insert(key, if shared { 1 } else { EXCLUSIVE });
            }
            Some(n) if shared && *n != EXCLUSIVE => *n += 1,
            Some(_) => return None,
        }
        Some(HeldLock(key))
    }
}

/// An exclusive lock, whose file names this process.
struct HostLock {
    // The order of the fields matters: the kernel's lock ends before the process forgets that it
    // held it.
    fd: OwnedFd,
    _held: HeldLock,
}

/// A lock that is shared with other readers. Its file is never written.
struct SharedLock {
    _fd: OwnedFd,
    _held: HeldLock,
}

impl LockGuard for SharedLock {}

impl LockGuard for HostLock {}

impl Drop for HostLock {
    fn drop(&mut self) {
        // The lock has no holder from here on, so the file must name none.
        let _ = rustix::fs::ftruncate(&self.fd, 0);
    }
}

pub(super) fn lock(path: &Path) -> Result<Box<dyn LockGuard>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let io = |what: &str, e: Errno| Error::io(what, path, e.into());
    let fd =
        rustix::fs::open(path, flags, mode).map_err(|e| io("opening the store's lock file", e))?;
    let facts = file_facts(fd.as_fd())
        .map_err(|e| io("reading the metadata of the store's lock file", e))?;
    let held = take(path, &fd, (facts.dev, facts.ino), false)?;
    let pid = rustix::process::getpid().as_raw_nonzero();
    let text = format!(
        "pid {pid}\ncommand {}\n",
        process_file(pid.get(), "comm").unwrap_or_default()
    );
    // The lock holds without the text, and a full disk must not prevent a store from opening.
    let _ =
        rustix::fs::ftruncate(&fd, 0).and_then(|()| rustix::io::pwrite(&fd, text.as_bytes(), 0));
    Ok(Box::new(HostLock { fd, _held: held }))
}

pub(super) fn lock_shared(path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
    let io = |what: &str, e: Errno| Error::io(what, path, e.into());
    let fd = match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(io("opening the store's lock file", e)),
    };
    let facts = file_facts(fd.as_fd())
        .map_err(|e| io("reading the metadata of the store's lock file", e))?;
    let held = take(path, &fd, (facts.dev, facts.ino), true)?;
    Ok(Some(Box::new(SharedLock {
        _fd: fd,
        _held: held,
    })))
}

/// Takes the kernel's lock and records it for the process.
fn take(path: &Path, fd: &OwnedFd, key: (u64, u64), shared: bool) -> Result<HeldLock> {
    let Some(held) = HeldLock::take(key, shared) else {
        return Err(busy(path, fd));
    };
    let how = match shared {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    loop {
        match rustix::fs::flock(fd, how) {
            Ok(()) => return Ok(held),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Err(busy(path, fd)),
            Err(e) => return Err(Error::io("locking the store", path, e.into())),
        }
    }
}

fn busy(path: &Path, fd: &OwnedFd) -> Error {
    let mut buf = [0u8; 512];
    let n = rustix::io::pread(fd, &mut buf[..], 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&buf[..n]);
    let field = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))
    };
    let pid: Option<i32> = field("pid").and_then(|p| p.parse().ok()).filter(|p| *p > 0);
    let Some(pid) = pid else {
        // A reader never writes its name, and an owner writes it a moment after it has the lock.
        let holder = file_facts(fd.as_fd()).ok().and_then(|facts| holder(&facts));
        let who = holder
            .as_deref()
            .unwrap_or("a process that did not write its name");
        let advice = match who.starts_with("this process") {
            true => "close the first one, or share it",
            false => "stop it, or use another directory",
        };
        let what = format!("the store is in use by {who}; {advice}");
        return Error::new(ErrorKind::Busy, what).in_file(path);
    };
    let name = field("command").unwrap_or("").to_string();
    // Another process may have the same number by now, or the holder may run in another container.
    // Then the message shows only the name.
    let command = match process_file(pid, "comm") {
        Some(now) if now == name => process_file(pid, "cmdline").unwrap_or(name),
        _ => name,
    };
    let ours = rustix::process::getpid().as_raw_nonzero().get() == pid;
    let who = if ours {
        "this process itself"
    } else {
        "process"
    };
    let advice = if ours {
        "close the first one, or share it"
    } else {
        "stop it, or use another directory"
    };
    Error::new(
        ErrorKind::Busy,
        format!("the store is in use by {who} {pid} ({command}); {advice}"),
    )
    .in_file(path)
}

/// Returns the process and command that hold the kernel's lock of a file, if the kernel reports
/// them.
pub(crate) fn holder(facts: &FileFacts) -> Option<String> {
    let fd = rustix::fs::open(
        "/proc/locks",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let mut text = Vec::new();
    let mut buf = [0u8; 4096];
    loop {
        match rustix::io::read(&fd, &mut buf[..]).ok()? {
            0 => break,
            n => text.extend_from_slice(&buf[..n]),
        }
    }
    let (major, minor) = (rustix::fs::major(facts.dev), rustix::fs::minor(facts.dev));
    let file = format!("{major:02x}:{minor:02x}:{}", facts.ino);
    let text = String::from_utf8_lossy(&text);
    // `1: FLOCK  ADVISORY  WRITE 123 fe:01:456 0 EOF`
    let pid = text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|w| *w == file)?;
        words.get(at.checked_sub(1)?)?.parse::<i32>().ok()
    })?;
    if pid == rustix::process::getpid().as_raw_nonzero().get() {
        return Some(format!("this process itself, {pid}"));
    }
    let command = process_file(pid, "cmdline")?;
    Some(format!("process {pid} ({command})"))
}

/// Returns the content of a short file of `/proc/PID`, with control characters as spaces.
fn process_file(pid: i32, name: &str) -> Option<String> {
    let path = format!("/proc/{pid}/{name}");
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buf = [0u8; COMMAND_MAX];
    let n = rustix::io::read(fd, &mut buf[..]).ok()?;
    let text: String = String::from_utf8_lossy(&buf[..n])
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let text = text.trim().to_string();
    (!text.is_empty()).then_some(text)
}
