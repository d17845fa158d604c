//! Random histories of calls, played on two filesystems that must give the same answers.
//!
//! The player masks what the contract leaves open: bytes between an append's end and the next unit,
//! the content of a reused or released range, the length of an opened file that `sync_all` did not
//! make exact, and the space of a log beyond its capacity. Errors are compared by kind. The player
//! also keeps its own model of names and bytes as a third opinion: the bytes that it knows must be
//! the bytes that are read.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

use super::{list, noise, p};
use crate::rng::Rng;
use basalt_fs::{File, FileSystem, Intent, Lifetime, LogOptions, ReadRequest, Result};

const NAMES: &[&str] = &["a", "b", "c", "d1/a", "d1/b", "d2/c"];
const DIRS: &[&str] = &["", "d1", "d2"];

/// One call. Its numbers are taken modulo the number of objects at the time of the call.
#[derive(Debug, Clone)]
enum Step {
    CreateDir(usize),
    Create(usize),
    CreateLog(usize, u64, Option<usize>),
    Open(usize),
    Close(usize),
    Append(usize, u64, usize),
    Align(usize),
    SyncData(usize),
    SyncAll(usize),
    SyncFiles(usize, usize),
    Extend(usize, u64),
    Release(usize, u64, u64),
    Read(usize, u64, usize),
    Reads(u64),
    Rename(usize, usize),
    Remove(usize),
    RemoveDir(usize),
    Link(usize, usize),
    SyncMetadata(usize),
    List(usize),
    Stat(usize),
}

/// A random history of calls.
#[derive(Debug, Clone)]
pub struct Trace {
    seed: u64,
    steps: Vec<Step>,
}

/// Returns the history of `n` calls for a seed.
pub fn random_trace(seed: u64, n: usize) -> Trace {
    let mut c = Rng::of(&[seed, 23]);
    let c = &mut c;
    // Each history leaves out some kinds of calls, so that the other kinds meet more often.
    let without: Vec<u64> = (0..c.below(6)).map(|_| c.below(21)).collect();
    let mut steps = Vec::with_capacity(n);
    if c.percent(80) {
        // Most histories begin with some files and directories.
        steps.extend([Step::CreateDir(1), Step::CreateDir(2), Step::Create(0)]);
        steps.extend([Step::CreateLog(3, 8_192, None), Step::Append(0, 1, 700)]);
        steps.truncate(n);
    }
    while steps.len() < n {
        let kind = c.below(30);
        if without.contains(&kind) {
            continue;
        }
        let any = |c: &mut Rng| c.below(1 << 20) as usize;
        steps.push(match kind {
            0 => Step::CreateDir(any(c)),
            1 | 21 => Step::Create(any(c)),
            2 | 22 => {
                let old = c.percent(40).then(|| any(c));
                Step::CreateLog(any(c), c.below(40_000), old)
            }
            3 => Step::Open(any(c)),
            4 => Step::Close(any(c)),
            5 | 23 | 24 | 25 | 26 => {
                let top = c.pick(&[20, 600, 600, 5_000, 30_000]);
                Step::Append(any(c), c.next_u64(), c.below(top) as usize)
            }
            6 => Step::Align(any(c)),
            7 => Step::SyncData(any(c)),
            8 => Step::SyncAll(any(c)),
            9 => Step::SyncFiles(any(c), any(c)),
            10 => Step::Extend(any(c), c.below(60_000)),
            11 => Step::Release(any(c), c.below(30_000), c.below(30_000)),
            12 | 27 | 28 => Step::Read(any(c), c.below(50_000), c.below(20_000) as usize),
            13 => Step::Reads(c.next_u64()),
            14 => Step::Rename(any(c), any(c)),
            15 => Step::Remove(any(c)),
            16 => Step::RemoveDir(any(c)),
            17 => Step::Link(any(c), any(c)),
            18 => Step::SyncMetadata(any(c)),
            19 => Step::List(any(c)),
            _ => Step::Stat(any(c)),
        });
    }
    Trace { seed, steps }
}

/// The player's knowledge of one file.
#[derive(Default)]
struct Known {
    /// The bytes of the file. `None` stands for a byte that the contract leaves open. The length of
    /// the list is the append position.
    bytes: Vec<Option<u8>>,
    /// True if `sync_all` made the length exact.
    exact: bool,
    /// True if the last sync ended inside a sector.
    sync_edge: bool,
    is_log: bool,
}

/// An open file, with the player's number of it.
struct Handle {
    file: Arc<dyn File>,
    id: u64,
    appends: bool,
}

/// The player of a history, with its model of names and bytes.
struct Player<'a> {
    fs: &'a Arc<dyn FileSystem>,
    handles: Vec<Handle>,
    names: BTreeMap<&'static str, u64>,
    files: BTreeMap<u64, Known>,
    next_id: u64,
}

/// Returns the name of a file that a step's number stands for.
fn name_of(i: usize) -> &'static str {
    NAMES[i % NAMES.len()]
}

/// Returns the directory that a step's number stands for.
fn dir_of(i: usize) -> &'static str {
    DIRS[i % DIRS.len()]
}

fn outcome<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Ok(v) => format!("{v:?}"),
        Err(e) => format!("error: {}", e.kind().name()),
    }
}

impl Trace {
    /// Plays the history on an empty filesystem. Returns one line for each call, with its masked
    /// answer.
    ///
    /// # Panics
    /// If a byte that the player knows is read otherwise.
    pub fn play(&self, fs: &Arc<dyn FileSystem>) -> Vec<String> {
        let mut player = Player {
            fs,
            handles: Vec::new(),
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            next_id: 0,
        };
        let seed = self.seed;
        self.steps
            .iter()
            .enumerate()
            .map(|(i, step)| {
                let answer = player.step(step, &format!("trace {seed} step {i}"));
                format!("{i} {step:?} -> {answer}")
            })
            .collect()
    }
}

impl Player<'_> {
    fn begin(&mut self, name: &'static str, file: Arc<dyn File>, is_log: bool) -> String {
        self.next_id += 1;
        self.names.insert(name, self.next_id);
        let known = Known {
            is_log,
            ..Known::default()
        };
        self.files.insert(self.next_id, known);
        let answer = format!("ok, at {}", file.len());
        self.handles.push(Handle {
            file,
            id: self.next_id,
            appends: true,
        });
        answer
    }

    /// Returns the masked answer of a read. It ends where the known bytes end.
    fn judge(
        &self,
        id: u64,
        offset: u64,
        len: usize,
        got: Result<basalt_fs::Bytes>,
        place: &str,
    ) -> String {
        let got = match got {
            Ok(got) => got,
            Err(e) => return format!("error: {}", e.kind().name()),
        };
        let known = &self.files[&id].bytes;
        let from = (offset as usize).min(known.len());
        let to = (from + len).min(known.len());
        assert!(
            got.len() >= to - from,
            "{place}: read {} of {} bytes",
            got.len(),
            to - from
        );
        for (i, want) in known[from..to].iter().enumerate() {
            if let Some(want) = want {
                assert_eq!(got[i], *want, "{place}: byte {} of file {id}", from + i);
            }
        }
        format!("{} known bytes", known[from..to].iter().flatten().count())
    }

    /// Plays one call and returns its masked answer.
    fn step(&mut self, step: &Step, place: &str) -> String {
        match *step {
            Step::CreateDir(i) => outcome(self.fs.create_dir(p(dir_of(i)))),
            Step::Create(i) => self.create(name_of(i)),
            Step::CreateLog(i, capacity, old) => {
                self.create_log(name_of(i), capacity, old.map(name_of), place)
            }
            Step::Open(i) => self.open(name_of(i)),
            Step::Rename(a, b) => self.rename(name_of(a), name_of(b)),
            Step::Remove(i) => self.remove(name_of(i)),
            Step::RemoveDir(i) => match dir_of(i) {
                "" => String::new(),
                dir => outcome(self.fs.remove(p(dir))),
            },
            Step::Link(a, b) => self.link(name_of(a), name_of(b)),
            Step::SyncMetadata(i) => outcome(self.fs.sync_metadata(p(dir_of(i)))),
            Step::List(i) => self.list(dir_of(i)),
            Step::Stat(i) => self.stat(name_of(i), place),
            Step::Reads(seed) => self.reads(seed, place),
            Step::Close(i)
            | Step::SyncFiles(i, _)
            | Step::Append(i, ..)
            | Step::Align(i)
            | Step::SyncData(i)
            | Step::SyncAll(i)
            | Step::Extend(i, _)
            | Step::Release(i, ..)
            | Step::Read(i, ..) => match self.handles.len() {
                0 => String::new(),
                n => self.on_handle(step, i % n, place),
            },
        }
    }

    /// Plays a call on the handle `h`, and returns its masked answer.
    fn on_handle(&mut self, step: &Step, h: usize, place: &str) -> String {
        match *step {
            Step::Close(_) => {
                self.handles.swap_remove(h);
                String::new()
            }
            Step::SyncFiles(_, n) => self.sync_files(h, n),
            _ => self.on_file(step, h, place),
        }
    }

    fn create(&mut self, name: &'static str) -> String {
        match self.fs.create(p(name)) {
            Ok(file) => self.begin(name, file, false),
            Err(e) => e.kind().name().to_string(),
        }
    }

    /// Creates a log, in the space of the log `old` if there is one.
    fn create_log(
        &mut self,
        name: &'static str,
        capacity: u64,
        old: Option<&'static str>,
        place: &str,
    ) -> String {
        if let Some(id) = old.and_then(|o| self.names.get(o)).copied()
            && self.names.values().filter(|v| **v == id).count() == 1
        {
            // From here on, the handles of the old log belong to an earlier life.
            self.handles.retain(|h| h.id != id);
        }
        let reuse = old.map(PathBuf::from);
        let options = LogOptions {
            capacity,
            reuse: reuse.as_deref(),
        };
        match self.fs.create_log(p(name), options) {
            Ok(file) => {
                if let Some(old) = old {
                    self.names.remove(old);
                }
                assert!(file.allocated() >= capacity, "{place}");
                self.begin(name, file, true)
            }
            // If both names are wrong, the contract does not say which one the error is about.
            Err(_) if let Some(old) = old => {
                // The filesystem may have prepared the space of the old log before the call failed.
                if let Some(known) = self.names.get(old).and_then(|id| self.files.get_mut(id)) {
                    known.exact = false;
                }
                "refused".to_string()
            }
            Err(e) => e.kind().name().to_string(),
        }
    }

    fn open(&mut self, name: &'static str) -> String {
        match self.fs.open(p(name)) {
            Ok(file) => {
                let id = self.names[name];
                let len = if self.files[&id].exact { file.len() } else { 0 };
                self.handles.push(Handle {
                    file,
                    id,
                    appends: false,
                });
                format!("ok, exact length {len}")
            }
            Err(e) => e.kind().name().to_string(),
        }
    }

    fn rename(&mut self, from: &'static str, to: &'static str) -> String {
        let result = self.fs.rename(p(from), p(to));
        if result.is_ok()
            && let Some(&id) = self.names.get(from)
            && self.names.get(to) != Some(&id)
        {
            self.names.remove(from);
            self.names.insert(to, id);
        }
        outcome(result)
    }

    fn remove(&mut self, name: &'static str) -> String {
        let result = self.fs.remove(p(name));
        if result.is_ok() {
            self.names.remove(name);
        }
        outcome(result)
    }

    fn link(&mut self, from: &'static str, to: &'static str) -> String {
        let result = self.fs.link(p(from), p(to));
        if result.is_ok() {
            self.names.insert(to, self.names[from]);
        }
        outcome(result)
    }

    fn list(&self, dir: &str) -> String {
        match self.fs.list(p(dir)) {
            Ok(_) => format!("{:?}", list(self.fs, dir)),
            Err(e) => e.kind().name().to_string(),
        }
    }

    fn stat(&self, name: &str, place: &str) -> String {
        match self.fs.stat(p(name)) {
            Ok(s) => {
                let exact = self.files[&self.names[name]].exact;
                assert!(s.allocated >= s.len, "{place}");
                format!("{} {}", if exact { s.len } else { 0 }, s.is_dir)
            }
            Err(e) => e.kind().name().to_string(),
        }
    }

    /// Syncs together one to three files, beginning with the handle `h`.
    fn sync_files(&mut self, h: usize, n: usize) -> String {
        let end = (h + 1 + n % 3).min(self.handles.len());
        let files: Vec<Arc<dyn File>> = self.handles[h..end]
            .iter()
            .map(|h| Arc::clone(&h.file))
            .collect();
        let result = self.fs.sync_files(&files);
        for h in h..end {
            self.synced(self.handles[h].id);
        }
        outcome(result)
    }

    fn synced(&mut self, id: u64) {
        let unit = self.fs.info().write_unit;
        let known = self.files.get_mut(&id).expect("known");
        known.sync_edge = !known.bytes.len().is_multiple_of(unit);
    }

    fn align(&mut self, h: usize) -> Result<u64> {
        let unit = self.fs.info().write_unit;
        let Handle { file, id, .. } = &self.handles[h];
        let at = file.align_to_unit()?;
        let known = self.files.get_mut(id).expect("known");
        let to = known.bytes.len().next_multiple_of(unit);
        if to != known.bytes.len() {
            known.bytes.resize(to, None);
            known.exact = false;
        }
        known.sync_edge = false;
        Ok(at)
    }

    fn on_file(&mut self, step: &Step, h: usize, place: &str) -> String {
        let Handle { file, id, appends } = &self.handles[h];
        let (file, id, appends) = (Arc::clone(file), *id, *appends);
        match *step {
            Step::Append(_, seed, len) => {
                if appends && self.files[&id].sync_edge {
                    self.align(h).expect("align");
                }
                let bytes = noise(seed, len);
                let (x, y) = bytes.split_at(len / 3);
                let intent = match seed % 4 {
                    0 | 2 => Intent::Sync,
                    1 => Intent::Lazy,
                    _ => Intent::Bulk,
                };
                let result = file.append(&[IoSlice::new(x), IoSlice::new(y)], intent);
                if result.is_ok() && len > 0 {
                    let known = self.files.get_mut(&id).expect("known");
                    known.bytes.extend(bytes.into_iter().map(Some));
                    known.exact = false;
                }
                format!(
                    "{} then {}",
                    outcome(result),
                    if appends { file.len() } else { 0 }
                )
            }
            Step::Align(_) => outcome(self.align(h)),
            Step::SyncData(_) => {
                let result = file.sync_data();
                self.synced(id);
                outcome(result)
            }
            Step::SyncAll(_) => {
                let result = file.sync_all();
                self.synced(id);
                if appends {
                    self.files.get_mut(&id).expect("known").exact = true;
                }
                outcome(result)
            }
            Step::Extend(_, capacity) => {
                if !appends {
                    return "not through a reader".to_string();
                }
                let result = file.extend_log(capacity);
                let known = self.files.get_mut(&id).expect("known");
                if result.is_ok() {
                    assert!(file.allocated() >= capacity, "{place}");
                    known.exact = false;
                }
                assert_eq!(result.is_ok(), known.is_log, "{place}");
                outcome(result)
            }
            Step::Release(_, from, len) => {
                let known = self.files.get_mut(&id).expect("known");
                let mut end = from + len;
                if !appends {
                    // Only the appending handle releases space ahead of the appends.
                    end = end.min(known.bytes.len() as u64);
                }
                let result = file.release_range(from..end.max(from));
                let known_to = |n: u64| (n as usize).min(known.bytes.len());
                let blocks = known_to(from.next_multiple_of(4096))..known_to(end / 4096 * 4096);
                if !blocks.is_empty() {
                    known.bytes[blocks].fill(None);
                }
                outcome(result)
            }
            Step::Read(_, offset, len) => {
                let got = file.read(offset, len);
                self.judge(id, offset, len, got, place)
            }
            _ => unreachable!("not about a file"),
        }
    }

    fn reads(&mut self, seed: u64, place: &str) -> String {
        let mut c = Rng::new(seed);
        if self.handles.is_empty() {
            return String::new();
        }
        let plan: Vec<(usize, u64, usize)> = (0..c.below(8))
            .map(|_| {
                let h = c.below(self.handles.len() as u64) as usize;
                (h, c.below(40_000), c.below(9_000) as usize)
            })
            .collect();
        let batch = plan
            .iter()
            .map(|&(h, offset, len)| ReadRequest {
                file: Arc::clone(&self.handles[h].file),
                offset,
                len,
                lifetime: Lifetime::Cached,
            })
            .collect();
        let mut answers = vec![String::new(); plan.len()];
        let mut done = self.fs.submit_reads(batch);
        while let Some((i, got)) = done.next() {
            let (h, offset, len) = plan[i];
            answers[i] = self.judge(self.handles[h].id, offset, len, got, place);
        }
        answers.join(", ")
    }
}
