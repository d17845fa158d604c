//! Commands on streams.

pub(crate) mod add;
pub(crate) mod info;
pub(crate) mod range;
pub(crate) mod read;
pub(crate) mod set_id;

use super::{Context, Failure, too_long};
use crate::keyspace::StreamKey;
use crate::resp::reply::Reply;
use crate::stream::StreamId;
use crate::stream::record::Record;

/// Longest text of an id, as in Redis.
const LONGEST_ID: usize = 127;

/// Returns true if a key has a stream, which is loaded then, or false if it has nothing.
fn has_stream(c: &mut Context<'_>, key: &[u8]) -> Result<bool, Failure> {
    match c.keys().stream(key)? {
        StreamKey::Absent => Ok(false),
        StreamKey::Loaded => Ok(true),
        StreamKey::OtherType => Err(Failure::WrongType),
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
fn push_entries(reply: &mut Reply, entries: &[Record], limit: usize) -> Result<(), Failure> {
    reply.array(entries.len());
    for entry in entries {
        push_entry(reply, entry);
        if reply.len() > limit {
            return Err(too_long(limit));
        }
    }
    Ok(())
}

fn invalid_id() -> Failure {
    Failure::new("ERR Invalid stream ID specified as stream command argument")
}

/// Parses an id without the signs for the smallest and the largest.
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
