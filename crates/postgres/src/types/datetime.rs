//! Dates and times between their canonical texts and PostgreSQL's binary numbers: days since
//! 2000-01-01, and microseconds since that day's midnight.

use std::fmt::Write as _;

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;
/// Days from 1970-01-01 to 2000-01-01.
const EPOCH: i64 = 10_957;
/// The first and the last day of timestamps: 4713-01-01 BC and 294276-12-31.
const DAYS: std::ops::RangeInclusive<i64> = -2_451_507..=106_751_990;

/// Returns the number of days from 1970-01-01 to a day of the Gregorian calendar.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // The year begins in March, so that the leap day is its last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Returns year, month and day of a number of days since 1970-01-01.
fn civil_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// Parses digits alone.
fn digits(text: &str) -> Option<i64> {
    let all = !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    all.then(|| text.parse().ok()).flatten()
}

/// Returns the days since 2000-01-01 of `YYYY-MM-DD`, also with ` BC` after it.
pub fn parse_date(text: &str) -> Option<i32> {
    match text {
        "infinity" => return Some(i32::MAX),
        "-infinity" => return Some(i32::MIN),
        _ => {}
    }
    let (text, is_before_christ) = match text.strip_suffix(" BC") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let mut parts = text.split('-');
    let year = digits(parts.next()?)?;
    let (month, day) = (digits(parts.next()?)?, digits(parts.next()?)?);
    if parts.next().is_some() || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if is_before_christ { 1 - year } else { year };
    i32::try_from(days_of(year, month, day) - EPOCH).ok()
}

/// Returns the microseconds since midnight of `HH:MM:SS[.ffffff]`.
pub fn parse_time(text: &str) -> Option<i64> {
    let (clock, fraction) = match text.split_once('.') {
        Some((clock, fraction)) => (clock, fraction),
        None => (text, ""),
    };
    let mut parts = clock.split(':');
    let (hour, minute) = (digits(parts.next()?)?, digits(parts.next()?)?);
    let second = match parts.next() {
        Some(second) => digits(second)?,
        None => 0,
    };
    if parts.next().is_some() || hour > 24 || minute > 59 || second > 60 || fraction.len() > 6 {
        return None;
    }
    let micros = match fraction {
        "" => 0,
        _ => digits(fraction)? * 10_i64.pow(6 - fraction.len() as u32),
    };
    Some(((hour * 60 + minute) * 60 + second) * 1_000_000 + micros)
}

/// Returns the microseconds since 2000-01-01 of `YYYY-MM-DD HH:MM:SS[.ffffff]`.
pub fn parse_timestamp(text: &str) -> Option<i64> {
    match text {
        "infinity" => return Some(i64::MAX),
        "-infinity" => return Some(i64::MIN),
        _ => {}
    }
    let (text, is_before_christ) = match text.strip_suffix(" BC") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (date, time) = text.split_once(' ')?;
    let days = match is_before_christ {
        true => parse_date(&format!("{date} BC"))?,
        false => parse_date(date)?,
    };
    i64::from(days)
        .checked_mul(DAY)?
        .checked_add(parse_time(time)?)
}

/// Writes `YYYY-MM-DD` of days since 1970-01-01. Returns whether the year is before Christ.
fn write_day(days: i64, out: &mut String) -> bool {
    let (year, month, day) = civil_of(days);
    let is_before_christ = year <= 0;
    let year = if is_before_christ { 1 - year } else { year };
    let _ = write!(out, "{year:04}-{month:02}-{day:02}");
    is_before_christ
}

/// Writes a date of days since 2000-01-01. Returns `None` if it is out of range.
pub fn date_text(days: i32) -> Option<String> {
    match days {
        i32::MAX => return Some("infinity".into()),
        i32::MIN => return Some("-infinity".into()),
        _ => {}
    }
    let days = i64::from(days);
    // The last day of dates is 5874897-12-31.
    if !(*DAYS.start()..2_145_031_949).contains(&days) {
        return None;
    }
    let mut out = String::with_capacity(10);
    if write_day(days + EPOCH, &mut out) {
        out.push_str(" BC");
    }
    Some(out)
}

/// Writes a time of microseconds since midnight. Returns `None` if it is out of range.
pub fn time_text(micros: i64) -> Option<String> {
    (0..=DAY).contains(&micros).then(|| {
        let mut out = String::with_capacity(15);
        write_time(micros, &mut out);
        out
    })
}

fn write_time(micros: i64, out: &mut String) {
    let seconds = micros / 1_000_000;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let _ = write!(out, "{hour:02}:{minute:02}:{second:02}");
    let fraction = micros % 1_000_000;
    if fraction != 0 {
        let _ = write!(out, ".{fraction:06}");
        out.truncate(out.trim_end_matches('0').len());
    }
}

/// Writes a timestamp of microseconds since 2000-01-01. Returns `None` if it is out of range.
pub fn timestamp_text(micros: i64) -> Option<String> {
    match micros {
        i64::MAX => return Some("infinity".into()),
        i64::MIN => return Some("-infinity".into()),
        _ => {}
    }
    let days = micros.div_euclid(DAY);
    if !DAYS.contains(&days) {
        return None;
    }
    let mut out = String::with_capacity(26);
    let is_before_christ = write_day(days + EPOCH, &mut out);
    out.push(' ');
    write_time(micros.rem_euclid(DAY), &mut out);
    if is_before_christ {
        out.push_str(" BC");
    }
    Some(out)
}
