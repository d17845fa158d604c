//! Checkpoints: all metadata as one list of records, in pieces, wherever there was room. The last record says where the journal goes on.

use std::io::IoSlice;
use std::path::Path;

use super::frame::{CheckpointPiece, PIECE_HEADER};
use super::layout::{PIECE, Superblock, Uuid, max_inodes};
use super::meta::{Meta, MetaCopy};
use super::record::{JournalRecord, RecordReader};
use super::runs::{BLOCK, Run};
use basalt_fs::device::{Device, DeviceRead, Way};
use basalt_fs::{Error, Result};

/// Records of a checkpoint, in pieces that are not sealed yet.
pub struct CheckpointPieces {
    pieces: Vec<Vec<u8>>,
    unit: usize,
}

impl CheckpointPieces {
    /// The records of a copy, and the jump behind them.
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

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|p| self.size(p)).sum()
    }

    /// Each piece's bytes, by where it begins in the checkpoint's space.
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

/// Where a byte of the checkpoint's space lies on the device, and how many follow it there.
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

/// Writes bytes at a place of the checkpoint's space.
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

/// Where the journal goes on behind a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Jump {
    /// Its extent.
    pub run: Run,
    /// The transaction that comes first in it.
    pub seq: u64,
    /// The life of the transaction before that.
    pub life: u64,
}

/// Bytes of a checkpoint that are read at once. Whatever a superblock says of its length: no more of it is in memory.
const READ: u64 = 1 << 20;

/// A checkpoint's bytes in their order.
struct CheckpointReader<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    /// Those from `at` on that were read.
    bytes: Vec<u8>,
    at: u64,
    read: u64,
}

impl CheckpointReader<'_> {
    /// The next piece, whole, and maybe more.
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

/// Reads a checkpoint: the metadata, and where the journal goes on.
///
/// Errors: `Corruption` when a piece is not what the superblock promises.
pub fn read(device: &dyn Device, superblock: &Superblock, name: &Path) -> Result<(Meta, Jump)> {
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
    let mut jump = None;
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
                "is piece {} of checkpoint {}, and {} is looked for",
                piece.index, piece.generation, superblock.generation
            )));
        }
        let mut records = RecordReader(piece.records);
        while let Some(record) = records.next() {
            let record = record.map_err(|what| damage(format!("has {what}")))?;
            if jump.is_some() {
                return Err(damage("goes on behind its end".into()));
            }
            match record {
                JournalRecord::Jump { run, seq, life } => jump = Some(Jump { run, seq, life }),
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
    let jump = jump.ok_or_else(|| damage("has no end".into()))?;
    let seq = jump.seq;
    if seq != superblock.checkpoint_seq + 1 {
        return Err(damage(format!(
            "leads to transaction {seq} of the journal, and it was made after {}",
            superblock.checkpoint_seq
        )));
    }
    if let Some(lost) = meta.unreachable().first() {
        return Err(damage(format!(
            "has inode {lost}, which hangs in no directory"
        )));
    }
    Ok((meta, jump))
}
