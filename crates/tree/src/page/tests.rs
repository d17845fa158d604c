//! The lengths of entries.

use super::*;
use basalt_env::Random;
use basalt_kv::encoding::put_varint;

/// Entries of usual lengths are decoded without the loop over bytes of a varint. Both ways accept
/// the same bytes.
#[test]
fn lengths_are_decoded_as_varints_are() {
    let as_varints = |body: &[u8]| {
        let mut at = 0;
        let key = get_varint(body, &mut at, 32)?;
        let value = get_varint(body, &mut at, 32)?;
        Some((key as usize, value as usize, at))
    };
    let decoded = |body: &[u8]| {
        let mut at = 0;
        let (key, value) = lengths(body, &mut at)?;
        Some((key, value, at))
    };
    let edges = [0, 1, 127, 128, 129, 16_383, 16_384, 2_097_152, 1 << 30];
    for key in edges {
        for value in edges {
            let mut body = Vec::new();
            put_varint(&mut body, key);
            put_varint(&mut body, value);
            let end = body.len();
            body.extend_from_slice(&[7; 3]);
            let expected = (key as usize, value as usize, end);
            assert_eq!(decoded(&body), Some(expected));
            // A body that ends in or behind the lengths.
            for len in 0..body.len() {
                assert_eq!(decoded(&body[..len]), as_varints(&body[..len]), "{len}");
            }
        }
    }
    let random = Random::from_seed(1);
    let mut accepted = 0;
    for _ in 0..100_000 {
        let bytes = [0; 8].map(|_: u8| match random.one_in(3) {
            true => [0, 0x7f, 0x80, 0xff][random.below(4) as usize],
            false => random.next_u64() as u8,
        });
        let body = &bytes[..random.below(9) as usize];
        assert_eq!(decoded(body), as_varints(body), "{body:?}");
        accepted += usize::from(decoded(body).is_some());
    }
    assert!(accepted > 10_000, "{accepted}");
}
