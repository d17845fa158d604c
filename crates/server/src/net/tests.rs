//! The loop over a store whose commits the test holds back: replies wait for them, clients do not wait for each other.

use super::*;
use crate::layout;
use crate::store::memory::{MemoryStore, ReadOf};
use basalt::env::{Clock, EnvBuilder, ManualClock};
use basalt::fs::{HostFs, HostOptions};
use std::io::{Read, Write};
use std::net::TcpStream;

struct World {
    store: MemoryStore,
    address: SocketAddr,
    stop: ShutdownHandle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl World {
    fn new(change: impl FnOnce(&mut ServerOptions)) -> World {
        World::over(MemoryStore::default(), Clock::system(), change)
    }

    fn over(store: MemoryStore, clock: Clock, change: impl FnOnce(&mut ServerOptions)) -> World {
        let fs = HostFs::new(HostOptions::new(std::env::temp_dir())).unwrap();
        let env = EnvBuilder::new(fs).clock(clock).build();
        let mut options = ServerOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            ..ServerOptions::default()
        };
        change(&mut options);
        let listener = listen(options.listen).unwrap();
        let server = Server::over(&env, options, listener, Arc::new(store.clone())).unwrap();
        let (address, stop) = (server.local_addr(), server.shutdown_handle());
        let thread =
            basalt::env::thread::spawn("basalt-server", move || server.run().unwrap()).unwrap();
        World {
            store,
            address,
            stop,
            thread: Some(thread),
        }
    }

    fn client(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    fn wait_held(&self, n: usize) {
        while self.store.held() != n {
            basalt::env::Clock::system().sleep(Duration::from_millis(1));
        }
    }

    fn join(mut self) {
        self.thread.take().unwrap().join().unwrap();
        assert!(self.store.0.lock().closed);
    }
}

fn send(c: &mut TcpStream, line: &str) {
    c.write_all(format!("{line}\r\n").as_bytes()).unwrap();
}

fn expect(c: &mut TcpStream, reply: &str) {
    let mut got = vec![0; reply.len()];
    c.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), reply);
}

/// A round trip on another connection: everything sent before it has been executed.
fn round(w: &World) {
    let mut c = w.client();
    send(&mut c, "PING");
    expect(&mut c, "+PONG\r\n");
}

fn nothing_yet(c: &mut TcpStream) {
    c.set_nonblocking(true).unwrap();
    let e = c.peek(&mut [0]).expect_err("a reply came too early");
    assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
    c.set_nonblocking(false).unwrap();
}

fn failed() -> Result<()> {
    Err(Error::new(ErrorKind::NoSpace, "the disk is full"))
}

#[test]
fn a_reply_waits_for_its_commit_and_so_do_replies_that_saw_it() {
    let w = World::new(|_| {});
    w.store.hold(true);
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut a, "SET k v");
    w.wait_held(1);
    send(&mut b, "GET other");
    expect(&mut b, "$-1\r\n");
    send(&mut b, "GET k");
    // Behind a reply that waits, others wait as well.
    send(&mut b, "PING");
    round(&w);
    nothing_yet(&mut a);
    nothing_yet(&mut b);
    w.store.release(0, Ok(()));
    expect(&mut a, "+OK\r\n");
    expect(&mut b, "$1\r\nv\r\n+PONG\r\n");
    w.stop.shutdown();
    w.join();
}

#[test]
fn a_failed_commit_fails_its_writes_and_what_saw_them_and_nothing_else() {
    let w = World::new(|_| {});
    w.store.hold(true);
    let (mut a, mut b, mut c) = (w.client(), w.client(), w.client());
    send(&mut a, "INCR n\r\nPING\r\nINCR n");
    w.wait_held(1);
    send(&mut b, "INCR n\r\nPING");
    send(&mut c, "GET n");
    send(&mut c, "GET m");
    round(&w);
    assert_eq!(
        w.store.held(),
        1,
        "computed from what may fail: not submitted"
    );
    w.store.release(0, failed());
    let error = "-MISCONF no space: the disk is full\r\n";
    expect(&mut a, &format!("{error}+PONG\r\n{error}"));
    expect(&mut b, &format!("{error}+PONG\r\n"));
    expect(&mut c, &format!("{error}$-1\r\n"));
    w.store.hold(false);
    send(&mut a, "INCR n");
    expect(&mut a, ":1\r\n");
    send(&mut a, "INFO errorstats");
    expect(
        &mut a,
        "$41\r\n# Errorstats\r\nerrorstat_MISCONF:count=4\r\n\r\n",
    );
    w.stop.shutdown();
    w.join();
}

/// Two writes of a key were on their way, and the callback of the second ran first: its client was told OK, then GET
/// answered with the first value, and INCR counted on from it.
#[test]
fn an_acknowledged_write_is_shown_though_an_earlier_one_is_still_on_its_way() {
    let w = World::new(|_| {});
    w.store.hold(true);
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut a, "SET n 5");
    w.wait_held(1);
    send(&mut b, "SET n 100");
    w.wait_held(2);
    w.store.decide(Ok(()));
    w.store.decide(Ok(()));
    w.store.call_back(1);
    expect(&mut b, "+OK\r\n");
    nothing_yet(&mut a);
    w.store.hold(false);
    send(&mut b, "GET n\r\nINCR n\r\nGET n");
    expect(&mut b, "$3\r\n100\r\n:101\r\n$3\r\n101\r\n");
    nothing_yet(&mut a);
    w.store.call_back(0);
    expect(&mut a, "+OK\r\n");
    send(&mut a, "GET n");
    expect(&mut a, "$3\r\n101\r\n");
    w.stop.shutdown();
    w.join();
}

#[test]
fn many_epochs_are_in_flight_and_then_writes_share_one() {
    let w = World::new(|_| {});
    w.store.hold(true);
    let mut clients: Vec<_> = (0..20).map(|_| w.client()).collect();
    for (i, c) in clients.iter_mut().enumerate() {
        send(c, &format!("SET k{i} v"));
        round(&w);
    }
    assert_eq!(w.store.held(), 8);
    for _ in 0..8 {
        w.store.release(0, Ok(()));
    }
    w.wait_held(1);
    w.store.release(0, Ok(()));
    for c in &mut clients {
        expect(c, "+OK\r\n");
    }
    let submissions = w.store.0.lock().submissions.clone();
    assert_eq!(submissions.len(), 9);
    assert_eq!(submissions[8], (12, true), "the rest went together");
    w.stop.shutdown();
    w.join();
}

/// Regression test: while pending writes took all their room, no client was served at all, and a
/// PING waited for the commit of other clients.
#[test]
fn only_writes_wait_for_room_for_writes() {
    let w = World::new(|options| options.pending_write_bytes = 10_000);
    let (mut a, mut b, mut c) = (w.client(), w.client(), w.client());
    w.store.hold(true);
    send(&mut a, &format!("SET k {}", "v".repeat(20_000)));
    w.wait_held(1);
    send(&mut b, "SET x 1");
    send(&mut b, "PING");
    send(&mut c, "GET other");
    expect(&mut c, "$-1\r\n");
    send(&mut c, "EXISTS x");
    expect(&mut c, ":0\r\n");
    nothing_yet(&mut b);
    w.store.hold(false);
    w.store.release(0, Ok(()));
    expect(&mut a, "+OK\r\n");
    expect(&mut b, "+OK\r\n+PONG\r\n");
    send(&mut c, "GET x");
    expect(&mut c, "$1\r\n1\r\n");
    w.stop.shutdown();
    w.join();
}

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
    // It cannot end before the commit has.
    w.store.release(0, Ok(()));
    expect(&mut a, "+OK\r\n:2\r\n$2\r\nvw\r\n");
    expect(&mut counted, ":1\r\n");
    assert_eq!(a.read(&mut [0]).unwrap(), 0, "then the connection ends");
    assert!(TcpStream::connect(w.address).is_err());
    w.join();
}

#[test]
fn a_client_that_takes_no_replies_does_not_keep_the_server_from_stopping() {
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
fn the_sync_policy_decides_what_a_commit_asks_for() {
    for (policy, sync) in [
        (SyncPolicy::Always, true),
        (SyncPolicy::EverySecond, false),
        (SyncPolicy::Never, false),
    ] {
        let w = World::new(|o| o.sync = policy);
        let mut a = w.client();
        send(&mut a, "SET k v");
        expect(&mut a, "+OK\r\n");
        send(&mut a, "FLUSHALL");
        expect(&mut a, "+OK\r\n");
        send(&mut a, "CONFIG SET appendfsync always");
        expect(&mut a, "+OK\r\n");
        send(&mut a, "SET k v");
        expect(&mut a, "+OK\r\n");
        let asked: Vec<bool> = w.store.0.lock().submissions.iter().map(|s| s.1).collect();
        assert_eq!(asked, [sync, true, true]);
        w.stop.shutdown();
        w.join();
    }
}

/// A write was on its way under `everysec` when the policy became another. It was acknowledged later, and the sync of
/// every second did not hear of it: without a later write nothing ever synced it.
#[test]
fn a_write_is_synced_by_the_policy_under_which_it_was_submitted() {
    for policy in ["always", "no"] {
        let w = World::new(|o| o.sync = SyncPolicy::EverySecond);
        w.store.hold(true);
        let (mut a, mut b) = (w.client(), w.client());
        send(&mut a, "SET k v");
        w.wait_held(1);
        send(&mut b, &format!("CONFIG SET appendfsync {policy}"));
        expect(&mut b, "+OK\r\n");
        w.store.release(0, Ok(()));
        expect(&mut a, "+OK\r\n");
        w.stop.shutdown();
        let store = w.store.clone();
        w.join();
        assert!(store.0.lock().syncs >= 1, "{policy}");
    }
}

#[test]
fn a_failing_disk_is_an_error_reply_for_reads_too() {
    let w = World::new(|_| {});
    let mut a = w.client();
    w.store.0.lock().fail_reads = true;
    send(&mut a, "MSETNX a 1 b 2\r\nGET a\r\nPING");
    let error = "-MISCONF i/o error: the disk is gone\r\n";
    expect(&mut a, &format!("{error}{error}+PONG\r\n"));
    assert!(w.store.0.lock().submissions.is_empty());
    w.stop.shutdown();
    w.join();
}

/// Each KEYS once pinned a moment of the store and a copy of the writes on their way as soon as it came, however many came.
#[test]
fn slow_reads_wait_on_their_connections() {
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
    // Some leave, and come again.
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
    // Waiting is not running: each is counted once.
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

#[test]
fn stopping_answers_the_slow_reads_that_wait() {
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

/// Whoever stood behind slow reads when the time for stopping was over was once dropped, with what it had sent.
#[test]
fn stopping_runs_what_stands_behind_slow_reads() {
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
    let error = "-ERR the server is stopping and does not look through all keys any more\r\n";
    for c in &mut clients {
        expect(c, &format!("{error}+OK\r\n{error}+PONG\r\n"));
        assert_eq!(c.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(w.store.0.lock().entries.len(), 100);
    w.store.0.lock().hold_scans = false;
    w.join();
}

/// Stops with 120 MB of replies asked for, which the client takes while the hands of the clock move on, to 2.4 times the wait for
/// one that takes nothing. How many it got.
fn taken_while_stopping(in_all: Duration) -> usize {
    const REPLIES: usize = 2_000;
    let hands = ManualClock::new(0);
    let wait = Duration::from_secs(5);
    let w = World::over(MemoryStore::default(), Clock::manual(hands.clone()), |o| {
        (o.drain, o.drain_in_all) = (wait, in_all);
    });
    let mut a = w.client();
    let value = "x".repeat(60_000);
    send(&mut a, &format!("SET k {value}"));
    expect(&mut a, "+OK\r\n");
    a.write_all(&b"GET k\r\n".repeat(REPLIES)).unwrap();
    let mut reply = vec![0; value.len() + "$60000\r\n\r\n".len()];
    a.read_exact(&mut reply).unwrap();
    w.stop.shutdown();
    let mut taken = 1;
    // The wait is 42 steps of 1.2 MB, more than the system holds between the two ends: some was written meanwhile.
    while a.read_exact(&mut reply).is_ok() {
        taken += 1;
        if taken % 20 == 0 {
            hands.advance(wait * 12 / 500);
        }
    }
    w.join();
    taken
}

#[test]
fn stopping_waits_for_those_that_take_their_replies() {
    assert_eq!(taken_while_stopping(Duration::from_secs(60)), 2_000);
}

#[test]
fn stopping_does_not_wait_for_ever_for_those_that_take_their_replies_slowly() {
    assert!(taken_while_stopping(Duration::from_secs(5)) < 2_000);
}

/// The loop once waited for the sync itself, and everybody with it.
#[test]
fn a_scan_waits_for_cursor_numbers_and_nobody_waits_for_the_scan() {
    let store = MemoryStore::default();
    store.0.lock().fail_reads = true;
    // It starts all the same.
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
    // Whoever comes later tries again.
    hold(false, false);
    for c in [&mut a, &mut b] {
        send(c, "SCAN 0 COUNT 1");
        expect(c, "*2\r\n$1\r\n1\r\n*1\r\n$1\r\na\r\n");
    }
    assert_eq!(w.store.0.lock().cursor_blocks, 1);
    w.stop.shutdown();
    w.join();
}

/// A value that no loop reads itself.
const LONG: usize = 1 << 20;

/// A world whose values from 1,000 bytes on lie apart from the tree, and whose reads by other
/// threads than the loop's wait.
fn holding_fetches() -> World {
    let w = World::new(|_| {});
    hold_fetches(&w);
    w
}

fn hold_fetches(w: &World) {
    let thread = w.thread.as_ref().unwrap().thread().id();
    let mut s = w.store.0.lock();
    (s.apart_from, s.hold_fetches, s.loop_thread) = (1000, true, Some(thread));
}

/// What the loop read, and what other threads did.
fn reads(w: &World) -> (Vec<ReadOf>, Vec<ReadOf>) {
    let s = w.store.0.lock();
    let by_loop = |r: &&(std::thread::ThreadId, ReadOf)| Some(r.0) == s.loop_thread;
    let (here, there): (Vec<_>, Vec<_>) = s.reads.iter().partition(by_loop);
    let of =
        |list: Vec<&(std::thread::ThreadId, ReadOf)>| list.iter().map(|r| r.1.clone()).collect();
    (of(here), of(there))
}

fn wait_fetch(w: &World) {
    while reads(w).1.is_empty() {
        basalt::env::Clock::system().sleep(Duration::from_millis(1));
    }
}

/// One GET of a long value that was in no cache made every other client wait for the device.
#[test]
fn a_long_value_is_read_by_another_thread_while_clients_go_on() {
    let w = holding_fetches();
    let long = "v".repeat(LONG);
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut a, &format!("SET k {}", &long[..60_000]));
    expect(&mut a, "+OK\r\n");
    a.write_all(format!("*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n${LONG}\r\n{long}\r\n").as_bytes())
        .unwrap();
    expect(&mut a, "+OK\r\n");
    // A shorter one is read by the loop.
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

/// Requests that wait on their connections were left out of the count of clients' memory but for their bytes: the table
/// of arguments of each was in no budget.
#[test]
fn a_parked_request_is_counted_with_the_table_of_its_arguments() {
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
    // It waits for a cursor number, with many options.
    let scan = [
        format!("*{}\r\n$4\r\nSCAN\r\n$1\r\n0\r\n", 2 + ARGUMENTS).as_bytes(),
        &b"$5\r\nCOUNT\r\n$1\r\n1\r\n".repeat(ARGUMENTS / 2),
    ]
    .concat();
    a.write_all(&scan).unwrap();
    let table = ARGUMENTS * 8;
    loop {
        // The memory of this client in CLIENT LIST, once the request has come in whole.
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

/// What another thread read before a write must not be answered after it.
#[test]
fn a_value_that_is_written_while_it_is_read_is_answered_as_written() {
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

/// A request with 5,000 names held the loop for half a minute, and SIGTERM was not heard meanwhile.
/// It is one command all the same: what it says of its names is true at one moment.
#[test]
fn many_names_are_looked_for_elsewhere_and_the_answer_is_of_one_moment() {
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
    // Both before and after the place that is being read.
    send(&mut b, "DEL n0 n17\r\nSET n4998 x\r\nPING");
    expect(&mut b, ":2\r\n+OK\r\n+PONG\r\n");
    nothing_yet(&mut a);
    // The end is heard at once, and what was asked before it is answered.
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

fn wait_until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        basalt::env::Clock::system().sleep(Duration::from_millis(1));
    }
    panic!("what is waited for does not come");
}

/// Sets keys to long values, each of which the loop leaves to another thread.
fn set_long(w: &World, keys: &[&str]) {
    let long = "v".repeat(LONG);
    let mut c = w.client();
    for key in keys {
        let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${LONG}\r\n", key.len());
        c.write_all(format!("{head}{long}\r\n").as_bytes()).unwrap();
        expect(&mut c, "+OK\r\n");
    }
}

/// A number of INFO.
fn info(c: &mut TcpStream, name: &str) -> u64 {
    send(c, "INFO everything");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n") {
        let mut byte = [0];
        c.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let len: usize = std::str::from_utf8(&head[1..])
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let mut text = vec![0; len + 2];
    c.read_exact(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} in {text}"))
        .parse()
        .unwrap()
}

/// What a client had asked for was read after the client had been killed, and its request stayed in
/// memory until then: clients that ask and leave could queue work without end.
#[test]
fn a_read_that_waits_is_given_up_with_its_client() {
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
    // It leaves with a reset. A client that only ends its side may still wait for its reply.
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

/// Keeps all places for fetches taken, and returns the clients that have them.
fn all_fetches(w: &World) -> Vec<TcpStream> {
    let mut clients: Vec<_> = (0..16).map(|_| w.client()).collect();
    for c in &mut clients {
        send(c, "GET long");
    }
    let mut d = w.client();
    wait_until(|| info(&mut d, "fetched_requests") == 16);
    clients
}

/// A request that waited for a place looked for its first 128 names again whenever it was woken.
#[test]
fn a_request_that_waits_for_a_fetch_looks_for_its_names_once() {
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

/// A client that closed itself with a request behind it that waited kept its place for a fetch: after
/// 16 of them no client had its long values read any more.
#[test]
fn a_client_that_is_killed_gives_its_fetch_back() {
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
            // In one piece, so that the request behind has begun its fetch when the client ends.
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

/// A request that waits for a place is no reason to disconnect its client, however long that takes.
#[test]
fn a_client_that_waits_for_a_fetch_is_not_idle() {
    let hands = ManualClock::new(0);
    let w = World::over(MemoryStore::default(), Clock::manual(hands.clone()), |_| {});
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
        hands.advance(Duration::from_secs(59));
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

/// `command` with the names `n0` to `n2999`.
fn of_many(command: &str) -> String {
    let names: String = (0..3000).map(|n| format!(" n{n}")).collect();
    format!("{command}{names}")
}

/// The answer of MGET for the same names, of which some have values.
fn many_values(values: &[(usize, &str)]) -> String {
    let mut out = vec!["$-1\r\n".to_string(); 3000];
    for (n, value) in values {
        out[*n] = format!("${}\r\n{value}\r\n", value.len());
    }
    format!("*3000\r\n{}", out.concat())
}

/// The last step of a command looked for all its names in one turn: a million names delayed every
/// other client by half a second, and MGET by almost a second.
#[test]
fn a_read_of_many_names_is_in_pieces_to_its_end() {
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

/// A request with many names is read over many turns, and answers as of one moment: with the writes
/// that came before that moment, however far the reading was.
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
        // Of the piece that is being read, and of one to come.
        send(&mut b, "DEL n0 n2998\r\nMSET n1 new n2999 new\r\nDEL n5");
        expect(&mut b, ":2\r\n+OK\r\n:0\r\n");
        nothing_yet(&mut a);
        w.store.0.lock().hold_fetches = false;
        expect(&mut a, reply);
        send(&mut b, "FLUSHALL");
        expect(&mut b, "+OK\r\n");
        // And all of it is gone while it is read.
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

/// What a read of many names saw of a commit that fails later is never answered.
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
            // It has taken effect when the command is the client's last.
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
fn a_read_of_many_names_never_sees_half_of_a_write() {
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
fn a_write_of_many_names_is_in_pieces() {
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
        // An odd number of arguments.
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
fn a_write_of_many_names_is_never_seen_half() {
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
        // What the last command leaves in the store is whole, too.
        look();
    }
    assert!(seen.len() > 5, "{} moments", seen.len());
    w.stop.shutdown();
    w.join();
}

/// A pipeline of a thousand reads was one turn of the loop: other clients and signals waited for
/// all of them. A turn ends after some reads of the store, whatever each of them costs.
#[test]
fn a_turn_of_one_client_ends_after_some_reads() {
    let w = World::new(|_| {});
    let mut a = w.client();
    let pipeline = "STRLEN k\r\n".repeat(6000);
    a.write_all(pipeline.as_bytes()).unwrap();
    expect(&mut a, &":0\r\n".repeat(6000));
    send(&mut a, "INFO stats");
    let mut stats = vec![0; 4096];
    let n = a.read(&mut stats).unwrap();
    let stats = String::from_utf8_lossy(&stats[..n]).into_owned();
    let peak = stats
        .lines()
        .find_map(|l| l.strip_prefix("turn_store_reads_peak:"));
    let peak: u64 = peak.unwrap_or_else(|| panic!("{stats}")).parse().unwrap();
    assert!((1..=256).contains(&peak), "{peak} reads in a turn");
    w.stop.shutdown();
    w.join();
}

/// The server never asked whether a client's machine was still there: connections that a firewall had forgotten stayed
/// for ever.
#[test]
fn connections_are_kept_alive_as_the_setting_says() {
    use rustix::net::sockopt;
    let fs = HostFs::new(HostOptions::new(std::env::temp_dir())).unwrap();
    let env = EnvBuilder::new(fs).build();
    let options = ServerOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..ServerOptions::default()
    };
    let listener = listen(options.listen).unwrap();
    let store = Arc::new(MemoryStore::default());
    let mut server = Server::over(&env, options, listener, store).unwrap();
    let mut clients = vec![];
    for (slot, (interval, asked)) in [(300, 100), (1, 1), (0, 0), (32_767, 10_922)]
        .into_iter()
        .enumerate()
    {
        if slot > 0 {
            server.exec.options.tcp_keepalive = Duration::from_secs(interval);
        }
        clients.push(TcpStream::connect(server.local_addr()).unwrap());
        server.accept();
        let stream = &server.connections[slot].as_ref().unwrap().stream;
        assert_eq!(sockopt::socket_keepalive(stream).unwrap(), interval > 0);
        if interval > 0 {
            let seconds = Duration::from_secs;
            assert_eq!(sockopt::tcp_keepidle(stream).unwrap(), seconds(interval));
            assert_eq!(sockopt::tcp_keepintvl(stream).unwrap(), seconds(asked));
            assert_eq!(sockopt::tcp_keepcnt(stream).unwrap(), 3);
        }
    }
}

/// A client that sent nothing stayed for ever: ten thousand of them kept everybody else out.
#[test]
fn idle_clients_are_disconnected_and_those_that_wait_are_not() {
    let hands = ManualClock::new(0);
    let clock = Clock::manual(hands.clone());
    let w = World::over(MemoryStore::default(), clock, |_| {});
    let mut first = w.client();
    let mut busy = w.client();
    let mut waits = w.client();
    for c in [&mut first, &mut busy, &mut waits] {
        send(c, "PING");
        expect(c, "+PONG\r\n");
    }
    let ping = |c: &mut TcpStream| {
        send(c, "PING");
        expect(c, "+PONG\r\n");
    };
    // No timeout was set.
    hands.advance(Duration::from_secs(1_000_000));
    ping(&mut busy);
    nothing_yet(&mut first);
    ping(&mut first);
    ping(&mut waits);
    send(&mut busy, "CONFIG SET timeout 60");
    expect(&mut busy, "+OK\r\n");
    w.store.hold(true);
    send(&mut waits, "SET k v");
    w.wait_held(1);
    hands.advance(Duration::from_secs(59));
    ping(&mut busy);
    ping(&mut busy);
    nothing_yet(&mut first);
    hands.advance(Duration::from_secs(1));
    ping(&mut busy);
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "idle for a minute");
    // Its reply waits for the disk: it has done nothing wrong.
    hands.advance(Duration::from_secs(59));
    ping(&mut busy);
    hands.advance(Duration::from_secs(59));
    ping(&mut busy);
    nothing_yet(&mut waits);
    w.store.release(0, Ok(()));
    expect(&mut waits, "+OK\r\n");
    ping(&mut waits);
    hands.advance(Duration::from_secs(59));
    ping(&mut busy);
    hands.advance(Duration::from_secs(1));
    ping(&mut busy);
    assert_eq!(waits.read(&mut [0]).unwrap(), 0);
    send(&mut busy, "INFO stats");
    let mut info = vec![0; 4096];
    let n = busy.read(&mut info).unwrap();
    assert!(String::from_utf8_lossy(&info[..n]).contains("timed_out_clients:2\r\n"));
    w.stop.shutdown();
    w.join();
}

/// Regression test: writes that had all answers and waited for room kept all places for fetches, so
/// reads waited for the commits of other clients.
#[test]
fn writes_that_wait_for_room_leave_places_to_reads() {
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
    // Nothing is committed before these are answered.
    let mut g = w.client();
    send(&mut g, "GET long");
    let mut reply = vec![0; LONG + 12];
    g.read_exact(&mut reply).unwrap();
    for _ in 0..4 {
        // None of its names is among the writes on their way.
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

/// Regression test: a panic ended the thread that reads, and all requests with fetches waited for
/// ever. The server could not stop.
#[test]
fn a_read_that_panics_is_an_error_and_later_reads_go_on() {
    let w = World::new(|_| {});
    hold_fetches(&w);
    w.store.0.lock().hold_fetches = false;
    set_long(&w, &["long"]);
    w.store.0.lock().panic_fetches = true;
    let mut a = w.client();
    let error = "-MISCONF poisoned: reading keys has panicked\r\n";
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
