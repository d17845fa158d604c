//! Exact replies in both protocol versions, without a Redis beside: replies that the oracle test
//! cannot compare, and a sample of the others for machines without Redis.

use crate::client::TestServer;

#[test]
fn replies_have_the_documented_bytes() {
    let server = TestServer::start("replies", |_| {});
    // The columns are: command, RESP2, RESP3 if it differs.
    let script: &[(&str, &str, &str)] = &[
        ("FLUSHALL", "+OK\r\n", ""),
        ("GET a", "$-1\r\n", "_\r\n"),
        ("SET a 1 XX", "$-1\r\n", "_\r\n"),
        ("SET a 1 GET", "$-1\r\n", "_\r\n"),
        ("SET a 2 NX GET", "$1\r\n1\r\n", ""),
        (
            "SET a",
            "-ERR wrong number of arguments for 'set' command\r\n",
            "",
        ),
        ("SET a 1 FOO", "-ERR syntax error\r\n", ""),
        (
            "SET a 1 EX 0",
            "-ERR invalid expire time in 'set' command\r\n",
            "",
        ),
        (
            "SET a 1 EX 1.5",
            "-ERR value is not an integer or out of range\r\n",
            "",
        ),
        (
            "MGET a b",
            "*2\r\n$1\r\n1\r\n$-1\r\n",
            "*2\r\n$1\r\n1\r\n_\r\n",
        ),
        (
            "INCRBY a 9223372036854775807",
            "-ERR increment or decrement would overflow\r\n",
            "",
        ),
        ("TYPE a", "+string\r\n", ""),
        ("TYPE b", "+none\r\n", ""),
        ("SCAN 0", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n", ""),
        ("KEYS *", "*1\r\n$1\r\na\r\n", ""),
        ("DBSIZE", ":1\r\n", ""),
        ("RANDOMKEY", "$1\r\na\r\n", ""),
        ("SELECT 1", "-ERR DB index is out of range\r\n", ""),
        (
            "foo a b",
            "-ERR unknown command 'foo', with args beginning with: 'a' 'b' \r\n",
            "",
        ),
        (
            "CONFIG FOO",
            "-ERR unknown subcommand 'FOO'. Try CONFIG HELP.\r\n",
            "",
        ),
        (
            "CONFIG GET appendf* save",
            "*4\r\n$11\r\nappendfsync\r\n$6\r\nalways\r\n$4\r\nsave\r\n$0\r\n\r\n",
            "%2\r\n$11\r\nappendfsync\r\n$6\r\nalways\r\n$4\r\nsave\r\n$0\r\n\r\n",
        ),
        (
            "CONFIG SET port 1",
            "-ERR CONFIG SET failed (possibly related to argument 'port') - this setting is given when the server starts; only appendfsync, basalt-io-limit, tcp-keepalive and timeout can be changed while it runs\r\n",
            "",
        ),
        (
            "COMMAND INFO get nothing",
            "*2\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*3\r\n+@read\r\n+@string\r\n+@fast\r\n*0\r\n*0\r\n*0\r\n$-1\r\n",
            "*2\r\n*10\r\n$3\r\nget\r\n:2\r\n~2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n~3\r\n+@read\r\n+@string\r\n+@fast\r\n*0\r\n*0\r\n*0\r\n_\r\n",
        ),
        ("CLIENT GETNAME", "$-1\r\n", "_\r\n"),
        ("CLIENT SETINFO LIB-NAME test", "+OK\r\n", ""),
        ("CLIENT NO-TOUCH on", "+OK\r\n", ""),
        ("INFO nothing", "$0\r\n\r\n", "=4\r\ntxt:\r\n"),
        (
            "INFO replication",
            "$48\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n",
            "=52\r\ntxt:# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n",
        ),
        ("PING", "+PONG\r\n", ""),
        ("WAIT 1 100", ":0\r\n", ""),
    ];
    for (protocol, three) in [("2", false), ("3", true)] {
        let mut c = server.client();
        let hello = c.call(&["HELLO", protocol]);
        let head = if three { "%7\r\n" } else { "*14\r\n" };
        assert!(
            hello.starts_with(&format!(
                "{head}$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:{protocol}\r\n$2\r\nid\r\n:"
            )),
            "{hello}"
        );
        for (line, two, other) in script {
            let expected = if three && !other.is_empty() {
                other
            } else {
                two
            };
            assert_eq!(c.words(line), *expected, "{line} in RESP{protocol}");
        }
    }
}

#[test]
fn info_and_command_have_the_fields_that_tools_read() {
    let server = TestServer::start("info", |_| {});
    let mut c = server.client();
    c.words("SET a 1 EX 100");
    c.words("DBSIZE");
    let info = c.words("INFO");
    for field in [
        "redis_version:7.0.15",
        "uptime_in_seconds:",
        "connected_clients:1",
        "used_memory:",
        "aof_enabled:1",
        "total_commands_processed:",
        "role:master",
        "used_cpu_user:",
        "db0:keys=1,expires=1,avg_ttl=0",
        "sync_policy:always",
        "commit_groups:",
    ] {
        assert!(info.contains(field), "INFO lacks {field}");
    }
    let count: usize = c.words("COMMAND COUNT")[1..].trim().parse().unwrap();
    assert!(c.words("COMMAND").starts_with(&format!("*{count}\r\n")));
    assert!(
        c.words("COMMAND DOCS")
            .starts_with(&format!("*{}\r\n", 2 * count))
    );
    assert!(
        c.words("COMMAND LIST")
            .starts_with(&format!("*{count}\r\n"))
    );
    let list = c.words("CLIENT LIST");
    assert!(
        list.contains("cmd=client|list") && list.contains("resp=2"),
        "{list}"
    );
}
