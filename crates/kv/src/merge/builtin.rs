//! The merge operators that the engine has.

use super::{MergeOperator, MergeRefusal};
use std::sync::Arc;

/// Returns the number that 8 little-endian bytes encode.
fn number(bytes: &[u8], what: &str) -> Result<u64, MergeRefusal> {
    let number = bytes.try_into().map(u64::from_le_bytes);
    number.map_err(|_| {
        MergeRefusal::new(format!(
            "the {what} has {} bytes, expected a number of 8",
            bytes.len()
        ))
    })
}

/// Returns the sum modulo 2^64. It is the sum of signed numbers, too.
fn sum(existing: Option<&[u8]>, operands: &[&[u8]]) -> Result<Vec<u8>, MergeRefusal> {
    let mut sum = existing.map_or(Ok(0), |v| number(v, "value"))?;
    for operand in operands {
        sum = sum.wrapping_add(number(operand, "operand")?);
    }
    Ok(sum.to_le_bytes().to_vec())
}

/// The addition of signed and of unsigned numbers is the same computation under two names.
macro_rules! adds_numbers {
    ($operator:ident, $name:literal) => {
        impl MergeOperator for $operator {
            fn name(&self) -> &str {
                $name
            }
            fn check_operand(&self, operand: &[u8]) -> Result<(), MergeRefusal> {
                number(operand, "operand").map(|_| ())
            }
            fn full_merge(
                &self,
                _key: &[u8],
                existing: Option<&[u8]>,
                operands: &[&[u8]],
            ) -> Result<Vec<u8>, MergeRefusal> {
                sum(existing, operands)
            }
            fn partial_merge(&self, _key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
                sum(None, operands).ok()
            }
        }
    };
}

/// Adds unsigned numbers of 64 bits. Values and operands are 8 bytes, little-endian. A missing
/// value counts as 0. A sum past `u64::MAX` wraps around, because any other rule would depend on
/// the order of additions. Operands of another length are refused when they are written. A value of
/// another length fails reads of a key that has operands over it.
#[derive(Debug, Clone, Copy, Default)]
pub struct AddU64;

adds_numbers!(AddU64, "basalt.add.u64");

/// Adds signed numbers of 64 bits (two's complement), with the rules of [`AddU64`]. A sum wraps
/// from `i64::MAX` to `i64::MIN` and back.
#[derive(Debug, Clone, Copy, Default)]
pub struct AddI64;

adds_numbers!(AddI64, "basalt.add.i64");

/// Appends operands to the value, with a delimiter between any two parts. If the key has no value,
/// no delimiter comes before the first operand. An empty value is a part, too. The delimiter
/// belongs to the operator's name.
#[derive(Debug, Clone)]
pub struct Append {
    delimiter: Vec<u8>,
    name: String,
}

/// The text before the delimiter in the name of an append operator.
const APPEND: &str = "basalt.append:";

impl Append {
    /// Returns an operator with this delimiter, which may be empty.
    pub fn new(delimiter: impl Into<Vec<u8>>) -> Append {
        let delimiter = delimiter.into();
        let hex: String = delimiter.iter().map(|b| format!("{b:02x}")).collect();
        Append {
            delimiter,
            name: format!("{APPEND}{hex}"),
        }
    }

    fn join<'a>(&self, parts: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
        let len: usize = parts.clone().map(|p| p.len() + self.delimiter.len()).sum();
        let mut out = Vec::with_capacity(len);
        for (i, part) in parts.enumerate() {
            if i > 0 {
                out.extend_from_slice(&self.delimiter);
            }
            out.extend_from_slice(part);
        }
        out
    }
}

impl MergeOperator for Append {
    fn name(&self) -> &str {
        &self.name
    }
    fn full_merge(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, MergeRefusal> {
        Ok(self.join(existing.into_iter().chain(operands.iter().copied())))
    }
    fn partial_merge(&self, _key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        Some(self.join(operands.iter().copied()))
    }
}

/// Keeping the largest and keeping the smallest are the same computation under two names.
macro_rules! keeps_one {
    ($operator:ident, $name:literal, $which:ident) => {
        impl MergeOperator for $operator {
            fn name(&self) -> &str {
                $name
            }
            fn full_merge(
                &self,
                _key: &[u8],
                existing: Option<&[u8]>,
                operands: &[&[u8]],
            ) -> Result<Vec<u8>, MergeRefusal> {
                let all = existing.into_iter().chain(operands.iter().copied());
                Ok(all.$which().unwrap_or_default().to_vec())
            }
            fn partial_merge(&self, _key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
                operands.iter().$which().map(|o| o.to_vec())
            }
        }
    };
}

/// Keeps the largest of value and operands, byte by byte as `memcmp`. If one begins with the other,
/// the longer one is larger.
#[derive(Debug, Clone, Copy, Default)]
pub struct Max;

keeps_one!(Max, "basalt.max", max);

/// Keeps the smallest of value and operands, byte by byte as `memcmp`. If one begins with the
/// other, the shorter one is smaller. A key without a value takes its first operand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Min;

keeps_one!(Min, "basalt.min", min);

/// Returns the built-in operator of this name, if there is one.
pub fn built_in(name: &str) -> Option<Arc<dyn MergeOperator>> {
    if let Some(hex) = name.strip_prefix(APPEND) {
        let digits = hex.as_bytes().chunks(2);
        let delimiter: Option<Vec<u8>> = digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        let operator = Append::new(delimiter?);
        // The name must be exactly the operator's own: no other digits, no capitals, no signs.
        return (operator.name == name).then(|| Arc::new(operator) as _);
    }
    let all: [Arc<dyn MergeOperator>; 4] = [
        Arc::new(AddU64),
        Arc::new(AddI64),
        Arc::new(Max),
        Arc::new(Min),
    ];
    all.into_iter().find(|o| o.name() == name)
}
