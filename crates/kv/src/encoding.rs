//! Numbers as bytes: varints and little-endian integers.

use basalt_fs::AlignedBuf;

/// Appends `n` as a varint: 7 bits for each byte, the lowest first.
pub fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Reads a varint of at most `max_bits` bits (32 or 63). Returns `None` if it is cut off, too long,
/// or longer than necessary.
#[inline]
pub fn get_varint(bytes: &[u8], at: &mut usize, max_bits: u32) -> Option<u64> {
    let mut n = 0u64;
    let mut shift = 0;
    while shift < max_bits {
        let b = *bytes.get(*at)?;
        *at += 1;
        n |= u64::from(b & 0x7f) << shift;
        if b < 0x80 {
            let shortest = b != 0 || shift == 0;
            return (shortest && n >> max_bits == 0).then_some(n);
        }
        shift += 7;
    }
    None
}

/// Reads a varint of at most 64 bits. Returns `None` if it is cut off, too long, or longer than
/// necessary.
#[inline]
pub fn get_varint64(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let b = *bytes.get(*at)?;
        *at += 1;
        let part = u64::from(b & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        n |= part << shift;
        if b < 0x80 {
            return (b != 0 || shift == 0).then_some(n);
        }
    }
    None
}

/// Maps signed numbers to unsigned ones so that numbers near 0 become small.
#[inline]
pub fn zigzag(n: i64) -> u64 {
    (n << 1 ^ n >> 63) as u64
}

/// Undoes [`zigzag`].
#[inline]
pub fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// Reads 4 little-endian bytes. Panics if there are fewer.
pub fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("4 bytes"))
}

/// Reads 8 little-endian bytes. Panics if there are fewer.
pub fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("8 bytes"))
}

/// Returns the bytes that `n` takes as a varint, 1 to 10.
pub fn varint_len(n: u64) -> usize {
    (64 - (n | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends `n` as a varint to an aligned buffer.
pub fn put_varint_aligned(buf: &mut AlignedBuf, n: u64) {
    let (bytes, len) = varint(n);
    buf.extend_from_slice(&bytes[..len]);
}

/// Encodes a number as a varint. Returns a buffer and the number of bytes used, 1 to 10.
#[inline]
pub fn varint(mut n: u64) -> ([u8; 10], usize) {
    let (mut bytes, mut len) = ([0u8; 10], 0);
    while n >= 0x80 {
        bytes[len] = n as u8 | 0x80;
        n >>= 7;
        len += 1;
    }
    bytes[len] = n as u8;
    (bytes, len + 1)
}

/// Reads a varint of at most 32 bits. Returns `None` if it is cut off or too long.
pub fn get_varint32(bytes: &[u8], at: &mut usize) -> Option<u32> {
    let mut n = 0u64;
    for shift in (0..35).step_by(7) {
        let b = *bytes.get(*at)?;
        *at += 1;
        n |= u64::from(b & 0x7f) << shift;
        if b < 0x80 {
            return u32::try_from(n).ok();
        }
    }
    None
}
