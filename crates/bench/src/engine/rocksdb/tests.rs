//! Tests of the module `rocksdb`.

use super::*;

#[test]
fn the_stall_line_of_rocksdb_is_parsed() {
    let text = "Uptime(secs): 3\nCumulative stall: 01:02:3.500 H:M:S, 4.0 percent\n";
    assert_eq!(stall_us(text), Some((3600 + 120 + 3) * 1_000_000 + 500_000));
    assert_eq!(stall_us("nothing"), None);
}
