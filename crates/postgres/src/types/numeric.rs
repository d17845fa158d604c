//! NUMERIC between decimal texts and PostgreSQL's binary form: digits of base 10,000 with a weight,
//! a sign and a scale.

use std::fmt::Write as _;

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;
/// Maximum number of digits after the point.
const LARGEST_SCALE: usize = 16_383;
/// Largest number of digits before the point.
const LARGEST_WHOLE: usize = 131_072;

fn put_header(out: &mut Vec<u8>, digits: u16, weight: i16, sign: u16, scale: u16) {
    out.extend_from_slice(&digits.to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&scale.to_be_bytes());
}

/// Appends the binary form of a decimal text such as `-12.50`. Returns `None`, and may have
/// appended a part, if the text is none or has too many digits.
pub fn put_numeric(text: &str, out: &mut Vec<u8>) -> Option<()> {
    match text {
        "NaN" => put_header(out, 0, 0, NAN, 0),
        "Infinity" | "inf" => put_header(out, 0, 0, INFINITY, 0),
        "-Infinity" | "-inf" => put_header(out, 0, 0, NEGATIVE_INFINITY, 0),
        _ if text.contains(['e', 'E']) => {
            let x: f64 = text.parse().ok()?;
            return put_decimal(&x.to_string(), out);
        }
        _ => return put_decimal(text, out),
    }
    Some(())
}

fn put_decimal(text: &str, out: &mut Vec<u8>) -> Option<()> {
    let (text, sign) = match text.strip_prefix('-') {
        Some(text) => (text, NEGATIVE),
        None => (text, 0),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.len() + fraction.len() == 0 || !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    let whole = whole.trim_start_matches('0');
    if whole.len() > LARGEST_WHOLE || fraction.len() > LARGEST_SCALE {
        return None;
    }
    let groups_before = whole.len().div_ceil(4);
    let begin = out.len();
    put_header(out, 0, 0, sign, fraction.len() as u16);
    let digit_at = |part: &str, i: usize| part.as_bytes().get(i).map_or(0, |b| u16::from(b - b'0'));
    let mut weight = groups_before as i32 - 1;
    let mut count = 0_u16;
    // Length of `out` after the last group that is not zero.
    let mut kept = out.len();
    let mut put = |group: u16, out: &mut Vec<u8>| {
        if count == 0 && group == 0 {
            weight -= 1;
            return;
        }
        out.extend_from_slice(&group.to_be_bytes());
        count += 1;
        if group != 0 {
            kept = out.len();
        }
    };
    let missing = groups_before * 4 - whole.len();
    for group in 0..groups_before {
        let value = (0..4).fold(0, |value, i| {
            let at = (group * 4 + i).checked_sub(missing);
            value * 10 + at.map_or(0, |at| digit_at(whole, at))
        });
        put(value, out);
    }
    for group in 0..fraction.len().div_ceil(4) {
        let value = (0..4).fold(0, |value, i| value * 10 + digit_at(fraction, group * 4 + i));
        put(value, out);
    }
    out.truncate(kept);
    let count = ((out.len() - begin - 8) / 2) as u16;
    let (weight, sign) = match count {
        0 => (0, 0),
        _ => (i16::try_from(weight).ok()?, sign),
    };
    out[begin..begin + 2].copy_from_slice(&count.to_be_bytes());
    out[begin + 2..begin + 4].copy_from_slice(&weight.to_be_bytes());
    out[begin + 4..begin + 6].copy_from_slice(&sign.to_be_bytes());
    Some(())
}

/// Returns the decimal text of a binary form, or `None` if it is malformed.
pub fn numeric_text(bytes: &[u8]) -> Option<String> {
    let word = |i: usize| {
        let pair = bytes.get(i * 2..i * 2 + 2)?;
        Some(u16::from_be_bytes(pair.try_into().ok()?))
    };
    let (count, weight) = (usize::from(word(0)?), i32::from(word(1)? as i16));
    let (sign, scale) = (word(2)?, usize::from(word(3)?));
    if bytes.len() != 8 + count * 2 || scale > LARGEST_SCALE {
        return None;
    }
    match sign {
        NAN => return Some("NaN".into()),
        INFINITY => return Some("Infinity".into()),
        NEGATIVE_INFINITY => return Some("-Infinity".into()),
        0 | NEGATIVE => {}
        _ => return None,
    }
    let mut groups = Vec::with_capacity(count);
    for i in 0..count {
        let group = word(4 + i)?;
        if group >= 10_000 {
            return None;
        }
        groups.push(group);
    }
    let group_at = |position: i32| {
        let at = usize::try_from(weight - position).ok();
        at.and_then(|at| groups.get(at)).copied().unwrap_or(0)
    };
    let mut out = String::new();
    for position in (0..=weight.max(0)).rev() {
        let _ = match out.is_empty() {
            true if position > 0 && group_at(position) == 0 => Ok(()),
            true => write!(out, "{}", group_at(position)),
            false => write!(out, "{:04}", group_at(position)),
        };
    }
    if out.len() > LARGEST_WHOLE {
        return None;
    }
    if scale > 0 {
        out.push('.');
        let point = out.len();
        for group in 1..=scale.div_ceil(4) {
            let _ = write!(out, "{:04}", group_at(-(group as i32)));
        }
        out.truncate(point + scale);
    }
    if sign == NEGATIVE {
        out.insert(0, '-');
    }
    Some(out)
}
