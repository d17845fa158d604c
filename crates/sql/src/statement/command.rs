//! Commands on sessions and transactions, COPY and EXPLAIN.

use super::binder::{Binder, Scope};
use super::data_type::type_name;
use super::expr::text_of;
use super::name::{fold, quote, user_name};
use super::parse::{self, ParsedStatement};
use super::{Command, Copy, CopyFormat, CopySource, Explain, TransactionMode, analyze};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use sqlparser::ast::{
    self, AnalyzeFormat, AnalyzeFormatKind, ContextModifier, CopyLegacyCsvOption, CopyLegacyOption,
    CopyOption, CopyTarget, Expr, Ident, Reset, Set, TransactionIsolationLevel, UtilityOption,
};

/// Returns what BEGIN and SET TRANSACTION set. All isolation levels up to REPEATABLE READ are
/// snapshot isolation.
pub(super) fn transaction_mode(modes: &[ast::TransactionMode]) -> SqlResult<TransactionMode> {
    let mut out = TransactionMode::default();
    for mode in modes {
        match mode {
            ast::TransactionMode::AccessMode(mode) => {
                out.read_only = Some(*mode == ast::TransactionAccessMode::ReadOnly);
            }
            ast::TransactionMode::IsolationLevel(TransactionIsolationLevel::Serializable) => {
                let error = SqlError::unsupported("the isolation level SERIALIZABLE");
                let hint = "Use REPEATABLE READ, and SELECT ... FOR UPDATE for rows that are read \
                            and must not change.";
                return Err(error.with_hint(hint));
            }
            ast::TransactionMode::IsolationLevel(_) => {}
        }
    }
    Ok(out)
}

fn set_value(values: &[Expr]) -> SqlResult<Option<String>> {
    let mut out = Vec::new();
    for value in values {
        out.push(match value {
            Expr::Identifier(ident) if ident.quote_style.is_some() => ident.value.clone(),
            Expr::Identifier(ident) if ident.value.eq_ignore_ascii_case("default") => {
                return Ok(None);
            }
            Expr::Identifier(ident) => ident.value.to_lowercase(),
            Expr::Value(value) => match (text_of(&value.value), &value.value) {
                (Some(text), _) => text.to_owned(),
                (None, ast::Value::Number(digits, _)) => digits.clone(),
                (None, ast::Value::Boolean(yes)) => if *yes { "on" } else { "off" }.to_string(),
                (None, other) => {
                    return Err(SqlError::syntax(format!(
                        "syntax error at or near \"{other}\""
                    )));
                }
            },
            Expr::UnaryOp {
                op: ast::UnaryOperator::Minus,
                expr,
            } => format!("-{expr}"),
            other => {
                return Err(SqlError::syntax(format!(
                    "syntax error at or near \"{other}\""
                )));
            }
        });
    }
    Ok(Some(out.join(", ")))
}

/// Returns the command of SET.
pub(super) fn set(set: &Set) -> SqlResult<Command> {
    Ok(match set {
        Set::SingleAssignment {
            scope,
            hivevar: false,
            variable,
            values,
        } => {
            if *scope == Some(ContextModifier::Global) {
                return Err(SqlError::syntax("syntax error at or near \"GLOBAL\""));
            }
            let name = variable.to_string().replace('"', "").to_lowercase();
            let local = *scope == Some(ContextModifier::Local);
            if matches!(
                &*name,
                "transaction_isolation" | "default_transaction_isolation"
            ) {
                let value = set_value(values)?.unwrap_or_default();
                if value.eq_ignore_ascii_case("serializable") {
                    let level = TransactionIsolationLevel::Serializable;
                    transaction_mode(&[ast::TransactionMode::IsolationLevel(level)])?;
                }
                return Ok(Command::Set {
                    name,
                    value: Some(value.to_lowercase()),
                    local,
                });
            }
            Command::Set {
                name,
                value: set_value(values)?,
                local,
            }
        }
        Set::SetTimeZone { local, value } => {
            let value = set_value(std::slice::from_ref(value))?;
            let value = value.filter(|v| v != "local");
            Command::Set {
                name: "timezone".to_string(),
                value,
                local: *local,
            }
        }
        Set::SetNames {
            charset_name,
            collation_name: None,
        } => Command::Set {
            name: "client_encoding".to_string(),
            value: Some(charset_name.value.clone()),
            local: false,
        },
        Set::SetNamesDefault {} => Command::Set {
            name: "client_encoding".to_string(),
            value: None,
            local: false,
        },
        Set::SetTransaction {
            modes,
            snapshot: None,
            session: false,
        } => Command::SetTransaction(transaction_mode(modes)?),
        Set::SetTransaction {
            modes,
            snapshot: None,
            session: true,
        } => match transaction_mode(modes)?.read_only {
            None => Command::Nothing("SET"),
            Some(read_only) => Command::Set {
                name: "default_transaction_read_only".to_string(),
                value: Some(if read_only { "on" } else { "off" }.to_string()),
                local: false,
            },
        },
        Set::SetTransaction { .. } => {
            return Err(SqlError::unsupported("SET TRANSACTION SNAPSHOT"));
        }
        Set::SetRole {
            role_name: None, ..
        } => Command::Nothing("SET"),
        Set::SetRole { .. } => return Err(SqlError::unsupported("SET ROLE")),
        other => return Err(SqlError::unsupported(format!("{other}"))),
    })
}

/// Returns the command of RESET.
pub(super) fn reset(reset: &Reset) -> SqlResult<Command> {
    let name = match reset {
        Reset::ALL => "all".to_string(),
        Reset::SessionAuthorization => return Ok(Command::Nothing("RESET")),
        Reset::ConfigurationParameter(name) => name.to_string().replace('"', "").to_lowercase(),
    };
    Ok(Command::Set {
        name,
        value: None,
        local: false,
    })
}

/// Returns the command of SHOW.
pub(super) fn show(variable: &[Ident]) -> Command {
    let words: Vec<String> = variable.iter().map(|i| i.value.to_lowercase()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Command::Show(match words[..] {
        ["transaction", "isolation", "level"] => "transaction_isolation".to_string(),
        ["time", "zone"] => "timezone".to_string(),
        ["session", "authorization"] => "session_authorization".to_string(),
        _ => words.join("."),
    })
}

/// Returns the command of PREPARE.
pub(super) fn prepare(
    name: &Ident,
    types: &[ast::DataType],
    parsed: &ParsedStatement,
) -> SqlResult<Command> {
    let mut declared = Vec::new();
    for ty in types {
        declared.push(type_name(ty)?.column()?);
    }
    let statement = parse::text_behind_as(parsed.text())?;
    Ok(Command::Prepare {
        name: fold(name),
        types: declared,
        statement,
    })
}

fn is_on(option: &UtilityOption) -> SqlResult<bool> {
    let Some(argument) = &option.arg else {
        return Ok(true);
    };
    match argument.to_string().to_lowercase().trim_matches('\'') {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        other => {
            let message = format!("{} requires a Boolean value, not \"{other}\"", option.name);
            Err(SqlError::syntax(message))
        }
    }
}

impl Binder<'_> {
    /// Returns the values of EXECUTE as expressions without columns.
    pub(super) fn execute_values(&mut self, values: &[Expr]) -> SqlResult<Vec<String>> {
        self.no_parameters = Some("EXECUTE");
        self.no_subqueries = Some("EXECUTE");
        let clause = "EXECUTE parameters";
        self.scopes.push(Scope {
            no_aggregates: Some(clause),
            no_windows: Some(clause),
            ..Scope::default()
        });
        values
            .iter()
            .map(|value| Ok(self.value(value)?.sql))
            .collect()
    }
}

/// The parts of EXPLAIN.
pub(super) struct ExplainParts<'a> {
    pub(super) analyze: bool,
    pub(super) format: Option<&'a AnalyzeFormatKind>,
    pub(super) options: &'a [UtilityOption],
}

/// Returns the flags of EXPLAIN: ANALYZE and FORMAT JSON.
pub(super) fn explain_flags(parts: &ExplainParts<'_>) -> SqlResult<(bool, bool)> {
    let (mut analyze, mut json) = (parts.analyze, false);
    if let Some(AnalyzeFormatKind::Keyword(format) | AnalyzeFormatKind::Assignment(format)) =
        parts.format
    {
        json = match format {
            AnalyzeFormat::JSON => true,
            AnalyzeFormat::TEXT => false,
            other => {
                return Err(SqlError::unsupported(format!(
                    "EXPLAIN with FORMAT {other}"
                )));
            }
        };
    }
    for option in parts.options {
        match option.name.value.to_lowercase().as_str() {
            "analyze" => analyze = is_on(option)?,
            "format" => {
                let format = option.arg.as_ref().map(|a| a.to_string().to_lowercase());
                json = match format.as_deref().map(|f| f.trim_matches('\'')) {
                    Some("json") => true,
                    Some("text") => false,
                    other => {
                        let display = other.unwrap_or("nothing");
                        return Err(SqlError::unsupported(format!(
                            "EXPLAIN with FORMAT {display}"
                        )));
                    }
                };
            }
            // What they add is not in the answer in any case.
            "verbose" | "costs" | "buffers" | "timing" | "summary" | "settings" | "wal" => {
                is_on(option)?;
            }
            other => {
                let message = format!("unrecognized EXPLAIN option \"{other}\"");
                return Err(SqlError::syntax(message));
            }
        }
    }
    Ok((analyze, json))
}

/// Returns EXPLAIN of a command, which must be a query or a write.
pub(super) fn explain(command: Command, analyze: bool, json: bool) -> SqlResult<Command> {
    match command {
        Command::Query(_) | Command::Write(_) => {
            let statement = Box::new(command);
            Ok(Command::Explain(Explain {
                analyze,
                json,
                statement,
            }))
        }
        _ => Err(SqlError::unsupported(
            "EXPLAIN of anything but a query or a write",
        )),
    }
}

fn one_byte(c: char, what: &str) -> SqlResult<u8> {
    match u8::try_from(c)
        .ok()
        .filter(|b| b.is_ascii() && *b != b'\n' && *b != b'\r')
    {
        Some(byte) => Ok(byte),
        None => {
            let message = format!("COPY {what} must be a single one-byte character");
            Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message))
        }
    }
}

/// Returns the format of a COPY.
pub(super) fn copy_format(
    options: &[CopyOption],
    legacy: &[CopyLegacyOption],
) -> SqlResult<CopyFormat> {
    let mut csv = false;
    for option in options {
        if let CopyOption::Format(name) = option {
            csv = match name.value.to_lowercase().as_str() {
                "csv" => true,
                "text" => false,
                other => return Err(SqlError::unsupported(format!("COPY in the format {other}"))),
            };
        }
    }
    csv |= legacy.iter().any(|o| matches!(o, CopyLegacyOption::Csv(_)));
    let mut format = CopyFormat {
        csv,
        delimiter: if csv { b',' } else { b'\t' },
        null: if csv {
            String::new()
        } else {
            "\\N".to_string()
        },
        header: false,
        quote: b'"',
        escape: 0,
    };
    let (mut escape, mut quoted) = (None, false);
    for option in options {
        match option {
            CopyOption::Format(_) | CopyOption::Freeze(_) => {}
            CopyOption::Delimiter(c) => format.delimiter = one_byte(*c, "delimiter")?,
            CopyOption::Null(text) => format.null.clone_from(text),
            CopyOption::Header(yes) => format.header = *yes,
            CopyOption::Quote(c) => (format.quote, quoted) = (one_byte(*c, "quote")?, true),
            CopyOption::Escape(c) => escape = Some(one_byte(*c, "escape")?),
            CopyOption::Encoding(name)
                if matches!(name.to_lowercase().as_str(), "utf8" | "utf-8" | "unicode") => {}
            other => return Err(SqlError::unsupported(format!("the COPY option {other}"))),
        }
    }
    for option in legacy {
        match option {
            CopyLegacyOption::Delimiter(c) => format.delimiter = one_byte(*c, "delimiter")?,
            CopyLegacyOption::Null(text) => format.null.clone_from(text),
            CopyLegacyOption::Header => format.header = true,
            CopyLegacyOption::Csv(options) => {
                for option in options {
                    match option {
                        CopyLegacyCsvOption::Header => format.header = true,
                        CopyLegacyCsvOption::Quote(c) => {
                            (format.quote, quoted) = (one_byte(*c, "quote")?, true);
                        }
                        CopyLegacyCsvOption::Escape(c) => {
                            escape = Some(one_byte(*c, "escape")?);
                        }
                        other => {
                            let what = format!("the COPY option {other}");
                            return Err(SqlError::unsupported(what));
                        }
                    }
                }
            }
            other => return Err(SqlError::unsupported(format!("the COPY option {other}"))),
        }
    }
    if !csv && (quoted || escape.is_some()) {
        let message = "COPY QUOTE and ESCAPE require CSV mode";
        return Err(SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, message));
    }
    if format.delimiter == format.quote && csv {
        let message = "COPY delimiter and quote must be different";
        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
    }
    format.escape = escape.unwrap_or(format.quote);
    Ok(format)
}

impl Binder<'_> {
    /// Returns the command of COPY.
    pub(super) fn copy(
        &mut self,
        source: &ast::CopySource,
        to: bool,
        target: &CopyTarget,
        format: CopyFormat,
    ) -> SqlResult<Command> {
        match (target, to) {
            (CopyTarget::Stdin, false) | (CopyTarget::Stdout, true) => {}
            (CopyTarget::File { .. }, _) => {
                let message = "permission denied to COPY to or from a file";
                let error = SqlError::new(SqlState::INSUFFICIENT_PRIVILEGE, message);
                return Err(error.with_hint("Use COPY FROM STDIN or COPY TO STDOUT."));
            }
            (CopyTarget::Program { .. }, _) => {
                let message = "permission denied to COPY to or from an external program";
                return Err(SqlError::new(SqlState::INSUFFICIENT_PRIVILEGE, message));
            }
            _ => {
                return Err(SqlError::syntax(
                    "COPY FROM needs STDIN, and COPY TO needs STDOUT",
                ));
            }
        }
        let (table_name, columns) = match source {
            ast::CopySource::Query(query) => {
                if !to {
                    return Err(SqlError::syntax("COPY of a query is TO STDOUT alone"));
                }
                let bound = self.query(query, None)?;
                let source = CopySource::Query(Box::new(self.finished(bound)));
                return Ok(Command::Copy(Copy {
                    source,
                    from_client: false,
                    format,
                }));
            }
            ast::CopySource::Table {
                table_name,
                columns,
            } => (table_name, columns),
        };
        let name = user_name(table_name, &self.places)?;
        let Some(table) = self.catalog.table(&name).cloned() else {
            let (state, message) = match self.catalog.is_taken(&name) {
                true => (
                    SqlState::WRONG_OBJECT_TYPE,
                    format!("cannot copy \"{name}\": no table"),
                ),
                false => (
                    SqlState::UNDEFINED_TABLE,
                    format!("relation \"{name}\" does not exist"),
                ),
            };
            return Err(SqlError::new(state, message));
        };
        let mut positions = Vec::new();
        for ident in columns {
            let column = fold(ident);
            let position = table.column(&column).ok_or_else(|| {
                let message = format!("column \"{column}\" of relation \"{name}\" does not exist");
                self.at(ident, SqlError::new(SqlState::UNDEFINED_COLUMN, message))
            })?;
            if positions.contains(&position) {
                let message = format!("column \"{column}\" specified more than once");
                return Err(SqlError::new(SqlState::DUPLICATE_COLUMN, message));
            }
            positions.push(position);
        }
        if positions.is_empty() {
            positions.extend(table.visible().map(|(p, _)| p));
        }
        let names: Vec<String> = positions
            .iter()
            .map(|p| quote(&table.columns[usize::from(*p)].name))
            .collect();
        let types: Vec<Option<SqlType>> = positions
            .iter()
            .map(|p| Some(table.columns[usize::from(*p)].ty))
            .collect();
        let numbers: Vec<String> = (1..=names.len()).map(|n| format!("${n}")).collect();
        let insert = format!(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})",
            quote(&name),
            names.join(", "),
            numbers.join(", ")
        );
        let query = format!("SELECT {} FROM {}", names.join(", "), quote(&name));
        let (insert, query) = (self.of_text(&insert, &types)?, self.of_text(&query, &[])?);
        let (Command::Write(insert), Command::Query(query)) = (insert, query) else {
            return Err(SqlError::internal("COPY made another statement"));
        };
        Ok(Command::Copy(Copy {
            source: CopySource::Table {
                table: name,
                columns: positions,
                insert: Box::new(insert),
                query: Box::new(query),
            },
            from_client: !to,
            format,
        }))
    }

    fn of_text(&self, text: &str, types: &[Option<SqlType>]) -> SqlResult<Command> {
        let parsed = parse::parse(text)?;
        let [parsed] = &parsed[..] else {
            return Err(SqlError::internal("a text became several statements"));
        };
        analyze(parsed, self.catalog, types)
    }
}
