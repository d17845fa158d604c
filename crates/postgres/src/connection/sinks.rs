//! Where rows of a running statement go: to the client, to the memory of a portal, or nowhere.

use crate::activity::Activity;
use crate::backend;
use crate::frontend::{Execute, Target};
use crate::types::ColumnFormat;
use crate::wire::{End, Wire};
use basalt_sql::copy::CopyEncoder;
use basalt_sql::statement::ResultColumn;
use basalt_sql::{Row, RowSink, SqlError, SqlResult, SqlState, TransactionStatus, ValueRef};
use std::ops::Range;

/// A sink of statements that return no rows.
pub struct NoRows;

impl RowSink for NoRows {
    fn row(&mut self, _row: &Row<'_>) -> SqlResult<()> {
        Ok(())
    }
}

/// Returns the error that ends a statement because the client does not take its rows.
fn unwanted() -> SqlError {
    SqlError::new(SqlState::QUERY_CANCELED, "the client takes no more rows")
}

/// What happens to the next row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowMode {
    /// It is sent.
    Send,
    /// The portal keeps it.
    Keep,
    /// It is dropped.
    Drop,
}

/// The portal whose rows a [`RowSender`] sends.
pub struct PortalRun<'c> {
    /// Name of the portal.
    pub name: &'c str,
    /// Maximum number of rows to send; 0 for all.
    pub max_rows: u64,
    /// The statement only reads, so it may wait for the client between two rows.
    pub may_wait: bool,
    /// The client began a transaction, so the portal lives on after a Sync.
    pub is_in_block: bool,
    /// The connection began a transaction, which an error would undo.
    pub is_implicit: bool,
    /// Maximum bytes of rows that the portal keeps.
    pub keep_bytes: usize,
}

/// A sink that sends rows to the client.
///
/// If the portal has a row limit, a statement that only reads stops in the middle: the sink answers
/// PortalSuspended, and reads messages until the client wants more rows. So the memory of such a
/// portal is bounded for any number of rows. If the client sends anything that needs the session,
/// the remaining rows go to the portal's memory first.
pub struct RowSender<'c> {
    pub wire: &'c mut Wire,
    pub activity: &'c Activity,
    pub columns: &'c [ColumnFormat],
    pub portal: PortalRun<'c>,
    pub mode: RowMode,
    /// Rows that were sent since the last Execute.
    pub sent: u64,
    pub was_suspended: bool,
    /// Rows of [`RowMode::Keep`], as messages.
    pub kept: Vec<u8>,
    /// The sink ended the statement, because the client wants no more rows.
    pub is_stopped: bool,
    /// The connection ended inside of the statement.
    pub end: Option<End>,
}

impl<'c> RowSender<'c> {
    /// Returns a sink.
    pub fn new(
        wire: &'c mut Wire,
        activity: &'c Activity,
        columns: &'c [ColumnFormat],
        portal: PortalRun<'c>,
    ) -> RowSender<'c> {
        RowSender {
            wire,
            activity,
            columns,
            portal,
            mode: RowMode::Send,
            sent: 0,
            was_suspended: false,
            kept: Vec::new(),
            is_stopped: false,
            end: None,
        }
    }

    fn ends(&mut self, end: End) -> SqlError {
        self.end = Some(end);
        unwanted()
    }

    /// Stops the rows: with an error if no transaction would see it, else by dropping them.
    fn stop(&mut self) -> SqlResult<()> {
        if self.portal.is_in_block || self.portal.is_implicit {
            self.mode = RowMode::Drop;
            return Ok(());
        }
        self.is_stopped = true;
        Err(unwanted())
    }

    /// Reports that the row limit is reached, and waits until the client wants more rows.
    fn suspend(&mut self) -> SqlResult<()> {
        self.was_suspended = true;
        backend::put_portal_suspended(&mut self.wire.out);
        if !self.portal.may_wait {
            self.mode = RowMode::Keep;
            return Ok(());
        }
        let activity = self.activity;
        activity.pause(|| self.wait_for_client())
    }

    fn wait_for_client(&mut self) -> SqlResult<()> {
        loop {
            let frame = match self.wire.peek() {
                Ok(frame) => frame,
                Err(end) => return Err(self.ends(end)),
            };
            let body = self.wire.body(&frame);
            match frame.kind {
                b'E' => match Execute::decode(body) {
                    Ok(execute) if execute.portal == self.portal.name => {
                        self.portal.max_rows = execute.max_rows;
                        self.sent = 0;
                        self.wire.consume(&frame);
                        return Ok(());
                    }
                    _ => break,
                },
                b'C' => match Target::decode(body) {
                    Ok(Target::Portal(name)) if name == self.portal.name => {
                        self.wire.consume(&frame);
                        backend::put_close_complete(&mut self.wire.out);
                        return self.stop();
                    }
                    _ => break,
                },
                b'H' => self.wire.flush_soon(),
                b'S' if self.portal.is_in_block => {
                    backend::put_ready(&mut self.wire.out, TransactionStatus::Active);
                    self.wire.flush_soon();
                }
                // The portal ends with the transaction. The connection serves the Sync.
                b'S' => return self.stop(),
                b'X' => return Err(self.ends(End::Closed)),
                _ => break,
            }
            self.wire.consume(&frame);
        }
        self.mode = RowMode::Keep;
        Ok(())
    }
}

impl RowSink for RowSender<'_> {
    fn row(&mut self, row: &Row<'_>) -> SqlResult<()> {
        let limit = self.portal.max_rows;
        if limit > 0 && self.sent == limit && self.mode == RowMode::Send {
            self.suspend()?;
        }
        match self.mode {
            RowMode::Send => {
                let wire = &mut *self.wire;
                backend::put_row(&mut wire.out, row, self.columns, &mut wire.scratch)?;
                self.sent += 1;
                if let Err(end) = self.wire.flush_if_full() {
                    return Err(self.ends(end));
                }
            }
            RowMode::Keep => {
                let scratch = &mut self.wire.scratch;
                backend::put_row(&mut self.kept, row, self.columns, scratch)?;
                if self.kept.len() > self.portal.keep_bytes {
                    return Err(SqlError::new(
                        SqlState::PROGRAM_LIMIT_EXCEEDED,
                        format!(
                            "the rows of portal \"{}\" that were not read yet are larger than {} bytes",
                            self.portal.name, self.portal.keep_bytes
                        ),
                    )
                    .with_hint("Read the portal to its end before you run another statement."));
                }
            }
            RowMode::Drop => {}
        }
        Ok(())
    }
}

/// A sink that sends rows as lines of a COPY.
pub struct CopySender<'c> {
    wire: &'c mut Wire,
    encoder: &'c CopyEncoder,
    columns: &'c [ResultColumn],
    /// The texts of a row's values, one after the other.
    texts: String,
    /// Where the text of each value is in `texts`; `None` for NULL.
    fields: Vec<Option<Range<usize>>>,
    /// The connection ended inside of the statement.
    pub end: Option<End>,
}

impl<'c> CopySender<'c> {
    /// Returns a sink that sends rows of these columns.
    pub fn new(
        wire: &'c mut Wire,
        encoder: &'c CopyEncoder,
        columns: &'c [ResultColumn],
    ) -> CopySender<'c> {
        CopySender {
            wire,
            encoder,
            columns,
            texts: String::new(),
            fields: Vec::with_capacity(columns.len()),
            end: None,
        }
    }
}

impl RowSink for CopySender<'_> {
    fn row(&mut self, row: &Row<'_>) -> SqlResult<()> {
        self.texts.clear();
        self.fields.clear();
        for (at, column) in self.columns.iter().enumerate() {
            let begin = self.texts.len();
            self.fields.push(match row.get(at)? {
                ValueRef::Null => None,
                value => {
                    column.ty.write_text(value, &mut self.texts);
                    Some(begin..self.texts.len())
                }
            });
        }
        let fields = self.fields.iter();
        let texts = fields.map(|field| field.clone().map(|field| &self.texts[field]));
        backend::put_copy_data(&mut self.wire.out, |out| {
            self.encoder.row(texts, out);
            Ok(())
        })?;
        if let Err(end) = self.wire.flush_if_full() {
            self.end = Some(end);
            return Err(unwanted());
        }
        Ok(())
    }
}
