//! Unit tests of `relief`.

use super::*;
use crate::budget::{MemoryKind, Reservation};

const MIB: u64 = 1 << 20;

/// A holder that records the requests and keeps the promises.
struct Store {
    holder: Holder,
    booked: Reservation,
    promised: Arc<Mutex<Vec<Promise>>>,
}

fn store(ledger: &MemoryLedger, relief: &Relief, bytes: u64) -> Store {
    let promised: Arc<Mutex<Vec<Promise>>> = Arc::default();
    let kept = promised.clone();
    let holder = relief.register(8 * MIB, move |p| kept.lock().push(p));
    holder.set(bytes);
    Store {
        holder,
        booked: ledger.reserve(MemoryKind::Memtable, bytes),
        promised,
    }
}

fn asked(stores: &[Store]) -> Vec<usize> {
    stores.iter().map(|s| s.promised.lock().len()).collect()
}

#[test]
fn the_largest_memory_holder_is_asked_once() {
    let ledger = MemoryLedger::new(16 * MIB);
    let relief = Relief::new(ledger.clone());
    let mut stores: Vec<Store> = [4, 7, 5]
        .iter()
        .map(|n| store(&ledger, &relief, n * MIB))
        .collect();
    assert!(relief.ask(MIB));
    assert_eq!(asked(&stores), [0, 1, 0]);
    assert_eq!(relief.coming(), 7 * MIB);
    // The promised bytes are enough.
    assert!(relief.ask(7 * MIB));
    assert_eq!(asked(&stores), [0, 1, 0]);
    // The promised bytes are not enough, and the first holder has grown meanwhile. It is not
    // asked twice.
    stores[1].holder.set(9 * MIB);
    assert!(relief.ask(8 * MIB));
    assert_eq!(asked(&stores), [0, 1, 1]);
    // The memory is back.
    stores[1].booked.resize(0);
    stores[1].holder.begin_anew();
    stores[1].promised.lock().clear();
    assert_eq!(relief.coming(), 5 * MIB);
    assert_eq!(ledger.free(), 7 * MIB);
}

#[test]
fn holders_of_little_memory_are_not_asked() {
    let ledger = MemoryLedger::new(16 * MIB);
    let relief = Relief::new(ledger.clone());
    let stores: Vec<Store> = (0..4).map(|_| store(&ledger, &relief, MIB)).collect();
    let _reader = ledger.reserve(MemoryKind::Pinned, 12 * MIB);
    assert!(!relief.ask(MIB), "an even share is 4 MiB, half of it 2");
    assert_eq!(asked(&stores), [0; 4]);
    stores[2].holder.set(2 * MIB);
    assert!(relief.ask(MIB));
    assert_eq!(asked(&stores), [0, 0, 1, 0]);
}

#[test]
fn an_unregistered_holder_is_not_asked() {
    let ledger = MemoryLedger::new(16 * MIB);
    let relief = Relief::new(ledger.clone());
    let (gone, stays) = (
        store(&ledger, &relief, 10 * MIB),
        store(&ledger, &relief, 9 * MIB),
    );
    let promised = gone.promised.clone();
    drop(gone.holder);
    assert!(relief.ask(MIB));
    assert_eq!(promised.lock().len(), 0);
    assert_eq!(stays.promised.lock().len(), 1);
}

#[test]
fn a_holder_is_asked_before_memory_runs_out() {
    let ledger = MemoryLedger::new(16 * MIB);
    let relief = Relief::new(ledger.clone());
    let mut stores = vec![store(&ledger, &relief, 13 * MIB)];
    relief.look_ahead();
    assert_eq!(asked(&stores), [0]);
    stores.push(store(&ledger, &relief, 3 * MIB / 2));
    relief.look_ahead();
    assert_eq!(asked(&stores), [1, 0]);
}

/// With the largest budget, the sum of free and promised bytes overflowed.
#[test]
fn the_largest_budget_is_no_overflow() {
    let ledger = MemoryLedger::new(u64::MAX);
    let relief = Relief::new(ledger.clone());
    let stores = [store(&ledger, &relief, 8 * MIB)];
    let _promise = relief.promise(9 * MIB);
    relief.look_ahead();
    assert!(relief.ask(MIB), "promised bytes are outstanding");
    assert_eq!(asked(&stores), [0]);
}
