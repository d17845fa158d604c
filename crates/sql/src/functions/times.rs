//! Functions of dates, times and intervals.

use super::Behaviour::{Strict, Volatile};
use super::{Arguments, Entry};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use crate::types::datetime::{
    self, DAY_US, Interval, SECOND_US, civil_from_days, days_from_civil, parse_interval,
    parse_timestamp,
};
use crate::value::{Value, ValueRef};

pub(super) const ENTRIES: &[Entry] = &[
    ("basalt_now", 0, Volatile, |a| {
        timestamp(a.context.transaction_time_us())
    }),
    ("basalt_clock", 0, Volatile, |a| {
        timestamp(a.context.clock_us())
    }),
    ("basalt_today", 0, Volatile, |a| {
        let days = a.context.transaction_time_us().div_euclid(DAY_US);
        Ok(Value::Text(datetime::date_text(days)))
    }),
    ("basalt_time_of_day", 0, Volatile, |a| {
        let mut out = String::new();
        datetime::write_time(a.context.transaction_time_us().rem_euclid(DAY_US), &mut out);
        Ok(Value::Text(out))
    }),
    ("basalt_extract", 3, Strict, extract),
    ("basalt_date_trunc", 2, Strict, |a| {
        let us = truncate(&a.text(0)?, parse_timestamp(&a.text(1)?)?)?;
        timestamp(us)
    }),
    ("basalt_add_interval", 2, Strict, |a| {
        let moment = parse_timestamp(&a.text(0)?)?;
        timestamp(datetime::add_interval(
            moment,
            parse_interval(&a.text(1)?)?,
        )?)
    }),
    ("basalt_time_add", 2, Strict, |a| {
        let time = datetime::parse_time(&a.text(0)?)?;
        let us = (time + parse_interval(&a.text(1)?)?.us % DAY_US).rem_euclid(DAY_US);
        let mut out = String::new();
        datetime::write_time(us, &mut out);
        Ok(Value::Text(out))
    }),
    ("basalt_add_days", 2, Strict, |a| {
        let days = datetime::parse_date(&a.text(0)?)?.saturating_add(a.integer(1)?);
        Ok(Value::Text(datetime::date_text(datetime::checked_days(
            days,
        )?)))
    }),
    ("basalt_days_between", 2, Strict, |a| {
        let (left, right) = (
            datetime::parse_date(&a.text(0)?)?,
            datetime::parse_date(&a.text(1)?)?,
        );
        Ok(Value::Integer(left - right))
    }),
    ("basalt_interval", 1, Strict, |a| {
        interval(parse_interval(&a.text(0)?)?)
    }),
    ("basalt_interval_us", 1, Strict, |a| {
        Ok(Value::Integer(parse_interval(&a.text(0)?)?.comparable_us()))
    }),
    ("basalt_interval_add", 2, Strict, |a| {
        interval(parse_interval(&a.text(0)?)?.plus(parse_interval(&a.text(1)?)?)?)
    }),
    ("basalt_interval_mul", 2, Strict, |a| {
        interval(parse_interval(&a.text(0)?)?.scale(a.real(1)?)?)
    }),
    ("basalt_interval_between", 2, Strict, |a| {
        let (left, right) = (parse_timestamp(&a.text(0)?)?, parse_timestamp(&a.text(1)?)?);
        interval(datetime::between(left, right))
    }),
    ("basalt_age", 1, Strict, |a| {
        let today = a.context.transaction_time_us().div_euclid(DAY_US) * DAY_US;
        interval(datetime::age(today, parse_timestamp(&a.text(0)?)?))
    }),
    ("basalt_age", 2, Strict, |a| {
        interval(datetime::age(
            parse_timestamp(&a.text(0)?)?,
            parse_timestamp(&a.text(1)?)?,
        ))
    }),
    ("basalt_make_date", 3, Strict, |a| {
        let (year, month, day) = (a.integer(0)?, a.integer(1)?, a.integer(2)?);
        let display = format!("{year}-{month}-{day}");
        let days = datetime::checked_date(year, month, day, &display)?;
        Ok(Value::Text(datetime::date_text(days)))
    }),
    ("basalt_make_timestamp", 6, Strict, |a| {
        let text = format!(
            "{:04}-{:02}-{:02} {:02}:{:02}:{:09.6}",
            a.integer(0)?,
            a.integer(1)?,
            a.integer(2)?,
            a.integer(3)?,
            a.integer(4)?,
            a.real(5)?
        );
        timestamp(parse_timestamp(&text)?)
    }),
    ("basalt_to_timestamp", 1, Strict, |a| {
        timestamp(datetime::checked_moment((a.real(0)? * 1e6).round() as i64)?)
    }),
];

fn timestamp(us: i64) -> SqlResult<Value> {
    Ok(Value::Text(datetime::timestamp_text(us)))
}

fn interval(interval: Interval) -> SqlResult<Value> {
    let mut out = String::new();
    datetime::write_interval(interval, &mut out);
    Ok(Value::Text(out))
}

fn unsupported(field: &str, ty: &str) -> SqlError {
    let message = format!("unit \"{field}\" not supported for type {ty}");
    SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, message)
}

/// Returns a number of seconds with its fraction: an integer if it is whole.
fn seconds(us: i64) -> Value {
    match us % SECOND_US {
        0 => Value::Integer(us / SECOND_US),
        _ => Value::Real(us as f64 / 1e6),
    }
}

/// Returns the fields that a time of the day has.
fn time_field(field: &str, us: i64) -> Option<Value> {
    let minute_us = us % (60 * SECOND_US);
    Some(match field {
        "hour" => Value::Integer(us / (3600 * SECOND_US)),
        "minute" => Value::Integer(us / (60 * SECOND_US) % 60),
        "second" => seconds(minute_us),
        "millisecond" => match minute_us % 1000 {
            0 => Value::Integer(minute_us / 1000),
            _ => Value::Real(minute_us as f64 / 1e3),
        },
        "microsecond" => Value::Integer(minute_us),
        _ => return None,
    })
}

/// Returns the ISO week and its year.
fn iso_week(days: i64) -> (i64, i64) {
    // The week of a day is the week of its Thursday.
    let weekday = (days + 3).rem_euclid(7);
    let thursday = days - weekday + 3;
    let (year, ..) = civil_from_days(thursday);
    ((thursday - days_from_civil(year, 1, 1)) / 7 + 1, year)
}

fn extract(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let (field, text, ty) = (a.text(0)?, a.text(1)?, a.text(2)?);
    match &*ty {
        "interval" => {
            let interval = parse_interval(&text)?;
            let value = time_field(&field, interval.us.abs());
            let negative = interval.us < 0;
            Ok(match (&*field, value) {
                ("hour", _) => Value::Integer(interval.us / (3600 * SECOND_US)),
                (_, Some(Value::Integer(n))) if negative => Value::Integer(-n),
                (_, Some(Value::Real(x))) if negative => Value::Real(-x),
                (_, Some(value)) => value,
                ("year", _) => Value::Integer(interval.months / 12),
                ("month", _) => Value::Integer(interval.months % 12),
                ("quarter", _) => Value::Integer(interval.months % 12 / 3 + 1),
                ("decade", _) => Value::Integer(interval.months / 120),
                ("century", _) => Value::Integer(interval.months / 1200),
                ("day", _) => Value::Integer(interval.days),
                ("epoch", _) => {
                    // PostgreSQL takes a year as 365.25 days.
                    let years = interval.months / 12;
                    let days = (interval.months % 12) * 30 + interval.days;
                    let whole = years
                        .saturating_mul(31_557_600)
                        .saturating_add(days * 86_400);
                    seconds(whole.saturating_mul(SECOND_US).saturating_add(interval.us))
                }
                _ => return Err(unsupported(&field, &ty)),
            })
        }
        "time without time zone" => {
            let us = datetime::parse_time(&text)?;
            match (&*field, time_field(&field, us)) {
                (_, Some(value)) => Ok(value),
                ("epoch", None) => Ok(seconds(us)),
                _ => Err(unsupported(&field, &ty)),
            }
        }
        _ => {
            let us = parse_timestamp(&text)?;
            let value = match ty.as_ref() {
                "date" => None,
                _ => time_field(&field, us.rem_euclid(DAY_US)),
            };
            match value {
                Some(value) => Ok(value),
                None => date_field(&field, us, &ty),
            }
        }
    }
}

fn date_field(field: &str, us: i64, ty: &str) -> SqlResult<Value> {
    let days = us.div_euclid(DAY_US);
    let (year, month, day) = civil_from_days(days);
    Ok(Value::Integer(match field {
        "year" => year,
        "month" => month,
        "day" => day,
        "quarter" => (month - 1) / 3 + 1,
        "dow" => (days + 4).rem_euclid(7),
        "isodow" => (days + 3).rem_euclid(7) + 1,
        "doy" => days - days_from_civil(year, 1, 1) + 1,
        "week" => iso_week(days).0,
        "isoyear" => iso_week(days).1,
        "decade" => year / 10,
        "century" => (year + 99) / 100,
        "millennium" => (year + 999) / 1000,
        "epoch" => return Ok(seconds(us)),
        "julian" => days + 2_440_588,
        "timezone" if ty == "timestamp with time zone" => 0,
        _ => return Err(unsupported(field, ty)),
    }))
}

/// Cuts a moment to the beginning of a field.
fn truncate(field: &str, us: i64) -> SqlResult<i64> {
    let days = us.div_euclid(DAY_US);
    let (year, month, _) = civil_from_days(days);
    let to = |unit: i64| us - us.rem_euclid(unit);
    let start = |year: i64, month: i64| days_from_civil(year, month, 1) * DAY_US;
    Ok(match field {
        "microsecond" => us,
        "millisecond" => to(1000),
        "second" => to(SECOND_US),
        "minute" => to(60 * SECOND_US),
        "hour" => to(3600 * SECOND_US),
        "day" => to(DAY_US),
        "week" => (days - (days + 3).rem_euclid(7)) * DAY_US,
        "month" => start(year, month),
        "quarter" => start(year, (month - 1) / 3 * 3 + 1),
        "year" => start(year, 1),
        "decade" => start((year / 10 * 10).max(1), 1),
        "century" => start((year - 1) / 100 * 100 + 1, 1),
        "millennium" => start((year - 1) / 1000 * 1000 + 1, 1),
        _ => return Err(unsupported(field, "timestamp")),
    })
}

/// Returns the value of a moment for `to_char`.
pub(super) fn moment_of(value: ValueRef<'_>, ty: &str) -> SqlResult<i64> {
    let text = match value {
        ValueRef::Text(text) => text,
        _ => return Err(SqlError::internal("a moment that is not a text")),
    };
    match SqlType::from_name(ty) {
        Some(SqlType::Date) => Ok(datetime::parse_date(text)? * DAY_US),
        _ => parse_timestamp(text),
    }
}

/// Returns the ISO week of a day, for `to_char`.
pub(super) fn week_of(days: i64) -> (i64, i64) {
    iso_week(days)
}
