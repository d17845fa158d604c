//! A device in memory whose power can be cut after each write. If told to, it loses, misplaces or
//! refuses writes.
//!
//! The same seed and calls leave the same bytes. A power cut makes a new device, and the old one
//! runs on.

use std::cmp::Ordering;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::content::Content;
use crate::rng::Rng;
use basalt_fs::device::{Device, DeviceFacts, DeviceRead, Discards, Way};
use basalt_fs::{Bytes, Error, ErrorKind, FsStats, ReadCompletions, Result};

/// The writes that survive a power cut, of those that no flush covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceCut {
    /// No write.
    Nothing,
    /// All writes, as after the death of the process.
    All,
    /// Any subset of sectors, by this seed. Each sector holds any of its versions.
    Some(u64),
    /// The writes before a moment that this seed chooses. The moment may lie inside a write.
    Prefix(u64),
    /// The writes after such a moment, without the earlier ones.
    Suffix(u64),
    /// All writes, except some sectors of the last one.
    Torn(u64),
}

/// A failure that strikes one write, flush or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceFault {
    /// The n-th write from now on (from 0) fails, and any part of its bytes may be written.
    Write(u64),
    /// The n-th flush from now on fails.
    Flush(u64),
    /// The n-th read from now on fails.
    Read(u64),
    /// The n-th write from now on returns success and writes nothing.
    Lost(u64),
    /// The n-th write from now on writes this many bytes further on than it should, and returns
    /// success.
    Misplaced(u64, u64),
}

/// A write that no flush covers yet.
#[derive(Clone)]
struct Pending {
    offset: u64,
    bytes: Bytes,
}

/// The writes since a flush, in order. Snapshots share one list with the device: it grows, and each
/// snapshot knows how many of its writes it has.
#[derive(Clone, Default)]
struct PendingWrites {
    all: Arc<Mutex<Vec<Pending>>>,
    count: usize,
}

impl PendingWrites {
    /// Adds a write. Only the device itself may do this, and no snapshot.
    fn push(&mut self, pending: Pending) {
        let mut all = self.all.lock();
        assert_eq!(all.len(), self.count, "another device has the list");
        all.push(pending);
        self.count += 1;
    }

    /// Returns the writes, oldest first.
    fn to_vec(&self) -> Vec<Pending> {
        self.all.lock()[..self.count].to_vec()
    }

    /// Returns a list of the same writes that another device may extend.
    fn detached(&self) -> PendingWrites {
        PendingWrites {
            all: Arc::new(Mutex::new(self.to_vec())),
            count: self.count,
        }
    }
}

/// The bytes of a device.
#[derive(Clone, Default)]
struct Disk {
    /// The bytes after the last flush.
    durable: Content,
    /// The bytes after all writes.
    now: Content,
    /// Writes since the last flush.
    since: PendingWrites,
}

/// The device right after a write. Any power cut of that moment can still be made from it. It costs
/// a few pointers.
#[derive(Clone)]
pub struct DeviceSnapshot {
    disk: Disk,
    facts: DeviceFacts,
    /// Number of the write since the device was made, from 1.
    pub write: u64,
}

impl DeviceSnapshot {
    /// Returns the device after a power cut at this moment.
    pub fn cut(&self, cut: DeviceCut) -> Arc<SimDevice> {
        SimDevice::over(self.facts.clone(), self.disk.cut(cut, self.facts.unit))
    }

    /// Returns the device after the death of the process at this moment. Nothing is lost, but a
    /// later power cut may still lose writes that no flush covered.
    pub fn killed(&self) -> Arc<SimDevice> {
        let disk = Disk {
            since: self.disk.since.detached(),
            ..self.disk.clone()
        };
        SimDevice::over(self.facts.clone(), disk)
    }
}

/// A function that is called after each write and flush.
type Observer = Box<dyn FnMut(&SimDevice) + Send>;

/// The bytes, counters and failures of a device, under its lock.
struct DeviceState {
    disk: Disk,
    stats: FsStats,
    writes: u64,
    discarded: u64,
    dead: bool,
    faults: Vec<DeviceFault>,
}

/// A block device in memory, as the head of this module describes it.
pub struct SimDevice {
    /// The facts of the device. `len` has the present length.
    facts: DeviceFacts,
    len: AtomicU64,
    state: Mutex<DeviceState>,
    observer: Mutex<Option<Observer>>,
}

impl Disk {
    fn cut(&self, cut: DeviceCut, unit: usize) -> Disk {
        let left = match cut {
            DeviceCut::Nothing => self.durable.clone(),
            DeviceCut::All => self.now.clone(),
            DeviceCut::Some(seed)
            | DeviceCut::Prefix(seed)
            | DeviceCut::Suffix(seed)
            | DeviceCut::Torn(seed) => {
                let mut left = self.durable.clone();
                let since = self.since.to_vec();
                let count = since.len() as u64;
                let crash_state = Rng::of(&[seed, count]).below(count + 1);
                for (n, pending) in since.iter().enumerate() {
                    // Later writes of a sector are applied later here, so each of them may be the
                    // last that survives.
                    let mut c = Rng::of(&[seed, n as u64, pending.offset]);
                    let some = c.below(101);
                    let most = match (cut, (n as u64).cmp(&crash_state)) {
                        (DeviceCut::Prefix(_), Ordering::Less)
                        | (DeviceCut::Suffix(_), Ordering::Greater) => 100,
                        (DeviceCut::Prefix(_) | DeviceCut::Suffix(_), Ordering::Equal) => some,
                        (DeviceCut::Prefix(_) | DeviceCut::Suffix(_), _) => 0,
                        (DeviceCut::Torn(_), _) if n as u64 + 1 < count => 100,
                        _ => some,
                    };
                    for (i, sector) in pending.bytes.chunks(unit).enumerate() {
                        if c.percent(most) {
                            left.write(pending.offset + (i * unit) as u64, sector);
                        }
                    }
                }
                left
            }
        };
        Disk {
            durable: left.clone(),
            now: left,
            since: PendingWrites::default(),
        }
    }
}

impl SimDevice {
    /// Returns a device of zeros.
    pub fn new(len: u64, unit: usize) -> Arc<SimDevice> {
        assert!(unit.is_power_of_two() && (512..=4096).contains(&unit));
        let facts = DeviceFacts {
            len,
            unit,
            description: "simulated device in memory".into(),
            read_backend: "memory",
            direct: true,
            own_memory: 8 << 10,
            discards: Discards::Always,
        };
        SimDevice::over(facts, Disk::default())
    }

    fn over(facts: DeviceFacts, disk: Disk) -> Arc<SimDevice> {
        Arc::new(SimDevice {
            len: AtomicU64::new(facts.len),
            facts,
            state: Mutex::new(DeviceState {
                disk,
                stats: FsStats::default(),
                writes: 0,
                discarded: 0,
                dead: false,
                faults: Vec::new(),
            }),
            observer: Mutex::new(None),
        })
    }

    /// Returns the present state of the device, for a later power cut.
    pub fn snapshot(&self) -> DeviceSnapshot {
        let state = self.state.lock();
        DeviceSnapshot {
            disk: state.disk.clone(),
            facts: self.facts(),
            write: state.writes,
        }
    }

    /// Returns the device after a power cut now. This device runs on.
    pub fn cut(&self, cut: DeviceCut) -> Arc<SimDevice> {
        self.snapshot().cut(cut)
    }

    /// Hands a snapshot to `observer` after each write and flush.
    pub fn on_write(&self, mut observer: impl FnMut(DeviceSnapshot) + Send + 'static) {
        self.on_change(move |device| observer(device.snapshot()));
    }

    /// Calls `observer` after each write and flush. It takes a snapshot if it needs one.
    pub(crate) fn on_change(&self, observer: impl FnMut(&SimDevice) + Send + 'static) {
        *self.observer.lock() = Some(Box::new(observer));
    }

    /// Adds a failure.
    pub fn fail(&self, fault: DeviceFault) {
        self.state.lock().faults.push(fault);
    }

    /// Makes every read, write and flush fail from now on.
    pub fn power_off(&self) {
        self.state.lock().dead = true;
    }

    /// Returns the number of failures that have not struck yet.
    pub fn faults_left(&self) -> usize {
        self.state.lock().faults.len()
    }

    /// Changes bytes without a write, as decay does.
    pub fn damage(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        state.disk.durable.write(offset, bytes);
        state.disk.now.write(offset, bytes);
    }

    /// Returns the present bytes, without counting a read.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        self.state.lock().disk.now.to_vec(offset, len)
    }

    /// Returns the number of writes and flushes so far.
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    /// Returns the number of bytes that were discarded so far.
    pub fn discarded(&self) -> u64 {
        self.state.lock().discarded
    }

    /// Makes the device longer by `more` bytes.
    pub fn grow(&self, more: u64) {
        self.len.fetch_add(more, SeqCst);
    }

    fn len(&self) -> u64 {
        self.len.load(SeqCst)
    }

    fn error(&self, what: &str) -> Error {
        Error::new(ErrorKind::Io, format!("{what} of the simulated device")).in_file(Path::new(""))
    }

    /// Counts one call on all failures of its kind, and returns the failure that strikes it, if
    /// there is one.
    fn strikes(
        faults: &mut Vec<DeviceFault>,
        left: impl Fn(&mut DeviceFault) -> Option<&mut u64>,
    ) -> Option<DeviceFault> {
        let mut struck = None;
        for (i, fault) in faults.iter_mut().enumerate() {
            if let Some(left) = left(fault) {
                match *left {
                    0 => struck = struck.or(Some(i)),
                    _ => *left -= 1,
                }
            }
        }
        struck.map(|i| faults.remove(i))
    }

    fn notify_observer(&self) {
        let mut observer = self.observer.lock();
        if let Some(observer) = observer.as_mut() {
            observer(self);
        }
    }
}

impl Device for SimDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            len: self.len(),
            ..self.facts.clone()
        }
    }

    fn read(&self, read: DeviceRead) -> Result<Bytes> {
        let mut state = self.state.lock();
        if state.dead {
            return Err(self.error("a read"));
        }
        let end = read.offset.checked_add(read.len as u64);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "a read of {} bytes at {} leaves the device",
            read.len,
            read.offset
        );
        state.stats.reads += 1;
        state.stats.bytes_read += read.len as u64;
        let struck = SimDevice::strikes(&mut state.faults, |f| match f {
            DeviceFault::Read(n) => Some(n),
            _ => None,
        });
        if struck.is_some() {
            return Err(self.error("a read"));
        }
        Ok(state.disk.now.to_vec(read.offset, read.len).into())
    }

    fn submit_reads(&self, reads: Vec<DeviceRead>) -> Box<dyn ReadCompletions> {
        let done = reads.into_iter().map(|r| self.read(r)).enumerate();
        Box::new(basalt_fs::CompletedReads(done.collect()))
    }

    fn write(&self, offset: u64, bufs: &[IoSlice<'_>], way: Way) -> Result<()> {
        let mut bytes = Vec::with_capacity(bufs.iter().map(|b| b.len()).sum());
        bufs.iter().for_each(|b| bytes.extend_from_slice(b));
        let unit = self.facts.unit as u64;
        assert!(
            offset + bytes.len() as u64 <= self.len(),
            "a write of {} bytes at {offset} leaves the device",
            bytes.len()
        );
        let whole = offset.is_multiple_of(unit) && (bytes.len() as u64).is_multiple_of(unit);
        assert!(
            way == Way::Cached || whole,
            "a direct write of {} bytes at {offset}",
            bytes.len()
        );
        {
            let mut state = self.state.lock();
            if state.dead {
                return Err(self.error("a write"));
            }
            state.stats.writes += 1;
            state.stats.bytes_written += bytes.len() as u64;
            state.writes += 1;
            let struck = SimDevice::strikes(&mut state.faults, |f| match f {
                DeviceFault::Write(n) | DeviceFault::Lost(n) | DeviceFault::Misplaced(n, _) => {
                    Some(n)
                }
                _ => None,
            });
            let mut at = offset;
            let mut error = None;
            match struck {
                Some(DeviceFault::Lost(_)) => return Ok(()),
                Some(DeviceFault::Misplaced(_, by)) => {
                    at = (offset + by).min(self.len() - bytes.len() as u64);
                }
                Some(_) => error = Some(self.error("a write")),
                None => {}
            }
            // The record has whole sectors, so it includes the bytes around a cached write.
            let from = at / unit * unit;
            let to = (at + bytes.len() as u64).next_multiple_of(unit);
            let arrives = match error {
                Some(_) => bytes.len() / 2,
                None => bytes.len(),
            };
            state.disk.now.write(at, &bytes[..arrives]);
            let sectors = match whole && from == at && error.is_none() {
                true => bytes,
                false => state.disk.now.to_vec(from, (to - from) as usize),
            };
            state.disk.since.push(Pending {
                offset: from,
                bytes: sectors.into(),
            });
            if let Some(e) = error {
                return Err(e);
            }
        }
        self.notify_observer();
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        {
            let mut state = self.state.lock();
            if state.dead {
                return Err(self.error("a flush"));
            }
            state.stats.syncs += 1;
            state.writes += 1;
            let struck = SimDevice::strikes(&mut state.faults, |f| match f {
                DeviceFault::Flush(n) => Some(n),
                _ => None,
            });
            if struck.is_some() {
                return Err(self.error("a flush"));
            }
            state.disk.durable = state.disk.now.clone();
            state.disk.since = PendingWrites::default();
        }
        self.notify_observer();
        Ok(())
    }

    /// Fills the range with noise. A power cut may leave its former bytes.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let unit = self.facts.unit as u64;
        assert!(
            offset.is_multiple_of(unit) && len.is_multiple_of(unit) && offset + len <= self.len(),
            "a discard of {len} bytes at {offset}"
        );
        {
            let mut state = self.state.lock();
            if state.dead {
                return Err(self.error("a discard"));
            }
            state.writes += 1;
            state.discarded += len;
            let mut noise = vec![0; len as usize];
            Rng::of(&[state.writes, offset]).fill(&mut noise);
            state.disk.now.write(offset, &noise);
            state.disk.since.push(Pending {
                offset,
                bytes: noise.into(),
            });
        }
        self.notify_observer();
        Ok(())
    }

    fn stats(&self) -> FsStats {
        self.state.lock().stats
    }
}
