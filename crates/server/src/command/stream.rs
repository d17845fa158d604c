//! Commands on streams.

pub(crate) mod add;
pub(crate) mod claim;
pub(crate) mod delete;
pub(crate) mod group;
pub(crate) mod info;
pub(crate) mod pending;
pub(crate) mod range;
pub(crate) mod read;
pub(crate) mod read_group;
pub(crate) mod set_id;

use super::{Context, Failure, quoted, too_long};
use crate::keyspace::StreamKey;
use crate::resp::reply::Reply;
use crate::stream::StreamId;
use crate::stream::group::Group;
use crate::stream::jobs::LiveEntry;
use crate::stream::record::Record;

/// Longest text of an id, as in Redis.
const LONGEST_ID: usize = 127;

/// Returns true if a key has a stream, and loads the stream. Returns false if the key does not
/// exist.
fn has_stream(c: &mut Context<'_>, key: &[u8]) -> Result<bool, Failure> {
    match c.keys().stream(key)? {
        StreamKey::Absent => Ok(false),
        StreamKey::Loaded => Ok(true),
        StreamKey::OtherType => Err(Failure::WrongType),
    }
}

/// Adds the lines of a help text to a reply.
fn push_help(reply: &mut Reply, lines: &[&str]) {
    reply.array(lines.len());
    for line in lines {
        reply.simple(line);
    }
}

/// Adds an entry to a reply: its id, then its fields and values.
fn push_entry(reply: &mut Reply, entry: &Record) {
    reply.array(2);
    reply.bulk(entry.id.to_string().as_bytes());
    reply.array(entry.words);
    entry.for_each_word(|word| reply.bulk(word));
}

/// Adds entries to a reply, which must not become longer than `limit` bytes.
fn push_entries(reply: &mut Reply, entries: &[LiveEntry], limit: usize) -> Result<(), Failure> {
    reply.array(entries.len());
    for (_, entry) in entries {
        push_entry(reply, entry);
        if reply.len() > limit {
            return Err(too_long(limit));
        }
    }
    Ok(())
}

/// Returns the error of a command on a group that does not exist.
fn no_group(key: &[u8], group: &[u8]) -> Failure {
    Failure::new(format!(
        "NOGROUP No such key '{}' or consumer group '{}'",
        quoted(key),
        quoted(group)
    ))
}

/// Returns true if a key has a stream with a group, and loads the stream.
fn has_group(c: &mut Context<'_>, key: &[u8], group: &[u8]) -> Result<bool, Failure> {
    let exists = has_stream(c, key)?;
    Ok(exists && c.keys().loaded_stream(key).groups.get(group).is_some())
}

/// Returns a group that [`has_group`] has found.
fn group_of<'a>(c: &'a Context<'_>, key: &[u8], group: &[u8]) -> &'a Group {
    let groups = &c.exec.keys.loaded_stream(key).groups;
    groups.get(group).expect("it was found")
}

fn invalid_id() -> Failure {
    Failure::new("ERR Invalid stream ID specified as stream command argument")
}

/// Parses an id. Refuses `-` and `+`.
fn strict_id(text: &[u8], missing_seq: u64) -> Result<StreamId, Failure> {
    match text.len() <= LONGEST_ID {
        true => StreamId::parse(text, missing_seq).ok_or_else(invalid_id),
        false => Err(invalid_id()),
    }
}

/// Parses an id, or `-` or `+` for the smallest or the largest.
fn any_id(text: &[u8], missing_seq: u64) -> Result<StreamId, Failure> {
    match text {
        b"-" => Ok(StreamId::MIN),
        b"+" => Ok(StreamId::MAX),
        _ => strict_id(text, missing_seq),
    }
}

/// Parses an end of an interval. Returns true with the id if the interval excludes the id.
fn interval_id(text: &[u8], missing_seq: u64) -> Result<(StreamId, bool), Failure> {
    match text.strip_prefix(b"(") {
        Some(id) if text.len() > 1 => Ok((strict_id(id, missing_seq)?, true)),
        _ => Ok((any_id(text, missing_seq)?, false)),
    }
}

/// Parses the smallest id of an interval.
fn interval_start(text: &[u8]) -> Result<StreamId, Failure> {
    let invalid = || Failure::new("ERR invalid start ID for the interval");
    match interval_id(text, 0)? {
        (id, true) => id.next().ok_or_else(invalid),
        (id, false) => Ok(id),
    }
}

/// Parses the largest id of an interval.
fn interval_end(text: &[u8]) -> Result<StreamId, Failure> {
    let invalid = || Failure::new("ERR invalid end ID for the interval");
    match interval_id(text, u64::MAX)? {
        (id, true) => id.previous().ok_or_else(invalid),
        (id, false) => Ok(id),
    }
}
