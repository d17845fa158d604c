//! Unit tests of `reference`.

use super::*;
use crate::key::MAX_SEQ;

#[test]
fn blob_references_round_trip_and_other_bytes_are_refused() {
    let mut out = Vec::new();
    for number in [1, 63, 64, 12_345_678, MAX_FILE_NUMBER - 1] {
        let expiries = [None, Some(0), Some(u64::MAX)];
        let seqs = [None, Some(0), Some(1), Some(MAX_SEQ)];
        for (expire_at_ms, seq) in
            (expiries.iter()).flat_map(|at| seqs.iter().map(move |seq| (*at, *seq)))
        {
            let r = Reference {
                number,
                expire_at_ms,
                seq,
            };
            out.clear();
            r.encode(&mut out);
            assert_eq!(Reference::decode(&out).unwrap(), r);
            for cut in 0..out.len() {
                assert!(
                    Reference::decode(&out[..cut]).is_err(),
                    "{r:?} cut at {cut}"
                );
            }
            out.push(0);
            assert!(Reference::decode(&out).is_err(), "{r:?} and a byte");
        }
    }
    for wrong in [
        &[0][..],
        &[1, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0xff; 9],
        &[0, 7],
        &[0, 7, 0],
    ] {
        let e = Reference::decode(wrong).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{wrong:?}");
    }
}
