//! Requests that wait on their connections while another thread scans, or reserves cursor numbers.

use super::*;

/// Regression test: each KEYS pinned a snapshot of the store and a copy of the writes in flight as
/// soon as it came, in any number.
#[test]
fn slow_reads_wait_in_their_connections() {
    const CLIENTS: usize = 20;
    let w = World::new(|_| {});
    let mut setter = w.client();
    send(&mut setter, "SET k v");
    expect(&mut setter, "+OK\r\n");
    w.store.0.lock().hold_scans = true;
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| w.client()).collect();
    for c in &mut clients {
        send(c, "KEYS *\r\nGET k\r\nDBSIZE\r\nPING");
    }
    // Some clients disconnect, and connect again.
    for c in &mut clients[CLIENTS - 5..] {
        *c = w.client();
        send(c, "KEYS *\r\nGET k\r\nDBSIZE\r\nPING");
    }
    round(&w);
    send(&mut setter, "SET k w");
    expect(&mut setter, "+OK\r\n");
    assert!((1..=2).contains(&w.store.0.lock().views));
    for c in &mut clients {
        nothing_yet(c);
    }
    w.store.0.lock().hold_scans = false;
    for c in &mut clients {
        expect(c, "*1\r\n$1\r\nk\r\n$1\r\nw\r\n:1\r\n+PONG\r\n");
    }
    send(&mut setter, "INFO stats");
    let mut info = vec![0; 4096];
    let n = setter.read(&mut info).unwrap();
    let info = String::from_utf8_lossy(&info[..n]).into_owned();
    // A waiting command does not run: each is counted once.
    let commands = 1 + 1 + 1 + 4 * CLIENTS + 1;
    let line = info
        .lines()
        .find(|l| l.starts_with("total_commands_processed:"));
    let counted: usize = line.unwrap().split(':').nth(1).unwrap().parse().unwrap();
    assert!(
        (commands..=commands + 4 * 5).contains(&counted),
        "{counted}"
    );
    w.stop.shutdown();
    w.join();
}

/// Regression test: the loop waited for the sync itself, and all clients with it.
#[test]
fn a_scan_that_waits_for_cursor_numbers_blocks_no_client() {
    let store = MemoryStore::default();
    store.0.lock().fail_reads = true;
    // The server starts nevertheless.
    let w = World::over(store, Clock::system(), |_| {});
    let hold = |hold: bool, fail: bool| {
        let mut s = w.store.0.lock();
        (s.hold_cursors, s.fail_reads) = (hold, fail);
    };
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut a, "MSET a 1 b 2 c 3");
    expect(&mut a, "+OK\r\n");
    hold(true, false);
    for c in [&mut a, &mut b] {
        send(c, "SCAN 0 COUNT 1\r\nPING");
    }
    round(&w);
    nothing_yet(&mut a);
    nothing_yet(&mut b);
    hold(false, true);
    for c in [&mut a, &mut b] {
        expect(c, "-MISCONF i/o error: the disk is gone\r\n+PONG\r\n");
    }
    // Later requests try again.
    hold(false, false);
    for c in [&mut a, &mut b] {
        send(c, "SCAN 0 COUNT 1");
        expect(c, "*2\r\n$1\r\n1\r\n*1\r\n$1\r\na\r\n");
    }
    assert_eq!(w.store.0.lock().cursor_blocks, 1);
    w.stop.shutdown();
    w.join();
}

/// Regression test: of waiting requests, only the bytes were counted as clients' memory. The table
/// of arguments of each was in no budget.
#[test]
fn a_parked_request_is_counted_with_its_argument_table() {
    const ARGUMENTS: usize = 50_000;
    let store = MemoryStore::default();
    store.0.lock().fail_reads = true;
    let w = World::over(store, Clock::system(), |_| {});
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut a, "MSET a 1 b 2");
    expect(&mut a, "+OK\r\n");
    {
        let mut s = w.store.0.lock();
        (s.hold_cursors, s.fail_reads) = (true, false);
    }
    // The request waits for a cursor number, with many options.
    let scan = [
        format!("*{}\r\n$4\r\nSCAN\r\n$1\r\n0\r\n", 2 + ARGUMENTS).as_bytes(),
        &b"$5\r\nCOUNT\r\n$1\r\n1\r\n".repeat(ARGUMENTS / 2),
    ]
    .concat();
    a.write_all(&scan).unwrap();
    let table = ARGUMENTS * 8;
    loop {
        // This is the memory of this client in CLIENT LIST, once the whole request has arrived.
        send(&mut b, "CLIENT LIST ID 1");
        let mut list = vec![0; 4096];
        let n = b.read(&mut list).unwrap();
        let list = String::from_utf8_lossy(&list[..n]).into_owned();
        if !list.contains("qbuf=0 ") || !list.contains("cmd=scan") {
            basalt::env::Clock::system().sleep(Duration::from_millis(1));
            continue;
        }
        send(&mut b, "INFO memory");
        let mut info = vec![0; 4096];
        let n = b.read(&mut info).unwrap();
        let info = String::from_utf8_lossy(&info[..n]).into_owned();
        let line = info
            .lines()
            .find_map(|l| l.strip_prefix("mem_clients_normal:"));
        let counted: usize = line.unwrap_or_else(|| panic!("{info}")).parse().unwrap();
        assert!(counted >= scan.len() + table, "{counted}");
        break;
    }
    w.store.0.lock().hold_cursors = false;
    expect(&mut a, "*2\r\n$1\r\n1\r\n*1\r\n$1\r\na\r\n");
    w.stop.shutdown();
    w.join();
}
