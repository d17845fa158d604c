//! Statements that change the catalog.

use super::binder::{Binder, Category, Relation, Scope, Ty, VisibleColumn, category};
use super::data_type::{TypeName, type_name};
use super::name::{fold, qualified, quote, user_name};
use super::parse::{ParsedStatement, positioned, text_behind_as};
use super::{
    AlterTable, Command, ConstraintKind, CreateTable, Ddl, Drop, NewColumn, NewConstraint,
};
use crate::catalog::{ColumnDef, ForeignKeyAction};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use sqlparser::ast::{
    self, AlterColumnOperation, AlterTableOperation, ColumnOption, CreateTableOptions, Expr,
    GeneratedAs, IndexColumn, IndexType, ObjectType, SequenceOptions, TableConstraint,
};

impl Binder<'_> {
    /// Returns the command of CREATE TABLE.
    pub(super) fn create_table(
        &mut self,
        create: &ast::CreateTable,
        parsed: &ParsedStatement,
    ) -> SqlResult<Command> {
        refuse_table_options(create)?;
        let name = user_name(&create.name, &self.places)?;
        if create.query.is_some() {
            if !create.columns.is_empty() || !create.constraints.is_empty() {
                return Err(SqlError::unsupported(
                    "a list of columns in CREATE TABLE AS",
                ));
            }
            if create.with_data.as_ref().is_some_and(|w| !w.data) {
                return Err(SqlError::unsupported("WITH NO DATA"));
            }
            let mut query = text_behind_as(parsed.text())?;
            if create.with_data.is_some() {
                let end = query.to_uppercase().rfind("WITH").unwrap_or(query.len());
                query.truncate(end);
            }
            let query = query.trim().to_owned();
            self.check_query(&query)?;
            let if_not_exists = create.if_not_exists;
            return Ok(Command::Ddl(Ddl::CreateTableAs {
                name,
                if_not_exists,
                query,
            }));
        }
        if create.columns.is_empty() {
            return Err(SqlError::unsupported("a table without columns"));
        }
        let mut columns: Vec<NewColumn> = Vec::new();
        let mut names = std::collections::BTreeSet::new();
        let mut pending = Vec::new();
        for column in &create.columns {
            let new = self.new_column(column)?;
            let new_name = &new.column.name;
            if !names.insert(new_name.to_lowercase()) {
                let message = format!("column \"{new_name}\" specified more than once");
                let error = SqlError::new(SqlState::DUPLICATE_COLUMN, message);
                return Err(self.at(&column.name, error));
            }
            columns.push(new);
        }
        let visible: Vec<(String, SqlType)> = columns
            .iter()
            .map(|c| (c.column.name.clone(), c.column.ty))
            .collect();
        for column in &create.columns {
            pending.extend(self.column_constraints(&name, column, &visible)?);
        }
        for constraint in &create.constraints {
            pending.push(self.table_constraint(&name, constraint, &visible)?);
        }
        let mut keys = 0;
        for constraint in &pending {
            if let ConstraintKind::PrimaryKey(names) = &constraint.kind {
                keys += 1;
                for column in &mut columns {
                    column.column.not_null |= names.contains(&column.column.name);
                }
            }
        }
        if keys > 1 {
            let message = format!("multiple primary keys for table \"{name}\" are not allowed");
            return Err(SqlError::new(SqlState::INVALID_TABLE_DEFINITION, message));
        }
        Ok(Command::Ddl(Ddl::CreateTable(CreateTable {
            name,
            if_not_exists: create.if_not_exists,
            columns,
            constraints: pending,
        })))
    }

    /// Fails if a query in the text of a statement cannot be analysed, or has parameters.
    fn check_query(&mut self, text: &str) -> SqlResult<()> {
        let parsed = super::parse::parse(text)?;
        let [parsed] = &parsed[..] else {
            return Err(SqlError::internal("a query became several statements"));
        };
        match super::analyze(parsed, self.catalog, &[])? {
            Command::Query(query) if query.executable.parameters.is_empty() => Ok(()),
            Command::Query(_) => Err(SqlError::new(
                SqlState::UNDEFINED_PARAMETER,
                "there is no parameter $1",
            )),
            _ => Err(SqlError::unsupported("anything but a query after AS")),
        }
    }

    /// Returns the command of CREATE VIEW.
    pub(super) fn create_view(
        &mut self,
        create: &ast::CreateView,
        parsed: &ParsedStatement,
    ) -> SqlResult<Command> {
        let clauses = [
            (create.materialized, "a materialized view"),
            (create.temporary, "a temporary view"),
            (create.or_alter, "OR ALTER"),
            (create.if_not_exists, "IF NOT EXISTS of a view"),
            (create.to.is_some(), "TO of a view"),
            (create.comment.is_some(), "COMMENT of a view"),
            (create.with_no_schema_binding, "WITH NO SCHEMA BINDING"),
            (
                !matches!(create.options, CreateTableOptions::None),
                "options of a view",
            ),
        ];
        refuse(&clauses)?;
        let mut columns = Vec::new();
        for column in &create.columns {
            if column.data_type.is_some() || column.options.is_some() {
                return Err(SqlError::unsupported(
                    "types or options of a view's columns",
                ));
            }
            columns.push(fold(&column.name));
        }
        let query = text_behind_as(parsed.text())?;
        self.check_query(&query)?;
        Ok(Command::Ddl(Ddl::CreateView {
            name: user_name(&create.name, &self.places)?,
            or_replace: create.or_replace,
            columns,
            query,
        }))
    }

    /// Returns a new column with its type, NOT NULL and default.
    fn new_column(&mut self, column: &ast::ColumnDef) -> SqlResult<NewColumn> {
        let named = type_name(&column.data_type)?;
        let ty = named.column()?;
        let mut new = NewColumn {
            column: ColumnDef {
                name: fold(&column.name),
                ty,
                not_null: false,
                default: None,
                missing: None,
                sequence: None,
                always_generated: false,
                dropped: false,
            },
            serial: None,
        };
        if matches!(named, TypeName::Serial(_)) {
            new.serial = Some((1, 1));
            new.column.not_null = true;
        }
        for option in &column.options {
            match &option.option {
                ColumnOption::Null => {}
                ColumnOption::NotNull => new.column.not_null = true,
                ColumnOption::PrimaryKey(_) => new.column.not_null = true,
                ColumnOption::Default(expr) => {
                    if new.serial.is_some() {
                        let message = format!(
                            "multiple default values specified for column \"{}\"",
                            new.column.name
                        );
                        return Err(SqlError::syntax(message));
                    }
                    new.column.default = Some(self.default_of(&new.column, expr)?);
                }
                ColumnOption::Generated {
                    generated_as,
                    sequence_options,
                    generation_expr: None,
                    generation_expr_mode: None,
                    ..
                } => {
                    if !ty.is_integer() {
                        let message = "identity column type must be smallint, integer, or bigint";
                        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
                    }
                    let options = sequence_options.as_deref().unwrap_or(&[]);
                    new.serial = Some(sequence_numbers(options)?);
                    new.column.not_null = true;
                    new.column.always_generated = match generated_as {
                        GeneratedAs::Always => true,
                        GeneratedAs::ByDefault => false,
                        GeneratedAs::ExpStored => {
                            return Err(SqlError::unsupported("a generated column"));
                        }
                    };
                }
                ColumnOption::Generated { .. } => {
                    return Err(SqlError::unsupported("a generated column"));
                }
                ColumnOption::Unique(_) | ColumnOption::Check(_) | ColumnOption::ForeignKey(_) => {}
                ColumnOption::Collation(name) => {
                    let name = name.to_string().replace('"', "").to_lowercase();
                    if !matches!(&*name, "c" | "posix" | "default" | "pg_catalog.default") {
                        return Err(SqlError::unsupported(format!("the collation {name}")));
                    }
                }
                other => {
                    return Err(SqlError::unsupported(format!("the column option {other}")));
                }
            }
        }
        Ok(new)
    }

    /// Returns a default in the executor's dialect.
    fn default_of(&mut self, column: &ColumnDef, expr: &Expr) -> SqlResult<String> {
        let (subqueries, parameters) = (self.no_subqueries, self.no_parameters);
        self.no_subqueries = Some("a default");
        self.no_parameters = Some("a default");
        self.scopes.push(Scope {
            no_aggregates: Some("DEFAULT expressions"),
            no_windows: Some("DEFAULT expressions"),
            ..Scope::default()
        });
        let bound = self.expr(expr).and_then(|bound| self.assign(bound, column));
        self.scopes.pop();
        (self.no_subqueries, self.no_parameters) = (subqueries, parameters);
        bound
    }

    /// Returns the constraints that stand at a column.
    fn column_constraints(
        &mut self,
        table: &str,
        column: &ast::ColumnDef,
        visible: &[(String, SqlType)],
    ) -> SqlResult<Vec<NewConstraint>> {
        let own = vec![fold(&column.name)];
        let mut out = Vec::new();
        for option in &column.options {
            let name = option.name.as_ref().map(fold);
            let kind = match &option.option {
                ColumnOption::PrimaryKey(key) => {
                    refuse_deferrable(key.characteristics.as_ref())?;
                    ConstraintKind::PrimaryKey(own.clone())
                }
                ColumnOption::Unique(key) => {
                    refuse_unique(key)?;
                    ConstraintKind::Unique(own.clone())
                }
                ColumnOption::Check(check) => self.check(table, check, visible)?,
                ColumnOption::ForeignKey(key) => {
                    let mut kind = self.foreign_key(key)?;
                    if let ConstraintKind::ForeignKey { columns, .. } = &mut kind {
                        columns.clone_from(&own);
                    }
                    kind
                }
                _ => continue,
            };
            out.push(NewConstraint { name, kind });
        }
        Ok(out)
    }

    fn table_constraint(
        &mut self,
        table: &str,
        constraint: &TableConstraint,
        visible: &[(String, SqlType)],
    ) -> SqlResult<NewConstraint> {
        let (name, kind) = match constraint {
            TableConstraint::PrimaryKey(key) => {
                refuse_deferrable(key.characteristics.as_ref())?;
                if key.index_type.is_some() || !key.include.is_empty() {
                    return Err(SqlError::unsupported("options of a primary key's index"));
                }
                (
                    &key.name,
                    ConstraintKind::PrimaryKey(key_columns(&key.columns)?),
                )
            }
            TableConstraint::Unique(key) => {
                refuse_unique(key)?;
                (
                    &key.name,
                    ConstraintKind::Unique(key_columns(&key.columns)?),
                )
            }
            TableConstraint::Check(check) => (&check.name, self.check(table, check, visible)?),
            TableConstraint::ForeignKey(key) => (&key.name, self.foreign_key(key)?),
            other => return Err(SqlError::unsupported(format!("the constraint {other}"))),
        };
        if let ConstraintKind::PrimaryKey(columns) | ConstraintKind::Unique(columns) = &kind {
            for (at, column) in columns.iter().enumerate() {
                if !visible.iter().any(|(name, _)| name == column) {
                    let message = format!("column \"{column}\" named in key does not exist");
                    return Err(SqlError::new(SqlState::UNDEFINED_COLUMN, message));
                }
                if columns[..at].contains(column) {
                    let message = format!("column \"{column}\" appears twice in a key");
                    return Err(SqlError::new(SqlState::DUPLICATE_COLUMN, message));
                }
            }
        }
        Ok(NewConstraint {
            name: name.as_ref().map(fold),
            kind,
        })
    }

    fn check(
        &mut self,
        table: &str,
        check: &ast::CheckConstraint,
        visible: &[(String, SqlType)],
    ) -> SqlResult<ConstraintKind> {
        if check.enforced == Some(false) || check.no_inherit {
            return Err(SqlError::unsupported("NOT ENFORCED or NO INHERIT"));
        }
        let column = |(name, ty): &(String, SqlType)| VisibleColumn {
            name: name.clone(),
            sql: quote(name),
            ty: Ty::Sql(*ty),
            nullable: true,
            origin: None,
            relation: Some(0),
        };
        let columns: Vec<VisibleColumn> = visible.iter().map(column).collect();
        let relation = Relation {
            alias: table.to_owned(),
            emitted: table.to_owned(),
            columns: columns.clone(),
            table: None,
        };
        let scope = Scope {
            relations: vec![relation],
            visible: columns,
            no_aggregates: Some("check constraints"),
            no_windows: Some("check constraints"),
            ..Scope::default()
        };
        let (subqueries, parameters) = (self.no_subqueries, self.no_parameters);
        self.no_subqueries = Some("a CHECK constraint");
        self.no_parameters = Some("a CHECK constraint");
        self.scopes.push(scope);
        let bound = self.condition(&check.expr, "CHECK");
        let scope = self.scopes.pop().unwrap_or_default();
        (self.no_subqueries, self.no_parameters) = (subqueries, parameters);
        let bound = bound?;
        let used = |(name, _): &&(String, SqlType)| {
            let sql = quote(name);
            scope.ungrouped.iter().any(|(_, _, used, _)| *used == sql)
        };
        Ok(ConstraintKind::Check {
            expression: bound.sql,
            text: check.expr.to_string(),
            columns: visible
                .iter()
                .filter(used)
                .map(|(name, _)| name.clone())
                .collect(),
        })
    }

    fn foreign_key(&mut self, key: &ast::ForeignKeyConstraint) -> SqlResult<ConstraintKind> {
        refuse_deferrable(key.characteristics.as_ref())?;
        if let Some(kind) = &key.match_kind
            && kind.to_string().to_uppercase() != "MATCH SIMPLE"
        {
            return Err(SqlError::unsupported(kind));
        }
        let action = |action: Option<ast::ReferentialAction>| match action {
            None | Some(ast::ReferentialAction::Restrict | ast::ReferentialAction::NoAction) => {
                ForeignKeyAction::Restrict
            }
            Some(ast::ReferentialAction::Cascade) => ForeignKeyAction::Cascade,
            Some(ast::ReferentialAction::SetNull) => ForeignKeyAction::SetNull,
            Some(ast::ReferentialAction::SetDefault) => ForeignKeyAction::SetDefault,
        };
        Ok(ConstraintKind::ForeignKey {
            columns: key.columns.iter().map(fold).collect(),
            parent: user_name(&key.foreign_table, &self.places)?,
            parent_columns: key.referred_columns.iter().map(fold).collect(),
            on_delete: action(key.on_delete),
            on_update: action(key.on_update),
        })
    }

    /// Returns the command of CREATE INDEX.
    pub(super) fn create_index(&mut self, create: &ast::CreateIndex) -> SqlResult<Command> {
        let clauses = [
            (
                create.predicate.is_some(),
                "a partial index (WHERE in CREATE INDEX)",
            ),
            (!create.include.is_empty(), "INCLUDE in CREATE INDEX"),
            (!create.with.is_empty(), "WITH in CREATE INDEX"),
            (create.nulls_distinct == Some(false), "NULLS NOT DISTINCT"),
            (create.r#async, "ASYNC"),
            (!create.alter_options.is_empty(), "options of CREATE INDEX"),
        ];
        refuse(&clauses)?;
        for method in create
            .using
            .iter()
            .chain(create.index_options.iter().filter_map(|o| match o {
                ast::IndexOption::Using(method) => Some(method),
                ast::IndexOption::Comment(_) => None,
            }))
        {
            if *method != IndexType::BTree {
                return Err(SqlError::unsupported(format!("the index method {method}")));
            }
        }
        Ok(Command::Ddl(Ddl::CreateIndex {
            name: create
                .name
                .as_ref()
                .map(|n| user_name(n, &self.places))
                .transpose()?,
            table: user_name(&create.table_name, &self.places)?,
            columns: key_columns(&create.columns)?,
            unique: create.unique,
            if_not_exists: create.if_not_exists,
        }))
    }

    /// Returns the command of DROP.
    pub(super) fn drop_objects(
        &mut self,
        kind: ObjectType,
        names: &[ast::ObjectName],
        if_exists: bool,
        cascade: bool,
    ) -> SqlResult<Command> {
        let mut out = Vec::new();
        if matches!(
            kind,
            ObjectType::Table | ObjectType::View | ObjectType::Index | ObjectType::Sequence
        ) {
            for name in names {
                out.push(user_name(name, &self.places)?);
            }
        }
        let drop = Drop {
            names: out,
            if_exists,
            cascade,
        };
        Ok(Command::Ddl(match kind {
            ObjectType::Table => Ddl::DropTable(drop),
            ObjectType::View => Ddl::DropView(drop),
            ObjectType::Index => Ddl::DropIndex(drop),
            ObjectType::Sequence => Ddl::DropSequence(drop),
            other => return Err(SqlError::unsupported(format!("DROP {other}"))),
        }))
    }

    /// Returns the command of CREATE SEQUENCE.
    pub(super) fn create_sequence(
        &mut self,
        name: &ast::ObjectName,
        if_not_exists: bool,
        options: &[SequenceOptions],
    ) -> SqlResult<Command> {
        let (start, increment) = sequence_numbers(options)?;
        let name = user_name(name, &self.places)?;
        Ok(Command::Ddl(Ddl::CreateSequence {
            name,
            if_not_exists,
            start,
            increment,
        }))
    }

    /// Returns the command of ALTER TABLE.
    pub(super) fn alter_table(&mut self, alter: &ast::AlterTable) -> SqlResult<Command> {
        if alter.location.is_some() || alter.on_cluster.is_some() || alter.table_type.is_some() {
            return Err(SqlError::unsupported("this form of ALTER TABLE"));
        }
        let found = qualified(&alter.name, &self.places)?;
        let table = user_name(&alter.name, &self.places)?;
        let if_exists = alter.if_exists;
        // ALTER TABLE also renames views, sequences and indexes, as in PostgreSQL.
        if let [AlterTableOperation::RenameTable { table_name }] = &alter.operations[..]
            && self.catalog.table(&table).is_none()
            && self.catalog.is_taken(&table)
        {
            return self.rename(table, table_name);
        }
        let Some(definition) = self.catalog.table(&table).cloned() else {
            if if_exists {
                return Ok(Command::Ddl(Ddl::AlterTable {
                    table,
                    if_exists,
                    changes: Vec::new(),
                }));
            }
            let (state, message) = match self.catalog.is_taken(&table) {
                true => (
                    SqlState::WRONG_OBJECT_TYPE,
                    format!("\"{table}\" is not a table"),
                ),
                false => (
                    SqlState::UNDEFINED_TABLE,
                    format!("relation \"{table}\" does not exist"),
                ),
            };
            return Err(positioned(SqlError::new(state, message), found.position));
        };
        let mut columns: Vec<ColumnDef> = definition.visible().map(|(_, c)| c.clone()).collect();
        let mut changes = Vec::new();
        for operation in &alter.operations {
            self.alter_operation(&table, operation, &mut columns, &mut changes)?;
        }
        Ok(Command::Ddl(Ddl::AlterTable {
            table,
            if_exists,
            changes,
        }))
    }

    fn rename(&mut self, from: String, to: &ast::RenameTableNameKind) -> SqlResult<Command> {
        let (ast::RenameTableNameKind::As(to) | ast::RenameTableNameKind::To(to)) = to;
        let to = user_name(to, &self.places)?;
        Ok(Command::Ddl(Ddl::Rename { from, to }))
    }

    fn alter_operation(
        &mut self,
        table: &str,
        operation: &AlterTableOperation,
        columns: &mut Vec<ColumnDef>,
        changes: &mut Vec<AlterTable>,
    ) -> SqlResult<()> {
        use AlterTableOperation as Op;
        let cascades = |behavior: &Option<ast::DropBehavior>| {
            matches!(behavior, Some(ast::DropBehavior::Cascade))
        };
        let visible = |columns: &[ColumnDef]| -> Vec<(String, SqlType)> {
            columns.iter().map(|c| (c.name.clone(), c.ty)).collect()
        };
        match operation {
            Op::AddConstraint {
                not_valid: true, ..
            } => {
                return Err(SqlError::unsupported("NOT VALID"));
            }
            Op::AddConstraint { constraint, .. } => {
                let new = self.table_constraint(table, constraint, &visible(columns))?;
                changes.push(AlterTable::AddConstraint(new));
            }
            Op::AddColumn {
                if_not_exists,
                column_def,
                column_position: None,
                ..
            } => {
                let new = self.new_column(column_def)?;
                if !columns.iter().any(|c| c.name == new.column.name) {
                    columns.push(new.column.clone());
                }
                let constraints = self.column_constraints(table, column_def, &visible(columns))?;
                changes.push(AlterTable::AddColumn {
                    column: Box::new(new),
                    if_not_exists: *if_not_exists,
                    constraints,
                });
            }
            Op::DropColumn {
                column_names,
                if_exists,
                drop_behavior,
                ..
            } => {
                for name in column_names {
                    let name = fold(name);
                    columns.retain(|c| c.name != name);
                    let (if_exists, cascade) = (*if_exists, cascades(drop_behavior));
                    changes.push(AlterTable::DropColumn {
                        name,
                        if_exists,
                        cascade,
                    });
                }
            }
            Op::DropConstraint {
                if_exists,
                name,
                drop_behavior,
            } => {
                changes.push(AlterTable::DropConstraint {
                    name: fold(name),
                    if_exists: *if_exists,
                    cascade: cascades(drop_behavior),
                });
            }
            Op::RenameColumn {
                old_column_name,
                new_column_name,
            } => {
                let (from, to) = (fold(old_column_name), fold(new_column_name));
                for column in columns.iter_mut().filter(|c| c.name == from) {
                    column.name.clone_from(&to);
                }
                changes.push(AlterTable::RenameColumn { from, to });
            }
            Op::RenameTable {
                table_name: ast::RenameTableNameKind::As(name) | ast::RenameTableNameKind::To(name),
            } => changes.push(AlterTable::RenameTable(user_name(name, &self.places)?)),
            Op::RenameConstraint { old_name, new_name } => {
                let (from, to) = (fold(old_name), fold(new_name));
                changes.push(AlterTable::RenameConstraint { from, to });
            }
            Op::AlterColumn { column_name, op } => {
                let change = self.alter_column(table, column_name, op, columns)?;
                changes.push(change);
            }
            Op::OwnerTo { .. } | Op::ReplicaIdentity { .. } | Op::ValidateConstraint { .. } => {
                changes.push(AlterTable::Nothing);
            }
            other => return Err(SqlError::unsupported(format!("ALTER TABLE {other}"))),
        }
        Ok(())
    }

    fn alter_column(
        &mut self,
        table: &str,
        ident: &ast::Ident,
        op: &AlterColumnOperation,
        columns: &[ColumnDef],
    ) -> SqlResult<AlterTable> {
        let column = fold(ident);
        let found = columns.iter().find(|c| c.name == column);
        let definition = found.ok_or_else(|| {
            let message = format!("column \"{column}\" of relation \"{table}\" does not exist");
            self.at(ident, SqlError::new(SqlState::UNDEFINED_COLUMN, message))
        })?;
        Ok(match op {
            AlterColumnOperation::SetNotNull => AlterTable::SetNotNull {
                column,
                not_null: true,
            },
            AlterColumnOperation::DropNotNull => AlterTable::SetNotNull {
                column,
                not_null: false,
            },
            AlterColumnOperation::SetDefault { value } => {
                let default = Some(self.default_of(definition, value)?);
                AlterTable::SetDefault { column, default }
            }
            AlterColumnOperation::DropDefault => AlterTable::SetDefault {
                column,
                default: None,
            },
            AlterColumnOperation::SetDataType {
                data_type, using, ..
            } => {
                let ty = type_name(data_type)?.column()?;
                if let Some(using) = using
                    && !is_plain_cast(using, &column)
                {
                    return Err(SqlError::unsupported("USING with an expression"));
                }
                let (from, to) = (category(Ty::Sql(definition.ty)), category(Ty::Sql(ty)));
                if using.is_none() && from != to && to != Some(Category::Text) {
                    let message =
                        format!("column \"{column}\" cannot be cast automatically to type {ty}");
                    let error = SqlError::new(SqlState::DATATYPE_MISMATCH, message);
                    let hint = format!("You might need to specify \"USING {column}::{ty}\".");
                    return Err(error.with_hint(hint));
                }
                AlterTable::SetType { column, ty }
            }
            other => return Err(SqlError::unsupported(format!("ALTER COLUMN {other}"))),
        })
    }
}

/// Returns `true` for `column` and `column::type`, which a change of type does by itself.
fn is_plain_cast(expr: &Expr, column: &str) -> bool {
    match expr {
        Expr::Identifier(ident) => fold(ident) == column,
        Expr::Cast { expr, .. } => is_plain_cast(expr, column),
        Expr::Nested(inner) => is_plain_cast(inner, column),
        _ => false,
    }
}

fn refuse(clauses: &[(bool, &str)]) -> SqlResult<()> {
    match clauses.iter().find(|(given, _)| *given) {
        Some((_, what)) => Err(SqlError::unsupported(what)),
        None => Ok(()),
    }
}

fn refuse_deferrable(characteristics: Option<&ast::ConstraintCharacteristics>) -> SqlResult<()> {
    let Some(c) = characteristics else {
        return Ok(());
    };
    let deferred = matches!(c.initially, Some(ast::DeferrableInitial::Deferred));
    match c.deferrable == Some(true) || deferred || c.enforced == Some(false) {
        true => Err(SqlError::unsupported(
            "a DEFERRABLE or NOT ENFORCED constraint",
        )),
        false => Ok(()),
    }
}

fn refuse_unique(key: &ast::UniqueConstraint) -> SqlResult<()> {
    refuse_deferrable(key.characteristics.as_ref())?;
    let distinct = !matches!(key.nulls_distinct, ast::NullsDistinctOption::NotDistinct);
    match distinct && key.include.is_empty() && key.index_type.is_none() {
        true => Ok(()),
        false => Err(SqlError::unsupported(
            "NULLS NOT DISTINCT, INCLUDE or an index method",
        )),
    }
}

/// Returns the columns of a key or an index. All orders are accepted: an index is read both ways.
fn key_columns(columns: &[IndexColumn]) -> SqlResult<Vec<String>> {
    let mut out = Vec::new();
    for column in columns {
        if let Some(class) = &column.operator_class
            && !class.to_string().to_lowercase().ends_with("_ops")
        {
            return Err(SqlError::unsupported(format!("the operator class {class}")));
        }
        match &column.column.expr {
            Expr::Identifier(ident) => out.push(fold(ident)),
            _ => return Err(SqlError::unsupported("an index of an expression")),
        }
    }
    Ok(out)
}

/// Returns the first value and the increment of a sequence.
fn sequence_numbers(options: &[SequenceOptions]) -> SqlResult<(i64, i64)> {
    let (mut start, mut increment) = (None, 1);
    let whole = |expr: &Expr| -> SqlResult<i64> {
        let text = expr.to_string().replace(' ', "");
        text.parse()
            .map_err(|_| SqlError::syntax(format!("\"{text}\" is not an integer")))
    };
    for option in options {
        match option {
            SequenceOptions::StartWith(expr, _) => start = Some(whole(expr)?),
            SequenceOptions::IncrementBy(expr, _) => increment = whole(expr)?,
            SequenceOptions::Cache(_)
            | SequenceOptions::MinValue(None)
            | SequenceOptions::MaxValue(None)
            | SequenceOptions::OwnedBy(_) => {}
            SequenceOptions::DataType(data_type) => {
                // The column that takes the values refuses those that are too large.
                let ty = type_name(data_type)?.column()?;
                if !ty.is_integer() {
                    return Err(SqlError::new(
                        SqlState::INVALID_PARAMETER_VALUE,
                        "sequence type must be smallint, integer, or bigint",
                    ));
                }
            }
            // The parser has `true` for NO CYCLE.
            SequenceOptions::Cycle(no) if *no => {}
            SequenceOptions::MinValue(Some(expr)) if whole(expr)? == 1 => {}
            other => {
                return Err(SqlError::unsupported(format!(
                    "the option{other} of a sequence"
                )));
            }
        }
    }
    if increment == 0 {
        let message = "INCREMENT must not be zero";
        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
    }
    Ok((
        start.unwrap_or(if increment > 0 { 1 } else { -1 }),
        increment,
    ))
}

fn refuse_table_options(create: &ast::CreateTable) -> SqlResult<()> {
    let clauses = [
        (
            create.temporary || create.global.is_some(),
            "a temporary table",
        ),
        (create.unlogged, "an unlogged table"),
        (create.or_replace, "OR REPLACE of a table"),
        (
            create.external || create.dynamic || create.iceberg,
            "this kind of table",
        ),
        (
            create.transient || create.volatile || create.snapshot,
            "this kind of table",
        ),
        (create.like.is_some(), "LIKE in CREATE TABLE"),
        (create.clone.is_some(), "CLONE"),
        (create.inherits.is_some(), "INHERITS"),
        (create.partition_by.is_some(), "PARTITION BY"),
        (create.partition_of.is_some(), "PARTITION OF"),
        (create.for_values.is_some(), "FOR VALUES"),
        (create.on_commit.is_some(), "ON COMMIT"),
        (create.comment.is_some(), "COMMENT of a table"),
        (
            create.primary_key.is_some() || create.order_by.is_some(),
            "this form of a key",
        ),
        (
            create.cluster_by.is_some() || create.clustered_by.is_some(),
            "CLUSTER BY",
        ),
        (
            create.location.is_some() || create.file_format.is_some(),
            "a location of a table",
        ),
        (
            !create.sqlite_table_options.options.is_empty(),
            "WITHOUT ROWID or STRICT",
        ),
        (create.version.is_some(), "a version of a table"),
        (
            !has_harmless_options(&create.table_options),
            "storage parameters of a table",
        ),
    ];
    refuse(&clauses)
}

/// Returns `true` for no storage parameters, and for those that only advise PostgreSQL's storage.
fn has_harmless_options(options: &CreateTableOptions) -> bool {
    let options = match options {
        CreateTableOptions::None => return true,
        CreateTableOptions::With(options) => options,
        _ => return false,
    };
    options.iter().all(|option| match option {
        ast::SqlOption::KeyValue { key, .. } => {
            let key = key.to_string().to_lowercase();
            key == "fillfactor" || key.starts_with("autovacuum_")
        }
        _ => false,
    })
}
