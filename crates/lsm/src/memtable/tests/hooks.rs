//! Interleavings of readers and writers: hooks at the points of a split where other threads may
//! look, and at the points of a read where a writer may overtake.
//!
//! A thread may set a hook for such a point. The hook runs on the same thread, so that a test can
//! produce every interleaving of one reader and one writer. Without a hook the points yield the
//! processor.

use super::*;
use std::cell::{Cell, RefCell};

type Hook = Box<dyn FnMut()>;

thread_local! {
    static IN_SPLIT: RefCell<Option<Hook>> = const { RefCell::new(None) };
    static IN_READ: RefCell<Option<Hook>> = const { RefCell::new(None) };
    static TURN: Cell<u32> = const { Cell::new(0) };
}

fn call(hook: &'static std::thread::LocalKey<RefCell<Option<Hook>>>) -> bool {
    // The hook is taken out while it runs, because it passes the same points.
    let Some(mut run) = hook.with_borrow_mut(Option::take) else {
        return false;
    };
    run();
    hook.set(Some(run));
    true
}

pub(in crate::memtable) fn split() {
    if !call(&IN_SPLIT) {
        std::thread::yield_now();
    }
}

pub(in crate::memtable) fn read() {
    if !call(&IN_READ) {
        TURN.set(
            TURN.get()
                .wrapping_mul(1_664_525)
                .wrapping_add(1_013_904_223),
        );
        if TURN.get() >> 28 == 0 {
            std::thread::yield_now();
        }
    }
}

fn key(n: u64) -> [u8; 12] {
    let mut k = *b"key-........";
    k[4..].copy_from_slice(&n.to_be_bytes());
    k
}

fn number(internal: &[u8]) -> u64 {
    u64::from_be_bytes(internal[4..12].try_into().unwrap())
}

fn put(mem: &MemTable, n: u64) {
    mem.insert(&key(n), n + 1, Kind::Put, &stamped(n, 9));
}

/// Checks that all of `have` (ascending) is found in every way.
fn check_all(mem: &Arc<MemTable>, have: &[u64]) {
    let mut it = mem.iter();
    it.seek_to_first().unwrap();
    for want in have {
        // The cursor may also see the entry that is being inserted.
        while number(it.key()) < *want {
            it.next().unwrap();
        }
        assert_eq!(number(it.key()), *want, "forward");
    }
    it.seek_to_last().unwrap();
    for want in have.iter().rev() {
        while number(it.key()) > *want {
            it.prev().unwrap();
        }
        assert_eq!(number(it.key()), *want, "backward");
    }
    for (i, n) in have.iter().enumerate().step_by(3) {
        assert_eq!(mem.get(&key(*n), MAX_SEQ).unwrap().seq, n + 1);
        it.seek(&internal_key(&key(n + 1), seek_trailer(MAX_SEQ)))
            .unwrap();
        match have.get(i + 1) {
            Some(next) => assert!(number(it.key()) <= *next && number(it.key()) > *n),
            None => assert!(!it.valid() || number(it.key()) > *n),
        }
        it.seek_for_prev(&internal_key(&key(*n), 0)).unwrap();
        assert_eq!(number(it.key()), *n, "at or before");
    }
}

/// At every step of every split a reader finds all entries inserted before, in order.
#[test]
fn small_readers_are_correct_at_every_step_of_a_split() {
    let inserts = if cfg!(miri) { 60 } else { 700 };
    for (seed, way) in [(1, "random"), (2, "ascending"), (3, "descending")] {
        let mem = MemTable::new(Cmp::Bytewise);
        let have = Arc::new(parking_lot::Mutex::new(std::collections::BTreeSet::new()));
        let (seen, looks) = ((mem.clone(), have.clone()), Arc::new(AtomicUsize::new(0)));
        let count = looks.clone();
        IN_SPLIT.set(Some(Box::new(move || {
            let now: Vec<u64> = seen.1.lock().iter().copied().collect();
            check_all(&seen.0, &now);
            count.fetch_add(1, SeqCst);
        })));
        let r = Random::from_seed(seed);
        for i in 0..inserts {
            let n = match way {
                "random" => r.below(1 << 20) * 1000 + i,
                "ascending" => i * 3,
                _ => (inserts - i) * 3,
            };
            put(&mem, n);
            have.lock().insert(n);
        }
        IN_SPLIT.set(None);
        assert!(
            looks.load(SeqCst) as u64 > inserts / 15,
            "splits were looked into"
        );
    }
}

/// An overtaken reader finds the entries that existed when it began. It is overtaken at any of its
/// points, by one insert or by so many that all nodes above it split.
#[test]
fn small_readers_are_correct_when_inserts_overtake_them() {
    let (base, steps) = if cfg!(miri) { (40, 5) } else { (400, 25) };
    let mut overtaken = 0;
    // Under an interpreter, a few of the cases are enough.
    let (bursts, points) = if cfg!(miri) {
        (&[30u64][..], 5)
    } else {
        (&[1, 9, 30, 600][..], 1)
    };
    for (burst, at) in bursts
        .iter()
        .flat_map(|b| (0..12).step_by(points).map(move |at| (*b, at)))
    {
        for target in (0..base).step_by(base as usize / steps) {
            for what in 0..4 {
                let mem = MemTable::new(Cmp::Bytewise);
                (0..base).for_each(|n| put(&mem, n * 1000));
                let (other, done) = (mem.clone(), Arc::new(AtomicUsize::new(0)));
                let (finished, mut left) = (done.clone(), at);
                IN_READ.set(Some(Box::new(move || {
                    if left == 0 {
                        // The new keys lie on both sides of the target, nearest last.
                        for i in (1..=burst).rev() {
                            put(&other, target * 1000 + i);
                            if i < 400 {
                                let far = base * 1000 * (i % 2);
                                put(&other, target * 1000 + 1000 - i + far);
                            }
                        }
                        finished.store(1, SeqCst);
                    }
                    left -= 1;
                })));
                let n = target * 1000;
                let mut it = mem.iter();
                match what {
                    0 => assert_eq!(mem.get(&key(n), MAX_SEQ).expect("it is there").seq, n + 1),
                    1 => {
                        it.seek(&internal_key(&key(n), seek_trailer(MAX_SEQ)))
                            .unwrap();
                        assert_eq!(number(it.key()), n);
                    }
                    2 => {
                        it.seek_for_prev(&internal_key(&key(n), 0)).unwrap();
                        assert_eq!(number(it.key()), n);
                    }
                    _ => {
                        // The cursor walks from before the first entry, over a leaf's end and back.
                        it.seek_to_first().unwrap();
                        for want in 0..=target {
                            while number(it.key()) < want * 1000 {
                                it.next().unwrap();
                            }
                            assert_eq!(number(it.key()), want * 1000);
                        }
                        it.seek_to_last().unwrap();
                        for want in (target..base).rev() {
                            while number(it.key()) > want * 1000 {
                                it.prev().unwrap();
                            }
                            assert_eq!(number(it.key()), want * 1000);
                        }
                    }
                }
                IN_READ.set(None);
                overtaken += done.load(SeqCst);
            }
        }
    }
    assert!(
        overtaken > 300 || cfg!(miri),
        "{overtaken} readers were overtaken"
    );
}
