//! Arrays, as far as queries of the catalog use them. An array is a text, `{a,b}`.

use super::binder::{Binder, Bound, Category, Ty, category};
use super::name::quote;
use crate::error::{SqlError, SqlResult};
use crate::types::SqlType;
use sqlparser::ast::{self, Expr, Function, FunctionArguments, InTarget};

/// Returns the items of an array that a statement lists, without parentheses and casts around it.
fn listed(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::Array(array) => Some(&array.elem),
        Expr::Nested(inner) => listed(inner),
        Expr::Cast { expr, .. } => listed(expr),
        _ => None,
    }
}

/// Returns the query of `ARRAY(SELECT ...)`.
pub(super) fn array_query(function: &Function) -> Option<&ast::Query> {
    let is_array = function.name.to_string().eq_ignore_ascii_case("array");
    match &function.args {
        FunctionArguments::Subquery(query) if is_array => Some(query),
        _ => None,
    }
}

impl Binder<'_> {
    /// Binds `ARRAY[a, b]`.
    pub(super) fn array(&mut self, items: &[Expr]) -> SqlResult<Bound> {
        let mut sqls = Vec::new();
        for item in items {
            let item = self.value(item)?;
            sqls.push(self.resolve(item, Ty::Sql(SqlType::Text))?.sql);
        }
        let sql = format!("basalt_array({})", sqls.join(", "));
        Ok(Bound::new(sql, SqlType::Text).not_null())
    }

    /// Binds `ARRAY(SELECT ...)`.
    pub(super) fn array_of_query(&mut self, query: &ast::Query) -> SqlResult<Bound> {
        self.refuse_subquery()?;
        let found = self.query(query, None)?;
        let [column] = &found.columns[..] else {
            return Err(SqlError::syntax("subquery must return only one column"));
        };
        let sql = format!(
            "(SELECT '{{' || coalesce(group_concat(basalt_array_item(\"q\".{}), ','), '') || '}}' \
             FROM ({}) AS \"q\")",
            quote(&column.emitted),
            found.sql
        );
        Ok(Bound::new(sql, SqlType::Text).not_null())
    }

    /// Binds `left = ANY (array)`, or `left <> ALL (array)` if it is negated.
    pub(super) fn any_of_array(
        &mut self,
        left: &Expr,
        array: &Expr,
        negated: bool,
    ) -> SqlResult<Bound> {
        if let Some(items) = listed(array) {
            let target = InTarget::List(items.to_vec());
            return self.in_target(left, &target, negated);
        }
        let value = self.value(left)?;
        let value = self.resolve(value, Ty::Sql(SqlType::Text))?;
        let array = self.value(array)?;
        let array = self.resolve(array, Ty::Sql(SqlType::Text))?;
        if !matches!(category(array.ty), None | Some(Category::Text)) {
            return Err(SqlError::unsupported("ANY and ALL of this expression"));
        }
        let not = if negated { "NOT " } else { "" };
        let sql = format!(
            "({} {not}IN (SELECT \"value\" FROM json_each(coalesce(basalt_array_json({}), '[]'))))",
            value.sql, array.sql
        );
        Ok(Bound::new(sql, SqlType::Boolean))
    }

    /// Returns the query that stands for `unnest(array)` in FROM.
    pub(super) fn unnested(&mut self, array: Bound) -> SqlResult<String> {
        let array = self.resolve(array, Ty::Sql(SqlType::Text))?;
        Ok(format!(
            "json_each(coalesce(basalt_array_json({}), '[]'))",
            array.sql
        ))
    }

    /// Binds `unnest(array)` in a SELECT list: the rows are multiplied by a join. Further calls of
    /// the same list take the items of their arrays at the same position.
    pub(super) fn unnest_call(&mut self, array: &Bound) -> SqlResult<Bound> {
        let ty = item_type(&array.sql);
        let alias = quote(&self.unnest_join(array)?);
        let is_joined = self
            .scope()?
            .unnested
            .as_ref()
            .is_some_and(|u| u.array == array.sql);
        let sql = match is_joined {
            true => format!("{alias}.\"value\""),
            false => format!("basalt_array_get({}, {alias}.\"key\")", array.sql),
        };
        Ok(Bound::new(sql, ty))
    }

    /// Binds `generate_subscripts(array, 1)` in a SELECT list.
    pub(super) fn subscripts_call(&mut self, array: &Bound) -> SqlResult<Bound> {
        let alias = quote(&self.unnest_join(array)?);
        let sql = format!("({alias}.\"key\" + basalt_array_lower({}))", array.sql);
        Ok(Bound::new(sql, SqlType::Integer))
    }

    /// Returns the alias of the join that multiplies the rows of the SELECT.
    fn unnest_join(&mut self, array: &Bound) -> SqlResult<String> {
        if !self.scope()?.takes_sets {
            return Err(SqlError::unsupported(
                "unnest outside of FROM and of a SELECT list",
            ));
        }
        if let Some(unnested) = &self.scope()?.unnested {
            return Ok(unnested.alias.clone());
        }
        let alias = self.fresh("unnest");
        let array = array.sql.clone();
        let made = Unnested {
            alias: alias.clone(),
            array,
        };
        self.scope()?.unnested = Some(made);
        Ok(alias)
    }

    /// Returns what is joined to FROM for the calls of `unnest` in the SELECT list.
    pub(super) fn joined_sets(&mut self, from: &str) -> SqlResult<String> {
        let Some(unnested) = self.scope()?.unnested.take() else {
            return Ok(String::new());
        };
        let word = if from.is_empty() {
            " FROM"
        } else {
            " CROSS JOIN"
        };
        Ok(format!(
            "{word} json_each(coalesce(basalt_array_json({}), '[]')) AS {}",
            unnested.array,
            quote(&unnested.alias)
        ))
    }

    /// Binds `json_build_object(name, value, ...)`.
    pub(super) fn json_object(&mut self, arguments: Vec<Bound>) -> SqlResult<Bound> {
        let mut sqls = Vec::new();
        for argument in arguments {
            let argument = self.resolve(argument, Ty::Sql(SqlType::Text))?;
            sqls.push(match category(argument.ty) {
                Some(Category::Boolean) => {
                    let sql = &argument.sql;
                    format!(
                        "json(CASE {sql} WHEN 1 THEN 'true' WHEN 0 THEN 'false' ELSE 'null' END)"
                    )
                }
                Some(Category::Json) => format!("json({})", argument.sql),
                _ => argument.sql,
            });
        }
        Ok(Bound::new(format!("json_object({})", sqls.join(", ")), SqlType::Json).not_null())
    }
}

/// The array that the join of a SELECT takes its items from.
#[derive(Debug, Clone)]
pub(super) struct Unnested {
    /// Name of the join.
    pub(super) alias: String,
    /// The array in the executor's dialect.
    pub(super) array: String,
}

/// Returns the type of the items of an array: columns of the catalog have numbers.
fn item_type(array: &str) -> SqlType {
    let column = array
        .rsplit('.')
        .next()
        .unwrap_or_default()
        .trim_matches('"');
    match column {
        "indkey" | "indoption" | "conkey" | "confkey" => SqlType::Integer,
        "indclass" | "indcollation" | "proargtypes" => SqlType::BigInt,
        _ => SqlType::Text,
    }
}
