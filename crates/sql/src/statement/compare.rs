//! Comparisons: operators, BETWEEN, LIKE, IN, ANY and ALL.

use super::binder::{Binder, Bound, Category, Kind, Ty, category, to_common};
use super::expr::no_operator;
use crate::error::{SqlError, SqlResult};
use crate::types::SqlType;
use sqlparser::ast::{self, BinaryOperator, Expr, InTarget};

impl Binder<'_> {
    pub(super) fn is_null(&mut self, expr: &Expr, test: &str) -> SqlResult<Bound> {
        let bound = self.value(expr)?;
        if let Kind::Row(items) = &bound.kind {
            let tests: Vec<String> = items.iter().map(|b| format!("{} {test}", b.sql)).collect();
            let sql = format!("({})", tests.join(" AND "));
            return Ok(Bound::new(sql, SqlType::Boolean).not_null());
        }
        Ok(Bound::new(format!("({} {test})", bound.sql), SqlType::Boolean).not_null())
    }

    pub(super) fn is_boolean(&mut self, expr: &Expr, test: &str) -> SqlResult<Bound> {
        let bound = self.condition(expr, "IS")?;
        Ok(Bound::new(format!("({} {test})", bound.sql), SqlType::Boolean).not_null())
    }

    pub(super) fn between(
        &mut self,
        e: &Expr,
        low: &Expr,
        high: &Expr,
        not: bool,
    ) -> SqlResult<Bound> {
        let value = self.value(e)?;
        let (low, high) = (self.value(low)?, self.value(high)?);
        let mut all = [value, low, high];
        if all
            .iter()
            .any(|b| matches!(b.kind, Kind::Row(_)) || b.ty == Ty::Interval)
        {
            let [value, low, high] = all;
            let from = self.compare(">=", value.clone(), low)?;
            let to = self.compare("<=", value, high)?;
            let not = if not { "NOT " } else { "" };
            let sql = format!("({not}({} AND {}))", from.sql, to.sql);
            return Ok(Bound::new(sql, SqlType::Boolean));
        }
        check_operands(&all[0], &all[1], "BETWEEN")?;
        check_operands(&all[0], &all[2], "BETWEEN")?;
        self.unify(&mut all, "BETWEEN")?;
        let nullable = all.iter().any(|b| b.nullable);
        let [value, low, high] = all;
        let not = if not { "NOT " } else { "" };
        let sql = format!("({} {not}BETWEEN {} AND {})", value.sql, low.sql, high.sql);
        Ok(Bound::new(sql, SqlType::Boolean).nullable_if(nullable))
    }

    pub(super) fn like(
        &mut self,
        expr: &Expr,
        pattern: &Expr,
        escape: Option<&Expr>,
        negated: bool,
        fold_case: bool,
    ) -> SqlResult<Bound> {
        let operator = if fold_case { "~~*" } else { "~~" };
        let value = self.text_operand(expr, operator)?;
        let pattern = self.text_operand(pattern, operator)?;
        let name = if fold_case {
            "basalt_ilike"
        } else {
            "basalt_like"
        };
        let mut sql = format!("{name}({}, {}", value.sql, pattern.sql);
        if let Some(escape) = escape {
            let escape = self.text_operand(escape, operator)?;
            sql.push_str(&format!(", {}", escape.sql));
        }
        sql.push(')');
        if negated {
            sql = format!("(NOT {sql})");
        } else if !fold_case
            && escape.is_none()
            && value.origin.is_some()
            && let Some(range) = prefix_range(&value.sql, &pattern)
        {
            sql = format!("({range} AND {sql})");
        }
        let nullable = value.nullable || pattern.nullable;
        Ok(Bound::new(sql, SqlType::Boolean).nullable_if(nullable))
    }

    /// Binds an operand that must be a text.
    pub(super) fn text_operand(&mut self, expr: &Expr, operator: &str) -> SqlResult<Bound> {
        let bound = self.value(expr)?;
        let bound = self.resolve(bound, Ty::Sql(SqlType::Text))?;
        match category(bound.ty) {
            None | Some(Category::Text) => Ok(bound),
            Some(_) => Err(no_operator(bound.ty, operator, Ty::Unknown)),
        }
    }

    /// Compares two expressions of types that are brought together.
    pub(super) fn compare(&mut self, op: &str, left: Bound, right: Bound) -> SqlResult<Bound> {
        if let (Kind::Row(a), Kind::Row(b)) = (&left.kind, &right.kind) {
            return self.compare_rows(op, a.clone(), b.clone());
        }
        let (left, right) = (self.resolve(left, right.ty)?, right);
        let right = self.resolve(right, left.ty)?;
        check_operands(&left, &right, op)?;
        let nullable = left.nullable || right.nullable;
        let sql = if left.ty == Ty::Interval || right.ty == Ty::Interval {
            format!(
                "(basalt_interval_us({}) {op} basalt_interval_us({}))",
                left.sql, right.sql
            )
        } else {
            let common = super::binder::common_type(left.ty, right.ty, op).unwrap_or(Ty::Unknown);
            let (left, right) = (to_common(left, common), to_common(right, common));
            format!("({} {op} {})", left.sql, right.sql)
        };
        Ok(Bound::new(sql, SqlType::Boolean).nullable_if(nullable))
    }

    pub(super) fn compare_rows(
        &mut self,
        op: &str,
        left: Vec<Bound>,
        right: Vec<Bound>,
    ) -> SqlResult<Bound> {
        if left.len() != right.len() {
            return Err(SqlError::syntax(
                "unequal number of entries in row expressions",
            ));
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for (l, r) in left.into_iter().zip(right) {
            let l = self.resolve(l, r.ty)?;
            let r = self.resolve(r, l.ty)?;
            check_operands(&l, &r, op)?;
            let common = super::binder::common_type(l.ty, r.ty, op).unwrap_or(Ty::Unknown);
            a.push(to_common(l, common).sql);
            b.push(to_common(r, common).sql);
        }
        let sql = match (&a[..], &b[..]) {
            ([a], [b]) => format!("({a} {op} {b})"),
            _ => format!("(({}) {op} ({}))", a.join(", "), b.join(", ")),
        };
        Ok(Bound::new(sql, SqlType::Boolean))
    }

    pub(super) fn in_target(
        &mut self,
        e: &Expr,
        target: &InTarget,
        negated: bool,
    ) -> SqlResult<Bound> {
        let value = self.value(e)?;
        let not = if negated { "NOT " } else { "" };
        match target {
            InTarget::List(items) => {
                let mut bounds = vec![value];
                for item in items {
                    bounds.push(self.value(item)?);
                }
                if matches!(bounds[0].kind, Kind::Row(_)) {
                    return self.in_rows(bounds, negated);
                }
                let value_ty = bounds[0].ty;
                for at in 1..bounds.len() {
                    check_operands(&bounds[0], &bounds[at], "=")?;
                    // A literal takes the type of the value, as in a comparison.
                    if value_ty != Ty::Unknown {
                        bounds[at] = self.resolve(bounds[at].clone(), value_ty)?;
                    }
                }
                self.unify(&mut bounds, "IN")?;
                let nullable = bounds.iter().any(|b| b.nullable);
                let list: Vec<&str> = bounds[1..].iter().map(|b| b.sql.as_str()).collect();
                let sql = format!("({} {not}IN ({}))", bounds[0].sql, list.join(", "));
                Ok(Bound::new(sql, SqlType::Boolean).nullable_if(nullable))
            }
            InTarget::Subquery(query) => self.in_subquery(value, query, not),
            InTarget::Unnest(_) | InTarget::Table { .. } => Err(SqlError::unsupported(
                "IN of anything but a list or a query",
            )),
        }
    }

    pub(super) fn in_rows(&mut self, bounds: Vec<Bound>, negated: bool) -> SqlResult<Bound> {
        let mut bounds = bounds.into_iter();
        let Some(Bound {
            kind: Kind::Row(left),
            ..
        }) = bounds.next()
        else {
            return Err(SqlError::internal("no row"));
        };
        let mut tests = Vec::new();
        for right in bounds {
            let Kind::Row(right) = right.kind else {
                return Err(SqlError::syntax(
                    "unequal number of entries in row expressions",
                ));
            };
            tests.push(self.compare_rows("=", left.clone(), right)?.sql);
        }
        let sql = balanced(&tests, "OR");
        let sql = if negated { format!("(NOT {sql})") } else { sql };
        Ok(Bound::new(sql, SqlType::Boolean))
    }

    pub(super) fn in_subquery(
        &mut self,
        value: Bound,
        query: &ast::Query,
        not: &str,
    ) -> SqlResult<Bound> {
        self.refuse_subquery()?;
        let left = match &value.kind {
            Kind::Row(items) => items.clone(),
            _ => vec![value],
        };
        let query = self.query(query, None)?;
        if query.columns.len() != left.len() {
            let few = if query.columns.len() < left.len() {
                "few"
            } else {
                "many"
            };
            return Err(SqlError::syntax(format!("subquery has too {few} columns")));
        }
        let mut sqls = Vec::new();
        for (value, column) in left.into_iter().zip(&query.columns) {
            let value = self.resolve(value, column.ty)?;
            let probe = Bound::new("", column.ty);
            check_operands(&value, &probe, "=")?;
            let common = super::binder::common_type(value.ty, column.ty, "=")?;
            if to_common(probe, common).ty != column.ty {
                return Err(SqlError::unsupported(
                    "IN of a timestamp and a query of dates",
                ));
            }
            sqls.push(to_common(value, common).sql);
        }
        let left = match &sqls[..] {
            [one] => one.clone(),
            _ => format!("({})", sqls.join(", ")),
        };
        Ok(Bound::new(
            format!("({left} {not}IN ({}))", query.sql),
            SqlType::Boolean,
        ))
    }

    pub(super) fn any_all(
        &mut self,
        left: &Expr,
        op: &BinaryOperator,
        right: &Expr,
        any: bool,
    ) -> SqlResult<Bound> {
        let word = if any { "ANY" } else { "ALL" };
        let Expr::Subquery(query) = right else {
            return match (op, any) {
                (BinaryOperator::Eq, true) => self.any_of_array(left, right, false),
                (BinaryOperator::NotEq, false) => self.any_of_array(left, right, true),
                _ => Err(SqlError::unsupported(format!("{op} {word} of an array"))),
            };
        };
        match (op, any) {
            (BinaryOperator::Eq, true) => {
                let value = self.value(left)?;
                self.in_subquery(value, query, "")
            }
            (BinaryOperator::NotEq, false) => {
                let value = self.value(left)?;
                self.in_subquery(value, query, "NOT ")
            }
            _ => Err(SqlError::unsupported(format!("{op} {word} of a query"))),
        }
    }
}

/// Returns the range of texts that begin as a LIKE pattern does, if the pattern begins with plain
/// characters.
pub(super) fn prefix_range(column: &str, pattern: &Bound) -> Option<String> {
    let text = pattern.sql.strip_prefix('\'')?.strip_suffix('\'')?;
    if text.contains('\'') {
        return None;
    }
    let end = text.find(['%', '_', '\\']).unwrap_or(text.len());
    let prefix = &text[..end];
    let last = *prefix.as_bytes().last()?;
    if !prefix.is_ascii() || last >= 0x7e || last + 1 == b'\'' {
        return None;
    }
    let after = format!("{}{}", &prefix[..prefix.len() - 1], char::from(last + 1));
    Some(format!("{column} >= '{prefix}' AND {column} < '{after}'"))
}

/// Fails if values of the two types are not compared in PostgreSQL.
pub(super) fn check_operands(left: &Bound, right: &Bound, op: &str) -> SqlResult<()> {
    let (a, b) = (category(left.ty), category(right.ty));
    match (a, b) {
        (Some(a), Some(b)) if a != b => Err(no_operator(left.ty, op, right.ty)),
        _ => Ok(()),
    }
}

/// Joins terms by an operator into a tree of little depth.
pub(super) fn balanced(terms: &[String], word: &str) -> String {
    match terms {
        [] => "1".to_string(),
        [one] => one.clone(),
        [a, b] => format!("({a} {word} {b})"),
        _ if terms.len() <= 8 => format!("({})", terms.join(&format!(" {word} "))),
        _ => {
            let (a, b) = terms.split_at(terms.len() / 2);
            format!("({} {word} {})", balanced(a, word), balanced(b, word))
        }
    }
}
