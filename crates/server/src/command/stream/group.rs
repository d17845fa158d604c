//! XGROUP.

use super::{any_id, group_of, has_group, has_stream, push_help, strict_id};
use crate::command::{CommandResult, Context, Failure, Outcome, integer, quoted, word};
use crate::resp::request::Request;
use crate::stream::StreamId;

const HELP: [&str; 17] = [
    "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CREATE <key> <groupname> <id|$> [option]",
    "    Create a new consumer group. Options are:",
    "    * MKSTREAM",
    "      Create the empty stream if it does not exist.",
    "    * ENTRIESREAD entries_read",
    "      Set the group's entries_read counter (internal use).",
    "CREATECONSUMER <key> <groupname> <consumer>",
    "    Create a new consumer in the specified group.",
    "DELCONSUMER <key> <groupname> <consumer>",
    "    Remove the specified consumer.",
    "DESTROY <key> <groupname>",
    "    Remove the specified group.",
    "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
    "    Set the current group ID and entries_read counter.",
    "HELP",
    "    Prints this help.",
];

pub(crate) fn help(c: &mut Context<'_>, _: &Request) -> CommandResult {
    push_help(c.reply, &HELP);
    Ok(Outcome::Replied)
}

/// The options of XGROUP CREATE and SETID.
#[derive(Default)]
struct Options {
    make_stream: bool,
    entries_read: Option<u64>,
}

fn options(r: &Request, creates: bool) -> Result<Options, Failure> {
    let mut o = Options::default();
    let mut i = 5;
    while i < r.len() {
        match word(r, i).as_str() {
            "MKSTREAM" if creates => {
                o.make_stream = true;
                i += 1;
            }
            "ENTRIESREAD" if i + 1 < r.len() => {
                o.entries_read = match integer(r, i + 1)? {
                    -1 => None,
                    n @ 0.. => Some(n as u64),
                    _ => {
                        return Err(Failure::new(
                            "ERR value for ENTRIESREAD must be positive or -1",
                        ));
                    }
                };
                i += 2;
            }
            _ => return Err(wrong_arguments(r)),
        }
    }
    Ok(o)
}

fn wrong_arguments(r: &Request) -> Failure {
    let sub = r.arg(1);
    Failure::new(format!(
        "ERR unknown subcommand or wrong number of arguments for '{}'. Try XGROUP HELP.",
        quoted(&sub[..sub.len().min(128)])
    ))
}

fn no_key() -> Failure {
    Failure::new(
        "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically.",
    )
}

/// Returns the error of a command on a group that the stream does not have.
pub(super) fn no_group_of_key(key: &[u8], group: &[u8]) -> Failure {
    Failure::new(format!(
        "NOGROUP No such consumer group '{}' for key name '{}'",
        quoted(group),
        quoted(key)
    ))
}

/// Checks that a key has a stream with a group.
fn needs_group(c: &mut Context<'_>, key: &[u8], group: &[u8]) -> Result<(), Failure> {
    if !has_stream(c, key)? {
        return Err(no_key());
    }
    match has_group(c, key, group)? {
        true => Ok(()),
        false => Err(no_group_of_key(key, group)),
    }
}

pub(crate) fn create(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let o = options(r, true)?;
    let (key, group) = (r.arg(2), r.arg(3));
    let exists = has_stream(c, key)?;
    if !exists && !o.make_stream {
        return Err(no_key());
    }
    if r.len() > 8 {
        return Err(wrong_arguments(r));
    }
    let id = match r.arg(4) {
        b"$" if exists => c.keys().loaded_stream(key).state.last_id,
        b"$" => StreamId::MIN,
        id => strict_id(id, 0)?,
    };
    if has_group(c, key, group)? {
        return Err(Failure::new("BUSYGROUP Consumer Group name already exists"));
    }
    if !exists {
        let (incarnation, log) = c.keys().spare_log()?;
        c.keys().create_stream(key, incarnation, log);
    }
    c.keys().create_group(key, group, id, o.entries_read);
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn set_id(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let o = options(r, false)?;
    let (key, group) = (r.arg(2), r.arg(3));
    needs_group(c, key, group)?;
    if r.len() > 7 {
        return Err(wrong_arguments(r));
    }
    let id = match r.arg(4) {
        b"$" => c.keys().loaded_stream(key).state.last_id,
        id => any_id(id, 0)?,
    };
    c.keys().set_group(key, group, id, o.entries_read);
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn destroy(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let (key, group) = (r.arg(2), r.arg(3));
    if !has_stream(c, key)? {
        return Err(no_key());
    }
    let exists = has_group(c, key, group)?;
    if exists {
        c.keys().destroy_group(key, group);
    }
    c.reply.integer(exists.into());
    Ok(Outcome::Replied)
}

pub(crate) fn create_consumer(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let (key, group, consumer) = (r.arg(2), r.arg(3), r.arg(4));
    needs_group(c, key, group)?;
    let exists = group_of(c, key, group).consumer_number(consumer).is_some();
    if !exists {
        c.keys().create_consumer(key, group, consumer);
    }
    c.reply.integer((!exists).into());
    Ok(Outcome::Replied)
}

pub(crate) fn delete_consumer(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let (key, group, consumer) = (r.arg(2), r.arg(3), r.arg(4));
    needs_group(c, key, group)?;
    let pending = match group_of(c, key, group).consumer_number(consumer) {
        Some(_) => c.keys().delete_consumer(key, group, consumer),
        None => 0,
    };
    c.reply.integer(pending as i64);
    Ok(Outcome::Replied)
}
