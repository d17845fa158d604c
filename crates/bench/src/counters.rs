//! Device bytes and memory, by three accounts: what the filesystem layer of this process counts, what the kernel counts for
//! this process, and what the block device counts for everybody. They differ where a filesystem writes metadata, where
//! the page cache merges, and where other processes write; that is what makes all three worth having.

use basalt::fs::FsStats;
use rustix::fs::{Mode, OFlags};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A small file of the kernel's, as text.
pub fn read_kernel_file(path: &Path) -> Option<String> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = String::new();
    std::fs::File::from(fd)
        .take(1 << 20)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

/// Read and written bytes; `None` where an account cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The filesystem layer's own account.
    pub fs: FsStats,
    /// `/proc/self/io`: bytes this process caused to be read from and written to devices.
    pub process: Option<(u64, u64)>,
    /// The block device's own counter, whoever used it.
    pub disk: Option<(u64, u64)>,
}

/// Reads the counters of the block device under a directory.
#[derive(Clone)]
pub struct Counters {
    stat: Option<PathBuf>,
}

impl Counters {
    /// For the device under `dir`.
    pub fn new(dir: &Path) -> Counters {
        Counters {
            stat: block_device(dir).map(|d| d.join("stat")),
        }
    }

    /// The counters now; `fs` is the filesystem layer's account.
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

impl Counts {
    /// What was added between `earlier` and now.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let pair = |a: Option<(u64, u64)>, b: Option<(u64, u64)>| {
            Some((a?.0.saturating_sub(b?.0), a?.1.saturating_sub(b?.1)))
        };
        let (a, b) = (&self.fs, &earlier.fs);
        Counts {
            fs: FsStats {
                bytes_written: a.bytes_written.saturating_sub(b.bytes_written),
                bytes_prewritten: a.bytes_prewritten.saturating_sub(b.bytes_prewritten),
                bytes_read: a.bytes_read.saturating_sub(b.bytes_read),
                reads: a.reads.saturating_sub(b.reads),
                writes: a.writes.saturating_sub(b.writes),
                syncs: a.syncs.saturating_sub(b.syncs),
            },
            process: pair(self.process, earlier.process),
            disk: pair(self.disk, earlier.disk),
        }
    }

    /// Both together. An account that cannot be read in one cannot be read in the sum.
    pub fn plus(&self, other: &Counts) -> Counts {
        let pair = |a: Option<(u64, u64)>, b: Option<(u64, u64)>| Some((a?.0 + b?.0, a?.1 + b?.1));
        let (a, b) = (&self.fs, &other.fs);
        Counts {
            fs: FsStats {
                bytes_written: a.bytes_written + b.bytes_written,
                bytes_prewritten: a.bytes_prewritten + b.bytes_prewritten,
                bytes_read: a.bytes_read + b.bytes_read,
                reads: a.reads + b.reads,
                writes: a.writes + b.writes,
                syncs: a.syncs + b.syncs,
            },
            process: pair(self.process, other.process),
            disk: pair(self.disk, other.disk),
        }
    }

    /// Nothing, to add to: every account can be read.
    pub fn zero() -> Counts {
        Counts {
            fs: FsStats::default(),
            process: Some((0, 0)),
            disk: Some((0, 0)),
        }
    }
}

/// Sectors of `/sys/block/*/stat` have 512 bytes, whatever the device's own are.
fn parse_stat(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_ascii_whitespace();
    let read: u64 = fields.nth(2)?.parse().ok()?;
    let written: u64 = fields.nth(3)?.parse().ok()?;
    Some((read * 512, written * 512))
}

/// The number after `name` on its line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|l| l.strip_prefix(name))
        .and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok())
}

/// The kernel's directory of the block device that holds `dir`; `None` where no single one does (network and memory
/// filesystems, overlays).
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
    // Filesystems over several devices have a number of their own: the mount table names the device.
    let (_, source) = mount_of(dir)?;
    let dev = rustix::fs::stat(source.as_str()).ok()?.st_rdev;
    (source.starts_with("/dev/") && rustix::fs::stat(number(dev)).is_ok()).then(|| number(dev))
}

/// Filesystem type and source of the mount that holds `dir`.
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

/// Begins a new peak of resident memory, where the kernel lets us.
pub fn reset_peak_rss() {
    if let Ok(fd) = rustix::fs::open(
        "/proc/self/clear_refs",
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        let _ = rustix::io::write(&fd, b"5");
    }
}

/// The highest resident memory since the last reset, in bytes.
pub fn peak_rss() -> Option<u64> {
    let text = read_kernel_file(Path::new("/proc/self/status"))?;
    Some(field(&text, "VmHWM:")? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_read() {
        let stat = " 93048 29046 7797754 25380 9780 19524 1523496 7221 0 11688 33124 4000 80 552392 496 437 25\n";
        assert_eq!(parse_stat(stat), Some((7797754 * 512, 1523496 * 512)));
        assert_eq!(parse_stat("1 2"), None);
        assert_eq!(field("a: 1\nVmHWM:\t  12 kB\n", "VmHWM:"), Some(12));
        assert!(peak_rss().is_some_and(|n| n > 0));
        reset_peak_rss();
        let counts = Counters::new(Path::new(".")).read(FsStats::default());
        assert!(counts.process.is_some());
        assert_eq!(counts.since(&counts).process, Some((0, 0)));
        assert_eq!(Counts::zero().plus(&counts), counts);
    }
}
