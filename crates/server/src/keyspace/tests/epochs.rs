//! Epochs: their dependencies, and their writes after a failure or a success.

use super::*;

#[test]
fn a_reply_waits_for_the_epochs_that_it_read() {
    let mut w = World::new();
    w.store.hold(true);
    let first = w.put("a", "1");
    assert_ne!(first, 0);
    assert_eq!(w.get("a"), (Some("1".into()), first), "its own epoch");
    assert_eq!(
        w.get("b"),
        (None, 0),
        "a key without a write depends on nothing"
    );
    assert!(w.submit());
    let second = w.put("b", "2");
    assert_eq!(
        second & first,
        0,
        "a blind write depends on its own epoch only"
    );
    assert!(w.submit(), "and is not held back");
    w.store.release(0, Ok(()));
    assert_eq!(w.complete().len(), 1);
    assert_eq!(
        w.get("a"),
        (Some("1".into()), 0),
        "visible in the store now"
    );
    assert_eq!(w.get("b"), (Some("2".into()), second));
    w.store.release(0, Ok(()));
    w.complete();
    assert!(w.keys.is_drained());
    assert!(w.keys.overlay.is_empty());
}

#[test]
fn writes_computed_from_a_failed_epoch_are_never_submitted() {
    let mut w = World::new();
    w.store.hold(true);
    let first = w.put("n", "1");
    assert!(w.submit());
    let (_, second) = w.command(|k| {
        let n = k.get(b"n").unwrap().unwrap();
        assert_eq!(&n.data[..], b"1");
        k.put(b"n", Bytes::from_static(b"2"), None);
    });
    assert_eq!(second & first, first);
    assert!(!w.submit(), "it waits for what it read");
    w.store.release(0, Err(io()));
    let ended = w.complete();
    assert_eq!(ended.len(), 2);
    assert!(ended.iter().all(|e| e.result.is_err()));
    assert_eq!(
        ended.iter().fold(0, |set, e| set | 1 << e.slot),
        first | second
    );
    assert_eq!(w.get("n"), (None, 0));
    assert!(w.keys.is_drained());
    assert!(w.store.0.lock().entries.is_empty());
}

#[test]
fn a_failed_epoch_is_undone_and_independent_ones_survive() {
    let mut w = World::new();
    w.put("a", "old");
    assert!(w.submit());
    w.complete();
    w.store.hold(true);
    w.put("a", "1");
    w.submit();
    w.put("a", "2");
    w.submit();
    w.store.release(1, Err(io()));
    w.complete();
    assert_eq!(w.get("a").0.as_deref(), Some("1"), "the version below it");
    w.store.release(0, Err(io()));
    w.complete();
    assert_eq!(w.get("a"), (Some("old".into()), 0));
}

/// Regression test: `SET n 5` and `SET n 100` were two epochs in flight. The engine committed them
/// in this order and ran the callback of the second first. The overlay then held only the 5, though
/// 100 was stored and acknowledged: GET answered 5, and INCR stored 6, so that the acknowledged 100
/// was lost.
#[test]
fn a_later_epoch_that_completes_first_stays_visible() {
    let mut w = World::new();
    w.store.hold(true);
    let first = w.put("n", "5");
    w.put("other", "1");
    assert!(w.submit());
    w.put("n", "100");
    assert!(w.submit());
    w.store.decide(Ok(()));
    w.store.decide(Ok(()));
    w.store.call_back(1);
    assert_eq!(w.complete().len(), 1);
    assert_eq!(w.get("n"), (Some("100".into()), 0), "acknowledged");
    assert_eq!(
        w.get("other"),
        (Some("1".into()), first),
        "still on its way"
    );
    assert_eq!(w.scan(), ["n", "other"]);
    // INCR computes from 100, and does not wait for another epoch.
    let (_, next) = w.command(|k| {
        let n = k.get(b"n").unwrap().unwrap();
        let n: u64 = std::str::from_utf8(&n.data).unwrap().parse().unwrap();
        k.put(b"n", Bytes::from((n + 1).to_string()), None);
    });
    assert!(w.submit());
    w.store.call_back(0);
    assert_eq!(w.complete().len(), 1);
    assert_eq!(w.get("n"), (Some("101".into()), next));
    w.store.decide(Ok(()));
    w.store.call_back(0);
    w.complete();
    assert_eq!(w.get("n"), (Some("101".into()), 0));
    assert!(w.keys.is_drained());
    assert!(w.keys.overlay.is_empty());
    assert_eq!(w.keys.pending_bytes(), 0);
}

/// Regression test: like the test above with a delete. The deleted key came back while the earlier
/// epoch was in flight, for GET, SCAN and the walks of DBSIZE and KEYS. And an earlier epoch that
/// failed took nothing from the later one.
#[test]
fn a_deleted_key_stays_deleted_in_any_order_of_completion() {
    for failed in [false, true] {
        let mut w = World::new();
        w.store.hold(true);
        w.put("k", "old");
        assert!(w.submit());
        w.command(|k| k.delete(b"k"));
        assert!(w.submit());
        w.store.decide(if failed { Err(io()) } else { Ok(()) });
        w.store.decide(Ok(()));
        w.store.call_back(1);
        w.complete();
        assert_eq!(w.get("k"), (None, 0));
        assert!(w.scan().is_empty());
        let capture = w.command(|k| k.capture(b"")).0;
        capture
            .scan(&mut |_, _, _| panic!("a deleted key"))
            .unwrap();
        w.store.call_back(0);
        w.complete();
        assert_eq!(w.get("k"), (None, 0));
        assert!(w.keys.is_drained());
        assert_eq!(w.keys.pending_bytes(), 0);
    }
}

#[test]
fn flushall_is_one_synced_write_that_is_undone_if_it_fails() {
    let mut w = World::new();
    for i in 0..100 {
        w.put(&format!("k{i:02}"), "v");
    }
    w.submit();
    w.complete();
    w.store.hold(true);
    let (r, flush) = w.command(Keyspace::flush);
    r.unwrap();
    assert_eq!(
        w.get("k00"),
        (None, flush),
        "what is seen after depends on it"
    );
    assert!(w.submit());
    assert_eq!(w.store.0.lock().submissions.last(), Some(&(1, true)));
    let after = w.put("k00", "new");
    assert_eq!(after & flush, flush);
    assert!(!w.submit(), "nothing passes a flush");
    assert_eq!(w.scan(), ["k00"]);
    w.store.release(0, Err(io()));
    assert_eq!(w.complete().len(), 2);
    assert_eq!(w.scan().len(), 100);
    assert_eq!(w.get("k00"), (Some("v".into()), 0));
    w.store.hold(false);
    w.command(Keyspace::flush).0.unwrap();
    w.put("x", "1");
    w.command(Keyspace::flush).0.unwrap();
    w.put("y", "1");
    assert!(w.submit());
    w.complete();
    assert_eq!(w.scan(), ["y"]);
    assert_eq!(w.store.0.lock().retired, 2);
    w.store.reclaim().unwrap();
    assert_eq!(
        w.store.0.lock().entries.len(),
        1,
        "the rest is gone for good"
    );
}

/// If a generation is retired before the record of its flush is durable, a compaction drops its
/// keys, and a crash or a failed commit brings the flush back without them. So nothing is retired
/// when FLUSHALL runs, when its epoch is submitted, when earlier epochs complete, or when it fails.
#[test]
fn a_generation_is_retired_after_its_flush_is_durable() {
    let mut w = World::new();
    w.put("old", "v");
    assert!(w.submit());
    w.complete();
    w.store.hold(true);
    let retired = |w: &World| w.store.0.lock().retired;
    w.put("earlier", "v");
    assert!(w.submit());
    w.command(Keyspace::flush).0.unwrap();
    assert_eq!(retired(&w), 0, "it runs");
    assert!(w.submit());
    assert_eq!(retired(&w), 0, "it is submitted");
    w.command(Keyspace::flush).0.unwrap();
    assert_eq!(retired(&w), 0, "a second one depends on it");
    w.store.decide(Ok(()));
    w.store.call_back(0);
    w.complete();
    assert_eq!(retired(&w), 0, "an earlier epoch has completed");
    w.store.decide(Err(io()));
    assert_eq!(retired(&w), 0);
    w.store.call_back(0);
    assert_eq!(w.complete().len(), 2);
    assert_eq!(retired(&w), 0, "both have failed");
    w.store.reclaim().unwrap();
    assert_eq!(w.scan(), ["earlier", "old"], "nothing was lost");
    // There are two flushes, and the second is in flight when the first is durable.
    w.command(Keyspace::flush).0.unwrap();
    assert!(w.submit());
    w.command(Keyspace::flush).0.unwrap();
    w.put("new", "v");
    w.store.decide(Ok(()));
    w.store.call_back(0);
    w.complete();
    assert_eq!(retired(&w), 1);
    assert!(w.submit());
    assert_eq!(retired(&w), 1, "the second is submitted");
    assert!(w.store.0.lock().submissions.last().unwrap().1, "synced");
    w.store.decide(Ok(()));
    w.store.call_back(0);
    w.complete();
    assert_eq!(retired(&w), 2);
    assert_eq!(w.scan(), ["new"]);
}

/// Regression test: eight epochs of 32 MiB each, with values of 512 MiB at their ends, could wait
/// for a slow disk at the same time.
#[test]
fn writes_in_flight_are_bounded_over_all_epochs() {
    const VALUE: usize = 10_000;
    let store = MemoryStore::default();
    store.hold(true);
    let limits = EpochLimits {
        pending_bytes: 100_000,
        ..EpochLimits::default()
    };
    let mut w = World::with(store, limits);
    let mut written = 0;
    while !w.keys.is_full() {
        w.put(&format!("k{written}"), &"v".repeat(VALUE));
        w.submit();
        written += 1;
        assert!(written < 100, "never full");
    }
    assert!(written >= 9);
    assert!(w.keys.pending_bytes() < 100_000 + 2 * VALUE);
    // Writes in flight count in every epoch. Room comes back when an epoch has ended, with success
    // or failure.
    let most = w.keys.pending_bytes();
    w.store.release(0, Err(io()));
    w.complete();
    assert!(!w.keys.is_full());
    assert!(w.keys.pending_bytes() < most);
    w.put("huge", &"v".repeat(1_000_000));
    assert!(w.keys.is_full(), "one command fits whatever its length");
    w.store.hold(false);
    while w.store.held() > 0 {
        w.store.release(0, Ok(()));
        w.complete();
        w.submit();
    }
    w.complete();
    assert!(w.keys.is_drained());
    assert_eq!(w.keys.pending_bytes(), 0);
    assert!(w.keys.pending_bytes_peak() >= 1_000_000);
}
