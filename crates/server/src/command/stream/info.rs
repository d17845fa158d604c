//! XINFO.

use super::{has_stream, push_entries, push_entry};
use crate::command::{CommandResult, Context, Failure, Outcome, integer, word};
use crate::resp::request::Request;
use crate::stream::StreamId;
use crate::stream::jobs::EntryRange;

/// Entries in the reply to XINFO STREAM with FULL and without COUNT.
const FULL_ENTRIES: u64 = 10;
/// Entries of one node of Redis's radix tree, with entries of few bytes.
const NODE_ENTRIES: u64 = 100;

const HELP: [&str; 9] = [
    "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CONSUMERS <key> <groupname>",
    "    Show consumers of <groupname>.",
    "GROUPS <key>",
    "    Show the stream consumer groups.",
    "STREAM <key> [FULL [COUNT <count>]",
    "    Show information about the stream.",
    "HELP",
    "    Prints this help.",
];

pub(crate) fn help(c: &mut Context<'_>, _: &Request) -> CommandResult {
    c.reply.array(HELP.len());
    for line in HELP {
        c.reply.simple(line);
    }
    Ok(Outcome::Replied)
}

pub(crate) fn stream(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let wrong = || {
        Failure::new(
            "ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP.",
        )
    };
    let key = r.arg(2);
    if !has_stream(c, key)? {
        return Err(Failure::new("ERR no such key"));
    }
    let full = match r.len() {
        3 => None,
        4 if word(r, 3) == "FULL" => Some(FULL_ENTRIES),
        6 if word(r, 3) == "FULL" && word(r, 4) == "COUNT" => match integer(r, 5)? {
            // As in Redis, a negative number means the default.
            ..=-1 => Some(FULL_ENTRIES),
            0 => Some(u64::MAX),
            n => Some(n as u64),
        },
        _ => return Err(wrong()),
    };
    let limit = c.exec.options.reply_hard_bytes;
    let mut range = EntryRange {
        start: StreamId::MIN,
        end: StreamId::MAX,
        reverse: false,
        count: full.unwrap_or(1),
    };
    let entries = c.keys().stream_range(key, &range, limit)?;
    range.reverse = true;
    range.count = 1;
    let newest = match full {
        None => c.keys().stream_range(key, &range, limit)?,
        Some(_) => Vec::new(),
    };
    let stream = c.keys().loaded_stream(key);
    let (state, len) = (stream.state, stream.len());
    let nodes = match len {
        0 => 0,
        _ => (state.next_lsn - 2) / NODE_ENTRIES - (state.first_lsn - 1) / NODE_ENTRIES + 1,
    };
    let reply = &mut *c.reply;
    reply.map(if full.is_some() { 9 } else { 10 });
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    for (name, n) in [
        ("length", len),
        ("radix-tree-keys", nodes),
        ("radix-tree-nodes", nodes + 1),
    ] {
        reply.bulk(name.as_bytes());
        reply.integer(number(n));
    }
    for (name, id) in [
        ("last-generated-id", state.last_id),
        ("max-deleted-entry-id", state.max_deleted_id),
    ] {
        reply.bulk(name.as_bytes());
        reply.bulk(id.to_string().as_bytes());
    }
    reply.bulk(b"entries-added");
    reply.integer(number(state.entries_added));
    reply.bulk(b"recorded-first-entry-id");
    let first = entries.first().map_or(StreamId::MIN, |entry| entry.id);
    reply.bulk(first.to_string().as_bytes());
    if full.is_some() {
        reply.bulk(b"entries");
        push_entries(reply, &entries, limit)?;
        reply.bulk(b"groups");
        reply.array(0);
        return Ok(Outcome::Replied);
    }
    reply.bulk(b"groups");
    reply.integer(0);
    for (name, entry) in [
        ("first-entry", entries.first()),
        ("last-entry", newest.first()),
    ] {
        reply.bulk(name.as_bytes());
        match entry {
            Some(entry) => push_entry(reply, entry),
            None => reply.null(),
        }
    }
    Ok(Outcome::Replied)
}
