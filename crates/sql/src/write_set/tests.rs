//! Tests of write sets, with a model.

use super::{WriteSet, Written};
use basalt::Bytes;
use basalt::env::Random;
use std::collections::BTreeMap;

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

#[test]
fn the_first_write_to_a_key_says_what_was_before() {
    let mut writes = WriteSet::default();
    writes.put(1, bytes("k"), Some(bytes("stored")), Some(bytes("a")));
    writes.put(1, bytes("k"), None, None);
    let written = writes.get(1, b"k").expect("it was written");
    let wanted = Written {
        before: Some(bytes("stored")),
        after: None,
    };
    assert_eq!(*written, wanted);
    assert_eq!(writes.get(2, b"k"), None);
}

#[test]
fn undone_writes_leave_what_was_there() {
    let random = Random::from_seed(11);
    for _ in 0..2_000 {
        let mut writes = WriteSet::default();
        let mut model: BTreeMap<(u32, Bytes), Option<Bytes>> = BTreeMap::new();
        let mut marks = Vec::new();
        for _ in 0..random.below(30) {
            match random.below(6) {
                0 => marks.push((writes.mark(), model.clone(), writes.bytes())),
                1 if !marks.is_empty() => {
                    let at = random.below(marks.len() as u64) as usize;
                    let (mark, then, size) = marks[at].clone();
                    marks.truncate(at + 1);
                    writes.undo_to(mark);
                    model = then;
                    assert_eq!(writes.bytes(), size);
                }
                _ => {
                    let storage = random.below(2) as u32;
                    let key = bytes(&format!("key{}", random.below(5)));
                    let after =
                        (!random.one_in(3)).then(|| bytes(&"v".repeat(random.below(9) as usize)));
                    writes.put(storage, key.clone(), None, after.clone());
                    model.insert((storage, key), after);
                }
            }
            for storage in 0..2 {
                let found: Vec<(Bytes, Option<Bytes>)> = writes
                    .family(storage)
                    .map(|(key, written)| (key.clone(), written.after.clone()))
                    .collect();
                let wanted = model.iter().filter(|((s, _), _)| *s == storage);
                let wanted: Vec<_> = wanted.map(|((_, k), v)| (k.clone(), v.clone())).collect();
                assert_eq!(found, wanted);
                let (lower, upper) = (b"key1", b"key3");
                let range = writes.range(storage, lower, Some(upper));
                let inside = wanted
                    .into_iter()
                    .filter(|(k, _)| k[..] >= lower[..] && k[..] < upper[..]);
                assert_eq!(range, inside.collect::<Vec<_>>());
            }
        }
    }
}
