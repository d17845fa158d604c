//! The turns, the keepalive probes and the time limits of connections.

use super::*;

/// Regression test: a pipeline of a thousand reads was one turn of the loop, and other clients and
/// signals waited for all of them. A turn ends after some reads of the store, at any cost of each.
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

/// Regression test: the server never checked that a client's machine was still there, so
/// connections that a firewall had forgotten stayed for ever.
#[test]
fn tcp_keepalive_follows_the_setting() {
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

/// Regression test: a client that sent nothing stayed for ever. Ten thousand of them kept all
/// others out.
#[test]
fn only_idle_clients_are_disconnected() {
    let manual_clock = ManualClock::new(0);
    let clock = Clock::manual(manual_clock.clone());
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
    // No timeout is set.
    manual_clock.advance(Duration::from_secs(1_000_000));
    ping(&mut busy);
    nothing_yet(&mut first);
    ping(&mut first);
    ping(&mut waits);
    send(&mut busy, "CONFIG SET timeout 60");
    expect(&mut busy, "+OK\r\n");
    w.store.hold(true);
    send(&mut waits, "SET k v");
    w.wait_held(1);
    manual_clock.advance(Duration::from_secs(59));
    ping(&mut busy);
    ping(&mut busy);
    nothing_yet(&mut first);
    manual_clock.advance(Duration::from_secs(1));
    ping(&mut busy);
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "idle for a minute");
    // The client's reply waits for the disk, which is not the client's fault.
    manual_clock.advance(Duration::from_secs(59));
    ping(&mut busy);
    manual_clock.advance(Duration::from_secs(59));
    ping(&mut busy);
    nothing_yet(&mut waits);
    w.store.release(0, Ok(()));
    expect(&mut waits, "+OK\r\n");
    ping(&mut waits);
    manual_clock.advance(Duration::from_secs(59));
    ping(&mut busy);
    manual_clock.advance(Duration::from_secs(1));
    ping(&mut busy);
    assert_eq!(waits.read(&mut [0]).unwrap(), 0);
    send(&mut busy, "INFO stats");
    let mut info = vec![0; 4096];
    let n = busy.read(&mut info).unwrap();
    assert!(String::from_utf8_lossy(&info[..n]).contains("timed_out_clients:2\r\n"));
    w.stop.shutdown();
    w.join();
}
