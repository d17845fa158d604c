//! Tests of the module `group`.

use super::*;
use crate::store::ElementWrite;
use crate::stream::element::{decode, encode, prefix};
use basalt::env::Random;

/// Applies writes to elements as a store does.
fn apply(elements: &mut BTreeMap<Bytes, Bytes>, writes: Vec<ElementWrite>) {
    for write in writes {
        match write {
            ElementWrite::Put { key, value } => {
                elements.insert(key, value);
            }
            ElementWrite::Delete { key } => {
                elements.remove(&key);
            }
            ElementWrite::DeleteRange { from, to } => {
                elements.retain(|key, _| *key < from || *key >= to);
            }
        }
    }
}

fn load(elements: &BTreeMap<Bytes, Bytes>) -> Groups {
    let mut groups = Groups::default();
    for (key, value) in elements {
        groups.load(decode(key, value).unwrap()).unwrap();
    }
    groups
}

fn shown(groups: &Groups) -> String {
    let mut out = String::new();
    for (name, group) in groups.iter() {
        let consumers: Vec<_> = group.consumers().collect();
        let pending = group.pending();
        out += &format!("{name:?} {:?} {:?} ", group.last_id, group.entries_read);
        out += &format!("{consumers:?} {pending:?}\n");
    }
    out
}

/// After random changes, the elements that were written give the groups that are in memory.
#[test]
fn written_elements_load_as_the_groups_in_memory() {
    const NAMES: [&[u8]; 4] = [b"", b"a", b"b", b"longer"];
    for seed in 0..100 {
        let random = Random::from_seed(seed);
        let (mut groups, mut elements) = (Groups::default(), BTreeMap::new());
        for n in 0..150 {
            let mut writer = ElementWriter::new(2, 7);
            let name = NAMES[random.below(4) as usize];
            let consumer = NAMES[random.below(4) as usize];
            let id = StreamId::new(random.below(30), 1);
            match random.below(20) {
                0 => {
                    groups.destroy(name, &mut writer);
                }
                1..4 if groups.get(name).is_none() => {
                    groups.create(name, id, Some(n).filter(|_| n % 2 == 0), &mut writer);
                }
                _ => {
                    let Some(mut group) = groups.get_mut(name) else {
                        continue;
                    };
                    match random.below(12) {
                        0 => {
                            group.remove_consumer(consumer, &mut writer);
                        }
                        1 => {
                            group.last_id = id;
                            group.save(name, &mut writer);
                        }
                        2..5 => {
                            let was = group.pending().contains_key(&id);
                            assert_eq!(group.acknowledge(id, &mut writer), was);
                        }
                        _ => {
                            let (consumer, _) = group.ensure_consumer(consumer, n, &mut writer);
                            let pending = Pending {
                                consumer,
                                lsn: n + 1,
                                delivered_ms: n,
                                deliveries: 1,
                            };
                            group.set_pending(id, pending, &mut writer);
                        }
                    }
                }
            }
            apply(&mut elements, writer.writes);
            let loaded = load(&elements);
            assert_eq!(loaded.memory(), groups.memory(), "seed {seed}, step {n}");
            assert_eq!(shown(&loaded), shown(&groups), "seed {seed}, step {n}");
        }
        let mut writer = ElementWriter::new(2, 7);
        for name in NAMES {
            groups.destroy(name, &mut writer);
        }
        assert_eq!(groups.memory(), 0, "seed {seed}");
    }
}

/// Elements that do not fit together are damage, each with its own words.
#[test]
fn elements_that_do_not_fit_are_refused() {
    let group = |group, name: &'static [u8]| Element::Group {
        group,
        last_id: StreamId::MIN,
        entries_read: None,
        name: Bytes::from_static(name),
    };
    let consumer = |group, consumer, name: &'static [u8]| Element::Consumer {
        group,
        consumer,
        seen_ms: 0,
        name: Bytes::from_static(name),
    };
    let pending = |group, consumer| Element::Pending {
        group,
        consumer,
        id: StreamId::new(1, 1),
        lsn: 1,
        delivered_ms: 0,
        deliveries: 1,
    };
    let cases = [
        (
            vec![group(0, b"g"), group(1, b"g")],
            "another group has its name or number",
        ),
        (vec![consumer(0, 0, b"a")], "a consumer without its group"),
        (
            vec![group(0, b"g"), consumer(0, 0, b"a"), consumer(0, 1, b"a")],
            "another consumer has its name or number",
        ),
        (vec![pending(0, 0)], "a pending entry without its group"),
        (
            vec![group(0, b"g"), pending(0, 0)],
            "a pending entry without its consumer",
        ),
        (
            vec![
                group(0, b"g"),
                consumer(0, 0, b"a"),
                consumer(0, 1, b"b"),
                pending(0, 0),
                pending(0, 1),
            ],
            "the entry is pending for two consumers",
        ),
    ];
    for (elements, what) in cases {
        let prefix = prefix(2, 7);
        let mut encoded: Vec<_> = elements.iter().map(|e| encode(&prefix, e)).collect();
        encoded.sort();
        let mut groups = Groups::default();
        let load = |(key, value): &(Bytes, Bytes)| groups.load(decode(key, value).unwrap());
        let e = encoded.iter().try_for_each(load).unwrap_err();
        assert!(e.is_corruption() && e.to_string().contains(what), "{e}");
    }
    // Numbers at the end of their range do not overflow.
    let mut groups = Groups::default();
    groups.load(group(u64::MAX, b"g")).unwrap();
    groups.load(consumer(u64::MAX, u64::MAX, b"a")).unwrap();
}
