//! Slow calls: each k-th call of a history takes long, for every k. No answer may change. With real
//! threads, each k-th call stands still until readers have had their answers: a reader that needs
//! no disk waits for no other thread's disk access.

use crate::history::{Shape, history, options};
use crate::rng::{numbers_of, on_two_threads, scale};
use crate::runner::{CurrentClock, DIR, Runner, sim_disk, verify_closed};
use basalt_env::Env;
use basalt_lsm::{Db, ReadOptions, WriteOptions};
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{FaultFs, OpKind, When, repeat};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

const SHAPE: Shape = Shape {
    ops: 60,
    keys: 30,
    coarse_time: true,
    no_tickets: true,
};

/// Longer than the engine's pauses between attempts, far shorter than the steps of a history's
/// coarse time.
const SLOW: Duration = Duration::from_millis(700);

/// Runs a history whose `k`-th call takes long; with `every`, every `k`-th call does. Returns the
/// number of calls and the digest of answers.
fn run(seed: u64, when: When) -> (u64, u64) {
    let manual_clock = CurrentClock::default();
    let slow = manual_clock.clone();
    let faulty = FaultFs::with_sleep(
        sim_disk(seed, 512, 1 << 40),
        seed,
        Box::new(move |d| {
            if let Some(manual_clock) = &*slow.lock().expect("never held in a panic") {
                manual_clock.advance(d);
            }
        }),
    );
    let slept = match when {
        When::Nth(_) => SLOW,
        // All slow calls together take less than half a step of coarse time.
        _ => Duration::from_micros(500),
    };
    let rule = faulty.inject(Fault {
        op: None,
        path: String::new(),
        when,
        kind: FaultKind::Latency(slept),
    });
    let mut r = Runner::on_a_slow_disk(faulty.clone(), seed, seed, manual_clock);
    for op in &history(11_000 + seed, SHAPE) {
        r.run(op);
    }
    r.finish();
    (faulty.seen(rule), r.answers)
}

#[test]
fn a_slow_call_changes_no_answer() {
    let one = |seed: u64, k: u64, want: Option<u64>| {
        let _repeat = repeat!(a_slow_call_changes_no_answer, "BASALT_SLOW={seed},{k}");
        let want = want.unwrap_or_else(|| run(seed, When::Nth(u64::MAX)).1);
        let when = if k == 0 { When::From(1) } else { When::Nth(k) };
        assert_eq!(run(seed, when).1, want, "other answers on a slower disk");
    };
    if let Some(n) = numbers_of("BASALT_SLOW") {
        one(n[0], n[1], None);
        return;
    }
    let runs = on_two_threads(8 * scale(), move |seed| {
        let _repeat = repeat!(a_slow_call_changes_no_answer, "BASALT_SLOW={seed},0");
        let (calls, want) = run(seed, When::Nth(u64::MAX));
        (0..=calls).for_each(|k| one(seed, k, Some(want)));
        calls + 1
    });
    let runs: u64 = runs.iter().sum();
    basalt_sim::campaign!("slow_runs={runs}");
    assert!(runs > scale().floor(2000), "only {runs} runs");
}

/// A gate where the slow call stands still, until the test opens it.
#[derive(Default)]
struct Gate {
    /// True if a call stands here, and true if the gate is open.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn stand(&self) {
        let mut s = self.state.lock().expect("never held in a panic");
        s.0 = true;
        self.changed.notify_all();
        while !s.1 {
            s = self.changed.wait(s).expect("never held in a panic");
        }
    }

    /// Waits until the call stands here. Returns false if the work ended without it.
    fn wait_for_it(&self, over: &AtomicU64) -> bool {
        let mut s = self.state.lock().expect("never held in a panic");
        while !s.0 && over.load(SeqCst) == 0 {
            s = self.changed.wait(s).expect("never held in a panic");
        }
        s.0
    }
}

/// Opens the gate when dropped, also when a check fails: a waiting thread must not wait for ever.
struct OpenGate<'a>(&'a Gate);

impl Drop for OpenGate<'_> {
    fn drop(&mut self) {
        self.0.state.lock().expect("never held in a panic").1 = true;
        self.0.changed.notify_all();
    }
}

const KEYS: u32 = 40;

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Reads everything that a reader can ask for. Every key must have one of the values that were ever
/// written, and none may be missing.
fn read_everything(db: &Db, wrote: u32) {
    let family = db.default_family();
    let snapshot = db.snapshot();
    let read = ReadOptions::default().snapshot(Some(snapshot));
    for n in 0..wrote.min(KEYS) {
        let v = db.get(&family, &key(n), &read).expect("a sound disk");
        assert!(v.is_some_and(|v| v[0] == n as u8), "key {n}");
    }
    let mut cursor = db.iter(&family, &read).expect("a sound disk");
    cursor.seek_to_first().expect("a sound disk");
    let mut n = 0u32;
    while cursor.valid() {
        assert_eq!(cursor.key(), key(n));
        n += 1;
        cursor.next().expect("a sound disk");
    }
    assert!(n >= wrote.min(KEYS), "a cursor leaves keys out");
    assert!(db.stats().last_seq >= u64::from(wrote));
}

/// Lets the `k`-th call of real work stand still while readers read. Returns the call's kind, or
/// `None` if there are fewer calls.
fn block_call(seed: u64, k: u64) -> Option<OpKind> {
    let _repeat = repeat!(
        readers_wait_for_no_call_of_a_writer,
        "BASALT_STILL={seed},{k}"
    );
    let gate = Arc::new(Gate::default());
    let stands = gate.clone();
    let faulty = FaultFs::with_sleep(
        sim_disk(seed, 512, 1 << 40),
        seed,
        Box::new(move |_| stands.stand()),
    );
    let env = Env::builder(faulty.clone())
        .threads(2)
        .seed(seed)
        .memory_bytes(16 << 20)
        .cache_bytes(4 << 20)
        .build();
    let db = Db::open(&env, DIR, options(seed)).expect("a sound disk");
    let before = faulty.fired();
    assert!(before.is_empty());
    faulty.inject(Fault {
        op: None,
        path: String::new(),
        when: When::Nth(k),
        kind: FaultKind::Latency(Duration::from_secs(1)),
    });
    let wrote = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicU64::new(0));
    let worker = {
        let (db, gate, wrote, over) = (db.clone(), gate.clone(), wrote.clone(), over.clone());
        basalt_env::thread::spawn("slow-writer", move || {
            let family = db.default_family();
            for n in 0..3 * KEYS {
                let value = vec![(n % KEYS) as u8; 200];
                let sync = WriteOptions::synced(n % 4 == 0);
                db.put(&family, &key(n % KEYS), &value, &sync)
                    .expect("a sound disk");
                wrote.store(u64::from(n) + 1, SeqCst);
                if n % 30 == 29 {
                    db.flush().expect("a sound disk");
                }
            }
            db.compact_range(&family, None, None).expect("a sound disk");
            db.wait_idle().expect("a sound disk");
            let _seen = gate.state.lock().expect("never held in a panic");
            over.store(1, SeqCst);
            gate.changed.notify_all();
        })
        .expect("a thread")
    };
    let let_go = OpenGate(&gate);
    let mut struck = None;
    if gate.wait_for_it(&over) {
        let (&(op, _), _) = faulty.fired().first_key_value().expect("it stands");
        struck = Some(op);
        // Other threads may wait for a disk read of a reader itself: the same block, the same table
        // being opened.
        if op.mutates() || op.syncs() {
            let (done, result) = mpsc::channel();
            let (db, wrote) = (db.clone(), wrote.load(SeqCst) as u32);
            let reader = basalt_env::thread::spawn("reader", move || {
                read_everything(&db, wrote);
                let _ = done.send(());
            })
            .expect("a thread");
            // The timeout is no measure of time: a reader that waits for the call waits for ever,
            // and this is where that ends.
            match result.recv_timeout(Duration::from_secs(100)) {
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("readers wait for {}", op.name()),
                _ => reader
                    .join()
                    .expect("the reader failed; its message is above"),
            }
        }
    }
    drop(let_go);
    worker
        .join()
        .expect("the writer failed; its message is above");
    read_everything(&db, 3 * KEYS);
    db.close().expect("a sound disk");
    verify_closed(&env);
    struck
}

#[test]
fn readers_wait_for_no_call_of_a_writer() {
    if let Some(n) = numbers_of("BASALT_STILL") {
        block_call(n[0], n[1]);
        return;
    }
    let struck = on_two_threads(2 * scale(), |seed| {
        let mut kinds = Vec::new();
        let mut k = 1;
        // Threads decide how many calls there are. The loop ends after several in a row find no
        // call.
        while let Some(op) = block_call(seed, k) {
            kinds.push(op);
            k += 1;
        }
        kinds
    });
    let runs: usize = struck.iter().map(Vec::len).sum();
    let mut kinds: Vec<OpKind> = struck.into_iter().flatten().collect();
    kinds.sort_unstable();
    kinds.dedup();
    basalt_sim::campaign!("standstills={runs} kinds={}", kinds.len());
    assert!(
        runs as u64 > scale().floor(100),
        "only {runs} calls stood still"
    );
    for op in [
        OpKind::Append,
        OpKind::Create,
        OpKind::CreateLog,
        OpKind::SyncData,
        OpKind::SyncMetadata,
    ] {
        assert!(kinds.contains(&op), "no {} stood still", op.name());
    }
}
