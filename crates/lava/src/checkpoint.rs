//! The bytes of a checkpoint: all metadata as one list of records. The list is cut into pieces,
//! which lie in any free runs. The last record says where the journal goes on.

use std::io::IoSlice;
use std::path::Path;

use super::frame::{CheckpointPiece, PIECE_HEADER};
use super::layout::{PIECE, Superblock, Uuid, max_inodes};
use super::meta::{Meta, MetaCopy};
use super::metadata_record::{JournalRecord, MetaRecordReader};
use super::runs::{BLOCK, Run};
use basalt_fs::device::{Device, DeviceRead, Way};
use basalt_fs::{Error, Result};

/// The records of a checkpoint, cut into pieces without headers.
pub struct CheckpointPieces {
    pieces: Vec<Vec<u8>>,
    unit: usize,
}

impl CheckpointPieces {
    /// Returns the pieces for the records of a copy and the jump behind them. `unit` is the write
    /// unit of the device, in bytes.
    pub fn of(copy: &MetaCopy, jump: JournalRecord, unit: usize) -> CheckpointPieces {
        let mut all = CheckpointPieces {
            pieces: vec![Vec::new()],
            unit,
        };
        let done: std::result::Result<(), std::convert::Infallible> = copy.records(|r| {
            all.push(r);
            Ok(())
        });
        let Ok(()) = done;
        all.push(&jump);
        all
    }

    fn push(&mut self, record: &JournalRecord) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let last = self.pieces.last_mut().expect("never without one");
        if PIECE_HEADER + last.len() + bytes.len() > PIECE {
            self.pieces.push(bytes);
        } else {
            last.extend(bytes);
        }
    }

    fn size(&self, records: &[u8]) -> u64 {
        (PIECE_HEADER + records.len()).next_multiple_of(self.unit) as u64
    }

    /// Returns the size of the checkpoint on the device, in bytes.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|p| self.size(p)).sum()
    }

    /// Returns the bytes of each piece with its header, and its offset in the checkpoint's space.
    pub fn sealed<'a>(
        &'a self,
        uuid: &'a Uuid,
        generation: u64,
        runs: &'a [Run],
    ) -> impl Iterator<Item = (u64, Vec<u8>)> + 'a {
        let mut at = 0;
        self.pieces.iter().enumerate().map(move |(i, records)| {
            let piece = CheckpointPiece {
                generation,
                index: i as u32,
                records,
            };
            let from = at;
            at += self.size(records);
            let offset = place(runs, from).expect("there was room for all of it").0;
            (from, piece.encode(uuid, offset, self.unit))
        })
    }
}

/// Returns the offset on the device of a byte of the checkpoint's space, and the number of bytes
/// from there to the end of the run.
fn place(runs: &[Run], mut at: u64) -> Option<(u64, u64)> {
    for run in runs {
        let len = run.len * BLOCK;
        if at < len {
            return Some((run.start * BLOCK + at, len - at));
        }
        at -= len;
    }
    None
}

/// Writes bytes at the offset `at` of the checkpoint's space.
pub fn write(device: &dyn Device, runs: &[Run], mut at: u64, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let (offset, there) = place(runs, at).expect("there was room for all of it");
        let (now, rest) = bytes.split_at(bytes.len().min(there as usize));
        device.write(offset, &[IoSlice::new(now)], Way::Direct)?;
        at += now.len() as u64;
        bytes = rest;
    }
    Ok(())
}

/// The start of the journal that continues a checkpoint: a mount reads the checkpoint, then replays
/// the journal from here.
#[derive(Debug, Clone, Copy)]
pub struct JournalStart {
    /// The first extent of the journal.
    pub run: Run,
    /// The number of the first transaction in the extent.
    pub seq: u64,
    /// The life of the transaction before that one.
    pub life: u64,
}

/// Bytes of a checkpoint that are read at once. A superblock with a wrong length cannot make the
/// reader allocate more.
const READ: u64 = 1 << 20;

/// Reads the bytes of a checkpoint in their order.
struct CheckpointReader<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    /// Bytes from the offset `at` on.
    bytes: Vec<u8>,
    /// Offset in the checkpoint of the next piece.
    at: u64,
    /// Bytes of the checkpoint that were read.
    read: u64,
}

impl CheckpointReader<'_> {
    /// Returns the next piece, and perhaps bytes behind it.
    fn fill(&mut self) -> Result<&[u8]> {
        let all = self.superblock.checkpoint_bytes;
        while (self.bytes.len() as u64) < PIECE as u64 && self.read < all {
            let (offset, there) = place(&self.superblock.checkpoint, self.read).expect("as above");
            let left = (all - self.read).next_multiple_of(u64::from(self.superblock.unit));
            let read = DeviceRead {
                offset,
                len: left.min(there).min(READ) as usize,
                way: Way::Direct,
            };
            self.bytes.extend_from_slice(&self.device.read(read)?);
            self.read += read.len as u64;
        }
        let end = (all - self.at).min(self.bytes.len() as u64);
        Ok(&self.bytes[..end as usize])
    }

    fn advance(&mut self, size: usize) {
        self.bytes.drain(..size);
        self.at += size as u64;
    }
}

/// Reads a checkpoint. Returns the metadata, and where the journal begins.
///
/// Errors: `Corruption` for a piece that does not belong to the superblock; those of the device.
pub fn read(
    device: &dyn Device,
    superblock: &Superblock,
    name: &Path,
) -> Result<(Meta, JournalStart)> {
    let unit = superblock.unit as usize;
    let runs = &superblock.checkpoint;
    let mut stream = CheckpointReader {
        device,
        superblock,
        bytes: Vec::new(),
        at: 0,
        read: 0,
    };
    let mut meta = Meta::new(max_inodes(superblock.blocks));
    let mut start = None;
    let mut index = 0;
    while stream.at < superblock.checkpoint_bytes {
        let offset = place(runs, stream.at).expect("it is part of the space").0;
        let bytes = stream.fill()?;
        let damage = |what: String| {
            Error::corruption(
                name,
                offset,
                format!("the checkpoint's piece {index} {what}"),
            )
        };
        let piece = CheckpointPiece::decode(bytes, &superblock.uuid, offset, unit);
        let (piece, size) = piece.ok_or_else(|| damage("has a wrong checksum".into()))?;
        if (piece.generation, piece.index) != (superblock.generation, index) {
            return Err(damage(format!(
                "is piece {} of checkpoint {}, expected {}",
                piece.index, piece.generation, superblock.generation
            )));
        }
        let mut records = MetaRecordReader(piece.records);
        while let Some(record) = records.next() {
            let record = record.map_err(|what| damage(format!("has {what}")))?;
            if start.is_some() {
                return Err(damage("goes on behind its end".into()));
            }
            match record {
                JournalRecord::Jump { run, seq, life } => {
                    start = Some(JournalStart { run, seq, life })
                }
                record => meta
                    .restore(&record)
                    .map_err(|r| damage(format!("has {}: {record:?}", r.text())))?,
            }
        }
        stream.advance(size);
        index += 1;
    }
    let damage = |what: String| {
        let at = runs.first().map_or(0, |r| r.start * BLOCK);
        Error::corruption(name, at, format!("the checkpoint {what}"))
    };
    let start = start.ok_or_else(|| damage("has no end".into()))?;
    let seq = start.seq;
    if seq != superblock.checkpoint_seq + 1 {
        return Err(damage(format!(
            "leads to transaction {seq} of the journal, and it was made after {}",
            superblock.checkpoint_seq
        )));
    }
    if let Some(lost) = meta.unreachable().first() {
        return Err(damage(format!(
            "has inode {lost}, which is in no directory"
        )));
    }
    Ok((meta, start))
}
