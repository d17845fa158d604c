//! The server itself: time, stopping, and replication that is not there.

use super::{Context, Done, Failure, Outcome, integer, word};
use crate::resp::request::Request;

pub(crate) fn time(c: &mut Context<'_>, _: &Request) -> Done {
    let ms = c.now_ms();
    c.reply.array(2);
    c.reply.bulk_u64(ms / 1000);
    c.reply.bulk_u64(ms % 1000 * 1000);
    Ok(Outcome::Replied)
}

/// Every metric there is, in Prometheus text format.
pub(crate) fn metrics(c: &mut Context<'_>, _: &Request) -> Done {
    let text = c.exec.env.metrics().prometheus();
    c.reply.verbatim(&text);
    Ok(Outcome::Replied)
}

pub(crate) fn lastsave(c: &mut Context<'_>, _: &Request) -> Done {
    let seconds = c.now_ms() / 1000;
    c.reply.integer(seconds as i64);
    Ok(Outcome::Replied)
}

pub(crate) fn wait(c: &mut Context<'_>, r: &Request) -> Done {
    integer(r, 1)?;
    if crate::number::parse_i64(r.arg(2)).is_none() {
        return Err(Failure::new(
            "ERR timeout is not an integer or out of range",
        ));
    }
    // Everything before it on this connection is answered first, so it waits for the writes anyway.
    c.reply.integer(0);
    Ok(Outcome::Replied)
}

pub(crate) fn shutdown(_: &mut Context<'_>, r: &Request) -> Done {
    for i in 1..r.len() {
        if !matches!(word(r, i).as_str(), "SAVE" | "NOSAVE" | "NOW" | "FORCE") {
            return Err(Failure::syntax());
        }
    }
    Ok(Outcome::Shutdown)
}
