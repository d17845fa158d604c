//! Random histories of epochs against a model in plain maps.

use super::*;

/// An epoch of the model: its writes (`None` for a flush, no value for a delete), and its state.
struct ModelEpoch {
    slot: usize,
    writes: Vec<Option<(String, Option<String>)>>,
    /// The engine's decision: true for a success.
    decided: Option<bool>,
    /// True if the callback has run.
    completed: bool,
}

impl ModelEpoch {
    fn new() -> ModelEpoch {
        ModelEpoch {
            slot: usize::MAX,
            writes: vec![],
            decided: None,
            completed: false,
        }
    }

    fn has_failed(&self) -> bool {
        self.completed && self.decided == Some(false)
    }
}

/// Returns the state after all submitted epochs that have not failed for the keyspace, in order,
/// and the open one.
fn model_state<'a>(epochs: impl Iterator<Item = &'a ModelEpoch>) -> BTreeMap<String, String> {
    let mut state = BTreeMap::new();
    for write in epochs.flat_map(|e| &e.writes) {
        match write {
            None => state.clear(),
            Some((k, Some(v))) => {
                state.insert(k.clone(), v.clone());
            }
            Some((k, None)) => {
                state.remove(k);
            }
        }
    }
    state
}

/// Returns the slot of the last epoch that wrote a key or flushed it, if its callback has not run.
fn pending_writer<'a>(
    epochs: impl Iterator<Item = &'a ModelEpoch>,
    open: usize,
    key: &str,
) -> Option<usize> {
    let writes = |e: &&ModelEpoch| {
        let mut writes = e.writes.iter();
        writes.any(|w| w.as_ref().is_none_or(|(k, _)| k == key))
    };
    let last = epochs.filter(writes).last()?;
    match last.slot {
        usize::MAX => Some(open),
        slot => (!last.completed).then_some(slot),
    }
}

/// A command with many names of the model, whose names are being fetched.
struct ModelFetch {
    names: Vec<String>,
    /// The command: it reads, deletes, or sets if all keys are absent.
    kind: u64,
    piece: Option<ManyPiece>,
    has_all: bool,
}

/// Random commands, submissions, failures, and callbacks in any order, against a model in plain
/// maps. The engine decides commits in the order of submission. Its callbacks run on several
/// threads, so the keyspace gets them in any order. Some commands have many names: their reads take
/// many steps, and their writes are layers.
#[test]
fn random_histories_agree_with_a_model() {
    let seed = std::env::var("BASALT_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0xba5a);
    println!("BASALT_SEED={seed}");
    let random = Random::from_seed(seed);
    let scale = basalt_sim::campaign::scale();
    let (mut failures, mut dependents, mut overtaken) = (0, 0, 0);
    let (mut layers, mut held_back, mut fetched, mut void, mut behind) = (0, 0, 0, 0, 0);
    for history in 0..600 * scale {
        let mut w = World::new();
        w.store.hold(true);
        let mut submitted: Vec<ModelEpoch> = vec![];
        let mut open = ModelEpoch::new();
        // Epochs whose callback may run, in the order of the store's list.
        let mut decided: Vec<usize> = vec![];
        let mut fetch: Option<ModelFetch> = None;
        for step in 0..300 {
            let key = format!("k{}", random.below(6));
            let now = || submitted.iter().filter(|e| !e.has_failed()).chain([&open]);
            let state = model_state(now());
            // At the end everything is submitted, decided, and its callback has run.
            let choice = if step < 200 {
                // Layers keep epochs in order, so half of the histories have no layers.
                random.below(if history % 2 == 0 { 16 } else { 28 })
            } else {
                10 + step % 5
            };
            match choice {
                0..4 => {
                    w.put(&key, &step.to_string());
                    open.writes.push(Some((key, Some(step.to_string()))));
                }
                4 => {
                    w.command(|k| k.delete(key.as_bytes()));
                    open.writes.push(Some((key, None)));
                }
                5 => {
                    // This reads a key, then writes the value to another one.
                    let to = format!("k{}", random.below(6));
                    let writer = pending_writer(now(), w.keys.open, &key);
                    let (read, depends_on) = w.command(|k| {
                        let v = k.get(key.as_bytes()).unwrap().map(|v| v.data);
                        let data = v.clone().unwrap_or_default();
                        k.put(to.as_bytes(), data, None);
                        v
                    });
                    assert_eq!(read.as_deref(), state.get(&key).map(String::as_bytes));
                    assert!(writer.is_none_or(|slot| depends_on & 1 << slot != 0));
                    let value = state.get(&key).cloned().unwrap_or_default();
                    open.writes.push(Some((to, Some(value))));
                }
                6 => {
                    let writer = pending_writer(now(), w.keys.open, &key);
                    let (read, depends_on) = w.get(&key);
                    assert_eq!(read, state.get(&key).cloned());
                    assert!(writer.is_none_or(|slot| depends_on & 1 << slot != 0));
                    let (from, to) = w.keys.bounds(b"");
                    let last = w.keys.last(&from, &to, u64::MAX).unwrap();
                    let last = last.map(|k| String::from_utf8(k).unwrap());
                    assert!(last.as_ref() >= state.keys().next_back());
                }
                7 => assert_eq!(w.scan(), state.keys().cloned().collect::<Vec<_>>()),
                8 if random.one_in(6) => {
                    w.command(Keyspace::flush).0.unwrap();
                    open.writes.push(None);
                }
                9 => {
                    let capture = w.command(|k| k.capture(b"")).0;
                    let mut found = vec![];
                    let mut show = |k: &[u8], _, _| {
                        found.push(String::from_utf8(k.to_vec()).unwrap());
                        true
                    };
                    capture.scan(&mut show).unwrap();
                    assert_eq!(found, state.keys().cloned().collect::<Vec<_>>());
                }
                10 | 11 => {
                    open.slot = w.keys.open;
                    if w.submit() {
                        submitted.push(std::mem::replace(&mut open, ModelEpoch::new()));
                    } else {
                        open.slot = usize::MAX;
                    }
                }
                12 | 13 => {
                    if let Some(i) = submitted.iter().position(|e| e.decided.is_none()) {
                        let ok = !random.one_in(4);
                        submitted[i].decided = Some(ok);
                        decided.push(i);
                        w.store.decide(if ok { Ok(()) } else { Err(io()) });
                    }
                }
                16 | 17 => {
                    // An MSET, in which a key may stand twice.
                    let pair = |n| (format!("k{}", random.below(6)), format!("{step}.{n}"));
                    let pairs: Vec<_> = (0..1 + random.below(5)).map(pair).collect();
                    if w.keys.is_full() {
                        continue;
                    }
                    w.put_many(&pairs);
                    layers += 1;
                    let written = pairs.into_iter().map(|(k, v)| Some((k, Some(v))));
                    open.writes.extend(written);
                }
                18 | 19 if fetch.is_none() => {
                    let name = |_| format!("k{}", random.below(6));
                    let list: Vec<String> = (0..1 + random.below(6)).map(name).collect();
                    let kind = random.below(3);
                    // The argument after each name of an MSETNX is its value.
                    let arguments = list.iter().flat_map(|name| match kind {
                        2 => vec![&name[..], "absent"],
                        _ => vec![&name[..]],
                    });
                    let index = names(arguments, if kind == 2 { 2 } else { 1 });
                    let need = if kind == 0 { Need::Strings } else { Need::Meta };
                    w.begin_many(&index, need);
                    fetch = Some(ModelFetch {
                        names: list,
                        kind,
                        piece: None,
                        has_all: false,
                    });
                }
                20..28 => {
                    let Some(f) = &mut fetch else { continue };
                    if random.one_in(3) {
                        behind += u64::from(w.keys.catch_up(CLIENT, 1, 1_000));
                    } else if let Some(piece) = f.piece.take() {
                        let read = read_many(&w.store, piece, || true);
                        w.keys.take_many(CLIENT, read, 1_000);
                    } else if !f.has_all {
                        let most = 1 + random.below(2) as usize;
                        f.piece = w.keys.next_many(CLIENT, most, usize::MAX, 1_000);
                        f.has_all = f.piece.is_none();
                    } else if w.keys.many(CLIENT).unwrap().is_void {
                        void += 1;
                        w.keys.end_many(CLIENT);
                        fetch = None;
                    } else if !w.keys.catch_up(CLIENT, 1, 1_000) {
                        let ModelFetch { names, kind, .. } = fetch.take().unwrap();
                        let (answers, seen) = w.keys.freeze(CLIENT).unwrap();
                        fetched += 1;
                        for (n, name) in names.iter().enumerate() {
                            let value = state.get(name).map(String::as_bytes);
                            match (answers.answer(n, 1_000), value) {
                                (ManyAnswer::Absent, None) => {}
                                (ManyAnswer::There, Some(_)) => assert_ne!(kind, 0),
                                (ManyAnswer::String(data), Some(v)) => assert_eq!(data, v),
                                (ManyAnswer::Shared(data), Some(v)) => assert_eq!(data, v),
                                (_, v) => panic!("{name} is {v:?} in the model"),
                            }
                            let writer = pending_writer(now(), w.keys.open, name);
                            assert!(writer.is_none_or(|slot| seen & 1 << slot != 0));
                        }
                        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
                        let there = distinct.iter().filter(|n| state.contains_key(**n)).count();
                        assert_eq!(answers.there(), there);
                        if kind == 0 || w.keys.is_full() || (kind == 2 && there > 0) {
                            continue;
                        }
                        layers += 1;
                        let index = answers.names().clone();
                        let answers = (kind == 1).then(|| Arc::new(answers));
                        let layer = Layer::new(index, w.keys.generation(), answers);
                        w.command(|k| k.put_layer(layer, seen));
                        let value = (kind == 2).then(|| "absent".to_string());
                        let written = names.into_iter().map(|k| Some((k, value.clone())));
                        open.writes.extend(written);
                    }
                }
                14 | 15 if !decided.is_empty() => {
                    let index = random.below(decided.len() as u64) as usize;
                    let i = decided.remove(index);
                    w.store.call_back(index);
                    let ended = w.complete();
                    held_back += u64::from(ended.is_empty());
                    for end in ended {
                        let is_it = |e: &ModelEpoch| e.slot == end.slot && !e.completed;
                        let Some(i) = submitted.iter().position(is_it) else {
                            assert_eq!(end.slot, w.keys.open);
                            dependents += 1;
                            open = ModelEpoch::new();
                            continue;
                        };
                        assert_eq!(submitted[i].decided, Some(end.result.is_ok()));
                        overtaken += u64::from(submitted[..i].iter().any(|e| !e.completed));
                        submitted[i].completed = true;
                        failures += u64::from(submitted[i].has_failed());
                    }
                    // The epoch waits for an earlier epoch, or has ended.
                    assert!(submitted[i].completed || submitted[..i].iter().any(|e| !e.completed));
                }
                _ => {}
            }
        }
        let state = model_state(submitted.iter().filter(|e| !e.has_failed()));
        assert!(w.keys.is_drained() && w.keys.overlay.is_empty() && w.keys.layers.is_empty());
        // A fetch holds the layers that it is behind by.
        w.keys.end_many(CLIENT);
        assert_eq!(w.keys.pending_bytes(), 0);
        assert_eq!(w.scan(), state.keys().cloned().collect::<Vec<_>>());
        for (key, value) in state {
            assert_eq!(w.get(&key), (Some(value), 0));
        }
    }
    println!("failures={failures} dependents={dependents} overtaken={overtaken}");
    println!("layers={layers} held_back={held_back} fetched={fetched} void={void} behind={behind}");
    for (count, floor) in [
        (failures, 100),
        (dependents, 20),
        (overtaken, 500),
        (layers, 1000),
        (held_back, 100),
        (fetched, 500),
        (void, 50),
        (behind, 100),
    ] {
        assert!(count > scale.floor(floor), "{count}, floor {floor}");
    }
}
