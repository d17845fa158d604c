//! Queries: SELECT, VALUES, set operations, WITH, ORDER BY and LIMIT.

use super::binder::{Binder, Bound, Cte, Kind, RelationColumn, Scope, Ty, common_type, to_common};
use super::name::{fold, parts, quote};
use super::{infer, parse::positioned};
use crate::catalog::{ObjectId, TableDef};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use sqlparser::ast::{
    self, Distinct, Expr, GroupByExpr, NonBlock, SelectItem, SelectItemQualifiedWildcardKind,
    SetExpr, SetOperator, SetQuantifier,
};

/// Maximum number of queries of one WITH: names are searched one by one.
const MAX_CTES: usize = 1_000;

/// A column of a query's result.
#[derive(Debug, Clone)]
pub(super) struct OutColumn {
    pub(super) name: String,
    /// Its name in the executor's dialect, unique in the query.
    pub(super) emitted: String,
    pub(super) ty: Ty,
    pub(super) nullable: bool,
    pub(super) origin: Option<(ObjectId, u16)>,
    /// The column is a literal or a parameter whose type the context decides.
    pub(super) is_literal: bool,
    /// The expression in the executor's dialect.
    pub(super) sql: String,
}

/// A query in the executor's dialect.
#[derive(Debug, Clone)]
pub(super) struct BoundQuery {
    pub(super) sql: String,
    pub(super) columns: Vec<OutColumn>,
    pub(super) at_most_one_row: bool,
    /// Aliases and names of the tables of its FROM.
    tables: Vec<(String, String)>,
    /// The query is one SELECT without aggregates and DISTINCT.
    is_plain: bool,
    /// A member of a set operation must be wrapped.
    must_wrap: bool,
}

impl Binder<'_> {
    /// Binds a query. Literals and parameters of the result take the expected types.
    pub(super) fn query(
        &mut self,
        query: &ast::Query,
        expected: Option<&[Ty]>,
    ) -> SqlResult<BoundQuery> {
        self.deeper(|binder| {
            let mark = binder.ctes.len();
            let result = binder.query_with(query, expected);
            binder.ctes.truncate(mark);
            result
        })
    }

    fn query_with(&mut self, query: &ast::Query, expected: Option<&[Ty]>) -> SqlResult<BoundQuery> {
        if query.for_clause.is_some()
            || query.settings.is_some()
            || query.format_clause.is_some()
            || !query.pipe_operators.is_empty()
        {
            return Err(SqlError::unsupported("this clause of a query"));
        }
        let with = match &query.with {
            Some(with) => self.with(with)?,
            None => String::new(),
        };
        let order_by = query.order_by.as_ref();
        let mut bound = match query.body.as_ref() {
            SetExpr::Select(select) => self.select(select, order_by, expected)?,
            body => {
                let mut bound = self.set_expr(body, expected)?;
                if let Some(order_by) = order_by {
                    let order = self.order_of_columns(order_by, &bound.columns)?;
                    if matches!(body, SetExpr::Query(_) | SetExpr::Values(_)) {
                        bound.sql = format!("SELECT * FROM ({})", bound.sql);
                    }
                    bound.sql.push_str(&order);
                    bound.must_wrap = true;
                }
                bound
            }
        };
        let (limit, one) = self.limit(query)?;
        if !limit.is_empty() {
            if matches!(query.body.as_ref(), SetExpr::Query(_) | SetExpr::Values(_))
                && order_by.is_none()
            {
                bound.sql = format!("SELECT * FROM ({})", bound.sql);
            }
            bound.sql.push_str(&limit);
        }
        bound.at_most_one_row |= one;
        self.locks(query, &bound)?;
        if !with.is_empty() || !limit.is_empty() || order_by.is_some() {
            bound.must_wrap = true;
        }
        bound.sql.insert_str(0, &with);
        Ok(bound)
    }

    fn locks(&mut self, query: &ast::Query, bound: &BoundQuery) -> SqlResult<()> {
        for lock in &query.locks {
            if !bound.is_plain {
                let what = "FOR UPDATE with DISTINCT, GROUP BY, aggregates or set operations";
                return Err(SqlError::unsupported(what));
            }
            if matches!(lock.nonblock, Some(NonBlock::SkipLocked)) {
                return Err(SqlError::unsupported("SKIP LOCKED"));
            }
            match &lock.of {
                None => self
                    .locked
                    .extend(bound.tables.iter().map(|(_, table)| table.clone())),
                Some(of) => {
                    let of = super::name::qualified(of, &self.places)?.name;
                    let found = bound.tables.iter().find(|(alias, _)| *alias == of);
                    let (_, table) = found.ok_or_else(|| {
                        let message = format!(
                            "relation \"{of}\" in FOR UPDATE clause not found in FROM clause"
                        );
                        SqlError::new(SqlState::UNDEFINED_TABLE, message)
                    })?;
                    self.locked.insert(table.clone());
                }
            }
        }
        Ok(())
    }

    /// Binds WITH: its tables are known until the caller truncates `ctes`.
    pub(super) fn with(&mut self, with: &ast::With) -> SqlResult<String> {
        if with.cte_tables.len() > MAX_CTES {
            return Err(super::parse::too_complex());
        }
        let mut list = Vec::new();
        let mut names = std::collections::BTreeSet::new();
        for cte in &with.cte_tables {
            if cte.from.is_some() {
                return Err(SqlError::unsupported("FROM in WITH"));
            }
            let name = fold(&cte.alias.name);
            if !names.insert(name.clone()) {
                return Err(SqlError::new(
                    SqlState("42712"),
                    format!("WITH query name \"{name}\" specified more than once"),
                ));
            }
            let taken = self.catalog.is_taken(&name) || self.ctes.iter().any(|c| c.name == name);
            let emitted = if taken {
                self.fresh(&name)
            } else {
                name.clone()
            };
            let (sql, mut columns) = self.cte_query(cte, with.recursive, &name, &emitted)?;
            rename(&mut columns, &cte.alias.columns, &name)?;
            let named: Vec<String> = columns.iter().map(|c| quote(&c.1)).collect();
            let materialized = match &cte.materialized {
                Some(ast::CteAsMaterialized::Materialized) => "MATERIALIZED ",
                Some(ast::CteAsMaterialized::NotMaterialized) => "NOT MATERIALIZED ",
                None => "",
            };
            list.push(format!(
                "{}({}) AS {materialized}({sql})",
                quote(&emitted),
                named.join(", ")
            ));
            self.ctes.push(Cte {
                name,
                emitted,
                columns,
            });
        }
        let recursive = if with.recursive { "RECURSIVE " } else { "" };
        Ok(format!("WITH {recursive}{} ", list.join(", ")))
    }

    fn cte_query(
        &mut self,
        cte: &ast::Cte,
        recursive: bool,
        name: &str,
        emitted: &str,
    ) -> SqlResult<(String, Vec<RelationColumn>)> {
        let mut hidden = std::mem::take(&mut self.scopes);
        let result = self.cte_body(cte, recursive, name, emitted);
        std::mem::swap(&mut self.scopes, &mut hidden);
        result
    }

    fn cte_body(
        &mut self,
        cte: &ast::Cte,
        recursive: bool,
        name: &str,
        emitted: &str,
    ) -> SqlResult<(String, Vec<RelationColumn>)> {
        let query = cte.query.as_ref();
        let SetExpr::SetOperation {
            left,
            op: SetOperator::Union,
            set_quantifier,
            right,
        } = query.body.as_ref()
        else {
            let bound = self.query(query, None)?;
            let columns = columns_of(&bound);
            return Ok((bound.sql, columns));
        };
        if !recursive || query.with.is_some() || query.order_by.is_some() {
            let bound = self.query(query, None)?;
            let columns = columns_of(&bound);
            return Ok((bound.sql, columns));
        }
        let first = self.set_expr(left, None)?;
        let mut columns = columns_of(&first);
        for column in &mut columns {
            column.3 = true;
        }
        let types: Vec<Ty> = columns.iter().map(|c| c.2).collect();
        let mut visible = columns.clone();
        rename(&mut visible, &cte.alias.columns, name)?;
        let (name, emitted) = (name.to_owned(), emitted.to_owned());
        self.ctes.push(Cte {
            name,
            emitted,
            columns: visible,
        });
        let second = self.set_expr(right, Some(&types));
        self.ctes.pop();
        let second = second?;
        check_arity(&first, &second, "UNION")?;
        let all = union_all(*set_quantifier)?;
        let all = if all { " ALL" } else { "" };
        let (limit, _) = self.limit(query)?;
        let sql = format!("{} UNION{all} {}{limit}", wrapped(&first), wrapped(&second));
        Ok((sql, columns))
    }

    /// Binds the body of a query without ORDER BY.
    fn set_expr(&mut self, body: &SetExpr, expected: Option<&[Ty]>) -> SqlResult<BoundQuery> {
        match body {
            SetExpr::Select(select) => self.select(select, None, expected),
            SetExpr::Query(query) => self.query(query, expected),
            SetExpr::Values(values) => self.values(values, expected),
            SetExpr::SetOperation { .. } => self.set_operation(body, expected),
            SetExpr::Table(table) => {
                if table
                    .schema_name
                    .as_ref()
                    .is_some_and(|s| fold(s) != "public")
                {
                    return Err(SqlError::unsupported("TABLE with a schema"));
                }
                let name = table.table_name.as_ref().map(fold).unwrap_or_default();
                self.whole_table(&name)
            }
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
                Err(SqlError::unsupported(
                    "a writing statement inside of a query",
                ))
            }
        }
    }

    fn whole_table(&mut self, name: &str) -> SqlResult<BoundQuery> {
        let text = format!("SELECT * FROM {}", quote(name));
        let parsed = super::parse::parse(&text)?;
        match parsed.first().and_then(|p| p.statement()) {
            Some(ast::Statement::Query(query)) => self.query(query, None),
            _ => Err(SqlError::internal("TABLE")),
        }
    }

    fn set_operation(&mut self, body: &SetExpr, expected: Option<&[Ty]>) -> SqlResult<BoundQuery> {
        let mut chain = Vec::new();
        let mut left = body;
        while let SetExpr::SetOperation {
            left: inner,
            op,
            set_quantifier,
            right,
        } = left
        {
            chain.push((*op, *set_quantifier, right.as_ref()));
            left = inner;
        }
        if chain.len() >= 400 {
            return Err(super::parse::too_complex());
        }
        let mut first = self.deeper(|b| b.set_expr(left, expected))?;
        let mut types: Vec<Ty> = first.columns.iter().map(|c| c.ty).collect();
        let mut members = Vec::new();
        for (op, quantifier, right) in chain.into_iter().rev() {
            let wanted = expected.unwrap_or(&types).to_vec();
            let bound = self.deeper(|b| b.set_expr(right, Some(&wanted)))?;
            let word = set_word(op, quantifier)?;
            check_arity(&first, &bound, word.split(' ').next().unwrap_or(""))?;
            for (ty, column) in types.iter_mut().zip(&bound.columns) {
                *ty = common_type(*ty, column.ty, "UNION")?;
            }
            for (column, other) in first.columns.iter_mut().zip(&bound.columns) {
                column.nullable |= other.nullable;
                column.origin = None;
            }
            members.push((word, bound));
        }
        let changed = first.columns.iter().zip(&types).any(|(c, ty)| {
            c.is_literal && *ty != Ty::Unknown || (c.ty == Ty::Sql(SqlType::Date) && c.ty != *ty)
        });
        if changed && expected.is_none() && self.may_rebind() {
            let again = self.deeper(|b| b.set_expr(left, Some(&types)))?;
            first.sql = again.sql;
            first.must_wrap = again.must_wrap;
        }
        let mut sql = wrapped(&first);
        for (word, member) in &members {
            sql.push_str(&format!(" {word} {}", wrapped(member)));
        }
        for (column, ty) in first.columns.iter_mut().zip(types) {
            column.is_literal &= ty == Ty::Unknown;
            column.ty = ty;
        }
        Ok(BoundQuery {
            sql,
            columns: first.columns,
            at_most_one_row: false,
            tables: Vec::new(),
            is_plain: false,
            must_wrap: true,
        })
    }

    /// Binds VALUES.
    pub(super) fn values(
        &mut self,
        values: &ast::Values,
        expected: Option<&[Ty]>,
    ) -> SqlResult<BoundQuery> {
        self.scopes.push(Scope {
            no_aggregates: Some("VALUES"),
            ..Scope::default()
        });
        let result = self.value_rows(values, expected);
        self.scopes.pop();
        result
    }

    fn value_rows(
        &mut self,
        values: &ast::Values,
        expected: Option<&[Ty]>,
    ) -> SqlResult<BoundQuery> {
        let mut rows: Vec<Vec<Bound>> = Vec::new();
        for row in &values.rows {
            let mut bounds = Vec::new();
            for (at, expr) in row.content.iter().enumerate() {
                let bound = self.value(expr)?;
                let wanted = expected
                    .and_then(|e| e.get(at))
                    .copied()
                    .unwrap_or(Ty::Unknown);
                let bound = self.resolve(bound, wanted)?;
                bounds.push(to_common(bound, wanted));
            }
            if rows
                .first()
                .is_some_and(|first| first.len() != bounds.len())
            {
                return Err(SqlError::syntax("VALUES lists must all be the same length"));
            }
            rows.push(bounds);
        }
        let width = rows.first().map_or(0, Vec::len);
        let mut columns = Vec::new();
        for at in 0..width {
            let mut column: Vec<Bound> = rows.iter().map(|row| row[at].clone()).collect();
            let open = column.iter().all(Bound::is_open);
            let ty = self.unify(&mut column, "VALUES")?;
            let nullable = column.iter().any(|b| b.nullable);
            for (row, bound) in rows.iter_mut().zip(column) {
                row[at] = bound;
            }
            let name = format!("column{}", at + 1);
            columns.push(OutColumn {
                emitted: name.clone(),
                name,
                ty,
                nullable,
                origin: None,
                is_literal: open,
                sql: String::new(),
            });
        }
        let rows: Vec<String> = rows
            .iter()
            .map(|row| {
                let list: Vec<&str> = row.iter().map(|b| b.sql.as_str()).collect();
                format!("({})", list.join(", "))
            })
            .collect();
        Ok(BoundQuery {
            sql: format!("VALUES {}", rows.join(", ")),
            columns,
            at_most_one_row: rows.len() <= 1,
            tables: Vec::new(),
            is_plain: false,
            must_wrap: true,
        })
    }

    fn select(
        &mut self,
        select: &ast::Select,
        order_by: Option<&ast::OrderBy>,
        expected: Option<&[Ty]>,
    ) -> SqlResult<BoundQuery> {
        refuse_clauses(select)?;
        self.scopes.push(Scope::default());
        let result = self.select_in_scope(select, order_by, expected);
        self.scopes.pop();
        result
    }

    fn select_in_scope(
        &mut self,
        select: &ast::Select,
        order_by: Option<&ast::OrderBy>,
        expected: Option<&[Ty]>,
    ) -> SqlResult<BoundQuery> {
        let mut from = self.from(&select.from)?;
        let condition = match &select.selection {
            Some(selection) => {
                self.scope()?.no_aggregates = Some("WHERE");
                self.scope()?.no_windows = Some("WHERE");
                let condition = self.condition(selection, "WHERE")?;
                format!(" WHERE {}", condition.sql)
            }
            None => String::new(),
        };
        let group = self.group_by(select)?;
        let scope = self.scope()?;
        (scope.no_aggregates, scope.no_windows) = (None, None);
        scope.ungrouped.clear();
        let windows = self.named_windows(select)?;
        self.scope()?.takes_sets = true;
        let columns = self.projection(select, expected)?;
        self.scope()?.takes_sets = false;
        from.push_str(&self.joined_sets(&from)?);
        let having = match &select.having {
            Some(having) => {
                self.scope()?.no_windows = Some("HAVING");
                let condition = self.condition(having, "HAVING")?;
                self.scope()?.no_windows = None;
                format!(" HAVING {}", condition.sql)
            }
            None => String::new(),
        };
        let distinct = match &select.distinct {
            None | Some(Distinct::All) => false,
            Some(Distinct::Distinct) => true,
            Some(Distinct::On(_)) => return Err(SqlError::unsupported("DISTINCT ON")),
        };
        let order = match order_by {
            Some(order_by) => self.order(order_by, &columns, distinct)?,
            None => String::new(),
        };
        let has_aggregate = self.scope()?.has_aggregate;
        let grouped = !group.is_empty() || has_aggregate || !having.is_empty();
        if grouped {
            self.check_grouping()?;
        }
        let list: Vec<String> = columns
            .iter()
            .map(|c| format!("{} AS {}", c.sql, quote(&c.emitted)))
            .collect();
        let word = if distinct { "DISTINCT " } else { "" };
        let shortcut = match grouped && !distinct && group.is_empty() && having.is_empty() {
            true => self.first_of_key(select, &from, &condition, &columns)?,
            false => None,
        };
        let sql = match shortcut {
            Some(sql) => format!("{sql}{order}"),
            None => {
                let list = list.join(", ");
                format!("SELECT {word}{list}{from}{condition}{group}{having}{windows}{order}")
            }
        };
        let tables = self.scope()?.relations.iter();
        let tables = tables.filter_map(|r| Some((r.alias.clone(), r.table.as_ref()?.name.clone())));
        Ok(BoundQuery {
            sql,
            tables: tables.collect(),
            at_most_one_row: (group.is_empty() && has_aggregate) || from.is_empty(),
            is_plain: !grouped && !distinct,
            columns,
            must_wrap: order_by.is_some(),
        })
    }

    fn group_by(&mut self, select: &ast::Select) -> SqlResult<String> {
        let GroupByExpr::Expressions(exprs, modifiers) = &select.group_by else {
            return Err(SqlError::unsupported("GROUP BY ALL"));
        };
        if !modifiers.is_empty() {
            return Err(SqlError::unsupported("GROUP BY with a modifier"));
        }
        self.scope()?.no_aggregates = Some("GROUP BY");
        self.scope()?.no_windows = Some("GROUP BY");
        let mut groups = Vec::new();
        for expr in exprs {
            let expr = self.item_of_group(expr, select)?;
            let bound = self.value(expr)?;
            let is_number = bound.sql.bytes().all(|b| b.is_ascii_digit());
            // The executor would take a literal number as a position.
            groups.push(if is_number {
                format!("abs({})", bound.sql)
            } else {
                bound.sql
            });
        }
        if groups.is_empty() {
            return Ok(String::new());
        }
        let sql = format!(" GROUP BY {}", groups.join(", "));
        self.scope()?.groups = groups;
        Ok(sql)
    }

    /// Returns the expression that a position or an alias in GROUP BY names.
    fn item_of_group<'e>(
        &mut self,
        expr: &'e Expr,
        select: &'e ast::Select,
    ) -> SqlResult<&'e Expr> {
        if let Expr::Value(value) = expr
            && let ast::Value::Number(digits, _) = &value.value
        {
            let at = digits.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
            let item = at.and_then(|at| select.projection.get(at));
            return match item {
                Some(SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. }) => {
                    Ok(e)
                }
                Some(_) => Err(SqlError::unsupported(
                    "a position of GROUP BY together with *",
                )),
                None => {
                    let message = format!("GROUP BY position {digits} is not in select list");
                    Err(SqlError::new(SqlState::INVALID_COLUMN_REFERENCE, message))
                }
            };
        }
        let Expr::Identifier(ident) = expr else {
            return Ok(expr);
        };
        let name = fold(ident);
        if self.scope()?.visible.iter().any(|c| c.name == name) {
            return Ok(expr);
        }
        let named = select.projection.iter().find_map(|item| match item {
            SelectItem::ExprWithAlias { expr, alias } if fold(alias) == name => Some(expr),
            _ => None,
        });
        Ok(named.unwrap_or(expr))
    }

    fn named_windows(&mut self, select: &ast::Select) -> SqlResult<String> {
        let mut list = Vec::new();
        for ast::NamedWindowDefinition(name, definition) in &select.named_window {
            let name = fold(name);
            let window = match definition {
                ast::NamedWindowExpr::WindowSpec(spec) => self.window(spec)?,
                ast::NamedWindowExpr::NamedWindow(_) => {
                    return Err(SqlError::unsupported("a window that is named by another"));
                }
            };
            list.push(format!("{} AS {window}", quote(&name)));
            self.scope()?.windows.insert(name, ());
        }
        match list.is_empty() {
            true => Ok(String::new()),
            false => Ok(format!(" WINDOW {}", list.join(", "))),
        }
    }

    /// Binds the list of results.
    fn projection(
        &mut self,
        select: &ast::Select,
        expected: Option<&[Ty]>,
    ) -> SqlResult<Vec<OutColumn>> {
        let mut columns: Vec<OutColumn> = Vec::new();
        self.items(&select.projection, expected, &mut columns)?;
        // Names must be unique in the executor, where case does not matter.
        let mut seen = std::collections::BTreeSet::new();
        for column in &mut columns {
            if !seen.insert(column.emitted.to_lowercase()) {
                column.emitted = self.fresh(&column.name);
            }
        }
        Ok(columns)
    }

    /// Binds the items of a SELECT or a RETURNING.
    pub(super) fn items(
        &mut self,
        items: &[SelectItem],
        expected: Option<&[Ty]>,
        columns: &mut Vec<OutColumn>,
    ) -> SqlResult<()> {
        for item in items {
            match item {
                SelectItem::UnnamedExpr(expr) => {
                    let name = infer::name_of(expr);
                    self.item(expr, name, expected, columns)?;
                }
                SelectItem::ExprWithAlias { expr, alias } => {
                    self.item(expr, fold(alias), expected, columns)?;
                }
                SelectItem::ExprWithAliases { .. } => {
                    return Err(SqlError::unsupported("several aliases of one result"));
                }
                SelectItem::Wildcard(options) => {
                    refuse_wildcard_options(options)?;
                    let all = self.scope()?.visible.clone();
                    if all.is_empty() && self.scope()?.relations.is_empty() {
                        return Err(SqlError::syntax(
                            "SELECT * with no tables specified is not valid",
                        ));
                    }
                    self.wildcard(&all, columns)?;
                }
                SelectItem::QualifiedWildcard(kind, options) => {
                    refuse_wildcard_options(options)?;
                    let SelectItemQualifiedWildcardKind::ObjectName(name) = kind else {
                        return Err(SqlError::unsupported("* of an expression"));
                    };
                    let names = parts(name)?;
                    let Some(last) = names.last() else { continue };
                    let alias = fold(last);
                    let found = self.scope()?.relations.iter().find(|r| r.alias == alias);
                    let Some(relation) = found.cloned() else {
                        let message = format!("missing FROM-clause entry for table \"{alias}\"");
                        let error = SqlError::new(SqlState::UNDEFINED_TABLE, message);
                        return Err(self.at(last, error));
                    };
                    self.wildcard(&relation.columns, columns)?;
                }
            }
        }
        Ok(())
    }

    fn wildcard(
        &mut self,
        all: &[super::binder::VisibleColumn],
        columns: &mut Vec<OutColumn>,
    ) -> SqlResult<()> {
        for column in all {
            let scope = self.scope()?;
            let display = column.name.clone();
            if !scope.groups.contains(&column.sql) {
                scope
                    .ungrouped
                    .push((display, column.relation, column.sql.clone(), None));
            }
            columns.push(OutColumn {
                name: column.name.clone(),
                emitted: column.name.clone(),
                ty: column.ty,
                nullable: column.nullable,
                origin: column.origin,
                is_literal: false,
                sql: column.sql.clone(),
            });
        }
        Ok(())
    }

    fn item(
        &mut self,
        expr: &Expr,
        name: String,
        expected: Option<&[Ty]>,
        columns: &mut Vec<OutColumn>,
    ) -> SqlResult<()> {
        let bound = self.value(expr)?;
        if matches!(bound.kind, Kind::Row(_)) {
            return Err(SqlError::unsupported("a row as a result"));
        }
        let wanted = expected.and_then(|e| e.get(columns.len())).copied();
        let bound = match wanted {
            Some(wanted) => {
                let bound = self.resolve(bound, wanted)?;
                to_common(bound, wanted)
            }
            None => bound,
        };
        columns.push(OutColumn {
            emitted: name.clone(),
            name,
            ty: bound.ty,
            nullable: bound.nullable,
            origin: bound.origin,
            is_literal: bound.is_open(),
            sql: bound.sql,
        });
        Ok(())
    }

    /// Fails for a column that is neither grouped nor determined by the groups.
    fn check_grouping(&mut self) -> SqlResult<()> {
        let scope = self.scope()?;
        let determined = |at: Option<usize>| -> bool {
            let Some(relation) = at.and_then(|at| scope.relations.get(at)) else {
                return false;
            };
            let Some(table) = &relation.table else {
                return false;
            };
            let key = |table: &TableDef| -> bool {
                !table.primary_key.is_empty()
                    && table.primary_key.iter().all(|p| {
                        let name = &table.columns[usize::from(*p)].name;
                        let sql = super::binder::column_sql(&relation.emitted, name);
                        scope.groups.contains(&sql)
                    })
            };
            key(table)
        };
        for (display, relation, sql, position) in &scope.ungrouped {
            if !scope.groups.contains(sql) && !determined(*relation) {
                let message = format!(
                    "column \"{display}\" must appear in the GROUP BY clause or be used in an \
                     aggregate function"
                );
                let error = SqlError::new(SqlState::GROUPING_ERROR, message);
                return Err(positioned(error, *position));
            }
        }
        Ok(())
    }
}

fn set_word(op: SetOperator, quantifier: SetQuantifier) -> SqlResult<&'static str> {
    let all = union_all(quantifier)?;
    Ok(match (op, all) {
        (SetOperator::Union, false) => "UNION",
        (SetOperator::Union, true) => "UNION ALL",
        (SetOperator::Intersect, false) => "INTERSECT",
        (SetOperator::Except | SetOperator::Minus, false) => "EXCEPT",
        (SetOperator::Intersect, true) => return Err(SqlError::unsupported("INTERSECT ALL")),
        (_, true) => return Err(SqlError::unsupported("EXCEPT ALL")),
    })
}

fn union_all(quantifier: SetQuantifier) -> SqlResult<bool> {
    match quantifier {
        SetQuantifier::All => Ok(true),
        SetQuantifier::Distinct | SetQuantifier::None => Ok(false),
        _ => Err(SqlError::unsupported("a set operation BY NAME")),
    }
}

fn check_arity(first: &BoundQuery, other: &BoundQuery, word: &str) -> SqlResult<()> {
    match first.columns.len() == other.columns.len() {
        true => Ok(()),
        false => {
            let message = format!("each {word} query must have the same number of columns");
            Err(SqlError::syntax(message))
        }
    }
}

/// Returns a query as a member of a set operation.
fn wrapped(query: &BoundQuery) -> String {
    match query.must_wrap {
        true => format!("SELECT * FROM ({})", query.sql),
        false => query.sql.clone(),
    }
}

/// Returns the columns of a query as those of a relation: name, name in the executor, type, and
/// whether NULL occurs.
pub(super) fn columns_of(query: &BoundQuery) -> Vec<RelationColumn> {
    let column = |c: &OutColumn| {
        let ty = match c.ty {
            Ty::Unknown if c.is_literal => Ty::Sql(SqlType::Text),
            other => other,
        };
        (c.name.clone(), c.emitted.clone(), ty, c.nullable)
    };
    query.columns.iter().map(column).collect()
}

/// Gives columns the names of an alias's list.
pub(super) fn rename(
    columns: &mut [RelationColumn],
    names: &[ast::TableAliasColumnDef],
    alias: &str,
) -> SqlResult<()> {
    if names.len() > columns.len() {
        let message = format!(
            "table \"{alias}\" has {} columns available but {} columns specified",
            columns.len(),
            names.len()
        );
        return Err(SqlError::new(SqlState::INVALID_COLUMN_REFERENCE, message));
    }
    for (column, name) in columns.iter_mut().zip(names) {
        if name.data_type.is_some() {
            return Err(SqlError::unsupported("types in the columns of an alias"));
        }
        column.0 = fold(&name.name);
    }
    Ok(())
}

fn refuse_wildcard_options(options: &ast::WildcardAdditionalOptions) -> SqlResult<()> {
    let any = options.opt_ilike.is_some()
        || options.opt_exclude.is_some()
        || options.opt_except.is_some()
        || options.opt_replace.is_some()
        || options.opt_rename.is_some()
        || options.opt_alias.is_some();
    match any {
        true => Err(SqlError::unsupported("options of *")),
        false => Ok(()),
    }
}

fn refuse_clauses(select: &ast::Select) -> SqlResult<()> {
    let clauses = [
        (select.top.is_some(), "TOP"),
        (select.into.is_some(), "SELECT INTO"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
        (select.prewhere.is_some(), "PREWHERE"),
        (!select.connect_by.is_empty(), "CONNECT BY"),
        (!select.cluster_by.is_empty(), "CLUSTER BY"),
        (!select.distribute_by.is_empty(), "DISTRIBUTE BY"),
        (!select.sort_by.is_empty(), "SORT BY"),
        (select.qualify.is_some(), "QUALIFY"),
        (select.value_table_mode.is_some(), "SELECT AS"),
        (select.exclude.is_some(), "EXCLUDE"),
        (select.select_modifiers.is_some(), "a modifier of SELECT"),
        (select.projection.is_empty(), "a SELECT without results"),
    ];
    match clauses.iter().find(|(given, _)| *given) {
        Some((_, what)) => Err(SqlError::unsupported(what)),
        None => Ok(()),
    }
}
