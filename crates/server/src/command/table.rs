//! The table of commands: names, arity, flags, positions of keys, and documentation. Arity checks,
//! COMMAND and `docs/server.md` come from this table.

use super::{
    CommandResult, Context, client, config, info, introspect, key, stream, string, system,
};
use crate::resp::request::Request;

type Run = fn(&mut Context<'_>, &Request) -> CommandResult;

/// One command, or one subcommand of a container.
pub struct Spec {
    /// Name in lower case.
    pub name: &'static str,
    /// Name in error messages: `config|get` for a subcommand.
    pub full_name: &'static str,
    /// Number of arguments with the name. A negative number is a minimum.
    pub arity: i32,
    /// Redis's flags.
    pub flags: &'static [&'static str],
    /// Position of the first key, of the last key (negative from the end), and the step between
    /// keys; zeros without keys.
    pub keys: (i32, i32, i32),
    /// Redis's group.
    pub group: &'static str,
    /// The version of Redis that first had the command, or whose behaviour it has.
    pub since: &'static str,
    /// Cost of the command in this server.
    pub complexity: &'static str,
    /// Summary of the command.
    pub summary: &'static str,
    /// Subcommands. The container's own function runs without any of them.
    pub subcommands: &'static [Spec],
    pub(crate) run: Run,
}

impl Spec {
    /// Returns true for commands that change keys.
    pub fn writes(&self) -> bool {
        self.flags.contains(&"write")
    }

    /// Returns the positions of keys in a request of `len` arguments.
    pub fn keys(&self, len: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { len as i32 + last } else { last };
        let end = if first == 0 { 0 } else { last + 1 };
        (first..end.min(len as i32))
            .step_by(step.max(1) as usize)
            .map(|i| i as usize)
    }

    /// Returns the first position at which the word STREAMS may be, for commands whose keys follow
    /// that word.
    pub fn streams_from(&self) -> Option<usize> {
        match self.full_name {
            "xread" => Some(1),
            "xreadgroup" => Some(4),
            _ => None,
        }
    }

    /// Returns the positions of keys in a request, like Redis's COMMAND GETKEYS. Returns an empty
    /// list if the keys cannot be found. The command may still refuse the request.
    pub fn keys_of(&self, request: &Request) -> Vec<usize> {
        let Some(from) = self.streams_from() else {
            return self.keys(request.len()).collect();
        };
        // No keys follow the last argument.
        let mut places = from..request.len().saturating_sub(1);
        let word = places.find(|i| request.arg(*i).eq_ignore_ascii_case(b"streams"));
        // The first half of the arguments after the word are keys, and the second half are ids.
        let keys = word.map(|word| word + 1..word + 1 + (request.len() - word - 1) / 2);
        keys.into_iter().flatten().collect()
    }

    fn fits(&self, len: usize) -> bool {
        let len = len as i32;
        if self.arity < 0 {
            len >= -self.arity
        } else {
            len == self.arity
        }
    }

    /// Returns the access categories, which follow from flags and group.
    pub fn categories(&self) -> Vec<String> {
        let mut out = Vec::new();
        if self.flags.contains(&"write") {
            out.push("@write".to_string());
        }
        if self.flags.contains(&"readonly") && self.keys.0 != 0 {
            out.push("@read".to_string());
        }
        match self.group {
            "generic" => out.push("@keyspace".into()),
            "string" => out.push("@string".into()),
            "stream" => out.push("@stream".into()),
            "connection" => out.push("@connection".into()),
            _ => {}
        }
        if self.flags.contains(&"admin") {
            out.extend(["@admin".to_string(), "@dangerous".to_string()]);
        }
        out.push(
            if self.flags.contains(&"fast") {
                "@fast"
            } else {
                "@slow"
            }
            .into(),
        );
        if self.flags.contains(&"blocking") {
            out.push("@blocking".to_string());
        }
        out
    }
}

/// Finds the command of a request and checks its arity. Returns the error's text if that fails.
pub(crate) fn resolve(request: &Request) -> Result<&'static Spec, String> {
    let Some(spec) = find(COMMANDS, request.arg(0)) else {
        return Err(unknown(request));
    };
    let spec = if spec.subcommands.is_empty() || request.len() == 1 {
        spec
    } else {
        let sub = request.arg(1);
        find(spec.subcommands, sub).ok_or_else(|| {
            let name = spec.name.to_ascii_uppercase();
            // These are Redis's own words. If there is no HELP, they do not advise to use it.
            let advice = if sub.eq_ignore_ascii_case(b"help") {
                let names = spec.subcommands.iter().map(|s| s.name.to_ascii_uppercase());
                format!("{name} has {}.", names.collect::<Vec<_>>().join(", "))
            } else {
                format!("Try {name} HELP.")
            };
            format!(
                "ERR unknown subcommand '{}'. {advice}",
                super::quoted(&sub[..sub.len().min(128)]),
            )
        })?
    };
    if !spec.fits(request.len()) {
        return Err(super::wrong_arguments(spec.full_name));
    }
    Ok(spec)
}

/// Finds a command by name, in any case.
pub(crate) fn find(commands: &'static [Spec], name: &[u8]) -> Option<&'static Spec> {
    let mut lower = [0u8; 24];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let place = commands
        .binary_search_by(|s| s.name.as_bytes().cmp(lower))
        .ok()?;
    Some(&commands[place])
}

/// Returns Redis's error text for an unknown command, with the first arguments.
fn unknown(request: &Request) -> String {
    let cut = |arg: &[u8], n: usize| super::quoted(&arg[..arg.len().min(n)]).into_owned();
    let mut args = String::new();
    for arg in request.args().skip(1) {
        if args.len() >= 128 {
            break;
        }
        args.push_str(&format!("'{}' ", cut(arg, 128 - args.len())));
    }
    format!(
        "ERR unknown command '{}', with args beginning with: {args}",
        cut(request.arg(0), 128)
    )
}

macro_rules! spec {
    ($name:literal, $full:literal, $arity:literal, [$($flag:literal)*], $keys:expr, $group:literal, $since:literal,
     $complexity:literal, $summary:literal, $run:expr, $sub:expr) => {
        Spec {
            name: $name,
            full_name: $full,
            arity: $arity,
            flags: &[$($flag),*],
            keys: $keys,
            group: $group,
            since: $since,
            complexity: $complexity,
            summary: $summary,
            subcommands: $sub,
            run: $run,
        }
    };
}

/// Makes the entry of a string command on one key.
macro_rules! string {
    ($name:literal, $arity:literal, [$($flag:literal)*], $since:literal, $summary:literal, $run:expr) => {
        spec!($name, $name, $arity, [$($flag)*], (1, 1, 1), "string", $since, "O(1)", $summary, $run, &[])
    };
}

/// Makes the entry of a stream command on one key.
macro_rules! stream {
    ($name:literal, $arity:literal, [$($flag:literal)*], $cost:literal, $summary:literal, $run:expr) => {
        spec!($name, $name, $arity, [$($flag)*], (1, 1, 1), "stream", "5.0.0", $cost, $summary, $run, &[])
    };
}

/// Makes the entry of a subcommand on one stream.
macro_rules! group {
    ($name:literal, $full:literal, $arity:literal, [$($flag:literal)*], $since:literal, $cost:literal, $summary:literal, $run:expr) => {
        spec!($name, $full, $arity, [$($flag)*], (2, 2, 1), "stream", $since, $cost, $summary, $run, &[])
    };
}

macro_rules! generic {
    ($name:literal, $arity:literal, [$($flag:literal)*], $since:literal, $summary:literal, $run:expr) => {
        spec!($name, $name, $arity, [$($flag)*], (1, 1, 1), "generic", $since, "O(1)", $summary, $run, &[])
    };
}

macro_rules! connection {
    ($name:literal, $full:literal, $arity:literal, $since:literal, $summary:literal, $run:expr) => {
        spec!($name, $full, $arity, ["noscript" "loading" "stale" "fast"], (0, 0, 0), "connection", $since, "O(1)", $summary, $run, &[])
    };
}

macro_rules! server {
    ($name:literal, $full:literal, $arity:literal, $since:literal, $complexity:literal, $summary:literal, $run:expr) => {
        spec!($name, $full, $arity, ["loading" "stale"], (0, 0, 0), "server", $since, $complexity, $summary, $run, &[])
    };
}

const NO_KEYS: (i32, i32, i32) = (0, 0, 0);

/// Every command, sorted by name.
pub static COMMANDS: &[Spec] = &[
    string!("append", 3, ["write" "denyoom" "fast"], "2.0.0", "Appends to the value of a key.", string::append),
    connection!(
        "auth",
        "auth",
        -2,
        "1.0.0",
        "Answers that there is no password.",
        client::auth
    ),
    spec!("basalt", "basalt", -2, ["admin" "noscript" "loading" "stale"], NO_KEYS, "server", "7.0.0", "Depends on subcommand.",
    "A container for commands that Redis does not have.", introspect::needs_subcommand, &[
        server!("checkpoint", "basalt|checkpoint", 3, "7.0.0", "O(N) beside other clients, the number of tables", "Makes a copy of the store in a new directory.", system::checkpoint),
        server!("help", "basalt|help", 2, "7.0.0", "O(1)", "Returns help about BASALT.", introspect::help),
        server!("metrics", "basalt|metrics", 2, "7.0.0", "O(1)", "Returns all metrics in Prometheus text format.", system::metrics),
    ]),
    spec!("client", "client", -2, ["noscript" "loading" "stale"], NO_KEYS, "connection", "2.4.0", "Depends on subcommand.",
    "A container for connection commands.", introspect::needs_subcommand, &[
        connection!("getname", "client|getname", 2, "2.6.9", "Returns the connection's name.", client::getname),
        connection!("help", "client|help", 2, "5.0.0", "Returns help about CLIENT.", client::help),
        connection!("id", "client|id", 2, "5.0.0", "Returns the connection's number.", client::id),
        connection!("info", "client|info", 2, "6.2.0", "Describes the connection.", client::info),
        connection!("kill", "client|kill", -3, "2.4.0", "Closes connections.", client::kill),
        connection!("list", "client|list", -2, "2.4.0", "Describes all connections.", client::list),
        connection!("no-evict", "client|no-evict", 3, "7.0.0", "Sets whether the connection may be closed to save memory.", client::no_evict),
        connection!("no-touch", "client|no-touch", 3, "7.2.0", "Accepted without effect: reads never change idle times.", client::no_touch),
        connection!("reply", "client|reply", 3, "3.2.0", "Turns replies on or off, or skips one.", client::reply),
        connection!("setinfo", "client|setinfo", 4, "7.2.0", "Sets the client library's name or version.", client::setinfo),
        connection!("setname", "client|setname", 3, "2.6.9", "Names the connection.", client::setname),
        connection!("unblock", "client|unblock", -3, "5.0.0", "Ends the wait of a blocked client.", client::unblock),
    ]),
    spec!("command", "command", -1, ["loading" "stale"], NO_KEYS, "server", "2.8.13", "O(N), the number of commands",
    "Describes commands.", introspect::command, &[
        server!("count", "command|count", 2, "2.8.13", "O(1)", "Returns the number of commands.", introspect::count),
        server!("docs", "command|docs", -2, "7.0.0", "O(N)", "Returns documentation of commands.", introspect::docs),
        server!("getkeys", "command|getkeys", -4, "2.8.13", "O(N)", "Returns the keys of a request.", introspect::getkeys),
        server!("help", "command|help", 2, "5.0.0", "O(1)", "Returns help about COMMAND.", introspect::help),
        server!("info", "command|info", -2, "2.8.13", "O(N)", "Returns facts about commands.", introspect::info),
        server!("list", "command|list", -2, "7.0.0", "O(N)", "Returns the names of commands.", introspect::list),
    ]),
    spec!("config", "config", -2, ["admin" "noscript" "loading" "stale"], NO_KEYS, "server", "2.0.0", "Depends on subcommand.",
    "A container for configuration commands.", introspect::needs_subcommand, &[
        server!("get", "config|get", -3, "2.0.0", "O(N)", "Returns settings that match patterns.", config::get),
        server!("help", "config|help", 2, "5.0.0", "O(1)", "Returns help about CONFIG.", config::help),
        server!("resetstat", "config|resetstat", 2, "2.0.0", "O(1)", "Resets the counters of INFO.", config::resetstat),
        server!("rewrite", "config|rewrite", 2, "2.8.0", "O(1)", "Answers that there is no configuration file.", config::rewrite),
        server!("set", "config|set", -4, "2.0.0", "O(1)", "Sets `appendfsync`, `timeout`, `tcp-keepalive` or `basalt-io-limit`; other settings are given at start.", config::set),
    ]),
    spec!(
        "dbsize",
        "dbsize",
        1,
        ["readonly"],
        NO_KEYS,
        "server",
        "1.0.0",
        "O(N) beside other clients; O(1) while nothing changed since the last",
        "Returns the exact number of keys.",
        key::dbsize,
        &[]
    ),
    string!("decr", 2, ["write" "denyoom" "fast"], "1.0.0", "Decrements the integer at a key.", string::decr),
    string!("decrby", 3, ["write" "denyoom" "fast"], "1.0.0", "Decrements the integer at a key by a number.", string::decrby),
    spec!(
        "del",
        "del",
        -2,
        ["write"],
        (1, -1, 1),
        "generic",
        "1.0.0",
        "O(N), the number of keys",
        "Deletes keys.",
        key::del,
        &[]
    ),
    connection!(
        "echo",
        "echo",
        2,
        "1.0.0",
        "Returns its argument.",
        client::echo
    ),
    spec!("exists", "exists", -2, ["readonly" "fast"], (1, -1, 1), "generic", "1.0.0", "O(N), the number of keys",
        "Counts how many of the keys exist.", key::exists, &[]),
    generic!("expire", -3, ["write" "fast"], "1.0.0", "Sets the expiry of a key, in seconds from now.", key::expire),
    generic!("expireat", -3, ["write" "fast"], "1.2.0", "Sets the expiry of a key, in seconds since 1970.", key::expireat),
    generic!("expiretime", 2, ["readonly" "fast"], "7.0.0", "Returns the expiry of a key, in seconds since 1970.", key::expiretime),
    spec!(
        "flushall",
        "flushall",
        -1,
        ["write"],
        NO_KEYS,
        "server",
        "1.0.0",
        "O(1); space comes back in the background",
        "Removes every key, durably.",
        key::flush,
        &[]
    ),
    spec!(
        "flushdb",
        "flushdb",
        -1,
        ["write"],
        NO_KEYS,
        "server",
        "1.0.0",
        "O(1); space comes back in the background",
        "Removes every key of the database, durably.",
        key::flush,
        &[]
    ),
    string!("get", 2, ["readonly" "fast"], "1.0.0", "Returns the value of a key.", string::get),
    string!("getdel", 2, ["write" "fast"], "6.2.0", "Returns the value of a key and deletes it.", string::getdel),
    string!("getex", -2, ["write" "fast"], "6.2.0", "Returns the value of a key and sets its expiry.", string::getex),
    string!(
        "getrange",
        4,
        ["readonly"],
        "2.4.0",
        "Returns a part of a value.",
        string::getrange
    ),
    string!("getset", 3, ["write" "denyoom" "fast"], "1.0.0", "Sets a key and returns its value before.", string::getset),
    connection!(
        "hello",
        "hello",
        -1,
        "6.0.0",
        "Chooses the protocol's version.",
        client::hello
    ),
    string!("incr", 2, ["write" "denyoom" "fast"], "1.0.0", "Increments the integer at a key.", string::incr),
    string!("incrby", 3, ["write" "denyoom" "fast"], "1.0.0", "Increments the integer at a key by a number.", string::incrby),
    string!("incrbyfloat", 3, ["write" "denyoom" "fast"], "2.6.0", "Increments the number at a key by a number.", string::incrbyfloat),
    server!(
        "info",
        "info",
        -1,
        "1.0.0",
        "O(1)",
        "Returns facts and counters.",
        info::info
    ),
    spec!(
        "keys",
        "keys",
        2,
        ["readonly"],
        NO_KEYS,
        "generic",
        "1.0.0",
        "O(N) beside other clients; N is the keys with the pattern's literal prefix",
        "Returns all keys that match a pattern.",
        key::keys,
        &[]
    ),
    server!(
        "lastsave",
        "lastsave",
        1,
        "1.0.0",
        "O(1)",
        "Returns the time of the last durable write, now.",
        system::lastsave
    ),
    spec!(
        "memory",
        "memory",
        -2,
        ["readonly"],
        NO_KEYS,
        "server",
        "4.0.0",
        "Depends on subcommand.",
        "A container for memory commands.",
        introspect::needs_subcommand,
        &[spec!(
            "usage",
            "memory|usage",
            -3,
            ["readonly"],
            (2, 2, 1),
            "server",
            "4.0.0",
            "O(1)",
            "Returns about how many bytes a key takes.",
            key::memory_usage,
            &[]
        ),]
    ),
    spec!("mget", "mget", -2, ["readonly" "fast"], (1, -1, 1), "string", "1.0.0", "O(N), the number of keys",
        "Returns the values of keys, read in one batch.", string::mget, &[]),
    spec!("mset", "mset", -3, ["write" "denyoom"], (1, -1, 2), "string", "1.0.1", "O(N), the number of keys",
        "Sets keys, all or none.", string::mset, &[]),
    spec!("msetnx", "msetnx", -3, ["write" "denyoom"], (1, -1, 2), "string", "1.0.1", "O(N), the number of keys",
        "Sets keys, all or none, if none exists.", string::msetnx, &[]),
    spec!(
        "object",
        "object",
        -2,
        ["readonly"],
        NO_KEYS,
        "generic",
        "2.2.3",
        "Depends on subcommand.",
        "A container for object commands.",
        introspect::needs_subcommand,
        &[
            spec!(
                "encoding",
                "object|encoding",
                3,
                ["readonly"],
                (2, 2, 1),
                "generic",
                "2.2.3",
                "O(1)",
                "Returns the encoding that Redis would have.",
                key::object_encoding,
                &[]
            ),
            spec!(
                "freq",
                "object|freq",
                3,
                ["readonly"],
                (2, 2, 1),
                "generic",
                "4.0.0",
                "O(1)",
                "Answers that frequencies are not tracked.",
                key::object_freq,
                &[]
            ),
            spec!(
                "idletime",
                "object|idletime",
                3,
                ["readonly"],
                (2, 2, 1),
                "generic",
                "2.2.3",
                "O(1)",
                "Returns 0: idle times are not tracked.",
                key::object_idletime,
                &[]
            ),
            spec!(
                "refcount",
                "object|refcount",
                3,
                ["readonly"],
                (2, 2, 1),
                "generic",
                "2.2.3",
                "O(1)",
                "Returns 1.",
                key::object_refcount,
                &[]
            ),
        ]
    ),
    generic!("persist", 2, ["write" "fast"], "2.2.0", "Removes the expiry of a key.", key::persist),
    generic!("pexpire", -3, ["write" "fast"], "2.6.0", "Sets the expiry of a key, in milliseconds from now.", key::pexpire),
    generic!("pexpireat", -3, ["write" "fast"], "2.6.0", "Sets the expiry of a key, in milliseconds since 1970.", key::pexpireat),
    generic!("pexpiretime", 2, ["readonly" "fast"], "7.0.0", "Returns the expiry of a key, in milliseconds since 1970.", key::pexpiretime),
    connection!(
        "ping",
        "ping",
        -1,
        "1.0.0",
        "Returns PONG or its argument.",
        client::ping
    ),
    string!("psetex", 4, ["write" "denyoom"], "2.6.0", "Sets a key with an expiry in milliseconds.", string::psetex),
    generic!("pttl", 2, ["readonly" "fast"], "2.6.0", "Returns the remaining time to live of a key, in milliseconds.", key::pttl),
    connection!(
        "quit",
        "quit",
        -1,
        "1.0.0",
        "Closes the connection.",
        client::quit
    ),
    spec!(
        "randomkey",
        "randomkey",
        1,
        ["readonly"],
        NO_KEYS,
        "generic",
        "1.0.0",
        "O(log N)",
        "Returns a random key; all are equally likely only if keys are spread evenly.",
        key::randomkey,
        &[]
    ),
    connection!(
        "reset",
        "reset",
        1,
        "6.2.0",
        "Resets the connection to its initial state.",
        client::reset
    ),
    spec!(
        "scan",
        "scan",
        -2,
        ["readonly"],
        NO_KEYS,
        "generic",
        "2.8.0",
        "O(COUNT) for each call, at most 10,000 keys",
        "Walks over the keys.",
        key::scan,
        &[]
    ),
    connection!(
        "select",
        "select",
        2,
        "1.0.0",
        "Selects database 0, the only one.",
        client::select
    ),
    string!("set", -3, ["write" "denyoom"], "1.0.0", "Sets a key.", string::set),
    string!("setex", 4, ["write" "denyoom"], "2.0.0", "Sets a key with an expiry in seconds.", string::setex),
    string!("setnx", 3, ["write" "denyoom" "fast"], "1.0.0", "Sets a key that does not exist.", string::setnx),
    string!("setrange", 4, ["write" "denyoom"], "2.2.0", "Overwrites a part of a value.", string::setrange),
    spec!("shutdown", "shutdown", -1, ["admin" "noscript" "loading" "stale"], NO_KEYS, "server", "1.0.0", "O(1)",
        "Stops the server as SIGTERM does.", system::shutdown, &[]),
    string!("strlen", 2, ["readonly" "fast"], "2.2.0", "Returns the length of a value.", string::strlen),
    string!(
        "substr",
        4,
        ["readonly"],
        "1.0.0",
        "The old name of GETRANGE.",
        string::getrange
    ),
    spec!("time", "time", 1, ["loading" "stale" "fast"], NO_KEYS, "server", "2.6.0", "O(1)", "Returns the server's time.", system::time, &[]),
    spec!("touch", "touch", -2, ["readonly" "fast"], (1, -1, 1), "generic", "3.2.1", "O(N), the number of keys",
        "Counts how many of the keys exist.", key::exists, &[]),
    generic!("ttl", 2, ["readonly" "fast"], "1.0.0", "Returns the remaining time to live of a key, in seconds.", key::ttl),
    generic!("type", 2, ["readonly" "fast"], "1.0.0", "Returns the type of a key's value.", key::type_of),
    spec!("unlink", "unlink", -2, ["write" "fast"], (1, -1, 1), "generic", "4.0.0", "O(N), the number of keys", "Deletes keys.", key::del, &[]),
    spec!(
        "wait",
        "wait",
        3,
        ["noscript"],
        NO_KEYS,
        "generic",
        "3.0.0",
        "O(1)",
        "Returns 0: there are no replicas.",
        system::wait,
        &[]
    ),
    stream!("xack", -4, ["write" "fast"], "O(log N) for each id", "Acknowledges entries that were delivered to a consumer.", stream::pending::xack),
    stream!("xadd", -5, ["write" "denyoom" "fast"], "O(1); with MINID a search as for XRANGE", "Appends an entry to a stream.", stream::add::xadd),
    spec!("xautoclaim", "xautoclaim", -6, ["write" "fast"], (1, 1, 1), "stream", "6.2.0", "O(COUNT)",
        "Moves pending entries of a group, from an id on, to a consumer.", stream::claim::xautoclaim, &[]),
    stream!("xclaim", -6, ["write" "fast"], "O(log N) for each id", "Moves pending entries of a group to a consumer.", stream::claim::xclaim),
    stream!("xdel", -3, ["write" "fast"], "O(1) for each id in memory, else a search as for XRANGE", "Deletes entries of a stream.", stream::delete::xdel),
    spec!(
        "xgroup",
        "xgroup",
        -2,
        [],
        NO_KEYS,
        "stream",
        "5.0.0",
        "Depends on subcommand.",
        "A container for commands that change consumer groups.",
        introspect::needs_subcommand,
        &[
            group!("create", "xgroup|create", -5, ["write" "denyoom"], "5.0.0", "O(1)", "Creates a consumer group.", stream::group::create),
            group!("createconsumer", "xgroup|createconsumer", 5, ["write" "denyoom"], "6.2.0", "O(1)", "Creates a consumer of a group.", stream::group::create_consumer),
            group!(
                "delconsumer",
                "xgroup|delconsumer",
                5,
                ["write"],
                "5.0.0",
                "O(N), N pending entries of the consumer",
                "Removes a consumer of a group.",
                stream::group::delete_consumer
            ),
            group!(
                "destroy",
                "xgroup|destroy",
                4,
                ["write"],
                "5.0.0",
                "O(N), N pending entries of the group",
                "Removes a consumer group.",
                stream::group::destroy
            ),
            spec!("help", "xgroup|help", 2, ["loading" "stale"], NO_KEYS, "stream", "5.0.0", "O(1)", "Returns help about XGROUP.", stream::group::help, &[]),
            group!(
                "setid",
                "xgroup|setid",
                -5,
                ["write"],
                "5.0.0",
                "O(1)",
                "Sets the position of a consumer group.",
                stream::group::set_id
            ),
        ]
    ),
    spec!(
        "xinfo",
        "xinfo",
        -2,
        ["readonly"],
        NO_KEYS,
        "stream",
        "5.0.0",
        "Depends on subcommand.",
        "A container for commands that describe streams.",
        introspect::needs_subcommand,
        &[
            group!(
                "consumers",
                "xinfo|consumers",
                4,
                ["readonly"],
                "5.0.0",
                "O(N), the number of consumers",
                "Describes the consumers of a group.",
                stream::info::consumers
            ),
            group!(
                "groups",
                "xinfo|groups",
                3,
                ["readonly"],
                "5.0.0",
                "O(N), the number of groups",
                "Describes the consumer groups of a stream.",
                stream::info::groups
            ),
            spec!("help", "xinfo|help", 2, ["loading" "stale"], NO_KEYS, "stream", "5.0.0", "O(1)", "Returns help about XINFO.", stream::info::help, &[]),
            spec!(
                "stream",
                "xinfo|stream",
                -3,
                ["readonly"],
                (2, 2, 1),
                "stream",
                "5.0.0",
                "O(log N + M), M entries in the reply",
                "Describes a stream.",
                stream::info::stream,
                &[]
            ),
        ]
    ),
    stream!("xlen", 2, ["readonly" "fast"], "O(1)", "Returns the number of entries of a stream.", stream::range::xlen),
    stream!(
        "xpending",
        -3,
        ["readonly"],
        "O(log N + M), M pending entries examined",
        "Describes the pending entries of a group.",
        stream::pending::xpending
    ),
    stream!(
        "xrange",
        -4,
        ["readonly"],
        "O(log N + M), M entries in the reply",
        "Returns entries between two ids.",
        stream::range::xrange
    ),
    spec!("xread", "xread", -4, ["readonly" "blocking"], NO_KEYS, "stream", "5.0.0", "O(log N + M) for each stream, M entries in the reply",
        "Returns entries after an id, or waits for them.", stream::read::xread, &[]),
    spec!("xreadgroup", "xreadgroup", -7, ["write" "blocking"], NO_KEYS, "stream", "5.0.0", "O(log N + M) for each stream, M entries in the reply",
        "Delivers entries to a consumer of a group, or waits for them.", stream::read_group::xreadgroup, &[]),
    stream!(
        "xrevrange",
        -4,
        ["readonly"],
        "O(log N + M), M entries in the reply",
        "Returns entries between two ids, from the newest to the oldest.",
        stream::range::xrevrange
    ),
    stream!("xsetid", -3, ["write" "denyoom" "fast"], "O(1)", "Sets the last id of a stream.", stream::set_id::xsetid),
    stream!(
        "xtrim",
        -4,
        ["write"],
        "O(1); with MINID a search as for XRANGE",
        "Removes the oldest entries of a stream.",
        stream::add::xtrim
    ),
];

#[cfg(test)]
mod tests;
