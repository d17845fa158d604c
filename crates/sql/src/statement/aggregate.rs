//! Aggregates and window functions.

use super::binder::{Binder, Bound, Category, Ty, category};
use super::call::{Call, STATISTICS, undefined};
use super::name::{fold, quote};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType as T;
use sqlparser::ast::{
    Expr, Function, OrderByExpr, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowSpec,
    WindowType,
};

impl Binder<'_> {
    pub(super) fn aggregate(&mut self, function: &Function, call: &Call<'_>) -> SqlResult<Bound> {
        let over = function.over.as_ref();
        let scope = self.scope()?;
        if over.is_none() {
            if let Some(clause) = scope.no_aggregates {
                let message = format!("aggregate functions are not allowed in {clause}");
                return Err(SqlError::new(SqlState::GROUPING_ERROR, message));
            }
            if scope.aggregate_depth > 0 {
                let message = "aggregate function calls cannot be nested";
                return Err(SqlError::new(SqlState::GROUPING_ERROR, message));
            }
            scope.has_aggregate = true;
            scope.aggregate_depth += 1;
        } else if let Some(clause) = scope.no_windows {
            let message = format!("window functions are not allowed in {clause}");
            return Err(SqlError::new(SqlState("42P20"), message));
        }
        let result = self.aggregate_call(function, call);
        if over.is_none() {
            self.scope()?.aggregate_depth -= 1;
        }
        let mut bound = result?;
        if let Some(filter) = &function.filter {
            let within = over.is_none();
            if within {
                self.scope()?.aggregate_depth += 1;
            }
            let condition = self.condition(filter, "FILTER");
            if within {
                self.scope()?.aggregate_depth -= 1;
            }
            bound
                .sql
                .push_str(&format!(" FILTER (WHERE {})", condition?.sql));
        }
        if let Some(over) = over {
            let window = self.window_type(over)?;
            bound.sql.push_str(&format!(" OVER {window}"));
        }
        Ok(finish_aggregate(&call.name, bound))
    }

    pub(super) fn aggregate_call(
        &mut self,
        function: &Function,
        call: &Call<'_>,
    ) -> SqlResult<Bound> {
        let name = call.name.as_str();
        if call.star {
            return match name {
                "count" => Ok(Bound::new("count(*)", T::BigInt).not_null()),
                _ => Err(undefined(name, &[])),
            };
        }
        let mut arguments = Vec::new();
        for argument in &call.arguments {
            arguments.push(self.value(argument)?);
        }
        let distinct = if call.distinct { "DISTINCT " } else { "" };
        let order = match call.order.is_empty() {
            true => String::new(),
            false => format!(" ORDER BY {}", self.order_list(&call.order)?),
        };
        if !order.is_empty() && !matches!(name, "string_agg" | "array_agg") {
            // The order of the values does not change these aggregates.
            return Err(SqlError::unsupported(format!("ORDER BY in {name}")));
        }
        if function.over.is_some() && call.distinct {
            return Err(SqlError::unsupported("DISTINCT in a window function"));
        }
        let simple = |emitted: &str, argument: &Bound, ty: Ty| {
            Bound::new(format!("{emitted}({distinct}{})", argument.sql), ty)
        };
        match (name, &mut arguments[..]) {
            ("count", [argument]) => Ok(simple("count", argument, T::BigInt.into()).not_null()),
            ("min" | "max", [argument]) => {
                let taken = argument.clone();
                let argument = self.resolve(taken, Ty::Sql(T::Text))?;
                match category(argument.ty) {
                    Some(Category::Boolean | Category::Json | Category::Interval) => {
                        Err(undefined(name, &[argument]))
                    }
                    _ => Ok(simple(name, &argument, argument.ty)),
                }
            }
            ("sum" | "avg", [argument]) => {
                let taken = argument.clone();
                let argument = self.resolve(taken, Ty::Sql(T::Double))?;
                let ty = sum_type(name, argument.ty)
                    .ok_or_else(|| undefined(name, std::slice::from_ref(&argument)))?;
                Ok(simple(name, &argument, ty))
            }
            ("bool_and" | "bool_or" | "every", [argument]) => {
                let taken = argument.clone();
                let argument = self.resolve(taken, Ty::Sql(T::Boolean))?;
                let emitted = if name == "bool_or" { "max" } else { "min" };
                match argument.ty {
                    Ty::Sql(T::Boolean) | Ty::Unknown => {
                        Ok(simple(emitted, &argument, T::Boolean.into()))
                    }
                    _ => Err(undefined(name, &[argument])),
                }
            }
            ("string_agg", [value, separator]) => {
                let text = Ty::Sql(T::Text);
                let value = self.resolve(value.clone(), text)?;
                let separator = self.resolve(separator.clone(), text)?;
                if !matches!(category(value.ty), None | Some(Category::Text)) {
                    return Err(undefined(name, &[value, separator]));
                }
                if function.over.is_some() && !order.is_empty() {
                    return Err(SqlError::unsupported("ORDER BY in a window function"));
                }
                // The executor takes DISTINCT with one argument alone, whose separator is a comma.
                let sql = match (call.distinct, separator.sql.as_str()) {
                    (true, "','") => format!("group_concat(DISTINCT {}{order})", value.sql),
                    (true, _) => {
                        let what = "string_agg of DISTINCT values with another separator than ','";
                        return Err(SqlError::unsupported(what));
                    }
                    (false, separator) => {
                        format!("group_concat({}, {separator}{order})", value.sql)
                    }
                };
                Ok(Bound::new(sql, T::Text))
            }
            ("array_agg", [value]) => {
                let item = super::array::item_sql(value);
                let sql = format!("group_concat(basalt_array_item({item}), ','{order})");
                Ok(Bound::new(sql, super::array::items_of(value.ty)))
            }
            (_, [argument]) if STATISTICS.iter().any(|(n, _)| *n == name) => {
                let taken = argument.clone();
                let argument = self.resolve(taken, Ty::Sql(T::Double))?;
                let float = matches!(argument.ty, Ty::Sql(T::Double | T::Real));
                let ty = if float { T::Double } else { T::Numeric(None) };
                if !matches!(category(argument.ty), None | Some(Category::Number)) {
                    return Err(undefined(name, &[argument]));
                }
                if function.over.is_some() {
                    return Err(SqlError::unsupported(format!(
                        "{name} as a window function"
                    )));
                }
                let found = STATISTICS.iter().find(|(n, _)| *n == name);
                Ok(simple(found.map_or("", |(_, e)| e), &argument, ty.into()))
            }
            _ => self.window_call(name, arguments),
        }
    }

    pub(super) fn window_call(&mut self, name: &str, arguments: Vec<Bound>) -> SqlResult<Bound> {
        let list: Vec<&str> = arguments.iter().map(|b| b.sql.as_str()).collect();
        let sql = format!("{name}({})", list.join(", "));
        match (name, arguments.len()) {
            ("row_number" | "rank" | "dense_rank", 0) => Ok(Bound::new(sql, T::BigInt).not_null()),
            ("percent_rank" | "cume_dist", 0) => Ok(Bound::new(sql, T::Double).not_null()),
            ("ntile", 1) => Ok(Bound::new(sql, T::Integer)),
            ("first_value" | "last_value", 1) | ("lag" | "lead", 1..=3) | ("nth_value", 2) => {
                let mut arguments = arguments;
                if arguments.len() == 3 {
                    let default = arguments.pop();
                    let mut both = vec![arguments[0].clone()];
                    both.extend(default);
                    let ty = self.unify(&mut both, name)?;
                    let sql = format!(
                        "{name}({}, {}, {})",
                        both[0].sql, arguments[1].sql, both[1].sql
                    );
                    return Ok(Bound::new(sql, ty));
                }
                Ok(Bound::new(sql, arguments[0].ty))
            }
            _ => Err(undefined(name, &arguments)),
        }
    }

    pub(super) fn window_type(&mut self, over: &WindowType) -> SqlResult<String> {
        match over {
            WindowType::NamedWindow(ident) => {
                let name = fold(ident);
                if !self.scope()?.windows.contains_key(&name) {
                    let message = format!("window \"{name}\" does not exist");
                    return Err(SqlError::new(SqlState::UNDEFINED_OBJECT, message));
                }
                Ok(quote(&name))
            }
            WindowType::WindowSpec(spec) => self.window(spec),
        }
    }

    /// Returns a window in parentheses.
    pub(super) fn window(&mut self, spec: &WindowSpec) -> SqlResult<String> {
        let mut clauses = Vec::new();
        if let Some(name) = &spec.window_name {
            let name = fold(name);
            if !self.scope()?.windows.contains_key(&name) {
                let message = format!("window \"{name}\" does not exist");
                return Err(SqlError::new(SqlState::UNDEFINED_OBJECT, message));
            }
            clauses.push(quote(&name));
        }
        if !spec.partition_by.is_empty() {
            let mut list = Vec::new();
            for expr in &spec.partition_by {
                list.push(self.value(expr)?.sql);
            }
            clauses.push(format!("PARTITION BY {}", list.join(", ")));
        }
        if !spec.order_by.is_empty() {
            let order: Vec<&OrderByExpr> = spec.order_by.iter().collect();
            clauses.push(format!("ORDER BY {}", self.order_list(&order)?));
        }
        if let Some(frame) = &spec.window_frame {
            clauses.push(self.frame(frame)?);
        }
        Ok(format!("({})", clauses.join(" ")))
    }

    pub(super) fn frame(&mut self, frame: &WindowFrame) -> SqlResult<String> {
        let units = match frame.units {
            WindowFrameUnits::Rows => "ROWS",
            WindowFrameUnits::Range => "RANGE",
            WindowFrameUnits::Groups => "GROUPS",
        };
        let start = self.frame_bound(&frame.start_bound)?;
        Ok(match &frame.end_bound {
            Some(end) => format!("{units} BETWEEN {start} AND {}", self.frame_bound(end)?),
            None => format!("{units} {start}"),
        })
    }

    pub(super) fn frame_bound(&mut self, bound: &WindowFrameBound) -> SqlResult<String> {
        Ok(match bound {
            WindowFrameBound::CurrentRow => "CURRENT ROW".to_string(),
            WindowFrameBound::Preceding(None) => "UNBOUNDED PRECEDING".to_string(),
            WindowFrameBound::Following(None) => "UNBOUNDED FOLLOWING".to_string(),
            WindowFrameBound::Preceding(Some(n)) => format!("{} PRECEDING", self.offset(n)?),
            WindowFrameBound::Following(Some(n)) => format!("{} FOLLOWING", self.offset(n)?),
        })
    }

    pub(super) fn offset(&mut self, expr: &Expr) -> SqlResult<String> {
        let bound = self.value(expr)?;
        let bound = self.resolve(bound, Ty::Sql(T::BigInt))?;
        match category(bound.ty) {
            Some(Category::Number) => Ok(bound.sql),
            _ => Err(SqlError::unsupported(
                "a frame whose offset is not a number",
            )),
        }
    }
}

pub(super) fn sum_type(name: &str, ty: Ty) -> Option<Ty> {
    Some(match (name, ty) {
        (_, Ty::Unknown) => Ty::Unknown,
        ("sum", Ty::Sql(T::SmallInt | T::Integer)) => Ty::Sql(T::BigInt),
        ("sum", Ty::Sql(T::BigInt)) => Ty::Sql(T::Numeric(Some((1000, 0)))),
        ("sum", Ty::Sql(T::Numeric(limits))) => {
            Ty::Sql(T::Numeric(limits.map(|(_, scale)| (1000, scale))))
        }
        ("sum", Ty::Sql(ty @ (T::Real | T::Double))) => Ty::Sql(ty),
        ("avg", Ty::Sql(T::Real | T::Double)) => Ty::Sql(T::Double),
        ("avg", Ty::Sql(ty)) if ty.is_number() => Ty::Sql(T::Numeric(None)),
        _ => return None,
    })
}

/// Rounds the sum of numerics to their scale, since the executor adds floating-point numbers.
pub(super) fn finish_aggregate(name: &str, mut bound: Bound) -> Bound {
    if name == "sum" && matches!(bound.ty, Ty::Sql(T::Numeric(Some((_, 1..=15))))) {
        bound.unchecked = true;
        bound = bound.checked();
    }
    if name == "array_agg" {
        bound.sql = format!("('{{' || {} || '}}')", bound.sql);
    }
    bound
}
