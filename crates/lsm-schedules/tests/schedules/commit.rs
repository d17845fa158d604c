//! The commit queue: which thread leads, which threads insert side by side, when a batch is
//! acknowledged, which threads see a panic, and what a power cut takes.

use crate::explore::{CASE, Counts, below, case, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_env::{Clock, Env, EnvBuilder, ManualClock};
use basalt_fs::ErrorKind;
use basalt_kv::key::Cmp;
use basalt_lsm_schedules::{
    Comparator, Db, Family, FamilyOptions, Options, ReadOptions, SeqNo, WriteBatch, WriteOptions,
};
use basalt_sim::{CrashPolicy, SimFs, SimOptions, campaign, repeat};
use std::any::Any;
use std::cmp::Ordering;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const WRITERS: usize = 3;
const PANIC_KEY: &[u8] = b"boom";

/// A bytewise comparator that panics on one key once it is armed.
struct PanickingComparator(AtomicBool);

impl Comparator for PanickingComparator {
    fn name(&self) -> &str {
        "fuse"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.0.load(SeqCst) && (a == PANIC_KEY || b == PANIC_KEY) {
            std::panic::resume_unwind(Box::new("the fuse"));
        }
        a.cmp(b)
    }
}

/// One batch of a writer, numbered from 1.
#[derive(Clone, Default)]
struct Sent {
    /// The batch's last sequence number, once acknowledged.
    acked: Option<SeqNo>,
    durable: bool,
}

/// The batches that each writer sent, in order. The lock is never held where threads change places.
type Journal = [Vec<Sent>; WRITERS];

struct World {
    db: Db,
    families: [Family; 2],
    journal: Mutex<Journal>,
    /// Bytes that go along with each batch.
    load: usize,
    /// True if one batch will meet the fuse.
    boom: bool,
    /// Number of answers for batches that no thread waits for.
    owed: AtomicUsize,
    /// The disk of a power cut, and the journal at that moment.
    cut: Mutex<Option<(Arc<SimFs>, Journal)>>,
}

fn number(bytes: Option<basalt_fs::Bytes>) -> usize {
    bytes.map_or(0, |b| {
        u64::from_le_bytes(b[..8].try_into().unwrap()) as usize
    })
}

fn name(writer: usize) -> Vec<u8> {
    format!("w{writer}").into_bytes()
}

fn own_name(writer: usize, n: usize) -> Vec<u8> {
    format!("w{writer}/{n}").into_bytes()
}

/// Records and checks the promises of a batch that is acknowledged.
fn acknowledge(world: &World, writer: usize, n: usize, seq: SeqNo, sync: bool) {
    let mut journal = world.journal.lock().unwrap();
    let known: Vec<SeqNo> = journal.iter().flatten().filter_map(|s| s.acked).collect();
    assert!(!known.contains(&seq), "a sequence number of its own");
    let earlier = &journal[writer][..n - 1];
    assert!(
        earlier
            .iter()
            .all(|s| s.acked.is_none_or(|before| before < seq)),
        "a thread's batches commit in order"
    );
    let sent = &mut journal[writer][n - 1];
    (sent.acked, sent.durable) = (Some(seq), sync);
}

/// Sends one batch in one of the possible ways. Returns false if the store is broken.
fn send(world: &Arc<World>, writer: usize, boom: bool) -> bool {
    let db = &world.db;
    let n = {
        let mut journal = world.journal.lock().unwrap();
        journal[writer].push(Sent::default());
        journal[writer].len()
    };
    let mut value = (n as u64).to_le_bytes().to_vec();
    value.resize(8 + world.load, b'.');
    let mut batch = WriteBatch::new();
    let [a, b] = &world.families;
    batch.put(a, &name(writer), &value).unwrap();
    batch.put(a, &own_name(writer, n), &value[..8]).unwrap();
    batch.put(b, &name(writer), &value[..8]).unwrap();
    if boom {
        batch.put(b, PANIC_KEY, b"").unwrap();
    }
    let sync = percent(40);
    let options = WriteOptions::synced(sync);
    match below(4) {
        0 => {
            let later = world.clone();
            world.owed.fetch_add(1, SeqCst);
            let then = move |result| {
                if let Ok(seq) = result {
                    acknowledge(&later, writer, n, seq, sync);
                }
                later.owed.fetch_sub(1, SeqCst);
            };
            db.submit(batch, &options).on_complete(then);
            true
        }
        way => {
            let result = if way == 1 {
                let ticket = db.submit(batch, &options);
                yield_now();
                ticket.wait()
            } else {
                db.write(batch, &options)
            };
            match result {
                Ok(seq) => {
                    acknowledge(world, writer, n, seq, sync);
                    let read = db.get(a, &name(writer), &ReadOptions::default());
                    assert_eq!(number(read.unwrap()), n, "acknowledged and not visible");
                    true
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
                    false
                }
            }
        }
    }
}

/// Makes the acknowledged batches durable.
fn write_batches(world: &World) {
    let before = world.journal.lock().unwrap().clone();
    match world.db.sync() {
        Ok(()) => {
            let mut journal = world.journal.lock().unwrap();
            for (now, then) in journal.iter_mut().zip(before) {
                for (now, then) in now.iter_mut().zip(then) {
                    now.durable |= then.acked.is_some();
                }
            }
        }
        Err(e) => assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}"),
    }
}

/// Reads all writers' last batches as of one moment: each is whole, none is invented, and none is
/// lost that was acknowledged before.
fn look(world: &World, seen: &mut [usize; WRITERS]) {
    let before = world.journal.lock().unwrap().clone();
    let read = ReadOptions::default().snapshot(Some(world.db.snapshot()));
    for (w, seen) in seen.iter_mut().enumerate() {
        let [a, b] = world.families.each_ref().map(|family| {
            let found = world.db.get(family, &name(w), &read);
            number(found.expect("a read meets no error"))
        });
        assert_eq!(a, b, "half a batch of writer {w}");
        let acked = before[w].iter().rposition(|s| s.acked.is_some());
        assert!(a >= acked.map_or(0, |i| i + 1), "acknowledged and gone");
        assert!(a >= *seen, "what was seen is there later");
        assert!(a <= world.journal.lock().unwrap()[w].len(), "invented");
        *seen = a;
    }
}

fn cut_the_power(world: &World, disk: &SimFs) {
    let policy = CrashPolicy::ALL[below(CrashPolicy::ALL.len() as u64) as usize];
    let seed = below(1 << 32);
    // Threads cannot change places in between: the journal is that of the moment of the cut.
    let known = world.journal.lock().unwrap().clone();
    *world.cut.lock().unwrap() = Some((disk.crash(policy, seed), known));
}

fn environment(disk: &Arc<SimFs>, seed: u64) -> Env {
    let step = Duration::from_micros([20, 300][below(2) as usize]);
    let clock = Clock::manual(ManualClock::ticking(1_700_000_000_000, step));
    // The lane and the pool's threads are threads of the run. Jobs are not stepped, because
    // stepping is for one thread alone.
    EnvBuilder::new(disk.clone())
        .threads(1 + below(2) as usize)
        .seed(seed)
        .clock(clock)
        .memory_bytes(16 << 20)
        .cache_bytes(0)
        .build()
}

fn options(fuse: &Arc<PanickingComparator>, buffer: u64, slow: bool) -> Options {
    let family = FamilyOptions::default()
        .l0_compaction_trigger(if slow { 1 } else { 4 })
        .l0_slowdown(if slow { 1 } else { 12 });
    let fused = family.clone().comparator(Cmp::Custom(fuse.clone()));
    Options::default()
        .write_buffer_bytes(buffer)
        .default_family(family)
        .families([("fused".to_string(), fused)].into())
        .idle_release(Duration::ZERO)
}

/// Checks a store after a power cut: every durable batch exists, and of all acknowledged batches a
/// prefix, whole.
fn judge_cut(disk: &Arc<SimFs>, known: &Journal, end: &Journal, options: Options) {
    let env = Env::for_tests(disk.clone(), 99);
    let db = Db::open(&env, "db", options).expect("opens after a power cut");
    let [a, b] = ["default", "fused"].map(|f| db.family(f).expect("made before"));
    let get = |f: &Family, k: &[u8]| number(db.get(f, k, &ReadOptions::default()).unwrap());
    let (mut there, mut gone) = (0, SeqNo::MAX);
    for w in 0..WRITERS {
        let n = get(&a, &name(w));
        assert_eq!(n, get(&b, &name(w)), "half a batch of writer {w}");
        for (i, sent) in end[w].iter().enumerate() {
            let here = get(&a, &own_name(w, i + 1)) == i + 1;
            assert_eq!(here, i < n, "a hole in what writer {w} sent");
            match sent.acked {
                Some(seq) if here => there = there.max(seq),
                Some(seq) => gone = gone.min(seq),
                None => {}
            }
        }
        let durable = known[w].iter().rposition(|s| s.durable);
        assert!(n >= durable.map_or(0, |i| i + 1), "durable and gone");
    }
    assert!(there < gone, "{there} is there and {gone} before it is not");
    db.abandon();
}

/// Accepts a panic of the fuse, and that of a leader of a group with a member that panicked. Every
/// other panic is a bug.
fn expected(world: &World, panic: Box<dyn Any + Send>) {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_default();
    let ours = text == "the fuse" || text.contains("a writer of the group");
    assert!(world.boom && ours, "an unplanned panic: {text}");
}

fn model(totals: &Counts) {
    let disk = SimFs::new(SimOptions::default());
    let env = environment(&disk, below(1 << 32));
    let fuse = Arc::new(PanickingComparator(AtomicBool::new(false)));
    // Large batches are inserted side by side; with a small buffer they also seal memtables.
    let load = if percent(50) { 40 << 10 } else { 30 };
    let (buffer, slow) = ([64 << 10, 8 << 20][below(2) as usize], percent(25));
    let boom = load > 30 && percent(20);
    let options = options(&fuse, buffer, slow);
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let fused = db.create_family("fused", options.family("fused").clone());
    let families = [db.default_family(), fused.unwrap()];
    for n in 0..if slow { 2 } else { 0 } {
        db.put(&families[0], &[n], b"", &WriteOptions::default())
            .unwrap();
        db.flush().unwrap();
    }
    fuse.0.store(boom, SeqCst);
    let world = Arc::new(World {
        db,
        families,
        journal: Mutex::default(),
        load,
        boom,
        owed: AtomicUsize::new(0),
        cut: Mutex::default(),
    });
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let world = world.clone();
        threads.push(shuttle::thread::spawn(move || {
            for i in 0..2 + below(2) {
                let boom = world.boom && writer == 1 && i == 1;
                let done = catch_unwind(AssertUnwindSafe(|| {
                    if percent(20) {
                        write_batches(&world);
                    }
                    send(&world, writer, boom)
                }));
                match done {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(panic) => {
                        expected(&world, panic);
                        return;
                    }
                }
            }
        }));
    }
    let (reader, onto) = (world.clone(), disk.clone());
    threads.push(shuttle::thread::spawn(move || {
        let mut seen = [0; WRITERS];
        let cut = below(4);
        for i in 0..3 {
            look(&reader, &mut seen);
            if cut == i {
                cut_the_power(&reader, &onto);
            }
            yield_now();
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    while world.owed.load(SeqCst) > 0 {
        yield_now();
    }
    count(totals, 0, shuttle::current::context_switches() as u64);
    finish(&world, &env, options, &fuse, totals);
}

/// Ends a run, on one thread: every acknowledged batch exists in this life and in the next, and a
/// power cut took no more than it may.
fn finish(world: &World, env: &Env, options: Options, fuse: &PanickingComparator, totals: &Counts) {
    let db = world.db.clone();
    look(world, &mut [0; WRITERS]);
    fuse.0.store(false, SeqCst);
    let stalls = db.stats().stall_us;
    let held = stalls.iter().any(|(_, us)| *us > 0);
    count(totals, 1, u64::from(held));
    let end = world.journal.lock().unwrap().clone();
    let answered = end.iter().flatten().filter(|s| s.acked.is_some()).count();
    if answered < end.iter().map(Vec::len).sum() {
        assert!(world.boom, "only the fuse refuses a batch");
        count(totals, 2, 1);
        db.abandon();
    } else {
        db.close().expect("closes");
    }
    let again = Db::open(env, "db", options.clone()).expect("opens again");
    for (w, sent) in end.iter().enumerate() {
        let acked = sent.iter().rposition(|s| s.acked.is_some());
        let read = again.get(&again.default_family(), &name(w), &ReadOptions::default());
        let n = number(read.unwrap());
        let all = acked.map_or(0, |i| i + 1)..=sent.len();
        assert!(all.contains(&n), "writer {w} left {n} and not {all:?}");
    }
    again.abandon();
    if let Some((disk, known)) = world.cut.lock().unwrap().take() {
        judge_cut(&disk, &known, &end, options);
        count(totals, 3, 1);
    }
}

#[test]
fn the_commit_queue_is_correct_in_every_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..60 * campaign::scale()) {
        let _repeat = repeat!(
            the_commit_queue_is_correct_in_every_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, held, panics, cuts] = std::array::from_fn(|i| counted(&totals, i));
    basalt_sim::campaign!(
        "commit_schedules={schedules} steps={steps} held_back={held} panics={panics} cuts={cuts}"
    );
    if campaign::case().is_none() {
        assert!(held * 50 > schedules, "few groups were held back: {held}");
        assert!(panics * 50 > schedules, "few members panicked: {panics}");
        assert!(cuts * 4 > schedules, "few power cuts: {cuts}");
    }
}
