//! [`Fold`]: the operands of one key in a flush or compaction, merged as far as possible.
//!
//! Operands come from the newest down, and all of them may belong to one snapshot: the caller
//! starts again at each new stripe. They are copied into one buffer and merged in groups as they
//! come. So a key with millions of them takes bounded memory, and each byte is merged a fixed
//! number of times.

use super::Merging;
use crate::key::SeqNo;
use basalt_fs::Result;

/// A group of operands is merged into one when it has this many operands, or [`GROUP_BYTES`] bytes.
const GROUP: usize = 1024;
const GROUP_BYTES: usize = 1 << 20;
/// Most bytes of operands that are held back. Further operands are not worth the memory, and are
/// written unmerged.
const HELD_BYTES: usize = 64 << 20;

/// An operand and its range in the buffer.
struct HeldOperand {
    seq: SeqNo,
    from: usize,
}

/// A function that takes the operands to write: key, sequence number and operand, the newest first.
pub type Write<'a> = dyn FnMut(&[u8], SeqNo, &[u8]) -> Result<()> + 'a;

/// The operands of one key and stripe.
pub struct Fold<'a> {
    merging: &'a Merging,
    /// The key as the newest operand has it, because a comparator may call different bytes equal.
    key: Vec<u8>,
    /// The operands, the newest first. Each one ends where the next begins.
    held: Vec<HeldOperand>,
    bytes: Vec<u8>,
    /// The first this many of `held` are merged groups.
    groups: usize,
    /// True if the operator did not merge a group. It is not called again for this key.
    is_refused: bool,
    /// True if the operands of this key are written unmerged.
    through: bool,
    /// Number of operands that became a part of another operand or of a value.
    pub merged: u64,
    /// Number of keys whose operands the operator refused to merge over an existing value.
    pub refused: u64,
}

impl<'a> Fold<'a> {
    /// Returns a fold without operands that merges by this operator.
    pub fn new(merging: &'a Merging) -> Fold<'a> {
        Fold {
            merging,
            key: Vec::new(),
            held: Vec::new(),
            bytes: Vec::new(),
            groups: 0,
            is_refused: false,
            through: false,
            merged: 0,
            refused: 0,
        }
    }

    /// Returns true from the first operand of a key until the fold of its operands ends. Then the
    /// next older version of the key in the same stripe counts.
    pub fn is_open(&self) -> bool {
        self.through || !self.held.is_empty()
    }

    /// Returns the key of the operands that were taken last.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Takes the next older operand.
    pub fn push(
        &mut self,
        key: &[u8],
        seq: SeqNo,
        operand: &[u8],
        write: &mut Write<'_>,
    ) -> Result<()> {
        if self.through || !self.merging.is_possible() {
            self.through = true;
            return write(key, seq, operand);
        }
        if self.held.is_empty() {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        self.held.push(HeldOperand {
            seq,
            from: self.bytes.len(),
        });
        self.bytes.extend_from_slice(operand);
        let begin = self
            .held
            .get(self.groups)
            .expect("one was just pushed")
            .from;
        if self.held.len() - self.groups >= GROUP || self.bytes.len() - begin >= GROUP_BYTES {
            self.merge_group(self.groups);
            self.groups = self.held.len();
        }
        if self.bytes.len() + self.held.len() * size_of::<HeldOperand>() > HELD_BYTES {
            self.write_all(write)?;
            self.through = true;
        }
        Ok(())
    }

    fn operand(&self, i: usize) -> &[u8] {
        let end = self.held.get(i + 1).map_or(self.bytes.len(), |h| h.from);
        &self.bytes[self.held[i].from..end]
    }

    /// Returns the operands from index `from` on, the oldest first, as operators take them.
    fn oldest_first(&self, from: usize) -> Vec<&[u8]> {
        (from..self.held.len())
            .rev()
            .map(|i| self.operand(i))
            .collect()
    }

    /// Merges the operands from index `from` on into one, if the operator can.
    fn merge_group(&mut self, from: usize) {
        if self.is_refused || self.held.len() - from < 2 {
            return;
        }
        let Some(one) = self.merging.partial(&self.key, &self.oldest_first(from)) else {
            self.is_refused = true;
            return;
        };
        self.merged += (self.held.len() - from - 1) as u64;
        self.bytes.truncate(self.held[from].from);
        self.bytes.extend_from_slice(&one);
        // The merged operand replaces the newest one, because every reader sees all of them or
        // none.
        self.held.truncate(from + 1);
    }

    /// Returns the operands merged over the value below them in their stripe, or over no value,
    /// with the sequence number of the result. Returns `None` if the operator refuses. Then the
    /// operands are still held, for [`Fold::release`].
    pub fn over(&mut self, existing: Option<&[u8]>) -> Option<(SeqNo, Vec<u8>)> {
        let seq = self.held.first()?.seq;
        let Ok(value) = self
            .merging
            .full(&self.key, existing, &self.oldest_first(0))
        else {
            self.refused += 1;
            return None;
        };
        self.merged += self.held.len() as u64;
        self.clear();
        Some((seq, value))
    }

    /// Writes the operands, as few as possible, because the version below them is unknown or must
    /// not be merged with them.
    pub fn release(&mut self, write: &mut Write<'_>) -> Result<()> {
        self.merge_group(0);
        self.write_all(write)?;
        self.clear();
        Ok(())
    }

    fn write_all(&mut self, write: &mut Write<'_>) -> Result<()> {
        for i in 0..self.held.len() {
            write(&self.key, self.held[i].seq, self.operand(i))?;
        }
        self.held.clear();
        self.bytes.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.held.clear();
        if self.bytes.capacity() > GROUP_BYTES {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.groups = 0;
        self.is_refused = false;
        self.through = false;
    }
}
