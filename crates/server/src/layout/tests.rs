//! Tests of the module `layout`.

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The encodings equal the bytes in `docs/format/redis-keys.md`, and the document has every one of
/// them.
#[test]
fn golden_encodings_equal_the_document() {
    let header = CollectionHeader {
        data_type: DataType::Zset,
        encoding: 0,
        incarnation: 7,
        expire_at_ms: 1_700_000_000_000,
        len: 3,
    };
    let golden = [
        ("key", hex(&encode_key(0, 2, b"user:1"))),
        ("layout key", hex(&layout_key())),
        ("layout record", hex(&encode_layout())),
        ("generation key", hex(&generation_key(0))),
        ("generation record", hex(&2u32.to_le_bytes())),
        ("cursor key", hex(&cursor_key())),
        ("cursor record", hex(&((1u64 << 24) + 1).to_le_bytes())),
        (
            "string value",
            hex(&[&STRING_HEADER[..], b"hello"].concat()),
        ),
        ("zset header", hex(&header.encode())),
        (
            "hash element",
            hex(&[&element_prefix(0, 2, 7)[..], b"name"].concat()),
        ),
        (
            "list element",
            hex(&[&element_prefix(0, 2, 7)[..], &encode_index(-1)].concat()),
        ),
        (
            "zset score element",
            hex(&[
                &element_prefix(0, 2, 7)[..],
                &[1],
                &encode_score(1.5),
                b"bob",
            ]
            .concat()),
        ),
    ];
    let document = include_str!("../../../../docs/format/redis-keys.md");
    for (name, bytes) in &golden {
        assert!(
            document.contains(bytes.as_str()),
            "docs/format/redis-keys.md lacks the {name}: {bytes}"
        );
    }
    assert_eq!(
        decode_cursor(&CURSOR_END.to_le_bytes()).unwrap(),
        CURSOR_END
    );
    for n in [0, CURSOR_END + 1] {
        assert!(decode_cursor(&n.to_le_bytes()).is_err());
    }
    assert!(decode_cursor(&[1, 0, 0, 0]).is_err());
    for n in 0..=5 {
        assert_eq!(DataType::from_u8(n).unwrap() as u8, n);
    }
    assert_eq!(DataType::from_u8(6), None);
    let encoded = header.encode();
    assert_eq!(
        CollectionHeader::decode(&encoded).unwrap(),
        (header, &[][..])
    );
    for cut in 0..encoded.len() {
        assert!(CollectionHeader::decode(&encoded[..cut]).is_err());
    }
}

#[test]
fn encoded_bytes_sort_as_their_values() {
    let scores = [
        f64::NEG_INFINITY,
        -1e300,
        -1.5,
        -f64::MIN_POSITIVE,
        0.0,
        f64::MIN_POSITIVE,
        1.0,
        1.5,
        f64::INFINITY,
    ];
    assert!(scores.is_sorted_by_key(|s| encode_score(*s)));
    for s in scores {
        assert_eq!(decode_score(encode_score(s)), s);
    }
    assert_eq!(encode_score(-0.0), encode_score(0.0));
    assert!([i64::MIN, -1, 0, 1, i64::MAX].is_sorted_by_key(|i| encode_index(*i)));
    assert_eq!(decode_key(&encode_key(3, 9, b"k")), Some((3, 9, &b"k"[..])));
    assert_eq!(decode_key(&layout_key()), None);
    assert_eq!(prefix_end(&[1, 0xff, 0xff]), [2]);
    assert!(check_layout(&encode_layout()).is_ok());
    assert_eq!(
        check_layout(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0])
            .unwrap_err()
            .kind(),
        ErrorKind::Unsupported
    );
    assert!(check_layout(b"x").unwrap_err().is_corruption());
    assert_eq!(
        value_type(&[0x10]).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert!(value_type(&[]).unwrap_err().is_corruption());
}
