//! Merge operators: operands change a value and are written without reading it.
//!
//! An operand is an entry of its own kind. The value of a key is computed when the key is read, or
//! earlier by a flush or compaction. The operator takes the newest value below the operands, if
//! there is one, and the operands from the oldest on. Only [`Merging`] calls a user's operator.
//! [`Chain`] collects the versions that a reader meets of a key, and [`fold::Fold`] those that a
//! compaction meets. The promises are:
//!
//! - No operand is lost because the operator refuses it. Refusals and panics leave the operands
//!   unchanged, and reads of that key return an error.
//! - A value that has expired counts as absent below operands. A value that has not expired keeps
//!   its expiry, and the result merged over it has that expiry. The two are merged into one entry
//!   only if that cannot be seen, which is not before the value has expired.
//! - Whether, when and in what groups operands were merged beforehand is never visible, if the
//!   operator keeps its contract.

mod builtin;
mod chain;
mod fold;
#[cfg(test)]
mod tests;

pub use builtin::{AddI64, AddU64, Append, Max, Min, built_in};
pub use chain::Chain;
pub use fold::{Fold, Write};

use basalt_env::thread::panic_message;
use basalt_fs::{Error, ErrorKind, Reach};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The reason why an operator does not merge: a sentence for the error of the read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeRefusal(String);

impl MergeRefusal {
    /// Returns a refusal with this reason.
    pub fn new(reason: impl Into<String>) -> MergeRefusal {
        MergeRefusal(reason.into())
    }
}

impl fmt::Display for MergeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Defines how operands change a family's values. The manifest stores its name: a family opens only
/// with the operator whose operands it has.
///
/// The contract has two parts. The same arguments give the same result for ever, on any thread. If
/// [`MergeOperator::partial_merge`] returns an operand, it stands for the operands it was made of,
/// whatever is below and above them. An operator that reads clocks or random numbers gives values
/// that depend on when compactions ran.
pub trait MergeOperator: Send + Sync {
    /// Returns a name that identifies the operator and the format of its operands for ever.
    fn name(&self) -> &str;

    /// Checks an operand before it is written. A refusal fails the call that would have written it.
    /// By default every operand is accepted.
    fn check_operand(&self, operand: &[u8]) -> Result<(), MergeRefusal> {
        let _ = operand;
        Ok(())
    }

    /// Returns the key's value: `existing`, or no value if the key has none, with `operands`
    /// applied, the oldest first. There is at least one operand. A refusal, or a panic, leaves the
    /// operands unchanged and fails reads of the key.
    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, MergeRefusal>;

    /// Returns one operand with the effect of these operands one after the other, the oldest first,
    /// or `None` if there is none, as by default. There are at least two operands, and no other
    /// entry was written between them.
    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        let _ = (key, operands);
        None
    }
}

/// A family's operator as the engine calls it. Refusals, panics and results beyond the limit of
/// values do not pass this type.
#[derive(Clone)]
pub struct Merging {
    /// The family's name, for messages.
    family: Option<Arc<str>>,
    operator: Option<Arc<dyn MergeOperator>>,
    limit: usize,
}

impl Merging {
    /// Returns the merging of the family of this name, by its operator if it has one.
    pub fn new(family: Arc<str>, operator: Option<Arc<dyn MergeOperator>>) -> Merging {
        Merging {
            family: Some(family),
            operator,
            limit: crate::MAX_VALUE_LEN,
        }
    }

    /// Returns the merging of a family without an operator.
    pub fn none() -> Merging {
        Merging {
            family: None,
            operator: None,
            limit: crate::MAX_VALUE_LEN,
        }
    }

    /// Returns a merging with a lower limit, in bytes, for the result of a merge, which tests can
    /// reach.
    #[doc(hidden)]
    pub fn with_limit(mut self, limit: usize) -> Merging {
        self.limit = limit;
        self
    }

    /// Returns true if the family has an operator.
    pub fn is_possible(&self) -> bool {
        self.operator.is_some()
    }

    /// Returns the value of the operands over `existing`, or the error for a reader of the key.
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
                let what = panic_message(&*panic).unwrap_or_default();
                Err(self.fails(
                    key,
                    operands,
                    &format!("made merge operator {name:?} panic: {what}"),
                ))
            }
        }
    }

    /// Returns one operand for several, if the operator has one within the limit.
    pub fn partial(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        let operator = self.operator.as_ref()?;
        let call = || operator.partial_merge(key, operands);
        // The full merge reports a panic to the reader of the key.
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
