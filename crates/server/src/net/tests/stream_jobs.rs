//! Tests of the thread that works on streams: late answers, requests that are woken while they wait
//! for it, and panics.

use super::blocking::{add_failing, wait_blocked, wait_held_appends};
use super::*;

/// Number of reads of a key's value by other threads than the loop's.
fn loads(w: &World, key: &str) -> usize {
    let of = |r: &&ReadOf| matches!(r, ReadOf::Value(k, _) if k.ends_with(key.as_bytes()));
    reads(w).1.iter().filter(of).count()
}

/// Adds a stream that is not in memory.
fn add_unloaded(w: &World, c: &mut TcpStream, key: &str) {
    send(c, &format!("XADD {key} 1-1 a 1"));
    expect(c, "$3\r\n1-1\r\n");
    // The failed commit drops the stream from memory.
    add_failing(w, c, &format!("XADD {key} 1-2 a 1"));
}

/// Lets a request for a stream `stuck` keep the thread that works on streams while `hold_fetches`
/// is true.
fn hold_stream_jobs(w: &World, c: &mut TcpStream) {
    add_unloaded(w, c, "stuck");
    hold_fetches(w);
    send(c, "XLEN stuck");
    wait_until(|| loads(w, "stuck") == 1);
}

/// Regression test: the answer of another thread for a request that had ended by CLIENT UNBLOCK
/// reached the client's next request, which then lacked an entry.
#[test]
fn a_late_answer_does_not_reach_the_next_request() {
    let w = World::new(|_| {});
    let (mut a, mut b, mut c) = (w.client(), w.client(), w.client());
    send(&mut c, "XADD s 1-1 a 0\r\nXADD other 1-1 a 0");
    expect(&mut c, "$3\r\n1-1\r\n$3\r\n1-1\r\n");
    send(&mut a, "XREAD BLOCK 0 STREAMS s 1-1");
    wait_blocked(&w, 1);
    let (mut d, mut e) = (w.client(), w.client());
    add_unloaded(&w, &mut d, "between");
    hold_stream_jobs(&w, &mut b);
    // The window has only the newest of these entries, so the woken request needs the log.
    // They are in one commit, because the open epoch waits for one that writes `other`.
    let adds: String = (2..200)
        .map(|n| format!("XADD s 1-{n} a {n}\r\n"))
        .collect();
    let ids = (2..200).map(|n| format!("${}\r\n1-{n}\r\n", 2 + n.to_string().len()));
    let before = info(&mut e, "stream_entries_added");
    w.store.0.lock().hold_appends = true;
    send(&mut c, "XADD other 1-2 a 0");
    wait_held_appends(&w, 1);
    send(
        &mut c,
        &format!("XADD other 1-3 a 0\r\n{}", adds.trim_end()),
    );
    wait_until(|| info(&mut e, "stream_entries_added") == before + 200);
    w.store.0.lock().hold_appends = false;
    w.store.release_append(Ok(()));
    expect(&mut c, "$3\r\n1-2\r\n$3\r\n1-3\r\n");
    expect(&mut c, &ids.collect::<String>());
    round(&w);
    nothing_yet(&mut a);
    send(&mut c, "CLIENT UNBLOCK 1");
    expect(&mut c, ":1\r\n");
    expect(&mut a, "*-1\r\n");
    send(&mut c, "XADD s 1-200 a 200");
    expect(&mut c, "$5\r\n1-200\r\n");
    // The job of this request is between the two jobs of the other client.
    send(&mut d, "XLEN between");
    round(&w);
    // This request reads the same range, which now has one entry more.
    send(&mut a, "XREAD STREAMS s 1-1");
    round(&w);
    nothing_yet(&mut a);
    w.store.0.lock().hold_only = Some("between");
    expect(&mut b, ":1\r\n");
    wait_until(|| loads(&w, "between") == 1);
    round(&w);
    nothing_yet(&mut a);
    w.store.0.lock().hold_fetches = false;
    expect(&mut d, ":1\r\n");
    let entry = |n: i32| {
        let len = n.to_string().len();
        let id = 2 + len;
        format!("*2\r\n${id}\r\n1-{n}\r\n*2\r\n$1\r\na\r\n${len}\r\n{n}\r\n")
    };
    let entries: String = (2..201).map(entry).collect();
    expect(&mut a, &format!("*1\r\n*2\r\n$1\r\ns\r\n*199\r\n{entries}"));
    w.stop.shutdown();
    w.join();
}

/// Regression test: each commit that woke a blocked request queued another job for it. When those
/// jobs were left out, the request waited forever for a load that no thread ran.
#[test]
fn a_woken_request_queues_one_job() {
    let w = World::new(|_| {});
    let (mut a, mut b, mut c) = (w.client(), w.client(), w.client());
    send(&mut c, "XADD s 1-1 a 0\r\nXADD t 1-1 a 0");
    expect(&mut c, "$3\r\n1-1\r\n$3\r\n1-1\r\n");
    send(&mut a, "XREAD BLOCK 0 STREAMS s t $ $");
    wait_blocked(&w, 1);
    hold_stream_jobs(&w, &mut b);
    // Each failed deletion drops the stream from memory, and voids the load that is queued.
    w.store.hold(true);
    for n in 1..5 {
        send(&mut c, "DEL s");
        wait_until(|| w.store.held() == 1);
        w.store.release(0, failed());
        expect(&mut c, "-MISCONF no space: the disk is full\r\n");
        send(&mut c, &format!("XADD t 2-{n} a 1"));
        expect(&mut c, &format!("$3\r\n2-{n}\r\n"));
        round(&w);
    }
    w.store.hold(false);
    w.store.0.lock().hold_fetches = false;
    expect(&mut b, ":1\r\n");
    let entry = |n| format!("*2\r\n$3\r\n2-{n}\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    let entries = [1, 2, 3, 4].map(entry).concat();
    expect(&mut a, &format!("*1\r\n*2\r\n$1\r\nt\r\n*4\r\n{entries}"));
    // The first load is void. The request then asks for another one.
    assert_eq!(loads(&w, "s"), 2);
    w.stop.shutdown();
    w.join();
}

/// Regression test: a panic ended the thread that works on streams, and clients waited forever.
#[test]
fn a_job_that_panics_is_an_error_and_later_jobs_work() {
    let w = World::new(|_| {});
    let mut a = w.client();
    add_unloaded(&w, &mut a, "s");
    hold_fetches(&w);
    {
        let mut s = w.store.0.lock();
        (s.hold_fetches, s.panic_fetches) = (false, true);
    }
    for _ in 0..2 {
        send(&mut a, "XLEN s");
        expect(
            &mut a,
            "-MISCONF poisoned: the thread that reads streams panicked\r\n",
        );
    }
    w.store.0.lock().panic_fetches = false;
    send(&mut a, "XLEN s");
    expect(&mut a, ":1\r\n");
    w.stop.shutdown();
    w.join();
}
