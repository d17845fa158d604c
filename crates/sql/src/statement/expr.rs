//! Expressions: from PostgreSQL's dialect to the executor's, with their types.

use super::binder::{Binder, Bound, Category, Kind, Ty, cast_call, category, literal};
use super::compare::balanced;
use super::data_type::{TypeName, type_name};
use super::name::quote_text;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use crate::value::Value;
use sqlparser::ast::{
    self, BinaryOperator, CastKind, CeilFloorKind, Expr, TrimWhereField, UnaryOperator,
};

/// Maximum number of operators of one chain: the executor takes trees of 1,000 levels.
const MAX_CHAIN: usize = 900;

impl Binder<'_> {
    /// Binds an expression that is used as a value: arithmetic is checked for its range.
    pub(super) fn value(&mut self, expr: &Expr) -> SqlResult<Bound> {
        Ok(self.expr(expr)?.checked())
    }

    /// Binds an expression. An expression of GROUP BY makes its columns grouped.
    pub(super) fn expr(&mut self, expr: &Expr) -> SqlResult<Bound> {
        self.deeper(|binder| {
            let mark = binder.scopes.last().map_or(0, |s| s.ungrouped.len());
            let bound = binder.any_expr(expr)?;
            if let Some(scope) = binder.scopes.last_mut()
                && !scope.groups.is_empty()
                && (scope.groups.contains(&bound.sql)
                    || bound.unchecked && scope.groups.contains(&bound.clone().checked().sql))
            {
                scope.ungrouped.truncate(mark);
            }
            Ok(bound)
        })
    }

    /// Binds a condition: WHERE, ON, HAVING, FILTER, WHEN.
    pub(super) fn condition(&mut self, expr: &Expr, clause: &str) -> SqlResult<Bound> {
        let bound = self.value(expr)?;
        let bound = self.resolve(bound, Ty::Sql(SqlType::Boolean))?;
        match bound.ty {
            Ty::Sql(SqlType::Boolean) | Ty::Unknown => Ok(bound),
            other => {
                let message = format!(
                    "argument of {clause} must be type boolean, not type {}",
                    other.name()
                );
                Err(SqlError::new(SqlState::DATATYPE_MISMATCH, message))
            }
        }
    }

    fn any_expr(&mut self, expr: &Expr) -> SqlResult<Bound> {
        match expr {
            Expr::Identifier(ident) => match ident.quote_style {
                None => match self.column(ident) {
                    Err(e) => self.keyword_function(ident).ok_or(e)?,
                    found => found,
                },
                Some(_) => self.column(ident),
            },
            Expr::CompoundIdentifier(idents) => self.qualified_column(idents),
            Expr::Value(value) => self.literal_value(&value.value),
            Expr::TypedString(typed) => {
                let Some(text) = text_of(&typed.value.value) else {
                    return Err(SqlError::syntax("a typed literal without a text"));
                };
                self.typed_literal(text, type_name(&typed.data_type)?)
            }
            Expr::Interval(interval) => self.interval(interval),
            Expr::Nested(inner) => self.expr(inner),
            Expr::BinaryOp { .. } => self.binary_chain(expr),
            Expr::UnaryOp { op, expr } => self.unary(*op, expr),
            Expr::Cast {
                kind: CastKind::Cast | CastKind::DoubleColon,
                expr,
                data_type,
                format,
            } => {
                if format.is_some() {
                    return Err(SqlError::unsupported("CAST with FORMAT"));
                }
                let target = type_name(data_type)?;
                self.cast(expr, target)
            }
            Expr::Case {
                operand,
                conditions,
                else_result,
                ..
            } => self.case(operand.as_deref(), conditions, else_result.as_deref()),
            Expr::Function(function) => match super::array::array_query(function) {
                Some(query) => self.array_of_query(query),
                None => match super::array::expanded(expr) {
                    Some(array) => {
                        let array = self.value(array)?;
                        self.unnest_call(&array)
                    }
                    None => self.function(function),
                },
            },
            Expr::Array(array) if array.named => self.array(&array.elem),
            Expr::CompoundFieldAccess { root, access_chain } => match &access_chain[..] {
                [access] => self.array_access(root, access),
                _ => Err(unsupported_expr(expr)),
            },
            Expr::Exists { subquery, negated } => {
                self.refuse_subquery()?;
                let query = match super::array::with_a_column(subquery) {
                    Some(subquery) => self.query(&subquery, None)?,
                    None => self.query(subquery, None)?,
                };
                let not = if *negated { "NOT " } else { "" };
                let sql = format!("({not}EXISTS ({}))", query.sql);
                Ok(Bound::new(sql, SqlType::Boolean).not_null())
            }
            Expr::Subquery(query) => self.scalar_subquery(query),
            Expr::In {
                expr,
                target,
                negated,
                global: false,
            } => self.in_target(expr, target, *negated),
            Expr::AnyOp {
                left,
                compare_op,
                right,
                ..
            } => self.any_all(left, compare_op, right, true),
            Expr::AllOp {
                left,
                compare_op,
                right,
            } => self.any_all(left, compare_op, right, false),
            Expr::Tuple(items) => self.row(items),
            _ => self.predicate(expr),
        }
    }

    fn predicate(&mut self, expr: &Expr) -> SqlResult<Bound> {
        match expr {
            Expr::IsNull(e) => self.is_null(e, "IS NULL"),
            Expr::IsNotNull(e) => self.is_null(e, "IS NOT NULL"),
            Expr::IsTrue(e) => self.is_boolean(e, "IS 1"),
            Expr::IsNotTrue(e) => self.is_boolean(e, "IS NOT 1"),
            Expr::IsFalse(e) => self.is_boolean(e, "IS 0"),
            Expr::IsNotFalse(e) => self.is_boolean(e, "IS NOT 0"),
            Expr::IsUnknown(e) => self.is_boolean(e, "IS NULL"),
            Expr::IsNotUnknown(e) => self.is_boolean(e, "IS NOT NULL"),
            Expr::IsDistinctFrom(l, r) => {
                let (l, r) = (self.value(l)?, self.value(r)?);
                Ok(self.compare("IS NOT", l, r)?.not_null())
            }
            Expr::IsNotDistinctFrom(l, r) => {
                let (l, r) = (self.value(l)?, self.value(r)?);
                Ok(self.compare("IS", l, r)?.not_null())
            }
            Expr::Between {
                expr,
                negated,
                low,
                high,
            } => self.between(expr, low, high, *negated),
            Expr::Like {
                negated,
                any: false,
                expr,
                pattern,
                escape_char,
            } => self.like(expr, pattern, escape_char.as_deref(), *negated, false),
            Expr::ILike {
                negated,
                any: false,
                expr,
                pattern,
                escape_char,
            } => self.like(expr, pattern, escape_char.as_deref(), *negated, true),
            Expr::Extract { field, expr, .. } => {
                let field = super::call::field_name(&field.to_string())?;
                let value = self.value(expr)?;
                self.extract(&field, value, SqlType::Numeric(None))
            }
            Expr::Ceil {
                expr,
                field: CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime),
            } => self.named_call("ceil", &[expr]),
            Expr::Floor {
                expr,
                field: CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime),
            } => self.named_call("floor", &[expr]),
            Expr::Position { expr, r#in } => self.named_call("strpos", &[r#in, expr]),
            Expr::Substring {
                expr,
                substring_from,
                substring_for,
                special: _,
                shorthand: _,
            } => {
                let one = Expr::Value(ast::Value::Number("1".into(), false).into());
                let from = substring_from.as_deref().unwrap_or(&one);
                match substring_for {
                    Some(length) => self.named_call("substr", &[expr, from, length]),
                    None => self.named_call("substr", &[expr, from]),
                }
            }
            Expr::Trim {
                trim_where,
                trim_what,
                expr,
                trim_characters,
            } => {
                let name = match trim_where {
                    None | Some(TrimWhereField::Both) => "btrim",
                    Some(TrimWhereField::Leading) => "ltrim",
                    Some(TrimWhereField::Trailing) => "rtrim",
                };
                match (trim_what, trim_characters.as_deref()) {
                    (None, None | Some([])) => self.named_call(name, &[expr]),
                    (Some(what), None | Some([])) => self.named_call(name, &[expr, what]),
                    (None, Some([what])) => self.named_call(name, &[expr, what]),
                    _ => Err(SqlError::unsupported("this form of TRIM")),
                }
            }
            Expr::Overlay {
                expr,
                overlay_what,
                overlay_from,
                overlay_for,
            } => match overlay_for {
                Some(length) => {
                    self.named_call("overlay", &[expr, overlay_what, overlay_from, length])
                }
                None => self.named_call("overlay", &[expr, overlay_what, overlay_from]),
            },
            Expr::AtTimeZone {
                timestamp,
                time_zone,
            } => self.at_time_zone(timestamp, time_zone),
            Expr::Collate { expr, collation } => {
                let name = collation.to_string().replace('"', "").to_lowercase();
                let name = name.strip_prefix("pg_catalog.").unwrap_or(&name).to_owned();
                match name.as_str() {
                    "c" | "posix" | "default" | "ucs_basic" => self.expr(expr),
                    _ => Err(SqlError::unsupported(format!("the collation {collation}"))),
                }
            }
            _ => Err(unsupported_expr(expr)),
        }
    }

    /// Returns a function without parentheses that the parser takes for a column.
    fn keyword_function(&mut self, ident: &ast::Ident) -> Option<SqlResult<Bound>> {
        let name = ident.value.to_lowercase();
        let known = [
            "current_timestamp",
            "current_date",
            "current_time",
            "localtimestamp",
            "localtime",
            "current_user",
            "session_user",
            "user",
            "current_role",
            "current_catalog",
            "current_schema",
        ];
        known
            .contains(&name.as_str())
            .then(|| self.named_call(&name, &[]))
    }

    pub(super) fn literal_value(&mut self, value: &ast::Value) -> SqlResult<Bound> {
        if let Some(text) = text_of(value) {
            if text.contains('\0') {
                let message = "invalid byte sequence for encoding \"UTF8\": 0x00";
                return Err(SqlError::new(SqlState("22021"), message));
            }
            let mut bound = Bound::new(quote_text(text), Ty::Unknown).not_null();
            bound.kind = Kind::Text(text.to_owned());
            return Ok(bound);
        }
        match value {
            ast::Value::Number(digits, false) => number(digits),
            ast::Value::Boolean(yes) => Ok(Bound::literal(&Value::from(*yes), SqlType::Boolean)),
            ast::Value::Null => {
                let mut bound = Bound::new("NULL", Ty::Unknown);
                bound.kind = Kind::Null;
                Ok(bound)
            }
            ast::Value::Placeholder(name) => {
                let n = name.strip_prefix('$').and_then(|n| n.parse().ok());
                let message = format!("there is no parameter {name}");
                let error = SqlError::new(SqlState::UNDEFINED_PARAMETER, message);
                self.parameter(n.ok_or(error)?)
            }
            ast::Value::HexStringLiteral(hex) => {
                let bytes = crate::types::hex_bytes(hex);
                let error = || SqlError::syntax(format!("X'{hex}' has an odd number of digits"));
                let value = Value::Blob(bytes.ok_or_else(error)?);
                Ok(Bound::literal(&value, SqlType::Bytea))
            }
            other => Err(SqlError::unsupported(format!("the literal {other}"))),
        }
    }

    fn typed_literal(&mut self, text: &str, target: TypeName) -> SqlResult<Bound> {
        let mut bound = Bound::new(quote_text(text), Ty::Unknown).not_null();
        bound.kind = Kind::Text(text.to_owned());
        self.cast_bound(bound, target)
    }

    fn interval(&mut self, interval: &ast::Interval) -> SqlResult<Bound> {
        if interval.last_field.is_some() || interval.leading_precision.is_some() {
            return Err(SqlError::unsupported("this form of INTERVAL"));
        }
        let Expr::Value(value) = interval.value.as_ref() else {
            return Err(SqlError::syntax("INTERVAL needs a text"));
        };
        let text = match (text_of(&value.value), &value.value) {
            (Some(text), _) => text.to_owned(),
            (None, ast::Value::Number(digits, _)) => digits.clone(),
            _ => return Err(SqlError::syntax("INTERVAL needs a text")),
        };
        let text = match &interval.leading_field {
            Some(field) => format!("{text} {}", field.to_string().to_lowercase()),
            None => text,
        };
        self.typed_literal(&text, TypeName::Interval)
    }

    fn row(&mut self, items: &[Expr]) -> SqlResult<Bound> {
        let items: Vec<Bound> = items
            .iter()
            .map(|e| self.value(e))
            .collect::<SqlResult<_>>()?;
        let sql: Vec<&str> = items.iter().map(|b| b.sql.as_str()).collect();
        let mut bound = Bound::new(format!("({})", sql.join(", ")), Ty::Unknown);
        bound.kind = Kind::Row(items);
        Ok(bound)
    }

    fn at_time_zone(&mut self, timestamp: &Expr, zone: &Expr) -> SqlResult<Bound> {
        let value = self.value(timestamp)?;
        let value = self.resolve(value, Ty::Sql(SqlType::Timestamptz))?;
        let zone = self.value(zone)?;
        let is_utc = matches!(&zone.kind, Kind::Text(name)
            if ["utc", "gmt", "z", "etc/utc"].contains(&name.to_lowercase().as_str()));
        if !is_utc {
            return Err(SqlError::unsupported(
                "AT TIME ZONE with another zone than UTC",
            ));
        }
        let ty = match value.ty {
            Ty::Sql(SqlType::Timestamptz) => SqlType::Timestamp,
            Ty::Sql(SqlType::Timestamp) => SqlType::Timestamptz,
            Ty::Sql(SqlType::Date) => {
                let sql = cast_call(&value.sql, SqlType::Timestamp);
                return Ok(Bound::new(sql, SqlType::Timestamp));
            }
            other => return Err(no_operator(other, "AT TIME ZONE", zone.ty)),
        };
        Ok(Bound {
            ty: Ty::Sql(ty),
            origin: None,
            ..value
        })
    }

    fn case(
        &mut self,
        operand: Option<&Expr>,
        conditions: &[ast::CaseWhen],
        otherwise: Option<&Expr>,
    ) -> SqlResult<Bound> {
        let operand = operand.map(|e| self.value(e)).transpose()?;
        let mut tests = Vec::new();
        let mut results = Vec::new();
        for when in conditions {
            let test = match &operand {
                Some(operand) => {
                    let value = self.value(&when.condition)?;
                    self.compare("=", operand.clone(), value)?
                }
                None => self.condition(&when.condition, "CASE/WHEN")?,
            };
            tests.push(test);
            results.push(self.value(&when.result)?);
        }
        if let Some(otherwise) = otherwise {
            results.push(self.value(otherwise)?);
        }
        let ty = self.unify(&mut results, "CASE")?;
        let mut sql = "(CASE".to_string();
        for (test, result) in tests.iter().zip(&results) {
            sql.push_str(&format!(" WHEN {} THEN {}", test.sql, result.sql));
        }
        if otherwise.is_some()
            && let Some(last) = results.last()
        {
            sql.push_str(&format!(" ELSE {}", last.sql));
        }
        sql.push_str(" END)");
        let nullable = otherwise.is_none() || results.iter().any(|b| b.nullable);
        Ok(Bound::new(sql, ty).nullable_if(nullable))
    }

    fn unary(&mut self, op: UnaryOperator, expr: &Expr) -> SqlResult<Bound> {
        match op {
            UnaryOperator::Not => {
                let bound = self.condition(expr, "NOT")?;
                let sql = format!("(NOT {})", bound.sql);
                Ok(Bound::new(sql, SqlType::Boolean).nullable_if(bound.nullable))
            }
            UnaryOperator::Minus | UnaryOperator::Plus => {
                if let (UnaryOperator::Minus, Expr::Value(value)) = (op, expr)
                    && let ast::Value::Number(digits, false) = &value.value
                {
                    return number(&format!("-{digits}"));
                }
                let bound = self.expr(expr)?;
                let bound = self.resolve(bound, Ty::Sql(SqlType::Double))?;
                match category(bound.ty) {
                    Some(Category::Number) | None => {}
                    Some(Category::Interval) => {
                        return match op {
                            UnaryOperator::Plus => Ok(bound),
                            _ => {
                                let sql = format!("basalt_interval_mul({}, -1)", bound.sql);
                                Ok(Bound::new(sql, Ty::Interval))
                            }
                        };
                    }
                    Some(_) => return Err(no_operator(Ty::Unknown, "-", bound.ty)),
                }
                if op == UnaryOperator::Plus {
                    return Ok(bound);
                }
                let mut out = Bound::new(format!("(- {})", bound.sql), bound.ty);
                out.nullable = bound.nullable;
                out.unchecked = true;
                Ok(out)
            }
            UnaryOperator::PGAbs => self.named_call("abs", &[expr]),
            UnaryOperator::PGSquareRoot => self.named_call("sqrt", &[expr]),
            UnaryOperator::BitwiseNot => {
                let bound = self.value(expr)?;
                let bound = self.resolve(bound, Ty::Sql(SqlType::Integer))?;
                match bound.ty {
                    Ty::Sql(ty) if ty.is_integer() => {
                        Ok(Bound::new(format!("(~ {})", bound.sql), ty))
                    }
                    other => Err(no_operator(Ty::Unknown, "~", other)),
                }
            }
            other => Err(SqlError::unsupported(format!("the operator {other}"))),
        }
    }

    /// Binds a chain of operators without recursion along its left side.
    fn binary_chain(&mut self, expr: &Expr) -> SqlResult<Bound> {
        let mut chain = Vec::new();
        let mut left = expr;
        while let Expr::BinaryOp {
            left: inner,
            op,
            right,
        } = left
        {
            if matches!(op, BinaryOperator::And | BinaryOperator::Or) {
                break;
            }
            chain.push((op, right.as_ref()));
            left = inner;
        }
        if chain.is_empty() {
            return self.logical(expr);
        }
        if chain.len() > MAX_CHAIN {
            return Err(super::parse::too_complex());
        }
        let mut result = self.expr(left)?;
        for (op, right) in chain.into_iter().rev() {
            let right = self.expr(right)?;
            result = self.binary(op, result, right)?;
        }
        Ok(result)
    }

    /// Binds AND and OR: all terms of one operator become a balanced tree.
    fn logical(&mut self, expr: &Expr) -> SqlResult<Bound> {
        let Expr::BinaryOp { op: operator, .. } = expr else {
            return Err(SqlError::internal("no logical operator"));
        };
        let word = if *operator == BinaryOperator::And {
            "AND"
        } else {
            "OR"
        };
        let mut waiting = vec![expr];
        let mut terms = Vec::new();
        let mut nullable = false;
        while let Some(next) = waiting.pop() {
            match next {
                Expr::BinaryOp { left, op, right } if op == operator => {
                    waiting.push(right);
                    waiting.push(left);
                }
                term => {
                    let bound = self.deeper(|b| b.condition(term, word))?;
                    nullable |= bound.nullable;
                    terms.push(bound.sql);
                }
            }
        }
        let sql = balanced(&terms, word);
        Ok(Bound::new(sql, SqlType::Boolean).nullable_if(nullable))
    }

    fn binary(&mut self, op: &BinaryOperator, left: Bound, right: Bound) -> SqlResult<Bound> {
        use BinaryOperator as B;
        match op {
            B::Plus | B::Minus | B::Multiply | B::Divide | B::Modulo => {
                self.arithmetic(op, left, right)
            }
            B::Eq => self.compare("=", left.checked(), right.checked()),
            B::NotEq => self.compare("<>", left.checked(), right.checked()),
            B::Lt => self.compare("<", left.checked(), right.checked()),
            B::LtEq => self.compare("<=", left.checked(), right.checked()),
            B::Gt => self.compare(">", left.checked(), right.checked()),
            B::GtEq => self.compare(">=", left.checked(), right.checked()),
            B::StringConcat => self.concat(left.checked(), right.checked()),
            B::PGExp => {
                let double = Ty::Sql(SqlType::Double);
                let (left, right) = (left.checked(), right.checked());
                let (left, right) = (self.resolve(left, double)?, self.resolve(right, double)?);
                for side in [&left, &right] {
                    if !matches!(category(side.ty), None | Some(Category::Number)) {
                        return Err(no_operator(left.ty, "^", right.ty));
                    }
                }
                let ty = if is_numeric(&left) || is_numeric(&right) {
                    SqlType::Numeric(None)
                } else {
                    SqlType::Double
                };
                Ok(Bound::new(
                    format!("basalt_power({}, {})", left.sql, right.sql),
                    ty,
                ))
            }
            B::PGRegexMatch => self.regexp(left, right, false, false, "~"),
            B::PGRegexIMatch => self.regexp(left, right, true, false, "~*"),
            B::PGRegexNotMatch => self.regexp(left, right, false, true, "!~"),
            B::PGRegexNotIMatch => self.regexp(left, right, true, true, "!~*"),
            B::PGCustomBinaryOperator(parts) => match parts.last().map(String::as_str) {
                Some("~") => self.regexp(left, right, false, false, "~"),
                Some("~*") => self.regexp(left, right, true, false, "~*"),
                Some("!~") => self.regexp(left, right, false, true, "!~"),
                Some("=") => self.compare("=", left.checked(), right.checked()),
                _ => Err(SqlError::unsupported(format!("the operator {op}"))),
            },
            B::PGLikeMatch => self.like_operator(left, right, "basalt_like", false),
            B::PGNotLikeMatch => self.like_operator(left, right, "basalt_like", true),
            B::PGILikeMatch => self.like_operator(left, right, "basalt_ilike", false),
            B::PGNotILikeMatch => self.like_operator(left, right, "basalt_ilike", true),
            B::BitwiseAnd => self.bitwise("&", left, right),
            B::BitwiseOr => self.bitwise("|", left, right),
            B::PGBitwiseShiftLeft => self.bitwise("<<", left, right),
            B::PGBitwiseShiftRight => self.bitwise(">>", left, right),
            B::PGBitwiseXor => {
                let bound = self.bitwise("#", left, right)?;
                Ok(bound)
            }
            other => Err(SqlError::unsupported(format!("the operator {other}"))),
        }
    }

    fn bitwise(&mut self, op: &str, left: Bound, right: Bound) -> SqlResult<Bound> {
        let (left, right) = (left.checked(), right.checked());
        let left_ty = if left.ty == Ty::Unknown {
            right.ty
        } else {
            left.ty
        };
        let (left, right) = (self.resolve(left, left_ty)?, self.resolve(right, left_ty)?);
        let (Ty::Sql(a), Ty::Sql(b)) = (left.ty, right.ty) else {
            return Err(no_operator(left.ty, op, right.ty));
        };
        if !a.is_integer() || !b.is_integer() {
            return Err(no_operator(left.ty, op, right.ty));
        }
        let sql = match op {
            "#" => format!("(({0} | {1}) - ({0} & {1}))", left.sql, right.sql),
            _ => format!("({} {op} {})", left.sql, right.sql),
        };
        let shift = matches!(op, "<<" | ">>");
        let ty = if !shift && b == SqlType::BigInt { b } else { a };
        Ok(Bound::new(sql, ty))
    }

    fn regexp(
        &mut self,
        left: Bound,
        right: Bound,
        fold_case: bool,
        negated: bool,
        op: &str,
    ) -> SqlResult<Bound> {
        let name = if fold_case {
            "basalt_iregexp"
        } else {
            "basalt_regexp"
        };
        let bound = self.like_operator(left, right, name, negated);
        bound.map_err(|e| match e.state() {
            SqlState::UNDEFINED_FUNCTION => SqlError::new(e.state(), e.message().replace("~~", op)),
            _ => e,
        })
    }

    fn like_operator(
        &mut self,
        left: Bound,
        right: Bound,
        name: &str,
        negated: bool,
    ) -> SqlResult<Bound> {
        let text = Ty::Sql(SqlType::Text);
        let (left, right) = (self.resolve(left.checked(), text)?, right.checked());
        let right = self.resolve(right, text)?;
        for side in [&left, &right] {
            if !matches!(category(side.ty), None | Some(Category::Text)) {
                return Err(no_operator(left.ty, "~~", right.ty));
            }
        }
        let mut sql = format!("{name}({}, {})", left.sql, right.sql);
        if negated {
            sql = format!("(NOT {sql})");
        }
        Ok(Bound::new(sql, SqlType::Boolean).nullable_if(left.nullable || right.nullable))
    }

    fn concat(&mut self, left: Bound, right: Bound) -> SqlResult<Bound> {
        if left.ty == Ty::Sql(SqlType::Bytea) || right.ty == Ty::Sql(SqlType::Bytea) {
            let bytea = Ty::Sql(SqlType::Bytea);
            let (left, right) = (self.resolve(left, bytea)?, self.resolve(right, bytea)?);
            let sql = format!("basalt_bytea_concat({}, {})", left.sql, right.sql);
            return Ok(Bound::new(sql, SqlType::Bytea));
        }
        let is_text = |b: &Bound| matches!(category(b.ty), None | Some(Category::Text));
        if !is_text(&left) && !is_text(&right) {
            return Err(no_operator(left.ty, "||", right.ty));
        }
        let text = Ty::Sql(SqlType::Text);
        let (left, right) = (self.resolve(left, text)?, self.resolve(right, text)?);
        let nullable = left.nullable || right.nullable;
        let sql = format!("({} || {})", text_sql(&left), text_sql(&right));
        Ok(Bound::new(sql, SqlType::Text).nullable_if(nullable))
    }

    fn scalar_subquery(&mut self, query: &ast::Query) -> SqlResult<Bound> {
        self.refuse_subquery()?;
        let found = self.query(query, None)?;
        let [column] = &found.columns[..] else {
            return Err(SqlError::syntax("subquery must return only one column"));
        };
        let ty = match column.ty {
            Ty::Unknown if column.is_literal => Ty::Sql(SqlType::Text),
            other => other,
        };
        // The executor takes the first row where PostgreSQL fails for a second one.
        let sql = match found.at_most_one_row {
            true => format!("({})", found.sql),
            false => format!(
                "(SELECT basalt_single(\"q\".{}) FROM ({}) AS \"q\")",
                super::name::quote(&column.emitted),
                found.sql
            ),
        };
        Ok(Bound::new(sql, ty))
    }

    pub(super) fn refuse_subquery(&self) -> SqlResult<()> {
        match self.no_subqueries {
            Some(place) => Err(SqlError::unsupported(format!("a subquery in {place}"))),
            None => Ok(()),
        }
    }
}

/// Returns the text of a text literal.
pub(super) fn text_of(value: &ast::Value) -> Option<&str> {
    match value {
        ast::Value::SingleQuotedString(text)
        | ast::Value::EscapedStringLiteral(text)
        | ast::Value::UnicodeStringLiteral(text)
        | ast::Value::NationalStringLiteral(text) => Some(text),
        ast::Value::DollarQuotedString(text) => Some(&text.value),
        _ => None,
    }
}

/// Returns the literal of a number.
pub(super) fn number(digits: &str) -> SqlResult<Bound> {
    let decimal = crate::types::decimal::Decimal::parse(digits);
    let decimal = decimal.ok_or_else(|| SqlError::unsupported(format!("the literal {digits}")))?;
    let unsigned = digits.trim_start_matches('-');
    let is_whole = unsigned.bytes().all(|b| b.is_ascii_digit());
    let (sql, ty) = match digits.parse::<i64>() {
        Ok(n) if is_whole && i32::try_from(n).is_ok() => (n.to_string(), SqlType::Integer),
        Ok(n) if is_whole => (n.to_string(), SqlType::BigInt),
        _ => {
            if matches!(decimal.to_value(), Value::Real(x) if x.is_infinite()) {
                let message = format!("the number {digits} is out of range");
                return Err(SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, message));
            }
            let fraction = unsigned
                .split_once('.')
                .map_or(0, |(_, fraction)| fraction.len());
            let exponent = unsigned.contains(['e', 'E']);
            let scale = u16::try_from(fraction)
                .ok()
                .filter(|s| *s <= 100 && !exponent);
            let ty = SqlType::Numeric(scale.map(|scale| (1000, scale)));
            (literal(&decimal.to_value()), ty)
        }
    };
    let mut bound = Bound::new(sql, ty).not_null();
    bound.kind = Kind::Number(digits.to_owned());
    Ok(bound)
}

fn is_numeric(bound: &Bound) -> bool {
    matches!(bound.ty, Ty::Sql(SqlType::Numeric(_)))
}

/// Returns an expression as a text, in the form that its type has.
pub(super) fn text_sql(bound: &Bound) -> String {
    match bound.ty {
        Ty::Unknown | Ty::Interval | Ty::Array(_) => bound.sql.clone(),
        Ty::Sql(ty) => match category(bound.ty) {
            Some(Category::Text) => bound.sql.clone(),
            _ if ty.is_integer() => bound.sql.clone(),
            _ => format!(
                "basalt_text({}, {})",
                bound.sql,
                quote_text(&ty.to_string())
            ),
        },
    }
}

/// Returns the error for an operator that the types do not have.
pub(super) fn no_operator(left: Ty, op: &str, right: Ty) -> SqlError {
    let message = format!(
        "operator does not exist: {} {op} {}",
        left.name(),
        right.name()
    );
    SqlError::new(SqlState::UNDEFINED_FUNCTION, message).with_hint(
        "No operator matches the given name and argument types. You might need to add explicit \
         type casts.",
    )
}

fn unsupported_expr(expr: &Expr) -> SqlError {
    let what = match expr {
        Expr::SimilarTo { .. } => "SIMILAR TO".to_string(),
        Expr::Array(_) => "ARRAY".to_string(),
        Expr::CompoundFieldAccess { .. } => "a subscript or field of an expression".to_string(),
        Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_) => {
            "GROUPING SETS, CUBE or ROLLUP".to_string()
        }
        Expr::Like { any: true, .. } | Expr::ILike { any: true, .. } => "LIKE ANY".to_string(),
        Expr::IsNormalized { .. } => "IS NORMALIZED".to_string(),
        Expr::Wildcard(_) | Expr::QualifiedWildcard(..) => "* in this place".to_string(),
        other => format!("the expression {other}"),
    };
    SqlError::unsupported(what)
}
