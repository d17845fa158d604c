//! Deleted entries and consumer groups against the store in memory.

use super::*;
use crate::stream::StreamId;
use crate::stream::element::{self, Element};
use crate::stream::jobs;
use crate::stream::record::encode_record;
use crate::stream::sweep::sweep;
use basalt::env::Random;
use basalt::env::thread::StopSignal;
use basalt::log::Log;
use basalt::{Error, ErrorKind};

fn failed() -> basalt::Result<()> {
    Err(Error::new(ErrorKind::Io, "the disk is gone"))
}

/// Returns everything that clients can read of the stream `s`.
fn whole(w: &mut World) -> String {
    let full = w.run("XINFO STREAM s FULL COUNT 0");
    format!("{full}{}", w.run("XRANGE s - +"))
}

/// A stream with five entries, two groups and pending entries.
fn world() -> World {
    let mut w = World::new();
    for n in 1..=5 {
        w.run(&format!("XADD s {n}-1 f v{n}"));
    }
    w.check(&[
        ("XGROUP CREATE s g 0", "+OK\r\n"),
        ("XGROUP CREATE s h 2", "+OK\r\n"),
    ]);
    w.run("XREADGROUP GROUP g a COUNT 2 STREAMS s >");
    w.run("XREADGROUP GROUP g b COUNT 1 STREAMS s >");
    w.commit();
    w
}

fn log(w: &World) -> Log {
    let logs = w.store.0.lock().logs.clone().unwrap();
    let names = logs.list();
    logs.log(&names[0]).unwrap()
}

fn tombstones(w: &World) -> usize {
    let s = w.store.0.lock();
    let elements = s
        .elements
        .iter()
        .map(|(k, v)| element::decode(k, v).unwrap());
    elements
        .filter(|e| matches!(e, Element::Tombstone { .. }))
        .count()
}

/// Removes records from logs as the server does in the background. Returns false if none is due.
pub(super) fn remove_in_background(w: &mut World) -> bool {
    let Some(job) = w.exec.keys.take_removals() else {
        return false;
    };
    let answer = jobs::run(&**w.exec.keys.store(), job);
    assert!(matches!(answer, jobs::StreamAnswer::Removed(_, Ok(()))));
    w.exec.keys.take_stream_answer(1, answer);
    true
}

/// Removes records from the logs of the store in memory.
fn remove(w: &mut World) -> bool {
    let syncs = w.store.0.lock().syncs;
    let removes = remove_in_background(w);
    let expected = syncs + usize::from(removes);
    let syncs = w.store.0.lock().syncs;
    assert_eq!(syncs, expected, "tombstones are durable first");
    removes
}

/// If the commit of a command on groups fails, none of its changes remains.
#[test]
fn a_failed_commit_leaves_groups_as_they_were() {
    let commands = [
        "XDEL s 1-1",
        "XDEL s 3-1 4-1",
        "XDEL s 5-1",
        "XDEL s 1-1 2-1 3-1 4-1 5-1",
        "XGROUP CREATE s i 0",
        "XGROUP SETID s g 1",
        "XGROUP DESTROY s g",
        "XGROUP CREATECONSUMER s h c",
        "XGROUP DELCONSUMER s g a",
        "XREADGROUP GROUP g c STREAMS s >",
        "XREADGROUP GROUP g a NOACK STREAMS s >",
        "XREADGROUP GROUP g a STREAMS s 0",
        "XACK s g 1-1 3-1",
        "XCLAIM s g c 0 1-1 3-1",
        "XCLAIM s g a 0 5-1 FORCE JUSTID LASTID 9-9",
        "XAUTOCLAIM s g b 0 0",
    ];
    let mut w = world();
    let before = whole(&mut w);
    w.reopen();
    assert_eq!(whole(&mut w), before, "a restart changes nothing");
    for command in commands {
        w.clock.advance(Duration::from_millis(1));
        w.store.hold(true);
        let reply = w.run(command);
        assert!(!reply.starts_with('-'), "{command}: {reply}");
        let after = whole(&mut w);
        assert_ne!(after, before, "{command} changes something");
        w.end_epoch(true, |store| store.release(0, failed()));
        w.store.hold(false);
        assert_eq!(whole(&mut w), before, "{command}");

        // The same change in a commit that succeeds, and again after a restart.
        let mut other = world();
        other.clock.advance(Duration::from_millis(1));
        let of_other = other.run(command);
        assert_eq!(of_other.starts_with('-'), reply.starts_with('-'));
        let changed = whole(&mut other);
        other.commit();
        other.reopen();
        assert_eq!(whole(&mut other), changed, "{command}");
    }
}

/// An entry and its delivery in one epoch: if the append fails, no group knows the entry.
#[test]
fn a_failed_append_takes_the_delivery_with_it() {
    let mut w = world();
    let before = whole(&mut w);
    w.store.0.lock().hold_appends = true;
    w.check(&[("XADD s 6-1 f v6", "$3\r\n6-1\r\n")]);
    w.run("XREADGROUP GROUP g a STREAMS s >");
    w.end_epoch(true, |store| {
        assert_eq!(store.0.lock().submissions.len(), 1, "the append is first");
        store.release_append(failed());
    });
    w.store.0.lock().hold_appends = false;
    assert_eq!(whole(&mut w), before);
    w.run("XADD s 6-1 f v6");
    w.run("XREADGROUP GROUP g a STREAMS s >");
    let after = whole(&mut w);
    w.commit();
    w.reopen();
    assert_eq!(whole(&mut w), after);
}

/// The id of a delivered entry that a power cut lost is not used again.
#[test]
fn the_id_of_a_lost_entry_that_was_delivered_is_not_used_again() {
    for command in [
        "XREADGROUP GROUP g a STREAMS s >",
        "XGROUP CREATE s h $",
        "XGROUP SETID s g $",
    ] {
        let mut w = World::new();
        w.run("XGROUP CREATE s g 0 MKSTREAM");
        w.run("XADD s 1-1 f a");
        w.commit();
        w.run("XADD s 2-1 f b");
        w.commit();
        w.run(command);
        w.commit();
        log(&w).truncate_suffix(2).unwrap();
        w.reopen();
        let reply = w.run("XADD s 2-1 f c");
        assert!(reply.starts_with("-ERR The ID"), "{command}: {reply}");
        w.run("XADD s 3-1 f c");
        assert!(
            w.run("XREADGROUP GROUP g a STREAMS s >").contains("3-1"),
            "{command}"
        );
    }
}

/// Commits of two streams are in flight, and their callbacks run in any order. Each commit affects
/// only its own stream, and a later command on a stream waits for its commit.
#[test]
fn commits_of_two_streams_end_in_any_order() {
    for (of_s, of_t, order) in [
        (Ok(()), failed(), [0, 0]),
        (failed(), Ok(()), [0, 0]),
        (Ok(()), failed(), [1, 0]),
        (failed(), Ok(()), [1, 0]),
    ] {
        let mut w = world();
        w.run("XGROUP CREATE t g 0 MKSTREAM");
        w.commit();
        let before = whole(&mut w);
        let (sender, ended) = std::sync::mpsc::channel();
        let submit = |w: &mut World| {
            let sender = sender.clone();
            let done = |slot| {
                Box::new(move |r| sender.send((slot, r)).unwrap()) as crate::store::CommitCallback
            };
            w.exec.keys.submit(true, done)
        };
        w.store.hold(true);
        w.check(&[("XACK s g 1-1 3-1", ":2\r\n")]);
        let after = whole(&mut w);
        assert!(submit(&mut w));
        w.check(&[("XGROUP CREATE t h 0", "+OK\r\n")]);
        assert!(submit(&mut w), "it does not depend on the other stream");
        w.check(&[("XGROUP DESTROY t h", ":1\r\n")]);
        assert!(!submit(&mut w), "it depends on the creation of the group");
        let (s_is_stored, t_is_stored) = (of_s.is_ok(), of_t.is_ok());
        w.store.decide(of_s);
        w.store.decide(of_t);
        for index in order {
            w.store.call_back(index);
            let (slot, result) = ended.recv().unwrap();
            w.exec.keys.complete(slot, result);
        }
        w.store.hold(false);
        let expected = if s_is_stored { after } else { before };
        assert_eq!(whole(&mut w), expected);
        if t_is_stored {
            w.commit();
        }
        // If the creation failed, the group never existed.
        w.check(&[
            ("XGROUP DESTROY t h", ":0\r\n"),
            ("XGROUP DESTROY t g", ":1\r\n"),
        ]);
        w.commit();
        w.reopen();
        assert_eq!(whole(&mut w), expected);
    }
}

/// A power cut loses entries of the log that the tables count. They count as deleted, and no later
/// entry gets their LSN or id.
#[test]
fn entries_that_a_power_cut_took_stay_gone() {
    let mut w = World::new();
    w.check(&[
        ("XADD s 1-1 f a", "$3\r\n1-1\r\n"),
        ("XGROUP CREATE s g 0", "+OK\r\n"),
        ("XADD s 2-1 f b", "$3\r\n2-1\r\n"),
        ("XADD s 3-1 f c", "$3\r\n3-1\r\n"),
        ("XADD s 4-1 f d", "$3\r\n4-1\r\n"),
        ("XDEL s 4-1", ":1\r\n"),
    ]);
    w.run("XREADGROUP GROUP g a STREAMS s >");
    w.commit();
    log(&w).truncate_suffix(2).unwrap();
    w.reopen();
    let small =
        "-ERR The ID specified in XADD is equal or smaller than the target stream top item\r\n";
    let one = "*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\na\r\n";
    let five = "*2\r\n$3\r\n5-1\r\n*2\r\n$1\r\nf\r\n$1\r\ne\r\n";
    let lost = "*2\r\n$3\r\n2-1\r\n*-1\r\n*2\r\n$3\r\n3-1\r\n*-1\r\n";
    w.check(&[
        ("XLEN s", ":1\r\n"),
        ("XRANGE s - +", &format!("*1\r\n{one}")),
        ("XADD s 4-1 f e", small),
        ("XADD s 5-1 f e", "$3\r\n5-1\r\n"),
    ]);
    w.commit();
    for _ in 0..2 {
        w.check(&[
            ("XLEN s", ":2\r\n"),
            ("XRANGE s - +", &format!("*2\r\n{one}{five}")),
            ("XRANGE s 2 +", &format!("*1\r\n{five}")),
            ("XREVRANGE s 4 -", &format!("*1\r\n{one}")),
            (
                "XREADGROUP GROUP g a STREAMS s 0",
                &format!("*1\r\n*2\r\n$1\r\ns\r\n*3\r\n{one}{lost}"),
            ),
        ]);
        w.commit();
        w.reopen();
    }
    w.check(&[
        (
            "XREADGROUP GROUP g b STREAMS s >",
            &format!("*1\r\n*2\r\n$1\r\ns\r\n*1\r\n{five}"),
        ),
        (
            "XAUTOCLAIM s g b 0 0 JUSTID",
            "*3\r\n$3\r\n0-0\r\n*2\r\n$3\r\n1-1\r\n$3\r\n5-1\r\n*2\r\n$3\r\n2-1\r\n$3\r\n3-1\r\n",
        ),
    ]);
}

/// The records of a long run of deleted entries are removed from the log, and then their tombstones
/// are removed from the tables.
#[test]
fn long_runs_of_deleted_entries_leave_log_and_tables() {
    let mut w = World::new();
    for n in 1..=700 {
        w.run(&format!("XADD s {n}-1 f v"));
    }
    w.commit();
    w.reopen();
    for (from, to, is_long) in [(2, 200, false), (201, 450, true), (700, 700, false)] {
        let ids: String = (from..=to).map(|n| format!(" {n}-1")).collect();
        let deleted = w.run(&format!("XDEL s{ids}"));
        assert_eq!(deleted, format!(":{}\r\n", to - from + 1));
        w.commit();
        assert_eq!(remove(&mut w), is_long);
    }
    // The last XDEL has deleted the tombstones of the records that were removed before.
    assert_eq!((log(&w).count(), tombstones(&w)), (251, 1));
    for _ in 0..2 {
        let all = w.run("XRANGE s - +");
        assert_eq!(all.matches("-1\r\n").count(), 250);
        w.check(&[
            ("XLEN s", ":250\r\n"),
            ("XRANGE s 2 450", "*0\r\n"),
            ("XREVRANGE s 450 2", "*0\r\n"),
            ("XDEL s 300-1 700-1", ":0\r\n"),
            (
                "XRANGE s 200 + COUNT 1",
                "*1\r\n*2\r\n$5\r\n451-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n",
            ),
            (
                "XREVRANGE s + - COUNT 1",
                "*1\r\n*2\r\n$5\r\n699-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n",
            ),
        ]);
        w.reopen();
    }
    // Trims count live entries. They also remove the tombstones before the first live entry.
    w.check(&[
        ("XDEL s 690-1 695-1", ":2\r\n"),
        ("XTRIM s MAXLEN 5", ":243\r\n"),
        ("XLEN s", ":5\r\n"),
        ("XTRIM s MINID 697", ":2\r\n"),
    ]);
    w.commit();
    assert_eq!(tombstones(&w), 1, "that of the newest entry");
    assert!(remove(&mut w));
    w.reopen();
    w.check(&[
        ("XADD s MAXLEN 1 701-1 f v", "$5\r\n701-1\r\n"),
        ("XLEN s", ":1\r\n"),
    ]);
}

/// A group and a consumer with many pending entries are removed by few writes.
#[test]
fn removals_of_many_pending_entries_are_few_writes() {
    let mut w = World::new();
    for n in 1..=1_000 {
        w.run(&format!("XADD s {n}-1 f v"));
    }
    w.run("XGROUP CREATE s g 0");
    w.run("XREADGROUP GROUP g a COUNT 500 STREAMS s >");
    w.run("XREADGROUP GROUP g b STREAMS s >");
    w.commit();
    for (command, reply, left) in [
        ("XGROUP DELCONSUMER s g a", ":500\r\n", 1 + 1 + 500),
        ("XGROUP DESTROY s g", ":1\r\n", 0),
    ] {
        w.check(&[(command, reply)]);
        w.commit();
        let s = w.store.0.lock();
        let writes = s.submissions.last().unwrap().0;
        assert!(writes <= 3, "{command}: {writes} writes");
        assert_eq!(s.elements.len(), left, "{command}");
    }
}

/// A damaged element is an error that names the key and the element. Other keys are served.
#[test]
fn a_damaged_element_is_named() {
    let mut w = world();
    w.check(&[("XADD t 1-1 f a", "$3\r\n1-1\r\n")]);
    w.commit();
    let key = {
        let mut s = w.store.0.lock();
        let (key, value) = s.elements.iter_mut().next().unwrap();
        value.truncate(3);
        key.iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    w.reopen();
    for command in [
        "XLEN s",
        "XADD s 9-1 f v",
        "XREADGROUP GROUP g a STREAMS s >",
    ] {
        let reply = w.run(command);
        let named = format!("element {key} of the stream \"s\"");
        assert!(
            reply.starts_with("-ERR ") && reply.contains(&named),
            "{reply}"
        );
    }
    w.check(&[
        ("XLEN t", ":1\r\n"),
        ("DEL s", ":1\r\n"),
        ("XLEN s", ":0\r\n"),
    ]);
}

/// The elements of a deleted stream are deleted with its log, and those of others stay.
#[test]
fn a_sweep_deletes_the_elements_of_deleted_streams() {
    let mut w = world();
    w.check(&[
        ("XGROUP CREATE t g 0 MKSTREAM", "+OK\r\n"),
        ("DEL s", ":1\r\n"),
    ]);
    w.commit();
    assert_eq!(
        w.store.0.lock().elements.len(),
        8,
        "2 groups, 2 consumers, 3 pending; 1 group"
    );
    let job = w.exec.keys.take_sweep(Duration::ZERO).unwrap();
    let result = sweep(&w.store, job, &StopSignal::default());
    assert_eq!((result.removed.len(), result.error.is_none()), (1, true));
    w.exec.keys.take_swept(result, Duration::ZERO);
    assert_eq!(w.store.0.lock().elements.len(), 1);
    w.reopen();
    assert!(w.run("XINFO GROUPS t").starts_with("*1\r\n"));
}

/// A request on several streams reads no further stream when its entries exceed the limit of a
/// reply. It delivers no entry.
#[test]
fn a_request_on_many_streams_stops_at_the_limit_of_replies() {
    let mut w = World::new();
    w.exec.options.reply_hard_bytes = 1_000;
    let value = "v".repeat(600);
    for s in ["s", "t", "u", "x"] {
        w.run(&format!("XGROUP CREATE {s} g 0 MKSTREAM"));
        w.run(&format!("XADD {s} 1-1 f {value}"));
    }
    w.commit();
    w.run("XREADGROUP GROUP g old STREAMS s >");
    w.run("XREADGROUP GROUP g old STREAMS t >");
    w.run("XREADGROUP GROUP g old STREAMS x >");
    w.run("XGROUP CREATE s h 0");
    w.run("XGROUP CREATE t h 0");
    w.run("XGROUP CREATE u h 0");
    w.run("XGROUP CREATE x h 0");
    w.commit();
    // All streams lose their windows, so all reads are of the logs.
    let has_window = |w: &World| {
        let window = |s: &&str| !w.exec.keys.loaded_stream(s.as_bytes()).window.is_empty();
        ["s", "t", "u", "x"].iter().any(window)
    };
    while has_window(&w) {
        let bytes = w.exec.keys.stream_stats().1;
        w.exec.keys.limit_streams(bytes - 1);
        w.run("PING");
    }
    let logs = w.store.0.lock().logs.clone().unwrap();
    let incarnation = w.exec.keys.loaded_stream(b"x").incarnation;
    logs.delete(&jobs::log_name(incarnation)).unwrap();
    for command in [
        "XREAD STREAMS s t u x 0 0 0 0",
        "XREADGROUP GROUP h new STREAMS s t u x > > > >",
        "XREADGROUP GROUP g old STREAMS s t x 0 0 0",
    ] {
        let reply = w.run(command);
        assert!(reply.contains("1000 bytes"), "{command}: {reply}");
    }
    assert_eq!(w.run("XPENDING s h"), "*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n");
    // Each stream alone is within the limit.
    let reply = w.run("XREADGROUP GROUP h new STREAMS s >");
    assert!(reply.contains(&value));
}

/// After random commands and a restart, the loaded state equals the former state in memory.
#[test]
fn a_restart_changes_no_stream() {
    let mut changes = 0;
    for seed in 0..40 {
        let random = Random::from_seed(seed);
        let mut w = World::new();
        w.run("XGROUP CREATE s g 0 MKSTREAM");
        let mut added = 0;
        for step in 0..120 {
            w.clock.advance(Duration::from_millis(random.below(3)));
            let id = || format!("{}-1", 1 + random.below(added + 1));
            let (group, consumer) = (["g", "h"], ["a", "b", "c"]);
            let group = group[random.below(2) as usize];
            let consumer = consumer[random.below(3) as usize];
            let command = match random.below(16) {
                0..=4 => {
                    added += 1;
                    format!("XADD s {added}-1 f v")
                }
                5 => format!("XADD s MAXLEN {} {}-1 f v", random.below(9), {
                    added += 1;
                    added
                }),
                6..=7 => format!("XDEL s {} {}", id(), id()),
                8..=9 => format!("XREADGROUP GROUP {group} {consumer} COUNT 3 STREAMS s >"),
                10 => format!("XACK s {group} {} {}", id(), id()),
                11 => format!("XCLAIM s {group} {consumer} 0 {} {} FORCE", id(), id()),
                12 => format!("XAUTOCLAIM s {group} {consumer} 0 {} COUNT 3", id()),
                13 => format!("XGROUP CREATE s {group} {}", id()),
                14 => format!("XTRIM s MINID {}", id()),
                _ => match random.below(4) {
                    0 => format!("XGROUP DESTROY s {group}"),
                    1 => format!("XGROUP DELCONSUMER s {group} {consumer}"),
                    _ => format!("XREADGROUP GROUP {group} {consumer} STREAMS s 0"),
                },
            };
            let before = whole(&mut w);
            w.run(&command);
            let after = whole(&mut w);
            if after == before || random.one_in(2) {
                continue;
            }
            changes += 1;
            w.commit();
            if random.one_in(2) {
                remove(&mut w);
            }
            w.reopen();
            assert_eq!(whole(&mut w), after, "seed {seed}, step {step}: {command}");
        }
    }
    assert!(changes > 500, "only {changes} changes were compared");
}

/// After an XSETID, an id that a deleted entry had can be added again. Entries outside of memory
/// are found by the ids of live entries alone.
#[test]
fn ids_of_deleted_entries_are_found_when_they_are_added_again() {
    let mut w = World::new();
    for n in 1..=10 {
        w.run(&format!("XADD s {n}-0 f v"));
    }
    w.check(&[
        ("XDEL s 6-0 7-0 8-0 9-0 10-0", ":5\r\n"),
        ("XSETID s 10-0 ENTRIESADDED 10 MAXDELETEDID 0-1", "+OK\r\n"),
        ("XSETID s 5-0", "+OK\r\n"),
        ("XADD s 6-0 f v", "$3\r\n6-0\r\n"),
        ("XADD s 8-0 f v", "$3\r\n8-0\r\n"),
    ]);
    for n in 100..400 {
        w.run(&format!("XADD s {n}-0 f v"));
    }
    w.commit();
    let entry = |id: &str| format!("*1\r\n*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n");
    let read = format!("*1\r\n*2\r\n$1\r\ns\r\n{}", entry("8-0"));
    w.check(&[
        ("XRANGE s 7-0 + COUNT 1", &entry("8-0")),
        ("XRANGE s 7-0 9-0", &entry("8-0")),
        ("XRANGE s 6-0 7-0", &entry("6-0")),
        ("XREVRANGE s 7-0 - COUNT 1", &entry("6-0")),
        ("XREAD COUNT 1 STREAMS s 6-0", &read),
        ("XTRIM s MINID 7-0", ":6\r\n"),
        ("XRANGE s - + COUNT 1", &entry("8-0")),
        ("XDEL s 7-0 8-0 9-0", ":1\r\n"),
        ("XLEN s", ":300\r\n"),
    ]);
}

/// A record whose checksum is right and whose content is not is damage, too.
#[test]
fn a_record_that_trims_entries_of_the_future_is_refused() {
    let mut w = world();
    let words: [&[u8]; 2] = [b"f", b"v"];
    let forged = encode_record(StreamId::new(9, 1), 100, 6, words.into_iter());
    let log = log(&w);
    let next = log.last().unwrap() + 1;
    log.append(next, &forged, &basalt::WriteOptions::default())
        .unwrap();
    w.reopen();
    let reply = w.run("XLEN s");
    assert!(
        reply.starts_with("-ERR ") && reply.contains("entry 6"),
        "{reply}"
    );
}

/// A claim whose reply could not be sent is not carried out: the scan ends before.
#[test]
fn an_autoclaim_ends_at_the_limit_of_replies() {
    let mut w = world();
    w.exec.options.reply_hard_bytes = 128;
    let reply = w.run("XAUTOCLAIM s g c 0 0 COUNT 100 JUSTID");
    assert_eq!(
        reply,
        "*3\r\n$3\r\n3-1\r\n*2\r\n$3\r\n1-1\r\n$3\r\n2-1\r\n*0\r\n"
    );
    let reply = w.run("XAUTOCLAIM s g c 0 3-1 COUNT 100 JUSTID");
    assert_eq!(reply, "*3\r\n$3\r\n0-0\r\n*1\r\n$3\r\n3-1\r\n*0\r\n");
}
