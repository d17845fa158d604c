//! Blocked clients wait for commits, end by time, by CLIENT UNBLOCK, with their connection and with
//! the server.

use super::*;

/// The reply to XREAD with one entry of the stream `s`.
fn one_entry(id: &str, value: &str) -> String {
    format!("*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\na\r\n$1\r\n{value}\r\n")
}

fn wait_blocked(w: &World, n: u64) {
    let mut c = w.client();
    wait_until(|| info(&mut c, "blocked_clients") == n);
}

fn wait_held_appends(w: &World, n: usize) {
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
    // An entry that fails is seen by no client.
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
