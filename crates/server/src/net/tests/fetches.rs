//! Values that another thread reads while the loop goes on.

use super::*;

/// Regression test: one GET of a long value that was in no cache made every other client wait for
/// the device.
#[test]
fn a_long_value_is_read_without_blocking_other_clients() {
    let w = holding_fetches();
    let long = "v".repeat(LONG);
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut a, &format!("SET k {}", &long[..60_000]));
    expect(&mut a, "+OK\r\n");
    a.write_all(format!("*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n${LONG}\r\n{long}\r\n").as_bytes())
        .unwrap();
    expect(&mut a, "+OK\r\n");
    // The loop reads a shorter value itself.
    send(&mut a, "GET k");
    expect(&mut a, &format!("$60000\r\n{}\r\n", &long[..60_000]));
    assert!(reads(&w).1.is_empty());
    send(&mut a, "GETRANGE long 5 9\r\nGET long\r\nPING");
    wait_fetch(&w);
    for _ in 0..10 {
        send(&mut b, "STRLEN long\r\nEXISTS long\r\nPING");
        expect(&mut b, &format!(":{LONG}\r\n:1\r\n+PONG\r\n"));
    }
    nothing_yet(&mut a);
    w.store.0.lock().hold_fetches = false;
    expect(
        &mut a,
        &format!("$5\r\nvvvvv\r\n${LONG}\r\n{long}\r\n+PONG\r\n"),
    );
    let (here, there) = reads(&w);
    let long_value = |r: &ReadOf| matches!(r, ReadOf::Value(_, n) if *n == LONG);
    assert_eq!(here.iter().filter(|r| long_value(r)).count(), 0);
    assert_eq!(there.iter().filter(|r| long_value(r)).count(), 2);
    w.stop.shutdown();
    w.join();
}

/// A value that another thread read before a write must not be answered after it.
#[test]
fn a_value_written_during_its_fetch_is_answered_as_written() {
    let w = holding_fetches();
    let long = "v".repeat(LONG);
    let (mut a, mut b) = (w.client(), w.client());
    for key in ["set", "del", "add", "flush"] {
        a.write_all(
            format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${LONG}\r\n{long}\r\n",
                key.len()
            )
            .as_bytes(),
        )
        .unwrap();
        expect(&mut a, "+OK\r\n");
    }
    for (ask, write, written, answer) in [
        ("GET set", "SET set short", "+OK\r\n", "$5\r\nshort\r\n"),
        ("GETDEL del", "DEL del", ":1\r\n", "$-1\r\n"),
        ("APPEND add x", "SET add 12", "+OK\r\n", ":3\r\n"),
        ("GET flush", "FLUSHALL", "+OK\r\n", "$-1\r\n"),
    ] {
        w.store.0.lock().hold_fetches = true;
        w.store.0.lock().reads.clear();
        send(&mut a, ask);
        wait_fetch(&w);
        send(&mut b, write);
        expect(&mut b, written);
        nothing_yet(&mut a);
        w.store.0.lock().hold_fetches = false;
        expect(&mut a, answer);
    }
    w.stop.shutdown();
    w.join();
}

/// Regression test: the keys of a killed client were still read, and its request stayed in memory
/// until then. Clients that send requests and disconnect could queue work without end.
#[test]
fn a_waiting_read_is_cancelled_with_its_client() {
    let w = holding_fetches();
    set_long(&w, &["first", "killed", "left", "last"]);
    let (mut a, mut b, mut c, mut d) = (w.client(), w.client(), w.client(), w.client());
    send(&mut a, "GET first");
    wait_fetch(&w);
    send(&mut b, "CLIENT ID");
    let mut id = [0; 3];
    b.read_exact(&mut id).unwrap();
    send(&mut b, "GET killed");
    send(&mut c, "GET left");
    wait_until(|| info(&mut d, "fetched_requests") == 3);
    let id = std::str::from_utf8(&id[1..2]).unwrap();
    send(&mut d, &format!("CLIENT KILL ID {id}"));
    expect(&mut d, ":1\r\n");
    // The client disconnects with a reset. A client that only ends its side may still wait for its
    // reply.
    rustix::net::sockopt::set_socket_linger(&c, Some(Duration::ZERO)).unwrap();
    drop(c);
    wait_until(|| info(&mut d, "connected_clients") == 2);
    w.store.0.lock().hold_fetches = false;
    send(&mut d, "GET last");
    let mut reply = vec![0; LONG + 12];
    a.read_exact(&mut reply).unwrap();
    d.read_exact(&mut reply).unwrap();
    let (_, there) = reads(&w);
    let keys: Vec<_> = (there.iter())
        .map(|r| match r {
            ReadOf::Meta(key) | ReadOf::Value(key, _) => {
                String::from_utf8_lossy(&key[key.len() - 4..]).into_owned()
            }
        })
        .collect();
    assert_eq!(keys, ["irst", "last"], "what no client waits for was read");
    w.stop.shutdown();
    w.join();
}

/// Regression test: a request that waited for a place looked for its first 128 names again whenever
/// it was woken.
#[test]
fn a_request_that_waits_for_a_fetch_looks_its_names_up_once() {
    let w = holding_fetches();
    set_long(&w, &["long"]);
    let clients = all_fetches(&w);
    let mut waits = w.client();
    let names: String = (0..300).map(|n| format!(" n{n}")).collect();
    w.store.0.lock().reads.clear();
    send(&mut waits, &format!("EXISTS{names} long"));
    round(&w);
    let bound = crate::keyspace::LOOP_READS as usize;
    wait_until(|| reads(&w).0.len() >= bound);
    drop(clients);
    w.store.0.lock().hold_fetches = false;
    expect(&mut waits, ":1\r\n");
    let (here, _) = reads(&w);
    assert_eq!(here.len(), bound, "reads by the loop");
    w.stop.shutdown();
    w.join();
}

/// Regression test: a client that closed itself with a waiting request behind that kept its place
/// for a fetch. After 16 of them no client had its long values read any more.
#[test]
fn a_killed_client_releases_its_fetch() {
    let w = holding_fetches();
    set_long(&w, &["long"]);
    let mut d = w.client();
    for n in 0..40 {
        let mut c = w.client();
        send(&mut c, "CLIENT ID");
        let mut id = Vec::new();
        while !id.ends_with(b"\r\n") {
            let mut byte = [0];
            c.read_exact(&mut byte).unwrap();
            id.push(byte[0]);
        }
        let id = std::str::from_utf8(&id[1..]).unwrap().trim();
        if n % 2 == 0 {
            // All is sent in one piece, so that the second request has begun its fetch when the
            // client closes.
            send(
                &mut c,
                &format!("CLIENT KILL ID {id} SKIPME no\r\nGET long"),
            );
            expect(&mut c, ":1\r\n");
        } else {
            send(&mut c, "GET long");
            wait_until(|| info(&mut d, "fetched_requests") == n + 1);
            send(&mut d, &format!("CLIENT KILL ID {id}"));
            expect(&mut d, ":1\r\n");
        }
        assert_eq!(c.read(&mut [0]).unwrap(), 0);
        assert_eq!(
            info(&mut d, "fetched_requests"),
            n + 1,
            "its fetch had begun"
        );
    }
    w.store.0.lock().hold_fetches = false;
    send(&mut d, "STRLEN long\r\nGETRANGE long 0 3");
    expect(&mut d, &format!(":{LONG}\r\n$4\r\nvvvv\r\n"));
    w.stop.shutdown();
    w.join();
}

/// A request that waits for a place is no reason to disconnect its client, for any time.
#[test]
fn a_client_that_waits_for_a_fetch_is_not_idle() {
    let manual_clock = ManualClock::new(0);
    let w = World::over(
        MemoryStore::default(),
        Clock::manual(manual_clock.clone()),
        |_| {},
    );
    hold_fetches(&w);
    set_long(&w, &["long"]);
    let clients = all_fetches(&w);
    let (mut waits, mut idle, mut busy) = (w.client(), w.client(), w.client());
    send(&mut idle, "PING");
    expect(&mut idle, "+PONG\r\n");
    send(&mut busy, "CONFIG SET timeout 60");
    expect(&mut busy, "+OK\r\n");
    send(&mut waits, "GETRANGE long 0 3");
    round(&w);
    for _ in 0..3 {
        manual_clock.advance(Duration::from_secs(59));
        send(&mut busy, "PING");
        expect(&mut busy, "+PONG\r\n");
    }
    assert_eq!(idle.read(&mut [0]).unwrap(), 0, "idle for a minute");
    nothing_yet(&mut waits);
    assert_eq!(
        info(&mut busy, "fetched_requests"),
        16,
        "it waits for a place"
    );
    w.store.0.lock().hold_fetches = false;
    expect(&mut waits, "$4\r\nvvvv\r\n");
    drop(clients);
    w.stop.shutdown();
    w.join();
}

/// Regression test: a panic ended the thread that reads, and all requests with fetches waited for
/// ever. The server could not stop.
#[test]
fn a_read_that_panics_is_an_error_and_later_reads_work() {
    let w = World::new(|_| {});
    hold_fetches(&w);
    w.store.0.lock().hold_fetches = false;
    set_long(&w, &["long"]);
    w.store.0.lock().panic_fetches = true;
    let mut a = w.client();
    let error = "-MISCONF poisoned: the thread that reads keys panicked\r\n";
    for request in ["GET long", &of_many("MGET"), &of_many("DEL")] {
        send(&mut a, request);
        expect(&mut a, error);
    }
    w.store.0.lock().panic_fetches = false;
    send(&mut a, &of_many("EXISTS long"));
    expect(&mut a, ":1\r\n");
    w.stop.shutdown();
    w.join();
}
