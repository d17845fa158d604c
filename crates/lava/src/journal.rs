//! The journal: a chain of extents of which each says where the next one lies, and in them transactions, each written once.
//!
//! # What it promises
//! A transaction that a flush covered is found by [`replay`], with all before it. The first bad one ends the journal, unless something after it
//! proves that it had been durable: every frame tells up to which transaction all had been when it was written. Then it is damage.
//!
//! A mount that writes begins an extent anew, with a random number of its own, its life, in every frame; and each extent says of which life the
//! transaction before its first one is. So what a power cut left behind the end, valid as it may be, is never taken for what came later: it follows
//! another life, or is of one.

use std::io::IoSlice;
use std::path::Path;

use super::checkpoint::Jump;
use super::frame::{ExtentHeader, Transaction};
use super::layout::{FIRST_BLOCK, Uuid};
use super::runs::{BLOCK, Run};
use basalt_fs::device::{Device, DeviceRead, Way};
use basalt_fs::{Error, Result};

/// Writes transactions, one after the other.
pub struct JournalWriter {
    uuid: Uuid,
    unit: usize,
    life: u64,
    /// The life of the transaction before the next one.
    before: u64,
    /// What it writes to is the last one.
    extents: Vec<Run>,
    /// Where it goes on. Only a fresh extent may be without.
    next: Option<Run>,
    /// Where the next frame goes, in bytes of the device.
    at: u64,
    /// The number of the next transaction.
    seq: u64,
    /// The extent's header is still to be written.
    fresh: bool,
    /// Bytes written since the extents before were given up.
    bytes: u64,
}

impl JournalWriter {
    /// Begins an extent: nothing is written before the first transaction.
    pub fn begin(
        tail: &JournalEnd,
        uuid: Uuid,
        unit: usize,
        next: Option<Run>,
        life: u64,
    ) -> JournalWriter {
        let extents = tail.extents.clone();
        let fresh = *extents.last().expect("a journal has an extent");
        JournalWriter {
            uuid,
            unit,
            life,
            before: tail.life,
            extents,
            next,
            at: fresh.start * BLOCK,
            seq: tail.seq,
            fresh: true,
            bytes: tail.bytes,
        }
    }

    fn current(&self) -> Run {
        *self.extents.last().expect("a journal has an extent")
    }

    /// What it writes to, and where it goes on.
    #[cfg(test)]
    pub fn places(&self) -> (Run, Option<Run>) {
        (self.current(), self.next)
    }

    #[cfg(test)]
    pub fn forget_next(&mut self) -> Option<Run> {
        self.next.take()
    }

    /// The number of the transaction that comes next.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// How many extents the journal has, the next one among them.
    pub fn extents(&self) -> usize {
        self.extents.len() + usize::from(self.next.is_some())
    }

    /// Bytes of the journal, headers among them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True when a transaction with so many bytes of records goes to the next extent: [`JournalWriter::switch_extent`] comes first then.
    pub fn is_full(&self, records: usize) -> bool {
        self.at + self.size(records, self.fresh) > self.current().bytes().end
    }

    fn size(&self, records: usize, fresh: bool) -> u64 {
        let header = if fresh { self.unit } else { 0 };
        (Transaction::size(records, self.unit) + header) as u64
    }

    /// How many extents have to be found before transactions with so many bytes of records are written: one for each switch_extent, and one if it has no next
    /// one yet.
    pub fn extents_for(&self, transactions: impl Iterator<Item = usize>) -> usize {
        let (mut at, mut end) = (self.at, self.current().bytes().end);
        let (mut fresh, mut needs) = (self.fresh, 0);
        let extent = self.current().len * BLOCK;
        for (i, records) in transactions.enumerate() {
            needs += usize::from(i == 0 && self.next.is_none());
            if at + self.size(records, fresh) > end {
                (at, end, fresh) = (0, extent, true);
                needs += 1;
            }
            at += self.size(records, fresh);
            fresh = false;
        }
        needs
    }

    /// What it has to have before it writes.
    pub fn needs_next(&self) -> bool {
        self.next.is_none()
    }

    /// Where it goes on when this extent is full.
    pub fn set_next(&mut self, next: Run) {
        assert!(self.next.is_none(), "it has one");
        self.next = Some(next);
    }

    /// Goes on in the next extent, which must be there, and notes the one behind it.
    pub fn switch_extent(&mut self, next: Option<Run>) {
        let now = std::mem::replace(&mut self.next, next);
        let now = now.expect("an extent that was written to has a next one");
        self.at = now.start * BLOCK;
        self.extents.push(now);
        self.fresh = true;
    }

    /// Writes a transaction, for which there is room. It is durable after the next flush.
    pub fn write(&mut self, device: &dyn Device, records: &[u8], synced: u64) -> Result<u64> {
        assert!(
            !self.is_full(records.len()),
            "callers switch_extent in time"
        );
        let mut bytes = Vec::new();
        if self.fresh {
            let header = ExtentHeader {
                life: self.life,
                first_seq: self.seq,
                synced,
                next: self.next.expect("callers see to it"),
                blocks: self.current().len as u32,
                before: self.before,
            };
            bytes = header.encode(&self.uuid, self.at, self.unit);
        }
        let transaction = Transaction {
            life: self.life,
            seq: self.seq,
            synced,
            records,
        };
        let at = self.at + bytes.len() as u64;
        bytes.extend(transaction.encode(&self.uuid, at, self.unit));
        device.write(self.at, &[IoSlice::new(&bytes)], Way::Direct)?;
        self.fresh = false;
        self.before = self.life;
        self.at += bytes.len() as u64;
        self.bytes += bytes.len() as u64;
        self.seq += 1;
        Ok(self.seq - 1)
    }

    /// The extent that the next transaction goes to, the life before it, and how many extents before belong to the journal that a checkpoint of all up to
    /// now makes unneeded. Call [`JournalWriter::switch_extent`] before, so that it is a fresh one.
    pub fn fresh_extent(&self) -> (Run, u64, usize) {
        assert!(self.fresh, "an extent in use");
        (self.current(), self.before, self.extents.len() - 1)
    }

    /// True when nothing was written to the extent yet.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Takes the first extents out: a checkpoint stands for them.
    pub fn drop_extents(&mut self, extents: usize, bytes: u64) -> Vec<Run> {
        self.bytes -= bytes;
        self.extents.drain(..extents).collect()
    }
}

/// How a journal ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEnd {
    /// The number of the transaction that comes next.
    pub seq: u64,
    /// All of its extents. The last one has nothing in it that counts.
    pub extents: Vec<Run>,
    /// Bytes of its frames.
    pub bytes: u64,
    /// The life of the last transaction.
    pub life: u64,
}

/// Where a journal is read from.
pub struct JournalSource<'a> {
    /// The device.
    pub device: &'a dyn Device,
    /// The filesystem.
    pub uuid: Uuid,
    /// Bytes that are written whole.
    pub unit: usize,
    /// Blocks of the device.
    pub blocks: u64,
    /// Blocks of an extent.
    pub journal_blocks: u32,
    /// For messages.
    pub name: &'a Path,
}

impl JournalSource<'_> {
    fn damage(&self, at: u64, message: String) -> Error {
        Error::corruption(self.name, at, message)
    }

    /// Where the chain may lead to.
    fn checked(&self, run: Run, at: u64) -> Result<Run> {
        let end = run.start.checked_add(run.len);
        let fits = run.start >= FIRST_BLOCK && end.is_some_and(|end| end <= self.blocks);
        match fits && run.len == u64::from(self.journal_blocks) {
            true => Ok(run),
            false => Err(self.damage(
                at,
                format!(
                    "the journal goes on in {} blocks at {}, which are not on the device or no extent",
                    run.len, run.start
                ),
            )),
        }
    }

    /// Something in `bytes`, which lie at `at`, proves that the transaction `seq` had been durable. What a power cut left of an earlier life does
    /// not: that `seq` was not durable then is why its number is given out again.
    fn proof(&self, bytes: &[u8], at: u64, seq: u64) -> Option<u64> {
        (0..bytes.len() / self.unit).find_map(|i| {
            let (from, here) = (i * self.unit, at + (i * self.unit) as u64);
            let rest = &bytes[from..];
            let header = ExtentHeader::decode(&rest[..self.unit], &self.uuid, here);
            if header.is_some_and(|h| h.first_seq > seq && h.synced >= seq) {
                return Some(here);
            }
            let (t, _) = Transaction::decode(rest, &self.uuid, here, self.unit)?;
            (t.seq > seq && t.synced >= seq).then_some(here)
        })
    }
}

/// Reads a journal from where a checkpoint leads to, and calls `apply` with the number and the records of each.
///
/// Errors: `Corruption` when a transaction is bad that had been durable; those of `apply` and of the device.
pub fn replay(
    source: &JournalSource<'_>,
    from: Jump,
    mut apply: impl FnMut(u64, u64, &[u8]) -> Result<()>,
) -> Result<JournalEnd> {
    let mut tail = JournalEnd {
        seq: from.seq,
        extents: vec![source.checked(from.run, from.run.start * BLOCK)?],
        bytes: 0,
        life: from.life,
    };
    let damaged = |at: u64, seq: u64, proof: u64| {
        source.damage(
            at,
            format!(
                "the journal's transaction {seq} is not readable, and it had been durable: what lies at {proof} was written after that"
            ),
        )
    };
    loop {
        let extent = *tail.extents.last().expect("at least one");
        let start = extent.start * BLOCK;
        let bytes = source.device.read(DeviceRead {
            offset: start,
            len: (extent.len * BLOCK) as usize,
            way: Way::Direct,
        })?;
        let header = ExtentHeader::decode(&bytes[..source.unit], &source.uuid, start)
            .filter(|h| h.first_seq == tail.seq && h.before == tail.life)
            .filter(|h| u64::from(h.blocks) == extent.len);
        let Some(header) = header else {
            let proof = source.proof(&bytes, start, tail.seq);
            return match proof {
                Some(proof) => Err(damaged(start, tail.seq, proof)),
                None => Ok(tail),
            };
        };
        let mut at = source.unit;
        while at < bytes.len() {
            let here = start + at as u64;
            let found = Transaction::decode(&bytes[at..], &source.uuid, here, source.unit)
                .filter(|(t, _)| t.life == header.life && t.seq == tail.seq);
            let Some((t, size)) = found else { break };
            apply(t.seq, here, t.records)?;
            tail.seq += 1;
            tail.life = t.life;
            at += size;
        }
        tail.bytes += at as u64;
        let proof = source.proof(&bytes[at..], start + at as u64, tail.seq);
        if let Some(proof) = proof {
            return Err(damaged(start + at as u64, tail.seq, proof));
        }
        let next = source.checked(header.next, start)?;
        if tail.extents.contains(&next) {
            return Err(source.damage(start, "the journal leads back to itself".to_string()));
        }
        tail.extents.push(next);
    }
}
