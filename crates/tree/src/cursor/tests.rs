//! Unit tests of `cursor`.

use super::*;

/// Keys in two parts compare as whole ones, wherever they are cut.
#[test]
fn keys_in_two_parts_compare_as_whole_ones() {
    let keys: [&[u8]; 9] = [
        b"", b"a", b"aa", b"aab", b"ab", b"abc", b"abcd", b"b", b"ba",
    ];
    for (a, b) in keys.iter().flat_map(|a| keys.map(|b| (*a, b))) {
        for (i, j) in (0..=a.len()).flat_map(|i| (0..=b.len()).map(move |j| (i, j))) {
            let order = compare(a.split_at(i), b.split_at(j));
            assert_eq!(order, a.cmp(b), "{a:?} cut at {i}, {b:?} cut at {j}");
        }
    }
}
