//! Fetches of very many names.

use super::*;

/// The count of a DEL with many names is that of the moment at which the DEL takes effect. The
/// count follows single writes, the layers of other commands, and writes after these layers.
#[test]
fn a_fetch_of_many_names_follows_layers() {
    let pair = |k: &str, v: &str| (k.to_string(), v.to_string());
    let list = ["a", "b", "c", "d", "e", "a"];
    let mut w = World::new();
    w.put("a", "0");
    w.put("b", "0");
    assert!(w.submit());
    w.complete();
    w.store.hold(true);
    // More names than the layer has, and fewer.
    for others in [0, 20] {
        w.fetch_many(&names(list, 1), Need::Meta, 2);
        let mut pairs: Vec<_> = (0..others).map(|n| pair(&format!("x{n}"), "1")).collect();
        pairs.extend([pair("c", "1"), pair("d", "1")]);
        let layer = w.put_many(&pairs);
        w.command(|k| k.delete(b"d"));
        w.put("e", "2");
        assert!(w.keys.catch_up(CLIENT, 1, 1_000), "it is behind the layer");
        let (there, depends_on) = w.delete_many();
        assert_eq!(there, 4, "a, b, c and e");
        assert_ne!(depends_on & layer, 0, "it saw what the layer wrote");
        for name in list {
            assert_eq!(w.get(name).0, None);
        }
        // The store has none of these writes, and the layer that the command saw fails together
        // with it.
        w.submit();
        w.store.release(0, Err(io()));
        w.complete();
        assert_eq!(w.scan(), ["a", "b"]);
    }
    // A layer whose epoch failed before the fetch applied it changes no answer.
    w.fetch_many(&names(list, 1), Need::Meta, 2);
    w.put_many(&[pair("c", "1"), pair("d", "1")]);
    w.submit();
    w.store.release(0, Err(io()));
    w.complete();
    assert_eq!(w.delete_many().0, 2);
}

/// A value that counts the values in memory.
struct Tracked(Vec<u8>, Arc<std::sync::atomic::AtomicUsize>);

impl Tracked {
    fn value(len: usize, alive: &Arc<std::sync::atomic::AtomicUsize>) -> Bytes {
        alive.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Bytes::from_owner(Tracked(vec![7; len], alive.clone()))
    }
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.1.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Regression test: a deleted value stayed in the list of values of a fetch, and the next value got
/// another place. Pairs of SET and DEL filled the memory, and nothing counted it.
#[test]
fn a_fetch_of_many_names_drops_outdated_values() {
    const LEN: usize = 10_000;
    let mut w = World::new();
    let list = numbered(1500);
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Strings);
    let piece = w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000);
    let before = w.keys.fetch_memory(CLIENT);
    let alive = Arc::default();
    for _ in 0..100 {
        let value = Tracked::value(LEN, &alive);
        w.command(|k| k.put(b"n3", value, None));
        w.submit();
        w.complete();
        assert!(w.keys.fetch_memory(CLIENT) >= before + LEN, "it is counted");
        w.command(|k| k.delete(b"n3"));
        w.submit();
        w.complete();
        let alive = alive.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(alive, 0, "values in memory");
    }
    assert!(w.keys.fetch_memory(CLIENT) < before + LEN);
    drop(piece);
}

/// Regression test: a fetch kept the buffers of its pieces whole, and counted only the strings that
/// were still answers. A client that wrote each name after it was read made 24 MB count as nothing.
#[test]
fn a_fetch_of_many_names_counts_and_frees_its_buffers() {
    const LEN: usize = 1000;
    let mut w = World::new();
    let list = numbered(3000);
    for name in &list {
        w.put(name, &format!("{name}{}", "v".repeat(LEN)));
    }
    w.submit();
    w.complete();
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Strings);
    let mut done = 0;
    while let Some(piece) = w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000) {
        let read = read_many(&w.store, piece, || true);
        w.keys.take_many(CLIENT, read, 1_000);
        let to = (done + 1024).min(list.len());
        for (n, name) in list[done..to].iter().enumerate() {
            let fetch = w.keys.many(CLIENT).unwrap();
            let (held, memory) = (fetch.answers().strings_in_memory(), fetch.memory());
            assert!(held <= memory, "{held} bytes in memory, {memory} counted");
            assert!(
                held <= 2 * fetch.bytes() + 2 * LEN,
                "{held} bytes in memory"
            );
            // Every tenth name keeps its answer.
            if n % 10 != 0 {
                w.put(name, "x");
            }
        }
        done = to;
        w.submit();
        w.complete();
    }
    let fetch = w.keys.many(CLIENT).unwrap();
    for (n, name) in list.iter().enumerate() {
        let kept = (n % 1024).is_multiple_of(10);
        let expected = match kept {
            true => format!("{name}{}", "v".repeat(LEN)),
            false => "x".into(),
        };
        let found = match fetch.answers().answer(n, 1_000) {
            ManyAnswer::String(data) => data.to_vec(),
            ManyAnswer::Shared(data) => data.to_vec(),
            _ => panic!("no string for {name}"),
        };
        assert_eq!(String::from_utf8(found).unwrap(), expected);
    }
}

/// Regression test: a fetch of a flushed keyspace was read to its end before it began again.
#[test]
fn a_fetch_of_a_flushed_keyspace_reads_no_further() {
    let mut w = World::new();
    let list = numbered(3000);
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Meta);
    assert!(w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000).is_some());
    w.keys.begin_fetch(CLIENT, Need::Meta, (1, 2));
    w.command(|k| k.flush().unwrap());
    assert!(w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000).is_none());
    let mut keys = list.iter().map(|s| s.as_bytes());
    let piece = w.keys.next_piece(CLIENT, usize::MAX, &mut keys);
    assert!(piece.is_none());
    assert!(w.keys.freeze(CLIENT).is_none());
}

/// Regression test: a step looked at 1,024 names, however long they were, and hashed each of them
/// once for each layer.
#[test]
fn a_step_of_long_names_is_bounded_in_bytes() {
    const LEN: usize = 60_000;
    let mut w = World::new();
    w.store.hold(true);
    for n in 0..10 {
        w.put_many(&[(format!("other{n}"), "x".to_string())]);
    }
    let list: Vec<_> = (0..40).map(|n| format!("{n}{}", "x".repeat(LEN))).collect();
    let index = names(list.iter().map(|s| &s[..]), 1);
    w.begin_many(&index, Need::Meta);
    let hashed = crate::names::hashed::bytes();
    let (mut steps, mut bytes) = (0, 0);
    while let Some(piece) = w.keys.next_many(CLIENT, 1024, usize::MAX, 1_000) {
        let step = piece.key_bytes();
        assert!(step <= (256 << 10) + 2 * LEN, "{step} bytes in a step");
        (steps, bytes) = (steps + 1, bytes + step);
        let read = read_many(&w.store, piece, || true);
        w.keys.take_many(CLIENT, read, 1_000);
    }
    assert!(steps >= 8 && bytes >= 40 * LEN, "{steps} steps");
    let hashed = crate::names::hashed::bytes() - hashed;
    assert_eq!(hashed, 0, "the table of names has the hashes");
    let many: Vec<_> = list.iter().map(|k| (k.clone(), "v".to_string())).collect();
    w.put_many(&many);
    let before = w.keys.names();
    let mut steps = 0;
    while w.keys.catch_up(CLIENT, 1024, 1_000) {
        steps += 1;
    }
    assert!(
        steps >= 7,
        "{steps} steps for {} names",
        w.keys.names() - before
    );
    let hashed_before = crate::names::hashed::bytes();
    w.command(|k| k.meta(list[3].as_bytes()).unwrap());
    let hashed = crate::names::hashed::bytes() - hashed_before;
    assert_eq!(hashed, list[3].len(), "one hash for all layers");
}
