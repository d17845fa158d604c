//! XREADGROUP.

use super::read::{Options, end_wait, options};
use super::{group_of, has_group, has_stream, push_entries, push_entry, strict_id};
use crate::command::{
    AwaitingGroup, Block, CommandResult, Context, Failure, Outcome, Resumed, quoted, too_long,
};
use crate::keyspace::StreamKey;
use crate::resp::request::Request;
use crate::stream::StreamId;
use crate::stream::jobs::{EntryRange, LiveEntry};
use crate::stream::record::Record;
use basalt::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The entries of one stream for the consumer.
enum GroupEntries {
    /// Entries that the group has not delivered, and the id of the stream's first entry.
    New(Vec<LiveEntry>, StreamId),
    /// The consumer's pending entries, without a record if they were deleted.
    Pending(Vec<(StreamId, Option<Record>)>),
}

/// Checks that each stream has the group. Returns an id for each stream: pending entries after this
/// id are requested, or new entries if it is the largest id.
fn ids(
    c: &mut Context<'_>,
    r: &Request,
    o: &Options,
    group: &[u8],
) -> Result<Vec<StreamId>, Failure> {
    let mut after = Vec::with_capacity(o.keys);
    for i in o.first..o.first + o.keys {
        let key = r.arg(i);
        if !has_group(c, key, group)? {
            return Err(Failure::new(format!(
                "NOGROUP No such key '{}' or consumer group '{}' in XREADGROUP with GROUP option",
                quoted(key),
                quoted(group)
            )));
        }
        after.push(match r.arg(i + o.keys) {
            b">" => StreamId::MAX,
            b"$" => {
                return Err(Failure::new(
                    "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set.",
                ));
            }
            id => strict_id(id, 0)?,
        });
    }
    Ok(after)
}

/// Checks that the keys of a blocked request still have the streams and groups of its first run.
fn check_awaited(
    c: &mut Context<'_>,
    r: &Request,
    o: &Options,
    group: &[u8],
    awaited: &[AwaitingGroup],
) -> Result<(), Failure> {
    for (i, awaited) in (o.first..).zip(awaited) {
        let key = r.arg(i);
        let is_loaded = c.keys().stream(key)? == StreamKey::Loaded;
        let stream = is_loaded.then(|| c.keys().loaded_stream(key));
        let Some(stream) = stream.filter(|s| s.incarnation == awaited.incarnation) else {
            return Err(Failure::new("UNBLOCKED the stream key no longer exists"));
        };
        let group = stream.groups.get(group);
        if group.is_none_or(|group| group.number != awaited.group) {
            return Err(Failure::new(
                "NOGROUP the consumer group this client was blocked on no longer exists",
            ));
        }
    }
    Ok(())
}

/// Returns the new entries of a stream that the command has already selected. The command may name
/// a stream more than once. In Redis, it then delivers the first list before it reads the second.
fn selected<'a>(
    r: &'a Request,
    found: &'a [(usize, GroupEntries)],
    key: &'a [u8],
) -> impl Iterator<Item = &'a LiveEntry> {
    let of_key = found.iter().filter(move |(i, _)| r.arg(*i) == key);
    of_key.flat_map(|(_, found)| match found {
        GroupEntries::New(entries, _) => &entries[..],
        GroupEntries::Pending(_) => &[],
    })
}

/// Returns entries after an id that the group has not delivered, and the id of the stream's first
/// entry if the group's counter needs it.
fn new_entries(
    c: &mut Context<'_>,
    key: &[u8],
    group: &[u8],
    (behind, count): (StreamId, u64),
) -> Result<Option<GroupEntries>, Failure> {
    let limit = c.exec.options.reply_hard_bytes;
    let newest = c.keys().loaded_stream(key).state.last_id;
    let of = group_of(c, key, group);
    let (last_id, from_lsn) = (of.last_id.max(behind), of.next_lsn());
    let Some(start) = last_id.next().filter(|_| newest > last_id) else {
        return Ok(None);
    };
    let range = EntryRange {
        start,
        end: StreamId::MAX,
        reverse: false,
        count,
        from_lsn,
    };
    let mut entries = c.keys().stream_range(key, &range, limit)?;
    let stream = c.exec.keys.loaded_stream(key);
    let counts = stream.counts_from_first(group_of(c, key, group));
    // Entries may have been deleted since another thread read them.
    if entries.iter().any(|(lsn, _)| stream.is_live(*lsn)) {
        entries.retain(|(lsn, _)| stream.is_live(*lsn));
    }
    if entries.is_empty() {
        return Ok(None);
    }
    let first = match counts {
        true => c.keys().stream_first_id(key)?,
        false => StreamId::MIN,
    };
    Ok(Some(GroupEntries::New(entries, first)))
}

/// Returns the bytes of the entries of one stream.
fn bytes_of((_, found): &(usize, GroupEntries)) -> usize {
    match found {
        GroupEntries::New(entries, _) => entries.iter().map(|(_, e)| e.body.len()).sum(),
        GroupEntries::Pending(entries) => {
            let there = entries.iter().filter_map(|(_, entry)| entry.as_ref());
            there.map(|entry| entry.body.len()).sum()
        }
    }
}

/// Returns the pending entries of a consumer after an id. `new` has entries that the command itself
/// makes pending.
fn pending_entries(
    c: &mut Context<'_>,
    key: &[u8],
    (group, consumer): (&[u8], &[u8]),
    (after, count): (StreamId, u64),
    new: &BTreeMap<StreamId, &Record>,
) -> Result<GroupEntries, Failure> {
    let limit = c.exec.options.reply_hard_bytes;
    let stream = c.exec.keys.loaded_stream(key);
    let of = group_of(c, key, group);
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    let Some(start) = after.next() else {
        return Ok(GroupEntries::Pending(Vec::new()));
    };
    let pending = of.consumer_number(consumer).into_iter();
    let pending = pending.flat_map(|number| of.consumer(number).pending.range(start..).take(most));
    let new_ids = new.range(start..).map(|(id, _)| id).take(most);
    let ids: BTreeSet<StreamId> = pending.chain(new_ids).copied().collect();
    let ids: Vec<StreamId> = ids.into_iter().take(most).collect();
    let live = |id: &StreamId| {
        let pending = of.pending().get(id).filter(|_| !new.contains_key(id))?;
        stream.is_live(pending.lsn).then_some(pending.lsn)
    };
    let lsns: Vec<Option<u64>> = ids.iter().map(live).collect();
    let asked = lsns.iter().flatten().copied().collect();
    let found = c.exec.keys.stream_entries(key, &asked, limit)?;
    let mut found = found.ok_or_else(|| too_long(limit))?;
    let records = ids.into_iter().zip(lsns).map(|(id, lsn)| {
        let record = match new.get(&id) {
            Some(record) => Some((*record).clone()),
            None => lsn.and_then(|lsn| found.remove(&lsn)),
        };
        (id, record)
    });
    Ok(GroupEntries::Pending(records.collect()))
}

fn reply(
    c: &mut Context<'_>,
    r: &Request,
    found: &[(usize, GroupEntries)],
    limit: usize,
) -> Result<(), Failure> {
    c.reply.map_of_lists(found.len());
    for (i, found) in found {
        c.reply.list_of_map();
        c.reply.bulk(r.arg(*i));
        match found {
            GroupEntries::New(entries, _) => push_entries(c.reply, entries, limit)?,
            GroupEntries::Pending(entries) => {
                c.reply.array(entries.len());
                for (id, entry) in entries {
                    match entry {
                        Some(entry) => push_entry(c.reply, entry),
                        None => {
                            c.reply.array(2);
                            c.reply.bulk(id.to_string().as_bytes());
                            c.reply.null_array();
                        }
                    }
                    if c.reply.len() > limit {
                        return Err(too_long(limit));
                    }
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn xreadgroup(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let o = options(r, true)?;
    let Some(at) = o.group else {
        return Err(Failure::new("ERR Missing GROUP option for XREADGROUP"));
    };
    let (group, consumer) = (r.arg(at), r.arg(at + 1));
    let after = match c.exec.resumed.take() {
        None => ids(c, r, &o, group)?,
        Some(Resumed { end: Some(end), .. }) => return end_wait(c, end),
        Some(Resumed { groups, .. }) => {
            check_awaited(c, r, &o, group, &groups)?;
            vec![StreamId::MAX; o.keys]
        }
    };
    let limit = c.exec.options.reply_hard_bytes;
    let (mut found, mut bytes) = (Vec::new(), 0);
    for (i, after) in (o.first..).zip(after) {
        let key = r.arg(i);
        match after {
            StreamId::MAX => {
                let behind = selected(r, &found, key).last();
                let behind = behind.map_or(StreamId::MIN, |(_, entry)| entry.id);
                let new = new_entries(c, key, group, (behind, o.count))?;
                found.extend(new.map(|new| (i, new)));
            }
            after => {
                // Entries that count as acknowledged at once are never pending.
                let new = selected(r, &found, key).filter(|_| !o.no_ack);
                let new = new.map(|(_, entry)| (entry.id, entry)).collect();
                let who = (group, consumer);
                let pending = pending_entries(c, key, who, (after, o.count), &new)?;
                found.push((i, pending));
            }
        }
        bytes += found.last().filter(|(of, _)| *of == i).map_or(0, bytes_of);
        if bytes > limit {
            return Err(too_long(limit));
        }
    }
    if found.is_empty() {
        return match o.block_ms {
            Some(timeout_ms) => block(c, r, &o, group, timeout_ms),
            None => {
                c.reply.null_array();
                Ok(Outcome::Replied)
            }
        };
    }
    reply(c, r, &found, limit)?;
    for (i, found) in found {
        let key = r.arg(i);
        match found {
            GroupEntries::New(entries, first) => {
                let entries = entries.iter().map(|(lsn, entry)| (*lsn, entry.id));
                let entries: Vec<_> = entries.collect();
                let keys = c.keys();
                keys.deliver(key, group, consumer, &entries, first, o.no_ack);
            }
            GroupEntries::Pending(entries) => {
                let live = entries.into_iter().filter(|(_, entry)| entry.is_some());
                let ids: Vec<StreamId> = live.map(|(id, _)| id).collect();
                c.keys().redeliver(key, group, consumer, &ids);
            }
        }
    }
    Ok(Outcome::Replied)
}

fn block(
    c: &mut Context<'_>,
    r: &Request,
    o: &Options,
    group: &[u8],
    timeout_ms: u64,
) -> CommandResult {
    let (mut keys, mut groups) = (Vec::new(), Vec::new());
    for i in o.first..o.first + o.keys {
        let key = r.arg(i);
        has_stream(c, key)?;
        keys.push(Bytes::copy_from_slice(key));
        groups.push(AwaitingGroup {
            incarnation: c.keys().loaded_stream(key).incarnation,
            group: group_of(c, key, group).number,
        });
    }
    Ok(Outcome::Block(Box::new(Block {
        timeout_ms,
        keys,
        after: Vec::new(),
        groups,
    })))
}
