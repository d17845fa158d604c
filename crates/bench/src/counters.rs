//! Device bytes and memory by three counters: those of the filesystem layer of this process, those
//! of the kernel for this process, and those of the block device. The counters differ if a
//! filesystem writes metadata, if the page cache merges writes, or if other processes write. So all
//! three are reported.

use basalt::fs::FsStats;
use rustix::fs::{Mode, OFlags};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Reads a small file of the kernel as text.
pub fn read_kernel_file(path: &Path) -> Option<String> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = String::new();
    std::fs::File::from(fd)
        .take(1 << 20)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

/// Bytes read and written by each counter; `None` if the counter cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The counter of the filesystem layer.
    pub fs: FsStats,
    /// `/proc/self/io`: bytes this process caused to be read from and written to devices.
    pub process: Option<(u64, u64)>,
    /// The counter of the block device, with the bytes of all processes.
    pub disk: Option<(u64, u64)>,
}

/// Reads the counters of the block device under a directory.
#[derive(Clone)]
pub struct Counters {
    stat: Option<PathBuf>,
}

impl Counters {
    /// Makes the counters of a block device, or of the device that a file lies on.
    pub fn of_device(path: &Path) -> Counters {
        let number = rustix::fs::stat(path).ok().filter(|s| {
            rustix::fs::FileType::from_raw_mode(s.st_mode) == rustix::fs::FileType::BlockDevice
        });
        let Some(number) = number.map(|s| s.st_rdev) else {
            return Counters::new(path.parent().unwrap_or(Path::new(".")));
        };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        Counters {
            stat: Some(PathBuf::from(format!(
                "/sys/dev/block/{major}:{minor}/stat"
            ))),
        }
    }

    /// Makes the counters of the device under `dir`.
    pub fn new(dir: &Path) -> Counters {
        Counters {
            stat: block_device(dir).map(|d| d.join("stat")),
        }
    }

    /// Returns the counters now. `fs` is the counter of the filesystem layer.
    pub fn read(&self, fs: FsStats) -> Counts {
        Counts {
            fs,
            process: read_kernel_file(Path::new("/proc/self/io"))
                .and_then(|t| Some((field(&t, "read_bytes:")?, field(&t, "write_bytes:")?))),
            disk: self
                .stat
                .as_deref()
                .and_then(read_kernel_file)
                .and_then(|t| parse_stat(&t)),
        }
    }
}

impl Counters {
    /// Returns the counters of the block device now.
    pub fn disk(&self) -> Option<Disk> {
        let text = read_kernel_file(self.stat.as_deref()?)?;
        let (read_bytes, write_bytes) = parse_stat(&text)?;
        Some(Disk {
            reads: text.split_ascii_whitespace().next()?.parse().ok()?,
            read_bytes,
            write_bytes,
        })
    }
}

/// Returns the counters that `with` makes of each pair of two filesystems or moments.
fn combined(a: &FsStats, b: &FsStats, with: impl Fn(u64, u64) -> u64) -> FsStats {
    let mut all = FsStats::default();
    all.bytes_written = with(a.bytes_written, b.bytes_written);
    all.bytes_prewritten = with(a.bytes_prewritten, b.bytes_prewritten);
    all.bytes_read = with(a.bytes_read, b.bytes_read);
    all.reads = with(a.reads, b.reads);
    all.writes = with(a.writes, b.writes);
    all.syncs = with(a.syncs, b.syncs);
    all
}

impl Counts {
    /// Returns the difference between now and `earlier`.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let pair = |a: Option<(u64, u64)>, b: Option<(u64, u64)>| {
            Some((a?.0.saturating_sub(b?.0), a?.1.saturating_sub(b?.1)))
        };
        Counts {
            fs: combined(&self.fs, &earlier.fs, u64::saturating_sub),
            process: pair(self.process, earlier.process),
            disk: pair(self.disk, earlier.disk),
        }
    }

    /// Returns the sum of both. A counter that one of them lacks is missing in the sum.
    pub fn plus(&self, other: &Counts) -> Counts {
        let pair = |a: Option<(u64, u64)>, b: Option<(u64, u64)>| Some((a?.0 + b?.0, a?.1 + b?.1));
        Counts {
            fs: combined(&self.fs, &other.fs, |a, b| a + b),
            process: pair(self.process, other.process),
            disk: pair(self.disk, other.disk),
        }
    }

    /// Returns zeros as the start of a sum: all counters are present.
    pub fn zero() -> Counts {
        Counts {
            fs: FsStats::default(),
            process: Some((0, 0)),
            disk: Some((0, 0)),
        }
    }
}

/// The kernel's counters of this process, with any engine in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Process {
    /// Bytes that the process caused to be read from devices.
    pub read_bytes: u64,
    /// Bytes that the process caused to be written to devices, without those of removed files that
    /// were never written.
    pub write_bytes: u64,
    /// Read calls. Past the page cache, each is a read of a device.
    pub read_calls: u64,
    /// Processor time of all threads in milliseconds.
    pub cpu_ms: u64,
}

impl Process {
    /// Returns the counters now, or zeros if the kernel does not report them.
    pub fn now() -> Process {
        let io = read_kernel_file(Path::new("/proc/self/io")).unwrap_or_default();
        let count = |name| field(&io, name).unwrap_or(0);
        Process {
            read_bytes: count("read_bytes:"),
            write_bytes: count("write_bytes:").saturating_sub(count("cancelled_write_bytes:")),
            read_calls: count("syscr:"),
            cpu_ms: read_kernel_file(Path::new("/proc/self/stat"))
                .and_then(|t| cpu_ticks(&t))
                .map_or(0, |ticks| {
                    ticks * 1000 / rustix::param::clock_ticks_per_second()
                }),
        }
    }

    /// Returns the difference between now and `earlier`.
    pub fn since(&self, earlier: &Process) -> Process {
        Process {
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
            read_calls: self.read_calls.saturating_sub(earlier.read_calls),
            cpu_ms: self.cpu_ms.saturating_sub(earlier.cpu_ms),
        }
    }
}

/// Returns the user and system time of `/proc/self/stat` in ticks. The second field is a name in
/// brackets with any content.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// The counters of the block device, with the work of all processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disk {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// Parses `/sys/block/*/stat`. A sector there has 512 bytes, on every device.
fn parse_stat(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_ascii_whitespace();
    let read: u64 = fields.nth(2)?.parse().ok()?;
    let written: u64 = fields.nth(3)?.parse().ok()?;
    Some((read * 512, written * 512))
}

/// Returns the number after `name` on its line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|l| l.strip_prefix(name))
        .and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok())
}

/// Returns the kernel's directory of the block device that holds `dir`. The result is `None` for
/// network and memory filesystems and for overlays, which no single device holds.
pub fn block_device(dir: &Path) -> Option<PathBuf> {
    let dev = rustix::fs::stat(dir).ok()?.st_dev;
    let number = |dev| {
        PathBuf::from(format!(
            "/sys/dev/block/{}:{}",
            rustix::fs::major(dev),
            rustix::fs::minor(dev)
        ))
    };
    if rustix::fs::stat(number(dev)).is_ok() {
        return Some(number(dev));
    }
    // A filesystem over several devices has a device number of its own. The mount table names the
    // device.
    let (_, source) = mount_of(dir)?;
    let dev = rustix::fs::stat(source.as_str()).ok()?.st_rdev;
    (source.starts_with("/dev/") && rustix::fs::stat(number(dev)).is_ok()).then(|| number(dev))
}

/// Returns the filesystem type and the source of the mount that holds `dir`.
pub fn mount_of(dir: &Path) -> Option<(String, String)> {
    let dev = rustix::fs::stat(dir).ok()?.st_dev;
    let id = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let table = read_kernel_file(Path::new("/proc/self/mountinfo"))?;
    table.lines().find_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        (head.split(' ').nth(2)? == id).then_some(())?;
        let mut tail = tail.split(' ');
        Some((tail.next()?.to_string(), tail.next()?.to_string()))
    })
}

/// Resets the peak of resident memory, if the kernel allows it.
pub fn reset_peak_rss() {
    if let Ok(fd) = rustix::fs::open(
        "/proc/self/clear_refs",
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        let _ = rustix::io::write(&fd, b"5");
    }
}

/// Returns the peak of resident memory since the last reset, in bytes.
pub fn peak_rss() -> Option<u64> {
    let text = read_kernel_file(Path::new("/proc/self/status"))?;
    Some(field(&text, "VmHWM:")? * 1024)
}

/// Returns the resident memory that no file backs, in bytes.
pub fn anonymous_rss() -> Option<u64> {
    let text = read_kernel_file(Path::new("/proc/self/status"))?;
    Some(field(&text, "RssAnon:")? * 1024)
}

#[cfg(test)]
mod tests;
