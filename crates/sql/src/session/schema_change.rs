//! Statements that change the catalog.

use super::index_build::IndexBuild;
use super::{Outcome, Row, RowSink, Session};
use crate::catalog::{Object, ObjectId, TableDef, ViewDef};
use crate::ddl::{self, Altered, Changes};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::history::Change;
use crate::keys::primary_key;
use crate::row_write::key_text;
use crate::schema::Schema;
use crate::statement::{
    Command, CreateTable, Ddl, NewColumn, NewConstraint, Query, WriteKind, analyze, parse,
};
use crate::storage::SchemaChange;
use crate::translate::{TableLayout, row_values};
use crate::value::Value;
use basalt::{Bytes, ReadOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Session {
    /// Carries out a statement that changes the catalog. It is a transaction of its own.
    pub(super) fn execute_ddl(&mut self, ddl: &Ddl, text: &str) -> SqlResult<Outcome> {
        self.refuse_in_block(tag(ddl))?;
        self.refuse_read_only(tag(ddl))?;
        self.context.begin_transaction();
        let storage = self.storage.clone();
        let mut change = storage.begin_change();
        let exists = |name: &str| storage.schema().catalog.is_taken(name);
        let skipped = |name: &str| {
            let notice = SqlError::new(
                SqlState::DUPLICATE_TABLE,
                format!("relation \"{name}\" already exists, skipping"),
            );
            Ok(Outcome::noticed(tag(ddl), notice))
        };
        match ddl {
            Ddl::CreateTable(create) => {
                if create.if_not_exists && exists(&create.name) {
                    return skipped(&create.name);
                }
                self.change(text, |changes| {
                    ddl::create_table(changes, create, true).map(|_| ())
                })?;
            }
            Ddl::CreateTableAs {
                name,
                if_not_exists,
                query,
            } => {
                if *if_not_exists && exists(name) {
                    return skipped(name);
                }
                return self.create_table_as(name, query, text);
            }
            Ddl::DropTable(drop) => self.change(text, |c| ddl::drop_tables(c, drop))?,
            Ddl::CreateView {
                name,
                or_replace,
                columns,
                query,
            } => self.create_view(name, *or_replace, columns, query, text)?,
            Ddl::DropView(drop) => self.change(text, |c| ddl::drop_views(c, drop))?,
            Ddl::CreateIndex {
                name,
                table,
                columns,
                unique,
                if_not_exists,
            } => {
                if let Some(name) = name
                    && *if_not_exists
                    && exists(name)
                {
                    return skipped(name);
                }
                self.create_index(&mut change, name.as_deref(), table, columns, *unique, text)?;
            }
            Ddl::DropIndex(drop) => self.change(text, |c| ddl::drop_indexes(c, drop))?,
            Ddl::CreateSequence {
                name,
                if_not_exists,
                start,
                increment,
            } => {
                if *if_not_exists && exists(name) {
                    return skipped(name);
                }
                self.change(text, |c| {
                    ddl::create_sequence(c, name, *start, *increment, None).map(|_| ())
                })?;
            }
            Ddl::DropSequence(drop) => self.change(text, |c| ddl::drop_sequences(c, drop))?,
            Ddl::AlterTable {
                table,
                if_exists,
                changes,
            } => {
                if *if_exists && !exists(table) {
                    let notice = SqlError::new(
                        SqlState::UNDEFINED_TABLE,
                        format!("relation \"{table}\" does not exist, skipping"),
                    );
                    return Ok(Outcome::noticed(tag(ddl), notice));
                }
                self.alter_table(&mut change, table, changes, text)?;
            }
            Ddl::Rename { from, to } => self.change(text, |c| ddl::rename(c, from, to))?,
        }
        Ok(Outcome::done(tag(ddl), 0))
    }

    /// Changes the catalog. No change is under way elsewhere.
    fn change(
        &self,
        text: &str,
        make: impl FnOnce(&mut Changes<'_>) -> SqlResult<()>,
    ) -> SqlResult<()> {
        let schema = self.storage.schema();
        let mut changes = Changes::new(&schema.catalog);
        make(&mut changes)?;
        self.install(text, changes.finish())
    }

    fn install(&self, text: &str, changes: Vec<Change>) -> SqlResult<()> {
        let changes = Some(changes).filter(|changes| !changes.is_empty());
        self.storage.change_schema(text, |_| Ok(changes))?;
        Ok(())
    }

    fn query_of(&self, query: &str) -> SqlResult<Query> {
        let mut statements = parse(query)?;
        let statement = statements.pop().filter(|_| statements.is_empty());
        let statement = statement.ok_or_else(|| SqlError::syntax("one query is expected"))?;
        match analyze(&statement, &self.storage.schema().catalog, &[])? {
            Command::Query(query) if query.executable.parameters.is_empty() => Ok(query),
            Command::Query(_) => Err(SqlError::new(
                SqlState::UNDEFINED_PARAMETER,
                "a definition has no parameters",
            )),
            _ => Err(SqlError::syntax("a query is expected")),
        }
    }

    fn create_view(
        &self,
        name: &str,
        or_replace: bool,
        columns: &[String],
        text: &str,
        statement: &str,
    ) -> SqlResult<()> {
        let query = self.query_of(text)?;
        if columns.len() > query.columns.len() {
            return Err(SqlError::syntax(format!(
                "view \"{name}\" names {} columns, and its query has {}",
                columns.len(),
                query.columns.len()
            )));
        }
        let mut names = BTreeSet::new();
        let mut named = Vec::with_capacity(query.columns.len());
        for (at, column) in query.columns.iter().enumerate() {
            let name = columns.get(at).unwrap_or(&column.name).clone();
            if !names.insert(name.to_lowercase()) {
                return Err(SqlError::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{name}\" specified more than once"),
                ));
            }
            named.push((name, column.ty));
        }
        self.change(statement, |changes| {
            let old = changes.catalog().object(name);
            match old {
                Some(Object::View(old)) if or_replace => {
                    if query.executable.relations.contains(&old.name) {
                        return Err(SqlError::unsupported("a view that reads itself"));
                    }
                    let (before, now) = (old.columns.len(), named.len());
                    if now < before || named[..before] != old.columns[..] {
                        return Err(SqlError::new(
                            SqlState::INVALID_TABLE_DEFINITION,
                            format!(
                                "the new query of view \"{name}\" lacks columns of the old one"
                            ),
                        ));
                    }
                    changes.remove(old.id);
                }
                _ => changes.take_name(name)?,
            }
            let view = ViewDef {
                id: changes.new_id(),
                name: name.to_owned(),
                query: query.executable.sql.clone(),
                text: text.to_owned(),
                columns: named,
                reads: query.executable.relations.clone(),
            };
            changes.put(Object::View(Arc::new(view)));
            Ok(())
        })
    }

    fn create_table_as(&mut self, name: &str, query: &str, text: &str) -> SqlResult<Outcome> {
        let query = self.query_of(query)?;
        let columns = query.columns.iter().map(|column| NewColumn {
            column: crate::catalog::ColumnDef {
                name: column.name.clone(),
                ty: column.ty,
                not_null: false,
                default: None,
                missing: None,
                sequence: None,
                always_generated: false,
                dropped: false,
            },
            serial: None,
        });
        let create = CreateTable {
            name: name.to_owned(),
            if_not_exists: false,
            columns: columns.collect(),
            constraints: Vec::new(),
        };
        let schema = self.storage.schema();
        let mut changes = Changes::new(&schema.catalog);
        let id = ddl::create_table(&mut changes, &create, false)?;
        self.install(text, changes.finish())?;
        match self.fill(id, &query) {
            Ok(rows) => {
                let schema = self.storage.schema();
                let table = schema.catalog.table_by_id(id);
                let table = table.ok_or_else(|| SqlError::internal("a new table is gone"))?;
                let mut table = TableDef::clone(table);
                table.is_ready = true;
                table.version += 1;
                self.install("", vec![(id, Some(Object::Table(Arc::new(table))))])?;
                Ok(Outcome::done(format!("SELECT {rows}"), rows))
            }
            Err(e) => {
                self.state.lock().work = None;
                self.storage.remove_unfinished()?;
                Err(e)
            }
        }
    }

    /// Inserts the rows of a query into a new table.
    fn fill(&mut self, table: ObjectId, query: &Query) -> SqlResult<u64> {
        self.begin_work()?;
        let schema = self.state.lock().schema()?.clone();
        self.context.set_schema(&schema);
        self.declare(&schema, &query.executable.relations)?;
        let write = crate::statement::Write {
            kind: WriteKind::Insert,
            table: String::new(),
            executable: crate::statement::Executable::default(),
            on_conflict: None,
            returning: None,
        };
        self.begin_write(&write, &[])?;
        let state = self.state.clone();
        let mut insert = |row: &Row<'_>| {
            let values = (0..row.len()).map(|at| Ok(row.get(at)?.to_value()));
            let values = values.collect::<SqlResult<Vec<Value>>>()?;
            let mut state = state.lock();
            let target = crate::row_write::Target::find(&state, table)?;
            crate::row_write::insert(&mut state, &target, values)
        };
        let sink: &mut dyn RowSink = &mut insert;
        let done = self.step(&query.executable.sql, &[], sink).map(|_| ());
        let (rows, _) = self.finish_write(done)?;
        self.commit_work()?;
        Ok(rows)
    }

    fn create_index(
        &self,
        change: &mut SchemaChange<'_>,
        name: Option<&str>,
        table: &str,
        columns: &[String],
        unique: bool,
        text: &str,
    ) -> SqlResult<()> {
        let schema = self.storage.schema();
        let found = ddl::find_table(&schema.catalog, table)?;
        let id = found.id;
        change.block([id]);
        let is_empty = self.is_empty(found, &schema)?;
        let first = if is_empty { text } else { "" };
        self.change(first, |changes| {
            let mut table = TableDef::clone(ddl::find_table(changes.catalog(), table)?);
            let positions = ddl::index_columns(&table, columns)?;
            let name = match name {
                Some(name) => {
                    changes.take_name(name)?;
                    name.to_owned()
                }
                None => {
                    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
                    changes.free_name(&table.name, &columns, "idx")
                }
            };
            let index = ddl::new_index(changes, name, positions, unique, false, is_empty);
            table.indexes.push(index);
            table.version += 1;
            changes.put(Object::Table(Arc::new(table)));
            Ok(())
        })?;
        self.build_indexes(id, text)
    }

    /// Returns `true` if a table has no rows.
    fn is_empty(&self, table: &TableDef, schema: &Schema) -> SqlResult<bool> {
        let options = ReadOptions::default().keys_only(true);
        let mut iter = self
            .storage
            .db()
            .iter(schema.family(table.storage)?, &options)?;
        iter.seek_to_first()?;
        Ok(!iter.valid())
    }

    /// Builds the indexes of a table that are not ready. Commits to the table wait meanwhile. If an
    /// index cannot be built, it is removed.
    fn build_indexes(&self, id: ObjectId, text: &str) -> SqlResult<()> {
        let schema = self.storage.schema();
        let Some(table) = schema.catalog.table_by_id(id) else {
            return Ok(());
        };
        if table.indexes.iter().all(|index| index.is_ready) {
            return Ok(());
        }
        let built = self.fill_indexes(table, &schema);
        let mut changed = TableDef::clone(table);
        changed.version += 1;
        let statement = match &built {
            Ok(()) => {
                changed
                    .indexes
                    .iter_mut()
                    .for_each(|index| index.is_ready = true);
                text
            }
            Err(_) => {
                changed.remove_unready_indexes();
                ""
            }
        };
        self.install(
            statement,
            vec![(id, Some(Object::Table(Arc::new(changed))))],
        )?;
        built
    }

    fn fill_indexes(&self, table: &TableDef, schema: &Schema) -> SqlResult<()> {
        let layout = TableLayout::of(table);
        for (index, entries) in table.indexes.iter().zip(&layout.indexes) {
            if index.is_ready {
                continue;
            }
            let mut build = IndexBuild::new(&self.storage, schema, table, index);
            self.for_each_row(table, schema, |key, values, _| {
                let entry = entries.entry(&values, key)?;
                let value = match entry.is_unique {
                    true => Bytes::copy_from_slice(key),
                    false => Bytes::new(),
                };
                let text = || key_text(table, &index.columns, &values);
                let unique: Option<&dyn Fn() -> String> = match entry.is_unique {
                    true => Some(&text),
                    false => None,
                };
                build.add(Bytes::from(entry.key), value, unique)
            })?;
            build.finish()?;
        }
        Ok(())
    }

    /// Calls `each` with the key, the values and the encoded row of all rows of a table.
    fn for_each_row(
        &self,
        table: &TableDef,
        schema: &Schema,
        mut each: impl FnMut(&[u8], Vec<Value>, &[u8]) -> SqlResult<()>,
    ) -> SqlResult<()> {
        let family = schema.family(table.storage)?;
        let mut iter = self.storage.db().iter(family, &ReadOptions::default())?;
        iter.seek_to_first()?;
        while iter.valid() {
            self.state.lock().check_interrupt()?;
            each(iter.key(), row_values(table, iter.value())?, iter.value())?;
            iter.next()?;
        }
        Ok(())
    }

    /// Gives a table with rows a primary key: its rows, and the entries of its indexes, are written
    /// to new families under their new keys. Commits to the table wait meanwhile.
    fn add_primary_key(
        &self,
        table: &TableDef,
        constraint: &NewConstraint,
        text: &str,
    ) -> SqlResult<()> {
        let schema = self.storage.schema();
        let mut changes = Changes::new(&schema.catalog);
        let rekeyed = ddl::rekey(&mut changes, table, constraint)?;
        let (building, mut done) = (rekeyed.building, rekeyed.done);
        let building = Arc::new(building);
        self.install("", vec![(table.id, Some(Object::Table(building.clone())))])?;
        let schema = self.storage.schema();
        if let Err(e) = self.fill_rekeyed(&building, &done, &schema) {
            let mut undone = table.clone();
            undone.version = building.version + 1;
            self.install("", vec![(table.id, Some(Object::Table(Arc::new(undone))))])?;
            return Err(e);
        }
        done.version = building.version + 1;
        let mut installed = vec![(table.id, Some(Object::Table(Arc::new(done))))];
        installed.extend(table.row_sequence.map(|sequence| (sequence, None)));
        self.install(text, installed)
    }

    fn fill_rekeyed(&self, building: &TableDef, done: &TableDef, schema: &Schema) -> SqlResult<()> {
        let layout = TableLayout::of(done);
        let mut targets = building.indexes.iter().filter(|index| !index.is_ready);
        let mut new_build = || {
            let index = targets.next();
            let index =
                index.ok_or_else(|| SqlError::internal("a family for new keys is missing"))?;
            Ok::<_, SqlError>(IndexBuild::new(&self.storage, schema, building, index))
        };
        let mut rows = new_build()?;
        let builds = layout.indexes.iter().map(|_| new_build());
        let mut builds = builds.collect::<SqlResult<Vec<IndexBuild<'_>>>>()?;
        self.for_each_row(building, schema, |_, values, row| {
            for column in &done.primary_key {
                if values[usize::from(*column)].is_null() {
                    return Err(null_in_column(done, *column));
                }
            }
            let key = primary_key(&layout.key, &values, 0)?;
            for (build, entries) in builds.iter_mut().zip(&layout.indexes) {
                let entry = entries.entry(&values, &key)?;
                let value = match entry.is_unique {
                    true => Bytes::copy_from_slice(&key),
                    false => Bytes::new(),
                };
                build.add(Bytes::from(entry.key), value, None)?;
            }
            let text = || key_text(done, &done.primary_key, &values);
            rows.add(Bytes::from(key), Bytes::copy_from_slice(row), Some(&text))
        })?;
        builds.into_iter().try_for_each(IndexBuild::finish)?;
        rows.finish()
    }

    fn alter_table(
        &self,
        change: &mut SchemaChange<'_>,
        name: &str,
        alterations: &[crate::statement::AlterTable],
        text: &str,
    ) -> SqlResult<()> {
        let schema = self.storage.schema();
        let table = ddl::find_table(&schema.catalog, name)?.clone();
        // Foreign keys look at their parents, which must not lose rows meanwhile.
        let parents = alterations
            .iter()
            .filter_map(|alteration| match alteration {
                crate::statement::AlterTable::AddConstraint(new) => match &new.kind {
                    crate::statement::ConstraintKind::ForeignKey { parent, .. } => {
                        schema.catalog.table(parent).map(|parent| parent.id)
                    }
                    _ => None,
                },
                _ => None,
            });
        change.block(parents.chain([table.id]));
        let is_empty = self.is_empty(&table, &schema)?;
        if !is_empty
            && let [crate::statement::AlterTable::AddConstraint(new)] = alterations
            && matches!(new.kind, crate::statement::ConstraintKind::PrimaryKey(_))
        {
            return self.add_primary_key(&table, new, text);
        }
        let evaluate = |default: &str| {
            let query = format!("SELECT {default}");
            let row = self.state.lock().checker.row(&query, std::iter::empty())?;
            Ok(row.and_then(|mut row| row.pop()).unwrap_or_default())
        };
        let mut changes = Changes::new(&schema.catalog);
        let altered = ddl::alter_table(&mut changes, name, alterations, is_empty, &evaluate)?;
        let new = changes.table(table.id);
        let new = new.ok_or_else(|| SqlError::internal("an altered table is gone"))?;
        if !is_empty {
            self.check_rows(&new, &altered, &schema)?;
        }
        self.install(text, changes.finish())?;
        self.build_indexes(table.id, "")
    }

    /// Checks the rows of a table for what ALTER TABLE has made of its definition.
    fn check_rows(&self, table: &TableDef, altered: &Altered, schema: &Schema) -> SqlResult<()> {
        if *altered == Altered::default() {
            return Ok(());
        }
        let mut checked = table.clone();
        checked
            .checks
            .retain(|check| altered.checks.contains(&check.name));
        let (db, newest) = (self.storage.db(), ReadOptions::default());
        let mut iter = db.iter(schema.family(table.storage)?, &newest)?;
        iter.seek_to_first()?;
        while iter.valid() {
            let values = row_values(table, iter.value())?;
            let state = self.state.lock();
            state.check_interrupt()?;
            for column in &altered.not_null {
                if values[usize::from(*column)].is_null() {
                    return Err(null_in_column(table, *column));
                }
            }
            let holds = crate::row_write::check_constraints(&state, &checked, &values);
            holds.map_err(|e| violated_by_row(e, table))?;
            drop(state);
            for name in &altered.foreign_keys {
                let key = table.foreign_keys.iter().find(|key| key.name == *name);
                if let Some(key) = key {
                    crate::row_write::check_stored_parent(
                        schema, db, &newest, table, key, &values,
                    )?;
                }
            }
            iter.next()?;
        }
        Ok(())
    }

    /// TRUNCATE.
    pub(super) fn truncate(
        &mut self,
        tables: &[String],
        restart: bool,
        cascade: bool,
        text: &str,
    ) -> SqlResult<Outcome> {
        self.refuse_in_block("TRUNCATE")?;
        self.state.lock().work = None;
        let storage = self.storage.clone();
        let mut change = storage.begin_change();
        let schema = storage.schema();
        let mut changes = Changes::new(&schema.catalog);
        let truncated = ddl::truncate(&mut changes, tables, cascade)?;
        change.block(truncated.iter().map(|table| table.id));
        self.install(text, changes.finish())?;
        if restart {
            for object in schema.catalog.objects() {
                if let Object::Sequence(sequence) = object
                    && let Some((owner, column)) = sequence.owner
                    && let Some(table) = truncated.iter().find(|table| table.id == owner)
                    && usize::from(column) < table.columns.len()
                {
                    storage.set_sequence(sequence.id, Some(sequence.start))?;
                }
            }
            storage.committer().sync()?;
        }
        Ok(Outcome::done("TRUNCATE TABLE", 0))
    }
}

fn null_in_column(table: &TableDef, column: u16) -> SqlError {
    let column = &table.columns[usize::from(column)].name;
    SqlError::new(
        SqlState::NOT_NULL_VIOLATION,
        format!(
            "column \"{column}\" of relation \"{}\" contains null values",
            table.name
        ),
    )
}

/// Returns the command tag of a change of the catalog.
fn tag(ddl: &Ddl) -> &'static str {
    match ddl {
        Ddl::CreateTable(_) => "CREATE TABLE",
        Ddl::CreateTableAs { .. } => "CREATE TABLE AS",
        Ddl::DropTable(_) => "DROP TABLE",
        Ddl::CreateView { .. } => "CREATE VIEW",
        Ddl::DropView(_) => "DROP VIEW",
        Ddl::CreateIndex { .. } => "CREATE INDEX",
        Ddl::DropIndex(_) => "DROP INDEX",
        Ddl::CreateSequence { .. } => "CREATE SEQUENCE",
        Ddl::DropSequence(_) => "DROP SEQUENCE",
        Ddl::AlterTable { .. } => "ALTER TABLE",
        Ddl::Rename { .. } => "ALTER INDEX",
    }
}

/// Returns the error of ALTER TABLE for a stored row that does not fit a new CHECK.
fn violated_by_row(e: SqlError, table: &TableDef) -> SqlError {
    let Some(name) = e
        .constraint()
        .filter(|_| e.state() == SqlState::CHECK_VIOLATION)
    else {
        return e;
    };
    let message = format!(
        "check constraint \"{name}\" of relation \"{}\" is violated by some row",
        table.name
    );
    SqlError::new(SqlState::CHECK_VIOLATION, message)
        .with_table(&table.name)
        .with_constraint(name)
}
