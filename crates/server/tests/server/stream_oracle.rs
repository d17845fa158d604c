//! Random commands on streams and their groups are sent to Redis and to this server. The replies
//! must have the same bytes, except for times. The test also restarts this server between commands.

use crate::client::{Client, TestServer, encode};
use crate::oracle::both;
use basalt::env::Random;

/// Returns a reply without its times: every second integer, from the first or from the second on.
fn without_times(reply: &[u8], first: bool) -> String {
    let mut is_time = first;
    let lines = reply.split_inclusive(|b| *b == b'\n').map(|line| {
        if !line.starts_with(b":") {
            return line.escape_ascii().to_string();
        }
        is_time = !is_time;
        match is_time {
            true => line.escape_ascii().to_string(),
            false => ":time".to_string(),
        }
    });
    lines.collect()
}

/// Draws commands.
struct Commands {
    random: Random,
    /// The largest id given to an XADD.
    added: u64,
}

impl Commands {
    fn below(&self, n: u64) -> u64 {
        self.random.below(n)
    }

    fn pick(&self, list: &[&str]) -> String {
        list[self.below(list.len() as u64) as usize].to_string()
    }

    /// Returns an id, mostly of an entry that was added.
    fn id(&self) -> String {
        match self.below(12) {
            0 => self.pick(&["0", "-", "+", "x", "0-0", "99999-0"]),
            1 => format!("{}", 1 + self.below(self.added + 2)),
            2..=6 => format!("{}-1", (self.added + 1).saturating_sub(self.below(20))),
            _ => format!("{}-1", 1 + self.below(self.added + 1)),
        }
    }

    fn ids(&self, most: u64) -> Vec<String> {
        (0..=self.below(most)).map(|_| self.id()).collect()
    }

    fn number(&self) -> String {
        match self.below(10) {
            0 => self.pick(&["x", "-1", "0", "9999999999999999999"]),
            _ => self.below(12).to_string(),
        }
    }

    fn next(&mut self) -> Vec<String> {
        let key = self.pick(&["s", "s", "s", "t", "missing"]);
        let group = self.pick(&["g", "g", "h", "i"]);
        let consumer = self.pick(&["a", "b", "c"]);
        let idle = self.pick(&["0", "0", "0", "-1", "100000000"]);
        let mut args: Vec<String> = Vec::new();
        macro_rules! command {
            ($($word:expr),*) => { args.extend([$(($word).to_string()),*]) };
        }
        match self.below(40) {
            0..=9 => {
                self.added += 1;
                command!["XADD", key.replace("missing", "t")];
                if self.below(6) == 0 {
                    command![self.pick(&["MAXLEN", "MAXLEN", "MINID"]), self.below(30)];
                }
                command![format!("{}-1", self.added), "f", format!("v{}", self.added)];
            }
            10..=12 => {
                command!["XDEL", key];
                args.extend(self.ids(4));
            }
            13..=14 => {
                command!["XGROUP", "CREATE", key, group, self.id().replace('-', "")];
                args[4] = self.pick(&["$", "0", "-", &self.id()]);
                if self.below(2) == 0 {
                    command!["MKSTREAM"];
                }
                if self.below(4) == 0 {
                    command!["ENTRIESREAD", self.number()];
                }
            }
            15 => {
                command![
                    "XGROUP",
                    "SETID",
                    key,
                    group,
                    self.pick(&["$", "0", &self.id()])
                ];
                if self.below(3) == 0 {
                    command!["ENTRIESREAD", self.number()];
                }
            }
            16 => match self.below(8) {
                0 => command!["XGROUP", "DESTROY", key, group],
                1..=3 => command!["XGROUP", "CREATECONSUMER", key, group, consumer],
                _ => command!["XGROUP", "DELCONSUMER", key, group, consumer],
            },
            17..=24 => {
                command!["XREADGROUP", "GROUP", group, consumer];
                if self.below(3) > 0 {
                    command!["COUNT", self.number()];
                }
                if self.below(6) == 0 {
                    command!["NOACK"];
                }
                let after = match self.below(3) {
                    0 => self.id(),
                    _ => ">".to_string(),
                };
                command!["STREAMS"];
                match self.below(6) {
                    0 => command!["s", "t", after, ">"],
                    _ => command![key, after],
                }
            }
            25..=27 => {
                command!["XACK", key, group];
                args.extend(self.ids(5));
            }
            28 => command!["XPENDING", key, group],
            29 => {
                command!["XPENDING", key, group];
                if self.below(2) == 0 {
                    command!["IDLE", idle];
                }
                command![self.pick(&["-", &self.id()]), self.pick(&["+", &self.id()])];
                command![self.number()];
                if self.below(2) == 0 {
                    command![consumer];
                }
            }
            30..=31 => {
                command!["XCLAIM", key, group, consumer, idle];
                args.extend(self.ids(4));
                let options: [&[&str]; 6] = [
                    &["FORCE"],
                    &["JUSTID"],
                    &["RETRYCOUNT", "3"],
                    &["IDLE", "1000"],
                    &["TIME", "5"],
                    &["LASTID", "7-1"],
                ];
                for option in options.iter().filter(|_| self.below(4) == 0) {
                    args.extend(option.iter().map(|word| word.to_string()));
                }
            }
            32..=33 => {
                command!["XAUTOCLAIM", key, group, consumer, idle, self.id()];
                if self.below(2) == 0 {
                    command!["COUNT", self.number()];
                }
                if self.below(3) == 0 {
                    command!["JUSTID"];
                }
            }
            34 => command!["XINFO", "GROUPS", key],
            35 => command!["XINFO", "CONSUMERS", key, group],
            36 => command!["XLEN", key],
            37 => {
                command!["XRANGE", key, self.pick(&["-", &self.id()]), "+"];
                command!["COUNT", self.below(20)];
            }
            38 => {
                command!["XREVRANGE", key, self.pick(&["+", &self.id()]), "-"];
                command!["COUNT", self.below(20)];
            }
            _ => match self.below(8) {
                0..=2 => command!["XTRIM", key, "MAXLEN", self.below(40)],
                3..=4 => command!["XTRIM", key, "MINID", self.id()],
                5 => {
                    self.added += 1;
                    command!["XSETID", key, format!("{}-1", self.added)];
                    if self.below(2) == 0 {
                        command!["ENTRIESADDED", self.added, "MAXDELETEDID", self.id()];
                    }
                }
                6 => command!["XREAD", "COUNT", self.below(5), "STREAMS", key, self.id()],
                _ if self.below(8) == 0 => command!["DEL", key],
                _ => command!["EXISTS", key],
            },
        }
        args
    }
}

/// Returns a reply as it is compared.
fn shown(args: &[String], reply: &[u8]) -> String {
    match args[0].as_str() {
        "XPENDING" if args.len() > 3 => without_times(reply, true),
        "XINFO" if args[1] == "CONSUMERS" => without_times(reply, false),
        _ => reply.escape_ascii().to_string(),
    }
}

#[test]
fn random_commands_on_groups_reply_as_redis_does() {
    let Some((redis, mut server)) = both() else {
        return;
    };
    let seed = std::env::var("BASALT_SEED").ok();
    let seed = seed.and_then(|s| s.parse().ok()).unwrap_or(0x5eed);
    let _repeat = basalt_sim::repeat!(
        random_commands_on_groups_reply_as_redis_does,
        "BASALT_SEED={seed}"
    );
    let mut commands = Commands {
        random: Random::from_seed(seed),
        added: 0,
    };
    let (mut ours, mut theirs) = (server.client(), Client::connect(redis.address));
    let count = 12_000 * basalt_sim::campaign::scale();
    let mut history = Vec::new();
    for n in 0..count {
        if n % 1_500 == 1_499 {
            drop(ours);
            let dir = server.stop();
            server = TestServer::start_in(dir, |_| {});
            ours = server.client();
        }
        let args = commands.next();
        let words: Vec<&[u8]> = args.iter().map(|word| word.as_bytes()).collect();
        let request = encode(&words);
        ours.send(&request);
        theirs.send(&request);
        let here = shown(&args, &ours.reply().unwrap());
        let there = shown(&args, &theirs.reply().unwrap());
        history.push(args.join(" "));
        assert!(
            here == there,
            "{}\n  here:  {here}\n  redis: {there}",
            history[history.len().saturating_sub(40)..].join("\n")
        );
    }
    basalt_sim::campaign!("{count} random commands on groups compared");
}
