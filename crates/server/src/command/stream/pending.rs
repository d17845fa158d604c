//! XACK and XPENDING.

use super::{group_of, has_group, interval_end, interval_start, no_group, strict_id};
use crate::command::{CommandResult, Context, Failure, Outcome, integer, too_long, word};
use crate::resp::request::Request;
use crate::stream::StreamId;
use std::collections::BTreeSet;

pub(crate) fn xack(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let (key, group) = (r.arg(1), r.arg(2));
    if !has_group(c, key, group)? {
        c.reply.integer(0);
        return Ok(Outcome::Replied);
    }
    let ids = r.args().skip(3).map(|id| strict_id(id, 0));
    let mut ids: BTreeSet<StreamId> = ids.collect::<Result<_, _>>()?;
    let pending = group_of(c, key, group).pending();
    ids.retain(|id| pending.contains_key(id));
    let acknowledged = ids.len();
    if acknowledged > 0 {
        c.keys().acknowledge(key, group, ids.into_iter());
    }
    c.reply.integer(acknowledged as i64);
    Ok(Outcome::Replied)
}

/// The range of XPENDING.
struct Range<'a> {
    min_idle_ms: u64,
    start: StreamId,
    end: StreamId,
    count: usize,
    consumer: Option<&'a [u8]>,
}

fn range(r: &Request) -> Result<Range<'_>, Failure> {
    if !(6..=9).contains(&r.len()) {
        return Err(Failure::syntax());
    }
    let (mut at, mut min_idle_ms) = (3, 0);
    if word(r, 3) == "IDLE" {
        min_idle_ms = integer(r, 4)?.max(0) as u64;
        if r.len() < 8 {
            return Err(Failure::syntax());
        }
        at = 5;
    }
    let count = integer(r, at + 2)?.max(0) as usize;
    Ok(Range {
        min_idle_ms,
        start: interval_start(r.arg(at))?,
        end: interval_end(r.arg(at + 1))?,
        count,
        consumer: (at + 3 < r.len()).then(|| r.arg(at + 3)),
    })
}

pub(crate) fn xpending(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let range = match r.len() {
        3 => None,
        _ => Some(range(r)?),
    };
    let (key, group) = (r.arg(1), r.arg(2));
    if !has_group(c, key, group)? {
        return Err(no_group(key, group));
    }
    match range {
        None => summary(c, key, group),
        Some(range) => entries(c, key, group, &range)?,
    }
    Ok(Outcome::Replied)
}

fn summary(c: &mut Context<'_>, key: &[u8], group: &[u8]) {
    let keys = &c.exec.keys;
    let group = keys.loaded_stream(key).groups.get(group).expect("found");
    let (reply, pending) = (&mut *c.reply, group.pending());
    reply.array(4);
    reply.integer(pending.len() as i64);
    let ends = pending.first_key_value().zip(pending.last_key_value());
    let Some(((first, _), (last, _))) = ends else {
        reply.null();
        reply.null();
        reply.null_array();
        return;
    };
    reply.bulk(first.to_string().as_bytes());
    reply.bulk(last.to_string().as_bytes());
    let busy = || group.consumers().filter(|c| !c.pending.is_empty());
    reply.array(busy().count());
    for consumer in busy() {
        reply.array(2);
        reply.bulk(&consumer.name);
        reply.bulk_u64(consumer.pending.len() as u64);
    }
}

fn entries(
    c: &mut Context<'_>,
    key: &[u8],
    group: &[u8],
    range: &Range<'_>,
) -> Result<(), Failure> {
    let (now_ms, limit) = (c.now_ms(), c.exec.options.reply_hard_bytes);
    let keys = &c.exec.keys;
    let group = keys.loaded_stream(key).groups.get(group).expect("found");
    let reply = &mut *c.reply;
    let ids: Box<dyn Iterator<Item = &StreamId>> = match range.consumer {
        _ if range.start > range.end => Box::new(std::iter::empty()),
        Some(name) => match group.consumer_number(name) {
            None => Box::new(std::iter::empty()),
            Some(number) => {
                let pending = &group.consumer(number).pending;
                Box::new(pending.range(range.start..=range.end))
            }
        },
        None => Box::new(
            group
                .pending()
                .range(range.start..=range.end)
                .map(|(id, _)| id),
        ),
    };
    let idle_ms = |id: &StreamId| now_ms.saturating_sub(group.pending()[id].delivered_ms);
    let idle = ids.filter(|id| idle_ms(id) >= range.min_idle_ms);
    let found: Vec<&StreamId> = idle.take(range.count).collect();
    reply.array(found.len());
    for id in found {
        let pending = &group.pending()[id];
        reply.array(4);
        reply.bulk(id.to_string().as_bytes());
        reply.bulk(&group.consumer(pending.consumer).name);
        reply.integer(idle_ms(id) as i64);
        reply.integer(pending.deliveries as i64);
        if reply.len() > limit {
            return Err(too_long(limit));
        }
    }
    Ok(())
}
