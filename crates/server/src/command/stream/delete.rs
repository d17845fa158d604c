//! XDEL.

use super::{has_stream, strict_id};
use crate::command::{CommandResult, Context, Outcome};
use crate::resp::request::Request;
use crate::stream::StreamId;

pub(crate) fn xdel(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let key = r.arg(1);
    if !has_stream(c, key)? {
        c.reply.integer(0);
        return Ok(Outcome::Replied);
    }
    let ids = r.args().skip(2).map(|id| strict_id(id, 0));
    let ids: Vec<StreamId> = ids.collect::<Result<_, _>>()?;
    let entries = c.keys().stream_locate(key, ids.into_iter())?;
    if !entries.is_empty() {
        c.keys().delete_entries(key, &entries);
    }
    c.reply.integer(entries.len() as i64);
    Ok(Outcome::Replied)
}
