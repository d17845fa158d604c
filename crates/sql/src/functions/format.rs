//! `to_char`, casts, and the text forms of bytes.

use super::Behaviour::Strict;
use super::times::{moment_of, week_of};
use super::{Arguments, Entry};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use crate::types::datetime::{DAY_US, SECOND_US, civil_from_days, days_from_civil, month_name};
use crate::types::decimal::Decimal;
use crate::value::{Value, ValueRef};

pub(super) const ENTRIES: &[Entry] = &[
    ("basalt_cast", 2, Strict, |a| {
        type_of(&a.text(1)?)?.cast(a.get(0)?.to_value())
    }),
    ("basalt_text", 2, Strict, |a| {
        let ty = type_of(&a.text(1)?)?;
        let mut out = String::new();
        match (ty, a.get(0)?) {
            (SqlType::Boolean, ValueRef::Integer(n)) => {
                out.push_str(if n == 0 { "false" } else { "true" });
            }
            (ty, value) => ty.write_text(value, &mut out),
        }
        Ok(Value::Text(out))
    }),
    ("basalt_to_char", 3, Strict, to_char),
];

fn type_of(name: &str) -> SqlResult<SqlType> {
    let error = || SqlError::internal(format!("a function names the unknown type {name}"));
    SqlType::from_name(name).ok_or_else(error)
}

fn to_char(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let (pattern, ty) = (a.text(1)?, a.text(2)?);
    let is_number = SqlType::from_name(&ty).is_some_and(SqlType::is_number);
    if is_number {
        return number_to_char(a.get(0)?, &pattern);
    }
    if ty == "interval" {
        return Err(SqlError::unsupported("to_char of an interval"));
    }
    moment_to_char(moment_of(a.get(0)?, &ty)?, &pattern)
}

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars
        .next()
        .map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}

/// The fields of patterns, longest first.
const FIELDS: [&str; 41] = [
    "HH24", "HH12", "YYYY", "Month", "MONTH", "month", "IYYY", "SSSS", "HH", "MI", "SS", "MS",
    "US", "YY", "MM", "Mon", "MON", "mon", "DDD", "DD", "Day", "DAY", "day", "Dy", "DY", "dy",
    "ID", "IW", "WW", "AM", "PM", "am", "pm", "TZ", "tz", "OF", "CC", "D", "Q", "W", "J",
];

fn moment_to_char(us: i64, pattern: &str) -> SqlResult<Value> {
    let mut out = String::new();
    let mut rest = pattern;
    let mut fill = true;
    let mut last_number = None;
    while let Some(first) = rest.chars().next() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').unwrap_or(quoted.len());
            out.push_str(&quoted[..end]);
            rest = quoted.get(end + 1..).unwrap_or("");
            continue;
        }
        if let Some(after) = rest.strip_prefix("FM") {
            fill = false;
            rest = after;
            continue;
        }
        if (rest.starts_with("TH") || rest.starts_with("th"))
            && let Some(n) = last_number.take()
        {
            match rest.starts_with("TH") {
                true => out.push_str(&ordinal(n).to_uppercase()),
                false => out.push_str(ordinal(n)),
            }
            rest = &rest[2..];
            continue;
        }
        let found = FIELDS.iter().find(|f| {
            rest.starts_with(**f)
                || rest.get(..f.len()).is_some_and(|r| {
                    // Fields of digits are also taken in lower case.
                    f.bytes()
                        .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
                        && r.eq_ignore_ascii_case(f)
                        && r.bytes()
                            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
                        && !matches!(**f, "D" | "Q" | "W" | "J" | "ID")
                })
        });
        match found {
            Some(field) => {
                last_number = write_field(field, us, fill, &mut out);
                rest = &rest[field.len()..];
                fill = true;
            }
            None => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
                last_number = None;
            }
        }
    }
    Ok(Value::Text(out))
}

fn ordinal(n: i64) -> &'static str {
    match (n % 100, n % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    }
}

/// Appends a field; returns its number, if it is one.
fn write_field(field: &str, us: i64, fill: bool, out: &mut String) -> Option<i64> {
    let (days, time) = (us.div_euclid(DAY_US), us.rem_euclid(DAY_US));
    let (year, month, day) = civil_from_days(days);
    let hour = time / (3600 * SECOND_US);
    let weekday = (days + 4).rem_euclid(7);
    let half_day = if hour % 12 == 0 { 12 } else { hour % 12 };
    let doy = days - days_from_civil(year, 1, 1) + 1;
    let name = |text: String, width: usize| match fill {
        true => format!("{text:width$}"),
        false => text,
    };
    let day_name = DAYS[weekday as usize];
    let text = match field {
        "Month" => name(capital(month_name(month)), 9),
        "MONTH" => name(month_name(month).to_uppercase(), 9),
        "month" => name(month_name(month).to_string(), 9),
        "Mon" => capital(&month_name(month)[..3]),
        "MON" => month_name(month)[..3].to_uppercase(),
        "mon" => month_name(month)[..3].to_string(),
        "Day" => name(day_name.to_string(), 9),
        "DAY" => name(day_name.to_uppercase(), 9),
        "day" => name(day_name.to_lowercase(), 9),
        "Dy" => day_name[..3].to_string(),
        "DY" => day_name[..3].to_uppercase(),
        "dy" => day_name[..3].to_lowercase(),
        "AM" | "PM" => if hour < 12 { "AM" } else { "PM" }.to_string(),
        "am" | "pm" => if hour < 12 { "am" } else { "pm" }.to_string(),
        "TZ" => "UTC".to_string(),
        "tz" => "utc".to_string(),
        "OF" => "+00".to_string(),
        _ => {
            let (n, width) = match field {
                "YYYY" => (year, 4),
                "YY" => (year % 100, 2),
                "IYYY" => (week_of(days).1, 4),
                "CC" => ((year + 99) / 100, 2),
                "Q" => ((month - 1) / 3 + 1, 1),
                "MM" => (month, 2),
                "IW" => (week_of(days).0, 2),
                "WW" => ((doy - 1) / 7 + 1, 2),
                "W" => ((day - 1) / 7 + 1, 1),
                "DDD" => (doy, 3),
                "DD" => (day, 2),
                "D" => (weekday + 1, 1),
                "ID" => ((days + 3).rem_euclid(7) + 1, 1),
                "J" => (days + 2_440_588, 1),
                "HH24" => (hour, 2),
                "HH12" | "HH" => (half_day, 2),
                "MI" => (time / (60 * SECOND_US) % 60, 2),
                "SSSS" => (time / SECOND_US, 1),
                "SS" => (time / SECOND_US % 60, 2),
                "MS" => (time % SECOND_US / 1000, 3),
                _ => (time % SECOND_US, 6),
            };
            let width = if fill { width } else { 1 };
            out.push_str(&format!("{n:0width$}"));
            return Some(n);
        }
    };
    out.push_str(&text);
    None
}

/// `to_char` of a number, for patterns of `9`, `0`, `.`, `,`, `D`, `G`, `FM`, `S` and `MI`.
fn number_to_char(value: ValueRef<'_>, pattern: &str) -> SqlResult<Value> {
    let (fill, body) = match pattern.strip_prefix("FM") {
        Some(rest) => (false, rest),
        None => (true, pattern),
    };
    let (leading_sign, body) = match body.strip_prefix('S') {
        Some(rest) => (true, rest),
        None => (false, body),
    };
    let body: String = body.replace('D', ".").replace('G', ",");
    let known = |c: char| "09.,".contains(c);
    if !body.chars().all(known) || body.matches('.').count() > 1 || body.is_empty() {
        return Err(SqlError::unsupported(format!(
            "the to_char pattern \"{pattern}\""
        )));
    }
    let (whole, fraction) = body.split_once('.').unwrap_or((&body, ""));
    let scale = fraction.chars().filter(|c| *c != ',').count();
    let decimal = match value {
        ValueRef::Integer(n) => Decimal::from_integer(n),
        ValueRef::Real(x) => Decimal::from_real(x).ok_or_else(|| {
            SqlError::new(
                SqlState::NUMERIC_OUT_OF_RANGE,
                "to_char of an infinite number",
            )
        })?,
        _ => {
            return Err(SqlError::internal(
                "to_char of a value that is not a number",
            ));
        }
    };
    let text = decimal.round(scale as i32).text(scale);
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest.to_owned()),
        None => (false, text),
    };
    let (digits, behind) = text.split_once('.').unwrap_or((&text, ""));
    let digits = digits.trim_start_matches('0');
    let places: Vec<char> = whole.chars().filter(|c| *c != ',').collect();
    let mut display = String::new();
    if digits.len() > places.len() {
        display.extend(whole.chars().map(|c| if c == ',' { ',' } else { '#' }));
    } else {
        // From the first `0` of the pattern, digits are always shown.
        let first_zero = places
            .iter()
            .position(|c| *c == '0')
            .unwrap_or(places.len());
        let skip = places.len() - digits.len();
        let mut digits = digits.chars();
        let (mut place, mut started) = (0, false);
        for c in whole.chars() {
            if c == ',' {
                display.push(if started { ',' } else { ' ' });
                continue;
            }
            if place >= skip {
                started = true;
                display.extend(digits.next());
            } else if place >= first_zero {
                started = true;
                display.push('0');
            } else {
                display.push(' ');
            }
            place += 1;
        }
    }
    if body.contains('.') {
        display.push('.');
        display.push_str(behind);
    }
    // The sign stands before the first digit.
    let blanks = display.chars().take_while(|c| *c == ' ').count();
    let sign = match (negative, leading_sign) {
        (true, _) => "-",
        (false, true) => "+",
        (false, false) => " ",
    };
    let mut out = format!("{}{sign}{}", &display[..blanks], &display[blanks..]);
    if !fill {
        out = out.trim_start().to_owned();
        if out.contains('.') && fraction.contains('9') {
            let keep = fraction.rfind('0').map_or(0, |at| at + 1);
            let point = out.find('.').unwrap_or(0);
            while out.len() > point + 1 + keep && out.ends_with('0') {
                out.pop();
            }
        }
    }
    Ok(Value::Text(out))
}

/// Returns bytes in base64, in lines of 76 characters as PostgreSQL writes them.
pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for (at, chunk) in bytes.chunks(3).enumerate() {
        if at > 0 && at % 19 == 0 {
            out.push('\n');
        }
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            if place > chunk.len() {
                out.push('=');
            } else {
                out.push(char::from(DIGITS[(bits >> (18 - 6 * place) & 63) as usize]));
            }
        }
    }
    out
}

/// Returns the MD5 digest (RFC 1321).
pub(super) fn md5(bytes: &[u8]) -> [u8; 16] {
    const SHIFTS: [[u32; 4]; 4] = [
        [7, 12, 17, 22],
        [5, 9, 14, 20],
        [4, 11, 16, 23],
        [6, 10, 15, 21],
    ];
    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    let mut message = bytes.to_vec();
    message.push(0x80);
    while message.len() % 64 != 56 {
        message.push(0);
    }
    message.extend((bytes.len() as u64).wrapping_mul(8).to_le_bytes());
    for block in message.chunks_exact(64) {
        let word = |at: usize| {
            let bytes = &block[at * 4..at * 4 + 4];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        let [mut a, mut b, mut c, mut d] = state;
        for step in 0..64_usize {
            let (mix, at) = match step / 16 {
                0 => ((b & c) | (!b & d), step),
                1 => ((d & b) | (!d & c), (5 * step + 1) % 16),
                2 => (b ^ c ^ d, (3 * step + 5) % 16),
                _ => (c ^ (b | !d), (7 * step) % 16),
            };
            // The constants are the digits of the sine, as the RFC defines them.
            let constant = (((step + 1) as f64).sin().abs() * 4_294_967_296.0) as u32;
            let sum = a
                .wrapping_add(mix)
                .wrapping_add(constant)
                .wrapping_add(word(at));
            let turned = sum.rotate_left(SHIFTS[step / 16][step % 4]);
            (a, d, c, b) = (d, c, b, b.wrapping_add(turned));
        }
        for (total, part) in state.iter_mut().zip([a, b, c, d]) {
            *total = total.wrapping_add(part);
        }
    }
    let mut out = [0; 16];
    for (at, word) in state.iter().enumerate() {
        out[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
    }
    out
}
