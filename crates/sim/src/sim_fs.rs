//! `SimFs`: a disk in memory that forgets, tears, reorders and, if told to, lies; all by seed.
//!
//! It implements the weakest behaviour that the durability contract (the head of [`basalt_fs`])
//! allows, so that an engine that relies on more fails its tests:
//!
//! - Bytes that no sync covered survive a power cut in any subset of sectors. A sector that was
//!   written several times holds any of its versions. Bytes that do not survive inside a surviving
//!   length read as zeros, noise, or the bytes of a removed file.
//! - Lengths are metadata of their own: after a power cut, `len` may be short even of synced bytes,
//!   and may be long.
//! - Names survive in any subset until their directory is synced. A file without its name is gone,
//!   even if its bytes were synced. A name without its bytes is an empty or garbled file. A
//!   directory's own name is an entry of its parent.
//! - An engine that breaks the contract (appends into a sector that a sync covered; appends through
//!   a log that was reused) is stopped by a panic, because that is a bug of the engine and not a
//!   fault of the disk.
//!
//! The same seed and calls give the same disk, byte for byte, after the same power cut. A power cut
//! makes a *new* disk ([`SimFs::crash`]), and the old one runs on. So one run can be crashed at
//! each of its moments. A [`SimSnapshot`] costs a few pointers, and a crashed clone costs its
//! unsynced bytes.

mod crash;
mod damage;
mod disk;
mod file;
mod on_lava;
mod silent_faults;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub use crash::CrashPolicy;
#[doc(hidden)]
pub use on_lava::{all_tests_on_lava, is_wanted as is_on_lava};
pub use silent_faults::{Lie, LieKind};

use crate::OpKind;
use crate::content::CHUNK;
use basalt_fs::{
    DirEntry, Error, ErrorKind, File, FileStat, FileSystem, FsInfo, FsStats, LockGuard, LogOptions,
    ReadCompletions, ReadRequest, Result, Space,
};
use disk::{Disk, FileNode, Ino, NameEffect, Node, refused, taken};
use file::{SimFile, SimReads};
use on_lava::{Frozen, OnLava};
use silent_faults::Lies;

/// Options of a simulated disk.
#[derive(Debug, Clone, Copy)]
pub struct SimOptions {
    /// Bytes that are written whole or not at all: a power of two from 512 to 4096.
    pub write_unit: usize,
    /// Space for files, in bytes, in blocks of 4096. Names cost nothing.
    pub capacity: u64,
    /// The seed that decides everything the contract leaves open.
    pub seed: u64,
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        SimOptions {
            write_unit: 512,
            capacity: 1 << 40,
            seed: 0,
        }
    }
}

/// A disk frozen right after one change, its unsynced changes included. Any power cut of that
/// moment can still be made from it. It costs a few pointers.
#[derive(Clone)]
pub struct SimSnapshot {
    /// The call that made the change.
    pub call: OpKind,
    /// The path of the call.
    pub path: String,
    /// Number of the change since the disk was made, from 1. A call that changes in steps has a
    /// number for each.
    pub op: u64,
    disk: FrozenState,
}

/// The frozen state: of the simulated disk, or of LavaFS on a device.
#[derive(Clone)]
enum FrozenState {
    Own(Disk),
    Lava(Frozen),
}

impl SimSnapshot {
    /// Returns the disk after a power cut at this moment, as [`SimFs::crash`] does.
    pub fn crash(&self, policy: CrashPolicy, seed: u64) -> Arc<SimFs> {
        match &self.disk {
            FrozenState::Own(disk) => SimFs::over(disk.after_power_cut(policy, seed)),
            FrozenState::Lava(device) => device.cut(on_lava::cut_of(policy, seed)),
        }
    }

    /// Returns the disk after the death of the process at this moment, as [`SimFs::kill`] does.
    pub fn kill(&self) -> Arc<SimFs> {
        match &self.disk {
            FrozenState::Own(disk) => SimFs::over(disk.after_process_death()),
            FrozenState::Lava(device) => device.killed(),
        }
    }
}

impl std::fmt::Debug for SimSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{} {}({})", self.op, self.call.name(), self.path)
    }
}

/// A function that takes a snapshot after each change.
type Observer = Box<dyn FnMut(SimSnapshot) + Send>;

/// The parts of a lock's path.
type LockName = Vec<String>;

fn lock_name(path: &Path) -> Result<LockName> {
    let parts = disk::parts(path)?;
    Ok(parts.into_iter().map(String::from).collect())
}

/// The disk, its handles, locks, counters and lies, under its lock.
struct DiskState {
    disk: Disk,
    /// Number of open handles of each file.
    open: BTreeMap<Ino, usize>,
    /// Names of locks that are held, and the number of shared holders of each. 0 stands for an
    /// exclusive holder.
    locks: BTreeMap<LockName, usize>,
    stats: FsStats,
    /// Number of changes so far.
    ops: u64,
    lies: Lies,
    /// True if there is an observer.
    observed: bool,
    /// Changes that the observer has not seen yet.
    news: Vec<SimSnapshot>,
    /// Every n-th snapshot is kept; 0 for none.
    every_n: u64,
    /// The snapshots kept so far.
    recorded: Vec<SimSnapshot>,
    /// False after `power_off`.
    powered: bool,
}

impl DiskState {
    /// Counts a change, and captures the disk if the observer or the recording needs it.
    fn note(&mut self, call: OpKind, path: &str) {
        self.ops += 1;
        let record = self.every_n > 0 && self.ops.is_multiple_of(self.every_n);
        if self.observed || record {
            let snapshot = SimSnapshot {
                call,
                path: path.to_string(),
                op: self.ops,
                disk: FrozenState::Own(self.disk.clone()),
            };
            if record {
                self.recorded.push(snapshot.clone());
            }
            if self.observed {
                self.news.push(snapshot);
            }
        }
    }

    /// Drops nodes that nothing refers to, after names or handles were removed.
    fn sweep(&mut self) {
        self.disk.sweep(&self.open);
    }
}

/// The simulated disk, as the head of this module describes it.
pub struct SimFs {
    me: Weak<SimFs>,
    state: Mutex<DiskState>,
    observer: Mutex<Option<Observer>>,
    /// LavaFS on a simulated device, which serves all calls if it is there.
    lava: Option<OnLava>,
}

impl SimFs {
    /// Returns an empty disk.
    ///
    /// # Panics
    /// If the write unit is not a power of two from 512 to 4096.
    pub fn new(options: SimOptions) -> Arc<SimFs> {
        assert!(
            options.write_unit.is_power_of_two() && (512..=4096).contains(&options.write_unit),
            "a write unit is a power of two from 512 to 4096, not {}",
            options.write_unit
        );
        if on_lava::is_wanted_for(&options) {
            return SimFs::on_lava(OnLava::new(options));
        }
        SimFs::own(options)
    }

    /// Returns an empty disk that is never LavaFS, for tests that need the behaviour of this one.
    pub fn own(options: SimOptions) -> Arc<SimFs> {
        SimFs::over(Disk::new(
            options.write_unit as u64,
            options.capacity,
            options.seed,
        ))
    }

    fn over(disk: Disk) -> Arc<SimFs> {
        SimFs::made(disk, None)
    }

    fn on_lava(lava: OnLava) -> Arc<SimFs> {
        let made = SimFs::made(Disk::new(512, 0, 0), Some(lava));
        OnLava::watch(&made);
        made
    }

    fn made(disk: Disk, lava: Option<OnLava>) -> Arc<SimFs> {
        Arc::new_cyclic(|me| SimFs {
            lava,
            me: Weak::clone(me),
            state: Mutex::new(DiskState {
                disk,
                open: BTreeMap::new(),
                locks: BTreeMap::new(),
                stats: FsStats::default(),
                ops: 0,
                lies: Lies::default(),
                observed: false,
                news: Vec::new(),
                every_n: 0,
                recorded: Vec::new(),
                powered: true,
            }),
            observer: Mutex::new(None),
        })
    }

    /// Returns the disk after a power cut now. The new disk is honest, and has no locks and
    /// handles. This disk runs on. The same policy and seed leave the same bytes.
    pub fn crash(&self, policy: CrashPolicy, seed: u64) -> Arc<SimFs> {
        if let Some(lava) = &self.lava {
            return lava.freeze().cut(on_lava::cut_of(policy, seed));
        }
        let disk = self.state.lock().disk.clone();
        SimFs::over(disk.after_power_cut(policy, seed))
    }

    /// Returns the disk after the death of the process alone. Nothing is lost, but a power cut of
    /// the new disk may still lose what no sync covered. Locks and handles are gone. This disk runs
    /// on.
    pub fn kill(&self) -> Arc<SimFs> {
        if let Some(lava) = &self.lava {
            return lava.freeze().killed();
        }
        let disk = self.state.lock().disk.clone();
        SimFs::over(disk.after_process_death())
    }

    /// Makes every call on *this* disk fail with `Io` from now on, so that the rest of the crashed
    /// process can do no more.
    pub fn power_off(&self) {
        if let Some(lava) = &self.lava {
            return lava.power_off();
        }
        self.state.lock().powered = false;
    }

    /// Returns the present state of the disk, for a later crash.
    pub fn snapshot(&self) -> SimSnapshot {
        if let Some(lava) = &self.lava {
            return SimSnapshot {
                call: OpKind::Stat,
                path: String::new(),
                op: lava.writes(),
                disk: FrozenState::Lava(lava.freeze()),
            };
        }
        let state = self.state.lock();
        SimSnapshot {
            call: OpKind::Stat,
            path: String::new(),
            op: state.ops,
            disk: FrozenState::Own(state.disk.clone()),
        }
    }

    /// Calls `callback` with a snapshot after every change, in the order of changes if one thread
    /// makes them. The callback may crash the snapshot and read. It must not change this disk.
    pub fn on_mutation(&self, callback: impl FnMut(SimSnapshot) + Send + 'static) {
        *self.observer.lock() = Some(Box::new(callback));
        self.state.lock().observed = true;
    }

    /// Keeps a snapshot of every n-th change from now on. 0 stops this.
    pub fn record_snapshots(&self, every_n: u64) {
        if let Some(lava) = &self.lava {
            return lava.record_snapshots(every_n);
        }
        self.state.lock().every_n = every_n;
    }

    /// Returns the snapshots kept so far, and keeps them no longer.
    pub fn take_snapshots(&self) -> Vec<SimSnapshot> {
        if let Some(lava) = &self.lava {
            return lava.take_snapshots();
        }
        std::mem::take(&mut self.state.lock().recorded)
    }

    /// Returns the number of changes so far.
    pub fn op_count(&self) -> u64 {
        if let Some(lava) = &self.lava {
            return lava.writes();
        }
        self.state.lock().ops
    }

    /// Adds a lie. The disk tells it until it crashes, because a crashed disk is honest.
    pub fn lie(&self, lie: Lie) {
        assert!(
            self.lava.is_none(),
            "a disk on LavaFS tells no lies; make the disk with SimFs::own"
        );
        let mut state = self.state.lock();
        let seed = state.disk.seed;
        state.lies.add(lie, seed);
    }

    /// Returns the number of lies that struck so far.
    pub fn lie_count(&self) -> u64 {
        self.state.lock().lies.struck_count
    }

    /// Runs one call on the state, then reports the changes to the observer.
    fn call<R>(&self, f: impl FnOnce(&mut DiskState) -> Result<R>) -> Result<R> {
        let (result, news) = {
            let mut state = self.state.lock();
            if !state.powered {
                return Err(Error::new(
                    ErrorKind::Io,
                    "the simulated disk has no power: this process is dead",
                ));
            }
            let result = f(&mut state);
            (result, std::mem::take(&mut state.news))
        };
        if !news.is_empty()
            && let Some(observer) = self.observer.lock().as_mut()
        {
            news.into_iter().for_each(observer);
        }
        result
    }

    fn handle(&self, state: &mut DiskState, ino: Ino, path: &Path, appends: bool) -> Arc<dyn File> {
        *state.open.entry(ino).or_insert(0) += 1;
        let life = state.disk.file(ino).life;
        let fs = self.me.upgrade().expect("called through an Arc");
        Arc::new(SimFile::new(fs, ino, life, path, appends))
    }
}

fn effect(dir: Ino, name: &Arc<str>, target: Option<Ino>) -> NameEffect {
    NameEffect {
        dir,
        name: Arc::clone(name),
        target,
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl FileSystem for SimFs {
    fn info(&self) -> FsInfo {
        if let Some(lava) = &self.lava {
            return lava.any().info();
        }
        let state = self.state.lock();
        let description = format!("simulated disk in memory, seed {}", state.disk.seed);
        let mut info = FsInfo::new(description, state.disk.unit as usize);
        (info.direct, info.zeroed) = (true, true);
        info.own_memory = 8 << 10;
        info
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.create(path);
        }
        self.call(|state| {
            let (dir, name) = state.disk.parent(path)?;
            if state.disk.named(dir, &name).is_some() {
                return Err(taken(path));
            }
            let ino = state.disk.new_node(Node::File(Box::default()));
            state.disk.change_names(vec![effect(dir, &name, Some(ino))]);
            state.note(OpKind::Create, &text(path));
            Ok(self.handle(state, ino, path, true))
        })
    }

    fn create_log(&self, path: &Path, options: LogOptions<'_>) -> Result<Arc<dyn File>> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.create_log(path, options);
        }
        self.call(|state| {
            let old = match options.reuse {
                None => None,
                Some(old) => {
                    let (dir, name) = state.disk.parent(old)?;
                    Some((state.disk.lookup_file(old)?, effect(dir, &name, None)))
                }
            };
            let (dir, name) = state.disk.parent(path)?;
            if state.disk.named(dir, &name).is_some() {
                return Err(taken(path));
            }
            let (ino, mut effects) = match old {
                Some((ino, gone)) => (ino, vec![gone]),
                None => {
                    let node = FileNode {
                        is_log: true,
                        len_vague: true,
                        ..FileNode::default()
                    };
                    (state.disk.new_node(Node::File(Box::new(node))), vec![])
                }
            };
            if state.disk.link_count(ino) > 1 {
                return Err(Error::invalid(
                    "a log with a second name cannot be reused: the other name would lose its content",
                )
                .in_file(path));
            }
            file::check_log_space(state, ino, options.capacity, path)
                .inspect_err(|_| state.sweep())?;
            effects.push(effect(dir, &name, Some(ino)));
            state.disk.change_names(effects);
            if options.reuse.is_some() {
                file::begin_life(state, ino);
            }
            state.sweep();
            state.note(OpKind::CreateLog, &text(path));
            file::extend_log(state, ino, options.capacity, OpKind::CreateLog, path)?;
            Ok(self.handle(state, ino, path, true))
        })
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.open(path);
        }
        self.call(|state| {
            let ino = state.disk.lookup_file(path)?;
            Ok(self.handle(state, ino, path, false))
        })
    }

    fn stat(&self, path: &Path) -> Result<FileStat> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.stat(path);
        }
        self.call(|state| {
            let ino = state.disk.lookup(path)?;
            if state.disk.is_dir(ino) {
                return Ok(FileStat {
                    len: 0,
                    allocated: 0,
                    on_disk: 0,
                    links: 1,
                    is_dir: true,
                });
            }
            Ok(FileStat {
                len: state.disk.len_hint(ino),
                allocated: state.disk.file(ino).alloc,
                on_disk: state.disk.file(ino).chunks() * CHUNK,
                links: state.disk.link_count(ino) as u64,
                is_dir: false,
            })
        })
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.list(dir);
        }
        self.call(|state| {
            let ino = state.disk.lookup_dir(dir)?;
            Ok(state
                .disk
                .entries(ino)
                .map(|(name, ino)| DirEntry {
                    name: name.to_string(),
                    is_dir: state.disk.is_dir(ino),
                })
                .collect())
        })
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.create_dir(dir);
        }
        self.call(|state| {
            let mut at = disk::ROOT;
            for name in disk::parts(dir)? {
                at = match state.disk.named(at, name) {
                    Some(ino) if state.disk.is_dir(ino) => ino,
                    Some(_) => return Err(taken(dir)),
                    None => {
                        let ino = state.disk.new_node(Node::Dir);
                        let name = Arc::from(name);
                        state.disk.change_names(vec![effect(at, &name, Some(ino))]);
                        state.note(OpKind::CreateDir, &text(dir));
                        ino
                    }
                };
            }
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.rename(from, to);
        }
        self.call(|state| {
            let ino = state.disk.lookup(from)?;
            let (from_dir, from_name) = state.disk.parent(from)?;
            let (to_dir, to_name) = state.disk.parent(to)?;
            match state.disk.named(to_dir, &to_name) {
                // Two names of one file, or one name twice: POSIX says that nothing happens.
                Some(old) if old == ino => return Ok(()),
                Some(old) if state.disk.is_dir(old) => {
                    return Err(refused(to, std::io::ErrorKind::IsADirectory));
                }
                Some(_) if state.disk.is_dir(ino) => {
                    return Err(refused(to, std::io::ErrorKind::NotADirectory));
                }
                _ => {}
            }
            state.disk.change_names(vec![
                effect(from_dir, &from_name, None),
                effect(to_dir, &to_name, Some(ino)),
            ]);
            state.sweep();
            state.note(OpKind::Rename, &format!("{} -> {}", text(from), text(to)));
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.remove(path);
        }
        self.call(|state| {
            let ino = state.disk.lookup(path)?;
            let (dir, name) = state.disk.parent(path)?;
            if state.disk.is_dir(ino) && state.disk.entries(ino).next().is_some() {
                return Err(refused(path, std::io::ErrorKind::DirectoryNotEmpty));
            }
            state.disk.change_names(vec![effect(dir, &name, None)]);
            state.sweep();
            state.note(OpKind::Remove, &text(path));
            Ok(())
        })
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.link(from, to);
        }
        self.call(|state| {
            let ino = state.disk.lookup_file(from)?;
            let (dir, name) = state.disk.parent(to)?;
            if state.disk.named(dir, &name).is_some() {
                return Err(taken(to));
            }
            state.disk.change_names(vec![effect(dir, &name, Some(ino))]);
            state.note(OpKind::Link, &format!("{} -> {}", text(from), text(to)));
            Ok(())
        })
    }

    fn sync_metadata(&self, dir: &Path) -> Result<()> {
        if let Some(lava) = &self.lava {
            lava.fs()?.sync_metadata(dir)?;
            lava.wait_idle();
            return Ok(());
        }
        self.call(|state| {
            let ino = state.disk.lookup_dir(dir)?;
            state.stats.syncs += 1;
            let path = text(dir);
            if !state.lies.drops_sync(&path) {
                state.disk.commit_names(ino);
                state.sweep();
            }
            state.note(OpKind::SyncMetadata, &path);
            Ok(())
        })
    }

    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.sync_files(files);
        }
        let mut ours = Vec::new();
        for f in files {
            match f.as_any().downcast_ref::<SimFile>() {
                Some(f) if f.is_of(self) => ours.push(f),
                _ => f.sync_data()?,
            }
        }
        self.call(|state| {
            for f in &ours {
                f.check_poison()?;
            }
            state.stats.syncs += 1;
            let mut result = Ok(());
            for f in &ours {
                result = result.and(f.sync_in(state, false));
            }
            if result.is_err() {
                ours.iter().for_each(|f| f.poison());
            }
            let paths: Vec<&str> = ours.iter().map(|f| f.path()).collect();
            state.note(OpKind::SyncFiles, &paths.join(" "));
            result
        })
    }

    fn submit_reads(&self, reads: Vec<ReadRequest>) -> Box<dyn ReadCompletions> {
        if let Some(lava) = &self.lava {
            self.state.lock().stats.reads += 1;
            return lava.any().submit_reads(reads);
        }
        let seed = {
            let mut state = self.state.lock();
            state.stats.reads += 1;
            state.disk.seed ^ state.stats.reads
        };
        Box::new(SimReads::new(reads, seed))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.lock(path);
        }
        self.call(|state| {
            let (dir, name) = state.disk.parent(path)?;
            let key = lock_name(path)?;
            if state.locks.contains_key(&key) {
                return Err(held(path));
            }
            if state.disk.named(dir, &name).is_none() {
                let ino = state.disk.new_node(Node::File(Box::default()));
                state.disk.change_names(vec![effect(dir, &name, Some(ino))]);
                state.note(OpKind::Lock, &text(path));
            }
            state.locks.insert(key.clone(), 0);
            Ok(Box::new(SimLock {
                fs: self.me.clone(),
                key,
            }) as Box<dyn LockGuard>)
        })
    }

    fn lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.lock_shared(path);
        }
        self.call(|state| {
            let (dir, name) = state.disk.parent(path)?;
            if state.disk.named(dir, &name).is_none() {
                return Ok(None);
            }
            let key = lock_name(path)?;
            match state.locks.get_mut(&key) {
                None => {
                    state.locks.insert(key.clone(), 1);
                }
                Some(0) => return Err(held(path)),
                Some(n) => *n += 1,
            }
            let fs = self.me.clone();
            Ok(Some(Box::new(SimLock { fs, key }) as Box<dyn LockGuard>))
        })
    }

    fn space(&self, _path: &Path) -> Result<Space> {
        if let Some(lava) = &self.lava {
            return lava.fs()?.space(Path::new(""));
        }
        self.call(|state| {
            Ok(Space {
                total: state.disk.capacity_chunks * CHUNK,
                free: state.disk.free_chunks() * CHUNK,
            })
        })
    }

    fn stats(&self) -> FsStats {
        if let Some(lava) = &self.lava {
            // A batch counts as a read, too, as on the simulated disk.
            let batches = self.state.lock().stats.reads;
            let mut stats = lava.any().stats();
            stats.reads += batches;
            return stats;
        }
        self.state.lock().stats
    }
}

fn held(path: &Path) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "the lock is held by process {} (this one, on a simulated disk)",
            std::process::id()
        ),
    )
    .in_file(path)
}

struct SimLock {
    fs: Weak<SimFs>,
    key: LockName,
}

impl LockGuard for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.upgrade() {
            let mut state = fs.state.lock();
            match state.locks.get_mut(&self.key) {
                Some(n) if *n > 1 => *n -= 1,
                _ => {
                    state.locks.remove(&self.key);
                }
            }
        }
    }
}
