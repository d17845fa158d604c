//! Tests of blocked clients. A wait ends with a commit, its timeout, CLIENT UNBLOCK, the connection
//! or the server.

use super::*;

/// The reply to XREAD with one entry of the stream `s`.
fn one_entry(id: &str, value: &str) -> String {
    format!("*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\na\r\n$1\r\n{value}\r\n")
}

pub(super) fn wait_blocked(w: &World, n: u64) {
    let mut c = w.client();
    wait_until(|| info(&mut c, "blocked_clients") == n);
}

pub(super) fn wait_held_appends(w: &World, n: usize) {
    wait_until(|| w.store.0.lock().held_appends.len() == n);
}

#[test]
fn a_blocked_client_gets_an_entry_when_its_commit_has_ended() {
    let w = World::new(|_| {});
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut b, "XADD s 1-1 a 1");
    expect(&mut b, "$3\r\n1-1\r\n");
    send(&mut a, "XREAD BLOCK 0 STREAMS s $");
    wait_blocked(&w, 1);
    w.store.0.lock().hold_appends = true;
    send(&mut b, "XADD s 1-2 a 2");
    wait_held_appends(&w, 1);
    round(&w);
    nothing_yet(&mut a);
    nothing_yet(&mut b);
    w.store.release_append(Ok(()));
    expect(&mut b, "$3\r\n1-2\r\n");
    expect(&mut a, &one_entry("1-2", "2"));
    // No client sees an entry whose commit fails.
    send(&mut a, "XREAD BLOCK 0 STREAMS s $");
    wait_blocked(&w, 1);
    send(&mut b, "XADD s 1-3 a 3");
    wait_held_appends(&w, 1);
    w.store.release_append(failed());
    expect(&mut b, "-MISCONF no space: the disk is full\r\n");
    round(&w);
    nothing_yet(&mut a);
    w.store.0.lock().hold_appends = false;
    send(&mut b, "XADD s 1-4 a 4");
    expect(&mut b, "$3\r\n1-4\r\n");
    expect(&mut a, &one_entry("1-4", "4"));
    send(&mut b, "XLEN s");
    expect(&mut b, ":3\r\n");
    w.stop.shutdown();
    w.join();
}

#[test]
fn a_wait_ends_by_time_and_by_client_unblock() {
    let w = World::new(|_| {});
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut a, "XREAD BLOCK 3 STREAMS s t $ $");
    expect(&mut a, "*-1\r\n");
    wait_blocked(&w, 0);
    // The ids of clients are given in the order of their connections.
    for (end, reply) in [
        ("", "*-1\r\n"),
        (" TIMEOUT", "*-1\r\n"),
        (
            " ERROR",
            "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n",
        ),
    ] {
        send(&mut a, "XREAD BLOCK 0 STREAMS s $\r\nPING");
        wait_blocked(&w, 1);
        send(&mut b, &format!("CLIENT UNBLOCK 1{end}"));
        expect(&mut b, ":1\r\n");
        expect(&mut a, reply);
        expect(&mut a, "+PONG\r\n");
    }
    send(&mut b, "CLIENT UNBLOCK 1");
    expect(&mut b, ":0\r\n");
    w.stop.shutdown();
    w.join();
}

#[test]
fn blocked_clients_end_with_their_connection_and_with_the_server() {
    let w = World::new(|_| {});
    let mut clients: Vec<_> = (0..3).map(|_| w.client()).collect();
    for c in &mut clients {
        send(c, "XREAD BLOCK 0 STREAMS s $");
    }
    wait_blocked(&w, 3);
    drop(clients.remove(0));
    wait_blocked(&w, 2);
    let half = clients.remove(0);
    half.shutdown(std::net::Shutdown::Write).unwrap();
    wait_blocked(&w, 1);
    w.stop.shutdown();
    w.join();
    let mut rest = Vec::new();
    clients[0].read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
}

/// After its commit, an entry is delivered to one consumer: the one whose request has waited
/// longest.
#[test]
fn blocked_consumers_share_entries_in_the_order_of_their_requests() {
    let w = World::new(|_| {});
    let mut b = w.client();
    send(&mut b, "XGROUP CREATE s g 0 MKSTREAM");
    expect(&mut b, "+OK\r\n");
    let mut consumers: Vec<_> = (0..3).map(|_| w.client()).collect();
    for (n, c) in consumers.iter_mut().enumerate() {
        send(
            c,
            &format!("XREADGROUP GROUP g c{n} COUNT 1 BLOCK 0 STREAMS s >"),
        );
        wait_blocked(&w, n as u64 + 1);
    }
    w.store.0.lock().hold_appends = true;
    send(&mut b, "XADD s 1-1 a 1\r\nXADD s 1-2 a 2");
    wait_held_appends(&w, 1);
    round(&w);
    for c in &mut consumers {
        nothing_yet(c);
    }
    w.store.0.lock().hold_appends = false;
    w.store.release_append(Ok(()));
    expect(&mut b, "$3\r\n1-1\r\n$3\r\n1-2\r\n");
    expect(&mut consumers[0], &one_entry("1-1", "1"));
    expect(&mut consumers[1], &one_entry("1-2", "2"));
    wait_blocked(&w, 1);
    nothing_yet(&mut consumers[2]);
    send(&mut b, "XPENDING s g");
    let counts = "*2\r\n*2\r\n$2\r\nc0\r\n$1\r\n1\r\n*2\r\n$2\r\nc1\r\n$1\r\n1\r\n";
    expect(
        &mut b,
        &format!("*4\r\n:2\r\n$3\r\n1-1\r\n$3\r\n1-2\r\n{counts}"),
    );
    // XGROUP SETID to an earlier id wakes no request, but the next entry does.
    send(&mut b, "XGROUP SETID s g 0");
    expect(&mut b, "+OK\r\n");
    round(&w);
    nothing_yet(&mut consumers[2]);
    send(&mut b, "XADD s 1-3 a 3");
    expect(&mut b, "$3\r\n1-3\r\n");
    expect(&mut consumers[2], &one_entry("1-1", "1"));
    w.stop.shutdown();
    w.join();
}

/// A blocked consumer gets an error when the removal of its group or its stream is committed, even
/// if both exist again at that time.
#[test]
fn a_blocked_consumer_ends_with_its_group_and_its_stream() {
    let w = World::new(|_| {});
    let (mut a, mut b) = (w.client(), w.client());
    let destroyed = "-NOGROUP the consumer group this client was blocked on no longer exists\r\n";
    let deleted = "-UNBLOCKED the stream key no longer exists\r\n";
    for (command, replies, reply) in [
        ("XGROUP DESTROY s g", ":1\r\n", destroyed),
        (
            "XGROUP DESTROY s g\r\nXGROUP CREATE s g 0",
            ":1\r\n+OK\r\n",
            destroyed,
        ),
        ("DEL s", ":1\r\n", deleted),
        (
            "DEL s\r\nXGROUP CREATE s g 0 MKSTREAM",
            ":1\r\n+OK\r\n",
            deleted,
        ),
        ("SET s x", "+OK\r\n", deleted),
        ("MSET s x t y", "+OK\r\n", deleted),
        ("FLUSHALL", "+OK\r\n", deleted),
    ] {
        send(&mut b, "DEL s\r\nXGROUP CREATE s g $ MKSTREAM\r\nPING");
        let mut seen = String::new();
        while !seen.ends_with("+OK\r\n+PONG\r\n") {
            let mut bytes = [0; 64];
            let n = b.read(&mut bytes).unwrap();
            seen.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
        }
        send(&mut a, "XREADGROUP GROUP g c BLOCK 0 STREAMS s >");
        wait_blocked(&w, 1);
        w.store.hold(true);
        send(&mut b, command);
        wait_until(|| w.store.held() == 1);
        round(&w);
        nothing_yet(&mut a);
        nothing_yet(&mut b);
        // The write fails, so the request stays blocked.
        w.store.release(0, failed());
        round(&w);
        nothing_yet(&mut a);
        w.store.hold(false);
        for _ in 0..replies.matches("\r\n").count() {
            expect(&mut b, "-MISCONF no space: the disk is full\r\n");
        }
        send(&mut b, command);
        expect(&mut b, replies);
        expect(&mut a, reply);
        wait_blocked(&w, 0);
    }
    w.stop.shutdown();
    w.join();
}

/// A stream that expires ends the wait of a blocked consumer, without any other request.
#[test]
fn a_blocked_consumer_ends_when_its_stream_expires() {
    let w = World::new(|_| {});
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut b, "XGROUP CREATE s g $ MKSTREAM");
    expect(&mut b, "+OK\r\n");
    send(&mut a, "XREADGROUP GROUP g c BLOCK 0 STREAMS s >");
    wait_blocked(&w, 1);
    send(&mut b, "PEXPIRE s 1");
    expect(&mut b, ":1\r\n");
    expect(&mut a, "-UNBLOCKED the stream key no longer exists\r\n");
    w.stop.shutdown();
    w.join();
}

pub(super) fn add_failing(w: &World, c: &mut TcpStream, command: &str) {
    w.store.0.lock().hold_appends = true;
    send(c, command);
    wait_held_appends(w, 1);
    w.store.0.lock().hold_appends = false;
    w.store.release_append(failed());
    expect(c, "-MISCONF no space: the disk is full\r\n");
}

/// Regression test: a request that had blocked on writes in flight went on to wait after their
/// commit had failed: for entries after an id that never existed, and on a group that never
/// existed. Other clients' entries never reached it.
#[test]
fn a_blocked_request_gets_the_error_of_the_writes_that_it_has_seen() {
    let w = World::new(|_| {});
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut b, "XADD s 1-1 a 1");
    expect(&mut b, "$3\r\n1-1\r\n");
    for (write, read) in [
        ("XADD s 100-0 a 1", "XREAD BLOCK 0 STREAMS s $"),
        (
            "XGROUP CREATE new g 0 MKSTREAM",
            "XREADGROUP GROUP g c BLOCK 0 STREAMS new >",
        ),
    ] {
        let is_append = write.starts_with("XADD");
        w.store.0.lock().hold_appends = is_append;
        w.store.hold(!is_append);
        send(&mut b, write);
        wait_until(|| w.store.held() + w.store.0.lock().held_appends.len() == 1);
        send(&mut a, &format!("{read}\r\nPING"));
        wait_blocked(&w, 1);
        w.store.0.lock().hold_appends = false;
        w.store.hold(false);
        match is_append {
            true => w.store.release_append(failed()),
            false => w.store.release(0, failed()),
        }
        expect(&mut b, "-MISCONF no space: the disk is full\r\n");
        expect(&mut a, "-MISCONF no space: the disk is full\r\n+PONG\r\n");
        wait_blocked(&w, 0);
    }
    send(&mut a, "XREAD BLOCK 0 STREAMS s $");
    wait_blocked(&w, 1);
    send(&mut b, "XADD s 50-0 a 2");
    expect(&mut b, "$4\r\n50-0\r\n");
    let entry = one_entry("50-0", "2").replace("$3", "$4");
    expect(&mut a, &entry);
    w.stop.shutdown();
    w.join();
}

/// If the writes are committed, the wait goes on. Its end by CLIENT UNBLOCK waits for them.
#[test]
fn the_end_of_a_wait_depends_on_the_writes_that_the_request_has_seen() {
    let w = World::new(|_| {});
    let (mut a, mut b, mut c) = (w.client(), w.client(), w.client());
    send(&mut b, "XADD s 1-1 a 1");
    expect(&mut b, "$3\r\n1-1\r\n");
    w.store.0.lock().hold_appends = true;
    for (id, result, reply) in [
        ("100-0", Ok(()), "*-1\r\n"),
        ("200-0", failed(), "-MISCONF no space: the disk is full\r\n"),
    ] {
        send(&mut b, &format!("XADD s {id} a 1"));
        wait_held_appends(&w, 1);
        send(&mut a, "XREAD BLOCK 0 STREAMS s $");
        wait_blocked(&w, 1);
        send(&mut c, "CLIENT UNBLOCK 1");
        expect(&mut c, ":1\r\n");
        wait_blocked(&w, 0);
        nothing_yet(&mut a);
        w.store.release_append(result);
        expect(&mut a, reply);
    }
    w.store.0.lock().hold_appends = false;
    expect(
        &mut b,
        "$5\r\n100-0\r\n-MISCONF no space: the disk is full\r\n",
    );
    send(&mut a, "XREAD BLOCK 0 STREAMS s $");
    wait_blocked(&w, 1);
    send(&mut b, "XADD s 150-0 a 2");
    expect(&mut b, "$5\r\n150-0\r\n");
    expect(&mut a, &one_entry("150-0", "2").replace("$3", "$5"));
    w.stop.shutdown();
    w.join();
}

/// Regression test: both requests of one pipeline were answered with 1.
#[test]
fn a_client_is_unblocked_once() {
    let w = World::new(|_| {});
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut a, "XREAD BLOCK 0 STREAMS s $\r\nPING");
    wait_blocked(&w, 1);
    send(&mut b, "CLIENT UNBLOCK 1 ERROR\r\nCLIENT UNBLOCK 1");
    expect(&mut b, ":1\r\n:0\r\n");
    expect(
        &mut a,
        "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n+PONG\r\n",
    );
    w.stop.shutdown();
    w.join();
}
