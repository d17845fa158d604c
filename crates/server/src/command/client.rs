//! Commands on the connection: greeting, names, replies on and off, and the list of all
//! connections.

use super::{
    Action, BlockEnd, CommandResult, Context, Failure, Outcome, Session, integer, too_long, word,
    wrong_arguments,
};
use crate::number::parse_i64;
use crate::resp::Protocol;
use crate::resp::request::Request;
use std::collections::BTreeSet;

/// The version of Redis whose behaviour this server follows. Client libraries decide by it which
/// commands they send.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?";

pub(crate) fn ping(c: &mut Context<'_>, r: &Request) -> CommandResult {
    match r.len() {
        1 => c.reply.simple("PONG"),
        2 => c.reply.bulk_shared(r.arg_bytes(1)),
        _ => return Err(Failure::new(wrong_arguments("ping"))),
    }
    Ok(Outcome::Replied)
}

pub(crate) fn echo(c: &mut Context<'_>, r: &Request) -> CommandResult {
    c.reply.bulk_shared(r.arg_bytes(1));
    Ok(Outcome::Replied)
}

pub(crate) fn quit(c: &mut Context<'_>, _: &Request) -> CommandResult {
    c.reply.ok();
    Ok(Outcome::Close)
}

pub(crate) fn auth(_: &mut Context<'_>, r: &Request) -> CommandResult {
    Err(if r.len() > 3 {
        Failure::syntax()
    } else {
        Failure::new(NO_PASSWORD)
    })
}

pub(crate) fn select(c: &mut Context<'_>, r: &Request) -> CommandResult {
    if integer(r, 1)? != 0 {
        return Err(Failure::new("ERR DB index is out of range"));
    }
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn hello(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let mut protocol = c.session().protocol;
    let mut name = None;
    if r.len() > 1 {
        protocol = match parse_i64(r.arg(1)) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err(Failure::new("NOPROTO unsupported protocol version")),
            None => {
                return Err(Failure::new(
                    "ERR Protocol version is not an integer or out of range",
                ));
            }
        };
        let mut i = 2;
        while i < r.len() {
            match word(r, i).as_str() {
                "AUTH" if i + 2 < r.len() => return Err(Failure::new(NO_PASSWORD)),
                "SETNAME" if i + 1 < r.len() => {
                    name = Some(checked_name(r.arg(i + 1))?);
                    i += 2;
                }
                _ => {
                    return Err(Failure::new(format!(
                        "ERR Syntax error in HELLO option '{}'",
                        super::quoted(r.arg(i))
                    )));
                }
            }
        }
    }
    let session = c.session();
    session.protocol = protocol;
    if let Some(name) = name {
        session.name = name;
    }
    let id = session.id;
    let reply = &mut *c.reply;
    reply.set_protocol(protocol);
    reply.map(7);
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(REDIS_VERSION.as_bytes());
    reply.bulk(b"proto");
    reply.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(id as i64);
    reply.bulk(b"mode");
    reply.bulk(b"standalone");
    reply.bulk(b"role");
    reply.bulk(b"master");
    reply.bulk(b"modules");
    reply.array(0);
    Ok(Outcome::Replied)
}

pub(crate) fn reset(c: &mut Context<'_>, _: &Request) -> CommandResult {
    let session = c.session();
    session.protocol = Protocol::Resp2;
    session.name.clear();
    session.reply_off = false;
    session.reply_skip = false;
    session.reply_skip_next = false;
    session.no_evict = false;
    c.reply.set_protocol(Protocol::Resp2);
    c.reply.simple("RESET");
    Ok(Outcome::Replied)
}

fn checked_name(name: &[u8]) -> Result<String, Failure> {
    if !name.iter().all(|b| (b'!'..=b'~').contains(b)) {
        return Err(Failure::new(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ));
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}

pub(crate) fn id(c: &mut Context<'_>, _: &Request) -> CommandResult {
    let id = c.session().id as i64;
    c.reply.integer(id);
    Ok(Outcome::Replied)
}

pub(crate) fn getname(c: &mut Context<'_>, _: &Request) -> CommandResult {
    let name = c.session().name.clone();
    if name.is_empty() {
        c.reply.null();
    } else {
        c.reply.bulk(name.as_bytes());
    }
    Ok(Outcome::Replied)
}

pub(crate) fn setname(c: &mut Context<'_>, r: &Request) -> CommandResult {
    c.session().name = checked_name(r.arg(2))?;
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn setinfo(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let option = word(r, 2);
    let value = r.arg(3);
    if !value.iter().all(|b| (b'!'..=b'~').contains(b)) {
        return Err(Failure::new(format!(
            "ERR {} cannot contain spaces, newlines or special characters.",
            option.to_ascii_lowercase()
        )));
    }
    let value = String::from_utf8_lossy(value).into_owned();
    match option.as_str() {
        "LIB-NAME" => c.session().library = value,
        "LIB-VER" => c.session().library_version = value,
        _ => {
            return Err(Failure::new(format!(
                "ERR Unrecognized option '{}'",
                super::quoted(r.arg(2))
            )));
        }
    }
    c.reply.ok();
    Ok(Outcome::Replied)
}

fn describe(c: &Context<'_>, s: &Session) -> String {
    let now = c.exec.env.clock().now();
    let age = |since: std::time::Duration| now.saturating_sub(since).as_secs();
    format!(
        "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi=-1 qbuf={} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem={} tot-mem={} events=r cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}",
        s.id,
        s.address,
        s.local,
        s.name,
        age(s.created),
        age(s.last),
        match (s.blocked, s.no_evict) {
            (true, true) => "be",
            (true, false) => "b",
            (false, true) => "e",
            (false, false) => "N",
        },
        s.input_bytes,
        s.reply_bytes,
        s.input_bytes + s.reply_bytes,
        s.last_command,
        if s.protocol == Protocol::Resp3 { 3 } else { 2 },
        s.library,
        s.library_version,
    )
}

pub(crate) fn info(c: &mut Context<'_>, _: &Request) -> CommandResult {
    let session = c.exec.sessions[c.slot].as_ref().expect("a session");
    let line = describe(c, session) + "\n";
    c.reply.verbatim(&line);
    Ok(Outcome::Replied)
}

pub(crate) fn list(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let mut ids: Option<BTreeSet<i64>> = None;
    let mut normal = true;
    if r.len() > 2 {
        match word(r, 2).as_str() {
            "TYPE" if r.len() == 4 => match word(r, 3).as_str() {
                "NORMAL" => {}
                "MASTER" | "REPLICA" | "SLAVE" | "PUBSUB" => normal = false,
                _ => {
                    return Err(Failure::new(format!(
                        "ERR Unknown client type '{}'",
                        super::quoted(r.arg(3))
                    )));
                }
            },
            "ID" if r.len() > 3 => {
                // This is a set: a request may name a million clients, and thousands may be
                // connected.
                let mut list = BTreeSet::new();
                for i in 3..r.len() {
                    list.insert(
                        parse_i64(r.arg(i))
                            .filter(|id| *id > 0)
                            .ok_or_else(|| Failure::new("ERR Invalid client ID"))?,
                    );
                }
                ids = Some(list);
            }
            _ => return Err(Failure::syntax()),
        }
    }
    let mut text = String::new();
    let limit = c.exec.options.reply_hard_bytes;
    if normal {
        for s in c.exec.sessions.iter().flatten() {
            if ids.as_ref().is_none_or(|l| l.contains(&(s.id as i64))) {
                text.push_str(&describe(c, s));
                text.push('\n');
            }
            if text.len() > limit {
                return Err(too_long(limit));
            }
        }
    }
    c.reply.verbatim(&text);
    Ok(Outcome::Replied)
}

pub(crate) fn kill(c: &mut Context<'_>, r: &Request) -> CommandResult {
    // The old form has one address.
    if r.len() == 3 {
        let address = String::from_utf8_lossy(r.arg(2)).into_owned();
        let found = c.exec.sessions.iter().enumerate().find_map(|(slot, s)| {
            let s = s.as_ref()?;
            (s.address.to_string() == address).then_some(Action::Kill { slot, id: s.id })
        });
        let Some(kill) = found else {
            return Err(Failure::new("ERR No such client"));
        };
        c.exec.actions.push(kill);
        c.reply.ok();
        return Ok(Outcome::Replied);
    }
    let me = c.session().id;
    let mut skip_me = true;
    // The last filter of a kind counts, as in Redis. So the cost is not the request's length times
    // the number of clients.
    let (mut with_id, mut address, mut local) = (None, None, None);
    let mut possible = true;
    let mut i = 2;
    while i < r.len() {
        if i + 1 == r.len() {
            return Err(Failure::syntax());
        }
        let value = String::from_utf8_lossy(r.arg(i + 1)).into_owned();
        match word(r, i).as_str() {
            "ID" => {
                let id = parse_i64(r.arg(i + 1))
                    .filter(|id| *id > 0)
                    .ok_or_else(|| Failure::new("ERR client-id should be greater than 0"))?;
                with_id = Some(id as u64);
            }
            "ADDR" => address = Some(value),
            "LADDR" => local = Some(value),
            "USER" => possible &= value == "default",
            "TYPE" => possible &= value.eq_ignore_ascii_case("normal"),
            "SKIPME" => match value.to_ascii_lowercase().as_str() {
                "yes" => skip_me = true,
                "no" => skip_me = false,
                _ => return Err(Failure::syntax()),
            },
            _ => return Err(Failure::syntax()),
        }
        i += 2;
    }
    let chosen = |s: &Session| {
        possible
            && !(skip_me && s.id == me)
            && with_id.is_none_or(|id| s.id == id)
            && (address.as_ref()).is_none_or(|a| s.address.to_string() == *a)
            && (local.as_ref()).is_none_or(|a| s.local.to_string() == *a)
    };
    let before = c.exec.actions.len();
    for (slot, s) in c.exec.sessions.iter().enumerate() {
        if let Some(s) = s.as_ref().filter(|s| chosen(s)) {
            c.exec.actions.push(Action::Kill { slot, id: s.id });
        }
    }
    let killed = c.exec.actions.len() - before;
    c.reply.integer(killed as i64);
    Ok(Outcome::Replied)
}

pub(crate) fn unblock(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let end = match r.len() {
        3 => BlockEnd::TimedOut,
        4 => match word(r, 3).as_str() {
            "TIMEOUT" => BlockEnd::TimedOut,
            "ERROR" => BlockEnd::Refused,
            _ => {
                return Err(Failure::new(
                    "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR",
                ));
            }
        },
        _ => return Err(Failure::syntax()),
    };
    let id = integer(r, 2)?;
    let is_blocked = |s: &Session| s.blocked && i64::try_from(s.id) == Ok(id);
    let sessions = c.exec.sessions.iter().enumerate();
    let found = sessions
        .filter_map(|(slot, s)| Some((slot, s.as_ref()?)))
        .find(|(_, s)| is_blocked(s));
    let action = found.map(|(slot, s)| Action::Unblock {
        slot,
        id: s.id,
        end,
    });
    if let Some(Action::Unblock { slot, .. }) = &action
        && let Some(session) = &mut c.exec.sessions[*slot]
    {
        // The wait ends after this client's turn. A second CLIENT UNBLOCK in the same turn must not
        // find it.
        session.blocked = false;
    }
    c.reply.integer(i64::from(action.is_some()));
    c.exec.actions.extend(action);
    Ok(Outcome::Replied)
}

fn on_off(r: &Request) -> Result<bool, Failure> {
    match word(r, 2).as_str() {
        "ON" => Ok(true),
        "OFF" => Ok(false),
        _ => Err(Failure::syntax()),
    }
}

pub(crate) fn no_evict(c: &mut Context<'_>, r: &Request) -> CommandResult {
    c.session().no_evict = on_off(r)?;
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn no_touch(c: &mut Context<'_>, r: &Request) -> CommandResult {
    on_off(r)?;
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn reply(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let session = c.session();
    match word(r, 2).as_str() {
        "ON" => {
            session.reply_off = false;
            session.reply_skip = false;
            c.reply.ok();
        }
        // OFF itself has no reply. SKIP has none either, and neither has the command after it.
        "OFF" => session.reply_off = true,
        "SKIP" => {
            session.reply_skip = true;
            session.reply_skip_next = !session.reply_off;
        }
        _ => return Err(Failure::syntax()),
    }
    Ok(Outcome::Replied)
}

pub(crate) fn help(c: &mut Context<'_>, r: &Request) -> CommandResult {
    super::introspect::help(c, r)
}
