//! Expiry, walks over the keys, and strings of a command that was fetched for too often.

use super::*;

#[test]
fn expired_values_are_absent_in_overlay_and_store() {
    let mut w = World::new();
    let put = |w: &mut World, key: &'static [u8], at| {
        w.command(|k| k.put(key, Bytes::from_static(b"v"), Some(at)));
    };
    put(&mut w, b"stored-past", 1_000);
    put(&mut w, b"stored-future", 1_001);
    w.submit();
    w.complete();
    w.store.hold(true);
    put(&mut w, b"overlay-past", 999);
    put(&mut w, b"overlay-future", 5_000);
    assert_eq!(w.scan(), ["overlay-future", "stored-future"]);
    assert_eq!(w.get("stored-past").0, None);
    assert_eq!(w.get("overlay-past").0, None);
    assert!(w.get("overlay-future").0.is_some());
}

/// Regression test: a walk in pieces visits few keys in each, deleted ones included, while commits
/// complete and other keys change. The store stopped in the middle of deleted keys, and the overlay
/// had keys behind that position. A walk that continued behind those skipped keys of the store that
/// existed throughout.
#[test]
fn a_walk_in_pieces_finds_every_key_present_throughout() {
    let seed = std::env::var("BASALT_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0xba5a);
    println!("BASALT_SEED={seed}");
    let random = Random::from_seed(seed);
    const KEYS: u64 = 120;
    let (mut gave_up, mut changes) = (0, 0);
    for _ in 0..300 {
        let mut w = World::new();
        // Even keys stay as they are during the walk.
        let mut stable = std::collections::BTreeSet::new();
        let dense = 1 + random.below(6);
        for phase in 0..4 {
            w.store.hold(phase >= 2);
            for n in 0..KEYS {
                let key = format!("k{n:03}");
                if random.below(8) < dense && phase % 2 == 1 {
                    w.command(|k| k.delete(key.as_bytes()));
                    stable.remove(&key);
                } else if random.one_in(3) {
                    w.put(&key, "v");
                    if n % 2 == 0 {
                        stable.insert(key);
                    }
                }
            }
            w.submit();
            w.complete();
        }
        let (start, to) = w.keys.bounds(b"");
        let mut from = start.clone();
        let mut found: Vec<String> = vec![];
        loop {
            let work = 1 + random.below(12);
            let count = 1 + random.below(12);
            let mut seen = 0;
            let mut next = None;
            let (paused, _) = w.command(|k| {
                k.scan(&from, &to, work, &mut |key, _| {
                    if seen == count {
                        next = Some(key.to_vec());
                        return false;
                    }
                    seen += 1;
                    found.push(String::from_utf8(key.to_vec()).unwrap());
                    true
                })
                .unwrap()
            });
            gave_up += u64::from(paused.is_some());
            let Some(next) = next.or(paused) else { break };
            let goes_on = [&start[..], &next].concat();
            assert!(goes_on > from, "a piece makes progress");
            from = goes_on;
            let key = format!("k{:03}", random.below(KEYS / 2) * 2 + 1);
            match random.below(6) {
                0 => {
                    w.put(&key, "w");
                }
                1 => {
                    w.command(|k| k.delete(key.as_bytes()));
                }
                2 => {
                    w.submit();
                }
                3 if w.store.held() > 0 => w.store.decide(Ok(())),
                4 if !w.store.0.lock().decided.is_empty() => {
                    let n = w.store.0.lock().decided.len() as u64;
                    w.store.call_back(random.below(n) as usize);
                    w.complete();
                    changes += 1;
                }
                _ => {}
            }
        }
        assert!(found.is_sorted_by(|a, b| a < b), "in order, each once");
        found.retain(|k| k[1..].parse::<u64>().unwrap() % 2 == 0);
        assert_eq!(found, stable.into_iter().collect::<Vec<_>>());
    }
    println!("gave_up={gave_up} changes={changes}");
    assert!(gave_up > 1000 && changes > 300);
}

/// Regression test: a command whose keys had been fetched for too often read all other strings in
/// one batch. A thousand names of 64 MiB each came into memory before the reply was refused as too
/// long.
#[test]
fn a_direct_read_is_bounded_by_the_reply_limit() {
    use crate::fetch::{Need, ROUNDS};
    const LEN: usize = 1 << 20;
    let mut w = World::new();
    let names: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    for name in &names {
        w.put(name, &"v".repeat(LEN));
        assert!(w.submit());
        w.complete();
    }
    for _ in 0..ROUNDS {
        w.keys.begin_fetch(7, Need::Strings, (1, 2));
    }
    for (room, most) in [(usize::MAX, 40), (20 * LEN, 21), (0, 1)] {
        w.keys.use_fetch(Some(7));
        let keys = names.iter().map(|n| n.as_bytes());
        let (found, _) = w.command(|k| k.get_strings(keys, room).unwrap());
        w.keys.use_fetch(None);
        let found = found.iter().flatten().count();
        assert_eq!(found, most, "room for {room} bytes");
    }
}
