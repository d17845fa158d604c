//! Merge operators: a value changed by operands, which are written without reading it.
//!
//! An operand is an entry of its own kind. What a key holds is worked out when it is read, or
//! earlier by a flush or compaction: the operator is given the newest value below the operands, if
//! there is one, and the operands from the oldest on. [`Merging`] is the one place that calls a
//! user's operator; [`Chain`] gathers what a reader meets of a key, [`fold::Fold`] what a
//! compaction meets. What holds:
//!
//! - No operand is lost because the operator cannot deal with it: refusals and panics leave the operands as they are, and
//!   reads of that key are answered with an error.
//! - A value that has expired counts as absent below operands. One that has not keeps its end: what is merged over it
//!   is shown with its expiry. It is merged into one entry only where that cannot show: not before it has expired.
//! - Whether, when and in what portions operands were merged beforehand never shows, if the operator keeps its contract.

mod builtin;
mod chain;
mod fold;
#[cfg(test)]
mod tests;

pub use builtin::{AddI64, AddU64, Append, Max, Min, built_in};
pub use chain::Chain;
pub use fold::{Fold, Write};

use basalt_fs::{Error, ErrorKind, Reach};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Why an operator does not merge: a sentence for the message of the read that meets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeRefusal(String);

impl MergeRefusal {
    /// With this reason.
    pub fn new(reason: impl Into<String>) -> MergeRefusal {
        MergeRefusal(reason.into())
    }
}

impl fmt::Display for MergeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How operands change a family's values. Its name is kept in the manifest: a family opens only
/// with the operator whose operands it holds.
///
/// The contract: the same arguments give the same answer for ever, on any thread; and where
/// [`MergeOperator::partial_merge`] answers, its operand stands for those it was made of, whatever
/// lies below and above them. An operator that reads clocks or chance gives values that depend on
/// when compactions ran.
pub trait MergeOperator: Send + Sync {
    /// A name that identifies operator and format of its operands for ever.
    fn name(&self) -> &str;

    /// Called before an operand is written: a refusal fails the call that would have written it. By
    /// default everything is taken.
    fn check_operand(&self, operand: &[u8]) -> Result<(), MergeRefusal> {
        let _ = operand;
        Ok(())
    }

    /// The key's value: `existing`, or nothing when the key held none, with `operands` applied, the
    /// oldest first. There is at least one. A refusal, or a panic, leaves the operands as they are
    /// and fails reads of the key.
    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, MergeRefusal>;

    /// One operand that does what these do one after the other, the oldest first; `None` when there
    /// is none, as by default. There are at least two; nothing was written between them.
    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        let _ = (key, operands);
        None
    }
}

/// A family's operator as the engine calls it: never past a refusal, a panic or the limit of
/// values.
#[derive(Clone)]
pub struct Merging {
    /// Its name, for messages.
    family: Option<Arc<str>>,
    operator: Option<Arc<dyn MergeOperator>>,
    limit: usize,
}

impl Merging {
    /// Merging in the family of this name, by its operator if it has one.
    pub fn new(family: Arc<str>, operator: Option<Arc<dyn MergeOperator>>) -> Merging {
        Merging {
            family: Some(family),
            operator,
            limit: crate::MAX_VALUE_LEN,
        }
    }

    /// Of a family without an operator.
    pub fn none() -> Merging {
        Merging {
            family: None,
            operator: None,
            limit: crate::MAX_VALUE_LEN,
        }
    }

    /// With a lower limit of the bytes that a merge may give: tests reach it.
    #[doc(hidden)]
    pub fn with_limit(mut self, limit: usize) -> Merging {
        self.limit = limit;
        self
    }

    /// True when there is an operator to ask.
    pub fn is_possible(&self) -> bool {
        self.operator.is_some()
    }

    /// The value that the operands give over `existing`, or what a reader of the key is told.
    pub fn full(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> basalt_fs::Result<Vec<u8>> {
        let Some(operator) = &self.operator else {
            return Err(self.fails(
                key,
                operands,
                "cannot be merged: the family was opened without a merge operator; open it with the one that they were written for",
            ));
        };
        let name = operator.name();
        let call = || operator.full_merge(key, existing, operands);
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(value)) if value.len() <= self.limit => Ok(value),
            Ok(Ok(value)) => Err(self.fails(
                key,
                operands,
                &format!(
                    "are merged by operator {name:?} into a value of {} bytes, at most {} are allowed",
                    value.len(),
                    self.limit
                ),
            )),
            Ok(Err(refusal)) => Err(self.fails(
                key,
                operands,
                &format!("are refused by merge operator {name:?}: {refusal}"),
            )),
            Err(panic) => {
                let what = panic
                    .downcast_ref::<&str>()
                    .map(ToString::to_string)
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_default();
                Err(self.fails(
                    key,
                    operands,
                    &format!("made merge operator {name:?} panic: {what}"),
                ))
            }
        }
    }

    /// One operand for several, if the operator has one that is allowed to be that long.
    pub fn partial(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        let operator = self.operator.as_ref()?;
        let call = || operator.partial_merge(key, operands);
        // Who reads the key hears of a panic, from the full merge.
        catch_unwind(AssertUnwindSafe(call))
            .unwrap_or(None)
            .filter(|operand| operand.len() <= self.limit)
    }

    fn fails(&self, key: &[u8], operands: &[&[u8]], what: &str) -> Error {
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "family {:?}: the merge operands ({}) of a key of {} bytes {what}; a put or a delete of the key ends this",
                self.family.as_deref().unwrap_or_default(),
                operands.len(),
                key.len()
            ),
        )
        .with_reach(Reach::Operation)
    }
}

impl fmt::Debug for Merging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.operator.as_ref().map(|o| o.name());
        write!(f, "Merging({:?}, {name:?})", self.family)
    }
}
