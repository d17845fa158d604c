//! Dates, times, timestamps and intervals: their texts, and arithmetic of the proleptic Gregorian
//! calendar.
//!
//! A moment is a number of microseconds since 1970-01-01 00:00:00 UTC. Years go from 1 to 9999, so
//! that the order of canonical texts is the order of moments.

use crate::error::{SqlError, SqlResult, SqlState};
use std::fmt::Write;

/// Microseconds of a day.
pub(crate) const DAY_US: i64 = 86_400_000_000;

/// Microseconds of a second.
pub(crate) const SECOND_US: i64 = 1_000_000;

/// Returns the days from 1970-01-01 to a date of the proleptic Gregorian calendar.
pub(crate) fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted = (month + 9) % 12;
    let day_of_year = (153 * shifted + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Returns year, month and day of a number of days since 1970-01-01.
pub(crate) fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// Returns the days of a month.
pub(crate) fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn overflow(text: &str) -> SqlError {
    let message = format!("date/time field value out of range: \"{text}\"");
    SqlError::new(SqlState::DATETIME_OVERFLOW, message)
}

fn invalid(what: &str, text: &str) -> SqlError {
    let message = format!("invalid input syntax for type {what}: \"{text}\"");
    SqlError::new(SqlState::INVALID_DATETIME, message)
}

/// Returns the days of a date, or an error if there is no such date or its year is not from 1 to
/// 9999.
pub(crate) fn checked_date(year: i64, month: i64, day: i64, text: &str) -> SqlResult<i64> {
    let exists = (1..=9999).contains(&year)
        && (1..=12).contains(&month)
        && day >= 1
        && day <= days_in_month(year, month);
    match exists {
        true => Ok(days_from_civil(year, month, day)),
        false => Err(overflow(text)),
    }
}

/// Fails if a moment is outside of the years 1 to 9999.
pub(crate) fn checked_moment(us: i64) -> SqlResult<i64> {
    let first = days_from_civil(1, 1, 1) * DAY_US;
    let end = days_from_civil(10_000, 1, 1) * DAY_US;
    match (first..end).contains(&us) {
        true => Ok(us),
        false => Err(SqlError::new(
            SqlState::DATETIME_OVERFLOW,
            "timestamp out of range",
        )),
    }
}

/// Fails if a number of days is outside of the years 1 to 9999.
pub(crate) fn checked_days(days: i64) -> SqlResult<i64> {
    let range = days_from_civil(1, 1, 1)..days_from_civil(10_000, 1, 1);
    match range.contains(&days) {
        true => Ok(days),
        false => Err(SqlError::new(
            SqlState::DATETIME_OVERFLOW,
            "date out of range",
        )),
    }
}

/// Reads a text from its beginning.
struct Scanner<'t> {
    rest: &'t str,
}

impl<'t> Scanner<'t> {
    fn eat(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Returns the digits at the beginning, at most 18.
    fn digits(&mut self) -> Option<(&'t str, i64)> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit());
        let end = end.unwrap_or(self.rest.len());
        if end == 0 || end > 18 {
            return None;
        }
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some((digits, digits.parse().ok()?))
    }

    fn number(&mut self) -> Option<i64> {
        self.digits().map(|(_, n)| n)
    }

    fn word(&mut self) -> &'t str {
        let end = self.rest.find(|c: char| !c.is_ascii_alphabetic());
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// Returns the number of a month, from its name or the first three letters of it.
fn month_of(word: &str) -> Option<i64> {
    let word = word.to_ascii_lowercase();
    let is = |name: &&str| word.len() >= 3 && name.starts_with(&word);
    MONTHS.iter().position(is).map(|at| at as i64 + 1)
}

/// Returns the English name of a month from 1 to 12.
pub(crate) fn month_name(month: i64) -> &'static str {
    MONTHS[(month - 1).rem_euclid(12) as usize]
}

/// Reads a date, as `YYYY-MM-DD`, `YYYY/MM/DD`, `YYYYMMDD`, `Month DD, YYYY` or `DD Month YYYY`.
fn scan_date(s: &mut Scanner<'_>, text: &str) -> Option<SqlResult<i64>> {
    let word = s.word();
    if !word.is_empty() {
        if word.eq_ignore_ascii_case("epoch") {
            return Some(Ok(0));
        }
        let month = month_of(word)?;
        s.blanks();
        let day = s.number()?;
        s.eat(',');
        s.blanks();
        let year = s.number()?;
        return Some(checked_date(year, month, day, text));
    }
    let (digits, first) = s.digits()?;
    if digits.len() == 8 {
        let (year, rest) = (first / 10_000, first % 10_000);
        return Some(checked_date(year, rest / 100, rest % 100, text));
    }
    if s.eat(' ') {
        let month = month_of(s.word())?;
        s.blanks();
        let year = s.number()?;
        return Some(checked_date(year, month, first, text));
    }
    let separator = ['-', '/', '.']
        .into_iter()
        .find(|c| s.rest.starts_with(*c))?;
    s.eat(separator);
    if let Some(month) = month_of(s.rest.get(..3).unwrap_or("")) {
        s.word();
        let year_first = digits.len() >= 3;
        if !s.eat(separator) {
            return None;
        }
        let last = s.number()?;
        let (year, day) = if year_first {
            (first, last)
        } else {
            (last, first)
        };
        return Some(checked_date(year, month, day, text));
    }
    let second = s.number()?;
    if !s.eat(separator) {
        return None;
    }
    let third = s.number()?;
    // Month, day, year is how PostgreSQL reads such a date by default.
    Some(match digits.len() >= 3 {
        true => checked_date(first, second, third, text),
        false if third >= 100 => checked_date(third, first, second, text),
        false => return None,
    })
}

/// Reads the fraction of a second after its point: microseconds, rounded.
fn scan_fraction(s: &mut Scanner<'_>) -> i64 {
    let end = s
        .rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(s.rest.len());
    let (digits, rest) = s.rest.split_at(end);
    s.rest = rest;
    let mut us = 0;
    for at in 0..6 {
        us = us * 10 + digits.as_bytes().get(at).map_or(0, |d| i64::from(d - b'0'));
    }
    us + i64::from(digits.as_bytes().get(6).is_some_and(|d| *d >= b'5'))
}

/// Reads a time of the day: microseconds, at most one day.
fn scan_time(s: &mut Scanner<'_>, text: &str) -> Option<SqlResult<i64>> {
    let (digits, mut hour) = s.digits()?;
    let minute;
    let (mut second, mut us) = (0, 0);
    if s.eat(':') {
        minute = s.number()?;
        if s.eat(':') {
            second = s.number()?;
            if s.eat('.') {
                us = scan_fraction(s);
            }
        }
    } else if digits.len() == 6 || digits.len() == 4 {
        let all = if digits.len() == 4 { hour * 100 } else { hour };
        (hour, minute, second) = (all / 10_000, all / 100 % 100, all % 100);
        if s.eat('.') {
            us = scan_fraction(s);
        }
    } else {
        return None;
    }
    let before = s.rest;
    s.blanks();
    let half = s.rest.get(..2).unwrap_or("").to_ascii_lowercase();
    if half == "am" || half == "pm" {
        s.word();
        if !(1..=12).contains(&hour) {
            return Some(Err(overflow(text)));
        }
        hour = hour % 12 + if half == "pm" { 12 } else { 0 };
    } else {
        s.rest = before;
    }
    let total = ((hour * 60 + minute) * 60 + second) * SECOND_US + us;
    if hour > 24 || minute > 59 || second > 60 || total > DAY_US {
        return Some(Err(overflow(text)));
    }
    Some(Ok(total))
}

/// Reads a zone, if there is one: seconds east of UTC.
fn scan_zone(s: &mut Scanner<'_>, text: &str) -> Option<SqlResult<i64>> {
    s.blanks();
    if s.rest.is_empty() {
        return Some(Ok(0));
    }
    let sign = match s.rest.as_bytes()[0] {
        b'+' => 1,
        b'-' => -1,
        _ => {
            let word = s.word();
            let utc = ["z", "utc", "gmt", "zulu", "ut"];
            return utc
                .iter()
                .any(|name| word.eq_ignore_ascii_case(name))
                .then_some(Ok(0));
        }
    };
    s.rest = &s.rest[1..];
    let (digits, first) = s.digits()?;
    let (hour, mut minute, mut second) = match digits.len() {
        1 | 2 => (first, 0, 0),
        3 | 4 => (first / 100, first % 100, 0),
        _ => return None,
    };
    if s.eat(':') {
        minute = s.number()?;
        if s.eat(':') {
            second = s.number()?;
        }
    }
    if hour > 15 || minute > 59 || second > 59 {
        let message = format!("time zone displacement out of range: \"{text}\"");
        return Some(Err(SqlError::new(SqlState::DATETIME_OVERFLOW, message)));
    }
    Some(Ok(sign * (hour * 3600 + minute * 60 + second)))
}

/// Fails for words that PostgreSQL takes as moments and this database does not.
fn refuse_words(text: &str, what: &str) -> SqlResult<()> {
    let word = text.trim().to_ascii_lowercase();
    match word.as_str() {
        "infinity" | "-infinity" | "+infinity" => {
            Err(SqlError::unsupported(format!("the {what} \"{word}\"")))
        }
        "now" | "today" | "tomorrow" | "yesterday" | "allballs" => {
            let error = SqlError::unsupported(format!("the {what} \"{word}\""));
            Err(error.with_hint("Use now() or CURRENT_DATE."))
        }
        _ => Ok(()),
    }
}

/// Reads date, time and zone: microseconds without the zone, and the zone's seconds.
fn scan_timestamp(text: &str, what: &str) -> SqlResult<(i64, i64)> {
    refuse_words(text, what)?;
    let mut s = Scanner { rest: text.trim() };
    let mut scan = || -> Option<SqlResult<(i64, i64)>> {
        let days = match scan_date(&mut s, text)? {
            Ok(days) => days,
            Err(e) => return Some(Err(e)),
        };
        let with_t = s.eat('T') || s.eat('t');
        s.blanks();
        let mut us = 0;
        let starts_with_digit = s.rest.starts_with(|c: char| c.is_ascii_digit());
        if starts_with_digit {
            us = match scan_time(&mut s, text)? {
                Ok(us) => us,
                Err(e) => return Some(Err(e)),
            };
        } else if with_t {
            return None;
        }
        let zone = match scan_zone(&mut s, text)? {
            Ok(zone) => zone,
            Err(e) => return Some(Err(e)),
        };
        s.rest.is_empty().then_some(Ok((days * DAY_US + us, zone)))
    };
    match scan() {
        Some(found) => found,
        None => Err(invalid(what, text)),
    }
}

/// Reads a date: days since 1970-01-01. A time after it is ignored, as PostgreSQL does.
pub(crate) fn parse_date(text: &str) -> SqlResult<i64> {
    let (us, _) = scan_timestamp(text, "date")?;
    Ok(us.div_euclid(DAY_US))
}

/// Reads a timestamp without a zone: microseconds. A zone in the text is ignored, as PostgreSQL
/// does.
pub(crate) fn parse_timestamp(text: &str) -> SqlResult<i64> {
    checked_moment(scan_timestamp(text, "timestamp")?.0)
}

/// Reads a timestamp with a zone, UTC by default: microseconds.
pub(crate) fn parse_timestamptz(text: &str) -> SqlResult<i64> {
    let (us, zone) = scan_timestamp(text, "timestamp with time zone")?;
    checked_moment(us - zone * SECOND_US)
}

/// Reads a time of the day: microseconds. A date before it is ignored.
pub(crate) fn parse_time(text: &str) -> SqlResult<i64> {
    refuse_words(text, "time")?;
    let mut s = Scanner { rest: text.trim() };
    let mut scan = || -> Option<SqlResult<i64>> {
        let time = scan_time(&mut s, text)?;
        match scan_zone(&mut s, text)? {
            Ok(_) if s.rest.is_empty() => Some(time),
            Ok(_) => None,
            Err(e) => Some(Err(e)),
        }
    };
    if let Some(found) = scan() {
        return found;
    }
    match scan_timestamp(text, "time") {
        Ok((us, _)) => Ok(us.rem_euclid(DAY_US)),
        Err(_) => Err(invalid("time", text)),
    }
}

/// Appends a date.
pub(crate) fn write_date(days: i64, out: &mut String) {
    let (year, month, day) = civil_from_days(days);
    let _ = write!(out, "{year:04}-{month:02}-{day:02}");
}

/// Appends a time of the day, with as few digits of the second's fraction as are needed.
pub(crate) fn write_time(us: i64, out: &mut String) {
    let seconds = us / SECOND_US;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let _ = write!(out, "{hour:02}:{minute:02}:{second:02}");
    write_fraction(us % SECOND_US, out);
}

fn write_fraction(us: i64, out: &mut String) {
    if us != 0 {
        let digits = format!("{us:06}");
        let _ = write!(out, ".{}", digits.trim_end_matches('0'));
    }
}

/// Appends a timestamp.
pub(crate) fn write_timestamp(us: i64, out: &mut String) {
    write_date(us.div_euclid(DAY_US), out);
    out.push(' ');
    write_time(us.rem_euclid(DAY_US), out);
}

/// Returns the canonical text of a timestamp.
pub(crate) fn timestamp_text(us: i64) -> String {
    let mut out = String::new();
    write_timestamp(us, &mut out);
    out
}

/// Returns the canonical text of a date.
pub(crate) fn date_text(days: i64) -> String {
    let mut out = String::new();
    write_date(days, &mut out);
    out
}

/// A span of time: months, days and microseconds are kept apart, as PostgreSQL does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Interval {
    /// Months, years included.
    pub(crate) months: i64,
    /// Days, weeks included.
    pub(crate) days: i64,
    /// Microseconds.
    pub(crate) us: i64,
}

impl Interval {
    /// Returns the length in microseconds, with months of 30 days, by which intervals are compared.
    pub(crate) fn comparable_us(self) -> i64 {
        let days = self.months.saturating_mul(30).saturating_add(self.days);
        days.saturating_mul(DAY_US).saturating_add(self.us)
    }

    /// Returns the interval multiplied by a number.
    pub(crate) fn scale(self, factor: f64) -> SqlResult<Interval> {
        let mut out = Interval::default();
        out.add_months(self.months as f64 * factor);
        out.add_days(self.days as f64 * factor);
        out.us = out
            .us
            .saturating_add((self.us as f64 * factor).round() as i64);
        out.checked()
    }

    /// Returns the sum of two intervals.
    pub(crate) fn plus(self, other: Interval) -> SqlResult<Interval> {
        Interval {
            months: self.months.saturating_add(other.months),
            days: self.days.saturating_add(other.days),
            us: self.us.saturating_add(other.us),
        }
        .checked()
    }

    fn checked(self) -> SqlResult<Interval> {
        let limit = u64::from(u32::MAX / 2);
        let fits = self.months.unsigned_abs() <= limit && self.days.unsigned_abs() <= limit;
        match fits && self.us.checked_abs().is_some_and(|us| us < i64::MAX / 2) {
            true => Ok(self),
            false => Err(SqlError::new(
                SqlState::DATETIME_OVERFLOW,
                "interval out of range",
            )),
        }
    }

    fn add_months(&mut self, months: f64) {
        self.months = self.months.saturating_add(months.trunc() as i64);
        self.add_days(months.fract() * 30.0);
    }

    fn add_days(&mut self, days: f64) {
        // A fraction of a day goes into the time, rounded to microseconds.
        let us = (days.fract() * DAY_US as f64).round() as i64;
        self.days = self.days.saturating_add(days.trunc() as i64);
        self.us = self.us.saturating_add(us);
    }

    fn add_unit(&mut self, number: f64, unit: &str) -> bool {
        let unit = match unit.to_ascii_lowercase() {
            short if short == "ms" => "millisecond".to_string(),
            short if short == "us" => "microsecond".to_string(),
            other => other,
        };
        let unit = unit
            .strip_suffix('s')
            .filter(|u| !u.is_empty())
            .unwrap_or(&unit);
        let seconds = match unit {
            "millennium" | "millennia" | "mil" => return self.months_of(number * 12_000.0),
            "century" | "centurie" | "c" | "cent" => return self.months_of(number * 1_200.0),
            "decade" | "dec" => return self.months_of(number * 120.0),
            "year" | "yr" | "y" => return self.months_of(number * 12.0),
            "month" | "mon" => return self.months_of(number),
            "week" | "w" => {
                self.add_days(number * 7.0);
                return true;
            }
            "day" | "d" => {
                self.add_days(number);
                return true;
            }
            "hour" | "hr" | "h" => 3600.0,
            "minute" | "min" | "m" => 60.0,
            "second" | "sec" | "" | "s" => 1.0,
            "millisecond" | "msec" => 0.001,
            "microsecond" | "usec" | "u" => 0.000_001,
            _ => return false,
        };
        self.us = self
            .us
            .saturating_add((number * seconds * 1e6).round() as i64);
        true
    }

    fn months_of(&mut self, months: f64) -> bool {
        self.add_months(months);
        true
    }
}

/// Reads an interval, as `1 year 2 mons -3 days 04:05:06.7`, with `ago`, or as ISO 8601 (`P1DT2H`).
pub(crate) fn parse_interval(text: &str) -> SqlResult<Interval> {
    let parsed = match text.trim().strip_prefix(['P', 'p']) {
        Some(rest) => parse_iso_interval(rest),
        None => parse_words(text.trim()),
    };
    parsed.ok_or_else(|| invalid("interval", text))?.checked()
}

fn parse_iso_interval(text: &str) -> Option<Interval> {
    let mut out = Interval::default();
    let mut in_time = false;
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(['T', 't']) {
            in_time = true;
            rest = after;
            continue;
        }
        let end = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let number: f64 = rest[..end].parse().ok().filter(|n: &f64| n.is_finite())?;
        let unit = match (in_time, rest.as_bytes()[end].to_ascii_lowercase()) {
            (false, b'y') => "year",
            (false, b'm') => "month",
            (false, b'w') => "week",
            (false, b'd') => "day",
            (true, b'h') => "hour",
            (true, b'm') => "minute",
            (true, b's') => "second",
            _ => return None,
        };
        out.add_unit(number, unit);
        rest = &rest[end + 1..];
    }
    (!text.is_empty()).then_some(out)
}

fn parse_words(text: &str) -> Option<Interval> {
    let mut out = Interval::default();
    let mut rest = text.trim_start_matches('@').trim_start();
    let mut any = false;
    let mut ago = false;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || "+-.:".contains(c)));
        let (number, after) = rest.split_at(end.unwrap_or(rest.len()));
        if number.is_empty() {
            if rest.eq_ignore_ascii_case("ago") && any {
                ago = true;
                break;
            }
            return None;
        }
        any = true;
        if number.contains(':') {
            out.us = out.us.saturating_add(parse_clock(number)?);
            rest = after.trim_start();
            continue;
        }
        let value: f64 = number.parse().ok().filter(|n: &f64| n.is_finite())?;
        let after = after.trim_start();
        let end = after
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(after.len());
        let (mut unit, mut next) = after.split_at(end);
        if unit.eq_ignore_ascii_case("ago") {
            (unit, next) = ("", after);
        }
        if !out.add_unit(value, unit) {
            return None;
        }
        rest = next.trim_start_matches(',').trim_start();
    }
    if ago {
        out = Interval {
            months: out.months.saturating_neg(),
            days: out.days.saturating_neg(),
            us: out.us.saturating_neg(),
        };
    }
    any.then_some(out)
}

/// Reads `[+-]HH:MM[:SS[.ffffff]]`.
fn parse_clock(text: &str) -> Option<i64> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut s = Scanner { rest: text };
    let hour = s.number()?;
    s.eat(':');
    let minute = s.number()?;
    let (mut second, mut us) = (0, 0);
    if s.eat(':') {
        second = s.number()?;
        if s.eat('.') {
            us = scan_fraction(&mut s);
        }
    }
    if !s.rest.is_empty() || minute > 59 || second > 59 || hour > 1_000_000_000 {
        return None;
    }
    let total = ((hour * 60 + minute) * 60 + second) * SECOND_US + us;
    Some(if negative { -total } else { total })
}

/// Appends an interval in PostgreSQL's form, such as `1 year 2 mons 3 days 04:05:06`.
pub(crate) fn write_interval(interval: Interval, out: &mut String) {
    let start = out.len();
    let plural = |n: i64| if n == 1 { "" } else { "s" };
    let parts = [
        (interval.months / 12, "year"),
        (interval.months % 12, "mon"),
        (interval.days, "day"),
    ];
    let mut negative_before = false;
    for (n, unit) in parts {
        if n != 0 {
            let blank = if out.len() > start { " " } else { "" };
            let sign = if negative_before && n > 0 { "+" } else { "" };
            let _ = write!(out, "{blank}{sign}{n} {unit}{}", plural(n));
            negative_before = n < 0;
        }
    }
    if interval.us != 0 || out.len() == start {
        if out.len() > start {
            out.push(' ');
        }
        if interval.us < 0 {
            out.push('-');
        } else if negative_before {
            out.push('+');
        }
        write_time(interval.us.abs(), out);
    }
}

/// Returns a moment moved by an interval. A day that the month does not have becomes its last day.
pub(crate) fn add_interval(us: i64, interval: Interval) -> SqlResult<i64> {
    let mut days = us.div_euclid(DAY_US);
    let time = us.rem_euclid(DAY_US);
    if interval.months != 0 {
        let (year, month, day) = civil_from_days(days);
        let months = year * 12 + month - 1 + interval.months;
        let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
        days = days_from_civil(year, month, day.min(days_in_month(year, month)));
    }
    days = days.saturating_add(interval.days);
    let moved = days.checked_mul(DAY_US).and_then(|us| us.checked_add(time));
    let moved = moved.and_then(|us| us.checked_add(interval.us));
    checked_moment(moved.unwrap_or(i64::MAX))
}

/// Returns the interval from one moment to another in days and time, as PostgreSQL's minus does.
pub(crate) fn between(later: i64, earlier: i64) -> Interval {
    let us = later - earlier;
    Interval {
        months: 0,
        days: us / DAY_US,
        us: us % DAY_US,
    }
}

/// Returns the interval from one moment to another in years, months, days and time.
pub(crate) fn age(later: i64, earlier: i64) -> Interval {
    if later < earlier {
        let age = age(earlier, later);
        return Interval {
            months: -age.months,
            days: -age.days,
            us: -age.us,
        };
    }
    let (to_days, mut us) = (later.div_euclid(DAY_US), later.rem_euclid(DAY_US));
    us -= earlier.rem_euclid(DAY_US);
    let (to_year, to_month, to_day) = civil_from_days(to_days);
    let (year, month, day) = civil_from_days(earlier.div_euclid(DAY_US));
    let mut months = (to_year - year) * 12 + to_month - month;
    let mut days = to_day - day;
    if us < 0 {
        us += DAY_US;
        days -= 1;
    }
    if days < 0 {
        days += days_in_month(year, month);
        months -= 1;
    }
    Interval { months, days, us }
}
