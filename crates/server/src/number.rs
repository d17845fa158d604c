//! Strict reading and printing of numbers, as in Redis. `007`, `+1`, ` 1` and `-0` are no integers,
//! so that an integer has exactly one text.

/// Parses a signed 64-bit integer in canonical decimal.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let magnitude = parse_digits(digits)?;
    match (negative, magnitude) {
        (true, 0) => None,
        (true, m) if m == 1 << 63 => Some(i64::MIN),
        (true, m) => i64::try_from(m).ok().map(|n| -n),
        (false, m) => i64::try_from(m).ok(),
    }
}

/// Parses an unsigned 64-bit integer in canonical decimal.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    parse_digits(text)
}

fn parse_digits(digits: &[u8]) -> Option<u64> {
    match digits {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 20 => {
            let mut n = 0u64;
            for d in digits {
                if !d.is_ascii_digit() {
                    return None;
                }
                n = n.checked_mul(10)?.checked_add(u64::from(d - b'0'))?;
            }
            Some(n)
        }
        _ => None,
    }
}

/// Bytes from which on a text is no float, as in Redis. The largest number that INCRBYFLOAT prints
/// is far shorter.
const MAX_FLOAT_LEN: usize = 5 * 1024;

/// Parses a finite or infinite float as `strtod` does, without surrounding space. The result is
/// never NaN.
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    if text.is_empty() || text.len() >= MAX_FLOAT_LEN {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let n: f64 = text.parse().ok()?;
    (!n.is_nan()).then_some(n)
}

/// Formats a float as INCRBYFLOAT does: no exponent, no trailing zeros, at most 17 digits after the
/// point.
pub fn format_f64(n: f64) -> String {
    if n == 0.0 {
        return "0".into();
    }
    // Display gives the shortest text that reads back as the same number, and never uses an
    // exponent.
    let text = format!("{n}");
    match text.split_once('.') {
        Some((_, fraction)) if fraction.len() > 17 => {
            let text = format!("{n:.17}");
            let text = text.trim_end_matches('0').trim_end_matches('.');
            if text == "-0" {
                "0".into()
            } else {
                text.into()
            }
        }
        _ => text,
    }
}

/// Appends a decimal integer.
pub fn push_i64(out: &mut Vec<u8>, n: i64) {
    if n < 0 {
        out.push(b'-');
    }
    push_u64(out, n.unsigned_abs());
}

/// Appends a decimal integer.
pub fn push_u64(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests;
