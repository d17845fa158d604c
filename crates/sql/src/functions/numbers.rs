//! Functions of numbers.

use super::Behaviour::{Pure, Strict};
use super::{Arguments, Entry};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::decimal::Decimal;
use crate::value::{Value, ValueRef};

pub(super) const ENTRIES: &[Entry] = &[
    ("basalt_int2", 1, Strict, |a| {
        in_range(a, i64::from(i16::MIN), i64::from(i16::MAX), "smallint")
    }),
    ("basalt_int4", 1, Strict, |a| {
        in_range(a, i64::from(i32::MIN), i64::from(i32::MAX), "integer")
    }),
    ("basalt_int8", 1, Strict, |a| {
        in_range(a, i64::MIN, i64::MAX, "bigint")
    }),
    ("basalt_numeric", 2, Strict, |a| round_to(a, false)),
    ("basalt_round", 2, Strict, |a| round_to(a, false)),
    ("basalt_trunc", 2, Strict, |a| round_to(a, true)),
    ("basalt_idiv", 2, Strict, divide_integers),
    ("basalt_div", 2, Strict, divide),
    ("basalt_mod", 2, Strict, modulo),
    ("basalt_abs", 1, Strict, absolute),
    ("basalt_sign", 1, Strict, |a| {
        let x = a.real(0)?;
        Ok(Value::Integer(if x > 0.0 {
            1
        } else if x < 0.0 {
            -1
        } else {
            0
        }))
    }),
    ("basalt_ceil", 1, Strict, |a| whole(a, f64::ceil)),
    ("basalt_floor", 1, Strict, |a| whole(a, f64::floor)),
    ("basalt_power", 2, Strict, power),
    ("basalt_sqrt", 1, Strict, |a| match a.real(0)? {
        x if x < 0.0 => {
            let message = "cannot take square root of a negative number";
            Err(SqlError::new(SqlState("2201F"), message))
        }
        x => finite(x.sqrt()),
    }),
    ("basalt_cbrt", 1, Strict, |a| finite(a.real(0)?.cbrt())),
    ("basalt_exp", 1, Strict, |a| finite(a.real(0)?.exp())),
    ("basalt_ln", 1, Strict, |a| {
        logarithm(a.real(0)?).map(Value::Real)
    }),
    ("basalt_log", 1, Strict, |a| {
        logarithm(a.real(0)?)?;
        finite(a.real(0)?.log10())
    }),
    ("basalt_log", 2, Strict, |a| {
        let (base, x) = (logarithm(a.real(0)?)?, logarithm(a.real(1)?)?);
        match base == 0.0 {
            true => Err(division_by_zero()),
            false => finite(x / base),
        }
    }),
    ("basalt_sin", 1, Strict, |a| finite(a.real(0)?.sin())),
    ("basalt_cos", 1, Strict, |a| finite(a.real(0)?.cos())),
    ("basalt_tan", 1, Strict, |a| finite(a.real(0)?.tan())),
    ("basalt_asin", 1, Strict, |a| finite(a.real(0)?.asin())),
    ("basalt_acos", 1, Strict, |a| finite(a.real(0)?.acos())),
    ("basalt_atan", 1, Strict, |a| finite(a.real(0)?.atan())),
    ("basalt_atan2", 2, Strict, |a| {
        finite(a.real(0)?.atan2(a.real(1)?))
    }),
    ("basalt_radians", 1, Strict, |a| {
        finite(a.real(0)?.to_radians())
    }),
    ("basalt_degrees", 1, Strict, |a| {
        finite(a.real(0)?.to_degrees())
    }),
    ("basalt_pi", 0, Pure, |_| {
        Ok(Value::Real(std::f64::consts::PI))
    }),
    ("basalt_gcd", 2, Strict, |a| {
        let (mut x, mut y) = (a.integer(0)?.unsigned_abs(), a.integer(1)?.unsigned_abs());
        while y != 0 {
            (x, y) = (y, x % y);
        }
        i64::try_from(x)
            .map(Value::Integer)
            .map_err(|_| overflow("bigint"))
    }),
    ("basalt_to_hex", 1, Strict, |a| {
        Ok(Value::Text(format!("{:x}", a.integer(0)?)))
    }),
    ("basalt_greatest", -1, Pure, |a| {
        extreme(a, std::cmp::Ordering::Greater)
    }),
    ("basalt_least", -1, Pure, |a| {
        extreme(a, std::cmp::Ordering::Less)
    }),
    ("basalt_limit", 1, Pure, |a| {
        row_count(a, -1, SqlState("2201W"), "LIMIT")
    }),
    ("basalt_offset", 1, Pure, |a| {
        row_count(a, 0, SqlState("2201X"), "OFFSET")
    }),
    ("basalt_step", 1, Strict, |a| match a.integer(0)? {
        0 => {
            let message = "step size cannot equal zero";
            Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message))
        }
        step => Ok(Value::Integer(step)),
    }),
];

pub(super) fn division_by_zero() -> SqlError {
    SqlError::new(SqlState::DIVISION_BY_ZERO, "division by zero")
}

fn overflow(ty: &str) -> SqlError {
    SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("{ty} out of range"))
}

/// Returns a number, or 22003 if it is too large; NaN is not a value of SQLite.
fn finite(x: f64) -> SqlResult<Value> {
    if x.is_nan() {
        return Err(SqlError::new(
            SqlState::NUMERIC_OUT_OF_RANGE,
            "input is out of range",
        ));
    }
    match x.is_finite() {
        true => Ok(Value::Real(x)),
        false => Err(SqlError::new(
            SqlState::NUMERIC_OUT_OF_RANGE,
            "value out of range: overflow",
        )),
    }
}

/// Returns an integer if it is in the range of its type. The executor turns integers that overflow
/// into floating-point numbers.
fn in_range(a: &Arguments<'_, '_>, min: i64, max: i64, ty: &str) -> SqlResult<Value> {
    match a.get(0)? {
        ValueRef::Integer(n) if (min..=max).contains(&n) => Ok(Value::Integer(n)),
        ValueRef::Integer(_) | ValueRef::Real(_) => Err(overflow(ty)),
        other => Ok(other.to_value()),
    }
}

fn round_to(a: &Arguments<'_, '_>, cut: bool) -> SqlResult<Value> {
    let scale = a.integer(1)?.clamp(-400, 400) as i32;
    let decimal = match a.get(0)? {
        ValueRef::Integer(n) if scale >= 0 => return Ok(Value::Integer(n)),
        ValueRef::Integer(n) => Decimal::from_integer(n),
        ValueRef::Real(x) => match Decimal::from_real(x) {
            Some(decimal) => decimal,
            None => return Ok(Value::Real(x)),
        },
        other => return Ok(other.to_value()),
    };
    let out = if cut {
        decimal.truncate(scale)
    } else {
        decimal.round(scale)
    };
    Ok(out.to_value())
}

fn divide_integers(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let (ValueRef::Integer(left), ValueRef::Integer(right)) = (a.get(0)?, a.get(1)?) else {
        // An operand that overflowed.
        return Err(overflow("bigint"));
    };
    if right == 0 {
        return Err(division_by_zero());
    }
    left.checked_div(right)
        .map(Value::Integer)
        .ok_or_else(|| overflow("bigint"))
}

fn divide(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let (left, right) = (a.real(0)?, a.real(1)?);
    if right == 0.0 {
        return Err(division_by_zero());
    }
    finite(left / right)
}

fn modulo(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    if let (ValueRef::Integer(left), ValueRef::Integer(right)) = (a.get(0)?, a.get(1)?) {
        return match right {
            0 => Err(division_by_zero()),
            right => Ok(Value::Integer(left.wrapping_rem(right))),
        };
    }
    let (left, right) = (a.real(0)?, a.real(1)?);
    if right == 0.0 {
        return Err(division_by_zero());
    }
    finite(left % right)
}

fn absolute(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    match a.get(0)? {
        ValueRef::Integer(n) => n
            .checked_abs()
            .map(Value::Integer)
            .ok_or_else(|| overflow("bigint")),
        _ => Ok(Value::Real(a.real(0)?.abs())),
    }
}

fn whole(a: &Arguments<'_, '_>, round: fn(f64) -> f64) -> SqlResult<Value> {
    match a.get(0)? {
        ValueRef::Integer(n) => Ok(Value::Integer(n)),
        _ => Ok(Value::Real(round(a.real(0)?))),
    }
}

fn power(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let (base, exponent) = (a.real(0)?, a.real(1)?);
    if base == 0.0 && exponent < 0.0 {
        let message = "zero raised to a negative power is undefined";
        return Err(SqlError::new(SqlState("2201F"), message));
    }
    if base < 0.0 && exponent.fract() != 0.0 {
        let message = "a negative number raised to a non-integer power yields a complex result";
        return Err(SqlError::new(SqlState("2201F"), message));
    }
    finite(base.powf(exponent))
}

fn logarithm(x: f64) -> SqlResult<f64> {
    if x == 0.0 {
        Err(SqlError::new(
            SqlState("2201E"),
            "cannot take logarithm of zero",
        ))
    } else if x < 0.0 {
        Err(SqlError::new(
            SqlState("2201E"),
            "cannot take logarithm of a negative number",
        ))
    } else {
        Ok(x.ln())
    }
}

/// Compares values of one type, as the executor does.
pub(super) fn compare(left: ValueRef<'_>, right: ValueRef<'_>) -> std::cmp::Ordering {
    use std::cmp::Ordering;
    match (left, right) {
        (ValueRef::Integer(x), ValueRef::Integer(y)) => x.cmp(&y),
        (ValueRef::Real(x), ValueRef::Real(y)) => x.total_cmp(&y),
        (ValueRef::Integer(x), ValueRef::Real(y)) => (x as f64).total_cmp(&y),
        (ValueRef::Real(x), ValueRef::Integer(y)) => x.total_cmp(&(y as f64)),
        (ValueRef::Text(x), ValueRef::Text(y)) => x.cmp(y),
        (ValueRef::Blob(x), ValueRef::Blob(y)) => x.cmp(y),
        _ => Ordering::Equal,
    }
}

/// Returns the greatest or least argument; NULLs are skipped.
fn extreme(a: &Arguments<'_, '_>, wanted: std::cmp::Ordering) -> SqlResult<Value> {
    let mut best = ValueRef::Null;
    for at in 0..a.len() {
        let value = a.get(at)?;
        if value == ValueRef::Null {
            continue;
        }
        if best == ValueRef::Null || compare(value, best) == wanted {
            best = value;
        }
    }
    Ok(best.to_value())
}

/// Returns the number of a LIMIT or OFFSET; the default if it is NULL.
fn row_count(
    a: &Arguments<'_, '_>,
    default: i64,
    state: SqlState,
    clause: &str,
) -> SqlResult<Value> {
    if a.get(0)? == ValueRef::Null {
        return Ok(Value::Integer(default));
    }
    match a.integer(0)? {
        n if n < 0 => Err(SqlError::new(
            state,
            format!("{clause} must not be negative"),
        )),
        n => Ok(Value::Integer(n)),
    }
}
