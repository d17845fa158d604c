//! Tests of the module `record`.

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The encodings equal the bytes in `docs/format/redis-keys.md`.
#[test]
fn golden_encodings_equal_the_document() {
    let id = StreamId::new(1_700_000_000_000, 2);
    let words: [&[u8]; 2] = [b"a", b"bc"];
    let record = encode_record(id, 3, 9, words.into_iter());
    let state = StreamState {
        last_id: id,
        max_deleted_id: StreamId::MIN,
        entries_added: 9,
        first_lsn: 3,
        next_lsn: 10,
    };
    let value = [&[5][..], &encode_state(7, None, 7, &state)].concat();
    let document = include_str!("../../../../../docs/format/redis-keys.md");
    for bytes in [hex(&record), hex(&value)] {
        assert!(document.contains(&bytes), "the document lacks {bytes}");
    }
    assert!(value.len() < crate::layout::LEAST_MIN_BLOB_SIZE);
    let decoded = decode_record(&record).unwrap();
    assert_eq!(
        (decoded.id, decoded.first_lsn, decoded.entries_added),
        (id, 3, 9)
    );
    let mut found = Vec::new();
    decoded.for_each_word(|w| found.push(w.to_vec()));
    assert_eq!(found, words);
    let (header, again) = decode_state(&value[1..]).unwrap();
    assert_eq!((header.incarnation, header.len, again), (7, 7, state));
}

#[test]
fn damaged_encodings_are_refused() {
    let words: [&[u8]; 4] = [b"field", b"value", b"", b"x"];
    let record = encode_record(StreamId::new(1, 1), 1, 1, words.into_iter());
    for cut in 0..record.len() {
        assert!(decode_record(&record.slice(..cut)).is_err(), "cut at {cut}");
    }
    for at in 0..record.len() {
        for bit in 0..8 {
            let mut bytes = record.to_vec();
            bytes[at] ^= 1 << bit;
            // Nothing panics, and what is accepted has the announced number of words.
            if let Ok(r) = decode_record(&bytes.into()) {
                let mut n = 0;
                r.for_each_word(|_| n += 1);
                assert_eq!(n, r.words);
            }
        }
    }
    let mut newer = record.to_vec();
    newer[0] = 2;
    let e = decode_record(&newer.into()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    let value = encode_state(7, Some(5), 0, &StreamState::default());
    for cut in 0..value.len() {
        assert!(decode_state(&value[..cut]).is_err(), "cut at {cut}");
    }
    let mut wrong = value.to_vec();
    wrong[65] = 9;
    assert!(decode_state(&wrong).unwrap_err().is_corruption());
}
