//! [`Fold`]: operands of one key as a flush or compaction meets them, merged as far as can be.
//!
//! Operands come from the newest down, and all of them may be one snapshot's: the caller begins
//! anew where another stripe begins. They are copied into one buffer and merged in groups as they
//! come, so that a key with millions of them takes bounded memory and each byte is merged a fixed
//! number of times.

use super::Merging;
use crate::key::SeqNo;
use basalt_fs::Result;

/// A group of operands is merged into one when it has so many, or so many bytes.
const GROUP: usize = 1024;
const GROUP_BYTES: usize = 1 << 20;
/// Operands held back at most, in bytes. What is more is not worth the memory: they are written as
/// they are.
const HELD_BYTES: usize = 64 << 20;

/// An operand: its place in the buffer.
struct Held {
    seq: SeqNo,
    from: usize,
}

/// Takes the operands that are written: key, sequence number and operand, the newest first.
pub type Write<'a> = dyn FnMut(&[u8], SeqNo, &[u8]) -> Result<()> + 'a;

/// Operands of one key and stripe. See the module.
pub struct Fold<'a> {
    merging: &'a Merging,
    /// As the newest operand has it: a comparator may call different bytes equal.
    key: Vec<u8>,
    /// The newest first. Each ends where the next begins.
    held: Vec<Held>,
    bytes: Vec<u8>,
    /// So many of `held` are groups already merged.
    groups: usize,
    /// The operator did not merge a group: it is not asked again for this key.
    rigid: bool,
    /// Operands of this key go by as they are.
    through: bool,
    /// Operands that are in another operand or value now.
    pub merged: u64,
    /// Keys whose operands the operator refused to merge over a value that was there.
    pub refused: u64,
}

impl<'a> Fold<'a> {
    /// A fold without operands, by this operator.
    pub fn new(merging: &'a Merging) -> Fold<'a> {
        Fold {
            merging,
            key: Vec::new(),
            held: Vec::new(),
            bytes: Vec::new(),
            groups: 0,
            rigid: false,
            through: false,
            merged: 0,
            refused: 0,
        }
    }

    /// True between the first operand of a key and what ends them: what comes next of the key, in
    /// the same stripe, counts.
    pub fn is_open(&self) -> bool {
        self.through || !self.held.is_empty()
    }

    /// The key of the operands that were taken last.
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
        self.held.push(Held {
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
        if self.bytes.len() + self.held.len() * size_of::<Held>() > HELD_BYTES {
            self.write_all(write)?;
            self.through = true;
        }
        Ok(())
    }

    fn operand(&self, i: usize) -> &[u8] {
        let end = self.held.get(i + 1).map_or(self.bytes.len(), |h| h.from);
        &self.bytes[self.held[i].from..end]
    }

    /// From the oldest on, those from place `from` on: that is what operators are given.
    fn oldest_first(&self, from: usize) -> Vec<&[u8]> {
        (from..self.held.len())
            .rev()
            .map(|i| self.operand(i))
            .collect()
    }

    /// Makes one operand of those from place `from` on, if the operator can.
    fn merge_group(&mut self, from: usize) {
        if self.rigid || self.held.len() - from < 2 {
            return;
        }
        let Some(one) = self.merging.partial(&self.key, &self.oldest_first(from)) else {
            self.rigid = true;
            return;
        };
        self.merged += (self.held.len() - from - 1) as u64;
        self.bytes.truncate(self.held[from].from);
        self.bytes.extend_from_slice(&one);
        // It stands in the newest one's place: nobody sees one of them without the others.
        self.held.truncate(from + 1);
    }

    /// The operands merged over what lies below them in their stripe: nothing, or a value. With the
    /// sequence number that it gets. `None` when the operator refuses: the operands are still held,
    /// to be released.
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

    /// What lies below them is not known, or may not be merged with them: writes them, as few as
    /// can be.
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
        self.rigid = false;
        self.through = false;
    }
}
