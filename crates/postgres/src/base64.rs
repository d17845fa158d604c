//! Base64 (RFC 4648), for SCRAM.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes, with padding.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let group = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for i in 0..4 {
            match i <= chunk.len() {
                true => out.push(DIGITS[(group >> (18 - 6 * i) & 63) as usize] as char),
                false => out.push('='),
            }
        }
    }
    out
}

/// Decodes a text with padding. Returns `None` if it is malformed.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(4) {
        return None;
    }
    let padding = bytes.iter().rev().take_while(|b| **b == b'=').count();
    let digits = bytes.get(..bytes.len() - padding)?;
    if padding > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(bytes.len() / 4 * 3);
    for chunk in digits.chunks(4) {
        let mut group = 0_u32;
        for byte in chunk {
            let digit = DIGITS.iter().position(|d| d == byte)?;
            group = (group << 6) | digit as u32;
        }
        group <<= 6 * (4 - chunk.len());
        let [_, decoded @ ..] = group.to_be_bytes();
        out.extend_from_slice(&decoded[..chunk.len() - 1]);
    }
    Some(out)
}
