//! Commands on the server: time, shutdown, and replication, which does not exist.

use super::key::slow;
use super::{CommandResult, Context, Failure, Outcome, SlowKind, integer, word};
use crate::resp::request::Request;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(crate) fn time(c: &mut Context<'_>, _: &Request) -> CommandResult {
    let ms = c.now_ms();
    c.reply.array(2);
    c.reply.bulk_u64(ms / 1000);
    c.reply.bulk_u64(ms % 1000 * 1000);
    Ok(Outcome::Replied)
}

/// Makes a copy of all acknowledged writes, while other clients are served.
pub(crate) fn checkpoint(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let target = Path::new(OsStr::from_bytes(r.arg(2)));
    if !target.is_absolute() || r.arg(2).contains(&0) {
        return Err(Failure::new(
            "ERR the checkpoint's directory is an absolute path on the server",
        ));
    }
    let what = SlowKind::Checkpoint {
        store: c.exec.keys.store().clone(),
        target: target.to_path_buf(),
    };
    slow(c, b"", what)
}

/// Replies with all metrics in Prometheus text format.
pub(crate) fn metrics(c: &mut Context<'_>, _: &Request) -> CommandResult {
    c.exec.show_budgets(c.exec.connected());
    let text = c.exec.env.metrics().prometheus();
    c.reply.verbatim(&text);
    Ok(Outcome::Replied)
}

pub(crate) fn lastsave(c: &mut Context<'_>, _: &Request) -> CommandResult {
    let seconds = c.now_ms() / 1000;
    c.reply.integer(seconds as i64);
    Ok(Outcome::Replied)
}

pub(crate) fn wait(c: &mut Context<'_>, r: &Request) -> CommandResult {
    integer(r, 1)?;
    if crate::number::parse_i64(r.arg(2)).is_none() {
        return Err(Failure::new(
            "ERR timeout is not an integer or out of range",
        ));
    }
    // All earlier requests of this connection are answered first, so this reply waits for the
    // writes anyway.
    c.reply.integer(0);
    Ok(Outcome::Replied)
}

pub(crate) fn shutdown(_: &mut Context<'_>, r: &Request) -> CommandResult {
    for i in 1..r.len() {
        if !matches!(word(r, i).as_str(), "SAVE" | "NOSAVE" | "NOW" | "FORCE") {
            return Err(Failure::syntax());
        }
    }
    Ok(Outcome::Shutdown)
}
