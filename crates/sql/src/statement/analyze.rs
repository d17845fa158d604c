//! [`analyze`]: a parsed statement becomes a command.

use super::binder::Binder;
use super::command::{self, ExplainParts};
use super::name::{fold, user_name};
use super::parse::{ParsedStatement, Special};
use super::{Command, Ddl};
use crate::catalog::Catalog;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use sqlparser::ast::{self, SetExpr, Statement};

/// Checks a statement against a catalog and rewrites it for the executor.
///
/// `declared` has the types of parameters that the client gives; the others are inferred. Names
/// that are unknown fail with 42P01 or 42703, types that do not fit with 42804 or 42883, and what
/// is not supported with 0A000.
pub fn analyze(
    statement: &ParsedStatement,
    catalog: &Catalog,
    declared: &[Option<SqlType>],
) -> SqlResult<Command> {
    match statement.special() {
        Some(Special::Checkpoint) => return Ok(Command::Checkpoint),
        Some(Special::DeallocateAll) => return Ok(Command::Deallocate(None)),
        Some(Special::Nothing(tag)) => return Ok(Command::Nothing(tag)),
        None => {}
    }
    let Some(parsed) = statement.statement() else {
        return Ok(Command::Empty);
    };
    let mut binder = Binder::new(catalog, statement.places(), declared);
    binder.statement(parsed, statement)
}

impl Binder<'_> {
    fn statement(&mut self, ast: &Statement, parsed: &ParsedStatement) -> SqlResult<Command> {
        match ast {
            Statement::Query(query) => self.query_statement(query),
            Statement::Insert(insert) => Ok(Command::Write(self.insert(insert, "")?)),
            Statement::Update(update) => Ok(Command::Write(self.update(update, "")?)),
            Statement::Delete(delete) => Ok(Command::Write(self.delete(delete, "")?)),
            Statement::Explain {
                analyze,
                format,
                options,
                statement,
                query_plan,
                ..
            } => {
                if *query_plan {
                    return Err(SqlError::syntax("syntax error at or near \"QUERY\""));
                }
                let parts = ExplainParts {
                    analyze: *analyze,
                    format: format.as_ref(),
                    options: options.as_deref().unwrap_or(&[]),
                };
                let (analyze, json) = command::explain_flags(&parts)?;
                let command = self.deeper(|b| b.statement(statement, parsed))?;
                command::explain(command, analyze, json)
            }
            Statement::Copy {
                source,
                to,
                target,
                options,
                legacy_options,
                ..
            } => {
                let format = command::copy_format(options, legacy_options)?;
                self.copy(source, *to, target, format)
            }
            Statement::Prepare {
                name, data_types, ..
            } => command::prepare(name, data_types, parsed),
            Statement::Execute {
                name: Some(name),
                parameters,
                immediate: false,
                into,
                using,
                ..
            } if into.is_empty() && using.is_empty() => {
                let values = self.execute_values(parameters)?;
                Ok(Command::Execute {
                    name: user_name(name, &self.places)?,
                    values,
                })
            }
            Statement::Deallocate { name, .. } => Ok(match fold(name).as_str() {
                "all" => Command::Deallocate(None),
                _ => Command::Deallocate(Some(fold(name))),
            }),
            Statement::Set(set) => command::set(set),
            Statement::Reset(reset) => command::reset(&reset.reset),
            Statement::ShowVariable { variable } => Ok(command::show(variable)),
            Statement::Discard { object_type } => Ok(match object_type {
                ast::DiscardObject::ALL => Command::DiscardAll,
                ast::DiscardObject::PLANS => Command::Nothing("DISCARD PLANS"),
                ast::DiscardObject::SEQUENCES => Command::Nothing("DISCARD SEQUENCES"),
                ast::DiscardObject::TEMP => Command::Nothing("DISCARD TEMP"),
            }),
            Statement::Truncate(truncate) => self.truncate(truncate),
            _ => match transaction(ast)? {
                Some(command) => Ok(command),
                None => self.definition(ast, parsed),
            },
        }
    }

    fn query_statement(&mut self, query: &ast::Query) -> SqlResult<Command> {
        let plain = query.order_by.is_none()
            && query.limit_clause.is_none()
            && query.fetch.is_none()
            && query.locks.is_empty();
        let inner = match query.body.as_ref() {
            SetExpr::Insert(s) | SetExpr::Update(s) | SetExpr::Delete(s) if plain => s,
            _ => {
                return match self.query(query, None) {
                    Ok(bound) => Ok(Command::Query(self.finished(bound))),
                    Err(e) => self.empty_query(query).ok_or(e),
                };
            }
        };
        let with = match &query.with {
            Some(with) => self.with(with)?,
            None => String::new(),
        };
        match inner {
            Statement::Insert(insert) => Ok(Command::Write(self.insert(insert, &with)?)),
            Statement::Update(update) => Ok(Command::Write(self.update(update, &with)?)),
            Statement::Delete(delete) => Ok(Command::Write(self.delete(delete, &with)?)),
            _ => Err(SqlError::unsupported("this statement after WITH")),
        }
    }

    fn truncate(&mut self, truncate: &ast::Truncate) -> SqlResult<Command> {
        if truncate.partitions.is_some() || truncate.on_cluster.is_some() || truncate.if_exists {
            return Err(SqlError::unsupported("this clause of TRUNCATE"));
        }
        let mut tables = Vec::new();
        for target in &truncate.table_names {
            let name = user_name(&target.name, &self.places)?;
            if self.catalog.table(&name).is_none() {
                let message = match self.catalog.is_taken(&name) {
                    true => format!("\"{name}\" is not a table"),
                    false => format!("relation \"{name}\" does not exist"),
                };
                let state = match self.catalog.is_taken(&name) {
                    true => SqlState::WRONG_OBJECT_TYPE,
                    false => SqlState::UNDEFINED_TABLE,
                };
                return Err(SqlError::new(state, message));
            }
            tables.push(name);
        }
        Ok(Command::Truncate {
            tables,
            restart: matches!(
                truncate.identity,
                Some(ast::TruncateIdentityOption::Restart)
            ),
            cascade: matches!(truncate.cascade, Some(ast::CascadeOption::Cascade)),
        })
    }

    /// Returns the command of a statement that changes the catalog.
    fn definition(&mut self, ast: &Statement, parsed: &ParsedStatement) -> SqlResult<Command> {
        match ast {
            Statement::CreateTable(create) => self.create_table(create, parsed),
            Statement::CreateView(create) => self.create_view(create, parsed),
            Statement::CreateIndex(create) => self.create_index(create),
            Statement::CreateSequence {
                temporary: false,
                if_not_exists,
                name,
                sequence_options,
            } => self.create_sequence(name, *if_not_exists, sequence_options),
            Statement::CreateSequence { .. } => Err(SqlError::unsupported("a temporary sequence")),
            Statement::Drop {
                object_type,
                if_exists,
                names,
                cascade,
                purge,
                temporary,
                table,
                ..
            } => {
                if *purge || *temporary || table.is_some() {
                    return Err(SqlError::unsupported("this form of DROP"));
                }
                self.drop_objects(*object_type, names, *if_exists, *cascade)
            }
            Statement::AlterTable(alter) => self.alter_table(alter),
            Statement::AlterIndex { name, operation } => {
                let ast::AlterIndexOperation::RenameIndex { index_name } = operation;
                let from = user_name(name, &self.places)?;
                let to = user_name(index_name, &self.places)?;
                Ok(Command::Ddl(Ddl::Rename { from, to }))
            }
            Statement::AlterView(alter) => match &alter.operation {
                ast::AlterViewOperation::RenameTo { new_name } if !alter.materialized => {
                    let from = user_name(&alter.name, &self.places)?;
                    let to = user_name(new_name, &self.places)?;
                    Ok(Command::Ddl(Ddl::Rename { from, to }))
                }
                ast::AlterViewOperation::OwnerTo(_) => Ok(Command::Nothing("ALTER VIEW")),
                _ => Err(SqlError::unsupported("this form of ALTER VIEW")),
            },
            Statement::CreateSchema {
                schema_name,
                if_not_exists: true,
                ..
            } if schema_name.to_string().eq_ignore_ascii_case("public") => {
                Ok(Command::Nothing("CREATE SCHEMA"))
            }
            Statement::CreateSchema { .. } => {
                Err(SqlError::unsupported("a schema other than public"))
            }
            Statement::CreateExtension(extension) => match fold(&extension.name).as_str() {
                // What programs use of them is built in.
                "plpgsql" | "pgcrypto" => Ok(Command::Nothing("CREATE EXTENSION")),
                other => Err(SqlError::unsupported(format!("the extension {other}"))),
            },
            Statement::Comment { .. } => Ok(Command::Nothing("COMMENT")),
            Statement::Grant(_) => Ok(Command::Nothing("GRANT")),
            Statement::Revoke(_) => Ok(Command::Nothing("REVOKE")),
            Statement::AlterDefaultPrivileges(_) => {
                Ok(Command::Nothing("ALTER DEFAULT PRIVILEGES"))
            }
            Statement::Lock(_) | Statement::LockTables { .. } => {
                let error = SqlError::unsupported("LOCK TABLE");
                Err(error.with_hint("Use SELECT ... FOR UPDATE for rows that must not change."))
            }
            other => Err(SqlError::unsupported(first_words(&other.to_string()))),
        }
    }
}

/// Returns the command of transaction control.
fn transaction(ast: &Statement) -> SqlResult<Option<Command>> {
    Ok(Some(match ast {
        Statement::StartTransaction {
            modes,
            modifier,
            statements,
            exception,
            has_end_keyword,
            ..
        } => {
            let block = !statements.is_empty() || exception.is_some() || *has_end_keyword;
            if block || modifier.is_some() {
                return Err(SqlError::unsupported("this form of BEGIN"));
            }
            Command::Begin(command::transaction_mode(modes)?)
        }
        Statement::Commit {
            chain: false,
            modifier: None,
            ..
        } => Command::Commit,
        Statement::Rollback {
            chain: false,
            savepoint: None,
        } => Command::Rollback,
        Statement::Rollback {
            chain: false,
            savepoint: Some(name),
        } => Command::RollbackTo(fold(name)),
        Statement::Commit { .. } | Statement::Rollback { .. } => {
            return Err(SqlError::unsupported("AND CHAIN"));
        }
        Statement::Savepoint { name } => Command::Savepoint(fold(name)),
        Statement::ReleaseSavepoint { name } => Command::Release(fold(name)),
        _ => return Ok(None),
    }))
}

/// Returns the first two words of a statement, for a message.
fn first_words(text: &str) -> String {
    text.split_whitespace()
        .take(2)
        .collect::<Vec<_>>()
        .join(" ")
}
