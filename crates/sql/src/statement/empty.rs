//! Queries of relations of the system that never have rows.
//!
//! Clients ask for policies, triggers or publications with arrays and functions that the dialect
//! does not have. The relations are empty, so the query has no rows for any expressions, and the
//! binder leaves the expressions out.

use super::binder::Binder;
use super::name::{fold, parts, quote};
use super::system::{is_always_empty, system_relation};
use super::{Command, Executable, Query, ResultColumn};
use crate::types::SqlType;
use sqlparser::ast::{
    self, Expr, JoinOperator, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr,
    TableFactor,
};

impl Binder<'_> {
    /// Returns the command of a query that has no rows, because each of its SELECTs reads a
    /// relation without rows.
    pub(super) fn empty_query(&self, query: &ast::Query) -> Option<Command> {
        if query.with.is_some() || !self.is_empty_body(&query.body) {
            return None;
        }
        let names = output_names(first_select(&query.body)?)?;
        let list: Vec<String> = names
            .iter()
            .map(|name| format!("NULL AS {}", quote(name)))
            .collect();
        let column = |name: String| ResultColumn {
            name,
            ty: SqlType::Text,
            array: None,
            origin: None,
        };
        Some(Command::Query(Query {
            columns: names.into_iter().map(column).collect(),
            executable: Executable {
                sql: format!("SELECT {} WHERE 0", list.join(", ")),
                parameters: self.parameter_types(),
                relations: Vec::new(),
            },
            locked: Vec::new(),
            has_side_effects: false,
        }))
    }

    fn is_empty_body(&self, body: &SetExpr) -> bool {
        match body {
            SetExpr::Select(select) => self.is_empty_select(select),
            SetExpr::Query(query) => query.with.is_none() && self.is_empty_body(&query.body),
            SetExpr::SetOperation { left, right, .. } => {
                self.is_empty_body(left) && self.is_empty_body(right)
            }
            _ => false,
        }
    }

    fn is_empty_select(&self, select: &Select) -> bool {
        // An aggregate without GROUP BY has a row of its own.
        let is_grouped = !matches!(&select.group_by,
            ast::GroupByExpr::Expressions(list, _) if list.is_empty());
        let has_call = |item: &SelectItem| {
            let text = item.to_string().to_lowercase();
            ["count(", "min(", "max(", "sum(", "avg(", "_agg("]
                .iter()
                .any(|call| text.starts_with(call))
        };
        if !is_grouped && select.projection.iter().any(has_call) {
            return false;
        }
        select.from.iter().any(|item| {
            let keeps_left = |join: &ast::Join| {
                use JoinOperator as J;
                matches!(
                    join.join_operator,
                    J::Join(_) | J::Inner(_) | J::CrossJoin(_) | J::Left(_) | J::LeftOuter(_)
                )
            };
            let is_inner = |join: &ast::Join| {
                use JoinOperator as J;
                matches!(
                    join.join_operator,
                    J::Join(_) | J::Inner(_) | J::CrossJoin(_)
                )
            };
            item.joins.iter().all(keeps_left)
                && (self.is_empty_factor(&item.relation)
                    || item
                        .joins
                        .iter()
                        .any(|join| is_inner(join) && self.is_empty_factor(&join.relation)))
        })
    }

    fn is_empty_factor(&self, factor: &TableFactor) -> bool {
        let TableFactor::Table {
            name, args: None, ..
        } = factor
        else {
            return false;
        };
        let Ok(parts) = parts(name) else {
            return false;
        };
        let (schema, name) = match parts[..] {
            [name] => (None, fold(name)),
            [schema, name] => (Some(fold(schema)), fold(name)),
            _ => return false,
        };
        let is_users = schema.is_none() && self.catalog.object(&name).is_some();
        let found = system_relation(schema.as_deref(), &name);
        !is_users && found.is_some_and(|r| r.schema == "pg_catalog" && is_always_empty(r.name))
    }
}

fn first_select(body: &SetExpr) -> Option<&Select> {
    match body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(query) => first_select(&query.body),
        SetExpr::SetOperation { left, .. } => first_select(left),
        _ => None,
    }
}

/// Returns the names of the columns of a SELECT, as PostgreSQL gives them.
fn output_names(select: &Select) -> Option<Vec<String>> {
    let name = |item: &SelectItem| {
        Some(match item {
            SelectItem::ExprWithAlias { alias, .. } => fold(alias),
            SelectItem::UnnamedExpr(expr) => expression_name(expr),
            SelectItem::Wildcard(_)
            | SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(_), _) => {
                return None;
            }
            _ => return None,
        })
    };
    select.projection.iter().map(name).collect()
}

fn expression_name(expr: &Expr) -> String {
    match expr {
        Expr::Identifier(ident) => fold(ident),
        Expr::CompoundIdentifier(idents) => idents.last().map_or_else(String::new, fold),
        Expr::Function(function) => {
            let last = parts(&function.name)
                .ok()
                .and_then(|parts| parts.last().map(|i| fold(i)));
            last.unwrap_or_default()
        }
        Expr::Cast { expr, .. } => expression_name(expr),
        Expr::Case { .. } => "case".to_owned(),
        _ => "?column?".to_owned(),
    }
}
