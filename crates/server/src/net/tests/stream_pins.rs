//! Tests of requests that pin streams: each ends beside any number of others, and its pins end with
//! it.

use super::blocking::wait_blocked;
use super::*;

/// Returns a store with streams `k0`, `k1` and so on, with one entry each.
fn store_with_streams(streams: usize) -> MemoryStore {
    let w = World::new(|_| {});
    let mut c = w.client();
    let adds: String = (0..streams)
        .map(|n| format!("XADD k{n} 1-1 a 1\r\n"))
        .collect();
    send(&mut c, adds.trim_end());
    expect(&mut c, &"$3\r\n1-1\r\n".repeat(streams));
    let store = w.store.clone();
    w.stop.shutdown();
    w.join();
    store
}

/// Regression test: requests on many streams evicted each other's streams before they could run.
/// With a small budget, two requests on 500 streams each loaded them again and again, and were
/// never answered.
#[test]
fn requests_that_need_many_streams_do_not_evict_each_others() {
    for (clients, streams, budget) in [(2, 500, 1), (24, 30, 1), (40, 30, u64::MAX)] {
        let store = store_with_streams(clients * streams);
        let w = World::over(store, Clock::system(), |o| o.stream_memory_bytes = budget);
        let mut all: Vec<_> = (0..clients).map(|_| w.client()).collect();
        for (n, c) in all.iter_mut().enumerate() {
            let names: String = (n * streams..(n + 1) * streams)
                .map(|n| format!(" k{n}"))
                .collect();
            send(c, &format!("XREAD STREAMS{names}{}", " 0".repeat(streams)));
        }
        let of = |n: usize| {
            let key = format!("${}\r\nk{n}\r\n", 1 + n.to_string().len());
            format!("*2\r\n{key}*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n")
        };
        for (n, c) in all.iter_mut().enumerate() {
            let replies: String = (n * streams..(n + 1) * streams).map(of).collect();
            expect(c, &format!("*{streams}\r\n{replies}"));
        }
        let mut c = w.client();
        for name in ["streams_pinned", "stream_requests_waiting"] {
            assert_eq!(info(&mut c, name), 0, "{name}");
        }
        if budget == 1 {
            assert_eq!(info(&mut c, "mem_streams"), 0);
        }
        w.stop.shutdown();
        w.join();
    }
}

/// Of requests that need another thread, 16 have pins. The others wait in the order of their
/// arrival. Pins end with the connection.
#[test]
fn requests_wait_for_their_turn_to_pin_streams() {
    let store = store_with_streams(24);
    let w = World::over(store, Clock::system(), |o| o.stream_memory_bytes = 1);
    hold_fetches(&w);
    let mut c = w.client();
    let mut clients = Vec::new();
    for n in 0..20 {
        let mut c = w.client();
        send(&mut c, &format!("XLEN k{n}\r\nPING"));
        clients.push(c);
        round(&w);
    }
    let counts = |c: &mut TcpStream| {
        let pinned = info(c, "streams_pinned");
        (pinned, info(c, "stream_requests_waiting"))
    };
    assert_eq!(counts(&mut c), (16, 4));
    // Two clients with pins leave, and one without. Each second connection was that of a PING.
    for n in [19, 2, 1] {
        clients.remove(n);
        send(&mut c, &format!("CLIENT KILL ID {}", 2 + 2 * n));
        expect(&mut c, ":1\r\n");
    }
    wait_until(|| counts(&mut c) == (16, 1));
    w.store.0.lock().hold_fetches = false;
    for c in &mut clients {
        expect(c, ":1\r\n+PONG\r\n");
    }
    wait_until(|| counts(&mut c) == (0, 0));
    assert_eq!(info(&mut c, "mem_streams"), 0);
    w.stop.shutdown();
    w.join();
}

/// The pins of a blocked request end while it waits for entries, and with CLIENT UNBLOCK.
#[test]
fn a_blocked_request_has_pins_only_while_it_waits_for_a_job() {
    let w = World::over(store_with_streams(2), Clock::system(), |_| {});
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut a, "XREAD BLOCK 0 STREAMS k0 k1 $ $\r\nPING");
    wait_blocked(&w, 1);
    assert_eq!(info(&mut b, "streams_pinned"), 0);
    hold_fetches(&w);
    // The failed deletion drops the stream from memory.
    w.store.hold(true);
    send(&mut b, "DEL k0");
    wait_until(|| w.store.held() == 1);
    w.store.hold(false);
    w.store.release(0, failed());
    expect(&mut b, "-MISCONF no space: the disk is full\r\n");
    send(&mut b, "XADD k1 2-1 a 1");
    expect(&mut b, "$3\r\n2-1\r\n");
    wait_until(|| info(&mut b, "streams_pinned") == 1);
    send(&mut b, "CLIENT UNBLOCK 1");
    expect(&mut b, ":1\r\n");
    expect(&mut a, "*-1\r\n+PONG\r\n");
    assert_eq!(info(&mut b, "streams_pinned"), 0);
    w.store.0.lock().hold_fetches = false;
    send(&mut a, "XLEN k0");
    expect(&mut a, ":1\r\n");
    w.stop.shutdown();
    w.join();
}
