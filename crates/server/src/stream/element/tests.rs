//! Tests of the module `element`.

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn examples() -> [Element; 4] {
    let id = StreamId::new(1_700_000_000_000, 2);
    [
        Element::Tombstone { lsn: 5 },
        Element::Group {
            group: 1,
            last_id: id,
            entries_read: Some(9),
            name: Bytes::from_static(b"g"),
        },
        Element::Consumer {
            group: 1,
            consumer: 3,
            seen_ms: 1_700_000_000_000,
            name: Bytes::from_static(b"alice"),
        },
        Element::Pending {
            group: 1,
            consumer: 3,
            id,
            lsn: 9,
            delivered_ms: 1_700_000_000_000,
            deliveries: 1,
        },
    ]
}

/// The encodings equal the bytes in `docs/format/redis-keys.md`, and order as the module says.
#[test]
fn golden_encodings_equal_the_document() {
    let document = include_str!("../../../../../docs/format/redis-keys.md");
    let prefix = prefix(2, 7);
    let encoded = examples().map(|element| encode(&prefix, &element));
    for ((key, value), element) in encoded.iter().zip(examples()) {
        for bytes in [hex(key), hex(value)] {
            assert!(document.contains(&bytes), "the document lacks {bytes}");
        }
        assert_eq!(decode(key, value).unwrap(), element);
    }
    assert!(encoded.is_sorted(), "groups, consumers, pending entries");
    let unknown = Element::Group {
        group: 0,
        last_id: StreamId::MAX,
        entries_read: None,
        name: Bytes::new(),
    };
    let (key, value) = encode(&prefix, &unknown);
    assert_eq!(decode(&key, &value).unwrap(), unknown);
}

#[test]
fn damaged_elements_are_refused() {
    let prefix = prefix(2, 7);
    for element in examples() {
        let (key, value) = encode(&prefix, &element);
        for cut in 0..key.len() {
            assert!(
                decode(&key[..cut], &value).is_err(),
                "{element:?}, key of {cut}"
            );
        }
        assert!(decode(&[&key[..], &[0]].concat(), &value).is_err());
        let name = match &element {
            Element::Group { name, .. } | Element::Consumer { name, .. } => name.len(),
            _ => 0,
        };
        for cut in 0..value.len() - name {
            assert!(
                decode(&key, &value[..cut]).is_err(),
                "{element:?}, value of {cut}"
            );
        }
        if name == 0 {
            assert!(decode(&key, &[&value[..], &[0]].concat()).is_err());
        }
        let mut newer = key.to_vec();
        newer[PREFIX_LEN] = 4;
        let e = decode(&newer, &value).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
    }
}
