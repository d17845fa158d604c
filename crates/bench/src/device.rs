//! The device without an engine: an upper bound of what an engine can reach.
//!
//! Each kind of access has one file. The file is written whole and synced before it is measured,
//! past the page cache if the filesystem allows it. Synced overwrites go to written space and
//! change no inode, which is the best case of a log. Calls go directly to the kernel: the engine's
//! filesystem layer is not involved.

use crate::Stop;
use basalt::env::{Clock, Histogram, Random};
use basalt::fs::AlignedBuf;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a sequential write.
pub const SEQUENTIAL: usize = 1 << 20;
/// Bytes of a random read.
pub const RANDOM_READ: usize = 4096;

/// Operations, and the time that they took.
#[derive(Clone, Default)]
pub struct Measured {
    /// Number of operations.
    pub ops: u64,
    /// Time of all operations.
    pub time: Duration,
    /// Nanoseconds of each operation.
    pub latency: Histogram,
}

impl Measured {
    /// Returns the operations a second, or 0 without operations.
    pub fn rate(&self) -> f64 {
        if self.ops == 0 {
            0.0
        } else {
            self.ops as f64 / self.time.as_secs_f64().max(1e-9)
        }
    }

    /// Adds another slice.
    pub fn add(&mut self, other: &Measured) {
        self.ops += other.ops;
        self.time += other.time;
        self.latency.merge(&other.latency);
    }
}

/// A file to measure the device with. Dropping it removes the file.
pub struct Device {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    bytes: u64,
    next: u64,
    clock: Clock,
    random: Random,
    /// False if the filesystem refuses direct I/O. The results are then those of the page cache.
    pub direct: bool,
}

impl Device {
    /// Writes a file of `bytes` bytes (a multiple of 1 MiB) into `dir` and makes it durable.
    pub fn new(
        dir: &Path,
        bytes: u64,
        direct: bool,
        seed: u64,
        clock: Clock,
    ) -> Result<Device, Stop> {
        let path = dir.join(format!(
            "device-{}",
            rustix::process::getpid().as_raw_nonzero()
        ));
        let fail = |what: &str, e: Errno| {
            Stop::new(format!(
                "cannot {what} {}: {}; choose another --dir, or leave the device out with --no-device",
                path.display(),
                std::io::Error::from(e)
            ))
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let _ = rustix::fs::unlink(&path);
        let open = |flags| rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600));
        let (fd, direct) = match direct.then(|| open(flags | OFlags::DIRECT)) {
            Some(Ok(fd)) => (fd, true),
            Some(Err(Errno::INVAL)) => {
                let _ = rustix::fs::unlink(&path);
                (open(flags).map_err(|e| fail("make", e))?, false)
            }
            Some(Err(e)) => return Err(fail("make", e)),
            None => (open(flags).map_err(|e| fail("make", e))?, false),
        };
        let device = Device {
            fd: Arc::new(fd),
            path: path.clone(),
            bytes,
            next: 0,
            clock,
            random: Random::from_seed(seed ^ 0x6465_7669),
            direct,
        };
        let mut buf = device.noise(SEQUENTIAL);
        for at in (0..bytes).step_by(SEQUENTIAL) {
            buf[..8].copy_from_slice(&at.to_le_bytes());
            write_at(&device.fd, &buf, at).map_err(|e| fail("write", e))?;
        }
        rustix::fs::fsync(&*device.fd).map_err(|e| fail("sync", e))?;
        Ok(device)
    }

    /// Returns aligned bytes that no device can compress.
    fn noise(&self, len: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed_direct(len);
        for part in buf.chunks_mut(8) {
            part.copy_from_slice(&self.random.next_u64().to_le_bytes()[..part.len()]);
        }
        buf
    }

    fn fail(&self, what: &str, e: Errno) -> Stop {
        Stop::new(format!(
            "cannot {what} {}: {}",
            self.path.display(),
            std::io::Error::from(e)
        ))
    }

    /// Overwrites `len` bytes again and again for `time`, in order, with a sync after each.
    pub fn synced_overwrites(&mut self, len: usize, time: Duration) -> Result<Measured, Stop> {
        let buf = self.noise(len);
        self.writes(&buf, time, true)
    }

    /// Writes 1 MiB again and again for `time`, in order, with one sync at the end. The time
    /// includes the sync.
    pub fn sequential_writes(&mut self, time: Duration) -> Result<Measured, Stop> {
        let buf = self.noise(SEQUENTIAL);
        self.next = 0;
        let mut m = self.writes(&buf, time, false)?;
        let before = self.clock.now();
        rustix::fs::fdatasync(&*self.fd).map_err(|e| self.fail("sync", e))?;
        m.time += self.clock.now().saturating_sub(before);
        Ok(m)
    }

    fn writes(&mut self, buf: &[u8], time: Duration, sync: bool) -> Result<Measured, Stop> {
        let mut m = Measured::default();
        let start = self.clock.now();
        let mut last = start;
        while last - start < time {
            if self.next + buf.len() as u64 > self.bytes {
                self.next = 0;
            }
            write_at(&self.fd, buf, self.next).map_err(|e| self.fail("write", e))?;
            if sync {
                rustix::fs::fdatasync(&*self.fd).map_err(|e| self.fail("sync", e))?;
            }
            self.next += buf.len() as u64;
            let now = self.clock.now();
            m.latency.record((now - last).as_nanos() as u64);
            m.ops += 1;
            last = now;
        }
        m.time = last - start;
        Ok(m)
    }

    /// Reads 1 MiB again and again for `time`, in order.
    pub fn sequential_reads(&self, time: Duration) -> Result<Measured, Stop> {
        let mut buf = AlignedBuf::zeroed_direct(SEQUENTIAL);
        let mut m = Measured::default();
        let start = self.clock.now();
        let (mut last, mut at) = (start, 0);
        while last - start < time {
            if at + SEQUENTIAL as u64 > self.bytes {
                at = 0;
            }
            read_at(&self.fd, &mut buf, at).map_err(|e| self.fail("read", e))?;
            at += SEQUENTIAL as u64;
            let now = self.clock.now();
            m.latency.record((now - last).as_nanos() as u64);
            m.ops += 1;
            last = now;
        }
        m.time = last - start;
        Ok(m)
    }

    /// Reads 4 KiB at random offsets on `threads` threads for `time`.
    pub fn random_reads(&self, threads: usize, time: Duration) -> Result<Measured, Stop> {
        let mut running = Vec::new();
        for _ in 0..threads {
            let (fd, clock, blocks) = (
                self.fd.clone(),
                self.clock.clone(),
                self.bytes / RANDOM_READ as u64,
            );
            let random = Random::from_seed(self.random.next_u64());
            let (send, receive) = std::sync::mpsc::channel();
            let handle = basalt::env::thread::spawn("bench-device", move || {
                let mut buf = AlignedBuf::zeroed_direct(RANDOM_READ);
                let mut m = Measured::default();
                let start = clock.now();
                let mut last = start;
                let ended = loop {
                    if last - start >= time {
                        break Ok(());
                    }
                    if let Err(e) =
                        read_at(&fd, &mut buf, random.below(blocks) * RANDOM_READ as u64)
                    {
                        break Err(e);
                    }
                    let now = clock.now();
                    m.latency.record((now - last).as_nanos() as u64);
                    m.ops += 1;
                    last = now;
                };
                m.time = last - start;
                let _ = send.send(ended.map(|()| m));
            });
            let handle = handle.map_err(|e| {
                Stop::new(format!(
                    "cannot start a thread: {e}; ask for fewer --threads"
                ))
            })?;
            running.push((handle, receive));
        }
        let mut all = Measured::default();
        let mut longest = Duration::ZERO;
        for (handle, receive) in running {
            let m = receive
                .recv()
                .map_err(|_| Stop::new("a measuring thread ended early"))?
                .map_err(|e| self.fail("read", e))?;
            let _ = handle.join();
            longest = longest.max(m.time);
            all.add(&m);
        }
        all.time = longest;
        Ok(all)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(rustix::fs::CWD, &self.path, AtFlags::empty());
    }
}

fn write_at(fd: &OwnedFd, buf: &[u8], at: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pwrite(fd, &buf[done..], at + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn read_at(fd: &OwnedFd, buf: &mut [u8], at: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(fd, &mut buf[done..], at + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
