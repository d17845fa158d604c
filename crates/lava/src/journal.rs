//! The journal: a chain of extents with transactions. Each extent says where the next one lies.
//! Each transaction is written once.
//!
//! # Guarantees
//! [`replay`] finds each transaction that was written before a flush, and all transactions before
//! it. The first unreadable transaction ends the journal, unless a later frame proves that it had
//! been durable: each frame has the number of the last transaction that was durable when the frame
//! was written. Then the unreadable transaction is damage.
//!
//! A mount for writing begins a new extent. All its frames have the random number of the mount, its
//! life. Each extent also has the life of the transaction before its first one. So valid frames
//! that a power cut left behind the end are never read as later transactions: they follow another
//! life, or are of another life.

use std::io::IoSlice;
use std::path::Path;

use super::checkpoint::JournalStart;
use super::frame::{ExtentHeader, Transaction};
use super::layout::{FIRST_BLOCK, Uuid};
use super::runs::{BLOCK, Run};
use basalt_fs::device::{Device, DeviceRead, Way};
use basalt_fs::{Error, Result};

/// Writes transactions one after the other.
pub struct JournalWriter {
    uuid: Uuid,
    /// Write unit of the device, in bytes.
    unit: usize,
    /// The random number of this mount.
    life: u64,
    /// The life of the last transaction.
    before: u64,
    /// Extents of the journal. Transactions go to the last one.
    extents: Vec<Run>,
    /// The extent where the journal goes on. Only a fresh extent may be without a next one.
    next: Option<Run>,
    /// Offset on the device of the next frame, in bytes.
    at: u64,
    /// Number of the next transaction.
    seq: u64,
    /// The header of the extent is not written yet.
    fresh: bool,
    /// Size of the journal behind the last checkpoint, in bytes.
    bytes: u64,
}

impl JournalWriter {
    /// Begins an extent. Nothing is written before the first transaction.
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

    /// Returns the extent that transactions go to, and the next one.
    #[cfg(test)]
    pub fn places(&self) -> (Run, Option<Run>) {
        (self.current(), self.next)
    }

    #[cfg(test)]
    pub fn forget_next(&mut self) -> Option<Run> {
        self.next.take()
    }

    /// Returns the number of the next transaction.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the number of extents, the next one included.
    pub fn extents(&self) -> usize {
        self.extents.len() + usize::from(self.next.is_some())
    }

    /// Returns the size of the journal with its headers, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns `true` if a transaction with `records` bytes of records goes to the next extent.
    /// Then [`JournalWriter::switch_extent`] comes first.
    pub fn is_full(&self, records: usize) -> bool {
        self.at + self.size(records, self.fresh) > self.current().bytes().end
    }

    fn size(&self, records: usize, fresh: bool) -> u64 {
        let header = if fresh { self.unit } else { 0 };
        (Transaction::size(records, self.unit) + header) as u64
    }

    /// Returns the number of extents that must be allocated before transactions of these sizes are
    /// written: one for each switch of the extent, and one if there is no next extent yet.
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

    /// Returns `true` if the writer has no next extent, which it needs before it writes.
    pub fn needs_next(&self) -> bool {
        self.next.is_none()
    }

    /// Sets the next extent.
    pub fn set_next(&mut self, next: Run) {
        assert!(self.next.is_none(), "it has one");
        self.next = Some(next);
    }

    /// Goes on in the next extent, which must be set, and notes the one behind it.
    pub fn switch_extent(&mut self, next: Option<Run>) {
        let now = std::mem::replace(&mut self.next, next);
        let now = now.expect("an extent that was written to has a next one");
        self.at = now.start * BLOCK;
        self.extents.push(now);
        self.fresh = true;
    }

    /// Writes a transaction, which must fit into the extent. It is durable after the next flush.
    /// Returns the number of the transaction.
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

    /// Returns the extent of the next transaction, the life of the transaction before it, and the
    /// number of earlier extents, which a checkpoint of all transactions up to now replaces.
    ///
    /// # Panics
    /// If the extent is in use. [`JournalWriter::switch_extent`] begins a fresh one.
    pub fn fresh_extent(&self) -> (Run, u64, usize) {
        assert!(self.fresh, "an extent in use");
        (self.current(), self.before, self.extents.len() - 1)
    }

    /// Returns `true` if nothing was written to the extent yet.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Removes the first extents, with `bytes` bytes of frames, because a checkpoint replaces them.
    pub fn drop_extents(&mut self, extents: usize, bytes: u64) -> Vec<Run> {
        self.bytes -= bytes;
        self.extents.drain(..extents).collect()
    }
}

/// The end of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEnd {
    /// Number of the next transaction.
    pub seq: u64,
    /// Extents of the journal. The last one has no valid transaction.
    pub extents: Vec<Run>,
    /// Size of the frames, in bytes.
    pub bytes: u64,
    /// The life of the last transaction.
    pub life: u64,
}

/// The device that a journal is read from, and its sizes.
pub struct JournalSource<'a> {
    pub device: &'a dyn Device,
    /// The random number of the filesystem.
    pub uuid: Uuid,
    /// Write unit, in bytes.
    pub unit: usize,
    /// Blocks of the device.
    pub blocks: u64,
    /// Blocks of an extent.
    pub journal_blocks: u32,
    /// The name of the image in messages.
    pub name: &'a Path,
}

impl JournalSource<'_> {
    fn damage(&self, at: u64, message: String) -> Error {
        Error::corruption(self.name, at, message)
    }

    /// Returns a run that the chain leads to, if it is an extent on the device.
    ///
    /// Errors: `Corruption`.
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

    /// Returns the offset of a frame in `bytes`, which lie at `at`, that proves that the
    /// transaction `seq` had been durable. Frames of an earlier life prove nothing of the kind:
    /// their mount reuses the number `seq` because that transaction was not durable.
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

/// Reads a journal from its first extent on. Calls `apply` with the number, the offset on the
/// device and the records of each transaction. Returns the end of the journal.
///
/// Errors: `Corruption` for an unreadable transaction that had been durable; those of `apply` and
/// of the device.
pub fn replay(
    source: &JournalSource<'_>,
    from: JournalStart,
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
            return Err(source.damage(start, "the extents of the journal form a cycle".to_string()));
        }
        tail.extents.push(next);
    }
}
