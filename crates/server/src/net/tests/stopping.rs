//! A server that stops: it finishes the accepted requests, and waits for slow clients with a limit.

use super::*;

#[test]
fn stopping_finishes_what_was_accepted() {
    let w = World::new(|_| {});
    w.store.hold(true);
    let mut a = w.client();
    let mut counted = w.client();
    send(&mut a, "SET k v\r\nAPPEND k w\r\nGET k");
    w.wait_held(1);
    send(&mut counted, "DBSIZE");
    round(&w);
    w.stop.shutdown();
    // The server cannot end before the commit has.
    w.store.release(0, Ok(()));
    expect(&mut a, "+OK\r\n:2\r\n$2\r\nvw\r\n");
    expect(&mut counted, ":1\r\n");
    assert_eq!(a.read(&mut [0]).unwrap(), 0, "then the connection ends");
    assert!(TcpStream::connect(w.address).is_err());
    w.join();
}

#[test]
fn a_client_that_does_not_read_does_not_delay_stopping() {
    let w = World::new(|o| o.drain = Duration::from_millis(50));
    let mut a = w.client();
    send(&mut a, &format!("SET k {}", "x".repeat(60_000)));
    expect(&mut a, "+OK\r\n");
    for _ in 0..2_000 {
        send(&mut a, "GET k");
    }
    round(&w);
    w.stop.shutdown();
    w.join();
}

#[test]
fn stopping_answers_waiting_slow_reads() {
    let w = World::new(|_| {});
    w.store.0.lock().hold_scans = true;
    let mut clients: Vec<_> = (0..6).map(|_| w.client()).collect();
    for c in &mut clients {
        send(c, "SET k v\r\nKEYS k*");
        expect(c, "+OK\r\n");
    }
    round(&w);
    w.stop.shutdown();
    w.store.0.lock().hold_scans = false;
    for c in &mut clients {
        expect(c, "*1\r\n$1\r\nk\r\n");
        assert_eq!(c.read(&mut [0]).unwrap(), 0);
    }
    w.join();
}

/// Regression test: requests behind slow reads were dropped when the time for stopping was over.
#[test]
fn stopping_runs_requests_behind_slow_reads() {
    let w = World::new(|o| o.drain = Duration::from_millis(50));
    w.store.0.lock().hold_scans = true;
    let mut clients: Vec<_> = (0..100).map(|_| w.client()).collect();
    for (i, c) in clients.iter_mut().enumerate() {
        send(
            c,
            &format!("PING\r\nKEYS *\r\nSET k{i} v\r\nDBSIZE\r\nPING"),
        );
        expect(c, "+PONG\r\n");
    }
    w.stop.shutdown();
    let error = "-ERR the server is stopping and ends walks over all keys\r\n";
    for c in &mut clients {
        expect(c, &format!("{error}+OK\r\n{error}+PONG\r\n"));
        assert_eq!(c.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(w.store.0.lock().entries.len(), 100);
    w.store.0.lock().hold_scans = false;
    w.join();
}

/// Stops a server with 120 MB of replies in the queue. The client takes them while the clock moves
/// on, up to 2.4 times the wait for a client that takes nothing. Returns the number of replies
/// received.
fn replies_while_stopping(in_all: Duration) -> usize {
    const REPLIES: usize = 2_000;
    let manual_clock = ManualClock::new(0);
    let wait = Duration::from_secs(5);
    let w = World::over(
        MemoryStore::default(),
        Clock::manual(manual_clock.clone()),
        |o| {
            (o.drain, o.drain_in_all) = (wait, in_all);
        },
    );
    let mut a = w.client();
    let value = "x".repeat(60_000);
    send(&mut a, &format!("SET k {value}"));
    expect(&mut a, "+OK\r\n");
    a.write_all(&b"GET k\r\n".repeat(REPLIES)).unwrap();
    let mut reply = vec![0; value.len() + "$60000\r\n\r\n".len()];
    a.read_exact(&mut reply).unwrap();
    w.stop.shutdown();
    let mut taken = 1;
    // The wait has 42 steps of 1.2 MB, more than the system buffers between the two ends, so some
    // was written meanwhile.
    while a.read_exact(&mut reply).is_ok() {
        taken += 1;
        if taken % 20 == 0 {
            manual_clock.advance(wait * 12 / 500);
        }
    }
    w.join();
    taken
}

#[test]
fn stopping_waits_for_clients_that_read_their_replies() {
    assert_eq!(replies_while_stopping(Duration::from_secs(60)), 2_000);
}

#[test]
fn stopping_has_a_time_limit_for_slow_clients() {
    assert!(replies_while_stopping(Duration::from_secs(5)) < 2_000);
}
