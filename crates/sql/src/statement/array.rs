//! Arrays, as far as queries of the catalog use them. An array is a text, `{a,b}`.

use super::binder::{Binder, Bound, Category, Ty, category};
use super::expr::text_sql;
use super::name::quote;
use crate::error::{SqlError, SqlResult};
use crate::types::SqlType;
use sqlparser::ast::{
    self, AccessExpr, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, InTarget,
    SetExpr, Subscript,
};

/// Returns the items of an array that a statement lists, without parentheses and casts around it.
fn listed(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::Array(array) => Some(&array.elem),
        Expr::Nested(inner) => listed(inner),
        Expr::Cast { expr, .. } => listed(expr),
        _ => None,
    }
}

/// Returns the query of EXISTS with a column, if it is a SELECT without columns.
pub(super) fn with_a_column(query: &ast::Query) -> Option<ast::Query> {
    let is_bare =
        |body: &SetExpr| matches!(body, SetExpr::Select(select) if select.projection.is_empty());
    if !is_bare(&query.body) {
        return None;
    }
    let mut query = query.clone();
    if let SetExpr::Select(select) = query.body.as_mut() {
        let one = Expr::Value(ast::Value::Number("1".into(), false).into());
        select.projection.push(ast::SelectItem::UnnamedExpr(one));
    }
    Some(query)
}

/// Returns the array of a call of `information_schema._pg_expandarray`, by which clients read the
/// columns of keys.
pub(super) fn expanded(expr: &Expr) -> Option<&Expr> {
    let Expr::Function(function) = expr else {
        return match expr {
            Expr::Nested(inner) => expanded(inner),
            _ => None,
        };
    };
    let name = function.name.to_string().to_lowercase();
    match &function.args {
        FunctionArguments::List(list) if name == "information_schema._pg_expandarray" => {
            match &list.args[..] {
                [FunctionArg::Unnamed(FunctionArgExpr::Expr(array))] => Some(array),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns `true` for the column in which the JDBC driver keeps an expanded array.
fn is_expanded_column(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_expanded_column(inner),
        Expr::Identifier(ident) => ident.value.eq_ignore_ascii_case("keys"),
        Expr::CompoundIdentifier(idents) => idents
            .last()
            .is_some_and(|ident| ident.value.eq_ignore_ascii_case("keys")),
        _ => false,
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
        let (mut sqls, mut ty) = (Vec::new(), Ty::Array(SqlType::Text));
        for item in items {
            let item = self.value(item)?;
            let item = self.resolve(item, Ty::Sql(SqlType::Text))?;
            ty = items_of(item.ty);
            sqls.push(item_sql(&item));
        }
        let sql = format!("basalt_array({})", sqls.join(", "));
        Ok(Bound::new(sql, ty).not_null())
    }

    /// Binds `ARRAY(SELECT ...)`.
    pub(super) fn array_of_query(&mut self, query: &ast::Query) -> SqlResult<Bound> {
        self.refuse_subquery()?;
        let found = self.query(query, None)?;
        let [column] = &found.columns[..] else {
            return Err(SqlError::syntax("subquery must return only one column"));
        };
        let item = Bound::new(format!("\"q\".{}", quote(&column.emitted)), column.ty);
        let sql = format!(
            "(SELECT '{{' || coalesce(group_concat(basalt_array_item({}), ','), '') || '}}' FROM ({}) \
             AS \"q\")",
            item_sql(&item),
            found.sql
        );
        Ok(Bound::new(sql, items_of(column.ty)).not_null())
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

    /// Binds `array[subscript]`, and the fields `n` and `x` of `_pg_expandarray`. The
    /// column `keys` has the item, which is its field `x`.
    pub(super) fn array_access(&mut self, root: &Expr, access: &AccessExpr) -> SqlResult<Bound> {
        let refused = || SqlError::unsupported("a subscript or field of this expression");
        match access {
            AccessExpr::Subscript(Subscript::Index { index }) => {
                let array = self.value(root)?;
                let array = self.resolve(array, Ty::Sql(SqlType::Text))?;
                let index = self.value(index)?;
                let index = self.resolve(index, Ty::Sql(SqlType::Integer))?;
                if category(array.ty) != Some(Category::Text) {
                    return Err(refused());
                }
                let sql = format!(
                    "basalt_array_get({0}, {1} - basalt_array_lower({0}))",
                    array.sql, index.sql
                );
                Ok(Bound::new(sql, item_type(&array.sql)))
            }
            AccessExpr::Dot(Expr::Identifier(field)) => {
                let field = field.value.to_lowercase();
                match (expanded(root), field.as_str()) {
                    (Some(array), "x") => {
                        let array = self.value(array)?;
                        self.unnest_call(&array)
                    }
                    (Some(array), "n") => {
                        let array = self.value(array)?;
                        let alias = quote(&self.unnest_join(&array)?);
                        let sql = format!("({alias}.\"key\" + 1)");
                        Ok(Bound::new(sql, SqlType::Integer))
                    }
                    (None, "x") if is_expanded_column(root) => self.value(root),
                    _ => Err(refused()),
                }
            }
            _ => Err(refused()),
        }
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

/// Returns the type of an array of values of a type.
pub(super) fn items_of(ty: Ty) -> Ty {
    Ty::Array(match ty {
        Ty::Sql(ty @ (SqlType::Boolean | SqlType::SmallInt)) => ty,
        Ty::Sql(ty @ (SqlType::Integer | SqlType::BigInt)) => ty,
        _ => SqlType::Text,
    })
}

/// Returns a value as an item of an array in the executor's dialect.
pub(super) fn item_sql(value: &Bound) -> String {
    match value.ty {
        Ty::Sql(SqlType::Boolean) => {
            format!("CASE {} WHEN 1 THEN 't' WHEN 0 THEN 'f' END", value.sql)
        }
        _ => text_sql(value),
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
