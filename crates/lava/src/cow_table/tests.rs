//! Unit tests of `cow_table`.

use super::*;

#[test]
fn a_copy_does_not_change_with_the_original() {
    let mut slab = CowTable::default();
    for i in 0..1000u64 {
        assert_eq!(slab.push(i), i as usize);
    }
    let copy = slab.clone();
    for i in (0..1000).step_by(300) {
        *slab.get_mut(i) += 7;
    }
    slab.push(5);
    assert!(copy.iter().map(|(_, n)| *n).eq(0..1000));
    assert!(copy.iter().all(|(i, n)| i as u64 == *n));
    assert_eq!(
        (*slab.get(300), *slab.get(301), slab.len()),
        (307, 301, 1001)
    );
}

#[test]
fn a_sparse_index_takes_no_memory_for_the_gap() {
    let mut slab: CowTable<u64> = CowTable::default();
    slab.grow_to(1 << 28);
    *slab.get_mut((1 << 28) - 1) = 9;
    *slab.get_mut(3) = 4;
    assert_eq!((slab.len(), *slab.get(1 << 27)), (1 << 28, 0));
    assert!(slab.memory() < 32 << 20, "{}", slab.memory());
    let set: Vec<_> = slab.iter().filter(|(_, n)| **n > 0).collect();
    assert_eq!(set, [(3, &4), ((1 << 28) - 1, &9)]);
}
