//! A random history of a database, with its content as of each transaction.

use crate::database::{Content, DIR, Sql, is_of_statement};
use crate::statements::{Statements, TABLES};
use basalt::Tsn;
use basalt::env::Env;
use basalt_sim::rng::Rng;
use basalt_sql::{DatabaseOptions, SqlError, SqlResult, TransactionStatus};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The content as of each transaction. Transactions that change no row, as those that reserve
/// values of a sequence or fill an index, have the content of the one before.
#[derive(Clone, Default)]
pub struct Model(BTreeMap<Tsn, Arc<Content>>);

impl Model {
    pub fn insert(&mut self, tsn: Tsn, content: Content) {
        let last = self.0.values().next_back();
        let content = match last {
            Some(last) if **last == content => last.clone(),
            _ => Arc::new(content),
        };
        self.0.insert(tsn, content);
    }

    /// Returns the newest content.
    pub fn last(&self) -> Content {
        self.at(Tsn::MAX)
    }

    /// Returns the content as of the end of a transaction.
    pub fn at(&self, tsn: Tsn) -> Content {
        let state = self.0.range(..=tsn).next_back();
        state
            .map(|(_, content)| Content::clone(content))
            .unwrap_or_default()
    }
}

/// What a step of a history does.
#[derive(Debug, Clone)]
pub enum Step {
    /// Statements. If one of them fails, a block is rolled back.
    Script(Vec<String>),
    /// A clean close, and an opening.
    Reopen,
}

/// A database that runs a random history.
pub struct History {
    pub env: Env,
    pub options: DatabaseOptions,
    pub sql: Sql,
    pub model: Model,
    pub statements: Statements,
    /// The last transaction that a power cut must not lose.
    pub durable: Tsn,
    pub is_synced: bool,
    /// Statements that a sound database refuses, and others.
    pub refused: u64,
    pub done: u64,
    /// Steps after which families were persisted up to different transactions.
    pub uneven: u64,
    /// Flushes that the bound on the pinned part of the binlog has caused.
    pub early_flushes: u64,
    /// Openings behind the first one.
    pub openings: u64,
}

impl History {
    /// Opens a new database.
    pub fn begin(seed: u64, env: Env, options: DatabaseOptions) -> SqlResult<History> {
        let sql = Sql::open(&env, DIR, &options)?;
        Ok(History {
            env,
            options,
            sql,
            model: Model::default(),
            statements: Statements::new(Rng::of(&[seed, 41])),
            durable: 0,
            is_synced: true,
            refused: 0,
            done: 0,
            uneven: 0,
            early_flushes: 0,
            openings: 0,
        })
    }

    /// Returns the next step.
    pub fn next_step(&mut self) -> Step {
        let catalog = self.sql.database.catalog();
        if self.sql.database.last_transaction() == 0 {
            return Step::Script(TABLES.split(';').map(str::to_owned).collect());
        }
        match self.statements.rng.below(100) {
            0 => Step::Reopen,
            1 => Step::Script(vec!["CHECKPOINT".to_owned()]),
            2..5 => {
                let value = self.statements.rng.pick(&["on", "off"]);
                Step::Script(vec![format!("SET synchronous_commit = {value}")])
            }
            5..16 => Step::Script(vec![self.statements.ddl(&catalog)]),
            16..36 => Step::Script(self.statements.block(&catalog)),
            _ => Step::Script(vec![self.statements.rows(&catalog)]),
        }
    }

    /// Carries out a step, and notes what it leaves.
    ///
    /// Errors: those that a statement on a sound disk cannot have.
    pub fn carry_out(&mut self, step: &Step) -> SqlResult<()> {
        match step {
            Step::Script(script) => self.run(script)?,
            Step::Reopen => {
                let stats = self.sql.database.store().db().stats();
                self.early_flushes += stats.passive.map_or(0, |p| p.early_flushes);
                self.sql.database.close()?;
                self.sql = Sql::open(&self.env, DIR, &self.options)?;
                self.openings += 1;
                self.is_synced = true;
                self.durable = self.sql.database.last_transaction();
            }
        }
        self.note()
    }

    /// Notes the content, and what is durable.
    pub fn note(&mut self) -> SqlResult<()> {
        let content = self.sql.try_content()?;
        self.model
            .insert(self.sql.database.last_transaction(), content);
        if let Ok(points) = self.sql.database.store().db().persistence_points() {
            let first = points.families[0].flag.tsn;
            self.uneven += u64::from(points.families.iter().any(|f| f.flag.tsn != first));
        }
        Ok(())
    }

    fn run(&mut self, script: &[String]) -> SqlResult<()> {
        for statement in script {
            let before = self.sql.database.last_transaction();
            let done = self.sql.try_run(statement);
            let last = self.sql.database.last_transaction();
            // A block that rolls back has reserved values of sequences, unsynced.
            let is_commit = !self.in_block() && done.is_ok();
            if is_commit && last > before && self.is_durable(statement) {
                self.durable = last;
            }
            if last > before && !self.in_block() {
                if statement.ends_with("RESTART IDENTITY") {
                    // The rows are gone one transaction before the sequence begins anew.
                    self.model.insert(before + 1, self.sql.try_content()?);
                }
                self.note()?;
            }
            match done {
                Ok(_) => {
                    self.done += 1;
                    if let Some(value) = statement.strip_prefix("SET synchronous_commit = ") {
                        self.is_synced = value == "on";
                    }
                }
                Err(e) if is_of_statement(&e) => {
                    self.refused += 1;
                    self.end_block();
                    return Ok(());
                }
                Err(e) => {
                    self.end_block();
                    return Err(e.with_detail(statement.clone()));
                }
            }
        }
        Ok(())
    }

    fn in_block(&self) -> bool {
        self.sql.session.status() != TransactionStatus::Idle
    }

    fn end_block(&mut self) {
        if self.in_block() {
            self.sql.run("ROLLBACK");
        }
    }

    fn is_durable(&self, statement: &str) -> bool {
        let is_ddl = ["CREATE", "DROP", "ALTER", "TRUNCATE"];
        let is_ddl = is_ddl
            .iter()
            .any(|word| statement.trim_start().starts_with(word));
        // RESTART IDENTITY sets sequences behind the change of the catalog, unsynced.
        let is_restart = statement.ends_with("RESTART IDENTITY");
        !is_restart && (is_ddl || (self.is_synced && statement != "ROLLBACK"))
    }

    /// Carries out a random step on a sound disk.
    pub fn step(&mut self) {
        let step = self.next_step();
        let done = self.carry_out(&step);
        done.unwrap_or_else(|e: SqlError| panic!("{step:?}\nfails: {e}"));
        self.run_jobs();
        let clock = self.env.clock().as_manual().expect("a test's clock");
        clock.advance(Duration::from_millis(10));
    }

    /// Runs some background jobs.
    pub fn run_jobs(&mut self) {
        while self.statements.rng.percent(40) && self.env.jobs().step() {}
    }
}
