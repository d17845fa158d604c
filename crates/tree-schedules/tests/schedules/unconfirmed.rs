//! Writes whose effect a record of the memory tier decides: one thread writes, records and
//! confirms, or goes back, beside maintenance, readers, copies and power cuts. Before it goes back,
//! two threads may compact what it has written. A recovery has exactly the recorded writes.

use crate::case;
use crate::history::{Changes, Content, Script};
use crate::world::{DIR, crashed, disk, environment, open, options, read, write_all};
use basalt_env::sync::explore::{CASE, Counts, below, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_fs::Result;
use basalt_kv::key::Kind;
use basalt_sim::{SimFs, campaign, repeat};
use basalt_tree_schedules::{PageTree, SortedEntries, TreeOptions};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const ROUNDS: u64 = 5;
const COPY: &str = "copy";

/// Places of the counts of this model.
const ROLLED_BACK: usize = 0;
const CUTS_IN_DOUBT: usize = 1;
const COPIES: usize = 2;
const CHECKPOINTS: usize = 3;
/// Writes that were taken back with two compactions of different index pages behind them.
const COMPACTED_BY_TWO: usize = 4;

/// The entries of a round.
struct RoundEntries {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    next: usize,
}

impl RoundEntries {
    fn new(changes: Changes) -> RoundEntries {
        RoundEntries {
            changes: changes.into_iter().collect(),
            next: 0,
        }
    }
}

impl SortedEntries for RoundEntries {
    fn advance(&mut self) -> Result<bool> {
        self.next += 1;
        Ok(self.next <= self.changes.len())
    }

    fn key(&self) -> &[u8] {
        &self.changes[self.next - 1].0
    }

    fn kind(&self) -> Kind {
        match self.changes[self.next - 1].1 {
            Some(_) => Kind::Put,
            None => Kind::Delete,
        }
    }

    fn value(&self) -> &[u8] {
        let value = self.changes[self.next - 1].1.as_deref();
        value.unwrap_or_default()
    }
}

/// What the memory tier has recorded.
#[derive(Clone, Default)]
struct Records {
    /// Notes of the writes that count.
    notes: BTreeSet<Vec<u8>>,
    /// Number of rounds that count.
    rounds: u64,
    /// Number of rounds that have begun.
    begun: u64,
    /// True while a write is not confirmed or rolled back.
    in_doubt: bool,
}

struct World {
    tree: PageTree,
    disk: Arc<SimFs>,
    options: TreeOptions,
    script: Script,
    /// Never held where threads change places.
    records: Mutex<Records>,
    /// Held by readers, and by a write that goes back: no snapshot may be newer than what it
    /// restores.
    gate: shuttle::sync::RwLock<()>,
}

impl World {
    fn records(&self) -> Records {
        self.records.lock().unwrap().clone()
    }

    fn content(&self, rounds: u64) -> Content {
        let last = (rounds > 0).then_some(0);
        self.script.content(&[rounds, 0, 0], last)
    }

    fn rounds_of(&self, content: &Content) -> u64 {
        self.script.recognize(content).0[0]
    }

    /// Writes a round. Readers see it, and no record says yet that it counts.
    fn write(&self, round: u64, note: &[u8]) {
        {
            let mut records = self.records.lock().unwrap();
            records.begun = round;
            records.in_doubt = true;
        }
        let mut entries = RoundEntries::new(self.script.changes(0, round));
        let written = self.tree.write_unconfirmed(&mut entries, note.to_vec());
        written.expect("writes");
        assert!(self.tree.has_unconfirmed());
        (0..below(8)).for_each(|_| yield_now());
    }

    /// Writes one or two rounds behind `before`, which one record decides about. Then records that
    /// they count, or goes back. Returns the last round that counts.
    fn flush(
        self: &Arc<Self>,
        before: u64,
        next_note: &mut u64,
        goes_back: bool,
        own: &Counts,
    ) -> u64 {
        let _alone = goes_back.then(|| self.gate.write().unwrap());
        let last = ROUNDS.min(before + 1 + below(2));
        let mut notes = Vec::new();
        for round in before + 1..=last {
            *next_note += 1;
            notes.push(next_note.to_le_bytes().to_vec());
            self.write(round, &notes[notes.len() - 1]);
        }
        if !goes_back {
            let mut records = self.records.lock().unwrap();
            records.rounds = last;
            records.notes.extend(notes);
            drop(records);
            (0..below(8)).for_each(|_| yield_now());
            self.tree.confirm();
            self.records.lock().unwrap().in_doubt = false;
            return last;
        }
        if percent(70) {
            self.compact_by_two(own);
        }
        let counts = self.records().notes;
        let back = self.tree.roll_back(&|note| counts.contains(note));
        back.expect("goes back");
        assert!(!self.tree.has_unconfirmed());
        let found = read(&self.tree, &self.tree.snapshot());
        assert!(found == self.content(before), "it did not go back");
        self.records.lock().unwrap().in_doubt = false;
        before
    }

    /// Compacts what is due in two threads.
    fn compact_by_two(self: &Arc<Self>, own: &Counts) {
        let threads = [0, 1].map(|_| {
            let world = self.clone();
            shuttle::thread::spawn(move || {
                let done = world.tree.compact_concurrently(&|| true);
                done.expect("compacts")
            })
        });
        let done = threads.map(|thread| thread.join().unwrap());
        let by_both = done.iter().all(|count| *count > 0);
        count(own, COMPACTED_BY_TWO, u64::from(by_both));
    }

    fn look(&self) {
        let _gate = self.gate.read().unwrap();
        let due = self.records().rounds;
        let snapshot = self.tree.snapshot();
        let begun = self.records().begun;
        let content = read(&self.tree, &snapshot);
        let rounds = self.rounds_of(&content);
        assert!((due..=begun).contains(&rounds), "{due} {rounds} {begun}");
        yield_now();
        assert!(read(&self.tree, &snapshot) == content, "it has changed");
    }

    /// Opens a tree whose records say which writes count. Returns its rounds. The tree goes on.
    fn recover(&self, disk: &Arc<SimFs>, dir: &str, records: &Records) -> u64 {
        let env = environment(disk);
        let counts = |note: &[u8]| records.notes.contains(note);
        let tree = PageTree::open_keeping(&env, dir, &self.options, &counts).expect("opens");
        tree.verify().expect("verifies");
        let content = read(&tree, &tree.snapshot());
        tree.maintain().expect("maintains");
        assert!(read(&tree, &tree.snapshot()) == content);
        tree.verify().expect("verifies");
        tree.close().expect("closes");
        self.rounds_of(&content)
    }

    fn maintain(&self) {
        let done = match below(5) {
            0..=1 => self.tree.maintain(),
            2 => self.tree.compact_range(b"", None, &|| true),
            3 => self.tree.merge_for_readers(&|| true),
            _ => self.tree.reclaim(),
        };
        done.expect("maintains");
    }
}

fn model(own: &Counts) {
    let script = Script {
        salt: below(u64::MAX),
        is_preloaded: percent(80),
        value_bytes: [30, 100],
    };
    let options = options([0, 1 << 20][below(2) as usize]).checkpoint_bytes(0);
    let disk = disk();
    let tree = open(&disk, DIR, &options);
    script.preload().iter().for_each(|c| write_all(&tree, c));
    let world = Arc::new(World {
        tree,
        disk,
        options,
        script,
        records: Mutex::default(),
        gate: shuttle::sync::RwLock::new(()),
    });
    let mut threads = Vec::new();
    let (flusher, counts) = (world.clone(), own.clone());
    threads.push(shuttle::thread::spawn(move || {
        let (mut rounds, mut note) = (0, 0);
        while rounds < ROUNDS {
            let goes_back = percent(30);
            rounds = flusher.flush(rounds, &mut note, goes_back, &counts);
            count(&counts, ROLLED_BACK, u64::from(goes_back));
        }
    }));
    let maintainer = world.clone();
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..5 {
            (0..below(10)).for_each(|_| yield_now());
            maintainer.maintain();
        }
    }));
    let cuts = Arc::new(Mutex::new(Vec::new()));
    let (reader, to) = (world.clone(), cuts.clone());
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..3 {
            reader.look();
            (0..below(20)).for_each(|_| yield_now());
            let cut = (crashed(&reader.disk), reader.records());
            to.lock().unwrap().push(cut);
        }
    }));
    let (copier, counts) = (world.clone(), own.clone());
    threads.push(shuttle::thread::spawn(move || {
        (0..below(30)).for_each(|_| yield_now());
        let _gate = copier.gate.read().unwrap();
        let due = copier.records().rounds;
        let copy = copier.tree.begin_copy().expect("begins");
        let records = copier.records();
        copy.write(COPY, false, &|| Ok(())).expect("writes");
        let rounds = copier.recover(&copier.disk, COPY, &records);
        assert!((due..=records.rounds).contains(&rounds), "{due} {rounds}");
        count(&counts, COPIES, u64::from(records.in_doubt));
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    count(own, CHECKPOINTS, world.tree.stats().system_checkpoints);
    world.tree.verify().expect("verifies");
    world.look();
    world.tree.abandon().expect("closes");
    for (disk, records) in cuts.lock().unwrap().drain(..) {
        let rounds = world.recover(&disk, DIR, &records);
        assert_eq!(rounds, records.rounds, "exactly what was recorded");
        count(own, CUTS_IN_DOUBT, u64::from(records.in_doubt));
    }
    let rounds = world.recover(&world.disk, DIR, &world.records());
    assert_eq!(rounds, ROUNDS);
}

#[test]
fn recorded_writes_alone_survive_in_any_schedule() {
    let own = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..6 * campaign::scale()) {
        let _repeat = repeat!(
            recorded_writes_alone_survive_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        let own = own.clone();
        case(seed, move || model(&own));
        schedules += CASE as u64;
    }
    let [rolled_back, in_doubt, copies, checkpoints, by_two] =
        std::array::from_fn(|i| counted(&own, i));
    basalt_sim::campaign!(
        "tree_unconfirmed_schedules={schedules} rolled_back={rolled_back} \
         cuts_in_doubt={in_doubt} copies_in_doubt={copies} system_checkpoints={checkpoints} \
         compacted_by_two={by_two}"
    );
    if campaign::case().is_none() {
        assert!(rolled_back > schedules / 2, "{rolled_back} went back");
        assert!(in_doubt > schedules / 2, "{in_doubt} cuts in doubt");
        assert!(copies > schedules / 10, "{copies} copies in doubt");
        assert!(checkpoints > schedules, "{checkpoints} checkpoints");
        assert!(by_two > schedules / 10, "{by_two} were compacted by two");
    }
}
