//! Layers: the writes of commands with very many names.

use super::*;

/// The writes of a command with many names take effect and leave in one step, in the order of the
/// epoch's other writes. The batch has them in the same order.
#[test]
fn a_layer_is_ordered_between_other_writes_of_its_epoch() {
    let pair = |k: &str, v: &str| (k.to_string(), v.to_string());
    for fails in [false, true] {
        let mut w = World::new();
        w.put("a", "stored");
        assert!(w.submit());
        w.complete();
        w.store.hold(true);
        w.put("a", "before");
        w.put("b", "before");
        let epoch = w.put_many(&[
            pair("a", "1"),
            pair("b", "2"),
            pair("c", "3"),
            pair("a", "4"),
        ]);
        w.put("b", "after");
        w.command(|k| k.delete(b"c"));
        w.put_many(&[pair("d", "5"), pair("c", "6")]);
        w.put("d", "after");
        for _ in 0..2 {
            for (key, value) in [("a", "4"), ("b", "after"), ("c", "6"), ("d", "after")] {
                assert_eq!(w.get(key), (Some(value.into()), epoch));
            }
            assert_eq!(w.scan(), ["a", "b", "c", "d"]);
            w.submit();
        }
        assert!(w.keys.pending_bytes() > 0);
        w.store.release(0, if fails { Err(io()) } else { Ok(()) });
        assert_eq!(w.complete().len(), 1);
        assert!(w.keys.is_drained() && w.keys.layers.is_empty());
        assert_eq!(w.keys.pending_bytes(), 0);
        assert_eq!(w.keys.take_discarded().len(), 2, "freed elsewhere");
        if fails {
            assert_eq!(w.get("a"), (Some("stored".into()), 0));
            assert_eq!(w.scan(), ["a"]);
            continue;
        }
        // The batch had the writes in their order.
        for (key, value) in [("a", "4"), ("b", "after"), ("c", "6"), ("d", "after")] {
            assert_eq!(w.get(key), (Some(value.into()), 0));
        }
    }
}

/// A layer leaves without a look at its keys. So an epoch that wrote one of these keys later must
/// end after the layer, even if its callback ran first. Otherwise its version would be gone, and
/// the layer's older value would show.
#[test]
fn an_epoch_after_a_layer_ends_after_it() {
    let pair = |k: &str, v: &str| (k.to_string(), v.to_string());
    let mut w = World::new();
    w.store.hold(true);
    w.put("n", "0");
    assert!(w.submit());
    w.put_many(&[pair("n", "1"), pair("m", "1")]);
    assert!(w.submit());
    w.put("n", "2");
    assert!(w.submit());
    for _ in 0..3 {
        w.store.decide(Ok(()));
    }
    w.store.call_back(2);
    assert!(w.complete().is_empty(), "held back");
    assert_eq!(w.get("n").0.as_deref(), Some("2"));
    w.store.call_back(1);
    assert!(
        w.complete().is_empty(),
        "the layer waits for the first epoch"
    );
    assert_eq!(w.get("n").0.as_deref(), Some("2"));
    w.store.call_back(0);
    let ended = w.complete();
    assert_eq!(ended.len(), 3);
    assert_eq!(w.get("n"), (Some("2".into()), 0));
    assert_eq!(w.get("m"), (Some("1".into()), 0));
    assert!(w.keys.is_drained());
}

/// A small command forgets its answer for a key when a layer writes the key. This holds even if the
/// layer's epoch has ended before the command runs.
#[test]
fn a_fetch_drops_answers_that_a_layer_changed() {
    let pair = |k: &str, v: &str| (k.to_string(), v.to_string());
    let mut w = World::new();
    w.put("a", "old");
    w.put("b", "old");
    assert!(w.submit());
    w.complete();
    w.keys.begin_fetch(CLIENT, Need::Value, (1, 2));
    let keys: [&[u8]; 2] = [b"a", b"b"];
    let piece = w.keys.next_piece(CLIENT, usize::MAX, &mut keys.into_iter());
    let read = crate::fetch::read(&w.store, piece.unwrap(), || true);
    w.keys.take_answers(CLIENT, read);
    w.put_many(&[pair("a", "new")]);
    assert!(w.submit());
    w.complete();
    w.store.0.lock().reads.clear();
    w.keys.use_fetch(Some(CLIENT));
    assert_eq!(w.get("a"), (Some("new".into()), 0));
    assert_eq!(w.store.0.lock().reads.len(), 1, "read again");
    assert_eq!(w.get("b"), (Some("old".into()), 0));
    assert_eq!(w.store.0.lock().reads.len(), 1, "the answer is good");
    w.keys.use_fetch(None);
}

/// A deletion of many names writes only the keys that exist.
#[test]
fn a_deleting_layer_writes_only_existing_keys() {
    let mut w = World::new();
    w.put("b", "0");
    assert!(w.submit());
    w.complete();
    w.fetch_many(&names(["a", "b", "c", "b"], 1), Need::Meta, 2);
    assert_eq!(w.delete_many().0, 1);
    assert!(w.submit());
    w.complete();
    let deleted: Vec<_> = w.store.0.lock().deleted.iter().cloned().collect();
    assert_eq!(deleted, [&layout::encode_key(DATABASE, 0, b"b")[..]]);
}

/// Regression test: each fetch counted each layer that took effect meanwhile as memory of its
/// client. One MSET of 60 MB counted as 300 MB for five readers of other keys, and they were
/// disconnected.
#[test]
fn the_memory_of_a_layer_is_counted_once() {
    const LEN: usize = 1 << 20;
    let mut w = World::new();
    let list = numbered(1500);
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Meta);
    let small: u64 = CLIENT + 1;
    w.keys.begin_fetch(small, Need::Value, (1, 2));
    let mut keys = [&b"a"[..]].into_iter();
    let piece = w.keys.next_piece(small, usize::MAX, &mut keys);
    let many_piece = w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000);
    let before = (w.keys.fetch_memory(CLIENT), w.keys.fetch_memory(small));
    w.put_many(&[("other".to_string(), "v".repeat(LEN))]);
    let pending = w.keys.pending_bytes();
    assert!((LEN..2 * LEN).contains(&pending), "{pending} bytes pending");
    let after = (w.keys.fetch_memory(CLIENT), w.keys.fetch_memory(small));
    assert!(after.0 < before.0 + LEN && after.1 < before.1 + LEN);
    assert!(w.submit());
    w.complete();
    assert_eq!(w.keys.pending_bytes(), pending, "the fetch holds the layer");
    while w.keys.catch_up(CLIENT, 1024, 1_000) {}
    assert_eq!(w.keys.pending_bytes(), 0);
    // A fetch that ends early gives back what it is behind by.
    w.put_many(&[("other".to_string(), "v".repeat(LEN))]);
    assert!(w.submit());
    w.complete();
    assert!(w.keys.pending_bytes() >= LEN);
    let ended = w.keys.end_many(CLIENT);
    assert_eq!(w.keys.pending_bytes(), 0);
    drop((ended, piece, many_piece));
}

/// Regression test: after nine layers of other keys, a fetch forgot all its answers. After three
/// such fetches, the loop read a value of any length itself.
#[test]
fn layers_of_other_keys_do_not_restart_a_fetch() {
    let mut w = World::new();
    w.store.0.lock().apart_from = 1000;
    w.put("long", &"v".repeat(LOOP_BYTES + 1));
    assert!(w.submit());
    w.complete();
    let (found, _) = w.command(|k| k.get(b"long"));
    let Err(Missed::Fetch(need)) = found else {
        panic!("the loop read a long value");
    };
    w.keys.begin_fetch(CLIENT, need, (1, 2));
    let mut keys = [&b"long"[..]].into_iter();
    let piece = w.keys.next_piece(CLIENT, usize::MAX, &mut keys);
    let read = crate::fetch::read(&w.store, piece.unwrap(), || true);
    for n in 0..100 {
        w.commit_layer(&format!("other{n}"));
        if n == 50 {
            w.keys.take_answers(CLIENT, read.clone());
        }
    }
    let spent = w.keys.spent();
    w.keys.use_fetch(Some(CLIENT));
    let (found, _) = w.command(|k| k.get(b"long").unwrap());
    assert_eq!(found.map(|v| v.data.len()), Some(LOOP_BYTES + 1));
    assert_eq!(w.keys.spent(), spent, "the loop read nothing");
    w.commit_layer("long");
    let (found, _) = w.command(|k| k.get(b"long").unwrap());
    assert_eq!(found.map(|v| v.data.len()), Some(1), "its own key counts");
    w.keys.use_fetch(None);
}

/// Regression test: other clients wrote layers faster than a fetch applied them, so its command
/// never took effect. Layers in flight had no limit besides their bytes.
#[test]
fn layers_wait_for_slow_fetches_and_are_bounded() {
    let mut w = World::new();
    let list = numbered(3000);
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Meta);
    assert!(w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000).is_some());
    let mut layers = 0;
    while !w.keys.is_full_of_layers() {
        w.commit_layer("other");
        layers += 1;
        assert!(layers <= 8, "never full");
    }
    assert!(!w.keys.is_full(), "single writes go on");
    w.keys.take_room_freed();
    assert!(!w.keys.catch_up(CLIENT, 1024, 1_000), "within one step");
    assert!(!w.keys.is_full_of_layers());
    assert!(w.keys.take_room_freed(), "writes that wait look again");
    w.keys.end_many(CLIENT);
    w.store.hold(true);
    let mut layers = 0;
    while !w.keys.is_full_of_layers() {
        w.put_many(&[("k".to_string(), "x".to_string())]);
        layers += 1;
        if layers % 4 == 0 {
            w.submit();
        }
        assert!(layers <= 32, "never full");
    }
    assert!(!w.keys.is_full(), "single writes go on");
}
