//! XSETID.

use super::{has_stream, strict_id};
use crate::command::{CommandResult, Context, Failure, Outcome, integer, word};
use crate::resp::request::Request;
use crate::stream::StreamId;
use crate::stream::jobs::EntryRange;

fn smaller_than(what: &str) -> Failure {
    Failure::new(format!(
        "ERR The ID specified in XSETID is smaller than {what}"
    ))
}

pub(crate) fn xsetid(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let id = strict_id(r.arg(2), 0)?;
    let (mut entries_added, mut max_deleted_id) = (None, None);
    let mut i = 3;
    while i < r.len() {
        match word(r, i).as_str() {
            "ENTRIESADDED" if i + 1 < r.len() => {
                entries_added = Some(match integer(r, i + 1)? {
                    n @ 0.. => n as u64,
                    _ => return Err(Failure::new("ERR entries_added must be positive")),
                });
            }
            "MAXDELETEDID" if i + 1 < r.len() => {
                let deleted = strict_id(r.arg(i + 1), 0)?;
                if id < deleted {
                    return Err(smaller_than("the provided max_deleted_entry_id"));
                }
                max_deleted_id = Some(deleted);
            }
            _ => return Err(Failure::syntax()),
        }
        i += 2;
    }
    let key = r.arg(1);
    if !has_stream(c, key)? {
        return Err(Failure::new("ERR no such key"));
    }
    let stream = c.keys().loaded_stream(key);
    let (mut state, len) = (stream.state, stream.len());
    if len > 0 {
        let newest = EntryRange {
            start: StreamId::MIN,
            end: StreamId::MAX,
            reverse: true,
            count: 1,
            from_lsn: 0,
        };
        let top = c.keys().stream_range(key, &newest, 0)?;
        if top.first().is_some_and(|(_, top)| id < top.id) {
            return Err(smaller_than("the target stream top item"));
        }
        if entries_added.is_some_and(|n| n < len) {
            return Err(Failure::new(
                "ERR The entries_added specified in XSETID is smaller than the target stream length",
            ));
        }
    }
    if id < state.max_deleted_id {
        return Err(smaller_than("current max_deleted_entry_id"));
    }
    state.last_id = id;
    state.entries_added = entries_added.unwrap_or(state.entries_added);
    // As in Redis, the smallest id changes nothing.
    let max_deleted_id = max_deleted_id.filter(|id| *id != StreamId::MIN);
    state.max_deleted_id = max_deleted_id.unwrap_or(state.max_deleted_id);
    c.keys().change_stream(key, state);
    c.reply.ok();
    Ok(Outcome::Replied)
}
