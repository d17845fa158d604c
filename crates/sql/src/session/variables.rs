//! The variables of a session: SET, RESET and SHOW.

use super::{Outcome, Session};
use crate::context::Settings;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::functions::SERVER_VERSION;
use crate::options::DatabaseOptions;
use crate::value::ValueRef;
use std::collections::BTreeMap;

/// Variables with their defaults. A variable without an effect is one that drivers and dumps set.
const DEFAULTS: &[(&str, &str, &str)] = &[
    ("application_name", "", "Name of the program, for messages."),
    (
        "bytea_output",
        "hex",
        "Has no effect: BYTEA is shown in hex.",
    ),
    ("check_function_bodies", "on", "Has no effect."),
    ("client_encoding", "UTF8", "The encoding is always UTF8."),
    ("client_min_messages", "notice", "Has no effect."),
    (
        "datestyle",
        "ISO, MDY",
        "Dates are always shown in ISO's form.",
    ),
    ("default_table_access_method", "heap", "Has no effect."),
    ("default_tablespace", "", "Has no effect."),
    (
        "default_transaction_isolation",
        "repeatable read",
        "Always repeatable read: each transaction has one snapshot.",
    ),
    (
        "default_transaction_read_only",
        "off",
        "New transactions are read-only.",
    ),
    (
        "extra_float_digits",
        "1",
        "Has no effect: floats are shown with all digits.",
    ),
    ("idle_in_transaction_session_timeout", "0", "Has no effect."),
    ("integer_datetimes", "on", "Cannot be changed."),
    ("intervalstyle", "postgres", "Has no effect."),
    ("is_superuser", "on", "Cannot be changed."),
    (
        "lock_timeout",
        "0",
        "Has no effect. A commit waits at most 60 s for other commits.",
    ),
    ("max_identifier_length", "63", "Cannot be changed."),
    ("row_security", "on", "Has no effect."),
    (
        "search_path",
        "\"$user\", public",
        "Has no effect: all tables are in the schema public.",
    ),
    ("server_encoding", "UTF8", "Cannot be changed."),
    ("server_version", SERVER_VERSION, "Cannot be changed."),
    ("server_version_num", "150000", "Cannot be changed."),
    ("session_authorization", "", "Name of the user."),
    (
        "standard_conforming_strings",
        "on",
        "Backslashes in strings are plain.",
    ),
    (
        "statement_timeout",
        "0",
        "Time in ms after which a statement is cancelled; 0 is never.",
    ),
    (
        "synchronous_commit",
        "on",
        "A commit waits until its binlog record is synced.",
    ),
    ("timezone", "UTC", "Timestamps are always shown in UTC."),
    (
        "transaction_isolation",
        "repeatable read",
        "Always repeatable read: each transaction has one snapshot.",
    ),
    (
        "transaction_read_only",
        "off",
        "The transaction may not write.",
    ),
    ("transaction_timeout", "0", "Has no effect."),
    ("xmloption", "content", "Has no effect."),
];

/// Variables that accept only these values, in lower case.
const FIXED: &[(&str, &[&str])] = &[
    ("client_encoding", &["utf8", "utf-8", "unicode"]),
    ("standard_conforming_strings", &["on", "true", "1"]),
    ("integer_datetimes", &["on"]),
    ("server_encoding", &["utf8"]),
    ("server_version", &[SERVER_VERSION]),
    ("server_version_num", &["150000"]),
    ("is_superuser", &["on"]),
    ("max_identifier_length", &["63"]),
    (
        "timezone",
        &["utc", "gmt", "etc/utc", "z", "0", "utc0", "default"],
    ),
];

/// The variables of a session.
pub struct Variables {
    current: BTreeMap<String, String>,
    defaults: BTreeMap<String, String>,
    /// The variable `statement_timeout` in milliseconds, which each statement reads.
    statement_timeout: u64,
    /// The variables were changed since functions got them.
    is_changed: bool,
}

impl Variables {
    /// Returns the variables of a new session.
    pub fn new(options: &DatabaseOptions, user: &str) -> Variables {
        let defaults = DEFAULTS.iter();
        let mut defaults: BTreeMap<String, String> = defaults
            .map(|(name, value, _)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        defaults.insert("session_authorization".to_owned(), user.to_owned());
        let synced = if options.synchronous_commit {
            "on"
        } else {
            "off"
        };
        defaults.insert("synchronous_commit".to_owned(), synced.to_owned());
        Variables {
            current: defaults.clone(),
            defaults,
            statement_timeout: 0,
            is_changed: true,
        }
    }

    /// Returns a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.current.get(&name.to_lowercase());
        found.map(String::as_str)
    }

    /// Returns the time after which a statement is cancelled, in milliseconds; 0 is never.
    pub fn statement_timeout(&self) -> u64 {
        self.statement_timeout
    }

    /// Gives functions the variables, if they have changed.
    pub fn publish(&mut self, settings: &Settings) {
        if std::mem::take(&mut self.is_changed) {
            settings.lock().clone_from(&self.current);
        }
    }

    /// Returns `true` for a variable that is on.
    pub fn is_on(&self, name: &str) -> bool {
        let value = self.get(name).unwrap_or_default().to_lowercase();
        !matches!(value.as_str(), "" | "off" | "false" | "no" | "0")
    }

    /// Sets a variable; `None` is its default.
    ///
    /// Errors: 42704 for an unknown variable; 22023 for a value that it cannot have.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> SqlResult<()> {
        let name = name.to_lowercase();
        self.is_changed = true;
        if name == "all" && value.is_none() {
            self.current = self.defaults.clone();
            self.statement_timeout = 0;
            return Ok(());
        }
        let is_custom = name.contains('.');
        let default = self.defaults.get(&name).cloned();
        if default.is_none() && !is_custom {
            return Err(unknown(&name));
        }
        let Some(value) = value else {
            if name == "statement_timeout" {
                self.statement_timeout = 0;
            }
            match default {
                Some(default) => self.current.insert(name, default),
                None => self.current.remove(&name),
            };
            return Ok(());
        };
        let fixed = FIXED.iter().find(|(fixed, _)| *fixed == name);
        if let Some((_, fits)) = fixed
            && !fits.contains(&value.to_lowercase().as_str())
        {
            return Err(SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("invalid value for parameter \"{name}\": \"{value}\""),
            )
            .with_detail(format!("The value is always {:?}.", self.current[&name])));
        }
        if name == "statement_timeout" {
            self.statement_timeout = milliseconds(value).ok_or_else(|| {
                SqlError::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("invalid value for parameter \"{name}\": \"{value}\""),
                )
                .with_hint("give milliseconds, or a number with ms, s, min or h")
            })?;
        }
        self.current.insert(name, value.to_owned());
        Ok(())
    }
}

/// Returns a time in milliseconds.
fn milliseconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let factor = match text[digits..].trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

fn unknown(name: &str) -> SqlError {
    SqlError::new(
        SqlState::UNDEFINED_OBJECT,
        format!("unrecognized configuration parameter \"{name}\""),
    )
}

impl Session {
    /// Sets a variable, as SET does.
    ///
    /// Errors: 42704 for an unknown variable; 22023 for a value that it cannot have.
    pub fn set_variable(&mut self, name: &str, value: &str) -> SqlResult<()> {
        self.variables.set(name, Some(value))
    }

    /// Returns a variable, if it exists.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name)
    }

    pub(super) fn show(&self, name: &str, sink: &mut dyn super::RowSink) -> SqlResult<Outcome> {
        if name == "all" {
            for (name, _, description) in DEFAULTS {
                let value = self.variables.get(name).unwrap_or_default();
                let row = [name, value, description].map(ValueRef::Text);
                sink.row(&super::Row::of(&row))?;
            }
            return Ok(Outcome::done("SHOW", DEFAULTS.len() as u64));
        }
        let value = self.variables.get(name).ok_or_else(|| unknown(name))?;
        sink.row(&super::Row::of(&[ValueRef::Text(value)]))?;
        Ok(Outcome::done("SHOW", 1))
    }
}
