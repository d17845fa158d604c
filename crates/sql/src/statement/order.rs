//! ORDER BY, LIMIT, OFFSET and FETCH FIRST.

use super::binder::{Binder, Kind, Scope, Ty};
use super::name::fold;
use super::query::OutColumn;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use sqlparser::ast::{self, Expr, LimitClause, OrderByExpr, OrderByKind, OrderBySort};

impl Binder<'_> {
    /// Binds LIMIT, OFFSET and FETCH FIRST. The flag says that the limit is at most one row.
    pub(super) fn limit(&mut self, query: &ast::Query) -> SqlResult<(String, bool)> {
        let mut limit = None;
        let mut offset = None;
        match &query.limit_clause {
            None => {}
            Some(LimitClause::LimitOffset {
                limit: l,
                offset: o,
                limit_by,
            }) => {
                if !limit_by.is_empty() {
                    return Err(SqlError::unsupported("LIMIT BY"));
                }
                limit = l.as_ref();
                offset = o.as_ref().map(|o| &o.value);
            }
            Some(LimitClause::OffsetCommaLimit {
                offset: o,
                limit: l,
            }) => {
                (limit, offset) = (Some(l), Some(o));
            }
        }
        let one = Expr::Value(ast::Value::Number("1".into(), false).into());
        if let Some(fetch) = &query.fetch {
            if fetch.with_ties || fetch.percent {
                return Err(SqlError::unsupported(
                    "FETCH FIRST with PERCENT or WITH TIES",
                ));
            }
            if limit.is_some() {
                return Err(SqlError::syntax("multiple LIMIT clauses not allowed"));
            }
            limit = Some(fetch.quantity.as_ref().unwrap_or(&one));
        }
        let limit = limit
            .map(|e| self.row_count(e, "LIMIT"))
            .transpose()?
            .flatten();
        let offset = offset
            .map(|e| self.row_count(e, "OFFSET"))
            .transpose()?
            .flatten();
        let single = matches!(limit.as_deref(), Some("0" | "1"));
        let sql = match (limit, offset) {
            (None, None) => String::new(),
            (Some(limit), None) => format!(" LIMIT {limit}"),
            (limit, Some(offset)) => {
                format!(
                    " LIMIT {} OFFSET {offset}",
                    limit.as_deref().unwrap_or("-1")
                )
            }
        };
        Ok((sql, single))
    }

    pub(super) fn row_count(&mut self, expr: &Expr, clause: &str) -> SqlResult<Option<String>> {
        self.scopes.push(Scope {
            no_aggregates: Some("LIMIT"),
            ..Scope::default()
        });
        let bound = self
            .value(expr)
            .and_then(|b| self.resolve(b, Ty::Sql(SqlType::BigInt)));
        self.scopes.pop();
        let bound = bound?;
        let negative = || {
            let state = if clause == "LIMIT" { "2201W" } else { "2201X" };
            SqlError::new(SqlState(state), format!("{clause} must not be negative"))
        };
        match (&bound.kind, bound.ty) {
            (Kind::Null, _) => Ok(None),
            (Kind::Number(digits), _) if digits.starts_with('-') => Err(negative()),
            (Kind::Number(_), Ty::Sql(ty)) if ty.is_integer() => Ok(Some(bound.sql)),
            (_, Ty::Sql(ty)) if ty.is_number() => {
                let function = if clause == "LIMIT" {
                    "basalt_limit"
                } else {
                    "basalt_offset"
                };
                Ok(Some(format!("{function}({})", bound.sql)))
            }
            (_, other) => {
                let message = format!(
                    "argument of {clause} must be type bigint, not type {}",
                    other.name()
                );
                Err(SqlError::new(SqlState::DATATYPE_MISMATCH, message))
            }
        }
    }

    /// Binds ORDER BY of a SELECT.
    pub(super) fn order(
        &mut self,
        order_by: &ast::OrderBy,
        columns: &[OutColumn],
        distinct: bool,
    ) -> SqlResult<String> {
        let mut keys = Vec::new();
        for key in order_exprs(order_by)? {
            let (sql, nullable) = match self.output_column(&key.expr, columns)? {
                Some(at) => ((at + 1).to_string(), columns[at].nullable),
                None => {
                    let bound = self.value(&key.expr)?;
                    let place = columns.iter().position(|c| c.sql == bound.sql);
                    match place {
                        Some(at) => ((at + 1).to_string(), bound.nullable),
                        None if distinct => {
                            let message = "for SELECT DISTINCT, ORDER BY expressions must appear \
                                           in select list";
                            let state = SqlState::INVALID_COLUMN_REFERENCE;
                            return Err(SqlError::new(state, message));
                        }
                        // A constant does not order; the executor would take it as a position.
                        None if matches!(bound.kind, Kind::Number(_) | Kind::Text(_)) => {
                            return Err(SqlError::syntax("non-integer constant in ORDER BY"));
                        }
                        None => (bound.sql, bound.nullable),
                    }
                }
            };
            keys.push(format!("{sql}{}", direction(key, nullable)?));
        }
        Ok(format!(" ORDER BY {}", keys.join(", ")))
    }

    /// Returns the column of the result that a position or a bare name in ORDER BY means.
    pub(super) fn output_column(
        &mut self,
        expr: &Expr,
        columns: &[OutColumn],
    ) -> SqlResult<Option<usize>> {
        match expr {
            Expr::Value(value) => match &value.value {
                ast::Value::Number(digits, _) => {
                    let at = digits.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
                    match at.filter(|at| *at < columns.len()) {
                        Some(at) => Ok(Some(at)),
                        None => {
                            let message =
                                format!("ORDER BY position {digits} is not in select list");
                            let state = SqlState::INVALID_COLUMN_REFERENCE;
                            Err(SqlError::new(state, message))
                        }
                    }
                }
                _ => Ok(None),
            },
            Expr::Identifier(ident) => {
                let name = fold(ident);
                let mut found = columns.iter().enumerate().filter(|(_, c)| c.name == name);
                let Some((at, first)) = found.next() else {
                    return Ok(None);
                };
                if found.any(|(_, c)| c.sql != first.sql) {
                    let message = format!("ORDER BY \"{name}\" is ambiguous");
                    let error = SqlError::new(SqlState::AMBIGUOUS_COLUMN, message);
                    return Err(self.at(ident, error));
                }
                Ok(Some(at))
            }
            _ => Ok(None),
        }
    }

    /// Binds ORDER BY of a set operation: it sees columns of the result alone.
    pub(super) fn order_of_columns(
        &mut self,
        order_by: &ast::OrderBy,
        columns: &[OutColumn],
    ) -> SqlResult<String> {
        let mut keys = Vec::new();
        for key in order_exprs(order_by)? {
            let Some(at) = self.output_column(&key.expr, columns)? else {
                if let Expr::Identifier(ident) = &key.expr {
                    let message = format!("column \"{}\" does not exist", fold(ident));
                    let error = SqlError::new(SqlState::UNDEFINED_COLUMN, message);
                    return Err(self.at(ident, error));
                }
                let what = "an expression in ORDER BY of a set operation or VALUES";
                return Err(SqlError::unsupported(what));
            };
            keys.push(format!(
                "{}{}",
                at + 1,
                direction(key, columns[at].nullable)?
            ));
        }
        Ok(format!(" ORDER BY {}", keys.join(", ")))
    }

    /// Binds ORDER BY of a window or an aggregate.
    pub(super) fn order_list(&mut self, order: &[&OrderByExpr]) -> SqlResult<String> {
        let mut keys = Vec::new();
        for key in order {
            let bound = self.value(&key.expr)?;
            keys.push(format!("{}{}", bound.sql, direction(key, bound.nullable)?));
        }
        Ok(keys.join(", "))
    }
}

/// Returns direction and place of NULLs. By default NULL is greater than all values in PostgreSQL,
/// and smaller in the executor.
pub(super) fn direction(key: &OrderByExpr, nullable: bool) -> SqlResult<String> {
    if key.with_fill.is_some() {
        return Err(SqlError::unsupported("WITH FILL"));
    }
    let descending = match &key.options.sort {
        None | Some(OrderBySort::Asc) => false,
        Some(OrderBySort::Desc) => true,
        Some(OrderBySort::Using(_)) => return Err(SqlError::unsupported("ORDER BY USING")),
    };
    let nulls_first = key.options.nulls_first.unwrap_or(descending);
    let word = if descending { " DESC" } else { "" };
    let nulls = match (nullable, nulls_first == descending) {
        (false, _) => "",
        (true, _) if nulls_first != descending => "",
        (true, _) if nulls_first => " NULLS FIRST",
        (true, _) => " NULLS LAST",
    };
    Ok(format!("{word}{nulls}"))
}

pub(super) fn order_exprs(order_by: &ast::OrderBy) -> SqlResult<&[OrderByExpr]> {
    match &order_by.kind {
        OrderByKind::Expressions(exprs) if order_by.interpolate.is_none() => Ok(exprs),
        _ => Err(SqlError::unsupported("this form of ORDER BY")),
    }
}
