//! XLEN, XRANGE and XREVRANGE.

use super::{has_stream, interval_end, interval_start, push_entries};
use crate::command::{CommandResult, Context, Failure, Outcome, integer, word};
use crate::resp::request::Request;
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

fn range(c: &mut Context<'_>, r: &Request, reverse: bool) -> CommandResult {
    let (at_start, at_end) = if reverse { (3, 2) } else { (2, 3) };
    let start = interval_start(r.arg(at_start))?;
    let end = interval_end(r.arg(at_end))?;
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
                from_lsn: 0,
            };
            c.exec.keys.stream_range(key, &range, limit)?
        }
    };
    push_entries(c.reply, &found, limit)?;
    Ok(Outcome::Replied)
}
