//! COMMAND: the table of commands for clients.

use super::table::{COMMANDS, Spec, find, resolve};
use super::{CommandResult, Context, Failure, Outcome, too_long, word, wrong_arguments};
use crate::glob;
use crate::resp::reply::Reply;
use crate::resp::request::Request;

pub(crate) fn needs_subcommand(c: &mut Context<'_>, _: &Request) -> CommandResult {
    Err(Failure::new(wrong_arguments(c.spec.full_name)))
}

fn facts(reply: &mut Reply, spec: &Spec) {
    reply.array(10);
    reply.bulk(spec.full_name.as_bytes());
    reply.integer(i64::from(spec.arity));
    let movable = spec.streams_from().map(|_| "movablekeys");
    reply.set(spec.flags.len() + usize::from(movable.is_some()));
    for flag in spec.flags.iter().copied().chain(movable) {
        reply.simple(flag);
    }
    let (first, last, step) = spec.keys;
    for n in [first, last, step] {
        reply.integer(i64::from(n));
    }
    let categories = spec.categories();
    reply.set(categories.len());
    for category in categories {
        reply.simple(&category);
    }
    reply.array(0);
    reply.array(0);
    reply.array(spec.subcommands.len());
    for sub in spec.subcommands {
        facts(reply, sub);
    }
}

pub(crate) fn command(c: &mut Context<'_>, _: &Request) -> CommandResult {
    c.reply.array(COMMANDS.len());
    for spec in COMMANDS {
        facts(c.reply, spec);
    }
    Ok(Outcome::Replied)
}

pub(crate) fn count(c: &mut Context<'_>, _: &Request) -> CommandResult {
    c.reply.integer(COMMANDS.len() as i64);
    Ok(Outcome::Replied)
}

/// Finds a command or `container|subcommand`.
fn named(name: &[u8]) -> Option<&'static Spec> {
    match name.iter().position(|b| *b == b'|') {
        None => find(COMMANDS, name),
        Some(bar) => find(find(COMMANDS, &name[..bar])?.subcommands, &name[bar + 1..]),
    }
}

pub(crate) fn info(c: &mut Context<'_>, r: &Request) -> CommandResult {
    if r.len() == 2 {
        return command(c, r);
    }
    c.reply.array(r.len() - 2);
    for name in r.args().skip(2) {
        match named(name) {
            Some(spec) => facts(c.reply, spec),
            None => c.reply.null(),
        }
        check_length(c)?;
    }
    Ok(Outcome::Replied)
}

fn documentation(reply: &mut Reply, spec: &Spec) {
    reply.bulk(spec.full_name.as_bytes());
    let subs = usize::from(!spec.subcommands.is_empty());
    reply.map(4 + subs);
    for (name, text) in [
        ("summary", spec.summary),
        ("since", spec.since),
        ("group", spec.group),
        ("complexity", spec.complexity),
    ] {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if subs == 1 {
        reply.bulk(b"subcommands");
        reply.map(spec.subcommands.len());
        for sub in spec.subcommands {
            documentation(reply, sub);
        }
    }
}

pub(crate) fn docs(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let list: Vec<&Spec> = if r.len() == 2 {
        COMMANDS.iter().collect()
    } else {
        r.args().skip(2).filter_map(named).collect()
    };
    c.reply.map(list.len());
    for spec in list {
        documentation(c.reply, spec);
        check_length(c)?;
    }
    Ok(Outcome::Replied)
}

/// Greatest length of a reply about commands, in bytes. The loop makes such a reply in one turn.
const LONGEST_REPLY: usize = 4 << 20;

/// Returns an error if the reply exceeds its limit. A request may name a command many times, and
/// each description is longer than the name.
fn check_length(c: &Context<'_>) -> Result<(), Failure> {
    let limit = c.exec.options.reply_hard_bytes.min(LONGEST_REPLY);
    if c.reply.len() > limit {
        return Err(too_long(limit));
    }
    Ok(())
}

/// Bytes of the longest command name.
const LONGEST_NAME: usize = 64;

pub(crate) fn list(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let mut names: Vec<&str> = COMMANDS.iter().map(|s| s.name).collect();
    if r.len() > 2 {
        if r.len() != 5 || word(r, 2) != "FILTERBY" {
            return Err(Failure::syntax());
        }
        match word(r, 3).as_str() {
            "PATTERN" => {
                let pattern = glob::Pattern::new(r.arg(4), true, LONGEST_NAME);
                names.retain(|n| pattern.matches(n.as_bytes()));
            }
            "ACLCAT" => {
                let wanted = format!("@{}", word(r, 4).to_ascii_lowercase());
                names = COMMANDS
                    .iter()
                    .filter(|s| s.categories().contains(&wanted))
                    .map(|s| s.name)
                    .collect();
            }
            "MODULE" => names.clear(),
            _ => return Err(Failure::syntax()),
        }
    }
    c.reply.array(names.len());
    for name in names {
        c.reply.bulk(name.as_bytes());
    }
    Ok(Outcome::Replied)
}

pub(crate) fn getkeys(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let arguments: Vec<&[u8]> = r.args().skip(2).collect();
    let request = Request::from_arguments(&arguments);
    let spec = match resolve(&request) {
        Ok(spec) => spec,
        Err(e) if e.starts_with("ERR wrong number") => {
            return Err(Failure::new(
                "ERR Invalid number of arguments specified for command",
            ));
        }
        Err(_) => return Err(Failure::new("ERR Invalid command specified")),
    };
    let keys = spec.keys_of(&request);
    if keys.is_empty() {
        return Err(Failure::new(match spec.streams_from() {
            Some(_) => "ERR Invalid arguments specified for command",
            None => "ERR The command has no key arguments",
        }));
    }
    c.reply.array(keys.len());
    for i in keys {
        c.reply.bulk(request.arg(i));
    }
    Ok(Outcome::Replied)
}

/// Replies to HELP of any container: its subcommands with their summaries.
pub(crate) fn help(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let container = find(COMMANDS, r.arg(0)).expect("the command that runs");
    let name = container.name.to_ascii_uppercase();
    c.reply.array(1 + 2 * container.subcommands.len());
    c.reply.simple(&format!(
        "{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ));
    for sub in container.subcommands {
        c.reply.simple(&sub.name.to_ascii_uppercase());
        c.reply.simple(&format!("    {}", sub.summary));
    }
    Ok(Outcome::Replied)
}
