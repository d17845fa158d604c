//! Checkpoints: all logical logs and their indexes in one file, so that recovery reads only what
//! was written since (pageserver 5.2). Beside it, a names file with what no other file has.
//!
//! A checkpoint is fuzzy: it begins with the points of the metalog and the datalog at which it
//! began, and has each log as it was at some moment after that. A replay from the points skips what
//! a log has already: batches and removals by their sequence numbers, pages by their places, trims
//! because they change nothing the second time. Names are those at the point of the metalog, so
//! that a replay meets each name exactly when it was free.
//!
//! | record | payload |
//! |---|---|
//! | the first | next sequence number, next log number, points of the physical logs |
//! | one for each log | number, options, trimmed LSN + 1 or 0, sequence number, name, index |
//! | the last | number of logs |
//!
//! A point is a file number, an offset and the checksum of the header of the record before. There
//! is one for the metalog, one for the datalog and one for moved records.
//!
//! A names file has the same records. In place of the index, the record of a log has the LSNs of
//! the log, as sets, one after the other. If the checkpoint is lost, a repair finds the records in
//! the physical logs, and reads from the names file which of them are live and how the logs are
//! named. An open does not read the names file (decision 0043).

use crate::catalog::{CheckpointFile, Role};
use crate::index::LogIndex;
use crate::log_ops::{get_name, put_name};
use crate::lsn_set::LsnSet;
use crate::namespace::{LogState, NamedLog};
use crate::options::{Duplicates, LogOptions};
use crate::physical::{PhysicalLogs, ReplayStart, append_payloads, log_header, missing};
use basalt_env::Env;
use basalt_fs::{Error, Result};
use basalt_kv::encoding::{get_varint64, put_varint};
use basalt_records::{Expect, FileKind, RecordKind, RecordReader, RecordWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Extension of a checkpoint's name.
pub(crate) const EXTENSION: &str = "checkpoint";
/// Extension of the name of a checkpoint's names file.
pub(crate) const NAMES_EXTENSION: &str = "names";
/// Records of the names file that are written with one write.
const RECORDS_A_WRITE: usize = 256;

/// The points at which a checkpoint began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CheckpointHead {
    pub next_seq: u64,
    pub next_log: u64,
    /// Where the replay of the metalog begins. It goes on with the files of larger numbers.
    pub meta: ReplayStart,
    /// Where the replay of the datalog begins. It goes on with the files of larger numbers.
    pub data: ReplayStart,
    /// Where the replay of moved records begins. It goes on with the files of larger numbers.
    pub moved: ReplayStart,
}

/// Returns the path of a checkpoint.
pub(crate) fn checkpoint_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:06}.{EXTENSION}"))
}

/// Returns the path of a names file.
pub(crate) fn names_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:06}.{NAMES_EXTENSION}"))
}

/// Returns the paths of a store's newest checkpoint and of its names file.
pub(crate) fn current_paths(logs: &PhysicalLogs) -> Vec<PathBuf> {
    let (dir, (checkpoint, names)) = (logs.dir(), logs.checkpoint_files());
    let checkpoint = checkpoint.map(|c| checkpoint_path(dir, c.number));
    let names = names.map(|c| names_path(dir, c.number));
    checkpoint.into_iter().chain(names).collect()
}

fn encode_start(out: &mut Vec<u8>, start: &ReplayStart) {
    put_varint(out, start.file);
    put_varint(out, start.offset);
    put_varint(out, u64::from(start.chain));
}

fn decode_start(bytes: &[u8], at: &mut usize) -> Option<ReplayStart> {
    Some(ReplayStart {
        file: get_varint64(bytes, at)?,
        offset: get_varint64(bytes, at)?,
        chain: u32::try_from(get_varint64(bytes, at)?).ok()?,
    })
}

impl CheckpointHead {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.next_seq);
        put_varint(&mut out, self.next_log);
        encode_start(&mut out, &self.meta);
        encode_start(&mut out, &self.data);
        encode_start(&mut out, &self.moved);
        out
    }

    /// Returns the point from which files of a role are replayed.
    pub fn start_of(&self, role: Role) -> ReplayStart {
        match role {
            Role::Meta => self.meta,
            Role::Data => self.data,
            Role::Moved => self.moved,
        }
    }

    pub fn decode(bytes: &[u8]) -> Option<CheckpointHead> {
        let mut at = 0;
        let head = CheckpointHead {
            next_seq: get_varint64(bytes, &mut at)?,
            next_log: get_varint64(bytes, &mut at)?,
            meta: decode_start(bytes, &mut at)?,
            data: decode_start(bytes, &mut at)?,
            moved: decode_start(bytes, &mut at)?,
        };
        (at == bytes.len()).then_some(head)
    }
}

/// A log as a checkpoint has it, and as its names file has it.
struct EncodedLog {
    in_checkpoint: Vec<u8>,
    in_names: Vec<u8>,
}

/// Encodes a log. Returns `None` if it was deleted.
fn encode_log((name, log): &NamedLog) -> Option<EncodedLog> {
    let mut out = Vec::new();
    put_varint(&mut out, log.number);
    out.push(log.options.duplicates as u8);
    let inner = log.lock();
    if inner.deleted {
        return None;
    }
    // A trim up to the largest number does not overflow: LSNs end below it.
    put_varint(&mut out, inner.trimmed.map_or(0, |trimmed| trimmed + 1));
    put_varint(&mut out, inner.applied_seq);
    put_name(&mut out, name);
    let mut in_names = out.clone();
    inner.index.encode_lsns(&mut in_names);
    inner.index.encode(&mut out);
    Some(EncodedLog {
        in_checkpoint: out,
        in_names,
    })
}

/// Returns the record of the names file for a log that was read from a checkpoint.
pub(crate) fn names_record(log: &Arc<LogState>) -> Option<Vec<u8>> {
    encode_log(&(log.name(), log.clone())).map(|encoded| encoded.in_names)
}

/// The fields of a log's record that come before its index or its LSNs.
struct LogFields {
    number: u64,
    options: LogOptions,
    trimmed: Option<u64>,
    applied_seq: u64,
    name: String,
}

fn decode_fields(bytes: &[u8], at: &mut usize) -> Option<LogFields> {
    let number = get_varint64(bytes, at)?;
    let duplicates = Duplicates::of_number(*bytes.get(*at)?)?;
    *at += 1;
    Some(LogFields {
        number,
        options: LogOptions { duplicates },
        trimmed: get_varint64(bytes, at)?.checked_sub(1),
        applied_seq: get_varint64(bytes, at)?,
        name: get_name(bytes, at)?,
    })
}

pub(crate) fn decode_log(bytes: &[u8], engine: u64) -> Option<Arc<LogState>> {
    let mut at = 0;
    let fields = decode_fields(bytes, &mut at)?;
    let index = LogIndex::decode(bytes, &mut at)?;
    if at != bytes.len() {
        return None;
    }
    let log = LogState::new(engine, fields.number, &fields.name, fields.options);
    let mut inner = log.lock();
    inner.trimmed = fields.trimmed;
    inner.applied_seq = fields.applied_seq;
    inner.index = index;
    drop(inner);
    Some(log)
}

/// A log as a names file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopiedLog {
    pub number: u64,
    pub options: LogOptions,
    pub trimmed: Option<u64>,
    /// Sequence number up to which the LSNs have the log's appends and removals.
    pub applied_seq: u64,
    pub name: String,
    /// The LSNs of all records. Sets may overlap in their ranges.
    pub lsns: Vec<LsnSet>,
}

pub(crate) fn decode_copied(bytes: &[u8]) -> Option<CopiedLog> {
    let mut at = 0;
    let fields = decode_fields(bytes, &mut at)?;
    let sets = get_varint64(bytes, &mut at)?;
    let mut lsns = Vec::new();
    for _ in 0..sets {
        lsns.push(LsnSet::decode(bytes, &mut at).filter(|set| !set.is_empty())?);
    }
    (at == bytes.len()).then_some(CopiedLog {
        number: fields.number,
        options: fields.options,
        trimmed: fields.trimmed,
        applied_seq: fields.applied_seq,
        name: fields.name,
        lsns,
    })
}

/// A checkpoint and its names file, which are durable and which no manifest names yet.
pub(crate) struct WrittenCheckpoint {
    pub checkpoint: CheckpointFile,
    pub names: CheckpointFile,
}

/// Writes a checkpoint of the logs and the names file, durably, to files with these two
/// numbers. Each log is locked while it is encoded. The names must be those at the point of the
/// metalog in `head`. Costs one sync a file.
pub(crate) fn write(
    env: &Env,
    dir: &Path,
    numbers: [u64; 2],
    store_id: u128,
    head: &CheckpointHead,
    logs: &[NamedLog],
) -> Result<WrittenCheckpoint> {
    let mut checkpoint =
        PartWriter::begin(env, &checkpoint_path(dir, numbers[0]), numbers[0], store_id)?;
    let mut names = PartWriter::begin(env, &names_path(dir, numbers[1]), numbers[1], store_id)?;
    checkpoint.append(&[head.encode()])?;
    let mut copied = vec![head.encode()];
    let mut count = 0;
    for encoded in logs.iter().filter_map(encode_log) {
        checkpoint.append(&[encoded.in_checkpoint])?;
        copied.push(encoded.in_names);
        if copied.len() == RECORDS_A_WRITE {
            names.append(&std::mem::take(&mut copied))?;
        }
        count += 1;
    }
    let mut last = Vec::new();
    put_varint(&mut last, count);
    checkpoint.append(std::slice::from_ref(&last))?;
    copied.push(last);
    names.append(&copied)?;
    Ok(WrittenCheckpoint {
        checkpoint: checkpoint.finish()?,
        names: names.finish()?,
    })
}

/// The writer of a checkpoint or of its names file.
struct PartWriter {
    number: u64,
    file_id: u128,
    writer: RecordWriter,
}

impl PartWriter {
    fn begin(env: &Env, path: &Path, number: u64, store_id: u128) -> Result<PartWriter> {
        let file_id = env.random().next_u128();
        let header = log_header(env, file_id, store_id, number);
        Ok(PartWriter {
            number,
            file_id,
            writer: RecordWriter::create(env.fs().create(path)?, path, &header)?,
        })
    }

    /// Appends records with one write.
    fn append(&mut self, payloads: &[Vec<u8>]) -> Result<()> {
        append_payloads(&mut self.writer, RecordKind::Checkpoint, payloads).map(|_| ())
    }

    /// Makes the file durable.
    fn finish(self) -> Result<CheckpointFile> {
        self.writer.file().sync_all()?;
        Ok(CheckpointFile {
            number: self.number,
            file_id: self.file_id,
            end: self.writer.end(),
        })
    }
}

/// Reads a checkpoint that the manifest names.
pub(crate) fn read(
    env: &Env,
    path: &Path,
    file: &CheckpointFile,
    engine: u64,
) -> Result<(CheckpointHead, Vec<Arc<LogState>>)> {
    read_file(env, path, file, |bytes| decode_log(bytes, engine))
}

/// Reads the names file of a checkpoint.
pub(crate) fn read_names(
    env: &Env,
    path: &Path,
    file: &CheckpointFile,
) -> Result<(CheckpointHead, Vec<CopiedLog>)> {
    read_file(env, path, file, decode_copied)
}

/// Reads a checkpoint or a names file. Records of logs are decoded by `decode_log`.
fn read_file<T>(
    env: &Env,
    path: &Path,
    file: &CheckpointFile,
    decode_log: impl Fn(&[u8]) -> Option<T>,
) -> Result<(CheckpointHead, Vec<T>)> {
    let end = file.end;
    let expect = Expect {
        kind: FileKind::Log,
        file_id: Some(file.file_id),
        store_id: None,
        number: None,
        proven_synced: end,
    };
    let opened = env.fs().open(path).map_err(|e| match e.is_not_found() {
        true => missing(path),
        false => e,
    })?;
    let mut reader =
        RecordReader::open_expecting(opened, path, &expect)?.ok_or_else(|| missing(path))?;
    let mut payloads = Vec::new();
    let mut next = |reader: &mut RecordReader| -> Result<bool> {
        let record = reader.next(end)?;
        let found = record.is_some();
        payloads.extend(record.map(|record| (record.offset, record.payload)));
        Ok(found)
    };
    while next(&mut reader)? {}
    let bad = |offset: u64, what: &str| Error::corruption(path, offset, what);
    let [(head_at, head), logs @ .., (last_at, last)] = &payloads[..] else {
        return Err(bad(
            0,
            "the first or the last record of the checkpoint is missing",
        ));
    };
    let head = CheckpointHead::decode(head)
        .ok_or_else(|| bad(*head_at, "the first record of a checkpoint does not decode"))?;
    // The record of a log also begins with a number, so nothing may follow that of the last record.
    let mut at = 0;
    let count = get_varint64(last, &mut at).filter(|_| at == last.len());
    if count != Some(logs.len() as u64) {
        return Err(bad(*last_at, "the number of logs in a checkpoint is wrong"));
    }
    let logs = logs
        .iter()
        .map(|(at, bytes)| {
            decode_log(bytes).ok_or_else(|| bad(*at, "a log in a checkpoint does not decode"))
        })
        .collect::<Result<_>>()?;
    Ok((head, logs))
}

/// Returns a first record, a record of a log, and the same log's record in the names file.
#[cfg(any(test, fuzzing))]
pub(crate) fn examples(index: LogIndex) -> Vec<Vec<u8>> {
    let start = |file| ReplayStart {
        file,
        offset: 70_000,
        chain: 5,
    };
    let head = CheckpointHead {
        next_seq: 1000,
        next_log: 9,
        meta: start(3),
        data: start(4),
        moved: start(5),
    };
    let log = LogState::new(1, 8, "eight", LogOptions::default());
    log.lock().index = index;
    log.lock().trimmed = Some(6);
    let encoded = encode_log(&(log.name(), log.clone())).expect("it was not deleted");
    vec![head.encode(), encoded.in_checkpoint, encoded.in_names]
}

/// Returns false if the bytes are no record of a checkpoint or of its names file. Panics if what
/// was read is not written back to the same record.
#[cfg(any(test, fuzzing))]
pub(crate) fn reads_as_written(bytes: &[u8]) -> bool {
    let head = CheckpointHead::decode(bytes);
    if let Some(head) = &head {
        assert_eq!(CheckpointHead::decode(&head.encode()).as_ref(), Some(head));
    }
    let log = decode_log(bytes, 1);
    if let Some(log) = &log {
        let again = encode_log(&(log.name(), log.clone())).expect("it was not deleted");
        let copied = decode_copied(&again.in_names).expect("it was just written");
        let again = decode_log(&again.in_checkpoint, 1).expect("it was just written");
        assert_eq!((again.number, again.name()), (log.number, log.name()));
        let (a, b) = (again.lock(), log.lock());
        assert_eq!(
            (&a.index, a.trimmed, a.applied_seq),
            (&b.index, b.trimmed, b.applied_seq)
        );
        assert_eq!((copied.number, copied.trimmed), (log.number, b.trimmed));
        assert_eq!(
            (&*copied.name, copied.applied_seq),
            (&*log.name(), b.applied_seq)
        );
    }
    let copied = decode_copied(bytes);
    if let Some(copied) = &copied {
        assert!(copied.lsns.iter().all(|set| set.first() <= set.last()));
    }
    head.is_some() || log.is_some() || copied.is_some()
}
