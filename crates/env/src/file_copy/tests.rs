//! Reads of files of which ranges were released.

use super::*;

/// A file of ten blocks and a half, of which two cannot be read.
fn read(at: u64, len: usize) -> Result<Bytes> {
    let end = (at + len as u64).min(10 * RELEASED_BLOCK + 2048);
    let blocks = at / RELEASED_BLOCK..end.div_ceil(RELEASED_BLOCK);
    match blocks.clone().any(|block| block == 3 || block == 7) {
        true => Err(Error::new(ErrorKind::Corruption, "released")),
        false => Ok((at..end)
            .map(|at| (at / 100) as u8 | 1)
            .collect::<Vec<u8>>()
            .into()),
    }
}

#[test]
fn blocks_that_cannot_be_read_are_zeros() {
    let whole = 10 * RELEASED_BLOCK + 2048;
    for (at, len) in [(0, whole), (5000, 30_000), (12_288, 4096), (40_000, 10_000)] {
        let bytes = read_sparse(at, len as usize, &read).unwrap();
        assert_eq!(bytes.len() as u64, len.min(whole - at), "{at} {len}");
        for (at, byte) in (at..).zip(bytes.iter()) {
            let expected = match at / RELEASED_BLOCK {
                3 | 7 => 0,
                _ => (at / 100) as u8 | 1,
            };
            assert_eq!(*byte, expected, "{at}");
        }
    }
}

#[test]
fn an_error_of_the_device_is_no_released_block() {
    let read = |_: u64, _: usize| Err(Error::new(ErrorKind::Io, "broken"));
    let e = read_sparse(0, 10_000, &read).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
}
