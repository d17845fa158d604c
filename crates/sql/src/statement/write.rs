//! INSERT, UPDATE and DELETE.

use super::binder::VisibleColumn;
use super::binder::{Binder, Bound, Category, Kind, Relation, Scope, Ty, category, column_sql};
use super::expr::text_sql;
use super::name::{column_name, fold, qualified, quote};
use super::parse::positioned;
use super::{ConflictTarget, ConflictUpdate, OnConflict, Returning, Write, WriteKind, infer};
use crate::catalog::{Object, TableDef};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::value::Value;
use sqlparser::ast::{
    self, Assignment, AssignmentTarget, Delete, Expr, FromTable, Insert, InsertOverriding,
    OnConflictAction, OnInsert, SelectItem, SetExpr, TableFactor, TableObject, Update,
    UpdateTableFromKind,
};
use std::sync::Arc;

const GENERATED_ALWAYS: SqlState = SqlState("428C9");

impl Binder<'_> {
    /// Binds INSERT. `with` is the WITH clause before it.
    pub(super) fn insert(&mut self, insert: &Insert, with: &str) -> SqlResult<Write> {
        refuse_insert(insert)?;
        let TableObject::TableName(name) = &insert.table else {
            return Err(SqlError::unsupported("INSERT into anything but a table"));
        };
        let table = self.target(name, "insert into")?;
        let alias = match &insert.table_alias {
            Some(alias) => fold(&alias.alias),
            None => table.name.clone(),
        };
        let mut positions = Vec::new();
        for column in &insert.columns {
            let ident = column_name(column)?;
            let position = self.column_of(&table, ident)?;
            if positions.contains(&position) {
                let message = format!("column \"{}\" specified more than once", fold(ident));
                let error = SqlError::new(SqlState::DUPLICATE_COLUMN, message);
                return Err(self.at(ident, error));
            }
            positions.push(position);
        }
        let explicit = !positions.is_empty();
        if !explicit {
            positions.extend(table.visible().map(|(p, _)| p));
        }
        let source = self.insert_source(insert, &table, &positions, explicit)?;
        let sql = format!("{with}INSERT INTO {} {source}", quote(&table.name));
        let on_conflict = match &insert.on {
            None => None,
            Some(OnInsert::OnConflict(on)) => Some(self.on_conflict(on, &table, &alias)?),
            Some(_) => return Err(SqlError::unsupported("ON DUPLICATE KEY UPDATE")),
        };
        let returning = self.returning(insert.returning.as_deref(), &table, &alias)?;
        Ok(Write {
            kind: WriteKind::Insert,
            table: table.name.clone(),
            executable: self.executable(sql),
            on_conflict,
            returning,
        })
    }

    /// Returns the columns and rows of an INSERT, with all defaults.
    fn insert_source(
        &mut self,
        insert: &Insert,
        table: &TableDef,
        positions: &[u16],
        explicit: bool,
    ) -> SqlResult<String> {
        let visible: Vec<u16> = table.visible().map(|(p, _)| p).collect();
        let names: Vec<String> = visible
            .iter()
            .map(|p| quote(&table.columns[usize::from(*p)].name))
            .collect();
        let names = names.join(", ");
        let Some(source) = &insert.source else {
            let row: Vec<String> = visible
                .iter()
                .map(|p| self.default(table, *p))
                .collect::<SqlResult<_>>()?;
            return Ok(format!("({names}) VALUES ({})", row.join(", ")));
        };
        let overriding = insert.overriding.as_ref();
        let plain = source.with.is_none()
            && source.order_by.is_none()
            && source.limit_clause.is_none()
            && source.fetch.is_none();
        if let (SetExpr::Values(values), true) = (source.body.as_ref(), plain) {
            let mut rows = Vec::new();
            self.scopes.push(Scope {
                no_aggregates: Some("VALUES"),
                ..Scope::default()
            });
            for row in &values.rows {
                let row = self.value_row(table, positions, explicit, &row.content, overriding);
                let mut given = match row {
                    Ok(given) => given,
                    Err(e) => {
                        self.scopes.pop();
                        return Err(e);
                    }
                };
                let mut cells = Vec::new();
                for position in &visible {
                    let at = positions.iter().position(|p| p == position);
                    let cell = at.and_then(|at| given.get_mut(at).and_then(Option::take));
                    cells.push(match cell {
                        Some(cell) => cell,
                        None => self.default(table, *position)?,
                    });
                }
                rows.push(format!("({})", cells.join(", ")));
            }
            self.scopes.pop();
            return Ok(format!("({names}) VALUES {}", rows.join(", ")));
        }
        let types: Vec<Ty> = positions
            .iter()
            .map(|p| Ty::Sql(table.columns[usize::from(*p)].ty))
            .collect();
        let query = self.query(source, Some(&types))?;
        check_count(query.columns.len(), positions.len(), explicit)?;
        let given = &positions[..query.columns.len()];
        let mut cells = Vec::new();
        let mut direct = given == &visible[..];
        for position in &visible {
            let at = given.iter().position(|p| p == position);
            let column = &table.columns[usize::from(*position)];
            let Some(at) = at else {
                cells.push(self.default(table, *position)?);
                continue;
            };
            if column.always_generated && !matches!(overriding, Some(InsertOverriding::System)) {
                if matches!(overriding, Some(InsertOverriding::User)) {
                    cells.push(self.default(table, *position)?);
                    direct = false;
                    continue;
                }
                return Err(always_generated(&column.name));
            }
            let out = &query.columns[at];
            let ty = if out.is_literal { Ty::Unknown } else { out.ty };
            let bound = Bound::new(column_sql("q", &out.emitted), ty);
            let before = bound.sql.clone();
            let cell = self.assign(bound, column)?;
            direct &= cell == before;
            cells.push(cell);
        }
        match direct {
            true => Ok(format!("({names}) {}", query.sql)),
            false => Ok(format!(
                "({names}) SELECT {} FROM ({}) AS \"q\"",
                cells.join(", "),
                query.sql
            )),
        }
    }

    /// Binds a row of VALUES; `None` is DEFAULT.
    fn value_row(
        &mut self,
        table: &TableDef,
        positions: &[u16],
        explicit: bool,
        exprs: &[Expr],
        overriding: Option<&InsertOverriding>,
    ) -> SqlResult<Vec<Option<String>>> {
        check_count(exprs.len(), positions.len(), explicit)?;
        let mut cells = Vec::new();
        for (expr, position) in exprs.iter().zip(positions) {
            let column = &table.columns[usize::from(*position)];
            if is_default(expr) {
                cells.push(None);
                continue;
            }
            if column.always_generated {
                match overriding {
                    Some(InsertOverriding::System) => {}
                    Some(InsertOverriding::User) => {
                        cells.push(None);
                        continue;
                    }
                    None => return Err(always_generated(&column.name)),
                }
            } else if column.sequence.is_some()
                && matches!(overriding, Some(InsertOverriding::User))
            {
                cells.push(None);
                continue;
            }
            let bound = self.expr(expr)?;
            cells.push(Some(self.assign(bound, column)?));
        }
        Ok(cells)
    }

    /// Returns the expression that fills a column without a value.
    fn default(&mut self, table: &TableDef, position: u16) -> SqlResult<String> {
        let column = &table.columns[usize::from(position)];
        Ok(match (column.sequence, &column.default) {
            (Some(sequence), _) => {
                self.has_side_effects = true;
                format!("basalt_nextval({sequence})")
            }
            (None, Some(default)) => default.clone(),
            (None, None) => "NULL".to_string(),
        })
    }

    /// Returns an expression as a value of a column, or 42804 if the types do not fit. The executor
    /// converts and checks the value when it is written.
    pub(super) fn assign(
        &mut self,
        bound: Bound,
        column: &crate::catalog::ColumnDef,
    ) -> SqlResult<String> {
        if let (Kind::Text(text), Ty::Unknown) = (&bound.kind, bound.ty) {
            let value = column.ty.coerce(Value::Text(text.clone()));
            return Ok(super::binder::literal(
                &value.map_err(|e| e.with_column(&*column.name))?,
            ));
        }
        let bound = self.resolve(bound, Ty::Sql(column.ty))?;
        let (from, to) = (category(bound.ty), category(Ty::Sql(column.ty)));
        let fits = match (from, to) {
            (None, _) | (_, Some(Category::Text)) => true,
            (Some(a), Some(b)) if a == b => true,
            (Some(Category::Moment), Some(Category::Time)) => true,
            _ => false,
        };
        if !fits {
            let message = format!(
                "column \"{}\" is of type {} but expression is of type {}",
                column.name,
                column.ty,
                bound.ty.name()
            );
            let error = SqlError::new(SqlState::DATATYPE_MISMATCH, message);
            return Err(error.with_hint("You will need to rewrite or cast the expression."));
        }
        // Integers that are too large are found when the value is written. Numerics are rounded to
        // the column's scale there.
        match to {
            Some(Category::Text) => Ok(text_sql(&bound.checked())),
            _ => Ok(bound.sql),
        }
    }

    /// Returns the table that a statement writes.
    fn target(&mut self, name: &ast::ObjectName, verb: &str) -> SqlResult<Arc<TableDef>> {
        let found = qualified(name, &self.places)?;
        if found.schema.is_some() {
            let message = format!("permission denied for table {}", found.name);
            return Err(SqlError::new(SqlState::INSUFFICIENT_PRIVILEGE, message));
        }
        match self.catalog.object(&found.name) {
            Some(Object::Table(table)) => {
                self.relations.insert(table.name.clone());
                Ok(table.clone())
            }
            Some(Object::View(_)) => {
                let message = format!("cannot {verb} view \"{}\"", found.name);
                Err(SqlError::new(SqlState::OBJECT_NOT_IN_STATE, message))
            }
            Some(Object::Sequence(_)) => {
                let message = format!("cannot {verb} sequence \"{}\"", found.name);
                Err(SqlError::new(SqlState::WRONG_OBJECT_TYPE, message))
            }
            None => {
                let message = format!("relation \"{}\" does not exist", found.name);
                let error = SqlError::new(SqlState::UNDEFINED_TABLE, message);
                Err(positioned(error, found.position))
            }
        }
    }

    fn column_of(&self, table: &TableDef, ident: &ast::Ident) -> SqlResult<u16> {
        let name = fold(ident);
        table.column(&name).ok_or_else(|| {
            let message = format!(
                "column \"{name}\" of relation \"{}\" does not exist",
                table.name
            );
            self.at(ident, SqlError::new(SqlState::UNDEFINED_COLUMN, message))
        })
    }

    fn on_conflict(
        &mut self,
        on: &ast::OnConflict,
        table: &Arc<TableDef>,
        alias: &str,
    ) -> SqlResult<OnConflict> {
        let target = match &on.conflict_target {
            None => None,
            Some(ast::ConflictTarget::OnConstraint(name)) => {
                let name = qualified(name, &self.places)?.name;
                Some(constraint_target(table, &name)?)
            }
            Some(ast::ConflictTarget::Columns { columns, predicate }) => {
                if predicate.is_some() {
                    return Err(SqlError::unsupported("WHERE in the target of ON CONFLICT"));
                }
                let mut positions = Vec::new();
                for ident in columns {
                    positions.push(self.column_of(table, ident)?);
                }
                Some(column_target(table, &positions)?)
            }
        };
        let update = match &on.action {
            OnConflictAction::DoNothing => None,
            OnConflictAction::DoUpdate(update) => {
                if target.is_none() {
                    let message =
                        "ON CONFLICT DO UPDATE requires inference specification or constraint name";
                    return Err(SqlError::syntax(message));
                }
                Some(self.conflict_update(update, table, alias)?)
            }
        };
        Ok(OnConflict { target, update })
    }

    fn conflict_update(
        &mut self,
        update: &ast::DoUpdate,
        table: &Arc<TableDef>,
        alias: &str,
    ) -> SqlResult<ConflictUpdate> {
        let width = table.visible().count();
        let stored = self.row_relation(table, alias, 0, 0);
        let excluded = self.row_relation(table, "excluded", width, 1);
        let from = format!("{}, {}", stored.0, excluded.0);
        let mut scope = Scope {
            no_aggregates: Some("ON CONFLICT DO UPDATE"),
            no_windows: Some("ON CONFLICT DO UPDATE"),
            ..Scope::default()
        };
        // An unqualified name means the stored row; `excluded` must be named.
        scope.visible.clone_from(&stored.1.columns);
        scope.relations = vec![stored.1, excluded.1];
        let (scopes, offset) = (std::mem::take(&mut self.scopes), self.parameter_offset);
        self.scopes.push(scope);
        self.parameter_offset = 2 * width;
        self.no_subqueries = Some("ON CONFLICT DO UPDATE");
        let set = self.assignments(&update.assignments, table);
        let condition = update
            .selection
            .as_ref()
            .map(|e| self.condition(e, "WHERE"))
            .transpose();
        self.no_subqueries = None;
        self.scopes = scopes;
        self.parameter_offset = offset;
        let set = set?;
        let condition = match condition? {
            Some(condition) => format!(" WHERE {}", condition.sql),
            None => String::new(),
        };
        let list: Vec<&str> = set.iter().map(|(_, sql)| sql.as_str()).collect();
        let mut columns = Vec::new();
        for (target, _) in &set {
            let [position] = target[..] else {
                return Err(SqlError::unsupported(
                    "a query as several values in ON CONFLICT",
                ));
            };
            columns.push(position);
        }
        Ok(ConflictUpdate {
            columns,
            query: format!("SELECT {} FROM {from}{condition}", list.join(", ")),
            parameters_from: 2 * width,
        })
    }

    /// Returns a relation of one row whose values are parameters, and its SQL.
    fn row_relation(
        &self,
        table: &Arc<TableDef>,
        alias: &str,
        from: usize,
        at: usize,
    ) -> (String, Relation) {
        let mut list = Vec::new();
        let mut columns = Vec::new();
        for (n, (position, column)) in table.visible().enumerate() {
            list.push(format!("?{} AS {}", from + n + 1, quote(&column.name)));
            columns.push(VisibleColumn {
                name: column.name.clone(),
                sql: column_sql(alias, &column.name),
                ty: Ty::Sql(column.ty),
                nullable: !column.not_null,
                origin: Some((table.id, position)),
                relation: Some(at),
            });
        }
        let sql = format!("(SELECT {}) AS {}", list.join(", "), quote(alias));
        let relation = Relation {
            alias: alias.to_owned(),
            emitted: alias.to_owned(),
            columns,
            table: Some(table.clone()),
        };
        (sql, relation)
    }

    fn returning(
        &mut self,
        items: Option<&[SelectItem]>,
        table: &Arc<TableDef>,
        alias: &str,
    ) -> SqlResult<Option<Returning>> {
        let Some(items) = items else { return Ok(None) };
        let width = table.visible().count();
        let (from, relation) = self.row_relation(table, alias, 0, 0);
        let mut scope = Scope {
            no_aggregates: Some("RETURNING"),
            no_windows: Some("RETURNING"),
            ..Scope::default()
        };
        scope.visible.clone_from(&relation.columns);
        scope.relations = vec![relation];
        let (scopes, offset) = (std::mem::take(&mut self.scopes), self.parameter_offset);
        self.scopes.push(scope);
        self.parameter_offset = width;
        self.no_subqueries = Some("RETURNING");
        let mut columns = Vec::new();
        let result = self.items(items, None, &mut columns);
        self.no_subqueries = None;
        self.scopes = scopes;
        self.parameter_offset = offset;
        result?;
        let list: Vec<&str> = columns.iter().map(|c| c.sql.as_str()).collect();
        Ok(Some(Returning {
            query: format!("SELECT {} FROM {from}", list.join(", ")),
            parameters_from: width,
            columns: infer::result_columns(&columns),
        }))
    }

    /// Binds the list of SET: positions and the expression. Several positions take a query.
    fn assignments(
        &mut self,
        assignments: &[Assignment],
        table: &Arc<TableDef>,
    ) -> SqlResult<Vec<(Vec<u16>, String)>> {
        let mut out: Vec<(Vec<u16>, String)> = Vec::new();
        for assignment in assignments {
            let targets: Vec<&ast::ObjectName> = match &assignment.target {
                AssignmentTarget::ColumnName(name) => vec![name],
                AssignmentTarget::Tuple(names) => names.iter().collect(),
            };
            let mut positions = Vec::new();
            for name in targets {
                let ident = column_name(name)?;
                let position = self.column_of(table, ident)?;
                let set = out.iter().any(|(before, _)| before.contains(&position));
                if set || positions.contains(&position) {
                    let message =
                        format!("multiple assignments to same column \"{}\"", fold(ident));
                    return Err(self.at(ident, SqlError::syntax(message)));
                }
                positions.push(position);
            }
            let is_row = matches!(assignment.target, AssignmentTarget::Tuple(_));
            match (&assignment.value, is_row) {
                (Expr::Tuple(values), true) => {
                    if values.len() != positions.len() {
                        let message = "number of columns does not match number of values";
                        return Err(SqlError::syntax(message));
                    }
                    for (position, value) in positions.into_iter().zip(values) {
                        out.push((vec![position], self.set_value(table, position, value)?));
                    }
                }
                (Expr::Subquery(query), true) if positions.len() > 1 => {
                    self.refuse_subquery()?;
                    let types: Vec<Ty> = positions
                        .iter()
                        .map(|p| Ty::Sql(table.columns[usize::from(*p)].ty))
                        .collect();
                    let query = self.query(query, Some(&types))?;
                    if query.columns.len() != positions.len() {
                        let message = "number of columns does not match number of values";
                        return Err(SqlError::syntax(message));
                    }
                    for (position, out) in positions.iter().zip(&query.columns) {
                        let column = &table.columns[usize::from(*position)];
                        self.assign(Bound::new("", out.ty), column)?;
                    }
                    out.push((positions, format!("({})", query.sql)));
                }
                (value, _) => {
                    let [position] = positions[..] else {
                        let what =
                            "a source of a multiple-column UPDATE that is not a row or query";
                        return Err(SqlError::unsupported(what));
                    };
                    out.push((positions, self.set_value(table, position, value)?));
                }
            }
        }
        Ok(out)
    }

    fn set_value(&mut self, table: &TableDef, position: u16, value: &Expr) -> SqlResult<String> {
        if is_default(value) {
            return self.default(table, position);
        }
        let column = &table.columns[usize::from(position)];
        if column.always_generated {
            let message = format!("column \"{}\" can only be updated to DEFAULT", column.name);
            let error = SqlError::new(GENERATED_ALWAYS, message);
            return Err(error.with_detail(format!(
                "Column \"{}\" is an identity column defined as GENERATED ALWAYS.",
                column.name
            )));
        }
        let bound = self.expr(value)?;
        self.assign(bound, column)
    }

    /// Binds UPDATE.
    pub(super) fn update(&mut self, update: &Update, with: &str) -> SqlResult<Write> {
        let refused = update.or.is_some()
            || !update.order_by.is_empty()
            || update.limit.is_some()
            || update.output.is_some()
            || update.settings.is_some()
            || update.on_cluster.is_some();
        if refused || !update.table.joins.is_empty() {
            return Err(SqlError::unsupported("this clause of UPDATE"));
        }
        let (table, alias) = self.written(&update.table.relation, "update")?;
        let head = self.from(std::slice::from_ref(&update.table))?;
        let head = head.strip_prefix(" FROM ").unwrap_or(&head).to_owned();
        let from = match &update.from {
            None => String::new(),
            Some(UpdateTableFromKind::AfterSet(from)) => self.from(from)?,
            Some(UpdateTableFromKind::BeforeSet(_)) => {
                return Err(SqlError::unsupported("FROM before SET"));
            }
        };
        self.scope()?.no_aggregates = Some("UPDATE");
        self.scope()?.no_windows = Some("UPDATE");
        let set = self.assignments(&update.assignments, &table)?;
        let set: Vec<String> = set
            .iter()
            .map(|(positions, value)| {
                let names: Vec<String> = positions
                    .iter()
                    .map(|p| quote(&table.columns[usize::from(*p)].name))
                    .collect();
                match &names[..] {
                    [name] => format!("{name} = {value}"),
                    _ => format!("({}) = {value}", names.join(", ")),
                }
            })
            .collect();
        let condition = self.where_clause(update.selection.as_ref())?;
        self.scopes.clear();
        let returning = self.returning(update.returning.as_deref(), &table, &alias)?;
        let sql = format!(
            "{with}UPDATE {head} SET {}{from}{condition}",
            set.join(", ")
        );
        Ok(Write {
            kind: WriteKind::Update,
            table: table.name.clone(),
            executable: self.executable(sql),
            on_conflict: None,
            returning,
        })
    }

    /// Binds DELETE.
    pub(super) fn delete(&mut self, delete: &Delete, with: &str) -> SqlResult<Write> {
        let refused = !delete.tables.is_empty()
            || !delete.order_by.is_empty()
            || delete.limit.is_some()
            || delete.output.is_some()
            || delete.settings.is_some()
            || delete.on_cluster.is_some();
        if refused {
            return Err(SqlError::unsupported("this clause of DELETE"));
        }
        let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
        let [one] = &from[..] else {
            return Err(SqlError::unsupported("DELETE of several tables"));
        };
        if !one.joins.is_empty() {
            return Err(SqlError::unsupported("a join in DELETE FROM"));
        }
        let (table, alias) = self.written(&one.relation, "delete from")?;
        let head = self.from(from)?;
        let using = match &delete.using {
            Some(using) => self.from(using)?,
            None => String::new(),
        };
        self.scope()?.no_aggregates = Some("WHERE");
        self.scope()?.no_windows = Some("WHERE");
        let condition = self.where_clause(delete.selection.as_ref())?;
        let emitted = self.scope()?.relations[0].emitted.clone();
        let condition = match (using.strip_prefix(" FROM "), &table.primary_key[..]) {
            (None, _) => condition,
            (Some(using), [key]) => {
                let name = &table.columns[usize::from(*key)].name;
                format!(
                    " WHERE {} IN (SELECT {}{head}, {using}{condition})",
                    column_sql(&emitted, name),
                    column_sql(&emitted, name),
                )
            }
            (Some(using), _) => format!(" WHERE EXISTS (SELECT 1 FROM {using}{condition})"),
        };
        self.scopes.clear();
        let returning = self.returning(delete.returning.as_deref(), &table, &alias)?;
        let sql = format!("{with}DELETE{head}{condition}");
        Ok(Write {
            kind: WriteKind::Delete,
            table: table.name.clone(),
            executable: self.executable(sql),
            on_conflict: None,
            returning,
        })
    }

    fn where_clause(&mut self, selection: Option<&Expr>) -> SqlResult<String> {
        match selection {
            None => Ok(String::new()),
            Some(selection) => {
                let condition = self.condition(selection, "WHERE")?;
                Ok(format!(" WHERE {}", condition.sql))
            }
        }
    }

    /// Returns the table that UPDATE or DELETE writes and its alias, and opens a scope.
    fn written(&mut self, factor: &TableFactor, verb: &str) -> SqlResult<(Arc<TableDef>, String)> {
        let TableFactor::Table {
            name,
            alias,
            args: None,
            ..
        } = factor
        else {
            return Err(SqlError::unsupported("a target that is not a table"));
        };
        let table = self.target(name, verb)?;
        if alias.as_ref().is_some_and(|a| !a.columns.is_empty()) {
            return Err(SqlError::unsupported("columns in the alias of a target"));
        }
        // A WITH table of the same name must not take the target's place.
        if self.ctes.iter().any(|c| c.name == table.name) {
            return Err(SqlError::unsupported(
                "a WITH table with the name of the target",
            ));
        }
        let alias = alias
            .as_ref()
            .map_or_else(|| table.name.clone(), |a| fold(&a.name));
        self.scopes.push(Scope::default());
        Ok((table, alias))
    }
}

fn is_default(expr: &Expr) -> bool {
    matches!(expr, Expr::Identifier(ident)
        if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

fn always_generated(column: &str) -> SqlError {
    let message = format!("cannot insert a non-DEFAULT value into column \"{column}\"");
    SqlError::new(GENERATED_ALWAYS, message)
        .with_detail(format!(
            "Column \"{column}\" is an identity column defined as GENERATED ALWAYS."
        ))
        .with_hint("Use OVERRIDING SYSTEM VALUE to override.")
}

fn check_count(given: usize, columns: usize, explicit: bool) -> SqlResult<()> {
    if given > columns {
        Err(SqlError::syntax(
            "INSERT has more expressions than target columns",
        ))
    } else if given < columns && explicit {
        Err(SqlError::syntax(
            "INSERT has more target columns than expressions",
        ))
    } else {
        Ok(())
    }
}

fn constraint_target(table: &TableDef, name: &str) -> SqlResult<ConflictTarget> {
    if !table.primary_key.is_empty() && table.primary_key_name == name {
        return Ok(ConflictTarget::PrimaryKey);
    }
    let index = table.indexes.iter().find(|i| i.name == name && i.unique);
    match index {
        Some(index) => Ok(ConflictTarget::Index(index.id)),
        None => {
            let message = format!(
                "constraint \"{name}\" for table \"{}\" does not exist",
                table.name
            );
            Err(SqlError::new(SqlState::UNDEFINED_OBJECT, message))
        }
    }
}

fn column_target(table: &TableDef, columns: &[u16]) -> SqlResult<ConflictTarget> {
    let same = |key: &[u16]| {
        !key.is_empty()
            && key.iter().all(|p| columns.contains(p))
            && columns.iter().all(|p| key.contains(p))
    };
    if same(&table.primary_key) {
        return Ok(ConflictTarget::PrimaryKey);
    }
    let index = table.indexes.iter().find(|i| i.unique && same(&i.columns));
    match index {
        Some(index) => Ok(ConflictTarget::Index(index.id)),
        None => {
            let message = "there is no unique or exclusion constraint matching the ON CONFLICT \
                           specification";
            Err(SqlError::new(SqlState::INVALID_COLUMN_REFERENCE, message))
        }
    }
}

fn refuse_insert(insert: &Insert) -> SqlResult<()> {
    let clauses = [
        (insert.or.is_some(), "INSERT OR"),
        (insert.ignore, "INSERT IGNORE"),
        (insert.overwrite, "INSERT OVERWRITE"),
        (insert.replace_into, "REPLACE"),
        (insert.by_name, "INSERT BY NAME"),
        (!insert.assignments.is_empty(), "INSERT SET"),
        (insert.partitioned.is_some(), "PARTITION"),
        (!insert.after_columns.is_empty(), "PARTITION"),
        (insert.priority.is_some(), "a priority of INSERT"),
        (
            insert.insert_alias.is_some(),
            "an alias of the inserted row",
        ),
        (insert.settings.is_some(), "SETTINGS"),
        (insert.format_clause.is_some(), "FORMAT"),
        (insert.output.is_some(), "OUTPUT"),
        (
            insert.multi_table_insert_type.is_some(),
            "INSERT into several tables",
        ),
        (insert.has_table_keyword, "INSERT INTO TABLE"),
    ];
    match clauses.iter().find(|(given, _)| *given) {
        Some((_, what)) => Err(SqlError::unsupported(what)),
        None => Ok(()),
    }
}
