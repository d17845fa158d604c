//! XINFO.

use super::group::no_group_of_key;
use super::{has_group, has_stream, push_entries, push_entry, push_help};
use crate::command::{CommandResult, Context, Failure, Outcome, integer, too_long, word};
use crate::resp::reply::Reply;
use crate::resp::request::Request;
use crate::stream::StreamId;
use crate::stream::group::Group;
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
    push_help(c.reply, &HELP);
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
        from_lsn: 0,
    };
    let entries = c.keys().stream_range(key, &range, limit)?;
    range.reverse = true;
    range.count = 1;
    let newest = match full {
        None => c.keys().stream_range(key, &range, limit)?,
        Some(_) => Vec::new(),
    };
    let first_id = first_for_groups(c, key)?;
    let count = full.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let stream = c.keys().loaded_stream(key);
    let (state, len, groups) = (stream.state, stream.len(), stream.groups.len());
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
    let first = entries.first().map_or(StreamId::MIN, |(_, entry)| entry.id);
    reply.bulk(first.to_string().as_bytes());
    if full.is_some() {
        reply.bulk(b"entries");
        push_entries(reply, &entries, limit)?;
        reply.bulk(b"groups");
        push_groups(c, key, first_id, count, limit)?;
        return Ok(Outcome::Replied);
    }
    reply.bulk(b"groups");
    reply.integer(groups as i64);
    for (name, entry) in [
        ("first-entry", entries.first()),
        ("last-entry", newest.first()),
    ] {
        reply.bulk(name.as_bytes());
        match entry {
            Some((_, entry)) => push_entry(reply, entry),
            None => reply.null(),
        }
    }
    Ok(Outcome::Replied)
}

/// Returns the id of the first entry of a stream, if the counters of one of its groups need it.
fn first_for_groups(c: &mut Context<'_>, key: &[u8]) -> Result<StreamId, Failure> {
    let stream = c.keys().loaded_stream(key);
    let mut groups = stream.groups.iter();
    let counts = groups.any(|(_, group)| stream.counts_from_first(group));
    drop(groups);
    match counts {
        true => Ok(c.keys().stream_first_id(key)?),
        false => Ok(StreamId::MIN),
    }
}

fn push_number_or_null(reply: &mut Reply, n: Option<i64>) {
    match n {
        Some(n) => reply.integer(n),
        None => reply.null(),
    }
}

fn push_position(reply: &mut Reply, group: &Group, lag: Option<i64>) {
    reply.bulk(b"last-delivered-id");
    reply.bulk(group.last_id.to_string().as_bytes());
    reply.bulk(b"entries-read");
    push_number_or_null(reply, group.entries_read.map(|n| n as i64));
    reply.bulk(b"lag");
    push_number_or_null(reply, lag);
}

fn push_field(reply: &mut Reply, name: &str, n: u64) {
    reply.bulk(name.as_bytes());
    reply.integer(i64::try_from(n).unwrap_or(i64::MAX));
}

/// Adds the groups of a stream to the reply to XINFO STREAM FULL, each with at most `count` pending
/// entries, and as many of each consumer.
fn push_groups(
    c: &mut Context<'_>,
    key: &[u8],
    first_id: StreamId,
    count: usize,
    limit: usize,
) -> Result<(), Failure> {
    let stream = c.exec.keys.loaded_stream(key);
    let reply = &mut *c.reply;
    reply.array(stream.groups.len());
    for (name, group) in stream.groups.iter() {
        reply.map(7);
        reply.bulk(b"name");
        reply.bulk(name);
        push_position(reply, group, stream.lag(group, first_id));
        let pending = group.pending();
        push_field(reply, "pel-count", pending.len() as u64);
        reply.bulk(b"pending");
        reply.array(pending.len().min(count));
        for (id, entry) in pending.iter().take(count) {
            reply.array(4);
            reply.bulk(id.to_string().as_bytes());
            reply.bulk(&group.consumer(entry.consumer).name);
            reply.integer(entry.delivered_ms as i64);
            reply.integer(entry.deliveries as i64);
            if reply.len() > limit {
                return Err(too_long(limit));
            }
        }
        reply.bulk(b"consumers");
        reply.array(group.consumers().len());
        for consumer in group.consumers() {
            reply.map(4);
            reply.bulk(b"name");
            reply.bulk(&consumer.name);
            push_field(reply, "seen-time", consumer.seen_ms);
            push_field(reply, "pel-count", consumer.pending.len() as u64);
            reply.bulk(b"pending");
            reply.array(consumer.pending.len().min(count));
            for id in consumer.pending.iter().take(count) {
                let entry = &pending[id];
                reply.array(3);
                reply.bulk(id.to_string().as_bytes());
                reply.integer(entry.delivered_ms as i64);
                reply.integer(entry.deliveries as i64);
            }
            if reply.len() > limit {
                return Err(too_long(limit));
            }
        }
    }
    Ok(())
}

pub(crate) fn groups(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let key = r.arg(2);
    if !has_stream(c, key)? {
        return Err(Failure::new("ERR no such key"));
    }
    let first_id = first_for_groups(c, key)?;
    let stream = c.exec.keys.loaded_stream(key);
    let (reply, limit) = (&mut *c.reply, c.exec.options.reply_hard_bytes);
    reply.array(stream.groups.len());
    for (name, group) in stream.groups.iter() {
        reply.map(6);
        reply.bulk(b"name");
        reply.bulk(name);
        push_field(reply, "consumers", group.consumers().len() as u64);
        push_field(reply, "pending", group.pending().len() as u64);
        push_position(reply, group, stream.lag(group, first_id));
        if reply.len() > limit {
            return Err(too_long(limit));
        }
    }
    Ok(Outcome::Replied)
}

pub(crate) fn consumers(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let (key, group, now_ms) = (r.arg(2), r.arg(3), c.now_ms());
    if !has_stream(c, key)? {
        return Err(Failure::new("ERR no such key"));
    }
    if !has_group(c, key, group)? {
        return Err(no_group_of_key(key, group));
    }
    let groups = &c.exec.keys.loaded_stream(key).groups;
    let group = groups.get(group).expect("just found");
    let (reply, limit) = (&mut *c.reply, c.exec.options.reply_hard_bytes);
    reply.array(group.consumers().len());
    for consumer in group.consumers() {
        reply.map(3);
        reply.bulk(b"name");
        reply.bulk(&consumer.name);
        push_field(reply, "pending", consumer.pending.len() as u64);
        push_field(reply, "idle", now_ms.saturating_sub(consumer.seen_ms));
        if reply.len() > limit {
            return Err(too_long(limit));
        }
    }
    Ok(Outcome::Replied)
}
