//! Tests of sweeps that meet keys whose values cannot be decoded, and of sweeps that fail. No such
//! key keeps the logs of other streams, and no log is deleted that such a key may have.

use super::live_streams::StreamWorld;
use super::*;
use crate::stream::sweep::sweep;
use basalt::env::thread::StopSignal;
use std::time::Duration;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Runs a sweep if one is due at a time. Returns true if it has ended without an error.
fn sweep_at(w: &mut StreamWorld, now: Duration) -> bool {
    w.keys.step_streams();
    if w.keys.next_sweep().is_none_or(|at| at > now) {
        assert!(w.keys.take_sweep(now).is_none());
        return false;
    }
    let job = w.keys.take_sweep(now).expect("it is due");
    let result = sweep(&*w.store, job, &StopSignal::default());
    let has_failed = result.error.is_some();
    assert_eq!(w.keys.take_swept(result, now), !has_failed);
    while w.keys.has_stream_steps() {
        w.keys.step_streams();
    }
    !has_failed
}

/// Gives a key in the store a value that no server can decode. Returns the value before.
fn damage(store: &MemoryStore, key: &str) -> Option<(Vec<u8>, Option<u64>)> {
    let stored = layout::encode_key(DATABASE, 0, key.as_bytes());
    let value = vec![DataType::Stream as u8, 0, 0];
    let mut s = store.0.lock();
    s.entries.insert(stored.to_vec(), (value, None))
}

fn repair(store: &MemoryStore, key: &str, value: Option<(Vec<u8>, Option<u64>)>) {
    let stored = layout::encode_key(DATABASE, 0, key.as_bytes()).to_vec();
    let mut s = store.0.lock();
    match value {
        Some(value) => s.entries.insert(stored, value),
        None => s.entries.remove(&stored),
    };
}

/// Returns the keys that are reported to the operator.
fn reported(w: &mut StreamWorld) -> Vec<String> {
    let name = |key: crate::stream::sweep::UndecodableKey| {
        let (_, _, name) = layout::decode_key(&key.stored_key).unwrap();
        String::from_utf8(name.to_vec()).unwrap()
    };
    w.keys.take_undecodable().into_iter().map(name).collect()
}

fn in_memory(keys: &[&str]) -> (StreamWorld, MemoryStore) {
    let store = MemoryStore::default();
    let mut w = StreamWorld::over(Arc::new(store.clone()));
    for key in keys {
        assert!(w.add(key));
    }
    w.commit();
    (w, store)
}

/// Regression test: a dropped stream whose key could not be decoded made every sweep fail. The
/// logs of all other dropped streams stayed, too.
#[test]
fn a_sweep_skips_a_key_that_cannot_be_decoded() {
    let (mut w, store) = in_memory(&["damaged", "other", "later"]);
    w.delete("damaged");
    w.delete("other");
    w.commit();
    damage(&store, "damaged");
    assert!(sweep_at(&mut w, seconds(10)));
    assert_eq!(w.logs().len(), 2);
    assert_eq!(reported(&mut w), ["damaged"]);
    assert_eq!(w.keys.live_stream_stats().undecodable, 1);
    // The key is tried again after 1, 2 and 4 seconds, and is not reported again.
    for due in [11, 13, 17] {
        assert!(!sweep_at(&mut w, seconds(due) - Duration::from_millis(1)));
        assert!(sweep_at(&mut w, seconds(due)));
        assert_eq!((w.logs().len(), reported(&mut w).len()), (2, 0));
    }
    // Other sweeps do not wait for this time.
    w.delete("later");
    w.commit();
    assert!(sweep_at(&mut w, seconds(18)));
    assert_eq!(w.logs().len(), 1);
    assert_eq!(w.keys.next_sweep(), Some(seconds(25)));
    repair(&store, "damaged", None);
    assert!(sweep_at(&mut w, seconds(25)));
    assert_eq!(w.logs().len(), 0);
    assert_eq!(w.keys.live_stream_stats().undecodable, 0);
    assert_eq!(w.keys.next_sweep(), None);
    // The pause grows up to an hour.
    assert!(w.add("new"));
    w.commit();
    w.delete("new");
    w.commit();
    damage(&store, "new");
    let mut now = seconds(100);
    for _ in 0..20 {
        assert!(sweep_at(&mut w, now));
        now = w.keys.next_sweep().expect("it is tried again");
    }
    assert!(!sweep_at(&mut w, now - Duration::from_millis(1)));
    assert!(sweep_at(&mut w, now));
    assert_eq!(w.keys.next_sweep(), Some(now + seconds(3600)));
}

/// Regression test: the same for the sweep of a start. This sweep deletes no log while a key cannot
/// be decoded, because the key may have the log. It finds the other streams nevertheless.
#[test]
fn the_sweep_of_a_start_skips_a_key_that_cannot_be_decoded() {
    let (mut w, store) = in_memory(&["damaged", "lost", "stays"]);
    w.delete("lost");
    w.commit();
    let before = damage(&store, "damaged");
    let mut w = StreamWorld::over(Arc::new(store.clone()));
    assert!(sweep_at(&mut w, seconds(10)));
    assert_eq!(w.logs().len(), 3);
    assert_eq!(reported(&mut w), ["damaged"]);
    // The stream that was found is swept when it loses its key.
    sweep_at(&mut w, seconds(10));
    w.delete("stays");
    w.commit();
    assert!(sweep_at(&mut w, seconds(10)));
    assert_eq!(
        (w.logs().len(), w.keys.next_sweep()),
        (2, Some(seconds(11)))
    );
    assert!(sweep_at(&mut w, seconds(11)));
    assert_eq!((w.logs().len(), reported(&mut w).len()), (2, 0));
    repair(&store, "damaged", before);
    assert!(!sweep_at(&mut w, seconds(12)));
    assert!(sweep_at(&mut w, seconds(13)));
    w.sweep();
    assert_eq!((w.logs().len(), w.logs()), (1, w.live()));
    let stats = w.keys.live_stream_stats();
    assert_eq!((stats.streams, stats.undecodable), (1, 0));
    assert_eq!(w.keys.next_sweep(), None);
}

/// A sweep that fails keeps its work, and reports a key that it has skipped when it succeeds.
#[test]
fn a_sweep_that_fails_keeps_its_work() {
    let (mut w, store) = in_memory(&["damaged", "other"]);
    w.delete("damaged");
    w.delete("other");
    w.commit();
    damage(&store, "damaged");
    store.0.lock().fail_syncs = true;
    for n in 0..3 {
        assert!(!sweep_at(&mut w, seconds(n)));
        assert_eq!((w.logs().len(), reported(&mut w).len()), (2, 0));
        assert_eq!(w.keys.next_sweep(), Some(Duration::ZERO));
    }
    store.0.lock().fail_syncs = false;
    assert!(sweep_at(&mut w, seconds(3)));
    assert_eq!(
        (w.logs().len(), reported(&mut w)),
        (1, vec!["damaged".to_string()])
    );
}
