//! The space of garbage pages goes back to the filesystem before their extents are erased, and
//! never that of a page that a reader, a copy or a recovery needs.

use super::{Content, DIR, disk, options};
use crate::entries::CheckedChanges;
use crate::page_id::PageId;
use crate::salvage::tests::{remove_logs, salvaged};
use crate::{InspectedExtent, PageTree, TreeOptions, TreeSnapshot};
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use basalt_env::thread::scope;
use basalt_env::{Env, Random};
use basalt_fs::{FileSystem, Result};
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimSnapshot, When};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const KEYS: u64 = 6000;

/// Returns settings with which no extent is collected for its garbage.
fn without_collections() -> TreeOptions {
    TreeOptions {
        page_bytes: 16 << 10,
        block_bytes: 1 << 10,
        extent_bytes: 256 << 10,
        base_garbage: 1.0,
        delta_garbage: 1.0,
        max_space_amp: 100.0,
        overwrite_ratio: 0.5,
        ..options()
    }
}

/// Returns what a snapshot of a tree has.
fn content_of(tree: &PageTree, snapshot: &TreeSnapshot) -> Result<Content> {
    let found = tree.iter(snapshot, b"")?;
    let owned = found.map(|entry| entry.map(|(key, value)| (key, value.to_vec())));
    owned.collect()
}

/// A tree, and what it must have.
struct Overwritten {
    fs: Arc<SimFs>,
    env: Env,
    tree: PageTree,
    random: Random,
    content: Content,
    round: u8,
}

impl Overwritten {
    fn new(seed: u64) -> Overwritten {
        let fs = disk(seed);
        Overwritten::on(&fs, fs.clone(), seed, &without_collections())
    }

    /// Makes a tree on a filesystem above a disk.
    fn on(
        fs: &Arc<SimFs>,
        above: Arc<dyn FileSystem>,
        seed: u64,
        options: &TreeOptions,
    ) -> Overwritten {
        let fs = fs.clone();
        let env = Env::for_tests(above, seed);
        let tree = PageTree::open(&env, DIR, options).unwrap();
        let mut made = Overwritten {
            fs,
            env,
            tree,
            random: Random::from_seed(seed),
            content: Content::new(),
            round: 0,
        };
        made.write(&mut (0..KEYS));
        made
    }

    fn write(&mut self, keys: &mut dyn Iterator<Item = u64>) {
        self.round += 1;
        let keys = keys.map(|n| format!("k{n:05}").into_bytes());
        let changes: Content = keys.map(|key| (key, vec![self.round; 100])).collect();
        let borrowed = (changes.iter()).map(|(key, value)| (&key[..], Some(&value[..])));
        self.tree.write(borrowed).unwrap();
        self.content.extend(changes);
    }

    /// Overwrites keys at random, and maintains the tree.
    fn overwrite(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let keys: Vec<u64> = (0..1000).map(|_| self.random.below(KEYS)).collect();
            self.write(&mut keys.into_iter());
            self.tree.maintain().unwrap();
        }
    }

    fn check(&self, snapshot: &TreeSnapshot, content: &Content) {
        assert!(content_of(&self.tree, snapshot).unwrap() == *content);
    }

    /// Checks what the tree has in the end, and all of its pages.
    fn end(self) {
        self.check(&self.tree.snapshot(), &self.content);
        self.tree.verify().unwrap();
        self.tree.close().unwrap();
    }

    /// Returns the bytes of the sealed extents, those on the device, and those in use.
    fn bytes(&self) -> [u64; 3] {
        let mut extents = self.tree.inspect_extents();
        extents.retain(|extent| extent.is_sealed);
        let sum = |of: fn(&InspectedExtent) -> u64| extents.iter().map(of).sum();
        [
            sum(|e| e.bytes),
            sum(|e| e.bytes_on_disk),
            sum(|e| e.valid_bytes),
        ]
    }
}

#[test]
fn the_space_of_garbage_pages_is_given_back() {
    let mut of = Overwritten::new(1);
    of.overwrite(60);
    let [bytes, on_disk, used] = of.bytes();
    println!("sealed extents: {bytes} bytes, {on_disk} on the device, {used} in use");
    let (garbage, kept) = (bytes - used, on_disk - used);
    assert!(garbage > used / 5, "extents are not collected");
    // Pages share blocks at their borders.
    assert!(kept < garbage / 4, "{kept} of {garbage}");
    let stats = of.tree.stats();
    assert!(stats.released_bytes > 4 * used, "{stats:?}");
    of.check(&of.tree.snapshot(), &of.content);
    of.tree.verify().unwrap();
    // The next life knows the space, too.
    of.tree.abandon().unwrap();
    of.tree = PageTree::open(&of.env, DIR, &without_collections()).unwrap();
    // The extents that were being written are sealed now.
    assert!(of.bytes()[1] < on_disk + 2 * without_collections().extent_bytes);
    of.check(&of.tree.snapshot(), &of.content);
    of.overwrite(10);
    of.end();
}

#[test]
fn pages_that_a_snapshot_needs_stay() {
    let mut of = Overwritten::new(2);
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push((of.tree.snapshot(), of.content.clone()));
        of.overwrite(3);
        for (snapshot, content) in &held {
            of.check(snapshot, content);
        }
        if held.len() > 4 {
            held.remove(of.random.below(4) as usize);
        }
    }
    let before = of.bytes()[1];
    held.clear();
    of.tree.release_space().unwrap();
    assert!(of.bytes()[1] < before);
    of.end();
}

/// A copy has names of the same extents.
#[test]
fn pages_that_a_copy_needs_stay() {
    let mut of = Overwritten::new(3);
    of.overwrite(10);
    let copy = of.tree.begin_copy().unwrap();
    let content = of.content.clone();
    // Before the copy has its names, the views that it holds keep the pages.
    of.overwrite(10);
    of.env.fs().create_dir("copies".as_ref()).unwrap();
    copy.write("copies/1", false, &|| Ok(())).unwrap();
    of.overwrite(30);
    let copied = PageTree::open(&of.env, "copies/1", &without_collections()).unwrap();
    copied.verify().unwrap();
    assert!(content_of(&copied, &copied.snapshot()).unwrap() == content);
    copied.close().unwrap();
    of.end();
}

/// A copy has names of the same extents until it is removed. Then the space of their garbage goes
/// back, although the pages became garbage before.
#[test]
fn the_garbage_of_a_removed_copy_is_given_back() {
    let mut of = Overwritten::new(7);
    of.overwrite(10);
    of.env.fs().create_dir("copies".as_ref()).unwrap();
    let copy = of.tree.begin_copy().unwrap();
    copy.write("copies/1", false, &|| Ok(())).unwrap();
    let copied: Vec<String> = (of.tree.inspect_extents().into_iter())
        .filter(|extent| extent.is_sealed)
        .map(|extent| extent.file)
        .collect();
    // Some leaves of each extent.
    for _ in 0..6 {
        of.write(&mut (0..KEYS).filter(|n| n / 500 % 2 == 0));
        of.tree.maintain().unwrap();
    }
    // Space of the extents that the copy has, too, beyond the valid pages.
    let garbage = |of: &Overwritten| {
        let extents = of.tree.inspect_extents().into_iter();
        let shared = extents.filter(|extent| copied.contains(&extent.file));
        let garbage = shared.map(|e| e.bytes_on_disk.saturating_sub(e.valid_bytes));
        garbage.sum::<u64>()
    };
    let before = garbage(&of);
    assert!(before > 100 << 10, "{before} bytes of garbage");
    of.tree.release_space().unwrap();
    assert_eq!(garbage(&of), before, "the copy needs the pages");
    PageTree::destroy(&of.env, "copies/1").unwrap();
    of.tree.release_space().unwrap();
    let after = garbage(&of);
    // Pages share blocks at their borders.
    assert!(after < before / 3, "{after} of {before} bytes stay");
    of.end();
}

/// Releases that fail are counted. The tree goes on, and later garbage is given back.
#[test]
fn failed_releases_are_counted() {
    let disk = disk(8);
    let faulty = FaultFs::new(disk.clone(), 8);
    let mut of = Overwritten::on(&disk, faulty.clone(), 8, &without_collections());
    faulty.inject(Fault {
        op: Some(OpKind::ReleaseRange),
        path: String::new(),
        when: When::From(1),
        kind: FaultKind::Eio,
    });
    of.overwrite(10);
    let failed = of.tree.stats();
    assert!(failed.failed_releases > 0, "{failed:?}");
    assert_eq!(
        failed.failed_releases,
        faulty.fired()[&(OpKind::ReleaseRange, FaultKind::Eio)],
        "the first range that fails ends a release"
    );
    of.check(&of.tree.snapshot(), &of.content);
    faulty.clear();
    of.overwrite(20);
    let later = of.tree.stats();
    assert_eq!(later.failed_releases, failed.failed_releases);
    assert!(later.released_bytes > failed.released_bytes);
    of.end();
}

/// Regression test: pages of erased extents stayed in the queue of releases. When it was full of
/// them, nothing was released any more.
#[test]
fn releases_go_on_after_many_erasures() {
    const PAGE: usize = 512;
    let fs = disk(9);
    let options = TreeOptions {
        page_bytes: PAGE,
        block_bytes: PAGE,
        extent_bytes: 64 << 10,
        max_deltas: 2,
        overwrite_ratio: 0.0,
        ..without_collections()
    };
    let mut of = Overwritten::on(&fs, fs.clone(), 9, &options);
    // All pages of an extent become garbage at once, when the snapshot ends.
    let is_enough = |of: &Overwritten| {
        let stats = of.tree.stats();
        let erased = stats.bytes_written() - stats.extent_bytes();
        erased / (2 * PAGE as u64) > 1 << 15
    };
    while !is_enough(&of) {
        let snapshot = of.tree.snapshot();
        of.write(&mut (0..KEYS));
        of.tree.maintain().unwrap();
        drop(snapshot);
        of.tree.release_space().unwrap();
    }
    let before = of.tree.stats().released_bytes;
    // Neighbours that change together lie side by side.
    for i in 0..20 {
        of.write(&mut (i * 200..i * 200 + 200));
        of.tree.maintain().unwrap();
    }
    let released = of.tree.stats().released_bytes - before;
    assert!(released > 64 << 10, "{released} bytes were released");
    of.end();
}

/// A leaf is split while a user checkpoint writes to it: both halves then have parts of one delta
/// page.
#[test]
fn a_delta_page_that_two_leaves_share_stays() {
    let mut of = Overwritten::new(5);
    let storage = of.tree.storage.clone();
    let leaf_of = |key: &[u8]| storage.path(&storage.view(), key).unwrap().leaf;
    let delta_ids = |leaf: PageId| {
        let pages = storage.pages_of(&storage.view(), leaf).unwrap();
        let ids = pages.deltas.iter().map(|delta| delta.id);
        ids.collect::<Vec<_>>()
    };
    // A leaf that becomes too large for one page.
    let leaf = leaf_of(b"k03000");
    let has = |n: &u64| leaf_of(format!("k{n:05}").as_bytes()) == leaf;
    let keys: Vec<u64> = (0..KEYS).filter(has).collect();
    assert!(keys.len() > 80, "{} keys", keys.len());
    let more: Content = (keys.iter())
        .map(|n| (format!("k{n:05}x").into_bytes(), vec![7; 100]))
        .collect();
    let borrowed = more.iter().map(|(key, value)| (&key[..], Some(&value[..])));
    of.tree.write(borrowed).unwrap();
    of.content.extend(more);
    let prepared = storage.prepare_compaction(leaf, true).unwrap().unwrap();
    of.write(&mut keys.iter().copied());
    storage.commit_prepared(&prepared).unwrap();
    drop(prepared);
    let halves = [keys[0], keys[keys.len() - 1]].map(|n| leaf_of(format!("k{n:05}").as_bytes()));
    let shared = delta_ids(halves[0]);
    assert!(halves[0] != halves[1] && shared == delta_ids(halves[1]));
    assert!(shared[0].len > 8 << 10, "the page has whole blocks");
    storage.delta.seal().unwrap();
    storage.merge_or_skip(&halves[..1], &|| true).unwrap();
    assert!(delta_ids(leaf_of(format!("k{:05}", keys[0]).as_bytes())).is_empty());
    of.tree.release_space().unwrap();
    of.end();
}

/// Pages that a rollback needs stay: in the same life, and after the next open.
#[test]
fn pages_that_a_rollback_needs_stay() {
    for reopens in [false, true] {
        let mut of = Overwritten::new(6);
        of.overwrite(10);
        of.tree.confirm();
        let keeps = |note: &[u8]| note.is_empty();
        let content = of.content.clone();
        // Maintenance writes the leaves again with what does not count.
        for round in 0..12 {
            let keys: Vec<u64> = (0..1000).map(|_| of.random.below(KEYS)).collect();
            let keys = keys.into_iter().map(|n| format!("k{n:05}").into_bytes());
            let changes: Content = keys.map(|key| (key, vec![200 + round; 100])).collect();
            let borrowed = (changes.iter()).map(|(key, value)| (&key[..], Some(&value[..])));
            let mut entries = CheckedChanges::new(borrowed);
            of.tree
                .write_unconfirmed(&mut entries, b"doubt".to_vec())
                .unwrap();
            of.tree.maintain().unwrap();
        }
        assert!(of.tree.has_unconfirmed());
        of.tree.release_space().unwrap();
        match reopens {
            true => {
                of.tree.abandon().unwrap();
                let options = without_collections();
                of.tree = PageTree::open_keeping(&of.env, DIR, &options, &keeps).unwrap();
            }
            false => of.tree.roll_back(&keeps).unwrap(),
        }
        of.check(&of.tree.snapshot(), &content);
        of.tree.verify().unwrap();
        // The times of what does not count come again, and its garbage is valid now.
        for _ in 0..100 {
            of.write(&mut (0..1));
        }
        of.tree.release_space().unwrap();
        of.tree.verify().unwrap();
        of.overwrite(10);
        of.end();
    }
}

/// Regression test: times go back with a rollback. An erasure that had collected those of readers
/// before could take an extent from a reader that began behind it.
#[test]
fn a_rollback_waits_for_an_erasure() {
    let mut of = Overwritten::new(6);
    of.overwrite(3);
    of.tree.confirm();
    let content = of.content.clone();
    let mut doubtful = CheckedChanges::new(std::iter::once((&b"k00000"[..], Some(&b"doubt"[..]))));
    (of.tree)
        .write_unconfirmed(&mut doubtful, b"doubt".to_vec())
        .unwrap();
    let (tree, (ended, end)) = (&of.tree, mpsc::channel());
    let erasing = tree.storage.erasing.lock();
    scope(|scope| {
        scope.spawn(move || {
            tree.roll_back(&|note: &[u8]| note.is_empty()).unwrap();
            ended.send(()).unwrap();
        });
        // Long enough, mostly, for a rollback that does not wait.
        end.recv_timeout(Duration::from_millis(50)).unwrap_err();
        assert!(tree.has_unconfirmed());
        drop(erasing);
    });
    assert!(!of.tree.has_unconfirmed());
    of.check(&of.tree.snapshot(), &content);
    of.end();
}

/// A salvage without the logs takes released blocks for spare space, not for lost pages.
#[test]
fn released_pages_are_no_loss() {
    let mut of = Overwritten::new(4);
    of.overwrite(40);
    assert!(of.tree.stats().released_bytes > 0);
    of.tree.close().unwrap();
    remove_logs(&of.fs);
    let (saved, lost) = salvaged(&of.fs);
    assert_eq!(lost.len(), 1, "the tables alone: {lost:?}");
    assert!(saved == of.content);
}

/// After a power cut at any change from the first release on, the tree has what its user
/// checkpoints wrote, and what the one in doubt wrote or nothing of it.
#[test]
fn a_power_cut_beside_releases_keeps_committed_transactions() {
    let (mut states, mut releases) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..2 * basalt_sim::campaign::scale()) {
        let mut of = Overwritten::new(seed);
        of.overwrite(8);
        let points: Arc<Mutex<Vec<(SimSnapshot, usize)>>> = Arc::default();
        let rounds = Arc::new(AtomicUsize::new(0));
        let (to, done) = (points.clone(), rounds.clone());
        of.fs
            .on_mutation(move |snapshot| to.lock().push((snapshot, done.load(SeqCst))));
        let before = of.tree.stats().released_bytes;
        let mut contents = vec![of.content.clone()];
        for _ in 0..6 {
            of.overwrite(1);
            contents.push(of.content.clone());
            rounds.fetch_add(1, SeqCst);
        }
        of.fs.on_mutation(|_| {});
        releases += of.tree.stats().released_bytes - before;
        for (i, (snapshot, done)) in points.lock().iter().enumerate() {
            let policy = CrashPolicy::ALL[i % CrashPolicy::ALL.len()];
            let say = format!("seed {seed}, change {i}, after round {done}, {policy:?}");
            let crashed = snapshot.crash(policy, seed * 10_000 + i as u64);
            let env = Env::for_tests(crashed.clone(), seed);
            let tree = PageTree::open(&env, DIR, &without_collections())
                .unwrap_or_else(|e| panic!("{say}: {e}"));
            let found = content_of(&tree, &tree.snapshot());
            let found = found.unwrap_or_else(|e| panic!("{say}: {e}"));
            let after = (done + 1).min(contents.len() - 1);
            assert!(
                found == contents[*done] || found == contents[after],
                "{say}"
            );
            tree.verify().unwrap_or_else(|e| panic!("{say}: {e}"));
            tree.abandon().unwrap();
            states += 1;
        }
        of.tree.abandon().unwrap();
    }
    basalt_sim::campaign!("tree_release_crash_states={states} released_bytes={releases}");
    let least = basalt_sim::campaign::scale().floor(200);
    let least_bytes = basalt_sim::campaign::scale().floor(512 << 10);
    assert!(
        states >= least && releases > least_bytes || basalt_sim::campaign::case().is_some(),
        "{states} {releases}"
    );
}
