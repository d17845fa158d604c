//! A family in pages beside a family of tables: batches over both, flushes, maintenance of the
//! tree, copies, and readers of one moment.
//!
//! A batch sets all keys of its writer to its round, in both families. So the round of each writer
//! says which content a reader must see, to the last byte, and both families must show one round.

use crate::explore::{CASE, Counts, below, case, count, counted, counts, percent};
use crate::locks::assert_taken;
use basalt_env::sync::yield_now;
use basalt_env::{Clock, Env, EnvBuilder, JobPriority, ManualClock};
use basalt_kv::merge::Append;
use basalt_lsm_schedules::db::CheckpointOptions;
use basalt_lsm_schedules::{
    Db, Family, FamilyOptions, Options, ReadOptions, Snapshot, TreeOptions, WriteBatch,
    WriteOptions,
};
use basalt_sim::{SimFs, SimOptions, campaign, repeat};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const WRITERS: usize = 2;
const KEYS: u64 = 6;
/// The key of each writer that is there in odd rounds alone.
const SOMETIMES: u64 = KEYS;
/// The key of each writer to which each round appends.
const MERGED: u64 = KEYS + 1;

/// The last round of each writer that has returned, or that a reader has seen.
type Rounds = [u64; WRITERS];
/// All entries of a family.
type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns a key. Those of different writers are in one leaf.
fn key(n: u64, writer: usize) -> Vec<u8> {
    format!("key {n} of {writer}").into_bytes()
}

fn value(n: u64, round: u64) -> Vec<u8> {
    let mut value = round.to_le_bytes().to_vec();
    // The first one is in a blob file.
    value.resize(if n == 0 { 250 } else { 40 }, b'.');
    value
}

fn content_of(rounds: Rounds) -> Content {
    let mut content = Content::new();
    for (writer, round) in rounds.into_iter().enumerate() {
        if round == 0 {
            continue;
        }
        content.extend((0..KEYS).map(|n| (key(n, writer), value(n, round))));
        if round % 2 == 1 {
            content.insert(key(SOMETIMES, writer), value(SOMETIMES, round));
        }
        content.insert(key(MERGED, writer), vec![b'+'; round as usize]);
    }
    content
}

fn family(pages: Option<TreeOptions>) -> FamilyOptions {
    FamilyOptions::default()
        .pages(pages)
        .merge_operator(Some(Arc::new(Append::new(*b""))))
        .min_blob_size(Some(200))
        .block_bytes(256)
        .table_bytes(1024)
        .l0_compaction_trigger(2)
        .base_level_bytes(2048)
}

/// Returns settings of small pages. With `leaf_delta_bytes`, changes go to index pages, too.
fn options(leaf_delta_bytes: usize) -> Options {
    let pages = TreeOptions::default()
        .page_bytes(256)
        .block_bytes(64)
        .extent_bytes(4 << 10)
        .max_deltas(2)
        .leaf_delta_bytes(Some(leaf_delta_bytes))
        .checkpoint_bytes(1 << 10);
    let mut options = Options::default()
        .write_buffer_bytes(8 << 10)
        .default_family(family(Some(pages)))
        .idle_release(Duration::ZERO);
    options.families.insert("tables".into(), family(None));
    options
}

/// A store with a family in pages and a family of tables, and what was written to it.
#[derive(Clone)]
struct World {
    env: Env,
    disk: Arc<SimFs>,
    options: Options,
    db: Db,
    families: [Family; 2],
    returned: Arc<[AtomicU64; WRITERS]>,
}

impl World {
    fn new() -> World {
        let disk = SimFs::new(SimOptions::default());
        let options = options([0, 150, 1 << 20][below(3) as usize]);
        let env = World::env(&disk);
        let db = Db::open(&env, "db", options.clone()).expect("opens");
        let made = db.create_family("tables", family(None)).expect("is made");
        World {
            families: [db.default_family(), made],
            returned: Arc::default(),
            env,
            disk,
            options,
            db,
        }
    }

    fn env(disk: &Arc<SimFs>) -> Env {
        let clock = ManualClock::ticking(1_700_000_000_000, Duration::from_micros(100));
        EnvBuilder::new(disk.clone())
            .threads(1 + below(4) as usize)
            .seed(below(1 << 32))
            .clock(Clock::manual(clock))
            .memory_bytes(16 << 20)
            .cache_bytes([0, 2000, 1 << 20][below(3) as usize])
            .open_files(1 + below(4) as usize)
            .build()
    }

    fn returned(&self) -> Rounds {
        std::array::from_fn(|writer| self.returned[writer].load(SeqCst))
    }

    /// Writes the next round of a writer as one batch over both families.
    fn write(&self, writer: usize) {
        let round = self.returned[writer].load(SeqCst) + 1;
        let mut batch = WriteBatch::new();
        for family in &self.families {
            for n in 0..KEYS {
                let (key, value) = (key(n, writer), value(n, round));
                batch.put(family, &key, &value).expect("fits");
            }
            let sometimes = key(SOMETIMES, writer);
            let end = [&sometimes[..], b"\0"].concat();
            let done = match (round % 2, percent(50)) {
                (1, _) => batch.put(family, &sometimes, &value(SOMETIMES, round)),
                (_, true) => batch.delete(family, &sometimes),
                (_, false) => batch.delete_range(family, &sometimes, &end),
            };
            done.expect("fits");
            batch
                .merge(family, &key(MERGED, writer), b"+")
                .expect("fits");
        }
        let durability = WriteOptions::synced(percent(50));
        self.db.write(batch, &durability).expect("writes");
        self.returned[writer].store(round, SeqCst);
    }

    /// Counts this moment if a helper waits or runs.
    fn count_helpers(&self, totals: &Counts) {
        let jobs = self.env.jobs().pending();
        count(totals, 4, u64::from(jobs[JobPriority::Helper as usize] > 0));
    }

    /// Reads the store at a moment that is not before a call, and then again.
    fn look(&self, totals: &Counts) {
        let due = self.returned();
        let snapshot = self.db.snapshot();
        let rounds = seen(&self.db, &self.families, &snapshot);
        check_not_older(rounds, due);
        for _ in 0..below(3) {
            (0..below(30)).for_each(|_| yield_now());
            self.count_helpers(totals);
            let again = seen(&self.db, &self.families, &snapshot);
            assert_eq!(again, rounds, "a snapshot has changed");
            let newest = self.returned();
            count(totals, 1, u64::from(newest != rounds));
        }
    }

    /// Reads both families without a snapshot.
    fn look_now(&self) {
        let due = self.returned();
        let keys: [Vec<u8>; WRITERS] = std::array::from_fn(|writer| key(MERGED, writer));
        let wanted: Vec<(&Family, &[u8])> = (self.families.iter())
            .flat_map(|family| keys.iter().map(move |key| (family, &key[..])))
            .collect();
        let found = self.db.multi_get(&wanted, &ReadOptions::default());
        let rounds = found.into_iter().map(|value| {
            let value = value.expect("reads");
            value.map_or(0, |value| value.len() as u64)
        });
        let rounds: Vec<u64> = rounds.collect();
        let (in_pages, in_tables) = rounds.split_at(WRITERS);
        assert_eq!(in_pages, in_tables, "half of a batch");
        check_not_older(std::array::from_fn(|writer| in_pages[writer]), due);
        let family = &self.families[below(2) as usize];
        let due = self.returned();
        let content = walk(&self.db, family, &ReadOptions::default(), percent(50));
        check_not_older(rounds_of(&content), due);
    }

    /// Checks that a store has exactly the rounds that have returned, and is sound.
    fn check_closed(&self, env: &Env) {
        let db = Db::open(env, "db", self.options.clone()).expect("opens");
        let families = [db.default_family(), db.family("tables").expect("is there")];
        let rounds = seen(&db, &families, &db.snapshot());
        assert_eq!(rounds, self.returned(), "after the store is opened again");
        db.close().expect("closes");
        let report = Db::verify_store(env, "db", &self.options, &mut |_, _| ()).expect("walks");
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        assert!(report.unused_files.is_empty(), "{:?}", report.unused_files);
    }
}

fn check_not_older(rounds: Rounds, due: Rounds) {
    let is_new = rounds.iter().zip(due).all(|(seen, due)| *seen >= due);
    assert!(is_new, "rounds {rounds:?}, and {due:?} had returned");
}

/// Returns the rounds of a content, which must be exactly that of these rounds.
fn rounds_of(content: &Content) -> Rounds {
    let merged = |writer| content.get(&key(MERGED, writer)).map_or(0, Vec::len);
    let rounds: Rounds = std::array::from_fn(|writer| merged(writer) as u64);
    assert!(*content == content_of(rounds), "not of rounds {rounds:?}");
    rounds
}

/// Returns the rounds that both families show at a snapshot.
fn seen(db: &Db, families: &[Family; 2], snapshot: &Snapshot) -> Rounds {
    let read = ReadOptions::default().snapshot(Some(snapshot.clone()));
    let [in_pages, in_tables] = families.each_ref().map(|family| {
        let content = match below(3) {
            0 => get_all(db, family, &read),
            which => walk(db, family, &read, which == 1),
        };
        rounds_of(&content)
    });
    assert_eq!(in_pages, in_tables, "half of a batch");
    in_pages
}

fn get_all(db: &Db, family: &Family, read: &ReadOptions) -> Content {
    let keys = (0..=MERGED).flat_map(|n| (0..WRITERS).map(move |writer| key(n, writer)));
    let found = keys.filter_map(|key| {
        let value = db.get(family, &key, read).expect("reads")?;
        Some((key, value.to_vec()))
    });
    found.collect()
}

fn walk(db: &Db, family: &Family, read: &ReadOptions, is_down: bool) -> Content {
    let mut iter = db.iter(family, read).expect("an iterator");
    let mut content = Content::new();
    match is_down {
        true => iter.seek_to_last(),
        false => iter.seek_to_first(),
    }
    .expect("reads");
    while iter.valid() {
        let before = content.insert(iter.key().to_vec(), iter.value().to_vec());
        assert_eq!(before, None, "a key is there twice");
        if percent(20) {
            yield_now();
        }
        if is_down { iter.prev() } else { iter.next() }.expect("reads");
    }
    content
}

/// Flushes, maintains and copies. Returns a copy, and the rounds that had returned before it.
fn work(world: &World, totals: &Counts) -> Option<(String, Rounds)> {
    let (db, mut copy) = (&world.db, None);
    for step in 0..4 {
        match below(5) {
            0 | 1 => db.flush().expect("flushes"),
            2 => db
                .compact(&world.families[0], &Default::default())
                .expect("compacts"),
            3 => {
                let (to, due) = (format!("copy-{step}"), world.returned());
                let options = CheckpointOptions::default();
                db.checkpoint(&to, &options).expect("copies");
                copy = Some((to, due));
            }
            _ => db.wait_idle().expect("becomes idle"),
        }
        world.count_helpers(totals);
    }
    copy
}

fn model(totals: &Counts) {
    let world = World::new();
    if percent(70) {
        for writer in 0..WRITERS {
            world.write(writer);
        }
        world.db.flush().expect("flushes");
    }
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let (world, totals) = (world.clone(), totals.clone());
        threads.push(shuttle::thread::spawn(move || {
            for _ in 0..3 {
                world.write(writer);
                world.count_helpers(&totals);
                if percent(40) {
                    world.db.flush().expect("flushes");
                }
            }
        }));
    }
    let (reader, of_reader) = (world.clone(), totals.clone());
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..3 {
            reader.look(&of_reader);
            reader.look_now();
        }
    }));
    let copy = work(&world, totals);
    for thread in threads {
        thread.join().expect("ends");
    }
    world.look(totals);
    if let Some((copy, due)) = copy {
        let db = Db::open_read_only(&world.env, copy, world.options.clone()).expect("opens");
        let families = [db.default_family(), db.family("tables").expect("is there")];
        check_not_older(seen(&db, &families, &db.snapshot()), due);
        db.close().expect("closes");
        count(totals, 2, 1);
    }
    let stats = world.db.stats();
    let of_pages = stats.families.iter().find_map(|f| f.pages.as_ref());
    let of_pages = of_pages.expect("a family is in pages");
    count(totals, 3, u64::from(of_pages.compaction_bytes_written > 0));
    count(totals, 0, shuttle::current::context_switches() as u64);
    if percent(30) {
        // The process dies instead: the log has what no flush has written.
        let killed = world.disk.kill();
        world.db.clone().abandon();
        world.check_closed(&World::env(&killed));
    } else {
        world.db.clone().close().expect("closes");
        world.check_closed(&world.env);
    }
}

#[test]
fn families_in_pages_are_correct_in_every_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..3 * campaign::scale()) {
        let _repeat = repeat!(
            families_in_pages_are_correct_in_every_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, beside, copies, compacted, helped] = std::array::from_fn(|i| counted(&totals, i));
    basalt_sim::campaign!(
        "page_schedules={schedules} steps={steps} reads_behind_writes={beside} copies={copies} compacted={compacted} moments_with_helpers={helped}"
    );
    if campaign::case().is_none() {
        assert!(beside > schedules / 2, "few reads beside writes: {beside}");
        assert!(copies > schedules / 5, "few copies: {copies}");
        assert!(compacted > schedules / 2, "few compactions: {compacted}");
        assert!(helped > schedules / 20, "few helpers: {helped}");
        assert_taken(&[
            "DroppedReferences::waiting",
            "FamilyPages::unrecorded_blobs",
        ]);
    }
}
