//! Tests of the module `store`.

use super::successor;

#[test]
fn the_end_of_a_prefix_is_its_successor() {
    assert_eq!(successor(b"ab"), Some(b"ac".to_vec()));
    assert_eq!(successor(b"a\xff\xff"), Some(b"b".to_vec()));
    assert_eq!(successor(b"\xff"), None);
    assert_eq!(successor(b""), None);
}
