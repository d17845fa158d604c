//! Points in time as text: `2025-01-02T03:04:05.678Z` (RFC 3339).

/// Milliseconds of a day.
const DAY_MS: i64 = 86_400_000;

/// Returns the days from 1970-01-01 to a date (the algorithm of H. Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms").
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    era * 146_097 + days - 719_468
}

/// Returns the date of a number of days since 1970-01-01.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Formats milliseconds since 1970, in UTC.
pub fn format_ms(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    let (year, month, day) = date_of(ms / DAY_MS);
    let of_day = ms % DAY_MS;
    let (s, ms) = (of_day / 1000, of_day % 1000);
    let (hour, minute, second) = (s / 3600, s / 60 % 60, s % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Reads a number of exactly `digits` digits.
fn number(text: &mut &str, digits: usize) -> Option<i64> {
    let (head, rest) = text.split_at_checked(digits)?;
    if !head.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    *text = rest;
    head.parse().ok()
}

/// Drops an expected character.
fn skip(text: &mut &str, wanted: &[char]) -> Option<()> {
    *text = text.strip_prefix(wanted)?;
    Some(())
}

/// Parses a date with a time and a zone. Seconds and their fraction may be missing. Returns
/// milliseconds since 1970.
pub fn parse_ms(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let text = &mut rest;
    let year = number(text, 4)?;
    skip(text, &['-'])?;
    let month = number(text, 2)?;
    skip(text, &['-'])?;
    let day = number(text, 2)?;
    skip(text, &['T', 't', ' '])?;
    let hour = number(text, 2)?;
    skip(text, &[':'])?;
    let minute = number(text, 2)?;
    let mut second = 0;
    if skip(text, &[':']).is_some() {
        second = number(text, 2)?;
    }
    let mut ms = 0;
    if skip(text, &['.']).is_some() {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let fraction = text.get(..digits).filter(|f| !f.is_empty())?;
        let three: String = fraction.chars().chain("000".chars()).take(3).collect();
        ms = three.parse().ok()?;
        *text = &text[digits..];
    }
    let offset = match text.trim_start() {
        "Z" | "z" | "UTC" => 0,
        zone => {
            let sign = match zone.chars().next()? {
                '+' => 1,
                '-' => -1,
                _ => return None,
            };
            let mut zone = &zone[1..];
            let hours = number(&mut zone, 2)?;
            let _ = skip(&mut zone, &[':']);
            let minutes = if zone.is_empty() {
                0
            } else {
                number(&mut zone, 2)?
            };
            if !zone.is_empty() || hours > 15 || minutes > 59 {
                return None;
            }
            sign * (hours * 60 + minutes)
        }
    };
    let is_time = hour < 24 && minute < 60 && second < 60;
    let days = days_of(year, month, day);
    if !is_time || !(1..=12).contains(&month) || date_of(days) != (year, month, day) {
        return None;
    }
    let minutes = hour * 60 + minute - offset;
    u64::try_from(days * DAY_MS + minutes * 60_000 + second * 1000 + ms).ok()
}

#[cfg(test)]
mod tests;
