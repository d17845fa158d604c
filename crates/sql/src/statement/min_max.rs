//! MIN and MAX of a key's column read one row.

use super::binder::Binder;
use super::name::{fold, quote};
use super::query::OutColumn;
use crate::catalog::TableDef;
use crate::error::SqlResult;
use sqlparser::ast::{self, Expr};

impl Binder<'_> {
    /// Rewrites `SELECT MIN(c) FROM t WHERE <equalities of a key's prefix>`, whose next column is
    /// `c`, into a query that reads one row. The executor does this for its own indexes alone.
    pub(super) fn first_of_key(
        &mut self,
        select: &ast::Select,
        from: &str,
        condition: &str,
        columns: &[OutColumn],
    ) -> SqlResult<Option<String>> {
        let scope = self.scope()?;
        let ([relation], [column]) = (&scope.relations[..], columns) else {
            return Ok(None);
        };
        let (Some(table), [one]) = (&relation.table, &select.from[..]) else {
            return Ok(None);
        };
        if !one.joins.is_empty() {
            return Ok(None);
        }
        let plain = |p: u16| {
            let name = &table.columns[usize::from(p)].name;
            super::binder::column_sql(&relation.emitted, name)
        };
        let argument = |word: &str| {
            let inner = column
                .sql
                .strip_prefix(word)?
                .strip_prefix('(')?
                .strip_suffix(')')?;
            table.visible().map(|(p, _)| p).find(|p| plain(*p) == inner)
        };
        let (at, direction) = match (argument("min"), argument("max")) {
            (Some(at), _) => (at, ""),
            (_, Some(at)) => (at, " DESC"),
            _ => return Ok(None),
        };
        let mut fixed = Vec::new();
        if let Some(selection) = &select.selection
            && !equalities(selection, table, &relation.alias, &mut fixed)
        {
            return Ok(None);
        }
        fixed.sort_unstable();
        fixed.dedup();
        let fits = |key: &[u16]| {
            let Some(next) = key.iter().position(|p| *p == at) else {
                return false;
            };
            let mut prefix = key[..next].to_vec();
            prefix.sort_unstable();
            prefix == fixed
        };
        let indexes = table.indexes.iter().filter(|i| i.is_ready);
        if !fits(&table.primary_key) && !indexes.into_iter().any(|i| fits(&i.columns)) {
            return Ok(None);
        }
        let sql = plain(at);
        let and = if condition.is_empty() {
            " WHERE"
        } else {
            " AND"
        };
        Ok(Some(format!(
            "SELECT (SELECT {sql}{from}{condition}{and} {sql} IS NOT NULL ORDER BY {sql}{direction} \
             LIMIT 1) AS {}",
            quote(&column.emitted)
        )))
    }
}

/// Collects the columns of a conjunction of `column = constant`. Returns `false` for other
/// conditions.
pub(super) fn equalities(expr: &Expr, table: &TableDef, alias: &str, fixed: &mut Vec<u16>) -> bool {
    let mut waiting = vec![expr];
    while let Some(next) = waiting.pop() {
        let (left, right) = match next {
            Expr::Nested(inner) => {
                waiting.push(inner);
                continue;
            }
            Expr::BinaryOp {
                left,
                op: ast::BinaryOperator::And,
                right,
            } => {
                waiting.push(left);
                waiting.push(right);
                continue;
            }
            Expr::BinaryOp {
                left,
                op: ast::BinaryOperator::Eq,
                right,
            } => (left, right),
            _ => return false,
        };
        let column = |e: &Expr| match e {
            Expr::Identifier(ident) => table.column(&fold(ident)),
            Expr::CompoundIdentifier(idents) => match &idents[..] {
                [t, c] if fold(t) == alias => table.column(&fold(c)),
                _ => None,
            },
            _ => None,
        };
        let is_constant = |e: &Expr| matches!(e, Expr::Value(_) | Expr::TypedString(_));
        match (column(left), column(right)) {
            (Some(at), None) if is_constant(right) => fixed.push(at),
            (None, Some(at)) if is_constant(left) => fixed.push(at),
            _ => return false,
        }
    }
    true
}
