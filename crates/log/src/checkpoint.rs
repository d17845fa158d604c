//! Checkpoints: all logical logs and their indexes in one file, so that recovery reads only what
//! was written since (pageserver 5.2).
//!
//! A checkpoint is fuzzy: it begins with the points of the metalog and the datalog at which it
//! began, and has each log as it was at some moment after that. A replay from the points skips what
//! a log has already: batches and removals by their sequence numbers, pages by their places, trims
//! because they change nothing the second time.
//!
//! | record | payload |
//! |---|---|
//! | the first | next sequence number, next log number, points of the physical logs |
//! | one for each log | number, options, trimmed LSN + 1 or 0, sequence number, name, index |
//! | the last | number of logs |
//!
//! A point is a file number, an offset and the checksum of the header of the record before. There
//! is one for the metalog, one for the datalog and one for moved records.

use crate::index::LogIndex;
use crate::log_ops::LARGEST_NAME;
use crate::namespace::LogState;
use crate::options::{Duplicates, LogOptions};
use crate::physical::{ReplayStart, append_payload, log_header, missing};
use basalt_env::Env;
use basalt_fs::{Error, Result};
use basalt_kv::encoding::{get_varint64, put_varint};
use basalt_records::{Expect, FileKind, RecordKind, RecordReader, RecordWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Extension of a checkpoint's name.
pub(crate) const EXTENSION: &str = "checkpoint";

/// The points at which a checkpoint began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CheckpointHead {
    pub next_seq: u64,
    pub next_log: u64,
    /// Number of a file of the metalog, and a point in it: a replay begins there, and goes on with
    /// the files of larger numbers.
    pub meta: ReplayStart,
    /// The same of the datalog.
    pub data: ReplayStart,
    /// The same of moved records.
    pub moved: ReplayStart,
}

/// Returns the path of a checkpoint.
pub(crate) fn checkpoint_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:06}.{EXTENSION}"))
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

/// Returns a log as a checkpoint has it.
fn encode_log(log: &LogState) -> Option<Vec<u8>> {
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
    put_varint(&mut out, log.name.len() as u64);
    out.extend_from_slice(log.name.as_bytes());
    inner.index.encode(&mut out);
    Some(out)
}

pub(crate) fn decode_log(bytes: &[u8], engine: u64) -> Option<Arc<LogState>> {
    let mut at = 0;
    let number = get_varint64(bytes, &mut at)?;
    let duplicates = Duplicates::of_number(*bytes.get(at)?)?;
    at += 1;
    let trimmed = get_varint64(bytes, &mut at)?.checked_sub(1);
    let applied_seq = get_varint64(bytes, &mut at)?;
    let len = usize::try_from(get_varint64(bytes, &mut at)?).ok()?;
    let name = bytes.get(at..at.checked_add(len)?)?;
    at += len;
    let name = std::str::from_utf8(name).ok()?.to_string();
    if name.is_empty() || len > LARGEST_NAME {
        return None;
    }
    let index = LogIndex::decode(bytes, &mut at)?;
    if at != bytes.len() {
        return None;
    }
    let log = LogState::new(engine, number, name, LogOptions { duplicates });
    let mut inner = log.lock();
    inner.trimmed = trimmed;
    inner.applied_seq = applied_seq;
    inner.index = index;
    drop(inner);
    Some(log)
}

/// Writes a checkpoint of the logs, durably. Returns the id and the end of the file, which no
/// manifest names yet. Each log is locked while it is encoded.
pub(crate) fn write(
    env: &Env,
    path: &Path,
    number: u64,
    store_id: u128,
    head: &CheckpointHead,
    logs: &[Arc<LogState>],
) -> Result<(u128, u64)> {
    let fs = env.fs();
    let file_id = env.random().next_u128();
    let header = log_header(env, file_id, store_id, number);
    let mut writer = RecordWriter::create(fs.create(path)?, path, &header)?;
    append(&mut writer, &head.encode())?;
    let mut count = 0;
    for log in logs {
        if let Some(bytes) = encode_log(log) {
            append(&mut writer, &bytes)?;
            count += 1;
        }
    }
    let mut last = Vec::new();
    put_varint(&mut last, count);
    append(&mut writer, &last)?;
    writer.sync()?;
    writer.file().sync_all()?;
    Ok((file_id, writer.end()))
}

fn append(writer: &mut RecordWriter, payload: &[u8]) -> Result<()> {
    append_payload(writer, RecordKind::Checkpoint, payload).map(|_| ())
}

/// Reads a checkpoint that the manifest names.
pub(crate) fn read(
    env: &Env,
    path: &Path,
    file_id: u128,
    end: u64,
    engine: u64,
) -> Result<(CheckpointHead, Vec<Arc<LogState>>)> {
    let expect = Expect {
        kind: FileKind::Log,
        file_id: Some(file_id),
        store_id: None,
        number: None,
        proven_synced: end,
    };
    let file = env.fs().open(path).map_err(|e| match e.is_not_found() {
        true => missing(path),
        false => e,
    })?;
    let mut reader =
        RecordReader::open_expecting(file, path, &expect)?.ok_or_else(|| missing(path))?;
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
            "a checkpoint has a first and a last record, and this one has not",
        ));
    };
    let head = CheckpointHead::decode(head)
        .ok_or_else(|| bad(*head_at, "the first record of a checkpoint does not decode"))?;
    if get_varint64(last, &mut 0) != Some(logs.len() as u64) {
        return Err(bad(*last_at, "the number of logs in a checkpoint is wrong"));
    }
    let logs = logs
        .iter()
        .map(|(at, bytes)| {
            decode_log(bytes, engine)
                .ok_or_else(|| bad(*at, "a log in a checkpoint does not decode"))
        })
        .collect::<Result<_>>()?;
    Ok((head, logs))
}

/// Returns a first record and a record of a log.
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
    let log = LogState::new(1, 8, "eight".to_string(), LogOptions::default());
    log.lock().index = index;
    log.lock().trimmed = Some(6);
    vec![head.encode(), encode_log(&log).expect("it was not deleted")]
}

/// Returns false if the bytes are no record of a checkpoint. Panics if what was read is not written
/// back to the same record.
#[cfg(any(test, fuzzing))]
pub(crate) fn reads_as_written(bytes: &[u8]) -> bool {
    let head = CheckpointHead::decode(bytes);
    if let Some(head) = &head {
        assert_eq!(CheckpointHead::decode(&head.encode()).as_ref(), Some(head));
    }
    let log = decode_log(bytes, 1);
    if let Some(log) = &log {
        let again = encode_log(log).expect("it was not deleted");
        let again = decode_log(&again, 1).expect("it was just written");
        assert_eq!((again.number, &again.name), (log.number, &log.name));
        let (a, b) = (again.lock(), log.lock());
        assert_eq!(
            (&a.index, a.trimmed, a.applied_seq),
            (&b.index, b.trimmed, b.applied_seq)
        );
    }
    head.is_some() || log.is_some()
}
