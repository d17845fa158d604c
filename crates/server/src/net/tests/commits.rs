//! Replies wait for the commits that they depend on, and writes share commits.

use super::*;

#[test]
fn a_reply_waits_for_the_commits_of_all_writes_it_saw() {
    let w = World::new(|_| {});
    w.store.hold(true);
    let (mut a, mut b) = (w.client(), w.client());
    send(&mut a, "SET k v");
    w.wait_held(1);
    send(&mut b, "GET other");
    expect(&mut b, "$-1\r\n");
    send(&mut b, "GET k");
    // Replies behind a waiting one wait as well.
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
fn a_failed_commit_fails_its_writes_and_their_readers_only() {
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

/// Regression test: two writes of a key were in flight, and the callback of the second ran first.
/// Its client was told OK, then GET answered with the first value, and INCR counted on from it.
#[test]
fn an_acknowledged_write_is_visible_before_earlier_ones_complete() {
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
fn writes_share_an_epoch_when_many_are_in_flight() {
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
fn reads_do_not_wait_for_room_for_writes() {
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
fn the_sync_policy_decides_whether_a_commit_syncs() {
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

/// Regression test: a write was in flight under `everysec` when the policy changed. It was
/// acknowledged later, and the sync of every second did not hear of it. Without a later write
/// nothing ever synced it.
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
fn a_read_from_a_failing_disk_gets_an_error_reply() {
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
