//! A database on a simulated disk, and short calls on it.

use basalt::env::Env;
use basalt_sim::{SimFs, SimOptions};
use basalt_sql::{Database, DatabaseOptions, Outcome, Row, Session, SqlError, SqlResult, Value};

/// Directory of the database.
pub const DIR: &str = "db";

pub fn env(seed: u64) -> Env {
    Env::for_tests(SimFs::new(SimOptions::default()), seed)
}

pub fn open(env: &Env) -> Database {
    Database::open(env, DIR, DatabaseOptions::default()).expect("a sound disk")
}

/// A session with its database.
pub struct Sql {
    pub database: Database,
    pub session: Session,
}

impl Sql {
    pub fn new() -> Sql {
        Sql::of(&open(&env(1)))
    }

    pub fn of(database: &Database) -> Sql {
        Sql {
            database: database.clone(),
            session: database.session().expect("the database is open"),
        }
    }

    /// Runs a script. Returns the rows of its last statement, in PostgreSQL's text.
    pub fn try_run(&mut self, script: &str) -> SqlResult<Vec<Vec<String>>> {
        self.try_run_with(script, &[])
    }

    pub fn try_run_with(
        &mut self,
        script: &str,
        parameters: &[Value],
    ) -> SqlResult<Vec<Vec<String>>> {
        let mut rows = Vec::new();
        for statement in self.session.parse(script)? {
            let prepared = self.session.prepare(&statement, &[])?;
            let columns = prepared.columns().to_vec();
            rows.clear();
            let mut sink = |row: &Row<'_>| {
                let texts = (0..row.len()).map(|at| {
                    let value = row.get(at)?;
                    let mut text = String::new();
                    match value {
                        basalt_sql::ValueRef::Null => text.push_str("NULL"),
                        value => columns[at].ty.write_text(value, &mut text),
                    }
                    Ok(text)
                });
                rows.push(texts.collect::<SqlResult<Vec<String>>>()?);
                Ok(())
            };
            self.session.execute(&prepared, parameters, &mut sink)?;
        }
        Ok(rows)
    }

    /// Runs a script that succeeds. Returns the rows of its last statement, with `|` between
    /// columns.
    pub fn run(&mut self, script: &str) -> Vec<String> {
        let rows = self.try_run(script);
        let rows = rows.unwrap_or_else(|e| panic!("{script}\nfails: {e}"));
        rows.into_iter().map(|row| row.join("|")).collect()
    }

    /// Runs a script that fails. Returns the SQLSTATE of the error.
    pub fn fail(&mut self, script: &str) -> SqlError {
        match self.try_run(script) {
            Ok(rows) => panic!("{script}\nsucceeds: {rows:?}"),
            Err(e) => e,
        }
    }

    /// Runs a statement. Returns its command tag.
    pub fn try_tag(&mut self, statement: &str) -> SqlResult<String> {
        let parsed = self.session.parse(statement)?;
        let prepared = self.session.prepare(&parsed[0], &[])?;
        let mut sink = |_: &Row<'_>| Ok(());
        match self.session.execute(&prepared, &[], &mut sink)? {
            Outcome::Done { tag, .. } => Ok(tag),
            _ => panic!("{statement}\nis a COPY"),
        }
    }

    /// Runs a statement that succeeds. Returns its command tag.
    pub fn tag(&mut self, statement: &str) -> String {
        let tag = self.try_tag(statement);
        tag.unwrap_or_else(|e| panic!("{statement}\nfails: {e}"))
    }

    /// Returns the name of the session's status.
    pub fn status_text(&self) -> String {
        format!("{:?}", self.session.status())
    }

    /// Checks rows, index entries and references against each other.
    pub fn check(&self) {
        let report = self.database.check(&mut |_| ()).expect("a sound disk");
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }
}
