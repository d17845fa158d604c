//! Arithmetic of numbers, dates and intervals.

use super::binder::{Binder, Bound, Category, Kind, Ty, cast_call, category};
use super::expr::no_operator;
use super::name::quote_text;
use crate::error::SqlResult;
use crate::types::SqlType;
use sqlparser::ast::BinaryOperator;

impl Binder<'_> {
    /// Binds `+ - * / %`.
    pub(super) fn arithmetic(
        &mut self,
        op: &BinaryOperator,
        left: Bound,
        right: Bound,
    ) -> SqlResult<Bound> {
        let sign = op.to_string();
        let (left, right) = self.operands(op, left, right)?;
        use Category as C;
        match (category(left.ty), category(right.ty)) {
            (Some(C::Number) | None, Some(C::Number) | None) => Ok(numbers(op, &sign, left, right)),
            (Some(C::Moment), Some(C::Number) | None) => days(&sign, left, right),
            (Some(C::Number), Some(C::Moment)) if sign == "+" => days(&sign, right, left),
            (Some(C::Moment), Some(C::Moment)) if sign == "-" => Ok(difference(left, right)),
            (Some(C::Moment | C::Time), Some(C::Interval)) if sign == "+" || sign == "-" => {
                Ok(moved(&sign, left, right))
            }
            (Some(C::Interval), Some(C::Moment | C::Time)) if sign == "+" => {
                Ok(moved(&sign, right, left))
            }
            (Some(C::Interval), Some(C::Interval)) if sign == "+" || sign == "-" => {
                let right = match &*sign {
                    "-" => format!("basalt_interval_mul({}, -1)", right.sql),
                    _ => right.sql,
                };
                let sql = format!("basalt_interval_add({}, {right})", left.sql);
                Ok(Bound::new(sql, Ty::Interval))
            }
            (Some(C::Interval), Some(C::Number)) if sign == "*" || sign == "/" => {
                let factor = match &*sign {
                    "/" => format!("basalt_div(1.0, {})", right.sql),
                    _ => right.sql,
                };
                let sql = format!("basalt_interval_mul({}, {factor})", left.sql);
                Ok(Bound::new(sql, Ty::Interval))
            }
            (Some(C::Number), Some(C::Interval)) if sign == "*" => {
                let sql = format!("basalt_interval_mul({}, {})", right.sql, left.sql);
                Ok(Bound::new(sql, Ty::Interval))
            }
            _ => Err(no_operator(left.ty, &sign, right.ty)),
        }
    }

    /// Gives literals and parameters of open type the type of the other operand.
    fn operands(
        &mut self,
        op: &BinaryOperator,
        left: Bound,
        right: Bound,
    ) -> SqlResult<(Bound, Bound)> {
        let minus = *op == BinaryOperator::Minus;
        let plus_or_minus = minus || *op == BinaryOperator::Plus;
        let for_other = |other: Ty| match (other, category(other)) {
            // A moment minus an open literal is a difference, plus one is moved by an interval.
            (Ty::Sql(SqlType::Date), _) if plus_or_minus && !minus => Ty::Sql(SqlType::Integer),
            (_, Some(Category::Moment)) if plus_or_minus && !minus => Ty::Interval,
            (_, Some(Category::Interval)) if !plus_or_minus => Ty::Sql(SqlType::Double),
            (Ty::Unknown, _) => Ty::Sql(SqlType::Integer),
            _ => other,
        };
        let (left_ty, right_ty) = (left.ty, right.ty);
        // A difference with an open parameter is moved by days or by an interval.
        let right_target = match (left_ty, &right.kind) {
            (Ty::Sql(SqlType::Date), Kind::Param(_)) if minus => Ty::Sql(SqlType::Integer),
            (Ty::Sql(SqlType::Timestamp | SqlType::Timestamptz), Kind::Param(_)) if minus => {
                Ty::Interval
            }
            _ => for_other(left_ty),
        };
        let left = self.resolve(left, for_other(right_ty))?;
        let right = self.resolve(right, right_target)?;
        Ok((left, right))
    }

    /// Returns a field of a moment or an interval.
    pub(super) fn extract(
        &mut self,
        field: &str,
        value: Bound,
        result: SqlType,
    ) -> SqlResult<Bound> {
        let value = self.resolve(value, Ty::Sql(SqlType::Timestamp))?;
        let ty = match (value.ty, category(value.ty)) {
            (Ty::Interval, _) => "interval".to_string(),
            (Ty::Sql(ty), Some(Category::Moment | Category::Time)) => ty.to_string(),
            (Ty::Unknown, _) => SqlType::Timestamp.to_string(),
            (other, _) => {
                let message = format!("function extract(unknown, {}) does not exist", other.name());
                let state = crate::error::SqlState::UNDEFINED_FUNCTION;
                return Err(crate::error::SqlError::new(state, message));
            }
        };
        let sql = format!(
            "basalt_extract({}, {}, {})",
            quote_text(field),
            value.sql,
            quote_text(&ty)
        );
        Ok(Bound::new(sql, result).nullable_if(value.nullable))
    }
}

/// Returns the type of arithmetic of two numbers.
fn result_type(op: &BinaryOperator, left: SqlType, right: SqlType) -> SqlType {
    use SqlType as T;
    let scale = |ty: SqlType| match ty {
        T::Numeric(limits) => limits.map(|(_, scale)| scale),
        _ => Some(0),
    };
    match (left, right) {
        (T::Double | T::Real, _) | (_, T::Double | T::Real) => match (left, right) {
            (T::Real, T::Real) => T::Real,
            _ => T::Double,
        },
        (T::Numeric(_), _) | (_, T::Numeric(_)) => {
            let scales = scale(left).zip(scale(right));
            let scale = scales.and_then(|(a, b)| match op {
                BinaryOperator::Plus | BinaryOperator::Minus | BinaryOperator::Modulo => {
                    Some(a.max(b))
                }
                BinaryOperator::Multiply => Some(a.saturating_add(b)).filter(|s| *s <= 1000),
                _ => None,
            });
            T::Numeric(scale.map(|scale| (1000, scale)))
        }
        (T::BigInt, _) | (_, T::BigInt) => T::BigInt,
        (T::SmallInt, T::SmallInt) => T::SmallInt,
        _ => T::Integer,
    }
}

fn numbers(op: &BinaryOperator, sign: &str, left: Bound, right: Bound) -> Bound {
    let ty = match (left.ty, right.ty) {
        (Ty::Sql(a), Ty::Sql(b)) => Ty::Sql(result_type(op, a, b)),
        _ => Ty::Unknown,
    };
    let nullable = left.nullable || right.nullable;
    let divides = matches!(op, BinaryOperator::Divide | BinaryOperator::Modulo);
    // Division by a literal other than 0 needs no check.
    let safe = match &right.kind {
        Kind::Number(digits) => digits.bytes().any(|b| (b'1'..=b'9').contains(&b)),
        _ => false,
    };
    let whole = matches!(ty, Ty::Sql(ty) if ty.is_integer());
    let sql = match (divides, sign, whole && safe && !right.sql.starts_with('-')) {
        (false, ..) | (true, _, true) => format!("({} {sign} {})", left.sql, right.sql),
        (true, "/", _) if whole => format!("basalt_idiv({}, {})", left.sql, right.sql),
        (true, "/", _) => format!("basalt_div({}, {})", left.sql, right.sql),
        (true, ..) => format!("basalt_mod({}, {})", left.sql, right.sql),
    };
    let mut bound = Bound::new(sql, ty).nullable_if(nullable);
    bound.unchecked = true;
    bound
}

/// A date moved by a number of days.
fn days(sign: &str, moment: Bound, number: Bound) -> SqlResult<Bound> {
    let is_whole = matches!(number.ty, Ty::Sql(ty) if ty.is_integer());
    if moment.ty != Ty::Sql(SqlType::Date) || !is_whole || (sign != "+" && sign != "-") {
        return Err(no_operator(moment.ty, sign, number.ty));
    }
    let number = number.checked();
    let minus = if sign == "-" { "- " } else { "" };
    let sql = format!("basalt_add_days({}, {minus}{})", moment.sql, number.sql);
    Ok(Bound::new(sql, SqlType::Date).nullable_if(moment.nullable || number.nullable))
}

fn difference(left: Bound, right: Bound) -> Bound {
    let date = Ty::Sql(SqlType::Date);
    let nullable = left.nullable || right.nullable;
    match left.ty == date && right.ty == date {
        true => {
            let sql = format!("basalt_days_between({}, {})", left.sql, right.sql);
            Bound::new(sql, SqlType::Integer).nullable_if(nullable)
        }
        false => {
            let sql = format!("basalt_interval_between({}, {})", left.sql, right.sql);
            Bound::new(sql, Ty::Interval).nullable_if(nullable)
        }
    }
}

/// A moment moved by an interval. A date becomes a timestamp.
fn moved(sign: &str, moment: Bound, interval: Bound) -> Bound {
    let nullable = moment.nullable || interval.nullable;
    let interval = match sign {
        "-" => format!("basalt_interval_mul({}, -1)", interval.sql),
        _ => interval.sql,
    };
    let (value, ty) = match moment.ty {
        Ty::Sql(SqlType::Date) => (
            cast_call(&moment.sql, SqlType::Timestamp),
            SqlType::Timestamp,
        ),
        Ty::Sql(ty) => (moment.sql, ty),
        _ => (moment.sql, SqlType::Timestamp),
    };
    let name = if ty == SqlType::Time {
        "basalt_time_add"
    } else {
        "basalt_add_interval"
    };
    Bound::new(format!("{name}({value}, {interval})"), ty).nullable_if(nullable)
}
