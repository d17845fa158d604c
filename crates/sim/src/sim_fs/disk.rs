//! The state of a simulated disk: its files and names as a running program sees them, the durable
//! part of them, and the changes between the two. Cloning it costs a few pointers. [`super::crash`]
//! makes the state after a power cut of it.
//!
//! Every file and the name table have two views: *live*, which calls see, and *durable*, which any
//! power cut leaves. The ordered list of *pending* changes leads from one to the other, and any
//! subset of them may survive. A sync copies live over durable, which is cheap because both share
//! their chunks.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::content::{CHUNK, Content};
use crate::rng::Rng;
use basalt_fs::{Error, ErrorKind, Result};

pub(super) type Ino = u64;
pub(super) const ROOT: Ino = 1;
/// Number of removed files whose contents are kept. They show through in space that a power cut
/// leaves unwritten.
const REMEMBERED_LIVES: usize = 4;

/// The file or directory that each name in each directory stands for.
pub(super) type Names = BTreeMap<(Ino, Arc<str>), Ino>;

/// A directory and a name in it, owned or borrowed. Lookups of borrowed names allocate nothing.
trait Name {
    fn key(&self) -> (Ino, &str);
}

impl Name for (Ino, Arc<str>) {
    fn key(&self) -> (Ino, &str) {
        (self.0, &self.1)
    }
}

impl Name for (Ino, &str) {
    fn key(&self) -> (Ino, &str) {
        *self
    }
}

impl<'a> Borrow<dyn Name + 'a> for (Ino, Arc<str>) {
    fn borrow(&self) -> &(dyn Name + 'a) {
        self
    }
}

impl PartialEq for dyn Name + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for dyn Name + '_ {}

impl PartialOrd for dyn Name + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Name + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// One change of one name. A target of `None` removes the name.
#[derive(Clone)]
pub(super) struct NameEffect {
    pub dir: Ino,
    pub name: Arc<str>,
    pub target: Option<Ino>,
}

/// A create, rename, link or remove that no directory sync covers yet. Its effects survive together
/// or not at all.
#[derive(Clone)]
pub(super) struct NameOp {
    pub seq: u64,
    pub effects: Vec<NameEffect>,
}

#[derive(Clone)]
pub(super) enum Change {
    /// A write of whole sectors.
    Write(Bytes),
    /// A release of whole chunks.
    Punch(u64),
}

/// A change of a file's bytes that no sync covers yet.
#[derive(Clone)]
pub(super) struct PendingWrite {
    pub seq: u64,
    pub at: u64,
    pub change: Change,
    /// The append position after the change.
    pub len_after: u64,
}

#[derive(Clone, Default)]
pub(super) struct FileNode {
    pub is_log: bool,
    /// Number of the space's life. A reused log begins a new one.
    pub life: u32,
    pub live: Content,
    pub durable: Content,
    pub pending: Vec<PendingWrite>,
    /// The append position.
    pub len: u64,
    /// Offset up to which reads are legal.
    pub alloc: u64,
    /// Offset up to which the space is durably written.
    pub durable_alloc: u64,
    /// Offset below which a sync covered all bytes in this life.
    pub synced_end: u64,
    /// The length that the last `sync_all` of this life made durable.
    pub exact_len: u64,
    /// True when the length may differ from `exact_len` after a power cut.
    pub len_vague: bool,
    /// Sectors that a failed sync dropped. No later sync makes them durable.
    pub given_up: Vec<u64>,
    /// Released chunks.
    pub holes: Arc<BTreeSet<u64>>,
    /// The digest of the live bytes, once a caller asked for it. `Disk::file_mut` clears it.
    pub digest: OnceLock<u64>,
}

impl FileNode {
    /// Returns true if a power cut cannot change the file.
    pub(super) fn is_durable(&self) -> bool {
        self.pending.is_empty()
            && self.given_up.is_empty()
            && !self.len_vague
            && self.alloc == self.durable_alloc
    }

    /// Returns a digest of all live bytes of the file's space. Files that share their node after
    /// a clone of the disk also share the digest, so each content is digested once.
    pub(super) fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| {
            let mut bytes = self.live.to_vec(0, self.alloc as usize);
            let low = crc32c::crc32c(&bytes);
            bytes.reverse();
            u64::from(low) << 32 | u64::from(crc32c::crc32c(&bytes))
        })
    }

    pub(super) fn chunks(&self) -> u64 {
        self.alloc.div_ceil(CHUNK) - self.holes.len() as u64
    }

    pub(super) fn make_durable(&mut self, length_too: bool, unit: u64) {
        let before = std::mem::replace(&mut self.durable, self.live.clone());
        for &at in &self.given_up {
            self.durable.write(at, &before.to_vec(at, unit as usize));
        }
        self.durable_alloc = self.alloc;
        self.pending.clear();
        self.synced_end = self.len;
        if length_too {
            self.exact_len = self.len;
            self.len_vague = false;
        }
    }

    /// Makes the sectors below `to` durable. The others stay pending, because the sync covers none
    /// of them. `to` is a multiple of the unit.
    pub(super) fn make_durable_to(&mut self, to: u64, unit: u64) {
        debug_assert!(to.is_multiple_of(unit), "a sync covers whole sectors");
        for mut p in std::mem::take(&mut self.pending) {
            if let Change::Write(data) = &p.change {
                let (below, rest) =
                    data.split_at((to.saturating_sub(p.at) as usize).min(data.len()));
                for (at, sector) in (p.at..)
                    .step_by(unit as usize)
                    .zip(below.chunks(unit as usize))
                {
                    if !self.given_up.contains(&at) {
                        self.durable.write(at, sector);
                    }
                }
                if rest.is_empty() {
                    continue;
                }
                p.at += below.len() as u64;
                p.change = Change::Write(data.slice(below.len()..));
            }
            self.pending.push(p);
        }
        self.durable_alloc = self.alloc;
        self.synced_end = self.synced_end.max(to.min(self.len));
    }

    /// Ends the space at `end`, in both views.
    pub(super) fn cut_space(&mut self, end: u64, unit: u64) {
        self.alloc = self.alloc.min(end);
        self.durable_alloc = self.durable_alloc.min(end);
        self.live.cut(end.next_multiple_of(unit));
        self.durable.cut(end.next_multiple_of(unit));
        self.pending.retain(|p| p.at < end);
        self.given_up.retain(|at| *at < end);
        if self.holes.range(end.div_ceil(CHUNK)..).next().is_some() {
            Arc::make_mut(&mut self.holes).retain(|h| *h < end.div_ceil(CHUNK));
        }
    }
}

impl FileNode {
    /// Applies a failed sync: some pending sectors reached the device, and the others are dropped.
    pub(super) fn fail_sync(&mut self, unit: u64, seed: u64) {
        let mut rng = Rng::new(seed);
        for p in std::mem::take(&mut self.pending) {
            match p.change {
                Change::Write(data) => {
                    for (i, sector) in data.chunks(unit as usize).enumerate() {
                        let at = p.at + i as u64 * unit;
                        if rng.coin() {
                            self.durable.write(at, sector);
                            self.given_up.retain(|a| *a != at);
                        } else {
                            self.given_up.push(at);
                        }
                    }
                }
                Change::Punch(len) => self.durable.punch(p.at / CHUNK..(p.at + len) / CHUNK),
            }
        }
        self.len_vague = true;
    }
}

#[derive(Clone)]
pub(super) enum Node {
    File(Box<FileNode>),
    Dir,
}

#[derive(Clone)]
pub(super) struct Disk {
    pub unit: u64,
    pub capacity_chunks: u64,
    pub seed: u64,
    nodes: Arc<BTreeMap<Ino, Arc<Node>>>,
    pub live: Arc<Names>,
    pub durable: Arc<Names>,
    pub pending: Arc<Vec<NameOp>>,
    /// Contents of removed files, the newest last.
    pub earlier_lives: Arc<Vec<Content>>,
    next_ino: Ino,
    /// Sequence number of the last change. It orders the pending changes of files and names
    /// together.
    seq: u64,
    used_chunks: u64,
}

impl Disk {
    pub(super) fn new(unit: u64, capacity: u64, seed: u64) -> Disk {
        let mut nodes = BTreeMap::new();
        nodes.insert(ROOT, Arc::new(Node::Dir));
        Disk {
            unit,
            capacity_chunks: capacity / CHUNK,
            seed,
            nodes: Arc::new(nodes),
            live: Arc::default(),
            durable: Arc::default(),
            pending: Arc::default(),
            earlier_lives: Arc::default(),
            next_ino: ROOT + 1,
            seq: 0,
            used_chunks: 0,
        }
    }

    /// Returns the disk as a power cut left it: everything on it is durable.
    pub(super) fn with_durable_nodes(
        old: &Disk,
        seed: u64,
        names: Names,
        nodes: BTreeMap<Ino, Arc<Node>>,
    ) -> Disk {
        let names = Arc::new(names);
        let mut disk = Disk {
            seed,
            nodes: Arc::new(nodes),
            live: Arc::clone(&names),
            durable: names,
            pending: Arc::default(),
            earlier_lives: Arc::clone(&old.earlier_lives),
            ..*old
        };
        disk.used_chunks = disk.count_chunks(&disk.alive(&BTreeMap::new()));
        disk
    }

    pub(super) fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub(super) fn new_node(&mut self, node: Node) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        Arc::make_mut(&mut self.nodes).insert(ino, Arc::new(node));
        ino
    }

    pub(super) fn node(&self, ino: Ino) -> &Arc<Node> {
        self.nodes
            .get(&ino)
            .expect("a name or handle points at a node")
    }

    pub(super) fn is_dir(&self, ino: Ino) -> bool {
        matches!(**self.node(ino), Node::Dir)
    }

    pub(super) fn file(&self, ino: Ino) -> &FileNode {
        match &**self.node(ino) {
            Node::File(f) => f,
            Node::Dir => unreachable!("handles are of files only"),
        }
    }

    pub(super) fn file_mut(&mut self, ino: Ino) -> &mut FileNode {
        let node = Arc::make_mut(&mut self.nodes)
            .get_mut(&ino)
            .expect("a name or handle points at a node");
        match Arc::make_mut(node) {
            Node::File(f) => {
                f.digest.take();
                f
            }
            Node::Dir => unreachable!("handles are of files only"),
        }
    }

    // ---- names ----

    pub(super) fn lookup(&self, path: &Path) -> Result<Ino> {
        let mut at = ROOT;
        for part in parts(path)? {
            self.check_dir(at, path)?;
            at = self
                .named(at, part)
                .ok_or_else(|| not_found(path, "no such file or directory"))?;
        }
        Ok(at)
    }

    pub(super) fn lookup_file(&self, path: &Path) -> Result<Ino> {
        let ino = self.lookup(path)?;
        if self.is_dir(ino) {
            return Err(refused(path, std::io::ErrorKind::IsADirectory));
        }
        Ok(ino)
    }

    pub(super) fn lookup_dir(&self, path: &Path) -> Result<Ino> {
        let ino = self.lookup(path)?;
        self.check_dir(ino, path)?;
        Ok(ino)
    }

    fn check_dir(&self, ino: Ino, path: &Path) -> Result<()> {
        match self.is_dir(ino) {
            true => Ok(()),
            false => Err(refused(path, std::io::ErrorKind::NotADirectory)),
        }
    }

    /// Returns the directory that holds the last name of `path`, and that name.
    pub(super) fn parent(&self, path: &Path) -> Result<(Ino, Arc<str>)> {
        let mut names = parts(path)?;
        let last = names
            .pop()
            .ok_or_else(|| Error::invalid("the root cannot be named here").in_file(path))?;
        let mut at = ROOT;
        for part in names {
            self.check_dir(at, path)?;
            at = self
                .named(at, part)
                .ok_or_else(|| not_found(path, "its directory does not exist"))?;
        }
        self.check_dir(at, path)?;
        Ok((at, last.into()))
    }

    pub(super) fn named(&self, dir: Ino, name: &str) -> Option<Ino> {
        self.live.get(&(dir, name) as &dyn Name).copied()
    }

    pub(super) fn entries(&self, dir: Ino) -> impl Iterator<Item = (&Arc<str>, Ino)> {
        self.live
            .range((dir, Arc::from(""))..)
            .take_while(move |((d, _), _)| *d == dir)
            .map(|((_, name), ino)| (name, *ino))
    }

    pub(super) fn link_count(&self, ino: Ino) -> usize {
        self.live.values().filter(|&&i| i == ino).count()
    }

    /// Changes names in the live view and records the change as pending.
    pub(super) fn change_names(&mut self, effects: Vec<NameEffect>) {
        let seq = self.next_seq();
        for e in &effects {
            apply_effect(Arc::make_mut(&mut self.live), e);
        }
        Arc::make_mut(&mut self.pending).push(NameOp { seq, effects });
    }

    /// Makes the pending changes of one directory's names durable. A rename into another directory
    /// becomes durable there with that directory. If the directory that it left is synced, it
    /// becomes durable as a whole, because a name that is durably gone from one directory must
    /// exist in the other.
    pub(super) fn commit_names(&mut self, dir: Ino) {
        let pending = std::mem::take(Arc::make_mut(&mut self.pending));
        let mut committed: Vec<(u64, NameEffect)> = Vec::new();
        let mut rest: Vec<NameOp> = Vec::new();
        for mut op in pending {
            let leaves = op
                .effects
                .iter()
                .any(|e| e.dir == dir && e.target.is_none());
            let seq = op.seq;
            op.effects.retain(|e| {
                let commits = leaves || e.dir == dir;
                if commits {
                    committed.push((seq, e.clone()));
                }
                !commits
            });
            if !op.effects.is_empty() {
                rest.push(op);
            }
        }
        for (seq, effect) in &committed {
            apply_effect(Arc::make_mut(&mut self.durable), effect);
            // An older pending change of the same name must not undo the durable one.
            for op in rest.iter_mut().filter(|op| op.seq < *seq) {
                op.effects
                    .retain(|e| (e.dir, &e.name) != (effect.dir, &effect.name));
            }
        }
        rest.retain(|op| !op.effects.is_empty());
        self.pending = Arc::new(rest);
    }

    // ---- space ----

    pub(super) fn free_chunks(&self) -> u64 {
        self.capacity_chunks.saturating_sub(self.used_chunks)
    }

    pub(super) fn take_chunks(&mut self, n: u64) {
        self.used_chunks += n;
    }

    pub(super) fn give_chunks(&mut self, n: u64) {
        self.used_chunks -= n;
    }

    /// Marks the nodes that have a live name or a handle, by their numbers.
    fn alive(&self, open: &BTreeMap<Ino, usize>) -> Vec<bool> {
        let mut alive = vec![false; self.next_ino as usize];
        for ino in self.live.values().chain(open.keys()) {
            alive[*ino as usize] = true;
        }
        alive
    }

    fn count_chunks(&self, alive: &[bool]) -> u64 {
        self.nodes
            .iter()
            .map(|(ino, node)| match &**node {
                Node::File(f) if alive[*ino as usize] => f.chunks(),
                _ => 0,
            })
            .sum()
    }

    /// Drops nodes that neither a name, a pending change nor a handle refers to, and counts the
    /// space again. Space is free once the last live name and handle are gone.
    pub(super) fn sweep(&mut self, open: &BTreeMap<Ino, usize>) {
        let alive = self.alive(open);
        self.used_chunks = self.count_chunks(&alive);
        let named = alive.iter().filter(|a| **a).count();
        let found = self.nodes.keys().filter(|i| alive[**i as usize]).count();
        assert_eq!(named, found, "a name or handle points at a node");
        let mut referred = alive;
        let pending = self.pending.iter().flat_map(|op| &op.effects);
        let targets = pending.filter_map(|e| e.target);
        for ino in self.durable.values().copied().chain(targets).chain([ROOT]) {
            referred[ino as usize] = true;
        }
        let nodes = self.nodes.keys().copied();
        let dead: Vec<Ino> = nodes.filter(|i| !referred[*i as usize]).collect();
        for ino in dead {
            let node = Arc::make_mut(&mut self.nodes).remove(&ino);
            if let Some(Node::File(f)) = node.as_deref() {
                let lives = Arc::make_mut(&mut self.earlier_lives);
                lives.push(f.live.clone());
                if lives.len() > REMEMBERED_LIVES {
                    lives.remove(0);
                }
            }
        }
    }

    // ---- bytes ----

    /// Returns the whole sectors that hold `bytes` at the append position. The first one begins
    /// with the bytes that an earlier append left there. The last one ends with any bytes that a
    /// device may leave there.
    pub(super) fn sectors_for(&self, ino: Ino, bytes: &[u8]) -> (u64, Vec<u8>) {
        let f = self.file(ino);
        let first = f.len / self.unit * self.unit;
        let end = f.len + bytes.len() as u64;
        let last = end.next_multiple_of(self.unit);
        let mut data = f.live.to_vec(first, (last - first) as usize);
        let from = (f.len - first) as usize;
        data[from..from + bytes.len()].copy_from_slice(bytes);
        let rest = &mut data[from + bytes.len()..];
        let mut c = Rng::of(&[self.seed, ino, u64::from(f.life), last]);
        match c.below(3) {
            0 => {} // What the space held before.
            1 => rest.fill(0),
            _ => c.fill(rest),
        }
        (first, data)
    }

    pub(super) fn write_sectors(&mut self, ino: Ino, at: u64, data: Vec<u8>, len_after: u64) {
        let seq = self.next_seq();
        let f = self.file_mut(ino);
        f.live.write(at, &data);
        f.pending.push(PendingWrite {
            seq,
            at,
            change: Change::Write(data.into()),
            len_after,
        });
    }

    /// Returns the number of chunks that appending up to `end` takes from the free space.
    pub(super) fn chunks_needed(&self, ino: Ino, end: u64) -> u64 {
        let f = self.file(ino);
        let grown = end.div_ceil(CHUNK).saturating_sub(f.alloc.div_ceil(CHUNK));
        let refilled = f.holes.range(f.len / CHUNK..end.div_ceil(CHUNK)).count() as u64;
        grown + refilled
    }

    /// Moves the append position, and extends the file's space.
    pub(super) fn grow(&mut self, ino: Ino, end: u64) {
        self.take_chunks(self.chunks_needed(ino, end));
        let f = self.file_mut(ino);
        let touched = f.len / CHUNK..end.div_ceil(CHUNK);
        if f.holes.range(touched.clone()).next().is_some() {
            Arc::make_mut(&mut f.holes).retain(|h| !touched.contains(h));
        }
        f.len = end;
        f.alloc = f.alloc.max(end);
        f.len_vague = true;
    }

    /// Returns the length that a handle without appends sees. It is exact after `sync_all`.
    /// Otherwise, for a log, it may be the length of its space.
    pub(super) fn len_hint(&self, ino: Ino) -> u64 {
        let f = self.file(ino);
        let vague = f.is_log && f.len_vague && f.alloc > f.len;
        if vague && Rng::of(&[self.seed, ino, u64::from(f.life), 7]).coin() {
            f.alloc
        } else {
            f.len
        }
    }
}

pub(super) fn apply_effect(names: &mut Names, e: &NameEffect) {
    let key = (e.dir, Arc::clone(&e.name));
    match e.target {
        Some(ino) => {
            names.insert(key, ino);
        }
        None => {
            names.remove(&key);
        }
    }
}

pub(super) fn parts(path: &Path) -> Result<Vec<&str>> {
    let mut parts = Vec::new();
    for c in path.components() {
        match c {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => match name.to_str() {
                Some(name) => parts.push(name),
                None => return Err(Error::invalid("the path is not UTF-8").in_file(path)),
            },
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Error::invalid("the path may not step upward").in_file(path));
            }
        }
    }
    Ok(parts)
}

pub(super) fn not_found(path: &Path, message: &str) -> Error {
    Error::new(ErrorKind::NotFound, message).in_file(path)
}

/// Returns an error as the operating system would return it.
pub(super) fn refused(path: &Path, kind: std::io::ErrorKind) -> Error {
    Error::io("refused", path, kind.into())
}

pub(super) fn taken(path: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, "the name is taken").in_file(path)
}
