//! XLEN, XRANGE and XREVRANGE.

use super::{any_id, has_stream, push_entries, strict_id};
use crate::command::{CommandResult, Context, Failure, Outcome, integer, word};
use crate::resp::request::Request;
use crate::stream::StreamId;
use crate::stream::jobs::EntryRange;

pub(crate) fn xlen(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let len = match has_stream(c, r.arg(1))? {
        true => c.keys().loaded_stream(r.arg(1)).len(),
        false => 0,
    };
    c.reply.integer(len as i64);
    Ok(Outcome::Replied)
}

pub(crate) fn xrange(c: &mut Context<'_>, r: &Request) -> CommandResult {
    range(c, r, false)
}

pub(crate) fn xrevrange(c: &mut Context<'_>, r: &Request) -> CommandResult {
    range(c, r, true)
}

/// Parses an end of an interval, and whether the id itself is left out.
fn interval_end(text: &[u8], missing_seq: u64) -> Result<(StreamId, bool), Failure> {
    match text.strip_prefix(b"(") {
        Some(id) if text.len() > 1 => Ok((strict_id(id, missing_seq)?, true)),
        _ => Ok((any_id(text, missing_seq)?, false)),
    }
}

fn range(c: &mut Context<'_>, r: &Request, reverse: bool) -> CommandResult {
    let (at_start, at_end) = if reverse { (3, 2) } else { (2, 3) };
    let (mut start, without) = interval_end(r.arg(at_start), 0)?;
    if without {
        let next = start.next();
        start = next.ok_or_else(|| Failure::new("ERR invalid start ID for the interval"))?;
    }
    let (mut end, without) = interval_end(r.arg(at_end), u64::MAX)?;
    if without {
        let previous = end.previous();
        end = previous.ok_or_else(|| Failure::new("ERR invalid end ID for the interval"))?;
    }
    let mut count = None;
    let mut i = 4;
    while i < r.len() {
        if word(r, i) != "COUNT" || i + 1 == r.len() {
            return Err(Failure::syntax());
        }
        count = Some(integer(r, i + 1)?.max(0) as u64);
        i += 2;
    }
    let key = r.arg(1);
    if !has_stream(c, key)? {
        c.reply.array(0);
        return Ok(Outcome::Replied);
    }
    if count == Some(0) {
        c.reply.null_array();
        return Ok(Outcome::Replied);
    }
    let limit = c.exec.options.reply_hard_bytes;
    let found = match start <= end {
        false => Vec::new(),
        true => {
            let range = EntryRange {
                start,
                end,
                reverse,
                count: count.unwrap_or(u64::MAX),
            };
            c.exec.keys.stream_range(key, &range, limit)?
        }
    };
    push_entries(c.reply, &found, limit)?;
    Ok(Outcome::Replied)
}
