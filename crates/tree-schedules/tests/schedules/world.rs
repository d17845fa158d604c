//! A tree that threads write, maintain and read, with the history of what they did.

use crate::history::{Content, History, Script, all_keys};
use basalt_env::sync::explore::{Counts, below, count, percent};
use basalt_env::sync::yield_now;
use basalt_env::{Clock, Env, EnvBuilder, ManualClock};
use basalt_fs::FileSystem;
use basalt_kv::codec::Compression;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimOptions, When};
use basalt_tree_schedules::{PageTree, TreeIter, TreeOptions, TreeSnapshot};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const DIR: &str = "tree";

/// The options of short histories: each of them has splits, consolidations, collections and system
/// checkpoints. Some differ from schedule to schedule.
pub fn options(leaf_delta_bytes: usize) -> TreeOptions {
    TreeOptions::default()
        .page_bytes(256)
        .block_bytes([16, 128][below(2) as usize])
        .extent_bytes(4 << 10)
        // From 4 on, the pages of different extents are due at different numbers of delta pages.
        .max_deltas([2, 2, 2, 5][below(4) as usize])
        .overwrite_ratio([0.5, 2.5][below(2) as usize])
        .leaf_delta_bytes(Some(leaf_delta_bytes))
        .cold_merge_ratio(100.0)
        .mapping_bytes([0, 1 << 20][below(2) as usize])
        // Extents lose their ranges, and collections derive them.
        .usage_bytes([0, 16, 1 << 20][below(3) as usize])
        .compression(Compression::None)
        .base_garbage(0.3)
        .delta_garbage(0.3)
        .max_space_amp(1.05)
        .checkpoint_bytes([500, 1 << 20][below(2) as usize])
}

pub fn environment(disk: &Arc<SimFs>) -> Env {
    environment_over(disk.clone())
}

/// Returns an environment in which a disk has no links.
fn environment_without_links(disk: &Arc<SimFs>) -> Env {
    let faults = FaultFs::new(disk.clone(), 1);
    faults.inject(Fault {
        op: Some(OpKind::Link),
        path: String::new(),
        when: When::From(1),
        kind: FaultKind::Unsupported,
    });
    environment_over(faults)
}

fn environment_over(fs: Arc<dyn FileSystem>) -> Env {
    let clock = Clock::manual(ManualClock::ticking(
        1_700_000_000_000,
        Duration::from_micros(20),
    ));
    EnvBuilder::new(fs)
        .threads(1)
        // An open must not draw the numbers of extents that the tree had before.
        .seed(below(u64::MAX))
        .clock(clock)
        .memory_bytes(16 << 20)
        .cache_bytes([0, 1 << 20][below(2) as usize])
        .build()
}

/// Opens a tree of a disk, all of whose writes count.
pub fn open(disk: &Arc<SimFs>, dir: &str, options: &TreeOptions) -> PageTree {
    PageTree::open(&environment(disk), dir, options).expect("opens")
}

pub fn disk() -> Arc<SimFs> {
    SimFs::new(SimOptions::default())
}

/// Returns what a disk has after a power cut.
pub fn crashed(disk: &Arc<SimFs>) -> Arc<SimFs> {
    let policy = CrashPolicy::ALL[below(CrashPolicy::ALL.len() as u64) as usize];
    disk.crash(policy, below(1 << 20))
}

/// Writes a whole content as one user checkpoint.
pub fn write_all(tree: &PageTree, content: &Content) {
    let changes = content
        .iter()
        .map(|(key, value)| (&key[..], Some(&value[..])));
    tree.write(changes).expect("writes");
}

fn walk(iter: TreeIter) -> Content {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let entries = iter.map(|entry| entry.expect("reads"));
    let content: Content = entries
        .inspect(|(key, _)| {
            keys.push(key.clone());
            if percent(5) {
                yield_now();
            }
        })
        .map(|(key, value)| (key, value.to_vec()))
        .collect();
    let is_sorted = keys.is_sorted() || keys.iter().rev().is_sorted();
    assert!(is_sorted && keys.len() == content.len(), "{keys:?}");
    content
}

/// Reads all that a snapshot has, in one of the ways in which a program can.
pub fn read(tree: &PageTree, snapshot: &TreeSnapshot) -> Content {
    match below(4) {
        0 => walk(tree.iter(snapshot, b"").expect("an iterator")),
        1 => walk(tree.iter_back(snapshot, &[0xFF]).expect("an iterator")),
        2 => {
            let get = |key: Vec<u8>| {
                let value = tree.get(snapshot, &key).expect("reads")?;
                Some((key, value.to_vec()))
            };
            all_keys().into_iter().filter_map(get).collect()
        }
        _ => {
            let keys = all_keys();
            let borrowed: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            let found = tree.entries(snapshot, &borrowed, percent(50), &mut |_| true);
            let entry = |(key, found): (Vec<u8>, Option<basalt_fs::Result<_>>)| {
                let entry: basalt_tree_schedules::FoundEntry =
                    found.expect("it was admitted").expect("reads");
                let (kind, value) = entry?;
                (kind != basalt_kv::key::Kind::Delete).then(|| (key, value.to_vec()))
            };
            keys.into_iter().zip(found).filter_map(entry).collect()
        }
    }
}

/// What a world counts, in the places of its [`Counts`].
pub const SIGHTS: usize = 0;
/// Parts of delta pages that were seen: a commit beside another one was reconciled with it.
pub const RECONCILED: usize = 1;
/// User checkpoints that took their changes while another one did.
pub const OVERLAPPED: usize = 2;
/// Index pages with delta pages that were seen.
pub const WITH_INDEX_DELTAS: usize = 3;
/// Extents that were erased.
pub const ERASED: usize = 4;

/// A tree and its history. The history's lock is never held where threads change places.
pub struct World {
    pub tree: PageTree,
    pub disk: Arc<SimFs>,
    pub options: TreeOptions,
    pub script: Script,
    pub history: Mutex<History>,
    pub counts: Counts,
    /// User checkpoints that take their changes now.
    preparing: AtomicU64,
    /// True once an index page with delta pages was seen.
    has_index_deltas: AtomicBool,
    /// Files of extents that were seen.
    extents: Mutex<BTreeSet<String>>,
}

impl World {
    /// Makes a tree, which may have a content before the first round.
    pub fn new(options: TreeOptions, script: Script, counts: &Counts) -> Arc<World> {
        World::with_links(options, script, counts, true)
    }

    /// Makes a world on a disk with hard links, or without them if `has_links` is false.
    pub fn with_links(
        options: TreeOptions,
        script: Script,
        counts: &Counts,
        has_links: bool,
    ) -> Arc<World> {
        let disk = disk();
        let env = match has_links {
            true => environment(&disk),
            false => environment_without_links(&disk),
        };
        let tree = PageTree::open(&env, DIR, &options).expect("opens");
        for content in script.preload() {
            write_all(&tree, &content);
        }
        Arc::new(World {
            tree,
            disk,
            options,
            script,
            history: Mutex::default(),
            counts: counts.clone(),
            preparing: AtomicU64::new(0),
            has_index_deltas: AtomicBool::new(false),
            extents: Mutex::default(),
        })
    }

    /// Writes the next round of a writer.
    pub fn write(&self, writer: usize) {
        let round = self.history.lock().unwrap().begin_write(writer);
        let changes = self.script.changes(writer, round);
        let is_exclusive = self.has_index_deltas.load(SeqCst);
        let mut given = 0;
        let mut borrowed = changes
            .iter()
            .map(|(key, value)| (&key[..], value.as_deref()));
        let each = std::iter::from_fn(|| {
            if given == 0 {
                let before = self.preparing.fetch_add(1, SeqCst);
                count(&self.counts, OVERLAPPED, u64::from(before > 0));
            }
            let others = self.preparing.load(SeqCst) - 1;
            assert!(!is_exclusive || others == 0, "another checkpoint runs");
            given += 1;
            if percent(20) {
                yield_now();
            }
            let next = borrowed.next();
            if next.is_none() {
                self.preparing.fetch_sub(1, SeqCst);
            }
            next
        });
        self.tree.write(each).expect("writes");
        self.history.lock().unwrap().end_write(writer);
    }

    /// Takes a snapshot, reads it, and notes what it has.
    pub fn look(&self) -> (TreeSnapshot, Content) {
        let begun = self.history.lock().unwrap().tick();
        let snapshot = self.tree.snapshot();
        let ended = self.history.lock().unwrap().tick();
        let content = read(&self.tree, &snapshot);
        let mut history = self.history.lock().unwrap();
        history.saw(&self.script, &content, (begun, ended), false);
        drop(history);
        count(&self.counts, SIGHTS, 1);
        (snapshot, content)
    }

    /// Notes what the content of another tree, taken between two moments, has.
    pub fn saw(&self, tree: &PageTree, span: (u64, u64), survived: bool) {
        let content = read(tree, &tree.snapshot());
        let mut history = self.history.lock().unwrap();
        history.saw(&self.script, &content, span, survived);
    }

    /// Counts what the pages show of commits beside each other.
    pub fn inspect(&self) {
        let (mut parts, mut index_deltas) = (0, 0);
        let snapshot = self.tree.snapshot();
        self.tree.inspect(&snapshot, false, &mut |node| {
            let deltas = node.deltas.iter();
            deltas.for_each(|delta| assert!(delta.content.is_ok(), "{delta:?}"));
            parts += node.deltas.iter().filter(|d| d.part.is_some()).count();
            index_deltas += usize::from(node.level == 1 && !node.deltas.is_empty());
            true
        });
        if index_deltas > 0 {
            self.has_index_deltas.store(true, SeqCst);
        }
        count(&self.counts, RECONCILED, parts as u64);
        count(&self.counts, WITH_INDEX_DELTAS, index_deltas as u64);
        self.note_extents();
    }

    /// Returns true if an index page with delta pages was seen.
    pub fn has_index_deltas(&self) -> bool {
        self.has_index_deltas.load(SeqCst)
    }

    /// Notes the extents that there are, so that erased ones can be counted.
    pub fn note_extents(&self) {
        let found = self.tree.inspect_extents();
        let names = found.into_iter().map(|extent| extent.file);
        self.extents.lock().unwrap().extend(names);
    }

    /// Does one of the things that background jobs do.
    pub fn maintain(&self) {
        let low = all_keys().swap_remove(below(30) as usize);
        let done = match below(9) {
            0..=2 => self.tree.maintain(),
            3 => {
                let left = AtomicU64::new(below(6));
                self.tree.maintain_while(&|| {
                    left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
                        .is_ok()
                })
            }
            4 => self.tree.merge_for_readers(&|| true),
            5 => self.tree.compact_range(&low, None, &|| true),
            6 => self.tree.release_space(),
            7 => self.tree.compact_concurrently(&|| true).map(|_| ()),
            _ => self.tree.reclaim(),
        };
        done.expect("maintains");
        self.note_extents();
    }

    /// Cuts the power of a copy of the disk. Returns what survives, and the moment.
    pub fn cut_the_power(&self) -> (Arc<SimFs>, u64) {
        let moment = self.history.lock().unwrap().tick();
        (crashed(&self.disk), moment)
    }

    /// Opens what survived a power cut: it has a content of the history. Sometimes the tree goes
    /// on.
    pub fn recover(&self, (disk, moment): (Arc<SimFs>, u64)) {
        let survived = open(&disk, DIR, &self.options);
        survived.verify().expect("verifies");
        self.saw(&survived, (moment, moment), true);
        if percent(40) {
            let content = read(&survived, &survived.snapshot());
            survived.maintain().expect("maintains");
            assert!(read(&survived, &survived.snapshot()) == content);
            survived.verify().expect("verifies");
        }
        survived.abandon().expect("closes");
    }

    /// Gives back all space that no snapshot needs. All threads have ended, and no snapshot is
    /// left.
    pub fn release_all(&self) {
        self.note_extents();
        let tree = &self.tree;
        tree.compact_range(b"", None, &|| true).expect("compacts");
        tree.reclaim().expect("reclaims");
        let found = tree.inspect_extents();
        let dead = found.iter().filter(|e| e.is_sealed && e.valid_bytes == 0);
        assert_eq!(dead.count(), 0, "extents without a page stay: {found:?}");
        assert_eq!(tree.stats().delta_pages, 0);
        let left: BTreeSet<String> = found.into_iter().map(|extent| extent.file).collect();
        let seen = self.extents.lock().unwrap();
        count(&self.counts, ERASED, seen.difference(&left).count() as u64);
    }

    /// Ends a run whose threads have ended: the content is right, also in a tree that is opened
    /// again, and one order of rounds explains everything that was seen.
    pub fn end(&self) {
        let (_, content) = self.look();
        self.tree.verify().expect("verifies");
        self.tree.maintain().expect("maintains");
        let (_, maintained) = self.look();
        assert!(content == maintained);
        self.tree.verify().expect("verifies");
        match percent(50) {
            true => self.tree.close().expect("closes"),
            false => self.tree.abandon().expect("closes"),
        }
        let again = open(&self.disk, DIR, &self.options);
        again.verify().expect("verifies");
        let now = self.history.lock().unwrap().tick();
        self.saw(&again, (now, now), false);
        again.close().expect("closes");
        self.history.lock().unwrap().judge();
    }
}
