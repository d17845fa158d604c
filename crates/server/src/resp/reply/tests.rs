//! Tests of the module `reply`.

use super::*;

#[test]
fn resp2_and_resp3_replies_have_the_documented_bytes() {
    let fill = |protocol| {
        let mut r = Reply::new(protocol);
        r.ok();
        r.simple("PONG");
        r.error("ERR a\r\nb");
        r.integer(-7);
        r.bulk(b"a\r\nb");
        r.null();
        r.null_array();
        r.array(1);
        r.map(2);
        r.set(3);
        r.verbatim("hi");
        String::from_utf8(r.to_vec()).unwrap()
    };
    assert_eq!(
        fill(Protocol::Resp2),
        "+OK\r\n+PONG\r\n-ERR a  b\r\n:-7\r\n$4\r\na\r\nb\r\n$-1\r\n*-1\r\n*1\r\n*4\r\n*3\r\n$2\r\nhi\r\n"
    );
    assert_eq!(
        fill(Protocol::Resp3),
        "+OK\r\n+PONG\r\n-ERR a  b\r\n:-7\r\n$4\r\na\r\nb\r\n_\r\n_\r\n*1\r\n%2\r\n~3\r\n=6\r\ntxt:hi\r\n"
    );
}

/// Regression test: a reply of a million names was copied twice on its way to the socket.
#[test]
fn a_long_reply_is_moved_and_not_copied() {
    let mut long = Reply::default();
    for _ in 0..REFER_FROM {
        long.integer(1);
    }
    let (at, bytes) = (long.tail.as_ptr(), long.len());
    let mut all = Reply::default();
    all.ok();
    long.drain_into(&mut all);
    all.ok();
    assert!(long.is_empty());
    assert_eq!(all.len(), bytes + 10);
    assert!(all.take_chunks().iter().any(|c| c.as_ptr() == at));
}

#[test]
fn large_values_are_sent_without_a_copy_in_order() {
    let value = Bytes::from(vec![b'x'; REFER_FROM]);
    let mut r = Reply::default();
    r.ok();
    r.bulk_shared(value.clone());
    r.integer(1);
    let mut all = Reply::default();
    all.integer(0);
    let expected = [b":0\r\n".as_slice(), &r.to_vec()].concat();
    r.drain_into(&mut all);
    assert!(r.is_empty());
    assert_eq!(all.len(), expected.len());
    assert_eq!(all.to_vec(), expected);
    let chunks = all.take_chunks();
    assert!(
        chunks.iter().any(|c| c.as_ptr() == value.as_ptr()),
        "the value was copied"
    );
    assert_eq!(chunks.concat(), expected);
    assert!(all.is_empty());
}
