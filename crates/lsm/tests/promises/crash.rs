//! Crash enumeration: the power goes after *every* call of a history that changes the disk, under
//! several survivor policies. The store is opened on the remaining disk and must keep P1 to P4, P7
//! and P8. A tenth of the states lose power again inside the recovery, and a hundredth once more
//! inside that one.

use crate::agreement::{ReadCounters, reads_agree};
use crate::history::{
    End, Item, LARGE_BUFFER, Op, Shape, What, collecting, history, options, overwrite_history,
};
use crate::model::{Model, difference, digest, visible};
use crate::rng::{Rng, numbers_of, on_two_threads, scale};
use crate::runner::{
    Collected, Conditional, DIR, Progress, Runner, START_MS, environment, read_all, sim_disk,
    verify_closed,
};
use basalt_fs::FileSystem;
use basalt_lsm::{Db, ReadOptions, WriteOptions};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimSnapshot, repeat};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

/// A moment of a history at which the power may go.
struct CrashPoint {
    disk: SimSnapshot,
    /// Number of commits that must exist.
    durable: usize,
    /// Number of commits that may exist.
    handed_in: usize,
    wall_ms: u64,
    /// True while a garbage collection runs.
    collecting: bool,
}

/// A complete history, and all its moments.
struct Recorded {
    crash_points: Vec<CrashPoint>,
    model: Model,
    /// Number of times that the store gave back its logs because it was idle.
    releases: u64,
    /// Number of operands written.
    appended: u64,
    /// Number of ranges deleted.
    ranges_deleted: u64,
    /// Number of compactions cancelled on their way.
    cancelled: u64,
    /// Counts of writes with preconditions.
    conditional: Conditional,
    /// Counts of blob files.
    collected: Collected,
}

/// One crash state: a moment, the policy of its power cut, and the cuts inside the recoveries after
/// it, each at the n-th change.
#[derive(Clone, Debug)]
struct State {
    seed: u64,
    crash_point: u64,
    policy: u64,
    rng: u64,
    deeper: Vec<(u64, u64, u64)>,
}

impl State {
    fn line(&self) -> String {
        let mut n = vec![self.seed, self.crash_point, self.policy, self.rng];
        for (at, policy, rng) in &self.deeper {
            n.extend([*at, *policy, *rng]);
        }
        let words: Vec<String> = n.iter().map(|n| n.to_string()).collect();
        format!("BASALT_CRASH={}", words.join(","))
    }

    fn parse(n: &[u64]) -> State {
        assert!(
            n.len() >= 4 && (n.len() - 4).is_multiple_of(3),
            "as it was printed"
        );
        State {
            seed: n[0],
            crash_point: n[1],
            policy: n[2],
            rng: n[3],
            deeper: n[4..].chunks(3).map(|d| (d[0], d[1], d[2])).collect(),
        }
    }
}

#[derive(Default)]
struct Tally {
    states: u64,
    /// Number of idle stores that gave back their logs, each crashed at every change that this
    /// makes.
    releases: u64,
    /// Number of operands that the histories wrote.
    appended: u64,
    /// Number of ranges that the histories deleted.
    ranges_deleted: u64,
    /// Number of compactions that the histories cancelled.
    cancelled: u64,
    /// Counts of writes with preconditions in the histories.
    conditional: Conditional,
    /// Counts of blob files, and of states in which a garbage collection ran.
    collected: Collected,
    collecting: u64,
    agreed: ReadCounters,
    depth2: u64,
    depth3: u64,
    calls: BTreeMap<&'static str, u64>,
    policies: BTreeMap<CrashPolicy, u64>,
    files: BTreeMap<&'static str, u64>,
    /// Number of states in which something unsynced was cut.
    cut: u64,
    /// Number of states that show a commit that was not acknowledged as durable.
    more: u64,
}

const SHAPE: Shape = Shape {
    ops: 90,
    keys: 30,
    coarse_time: false,
    no_tickets: false,
};

/// Returns the kind of file that a call was about.
fn file_kind(path: &str) -> &'static str {
    let last = path.rsplit(['/', ' ']).next().unwrap_or(path);
    match last {
        n if n.ends_with(".log") => "log",
        n if n.ends_with(".tbl") => "table",
        n if n.ends_with(".blob") => "blob",
        n if n.ends_with(".index") => "index",
        n if n.starts_with("MANIFEST") => "manifest",
        n if n.starts_with("CURRENT") => "current",
        "LOCK" => "lock",
        _ => "directory",
    }
}

fn record(seed: u64) -> Recorded {
    let unit = if seed % 4 == 3 { 4096 } else { 512 };
    let disk = sim_disk(seed, unit, 1 << 40);
    let crash_points = Arc::new(Mutex::new(Vec::new()));
    // The runner makes its own progress when it opens the store; the observer must exist before.
    let progress = Arc::new(Progress::default());
    progress.wall_ms.store(START_MS, SeqCst);
    let (sink, seen) = (crash_points.clone(), progress.clone());
    disk.on_mutation(move |snapshot| {
        sink.lock().expect("one thread").push(CrashPoint {
            disk: snapshot,
            durable: seen.durable.load(SeqCst) as usize,
            handed_in: seen.handed_in.load(SeqCst) as usize,
            wall_ms: seen.wall_ms.load(SeqCst),
            collecting: seen.collects(),
        });
    });
    // Every twentieth history has a write buffer so large that logs grow as they fill.
    let large = seed % 20 == 6;
    // In every third history values are collected as often as they are written.
    let churns = seed % 3 == 1;
    let options_seed = match () {
        () if large => LARGE_BUFFER,
        () if churns => collecting(seed),
        () => seed,
    };
    let mut runner = Runner::watched(disk.clone(), seed, options_seed, progress);
    let mut ops = history(seed, SHAPE);
    if churns {
        ops.truncate(65);
        ops.retain(|op| !matches!(op, Op::Reopen { .. } | Op::DropFamily(_)));
        ops.extend(overwrite_history(seed, 8));
    }
    if large {
        ops.truncate(30);
        ops.extend((0..16).map(|n| Op::Write {
            items: vec![Item {
                family: 0,
                key: n,
                what: What::Put(25_000),
            }],
            sync: n % 4 == 0,
        }));
        ops.insert(40, Op::Step(9));
        ops.push(Op::Step(9));
    }
    for op in ops {
        // Other tests compare the reads of a history; here only calls that change the disk count.
        if !matches!(
            op,
            Op::Get { .. } | Op::MultiGet { .. } | Op::Scan { .. } | Op::CheckAll
        ) {
            runner.run(&op);
        }
    }
    if runner.db.is_some() {
        runner.wait_for_tickets();
        runner.end(End::Close);
    }
    let (model, releases) = (runner.model.clone(), runner.releases);
    let (appended, ranges_deleted) = (runner.appended, runner.ranges_deleted);
    let (cancelled, conditional) = (runner.cancelled, runner.conditional);
    runner.drop_process();
    let collected = runner.collected;
    drop(runner);
    disk.on_mutation(|_| ());
    let crash_points = std::mem::take(&mut *crash_points.lock().expect("one thread"));
    Recorded {
        crash_points,
        model,
        releases,
        appended,
        ranges_deleted,
        cancelled,
        conditional,
        collected,
    }
}

/// Opens the store, records its recovery if `watch` is set, and returns the contents that it shows.
fn recover(
    disk: &Arc<SimFs>,
    wall_ms: u64,
    rng: u64,
    watch: bool,
) -> (Db, u64, u64, Vec<SimSnapshot>) {
    if watch {
        disk.record_snapshots(1);
    }
    let fs: Arc<dyn FileSystem> = disk.clone();
    let (env, _) = environment(&fs, crate::rng::mix(rng), wall_ms);
    let db =
        Db::open(&env, DIR, options(rng % 7)).unwrap_or_else(|e| panic!("open after a crash: {e}"));
    let shown = read_all(&db).unwrap_or_else(|e| panic!("reading after a crash: {e}"));
    disk.record_snapshots(0);
    (
        db,
        digest(&shown),
        env.clock().wall_ms(),
        disk.take_snapshots(),
    )
}

/// Checks one state completely. Returns the number of commits that the store shows, and the counts
/// of reads in all ways.
fn check(recorded: &Recorded, state: &State) -> (usize, ReadCounters) {
    let _repeat = repeat!(
        a_power_cut_after_every_disk_change_keeps_the_promises,
        "{}",
        state.line()
    );
    let crash_point = &recorded.crash_points[state.crash_point as usize];
    let policy = CrashPolicy::ALL[state.policy as usize];
    let mut disk = crash_point.disk.crash(policy, state.rng);
    let mut first: Option<u64> = None;
    for (at, policy, rng) in &state.deeper {
        let (db, shown, wall, inside) = recover(
            &disk,
            crash_point.wall_ms,
            state.rng ^ (at << 33) ^ rng,
            true,
        );
        let first = *first.get_or_insert(shown);
        if wall == crash_point.wall_ms {
            assert_eq!(
                first, shown,
                "recovery after a crash in a recovery shows another state"
            );
        }
        db.abandon();
        if inside.is_empty() {
            break;
        }
        let snapshot = &inside[*at as usize % inside.len()];
        disk = snapshot.crash(CrashPolicy::ALL[*policy as usize], *rng);
    }

    let (db, shown, now, _) = recover(&disk, crash_point.wall_ms, state.rng ^ 1, false);
    // P1, P2, P4: the check finds the newest prefix that fits. The highest comes first, because two
    // prefixes may look alike.
    let marks = recorded.model.marks();
    let prefix = (crash_point.durable..=crash_point.handed_in.min(recorded.model.len()))
        .rev()
        .find(|&n| marks[n].digest(now) == shown);
    let Some(prefix) = prefix else {
        let shown = read_all(&db).expect("it was read before");
        let want = visible(&recorded.model.state_at(crash_point.durable), now);
        let other = (0..=recorded.model.len())
            .rev()
            .find(|&n| marks[n].digest(now) == digest(&shown));
        panic!(
            "crash {policy:?} at {:?}: no prefix of {} to {} commits (it is prefix {other:?} of all); beside the first:\n  {}",
            crash_point.disk,
            crash_point.durable,
            crash_point.handed_in,
            difference(&want, &shown)
        );
    };
    let agreed = match state.rng % 4 {
        1 => reads_agree(&db, (state.rng ^ 1) % 7),
        _ => ReadCounters::default(),
    };
    // P7: the store takes new writes, and opening it again shows the same contents and these
    // writes.
    let family = db.default_family();
    let env = db.env().clone();
    db.put(&family, b"after the crash", b"works", &WriteOptions::SYNC)
        .unwrap_or_else(|e| panic!("a write after a crash: {e}"));
    let value = db.get(&family, b"after the crash", &ReadOptions::default());
    assert_eq!(
        value.expect("a read after a crash").as_deref(),
        Some(&b"works"[..])
    );
    if state.rng.is_multiple_of(4) {
        db.delete(&family, b"after the crash", &WriteOptions::SYNC)
            .unwrap_or_else(|e| panic!("a delete after a crash: {e}"));
        db.abandon();
        let db = Db::open(&env, DIR, options(state.rng % 5))
            .unwrap_or_else(|e| panic!("the second open: {e}"));
        let again = read_all(&db).unwrap_or_else(|e| panic!("reading after the second open: {e}"));
        if env.clock().wall_ms() == now {
            assert_eq!(digest(&again), shown, "opening again shows another state");
        }
        db.close().unwrap_or_else(|e| panic!("close: {e}"));
    } else {
        db.close()
            .unwrap_or_else(|e| panic!("close after a crash: {e}"));
    }
    // P8, and every byte once more.
    verify_closed(&env);
    (prefix, agreed)
}

/// Crashes one history at every moment.
fn campaign(seed: u64, policies: u64) -> Tally {
    let recorded = record(seed);
    let mut tally = Tally {
        releases: recorded.releases,
        appended: recorded.appended,
        ranges_deleted: recorded.ranges_deleted,
        cancelled: recorded.cancelled,
        conditional: recorded.conditional,
        collected: recorded.collected,
        ..Tally::default()
    };
    let mut c = Rng::of(&[seed, 5]);
    let all = CrashPolicy::ALL.len() as u64;
    for i in 0..recorded.crash_points.len() as u64 {
        let crash_point = &recorded.crash_points[i as usize];
        *tally.calls.entry(crash_point.disk.call.name()).or_default() += 1;
        *tally
            .files
            .entry(file_kind(&crash_point.disk.path))
            .or_default() += 1;
        for p in 0..policies {
            let n = i * policies + p;
            let depth = match n % 100 {
                99 => 2,
                m if m % 10 == 9 => 1,
                _ => 0,
            };
            let state = State {
                seed,
                crash_point: i,
                // Each moment gets some other of the policies; a step of three is coprime to ten.
                policy: (i * policies + p * 3 + seed) % all,
                rng: c.below(1 << 32),
                deeper: (0..depth)
                    .map(|_| (c.below(1 << 16), c.below(all), c.below(1 << 32)))
                    .collect(),
            };
            let (prefix, agreed) = check(&recorded, &state);
            tally.agreed.add(agreed);
            tally.states += 1 + depth;
            tally.depth2 += u64::from(depth >= 1);
            tally.depth3 += u64::from(depth >= 2);
            tally.collecting += u64::from(crash_point.collecting);
            tally.cut += u64::from(prefix < crash_point.handed_in);
            tally.more += u64::from(prefix > crash_point.durable);
            *tally
                .policies
                .entry(CrashPolicy::ALL[state.policy as usize])
                .or_default() += 1;
        }
    }
    tally
}

/// Returns `n` times the scale. On LavaFS it is half of that: LavaFS has power cuts of its own
/// after each of its writes.
fn share(n: u64) -> u64 {
    let all = n * scale();
    match basalt_sim::is_on_lava() {
        true => all / 2,
        false => all,
    }
}

/// Returns the floor under a count that is at least `n` at a scale of 1.
fn floor(n: u64) -> u64 {
    match basalt_sim::is_on_lava() {
        true => scale().floor(n) / 2,
        false => scale().floor(n),
    }
}

#[test]
fn a_power_cut_after_every_disk_change_keeps_the_promises() {
    if let Some(numbers) = numbers_of("BASALT_CRASH") {
        if let [seed] = numbers[..] {
            campaign(seed, 4);
            return;
        }
        let state = State::parse(&numbers);
        let recorded = record(state.seed);
        check(&recorded, &state);
        return;
    }
    let (histories, policies) = (share(30), 4);
    let tallies = on_two_threads(histories, move |seed| {
        let _repeat = repeat!(
            a_power_cut_after_every_disk_change_keeps_the_promises,
            "BASALT_CRASH={seed}"
        );
        campaign(seed, policies)
    });
    let mut all = Tally::default();
    for t in tallies {
        all.states += t.states;
        all.releases += t.releases;
        all.appended += t.appended;
        all.ranges_deleted += t.ranges_deleted;
        all.cancelled += t.cancelled;
        all.conditional.add(t.conditional);
        all.collected.add(t.collected);
        all.collecting += t.collecting;
        all.agreed.add(t.agreed);
        all.depth2 += t.depth2;
        all.depth3 += t.depth3;
        all.cut += t.cut;
        all.more += t.more;
        t.calls
            .into_iter()
            .for_each(|(k, n)| *all.calls.entry(k).or_default() += n);
        t.files
            .into_iter()
            .for_each(|(k, n)| *all.files.entry(k).or_default() += n);
        t.policies
            .into_iter()
            .for_each(|(k, n)| *all.policies.entry(k).or_default() += n);
    }
    basalt_sim::campaign!(
        "crash_states={} depth2={} depth3={} idle_releases={} operands={} ranges_deleted={} cancelled={} {:?} {:?} while_collecting={} read_in_all_ways={} keys={} absent={} prefixes={} histories={histories} cut={} more={} sites={:?} files={:?} policies={:?}",
        all.states,
        all.depth2,
        all.depth3,
        all.releases,
        all.appended,
        all.ranges_deleted,
        all.cancelled,
        all.conditional,
        all.collected,
        all.collecting,
        all.agreed.stores,
        all.agreed.keys,
        all.agreed.absent,
        all.agreed.prefixes,
        all.cut,
        all.more,
        all.calls,
        all.files,
        all.policies
    );
    assert!(
        all.states >= floor(40_000),
        "only {} crash states",
        all.states
    );
    assert!(
        all.releases >= floor(50),
        "only {} idle stores gave back their logs",
        all.releases
    );
    assert!(all.appended >= floor(500), "only {} operands", all.appended);
    assert!(
        all.ranges_deleted >= floor(100),
        "only {} ranges deleted",
        all.ranges_deleted
    );
    assert!(
        all.agreed.stores >= all.states / 6,
        "only {} stores were read in all ways",
        all.agreed.stores
    );
    assert!(
        all.agreed.keys >= floor(100_000) && all.agreed.prefixes >= floor(10_000),
        "only {} keys and {} prefixes",
        all.agreed.keys,
        all.agreed.prefixes
    );
    assert!(
        all.cancelled >= floor(10),
        "only {} compactions cancelled on their way",
        all.cancelled
    );
    assert!(
        all.conditional.accepted >= floor(20) && all.conditional.refused >= floor(20),
        "only {:?}",
        all.conditional
    );
    let collected = all.collected;
    assert!(
        collected.collections >= floor(80)
            && collected.made >= floor(80)
            && collected.forgotten >= floor(60)
            && collected.relocated >= floor(100_000),
        "only {collected:?}"
    );
    assert!(
        all.collecting >= floor(2000),
        "only {} states in the middle of a garbage collection",
        all.collecting
    );
    assert!(
        all.depth2 >= all.states / 15,
        "only {} of depth 2",
        all.depth2
    );
    assert!(all.depth3 >= floor(100), "only {} of depth 3", all.depth3);
    // The engine makes all of these calls; a call without a crash is an untested promise.
    let made: BTreeSet<&str> = all.calls.keys().copied().collect();
    // The writes of a device have no names.
    let named = !basalt_sim::is_on_lava();
    for call in [
        OpKind::Create,
        OpKind::CreateLog,
        OpKind::CreateDir,
        OpKind::Rename,
        OpKind::Remove,
        OpKind::SyncMetadata,
        OpKind::Lock,
        OpKind::Append,
        OpKind::AlignToUnit,
        OpKind::SyncData,
        OpKind::SyncAll,
        OpKind::ExtendLog,
        OpKind::ReleaseRange,
    ] {
        let met = made.contains(call.name());
        assert!(met || !named, "no crash after {}", call.name());
    }
    for kind in [
        "log",
        "table",
        "blob",
        "index",
        "manifest",
        "current",
        "lock",
        "directory",
    ] {
        assert!(
            all.files.contains_key(kind) || !named,
            "no crash after a change of a {kind}"
        );
    }
    assert_eq!(
        all.policies.len(),
        CrashPolicy::ALL.len(),
        "a policy was never used"
    );
    // A disk that never loses anything would prove nothing, and neither would one that loses all.
    assert!(all.cut > all.states / 50 && all.more > all.states / 50);
}
