//! Transaction blocks: BEGIN, COMMIT, ROLLBACK and savepoints.

use super::{Outcome, Session, TransactionStatus};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::statement::{Command, TransactionMode};
use crate::storage::{KeyChecks, TransactionWork};
use crate::write_set::{Mark, WriteSet};
use std::collections::BTreeMap;

/// The transaction block of a session.
pub enum Block {
    /// There is none: each statement is a transaction.
    None,
    /// A block is open.
    Open(OpenBlock),
}

/// An open transaction block.
#[derive(Default)]
pub struct OpenBlock {
    is_failed: bool,
    read_only: bool,
    savepoints: Vec<Savepoint>,
    /// Variables that SET LOCAL has set, with the values that they get back.
    local: Vec<(String, Option<String>)>,
}

struct Savepoint {
    name: String,
    mark: Mark,
    checks: usize,
}

impl Block {
    /// Returns whether a block is open, and whether it has failed.
    pub fn status(&self) -> TransactionStatus {
        match self {
            Block::None => TransactionStatus::Idle,
            Block::Open(block) if block.is_failed => TransactionStatus::Failed,
            Block::Open(_) => TransactionStatus::Active,
        }
    }

    /// Returns `true` if the transaction may not write.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Block::Open(block) if block.read_only)
    }
}

fn no_transaction() -> SqlError {
    SqlError::new(
        SqlState::NO_ACTIVE_TRANSACTION,
        "there is no transaction in progress",
    )
}

impl Session {
    /// Carries out a command that controls the transaction.
    pub(super) fn control(&mut self, command: &Command) -> SqlResult<Outcome> {
        match command {
            Command::Begin(mode) => self.begin_block(*mode),
            Command::SetTransaction(mode) => {
                if let Block::Open(block) = &mut self.block {
                    block.read_only = mode.read_only.unwrap_or(block.read_only);
                    return Ok(Outcome::done("SET", 0));
                }
                let notice = SqlError::new(
                    SqlState::NO_ACTIVE_TRANSACTION,
                    "SET TRANSACTION can only be used in transaction blocks",
                );
                Ok(Outcome::noticed("SET", notice))
            }
            Command::Commit => self.commit_block(),
            Command::Rollback => self.rollback_block(),
            Command::Savepoint(name) => self.set_savepoint(name),
            Command::Release(name) => self.release(name),
            Command::RollbackTo(name) => self.rollback_to(name),
            command => Err(SqlError::internal(format!(
                "a command has no execution: {command:?}"
            ))),
        }
    }

    fn begin_block(&mut self, mode: TransactionMode) -> SqlResult<Outcome> {
        if let Block::Open(_) = self.block {
            let notice = SqlError::new(
                SqlState::ACTIVE_TRANSACTION,
                "there is already a transaction in progress",
            );
            return Ok(Outcome::noticed("BEGIN", notice));
        }
        let default = self.variables.is_on("default_transaction_read_only");
        self.context.begin_transaction();
        self.block = Block::Open(OpenBlock {
            read_only: mode.read_only.unwrap_or(default),
            ..OpenBlock::default()
        });
        Ok(Outcome::done("BEGIN", 0))
    }

    fn commit_block(&mut self) -> SqlResult<Outcome> {
        match std::mem::replace(&mut self.block, Block::None) {
            Block::None => Ok(Outcome::noticed("COMMIT", no_transaction())),
            Block::Open(block) if block.is_failed => {
                self.end_local(block);
                self.state.lock().work = None;
                Ok(Outcome::done("ROLLBACK", 0))
            }
            Block::Open(block) => {
                let committed = self.commit_work();
                self.end_local(block);
                committed?;
                Ok(Outcome::done("COMMIT", 0))
            }
        }
    }

    /// Gives variables back the values that they had before SET LOCAL.
    fn end_local(&mut self, block: OpenBlock) {
        for (name, value) in block.local.into_iter().rev() {
            // The value was the variable's before.
            let _ = self.variables.set(&name, value.as_deref());
        }
    }

    /// Carries out SET and RESET.
    pub(super) fn set(
        &mut self,
        name: &str,
        value: Option<&str>,
        is_local: bool,
    ) -> SqlResult<Outcome> {
        let tag = if value.is_some() { "SET" } else { "RESET" };
        if is_local && matches!(self.block, Block::None) {
            let notice = SqlError::new(
                SqlState::NO_ACTIVE_TRANSACTION,
                "SET LOCAL can only be used in transaction blocks",
            );
            return Ok(Outcome::noticed(tag, notice));
        }
        let before = self.variables.get(name).map(str::to_owned);
        self.variables.set(name, value)?;
        if name == "transaction_read_only" {
            let is_on = self.variables.is_on(name);
            // The variable is that of the transaction, and has its default again afterwards.
            self.variables.set(name, None)?;
            return match &mut self.block {
                Block::Open(block) => {
                    block.read_only = is_on;
                    Ok(Outcome::done(tag, 0))
                }
                Block::None => Ok(Outcome::done(tag, 0)),
            };
        }
        if let Block::Open(block) = &mut self.block
            && is_local
        {
            block.local.push((name.to_owned(), before));
        }
        Ok(Outcome::done(tag, 0))
    }

    fn rollback_block(&mut self) -> SqlResult<Outcome> {
        self.state.lock().work = None;
        match std::mem::replace(&mut self.block, Block::None) {
            Block::None => Ok(Outcome::noticed("ROLLBACK", no_transaction())),
            Block::Open(block) => {
                self.end_local(block);
                Ok(Outcome::done("ROLLBACK", 0))
            }
        }
    }

    fn open_block(&mut self, what: &str) -> SqlResult<&mut OpenBlock> {
        match &mut self.block {
            Block::Open(block) => Ok(block),
            Block::None => Err(SqlError::new(
                SqlState::NO_ACTIVE_TRANSACTION,
                format!("{what} can only be used in transaction blocks"),
            )),
        }
    }

    fn set_savepoint(&mut self, name: &str) -> SqlResult<Outcome> {
        self.open_block("SAVEPOINT")?;
        self.begin_work()?;
        let state = self.state.lock();
        let work = state.work()?;
        let savepoint = Savepoint {
            name: name.to_owned(),
            mark: work.writes.mark(),
            checks: work.checks.len(),
        };
        drop(state);
        self.open_block("SAVEPOINT")?.savepoints.push(savepoint);
        Ok(Outcome::done("SAVEPOINT", 0))
    }

    /// Returns the position of the newest savepoint of a name.
    fn find_savepoint(&mut self, what: &str, name: &str) -> SqlResult<usize> {
        let block = self.open_block(what)?;
        let found = block.savepoints.iter().rposition(|s| s.name == name);
        found.ok_or_else(|| {
            SqlError::new(
                SqlState::INVALID_SAVEPOINT,
                format!("savepoint \"{name}\" does not exist"),
            )
        })
    }

    fn release(&mut self, name: &str) -> SqlResult<Outcome> {
        let at = self.find_savepoint("RELEASE SAVEPOINT", name)?;
        self.open_block("RELEASE SAVEPOINT")?
            .savepoints
            .truncate(at);
        Ok(Outcome::done("RELEASE", 0))
    }

    fn rollback_to(&mut self, name: &str) -> SqlResult<Outcome> {
        let at = self.find_savepoint("ROLLBACK TO SAVEPOINT", name)?;
        let block = self.open_block("ROLLBACK TO SAVEPOINT")?;
        block.savepoints.truncate(at + 1);
        block.is_failed = false;
        let (mark, checks) = (block.savepoints[at].mark, block.savepoints[at].checks);
        let mut state = self.state.lock();
        let work = state.work_mut()?;
        work.writes.undo_to(mark);
        work.checks.truncate(checks);
        Ok(Outcome::done("ROLLBACK", 0))
    }

    /// Notes that a statement of the block has failed. Its own writes are undone already.
    pub(super) fn fail_block(&mut self) {
        match &mut self.block {
            Block::Open(block) => block.is_failed = true,
            Block::None => self.state.lock().work = None,
        }
    }

    /// Fails inside of a transaction block.
    pub(super) fn refuse_in_block(&self, what: &str) -> SqlResult<()> {
        match self.block {
            Block::None => Ok(()),
            Block::Open(_) => Err(SqlError::new(
                SqlState::ACTIVE_TRANSACTION,
                format!("{what} cannot run inside a transaction block"),
            )),
        }
    }

    /// Begins a transaction, unless one is open.
    pub(super) fn begin_work(&mut self) -> SqlResult<()> {
        let mut state = self.state.lock();
        if state.work.is_some() {
            return Ok(());
        }
        if matches!(self.block, Block::None) {
            self.context.begin_transaction();
        }
        let (transaction, schema) = self.storage.begin()?;
        state.work = Some(TransactionWork {
            transaction,
            schema,
            writes: WriteSet::default(),
            tables: BTreeMap::new(),
            checks: KeyChecks::default(),
        });
        Ok(())
    }

    /// Commits the open transaction, if there is one.
    pub(super) fn commit_work(&mut self) -> SqlResult<()> {
        let work = self.state.lock().work.take();
        let synced = self.variables.is_on("synchronous_commit");
        let has_values = self.context.take_sequence_values();
        let committed = match work {
            Some(work) => self.storage.commit(work, synced)?,
            None => None,
        };
        // A client has seen values that no row has: they are not given out again after a power cut.
        match committed.is_none() && has_values && synced {
            true => self.storage.committer().sync(),
            false => Ok(()),
        }
    }
}
