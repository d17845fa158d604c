//! Records: the changes of metadata that the journal has, and their bytes. A checkpoint is a list
//! of records, too, which makes the metadata from nothing.
//!
//! A record is a tag and its fields. A number is a varint of seven bits a byte, least significant
//! first. A name is its length and its bytes.

use super::runs::Run;

/// The number of an inode: its place in the table of inodes.
pub type Ino = u32;

/// The root directory.
pub const ROOT: Ino = 0;
/// Largest length of a name, in bytes.
pub const MAX_NAME: usize = 255;

/// The kind of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InodeKind {
    /// A file, which grows with its appends.
    File,
    /// A log, which has space ahead of its appends.
    Log,
    /// A directory.
    Dir,
}

impl InodeKind {
    fn number(self) -> u64 {
        match self {
            InodeKind::File => 1,
            InodeKind::Log => 2,
            InodeKind::Dir => 3,
        }
    }

    fn of(number: u64) -> Option<InodeKind> {
        [InodeKind::File, InodeKind::Log, InodeKind::Dir]
            .into_iter()
            .find(|k| k.number() == number)
    }
}

/// One change of the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalRecord {
    /// Makes an inode without a name. In checkpoints only; a [`JournalRecord::Link`] follows there.
    Inode { ino: Ino, kind: InodeKind, len: u64 },
    /// Adds a name for an inode.
    Link { dir: Ino, name: String, ino: Ino },
    /// Removes a name, and the inode if it has no other name.
    Unlink { dir: Ino, name: String },
    /// Moves a name, and replaces the file that has the new one.
    Rename {
        dir: Ino,
        name: String,
        to_dir: Ino,
        to_name: String,
    },
    /// Begins a new life of a log's space: the log has a new name and length 0.
    Reuse {
        dir: Ino,
        name: String,
        to_dir: Ino,
        to_name: String,
    },
    /// Adds blocks at the end of a file.
    Grow { ino: Ino, runs: Vec<Run> },
    /// Adds a hole at the end of a file. In checkpoints only.
    Hole { ino: Ino, blocks: u64 },
    /// Sets the exact length of a file, which may be shorter than its space.
    Length { ino: Ino, len: u64 },
    /// Marks the recorded length as not exact, because bytes are appended behind it.
    /// [`JournalRecord::Grow`] does the same.
    Append { ino: Ino },
    /// Removes the blocks of a file from `blocks` on.
    Cut { ino: Ino, blocks: u64 },
    /// Makes a hole of some blocks of a file.
    Punch { ino: Ino, from: u64, blocks: u64 },
    /// Ends a checkpoint: the journal begins in this run with the transaction `seq`. The
    /// transaction before it is of the life `life`.
    Jump { run: Run, seq: u64, life: u64 },
    /// Makes an inode with a name.
    Create {
        ino: Ino,
        kind: InodeKind,
        dir: Ino,
        name: String,
    },
}

fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn put_all(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|n| put(out, *n));
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    put(out, name.len() as u64);
    out.extend_from_slice(name.as_bytes());
}

/// Reads a list of records. The field is the rest of the list.
pub struct MetaRecordReader<'a>(pub &'a [u8]);

impl MetaRecordReader<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut n = 0u64;
        for i in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if i == 9 && bits > 1 {
                return None;
            }
            n |= bits << (7 * i);
            if byte & 0x80 == 0 {
                // A number has one valid encoding, the shortest.
                return (byte != 0 || i == 0).then_some(n);
            }
        }
        None
    }

    fn ino(&mut self) -> Option<Ino> {
        Ino::try_from(self.number()?).ok()
    }

    fn name(&mut self) -> Option<String> {
        let len = usize::try_from(self.number()?).ok()?;
        if len == 0 || len > MAX_NAME || len > self.0.len() {
            return None;
        }
        let (name, rest) = self.0.split_at(len);
        self.0 = rest;
        String::from_utf8(name.to_vec()).ok()
    }

    fn run(&mut self) -> Option<Run> {
        let (start, len) = (self.number()?, self.number()?);
        let fits = start.checked_add(len)? <= super::runs::MAX_BLOCKS;
        (fits && len > 0).then_some(Run { start, len })
    }

    /// Returns the next record; `Err` for bytes that are no record, which end the list.
    pub fn next(&mut self) -> Option<Result<JournalRecord, &'static str>> {
        if self.0.is_empty() {
            return None;
        }
        let record = self.record();
        if record.is_none() {
            self.0 = &[];
        }
        Some(record.ok_or("bytes that are no record"))
    }

    fn record(&mut self) -> Option<JournalRecord> {
        let record = match self.number()? {
            1 => JournalRecord::Inode {
                ino: self.ino()?,
                kind: InodeKind::of(self.number()?)?,
                len: self.number()?,
            },
            2 => JournalRecord::Link {
                dir: self.ino()?,
                name: self.name()?,
                ino: self.ino()?,
            },
            3 => JournalRecord::Unlink {
                dir: self.ino()?,
                name: self.name()?,
            },
            4 => JournalRecord::Rename {
                dir: self.ino()?,
                name: self.name()?,
                to_dir: self.ino()?,
                to_name: self.name()?,
            },
            5 => JournalRecord::Reuse {
                dir: self.ino()?,
                name: self.name()?,
                to_dir: self.ino()?,
                to_name: self.name()?,
            },
            6 => {
                let ino = self.ino()?;
                let count = self.number()?;
                // Each run takes two bytes at least, so a wrong count cannot make this allocate
                // more.
                if count == 0 || count > self.0.len() as u64 / 2 {
                    return None;
                }
                let runs = (0..count).map(|_| self.run()).collect::<Option<_>>()?;
                JournalRecord::Grow { ino, runs }
            }
            7 => JournalRecord::Hole {
                ino: self.ino()?,
                blocks: self.number()?,
            },
            8 => JournalRecord::Length {
                ino: self.ino()?,
                len: self.number()?,
            },
            9 => JournalRecord::Cut {
                ino: self.ino()?,
                blocks: self.number()?,
            },
            10 => JournalRecord::Punch {
                ino: self.ino()?,
                from: self.number()?,
                blocks: self.number()?,
            },
            11 => JournalRecord::Jump {
                run: self.run()?,
                seq: self.number()?,
                life: self.number()?,
            },
            13 => JournalRecord::Append { ino: self.ino()? },
            12 => JournalRecord::Create {
                ino: self.ino()?,
                kind: InodeKind::of(self.number()?)?,
                dir: self.ino()?,
                name: self.name()?,
            },
            _ => return None,
        };
        Some(record)
    }
}

impl JournalRecord {
    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            JournalRecord::Inode { ino, kind, len } => {
                put_all(out, &[1, u64::from(*ino), kind.number(), *len]);
            }
            JournalRecord::Link { dir, name, ino } => {
                put(out, 2);
                put(out, u64::from(*dir));
                put_name(out, name);
                put(out, u64::from(*ino));
            }
            JournalRecord::Unlink { dir, name } => {
                put(out, 3);
                put(out, u64::from(*dir));
                put_name(out, name);
            }
            JournalRecord::Rename {
                dir,
                name,
                to_dir,
                to_name,
            }
            | JournalRecord::Reuse {
                dir,
                name,
                to_dir,
                to_name,
            } => {
                let reuse = matches!(self, JournalRecord::Reuse { .. });
                put(out, if reuse { 5 } else { 4 });
                put(out, u64::from(*dir));
                put_name(out, name);
                put(out, u64::from(*to_dir));
                put_name(out, to_name);
            }
            JournalRecord::Grow { ino, runs } => {
                put(out, 6);
                put(out, u64::from(*ino));
                put(out, runs.len() as u64);
                for run in runs {
                    put(out, run.start);
                    put(out, run.len);
                }
            }
            JournalRecord::Hole { ino, blocks } => {
                put_all(out, &[7, u64::from(*ino), *blocks]);
            }
            JournalRecord::Length { ino, len } => {
                put_all(out, &[8, u64::from(*ino), *len]);
            }
            JournalRecord::Append { ino } => {
                put_all(out, &[13, u64::from(*ino)]);
            }
            JournalRecord::Cut { ino, blocks } => {
                put_all(out, &[9, u64::from(*ino), *blocks]);
            }
            JournalRecord::Punch { ino, from, blocks } => {
                put_all(out, &[10, u64::from(*ino), *from, *blocks]);
            }
            JournalRecord::Jump { run, seq, life } => {
                put_all(out, &[11, run.start, run.len, *seq, *life]);
            }
            JournalRecord::Create {
                ino,
                kind,
                dir,
                name,
            } => {
                put_all(out, &[12, u64::from(*ino), kind.number(), u64::from(*dir)]);
                put_name(out, name);
            }
        }
    }
}

#[cfg(test)]
mod tests;
