//! The mapping table against the figures of the paper, and its encoding.

use super::*;
use basalt_stream::ExtentId;

fn id(n: u32) -> PageId {
    PageId {
        extent: ExtentId(1),
        offset: n,
        len: 10,
    }
}

fn apply(table: &MappingTable, time: SysTime, change: Change) -> Effects {
    let mut bytes = Vec::new();
    change.encode(&mut bytes);
    assert_eq!(Change::decode(&bytes, &mut 0), Some(change.clone()));
    let mut effects = Effects::default();
    table.apply(time, &change, &mut effects).unwrap();
    effects
}

fn append(table: &MappingTable, time: SysTime, key: u32, delta: u32) {
    let (key, delta) = (id(key), id(delta));
    let to_index = false;
    apply(
        table,
        time,
        Change::Append {
            key,
            delta,
            to_index,
        },
    );
}

fn pages(table: &MappingTable, key: u32, at: SysTime) -> (u32, Vec<u32>) {
    let State::Live(pages) = table.get(id(key), at) else {
        panic!("page {key} was rewritten");
    };
    let deltas = pages.deltas.iter().map(|d| d.id.offset).collect();
    (pages.base.offset, deltas)
}

/// Regression test: pages that replace each other in a crafted log or checkpoint overflowed the
/// stack.
#[test]
fn pages_that_replace_each_other_are_refused() {
    let rewrite = |table: &MappingTable, time, key, with: &[u32]| {
        let with = with.iter().enumerate();
        let change = Change::Rewrite {
            key: id(key),
            replaced: 0,
            with: with.map(|(i, n)| (vec![i as u8], id(*n))).collect(),
        };
        table.apply(time, &change, &mut Effects::default())
    };
    let table = MappingTable::new();
    append(&table, 1, 1, 11);
    let e = rewrite(&table, 2, 1, &[2, 1]).unwrap_err();
    assert!(e.contains("is rewritten to itself"), "{e}");
    append(&table, 3, 2, 12);
    rewrite(&table, 4, 1, &[2, 3]).unwrap();
    let e = rewrite(&table, 5, 2, &[1]).unwrap_err();
    assert!(e.contains("replace each other"), "{e}");
    // A checkpoint that has the circle.
    let table = MappingTable::new();
    for (key, with) in [(1, 2), (2, 1)] {
        let with = [(Arc::from(&b""[..]), id(with))];
        table.load(id(key), 1, State::Rewritten(Arc::new(with)));
    }
    let change = Change::Append {
        key: id(1),
        delta: id(11),
        to_index: false,
    };
    let e = table.apply(2, &change, &mut Effects::default());
    assert!(e.unwrap_err().contains("replace each other"));
}

/// Regression test: a page that was rewritten to no page took delta pages, which were gone.
#[test]
fn pages_that_replaced_a_page_rise() {
    for (lows, is_sound) in [
        (&[][..], false),
        (&["", "b", "c"], true),
        (&["a", "b"], true),
        (&["a", "a"], false),
        (&["", "c", "b"], false),
    ] {
        let with: Vec<(Vec<u8>, PageId)> = lows
            .iter()
            .map(|low| (low.as_bytes().to_vec(), id(2)))
            .collect();
        let shared = with.iter().map(|(low, id)| (low[..].into(), *id));
        let state = State::Rewritten(shared.collect());
        let change = Change::Rewrite {
            key: id(1),
            replaced: 0,
            with,
        };
        let (mut of_state, mut of_change) = (Vec::new(), Vec::new());
        state.encode(&mut of_state);
        change.encode(&mut of_change);
        let decoded = State::decode(&of_state, &mut 0);
        assert_eq!(decoded, is_sound.then_some(state), "{lows:?}");
        let decoded = Change::decode(&of_change, &mut 0);
        assert_eq!(decoded, is_sound.then_some(change), "{lows:?}");
    }
}

/// Regression test: a search in a part whose end is not above its beginning panicked.
#[test]
fn a_part_without_keys_is_refused() {
    let state = |low: &[u8], has_low, high: &[u8]| {
        let part = Part {
            low: low.into(),
            has_low,
            high: Some(high.into()),
        };
        State::Live(Pages {
            base: id(1),
            deltas: SmallVec::from_iter([Delta {
                id: id(2),
                part: Some(Box::new(part)),
            }]),
            has_index_deltas: false,
        })
    };
    let decoded = |state: &State| {
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        State::decode(&bytes, &mut 0)
    };
    for sound in [state(b"a", true, b"b"), state(b"b", false, b"b")] {
        assert_eq!(decoded(&sound), Some(sound));
    }
    for high in [b"a", b"b"] {
        assert_eq!(decoded(&state(b"b", true, high)), None);
    }
}

/// Figure 3 (a) and (b), and figure 4: a delta page is appended beside a consolidation.
#[test]
fn a_consolidation_keeps_what_came_since() {
    let table = MappingTable::new();
    for (time, delta) in [(100, 11), (200, 12), (300, 13)] {
        append(&table, time, 1, delta);
    }
    append(&table, 350, 1, 18);
    let effects = apply(
        &table,
        400,
        Change::Consolidate {
            key: id(1),
            kept: 0,
            replaced: 3,
            with: Some(id(15)),
        },
    );
    assert_eq!(effects.dead_deltas, [id(11), id(12), id(13)]);
    assert_eq!(pages(&table, 1, 400), (1, vec![15, 18]));
    assert_eq!(pages(&table, 1, 399), (1, vec![11, 12, 13, 18]));
    assert_eq!(pages(&table, 1, 200), (1, vec![11, 12]));
    assert_eq!(pages(&table, 1, 99), (1, vec![]));
    // Readers go, and their versions with them.
    assert!(!table.prune(id(1), &[399]));
    assert!(table.prune(id(1), &[400]));
    assert_eq!(table.len(), 1);
    assert_eq!(pages(&table, 1, 400), (1, vec![15, 18]));
}

/// Figure 5: a delta page for a page that was rewritten belongs to those that replaced it, also if
/// one of them was rewritten again.
#[test]
fn a_delta_page_follows_a_rewrite() {
    let table = MappingTable::new();
    append(&table, 1, 1, 11);
    let rewrite = |time, key: u32, replaced, with: &[(&str, u32)]| {
        let with = with
            .iter()
            .map(|(low, n)| (low.as_bytes().to_vec(), id(*n)));
        apply(
            &table,
            time,
            Change::Rewrite {
                key: id(key),
                replaced,
                with: with.collect(),
            },
        )
    };
    let effects = rewrite(2, 1, 1, &[("", 16), ("m", 17)]);
    assert_eq!(
        (effects.dead_bases, effects.dead_deltas),
        (vec![id(1)], vec![id(11)])
    );
    rewrite(3, 17, 0, &[("m", 21), ("t", 22)]);
    let mut effects = Effects::default();
    let late = Change::Append {
        key: id(1),
        delta: id(18),
        to_index: false,
    };
    table.apply(4, &late, &mut effects).unwrap();
    assert_eq!(effects.shared_deltas.len(), 2, "three pages have it");
    for (key, inside, outside) in [(16, "a", "m"), (21, "m", "t"), (22, "t", "s")] {
        let State::Live(pages) = table.get(id(key), 4) else {
            panic!("page {key} was rewritten");
        };
        let [delta] = &pages.deltas[..] else {
            panic!("page {key} has {pages:?}");
        };
        assert_eq!(delta.id, id(18));
        assert!(delta.covers(inside.as_bytes()) && !delta.covers(outside.as_bytes()));
    }
    // A rewritten page is forgotten with its last reader, and later changes of it are refused.
    assert!(table.prune(id(1), &[4]));
    rewrite(5, 16, 1, &[("", 30)]);
    let again = Change::Overwrite {
        key: id(16),
        replaced: 0,
        base: id(40),
    };
    table.apply(6, &again, &mut effects).unwrap_err();
}

#[test]
fn a_page_that_its_parent_names_needs_no_entry() {
    let table = MappingTable::new();
    append(&table, 1, 1, 11);
    let overwrite = Change::Overwrite {
        key: id(1),
        replaced: 1,
        base: id(2),
    };
    apply(&table, 2, overwrite);
    append(&table, 3, 1, 12);
    let named = Change::Rewrite {
        key: id(1),
        replaced: 0,
        with: vec![(b"k".to_vec(), id(2))],
    };
    let effects = apply(&table, 4, named);
    assert!(effects.dead_bases.is_empty(), "the base page stays");
    assert_eq!(pages(&table, 2, 4), (2, vec![12]));
    table.prune(id(1), &[4]);
    let consolidated = Change::Consolidate {
        key: id(2),
        kept: 0,
        replaced: 1,
        with: None,
    };
    apply(&table, 5, consolidated);
    table.prune(id(2), &[5]);
    assert_eq!(table.len(), 0);
}

#[test]
fn a_consolidation_of_young_delta_pages_keeps_the_old_ones_before_them() {
    let table = MappingTable::new();
    for (time, delta) in [(1, 11), (2, 12), (3, 13), (4, 14)] {
        append(&table, time, 1, delta);
    }
    let consolidate = |kept, replaced| Change::Consolidate {
        key: id(1),
        kept,
        replaced,
        with: Some(id(15)),
    };
    assert!(table.check(&[consolidate(2, 3)]).is_err());
    let effects = apply(&table, 5, consolidate(1, 2));
    assert_eq!(effects.dead_deltas, [id(12), id(13)]);
    assert_eq!(pages(&table, 1, 5), (1, vec![11, 15, 14]));
    assert_eq!(pages(&table, 1, 4), (1, vec![11, 12, 13, 14]));
}
