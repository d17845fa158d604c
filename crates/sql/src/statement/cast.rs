//! Casts.

use super::binder::{Binder, Bound, Category, Kind, Ty, cast_call, category, parameter_type};
use super::data_type::TypeName;
use super::name::quote_text;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use crate::value::Value;
use sqlparser::ast::Expr;

impl Binder<'_> {
    pub(super) fn cast(&mut self, expr: &Expr, target: TypeName) -> SqlResult<Bound> {
        let bound = self.value(expr)?;
        self.cast_bound(bound, target)
    }

    pub(super) fn cast_bound(&mut self, bound: Bound, target: TypeName) -> SqlResult<Bound> {
        let ty = match target {
            TypeName::Sql(ty) | TypeName::System(ty) => ty,
            TypeName::Serial(_) => {
                let message = "type \"serial\" does not exist";
                return Err(SqlError::new(SqlState::UNDEFINED_OBJECT, message));
            }
            TypeName::Interval => return self.cast_interval(bound),
            TypeName::Regclass => return self.cast_regclass(bound),
            TypeName::Regtype => return self.cast_regtype(bound),
        };
        if let (Kind::Text(text), Ty::Unknown) = (&bound.kind, bound.ty) {
            let value = ty.cast(Value::Text(text.clone()))?;
            return Ok(Bound::literal(&value, ty));
        }
        if bound.is_open() {
            if let Kind::Param(at) = bound.kind {
                let declared = *self.parameters[at].get_or_insert(parameter_type(ty));
                let bound = Bound {
                    ty: Ty::Sql(declared),
                    ..bound
                };
                return convert(bound, ty);
            }
            return Ok(Bound {
                ty: Ty::Sql(ty),
                ..bound
            });
        }
        let mut bound = bound;
        bound.kind = match bound.kind {
            Kind::Param(at) => Kind::Param(at),
            _ => Kind::Plain,
        };
        convert(bound, ty)
    }

    pub(super) fn cast_interval(&mut self, bound: Bound) -> SqlResult<Bound> {
        if bound.is_open() {
            return self.resolve(bound, Ty::Interval);
        }
        match category(bound.ty) {
            Some(Category::Interval) => Ok(bound),
            Some(Category::Text) => Ok(Bound::new(
                format!("basalt_interval({})", bound.sql),
                Ty::Interval,
            )),
            _ => Err(cannot_cast(bound.ty, "interval")),
        }
    }

    pub(super) fn cast_regclass(&mut self, bound: Bound) -> SqlResult<Bound> {
        match (&bound.kind, bound.ty) {
            (Kind::Text(text), Ty::Unknown) => {
                let digits = text.trim();
                if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Ok(Bound::new(digits, SqlType::BigInt));
                }
                // The text stays known, for the functions of sequences.
                let sql = format!("basalt_regclass_oid({})", bound.sql);
                let mut cast = Bound::new(sql, SqlType::BigInt).not_null();
                cast.kind = bound.kind;
                Ok(cast)
            }
            // A number of a relation, shown as its name.
            (_, Ty::Sql(ty)) if ty.is_integer() => Ok(Bound::new(
                format!("basalt_regclass({})", bound.sql),
                SqlType::Text,
            )),
            _ => {
                let bound = self.resolve(bound, Ty::Sql(SqlType::Text))?;
                let sql = format!("basalt_regclass_oid({})", bound.sql);
                Ok(Bound::new(sql, SqlType::BigInt))
            }
        }
    }

    fn cast_regtype(&mut self, bound: Bound) -> SqlResult<Bound> {
        match bound.ty {
            Ty::Sql(ty) if ty.is_integer() => {
                let sql = format!("basalt_format_type({}, NULL)", bound.sql);
                Ok(Bound::new(sql, SqlType::Text))
            }
            _ => {
                let bound = self.resolve(bound, Ty::Sql(SqlType::Text))?;
                let sql = format!("basalt_regtype_oid({})", bound.sql);
                Ok(Bound::new(sql, SqlType::BigInt))
            }
        }
    }
}

pub(super) fn cannot_cast(from: Ty, to: &str) -> SqlError {
    let message = format!("cannot cast type {} to {to}", from.name());
    SqlError::new(SqlState("42846"), message)
}

/// Casts an expression whose type is known.
pub(super) fn convert(bound: Bound, ty: SqlType) -> SqlResult<Bound> {
    let from = match bound.ty {
        Ty::Unknown => SqlType::Json,
        Ty::Array(_) => SqlType::Text,
        Ty::Interval => {
            return match category(Ty::Sql(ty)) {
                Some(Category::Text) => Ok(Bound {
                    ty: Ty::Sql(ty),
                    ..bound
                }),
                _ => Err(cannot_cast(bound.ty, &ty.to_string())),
            };
        }
        Ty::Sql(from) => from,
    };
    if from == ty && bound.ty != Ty::Unknown {
        return Ok(bound);
    }
    let target = category(Ty::Sql(ty));
    if let Some(from_category) = category(bound.ty) {
        use Category as C;
        let to = target.unwrap_or(C::Text);
        let allowed = from_category == to
            || from_category == C::Text
            || to == C::Text
            || matches!((from_category, to), (C::Number, C::Boolean) if from == SqlType::Integer)
            || matches!((from_category, to), (C::Boolean, C::Number) if ty == SqlType::Integer)
            || (from_category == C::Moment && to == C::Time && from != SqlType::Date);
        if !allowed {
            return Err(cannot_cast(bound.ty, &ty.to_string()));
        }
    }
    let nullable = bound.nullable;
    let widens = |a: SqlType, b: SqlType| match (a, b) {
        (SqlType::SmallInt, SqlType::Integer | SqlType::BigInt) => true,
        (SqlType::Integer, SqlType::BigInt) => true,
        (a, SqlType::Numeric(None)) => a.is_integer() || matches!(a, SqlType::Numeric(_)),
        (SqlType::Varchar(_), SqlType::Text | SqlType::Varchar(None)) => true,
        (SqlType::Text, SqlType::Varchar(None)) => true,
        (SqlType::Char(_), SqlType::Text | SqlType::Varchar(None)) => true,
        (SqlType::Real, SqlType::Double) => true,
        (SqlType::Timestamp, SqlType::Timestamptz) => true,
        (SqlType::Timestamptz, SqlType::Timestamp) => true,
        (SqlType::Json, SqlType::Jsonb) | (SqlType::Jsonb, SqlType::Json) => true,
        (SqlType::Boolean, SqlType::Integer) => true,
        _ => false,
    };
    if bound.ty != Ty::Unknown && widens(from, ty) {
        return Ok(Bound {
            ty: Ty::Sql(ty),
            origin: None,
            ..bound
        });
    }
    let is_text = target == Some(Category::Text);
    let sql = match (is_text, category(bound.ty)) {
        (true, Some(c)) if c != Category::Text => {
            let text = format!(
                "basalt_text({}, {})",
                bound.sql,
                quote_text(&from.to_string())
            );
            match ty {
                SqlType::Text | SqlType::Varchar(None) => text,
                _ => cast_call(&text, ty),
            }
        }
        _ => cast_call(&bound.sql, ty),
    };
    Ok(Bound::new(sql, ty).nullable_if(nullable))
}
