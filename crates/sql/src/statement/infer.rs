//! Names and types of results.

use super::name::fold;
use super::query::{BoundQuery, OutColumn};
use super::{Binder, Executable, ResultColumn};
use sqlparser::ast::{self, Expr, SelectItem, SetExpr, TrimWhereField};

/// How well an expression names its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    None,
    Type,
    Name,
}

/// Returns the name that PostgreSQL gives to a result without an alias.
pub(super) fn name_of(expr: &Expr) -> String {
    let (name, strength) = name_and_strength(expr, 0);
    match strength {
        Strength::None => "?column?".to_string(),
        _ => name,
    }
}

fn named(name: impl Into<String>) -> (String, Strength) {
    (name.into(), Strength::Name)
}

fn name_and_strength(expr: &Expr, depth: usize) -> (String, Strength) {
    let none = || (String::new(), Strength::None);
    if depth > 100 {
        return none();
    }
    match expr {
        Expr::Identifier(ident) => named(fold(ident)),
        Expr::CompoundIdentifier(idents) => idents.last().map_or_else(none, |i| named(fold(i))),
        Expr::Function(function) => match function.name.0.last() {
            Some(ast::ObjectNamePart::Identifier(ident)) => named(fold(ident)),
            _ => none(),
        },
        Expr::Nested(inner) => name_and_strength(inner, depth + 1),
        Expr::Collate { expr, .. } => name_and_strength(expr, depth + 1),
        Expr::Cast {
            expr, data_type, ..
        } => {
            let inner = name_and_strength(expr, depth + 1);
            match inner.1 {
                Strength::Name => inner,
                _ => (type_label(data_type), Strength::Type),
            }
        }
        Expr::TypedString(typed) => (type_label(&typed.data_type), Strength::Type),
        Expr::Interval(_) => ("interval".to_string(), Strength::Type),
        Expr::Case { else_result, .. } => {
            let inner = else_result
                .as_ref()
                .map(|e| name_and_strength(e, depth + 1));
            match inner {
                Some((name, Strength::Name)) => named(name),
                _ => ("case".to_string(), Strength::Type),
            }
        }
        Expr::Exists { .. } => named("exists"),
        Expr::Extract { .. } => named("extract"),
        Expr::Ceil { .. } => named("ceil"),
        Expr::Floor { .. } => named("floor"),
        Expr::Position { .. } => named("position"),
        Expr::Substring { .. } => named("substring"),
        Expr::Overlay { .. } => named("overlay"),
        Expr::AtTimeZone { .. } => named("timezone"),
        Expr::Trim { trim_where, .. } => named(match trim_where {
            None | Some(TrimWhereField::Both) => "btrim",
            Some(TrimWhereField::Leading) => "ltrim",
            Some(TrimWhereField::Trailing) => "rtrim",
        }),
        Expr::Tuple(_) => named("row"),
        Expr::Subquery(query) => match query.body.as_ref() {
            SetExpr::Select(select) => match select.projection.first() {
                Some(SelectItem::ExprWithAlias { alias, .. }) => named(fold(alias)),
                Some(SelectItem::UnnamedExpr(e)) => name_and_strength(e, depth + 1),
                _ => none(),
            },
            _ => none(),
        },
        _ => none(),
    }
}

/// Returns PostgreSQL's internal name of a type, by which a cast names its column.
fn type_label(data_type: &ast::DataType) -> String {
    use crate::types::SqlType as T;
    let ty = match super::data_type::type_name(data_type) {
        Ok(super::data_type::TypeName::Sql(ty)) => ty,
        Ok(super::data_type::TypeName::Interval) => return "interval".to_string(),
        _ => return data_type.to_string().to_lowercase(),
    };
    match ty {
        T::Boolean => "bool",
        T::SmallInt => "int2",
        T::Integer => "int4",
        T::BigInt => "int8",
        T::Real => "float4",
        T::Double => "float8",
        T::Numeric(_) => "numeric",
        T::Text => "text",
        T::Varchar(_) => "varchar",
        T::Char(_) => "bpchar",
        T::Bytea => "bytea",
        T::Date => "date",
        T::Time => "time",
        T::Timestamp => "timestamp",
        T::Timestamptz => "timestamptz",
        T::Uuid => "uuid",
        T::Json => "json",
        T::Jsonb => "jsonb",
    }
    .to_string()
}

/// Returns the columns of a result.
pub(super) fn result_columns(columns: &[OutColumn]) -> Vec<ResultColumn> {
    let column = |c: &OutColumn| ResultColumn {
        name: c.name.clone(),
        ty: c.ty.display(),
        array: match c.ty {
            super::binder::Ty::Array(ty) => Some(ty),
            _ => None,
        },
        origin: c.origin,
    };
    columns.iter().map(column).collect()
}

impl Binder<'_> {
    /// Returns what the executor runs.
    pub(super) fn executable(&self, sql: String) -> Executable {
        Executable {
            sql,
            parameters: self.parameter_types(),
            relations: self.relations.iter().cloned().collect(),
        }
    }

    /// Returns the query with all that is known at the end.
    pub(super) fn finished(&self, bound: BoundQuery) -> super::Query {
        super::Query {
            columns: result_columns(&bound.columns),
            executable: self.executable(bound.sql),
            locked: self.locked.iter().cloned().collect(),
            has_side_effects: self.has_side_effects,
        }
    }
}
