//! Requests with very many names: they run in pieces, and their answers are true at one moment.

use super::*;

/// Regression test: a request with 5,000 names held the loop for half a minute, and SIGTERM was not
/// handled meanwhile. The request is one command nevertheless: its answers are true at one moment.
#[test]
fn many_names_are_read_in_background_with_a_consistent_answer() {
    let w = holding_fetches();
    let (mut a, mut b) = (w.client(), w.client());
    let mut names = String::new();
    for n in 0..5000 {
        names += &format!(" n{n}");
        w.store.0.lock().hold_fetches = false;
    }
    send(&mut a, "MSET n0 a n4999 a n17 a");
    expect(&mut a, "+OK\r\n");
    w.store.0.lock().hold_fetches = true;
    w.store.0.lock().reads.clear();
    send(&mut a, &format!("EXISTS{names}"));
    wait_fetch(&w);
    // The writes are both before and behind the position of the read.
    send(&mut b, "DEL n0 n17\r\nSET n4998 x\r\nPING");
    expect(&mut b, ":2\r\n+OK\r\n+PONG\r\n");
    nothing_yet(&mut a);
    // The stop is handled at once, and earlier requests are answered.
    w.stop.shutdown();
    while TcpStream::connect(w.address).is_ok() {
        basalt::env::Clock::system().sleep(Duration::from_millis(1));
    }
    nothing_yet(&mut a);
    w.store.0.lock().hold_fetches = false;
    expect(&mut a, ":2\r\n");
    let (here, there) = reads(&w);
    let bound = 2 * crate::keyspace::LOOP_READS as usize + 10;
    assert!(here.len() <= bound, "{} reads by the loop", here.len());
    assert!(there.len() >= 4990, "{} reads elsewhere", there.len());
    w.join();
}

/// Returns the answer of MGET for the same names, of which some have values.
fn many_values(values: &[(usize, &str)]) -> String {
    let mut out = vec!["$-1\r\n".to_string(); 3000];
    for (n, value) in values {
        out[*n] = format!("${}\r\n{value}\r\n", value.len());
    }
    format!("*3000\r\n{}", out.concat())
}

/// Regression test: the last step of a command looked for all its names in one turn. A million
/// names delayed every other client by half a second, and MGET by almost a second.
#[test]
fn a_read_of_many_names_runs_in_pieces() {
    let w = World::new(|_| {});
    let mut a = w.client();
    send(&mut a, "MSET n0 a n1500 b n2999 c");
    expect(&mut a, "+OK\r\n");
    for (command, reply) in [
        ("EXISTS n0", ":4\r\n".to_string()),
        ("TOUCH", ":3\r\n".to_string()),
        ("MGET", many_values(&[(0, "a"), (1500, "b"), (2999, "c")])),
    ] {
        send(&mut a, &of_many(command));
        send(&mut a, "PING");
        expect(&mut a, &format!("{reply}+PONG\r\n"));
    }
    let peak = info(&mut a, "turn_names_peak");
    assert!((1..=1024).contains(&peak), "{peak} names in a turn");
    assert_eq!(info(&mut a, "keyspace_hits"), 4 + 3 + 3);
    assert_eq!(info(&mut a, "keyspace_misses"), 3 * 2997);
    send(&mut a, "CLIENT REPLY SKIP");
    send(&mut a, &of_many("EXISTS"));
    send(&mut a, "PING");
    expect(&mut a, "+PONG\r\n");
    w.stop.shutdown();
    w.join();
}

/// A request with many names is read over many turns, and answers as of one moment. The answer has
/// the writes before that moment, at any position of the read.
#[test]
fn a_read_of_many_names_follows_writes_until_it_takes_effect() {
    let w = holding_fetches();
    w.store.0.lock().hold_fetches = false;
    let (mut a, mut b) = (w.client(), w.client());
    let all = many_values(&[(1, "new"), (2, "2"), (2000, "2000"), (2999, "new")]);
    for (command, reply) in [("EXISTS", ":4\r\n"), ("MGET", &all[..])] {
        send(
            &mut b,
            "MSET n0 old n1 old n2 2 n2000 2000 n2998 old n2999 old",
        );
        expect(&mut b, "+OK\r\n");
        w.store.0.lock().hold_fetches = true;
        w.store.0.lock().reads.clear();
        send(&mut a, &of_many(command));
        wait_fetch(&w);
        // One name is in the piece that is being read, and one is in a later piece.
        send(&mut b, "DEL n0 n2998\r\nMSET n1 new n2999 new\r\nDEL n5");
        expect(&mut b, ":2\r\n+OK\r\n:0\r\n");
        nothing_yet(&mut a);
        w.store.0.lock().hold_fetches = false;
        expect(&mut a, reply);
        send(&mut b, "FLUSHALL");
        expect(&mut b, "+OK\r\n");
        // Both names are deleted while they are read.
        send(&mut b, "MSET n0 old n2999 old");
        expect(&mut b, "+OK\r\n");
        w.store.0.lock().hold_fetches = true;
        w.store.0.lock().reads.clear();
        send(&mut a, &of_many("EXISTS"));
        wait_fetch(&w);
        send(&mut b, "FLUSHALL\r\nSET n7 x");
        expect(&mut b, "+OK\r\n+OK\r\n");
        w.store.0.lock().hold_fetches = false;
        expect(&mut a, ":1\r\n");
        send(&mut b, "DEL n7");
        expect(&mut b, ":1\r\n");
    }
    w.stop.shutdown();
    w.join();
}

/// A read of many names never answers with writes of a commit that fails later.
#[test]
fn a_read_of_many_names_depends_on_the_commits_that_it_saw() {
    let w = holding_fetches();
    let error = "-MISCONF no space: the disk is full\r\n";
    for (fails, while_fetching, reply) in [
        (true, true, ":0\r\n"),
        (true, false, error),
        (false, true, ":1\r\n"),
        (false, false, ":1\r\n"),
    ] {
        let (mut a, mut b, mut c) = (w.client(), w.client(), w.client());
        let result = || if fails { failed() } else { Ok(()) };
        w.store.hold(true);
        w.store.0.lock().hold_fetches = true;
        w.store.0.lock().reads.clear();
        send(&mut b, "SET n2 v");
        w.wait_held(1);
        send(&mut a, "CLIENT SETNAME a");
        expect(&mut a, "+OK\r\n");
        send(&mut a, &of_many("EXISTS"));
        wait_fetch(&w);
        if while_fetching {
            w.store.release(0, result());
        }
        w.store.0.lock().hold_fetches = false;
        if !while_fetching {
            // The command has taken effect when it is the client's last one.
            let is_last = |c: &mut TcpStream| {
                send(c, "CLIENT LIST");
                let mut list = vec![0; 4096];
                let n = c.read(&mut list).unwrap();
                String::from_utf8_lossy(&list[..n]).contains("cmd=exists")
            };
            wait_until(|| is_last(&mut c));
            round(&w);
            nothing_yet(&mut a);
            w.store.release(0, result());
        }
        expect(&mut b, if fails { error } else { "+OK\r\n" });
        expect(&mut a, reply);
        w.store.hold(false);
        send(&mut b, "DEL n2");
        let mut deleted = [0; 4];
        b.read_exact(&mut deleted).unwrap();
    }
    w.stop.shutdown();
    w.join();
}

/// One client sets two names to the same value, again and again. No read of many names sees them
/// differ.
#[test]
fn a_read_of_many_names_never_sees_a_partial_write() {
    let w = World::new(|_| {});
    let (mut a, mut b) = (w.client(), w.client());
    let (mut seen, mut sent) = (std::collections::BTreeSet::new(), 0);
    for _ in 0..30 {
        send(&mut a, &of_many("MGET"));
        for _ in 0..20 {
            sent += 1;
            let value = format!("{sent:08}");
            send(&mut b, &format!("MSET n3 {value} n2997 {value}"));
            expect(&mut b, "+OK\r\n");
        }
        let mut reply = vec![0; many_values(&[]).len()];
        a.read_exact(&mut reply).unwrap();
        while !reply.ends_with(b"$-1\r\n$-1\r\n")
            || reply.iter().filter(|b| **b == b'$').count() < 3000
        {
            let mut more = [0];
            a.read_exact(&mut more).unwrap();
            reply.push(more[0]);
        }
        let text = String::from_utf8(reply).unwrap();
        let values: Vec<&str> = text.lines().filter(|l| l.len() == 8).collect();
        assert!(values.len() != 1, "one of two");
        if let [first, last] = values[..] {
            assert_eq!(first, last);
            seen.insert(first.to_string());
        }
    }
    assert!(seen.len() > 5, "{} moments", seen.len());
    w.stop.shutdown();
    w.join();
}

/// Returns an MSET or MSETNX of the names `n0` to `n2999`, all with one value.
fn many_pairs(command: &str, value: &str) -> String {
    let pairs: String = (0..3000).map(|n| format!(" n{n} {value}")).collect();
    format!("{command}{pairs}")
}

/// Regression test: the last step of a DEL looked at all its names in one turn, and an MSET wrote
/// all in one turn. A million names delayed every other client by two seconds.
#[test]
fn a_write_of_many_names_runs_in_pieces() {
    let w = World::new(|_| {});
    let mut a = w.client();
    for (request, reply) in [
        (many_pairs("MSET", "v"), "+OK\r\n"),
        (many_pairs("MSETNX", "w"), ":0\r\n"),
        (of_many("DEL n0 n1 absent"), ":3000\r\n"),
        (of_many("UNLINK"), ":0\r\n"),
        (many_pairs("MSETNX", "w"), ":1\r\n"),
        (of_many("UNLINK"), ":3000\r\n"),
        (many_pairs("MSET n0 other", "v"), "+OK\r\n"),
        // The number of arguments is odd.
        (
            many_pairs("MSET odd", "v"),
            "-ERR wrong number of arguments for 'mset' command\r\n",
        ),
    ] {
        send(&mut a, &request);
        send(&mut a, "PING");
        expect(&mut a, &format!("{reply}+PONG\r\n"));
    }
    let peak = info(&mut a, "turn_names_peak");
    assert!((1..=1024).contains(&peak), "{peak} names in a turn");
    send(&mut a, "MGET n0 n1 n2999 absent");
    expect(&mut a, "*4\r\n$1\r\nv\r\n$1\r\nv\r\n$1\r\nv\r\n$-1\r\n");
    send(&mut a, "CLIENT REPLY SKIP");
    send(&mut a, &of_many("DEL"));
    send(&mut a, "CLIENT REPLY SKIP");
    send(&mut a, &many_pairs("MSET", "x"));
    send(&mut a, "GET n7");
    expect(&mut a, "$1\r\nx\r\n");
    let too_long = "k".repeat(layout::MAX_KEY_LEN + 1);
    let pairs: Vec<String> = (0..1200).map(|n| format!("n{n}")).collect();
    let mut arguments = vec!["DEL", &too_long];
    arguments.extend(pairs.iter().map(String::as_str));
    let mut request = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        request += &format!("${}\r\n{argument}\r\n", argument.len());
    }
    a.write_all(request.as_bytes()).unwrap();
    let mut error = [0; 20];
    a.read_exact(&mut error).unwrap();
    assert_eq!(&error, b"-ERR key is too long");
    w.stop.shutdown();
    w.join();
}

/// A DEL with many names deletes and counts the keys that exist when it takes effect. Writes of
/// other clients while its names are read count, too.
#[test]
fn a_write_of_many_names_follows_writes_until_it_takes_effect() {
    let w = holding_fetches();
    let (mut a, mut b) = (w.client(), w.client());
    let mut run = |before: &str, request: &str, meanwhile: &str, replies: &str, reply: &str| {
        send(&mut b, before);
        expect(&mut b, "+OK\r\n");
        w.store.0.lock().hold_fetches = true;
        w.store.0.lock().reads.clear();
        send(&mut a, request);
        wait_fetch(&w);
        send(&mut b, meanwhile);
        expect(&mut b, replies);
        nothing_yet(&mut a);
        w.store.0.lock().hold_fetches = false;
        expect(&mut a, reply);
    };
    let deleted = of_many("DEL");
    let set = many_pairs("MSETNX", "v");
    run(
        "MSET n0 a n2998 a",
        &deleted,
        "DEL n0\r\nSET n5 b",
        ":1\r\n+OK\r\n",
        ":2\r\n",
    );
    run("SET other a", &deleted, "DEL n0", ":0\r\n", ":0\r\n");
    run("SET n2998 a", &set, "DEL n2998", ":1\r\n", ":1\r\n");
    run(
        "SET n2998 a",
        &deleted,
        "MSET n0 b n5 c",
        "+OK\r\n",
        ":3000\r\n",
    );
    run("SET other a", &set, "SET n0 a", "+OK\r\n", ":0\r\n");
    // Another command with many names writes all names in one step.
    run(
        "SET n0 a",
        &deleted,
        &many_pairs("MSET", "b"),
        "+OK\r\n",
        ":3000\r\n",
    );
    // The same, and the first name is absent when the fetch reads it.
    run(
        "SET other a",
        &deleted,
        &many_pairs("MSET", "b"),
        "+OK\r\n",
        ":3000\r\n",
    );
    run(
        "MSET n0 a n1 b",
        &deleted,
        "FLUSHALL\r\nSET n7 x",
        "+OK\r\n+OK\r\n",
        ":1\r\n",
    );
    run("MSET n0 a n1 b", &set, "FLUSHALL", "+OK\r\n", ":1\r\n");
    let (mut c, mut d) = (w.client(), w.client());
    send(&mut c, "GET n2");
    expect(&mut c, "$1\r\nv\r\n");
    // The client disconnects while its names are read.
    w.store.0.lock().hold_fetches = true;
    w.store.0.lock().reads.clear();
    send(&mut d, &deleted);
    wait_fetch(&w);
    rustix::net::sockopt::set_socket_linger(&d, Some(Duration::ZERO)).unwrap();
    drop(d);
    wait_until(|| info(&mut c, "connected_clients") == 3);
    w.store.0.lock().hold_fetches = false;
    send(&mut c, "GET n2");
    expect(&mut c, "$1\r\nv\r\n");
    w.stop.shutdown();
    w.join();
}

/// The reply to a write of many names waits for its commit. So does the reply to a client that
/// reads one of the names. If the commit fails, both get its error, and all names are as before.
#[test]
fn a_write_of_many_names_commits_or_fails_as_one() {
    let w = World::new(|_| {});
    let error = "-MISCONF no space: the disk is full\r\n";
    for (fails, request, reply) in [
        (true, many_pairs("MSET", "new"), "+OK\r\n"),
        (true, of_many("DEL"), ":3\r\n"),
        (false, many_pairs("MSET", "new"), "+OK\r\n"),
        (false, of_many("DEL"), ":3000\r\n"),
    ] {
        let (mut a, mut b) = (w.client(), w.client());
        if fails {
            send(&mut a, "MSET n0 old n1500 old n2999 old");
            expect(&mut a, "+OK\r\n");
        }
        let before = w.store.0.lock().entries.len();
        w.store.hold(true);
        send(&mut a, &request);
        w.wait_held(1);
        send(&mut b, "GET n1500");
        round(&w);
        nothing_yet(&mut a);
        nothing_yet(&mut b);
        w.store.release(0, if fails { failed() } else { Ok(()) });
        expect(&mut a, if fails { error } else { reply });
        if fails {
            expect(&mut b, error);
            send(&mut b, "MGET n0 n1 n2999");
            expect(&mut b, "*3\r\n$3\r\nold\r\n$-1\r\n$3\r\nold\r\n");
            assert_eq!(w.store.0.lock().entries.len(), before);
        } else {
            let is_set = reply == "+OK\r\n";
            expect(&mut b, if is_set { "$3\r\nnew\r\n" } else { "$-1\r\n" });
            let there = w.store.0.lock().entries.len();
            assert_eq!(there, if is_set { 3000 } else { 0 });
        }
        w.store.hold(false);
    }
    w.stop.shutdown();
    w.join();
}

/// Clients set and delete the same 3,000 names again and again, so a deletion often reads its names
/// while they are set. No other client ever sees two values among them.
#[test]
fn a_write_of_many_names_is_atomic_for_readers() {
    let w = World::new(|_| {});
    let (mut a, mut b, mut c) = (w.client(), w.client(), w.client());
    let mut seen = std::collections::BTreeSet::new();
    let line = |c: &mut TcpStream| {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            c.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    };
    let mut look = || {
        send(&mut c, "MGET n0 n1500 n2999");
        assert_eq!(line(&mut c), "*3\r\n");
        let value = |c: &mut TcpStream| match line(c).as_str() {
            "$-1\r\n" => None,
            _ => Some(line(c)),
        };
        let values = [value(&mut c), value(&mut c), value(&mut c)];
        assert!(values.iter().all(|v| *v == values[0]), "{values:?}");
        seen.insert(values[0].clone());
    };
    for round in 0..40 {
        // Each client has two commands on their way, so the second MSET and a DEL overlap.
        for part in 0..2 {
            send(&mut a, &many_pairs("MSET", &format!("{round:07}{part}")));
            send(&mut b, &of_many("DEL"));
        }
        (0..20).for_each(|_| look());
        expect(&mut a, "+OK\r\n+OK\r\n");
        for _ in 0..2 {
            line(&mut b);
        }
        // The writes of the last command are complete in the store, too.
        look();
    }
    assert!(seen.len() > 5, "{} moments", seen.len());
    w.stop.shutdown();
    w.join();
}

/// Regression test: writes that had all answers and waited for room kept all places for fetches, so
/// reads waited for the commits of other clients.
#[test]
fn writes_that_wait_for_room_hold_no_fetch() {
    let w = World::new(|o| o.pending_write_bytes = 100_000);
    hold_fetches(&w);
    set_long(&w, &["long"]);
    let mut deletes: Vec<_> = (0..16).map(|_| w.client()).collect();
    for c in &mut deletes {
        send(c, &of_many("DEL"));
    }
    let mut b = w.client();
    wait_until(|| info(&mut b, "fetched_requests") >= 12);
    w.store.hold(true);
    let mut s = w.client();
    send(&mut s, &format!("SET k {}", "v".repeat(50_000)));
    w.wait_held(1);
    send(&mut s, &format!("SET n1 {}", "v".repeat(55_000)));
    w.wait_held(2);
    w.store.0.lock().hold_fetches = false;
    // No commit happens before these are answered.
    let mut g = w.client();
    send(&mut g, "GET long");
    let mut reply = vec![0; LONG + 12];
    g.read_exact(&mut reply).unwrap();
    for _ in 0..4 {
        // None of its names is among the writes in flight.
        send(&mut g, &of_many("EXISTS long").replace(" n", " x"));
        expect(&mut g, ":1\r\n");
    }
    w.store.hold(false);
    while w.store.held() > 0 {
        w.store.release(0, Ok(()));
    }
    expect(&mut s, "+OK\r\n+OK\r\n");
    let mut deleted = 0;
    for c in &mut deletes {
        let mut reply = [0; 4];
        c.read_exact(&mut reply).unwrap();
        assert!(&reply == b":0\r\n" || &reply == b":1\r\n");
        deleted += usize::from(reply[1] == b'1');
    }
    assert_eq!(deleted, 1, "n1 was deleted once");
    w.stop.shutdown();
    w.join();
}
