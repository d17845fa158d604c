//! CONFIG: the settings that client libraries and tools ask for. Settings are given at start. Only
//! the sync policy, the limit on background I/O, keepalive and the idle timeout change later.

use super::{CommandResult, Context, Failure, Outcome, word};
use crate::glob;
use crate::options::{KEEPALIVE_MOST, SyncPolicy};
use crate::resp::request::Request;
use std::time::Duration;

/// The lowest limit on background I/O in bytes a second, as on the command line. Below it flushes
/// would hardly end.
const IO_LIMIT_LEAST: u64 = 1 << 20;

/// Bytes of the longest setting's name.
const LONGEST_NAME: usize = 64;
/// The longest `timeout`, in seconds, as in Redis.
const TIMEOUT_MOST: i64 = i32::MAX as i64;

/// Returns the settings by Redis's names. Some have the value of a Redis with persistence, because
/// writes are durable here.
fn settings(c: &Context<'_>) -> Vec<(&'static str, String)> {
    let o = &c.exec.options;
    vec![
        (
            "appendfsync",
            match c.exec.sync {
                SyncPolicy::Never => "no".into(),
                other => other.name().into(),
            },
        ),
        ("appendonly", "yes".into()),
        (
            "basalt-background-threads",
            c.exec.env.jobs().parallelism().to_string(),
        ),
        (
            "basalt-cache",
            c.exec.env.cache().stats().capacity.to_string(),
        ),
        ("basalt-io-limit", c.exec.env.io_limit().rate().to_string()),
        (
            "basalt-memory",
            c.exec.env.ledger().usage().budget.to_string(),
        ),
        (
            "basalt-open-files",
            c.exec.env.open_files().limit().to_string(),
        ),
        (
            "basalt-write-buffer",
            o.engine.write_buffer_bytes.to_string(),
        ),
        ("bind", c.exec.listening.ip().to_string()),
        ("client-query-buffer-limit", o.max_request_bytes.to_string()),
        ("databases", "1".into()),
        ("dir", o.dir.display().to_string()),
        ("maxclients", o.max_clients.to_string()),
        ("maxmemory", "0".into()),
        ("maxmemory-clients", o.client_memory_bytes.to_string()),
        ("maxmemory-policy", "noeviction".into()),
        ("port", c.exec.listening.port().to_string()),
        ("proto-max-bulk-len", o.max_bulk_bytes.to_string()),
        (
            "protected-mode",
            if o.unprotected { "no" } else { "yes" }.into(),
        ),
        ("save", String::new()),
        ("tcp-keepalive", o.tcp_keepalive.as_secs().to_string()),
        ("timeout", o.idle_timeout.as_secs().to_string()),
    ]
}

/// Greatest number of patterns of one CONFIG GET. Each pattern is compiled, and compared with all
/// settings.
const PATTERNS: usize = 1_024;

pub(crate) fn get(c: &mut Context<'_>, r: &Request) -> CommandResult {
    if r.len() - 2 > PATTERNS {
        return Err(Failure::new(format!(
            "ERR too many patterns: {}, at most {PATTERNS} are allowed",
            r.len() - 2
        )));
    }
    let mut all: Vec<_> = settings(c).into_iter().map(|s| (s, false)).collect();
    for pattern in r.args().skip(2) {
        // Each pattern is compiled once.
        let pattern = glob::Pattern::new(pattern, true, LONGEST_NAME);
        for ((name, _), wanted) in &mut all {
            *wanted = *wanted || pattern.matches(name.as_bytes());
        }
        if all.iter().all(|(_, wanted)| *wanted) {
            break;
        }
    }
    let found = all.into_iter().filter(|(_, wanted)| *wanted);
    let found: Vec<_> = found.map(|(setting, _)| setting).collect();
    c.reply.map(found.len());
    for (name, value) in found {
        c.reply.bulk(name.as_bytes());
        c.reply.bulk(value.as_bytes());
    }
    Ok(Outcome::Replied)
}

/// Parses the setting at `i`, a number of seconds up to `most`.
fn seconds(r: &Request, i: usize, most: i64) -> Result<Duration, Failure> {
    let failed = |why: String| {
        let name = word(r, i).to_ascii_lowercase();
        Failure::new(format!(
            "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
        ))
    };
    match crate::number::parse_i64(r.arg(i + 1)) {
        Some(n) if (0..=most).contains(&n) => Ok(Duration::from_secs(n as u64)),
        Some(_) => Err(failed(format!(
            "argument must be between 0 and {most} inclusive"
        ))),
        None => Err(failed("argument couldn't be parsed into an integer".into())),
    }
}

pub(crate) fn set(c: &mut Context<'_>, r: &Request) -> CommandResult {
    if !r.len().is_multiple_of(2) {
        return Err(Failure::new(super::wrong_arguments("config|set")));
    }
    let (mut sync, mut io_limit) = (None, None);
    let (mut keepalive, mut timeout) = (None, None);
    for i in (2..r.len()).step_by(2) {
        let name = word(r, i).to_ascii_lowercase();
        if name == "appendfsync" {
            let value = String::from_utf8_lossy(r.arg(i + 1));
            sync = Some(SyncPolicy::parse(&value).ok_or_else(|| {
                Failure::new("ERR CONFIG SET failed (possibly related to argument 'appendfsync') - argument(s) must be one of the following: always, everysec, no")
            })?);
        } else if name == "basalt-io-limit" {
            let value = crate::number::parse_i64(r.arg(i + 1)).and_then(|n| u64::try_from(n).ok());
            io_limit = Some(value.filter(|n| !(1..IO_LIMIT_LEAST).contains(n)).ok_or_else(|| {
                Failure::new("ERR CONFIG SET failed (possibly related to argument 'basalt-io-limit') - bytes a second are a number, 0 for no limit or at least 1048576")
            })?);
        } else if name == "tcp-keepalive" {
            keepalive = Some(seconds(r, i, KEEPALIVE_MOST as i64)?);
        } else if name == "timeout" {
            timeout = Some(seconds(r, i, TIMEOUT_MOST)?);
        } else if settings(c).iter().any(|(known, _)| *known == name) {
            return Err(Failure::new(format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - this setting is given when the server starts; only appendfsync, basalt-io-limit, tcp-keepalive and timeout can be changed while it runs"
            )));
        } else {
            return Err(Failure::new(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{}'",
                super::quoted(r.arg(i))
            )));
        }
    }
    if let Some(sync) = sync {
        c.exec.sync = sync;
    }
    if let Some(limit) = io_limit {
        c.exec.env.io_limit().set_rate(limit);
    }
    if let Some(interval) = keepalive {
        // This applies to new connections, as in Redis.
        c.exec.options.tcp_keepalive = interval;
    }
    if let Some(timeout) = timeout {
        c.exec.options.idle_timeout = timeout;
    }
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn resetstat(c: &mut Context<'_>, _: &Request) -> CommandResult {
    c.exec.counters = Default::default();
    c.exec.sampled = (0, c.exec.env.clock().now());
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn rewrite(_: &mut Context<'_>, _: &Request) -> CommandResult {
    Err(Failure::new(
        "ERR The server is running without a config file",
    ))
}

pub(crate) fn help(c: &mut Context<'_>, r: &Request) -> CommandResult {
    super::introspect::help(c, r)
}
