//! The simulated disk with LavaFS on it. Tests of the engines then also test that filesystem, over
//! a simulated device whose power is cut.
//!
//! With `BASALT_SIM=lava` in the environment, every disk is of this kind. The device then loses
//! sectors and never whole files. The rules for engines are the same.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::{CrashPolicy, SimFs, SimOptions, SimSnapshot};
use crate::{DeviceCut, DeviceSnapshot, OpKind, SimDevice};
use basalt_fs::{Error, ErrorKind, FileSystem, Intent, Result};
use basalt_lava::{FileReport, LavaFs, LavaOptions};

/// Largest size of the device, in bytes. Most disks are this large or larger. Unused space costs
/// nothing, but metadata grows with the size.
const SIZE: u64 = 1 << 30;

/// Smallest capacity, in bytes. Smaller disks have no room for a filesystem's own metadata.
const LEAST: u64 = 4 << 20;

/// Returns true if the environment asks for LavaFS and the disk has room for it.
pub(super) fn is_wanted_for(options: &SimOptions) -> bool {
    is_wanted() && options.capacity >= LEAST
}

/// Returns true if the environment asks for LavaFS.
#[doc(hidden)]
pub fn is_wanted() -> bool {
    std::env::var("BASALT_SIM").is_ok_and(|v| v == "lava")
}

/// Runs every test of this test binary again, in a process of its own, on simulated disks with
/// LavaFS on them. It leaves out tests whose names contain one of `but`.
///
/// # Panics
/// If a test fails, or none was run.
#[doc(hidden)]
pub fn all_tests_on_lava(this: &str, but: &[&str]) {
    if is_wanted() || std::env::var("BASALT_CASE").is_ok() {
        return;
    }
    let runner = std::env::current_exe().expect("a test binary");
    let mut again = std::process::Command::new(runner);
    again.env("BASALT_SIM", "lava");
    // The second run takes a third of the effort, because the promises are the same.
    again.env("BASALT_SCALE", crate::campaign::scale().third().to_string());
    for skip in but.iter().chain([&this]) {
        again.args(["--skip", skip]);
    }
    again.stdout(std::process::Stdio::piped());
    let mut child = again.spawn().expect("the tests run");
    let out = child.stdout.take().expect("it is piped");
    let mut passed = 0;
    for line in std::io::BufReader::new(out).lines().map_while(|l| l.ok()) {
        let count = line.strip_prefix("test result: ok. ");
        let count = count.and_then(|l| l.split(' ').next()?.parse::<u64>().ok());
        passed += count.unwrap_or(0);
        crate::campaign!("{line}");
    }
    let ended = child.wait().expect("the tests run");
    assert!(!ended.success() || passed > 0, "no test was run");
    assert!(
        ended.success(),
        "with BASALT_SIM=lava in the environment the tests fail: run them so to see which"
    );
}

/// LavaFS on a simulated device, as the head of this module describes it.
pub(super) struct OnLava {
    device: Arc<SimDevice>,
    fs: Arc<LavaFs>,
    seed: u64,
    powered: AtomicBool,
    /// Every n-th snapshot is kept; 0 for none.
    every_n: AtomicU64,
    recorded: parking_lot::Mutex<Vec<SimSnapshot>>,
}

/// A frozen device.
#[derive(Clone)]
pub(super) struct Frozen {
    device: DeviceSnapshot,
    seed: u64,
}

impl Frozen {
    pub(super) fn cut(&self, cut: DeviceCut) -> Arc<SimFs> {
        SimFs::on_lava(OnLava::mounted(self.device.cut(cut), self.seed))
    }

    pub(super) fn killed(&self) -> Arc<SimFs> {
        SimFs::on_lava(OnLava::mounted(self.device.killed(), self.seed))
    }
}

/// Returns the part of the device that survives a power cut.
pub(super) fn cut_of(policy: CrashPolicy, seed: u64) -> DeviceCut {
    match policy {
        CrashPolicy::NothingUnsynced => DeviceCut::Nothing,
        CrashPolicy::EverythingUnsynced => DeviceCut::All,
        CrashPolicy::Prefix => DeviceCut::Prefix(seed),
        CrashPolicy::Suffix => DeviceCut::Suffix(seed),
        CrashPolicy::Torn => DeviceCut::Torn(seed),
        // A device knows neither names nor lengths.
        _ => DeviceCut::Some(seed),
    }
}

impl OnLava {
    pub(super) fn new(options: SimOptions) -> OnLava {
        let wanted = options.capacity.min(SIZE);
        // The free space is the requested capacity, so the filesystem's own space comes on top.
        let mut size = (wanted + (4 << 20)).next_multiple_of(4096);
        loop {
            let device = SimDevice::new(size, options.write_unit);
            LavaFs::format(&*device, false, Path::new("simulated")).expect("room for a filesystem");
            let made = OnLava::mounted(device, options.seed);
            let free = made.fs.space(Path::new("")).expect("it is mounted").free;
            let asked = wanted / 4096 * 4096;
            if free < asked {
                size += asked - free;
            } else if wanted == SIZE || free == asked {
                return made;
            } else {
                size -= free - asked;
            }
        }
    }

    fn mounted(device: Arc<SimDevice>, seed: u64) -> OnLava {
        // The mount has no jobs, because their threads would make two runs of one seed differ.
        let mounted = LavaFs::mount(device.clone(), &LavaOptions::default());
        OnLava {
            fs: mounted.unwrap_or_else(|e| panic!("a mount after a power cut: {e}")),
            device,
            seed,
            powered: AtomicBool::new(true),
            every_n: AtomicU64::new(0),
            recorded: parking_lot::Mutex::default(),
        }
    }

    /// Returns the filesystem, as long as there is power.
    pub(super) fn fs(&self) -> Result<&LavaFs> {
        match self.powered.load(SeqCst) {
            true => Ok(&self.fs),
            false => Err(Error::new(
                ErrorKind::Io,
                "the simulated disk has no power: this process is dead",
            )),
        }
    }

    /// Returns the filesystem, also of a dead process.
    pub(super) fn any(&self) -> &LavaFs {
        &self.fs
    }

    /// Does the work of a background thread: discards, and a checkpoint if it is due.
    pub(super) fn wait_idle(&self) {
        self.fs.discard();
        if self.fs.is_due() {
            // Without room, or without power, the journal goes on.
            let _ = self.fs.checkpoint();
        }
    }

    pub(super) fn freeze(&self) -> Frozen {
        Frozen {
            device: self.device.snapshot(),
            seed: self.seed,
        }
    }

    pub(super) fn power_off(&self) {
        self.powered.store(false, SeqCst);
        self.device.power_off();
    }

    pub(super) fn writes(&self) -> u64 {
        self.device.writes()
    }

    pub(super) fn take_snapshots(&self) -> Vec<SimSnapshot> {
        std::mem::take(&mut self.recorded.lock())
    }

    pub(super) fn record_snapshots(&self, every_n: u64) {
        self.every_n.store(every_n, SeqCst);
    }

    /// Returns the extents of a file on the device, also past its length.
    fn places(&self, path: &Path) -> Result<FileReport> {
        self.fs.describe(path)
    }

    pub(super) fn overwrite(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<()> {
        let places = self.places(path)?;
        for (i, byte) in bytes.iter().enumerate() {
            let at = offset + i as u64;
            let extent = places.extents.iter().find(|e| at < e.offset + e.len);
            if let Some((extent, place)) = extent.and_then(|e| Some((e, e.place?))) {
                self.device.damage(place + at - extent.offset, &[*byte]);
            }
        }
        Ok(())
    }

    pub(super) fn read_all(&self, path: &Path) -> Result<Vec<u8>> {
        let file = self.fs.open(path)?;
        let len = file.allocated().max(file.len());
        Ok(file.read(0, len as usize)?.to_vec())
    }

    pub(super) fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        if self.fs.exists(path)? {
            self.fs.remove(path)?;
        }
        let file = self.fs.create(path)?;
        file.append(&[std::io::IoSlice::new(bytes)], Intent::Lazy)?;
        file.sync_all()?;
        self.fs
            .sync_metadata(path.parent().unwrap_or(Path::new("")))
    }

    pub(super) fn swap_files(&self, a: &Path, b: &Path) -> Result<()> {
        let aside = PathBuf::from("swapped aside");
        for (from, to) in [(a, &*aside), (b, a), (&*aside, b)] {
            self.fs.rename(from, to)?;
        }
        self.fs.sync_metadata(Path::new(""))
    }

    pub(super) fn digest(&self) -> u64 {
        let mut sum = Vec::new();
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            for e in self.fs.list(&dir).expect("a directory") {
                let path = dir.join(&e.name);
                sum.extend_from_slice(path.as_os_str().as_encoded_bytes());
                if e.is_dir {
                    dirs.push(path);
                    continue;
                }
                let stat = self.fs.stat(&path).expect("it is there");
                sum.extend_from_slice(&stat.len.to_le_bytes());
                sum.extend_from_slice(&self.read_all(&path).expect("it is read"));
            }
        }
        u64::from(crc32c::crc32c(&sum))
    }

    /// Makes the disk receive a snapshot after each write of the device.
    pub(super) fn watch(me: &Arc<SimFs>) {
        let weak = Arc::downgrade(me);
        let lava = me.lava.as_ref().expect("on LavaFS");
        let seed = lava.seed;
        lava.device.on_change(move |device| {
            let Some(me) = weak.upgrade() else { return };
            let lava = me.lava.as_ref().expect("on LavaFS");
            let every_n = lava.every_n.load(SeqCst);
            let mut observer = me.observer.lock();
            if every_n == 0 && observer.is_none() {
                return;
            }
            let device = device.snapshot();
            let snapshot = SimSnapshot {
                call: OpKind::Append,
                path: "the device".into(),
                op: device.write,
                disk: super::FrozenState::Lava(Frozen { device, seed }),
            };
            if every_n > 0 && snapshot.op.is_multiple_of(every_n) {
                lava.recorded.lock().push(snapshot.clone());
            }
            if let Some(observer) = observer.as_mut() {
                observer(snapshot);
            }
        });
    }
}

/// Cuts a file to `len` bytes, for damage by tests.
pub(super) fn cut_short(lava: &OnLava, path: &Path, len: u64) -> Result<()> {
    let mut bytes = lava.read_all(path)?;
    if (bytes.len() as u64) > len {
        bytes.truncate(len as usize);
        lava.write_file(path, &bytes)?;
    }
    Ok(())
}
