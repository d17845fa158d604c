//! Tests of the module `data`.

use super::*;

#[test]
fn every_key_is_visited_once() {
    for keys in [1, 2, 3, 10, 97, 1000, 4096] {
        let d = Data::new(7, keys, 16, 10, 0.5);
        let mut seen: Vec<u64> = (0..keys).map(|n| d.shuffled(n)).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..keys).collect::<Vec<_>>());
    }
}

#[test]
fn values_have_their_size_and_are_verified() {
    for size in [0, 3, 8, 9, 128, 3 << 20] {
        let d = Data::new(7, 100, 16, size, 0.5);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        d.value(5, 1, &mut a);
        d.value(5, 1, &mut b);
        assert_eq!((a.len(), &a), (size, &b));
        assert!(d.is_value_of(5, &a));
        if size >= 8 {
            assert!(!d.is_value_of(6, &a));
            assert!(!d.is_value_of(5, &a[1..]));
        }
    }
    let d = Data::new(7, 100, 24, 9, 0.0);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    d.key(255, &mut a);
    d.key(256, &mut b);
    assert!(a < b && a.len() == 24);
}

#[test]
fn absent_and_inserted_keys_lie_between_the_loaded_ones() {
    for random in [false, true] {
        check_key_order(&Data::new(7, 50, 36, 10, 0.5).with_random_keys(random));
    }
}

fn check_key_order(d: &Data) {
    let key = |n: u64| {
        let mut out = Vec::new();
        d.key(n, &mut out);
        out
    };
    let filled: Vec<Vec<u8>> = (0..50).map(key).collect();
    assert!(filled.is_sorted());
    let mut all: std::collections::BTreeSet<Vec<u8>> = filled.iter().cloned().collect();
    for n in 0..50 {
        let absent = key(50 + n);
        assert!(absent > filled[n as usize]);
        assert!(filled.get(n as usize + 1).is_none_or(|next| absent < *next));
        all.insert(absent);
    }
    // Added keys, also those of a second round, meet none of the others.
    for i in 0..100 {
        assert!(!d.is_filled(d.inserted(i)));
        all.insert(key(d.inserted(i)));
    }
    assert_eq!(all.len(), 200);
    let first_round = (0..50).map(|i| key(d.inserted(i)));
    assert!(first_round.filter(|k| *k < filled[49]).count() >= 49);
}

#[test]
fn live_bytes_are_the_sum_of_keys_and_values() {
    use crate::sizes::SizesAsked;
    let d = Data::new(7, 300, 16, 10, 0.5);
    assert_eq!(d.live_bytes(), 300 * 26);
    let d = d.with_sizes(Sizes::new(&SizesAsked::Pareto(200), 0).unwrap_or(Sizes::fixed(0)));
    let mut value = Vec::new();
    let mut sum = 0;
    for n in 0..300 {
        d.value(n, n * 3, &mut value);
        assert!(d.is_value_of(n, &value) && value.len() <= d.value_size());
        sum += 16 + value.len() as u64;
    }
    assert_eq!(d.live_bytes(), sum);
}

#[test]
fn a_value_is_that_of_its_key_and_version_alone() {
    for len in [8, 9, 100, 3 << 20] {
        let data = Data::new(3, 1000, 8, len, 0.5);
        let mut value = Vec::new();
        data.value(5, 7, &mut value);
        assert!(data.is_value(5, 7, &value));
        assert!(!data.is_value(6, 7, &value));
        assert!(!data.is_value(5, 7, &value[1..]));
        assert_eq!(data.is_value(5, 8, &value), len == 8);
        for at in [0, 7, len / 2, len - 1] {
            value[at] ^= 1;
            assert!(!data.is_value(5, 7, &value), "byte {at} of {len}");
            value[at] ^= 1;
        }
    }
}
