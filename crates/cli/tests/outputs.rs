//! Commands whose standard output or standard error cannot be written: a full device, or a pipe
//! without a reader.
#![expect(
    clippy::disallowed_methods,
    reason = "tests damage the host's files by hand"
)]

mod harness;
use harness::{Ran, Scratch, ended, tree};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

fn command(s: &Scratch, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
    c.current_dir(&s.dir).args(args).stdin(Stdio::null());
    c.stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

fn run(s: &Scratch, args: &[&str]) -> Ran {
    ended(command(s, args).spawn().expect("the tool starts"))
}

/// Returns a device that takes no byte.
fn full() -> Stdio {
    let device = std::fs::OpenOptions::new().write(true).open("/dev/full");
    device.unwrap().into()
}

/// Returns the end of a pipe that no process reads.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Damages a record of a log.
fn damage(s: &Scratch, dir: &str, wanted: &[u8]) {
    let mut damaged = 0;
    for (name, mut bytes) in tree(&s.path(dir)) {
        let at = bytes.windows(wanted.len()).position(|w| w == wanted);
        if let (Some(at), Some("data")) = (at, name.extension().and_then(|e| e.to_str())) {
            bytes[at] ^= 1;
            std::fs::write(s.path(dir).join(name), bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "{dir} has the record");
}

/// `eprintln!` panics if standard error cannot be written. The append of a record to a new log
/// ended with 101 and the words of a panic, and a server ended as soon as it reported something.
#[test]
fn a_standard_error_that_takes_nothing_changes_no_outcome() {
    let s = Scratch::new("stderr");
    for (dir, stderr) in [("a", full()), ("b", unread())] {
        let mut append = command(&s, &["log", "append", dir, "orders", "one"]);
        assert_eq!(ended(append.stderr(stderr).spawn().unwrap()).ok(), b"1\n");
        assert_eq!(run(&s, &["log", "dump", dir, "orders"]).ok(), b"1\tone\n");
    }
    let mut refused = command(&s, &["get", "--dir", "none", "k"]);
    let refused = ended(refused.stderr(full()).spawn().unwrap());
    assert_eq!(refused.code, Some(2), "{refused:?}");
}

#[test]
fn a_server_without_a_reader_of_its_messages_serves_and_ends_well() {
    let s = Scratch::new("stderr-server");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let listen = port.unwrap().to_string();
    let mut server = command(&s, &["serve", "--dir", "db", "--listen", &listen]);
    let mut child = server.stderr(unread()).spawn().unwrap();
    let ping = || -> std::io::Result<[u8; 7]> {
        let (mut client, mut reply) = (TcpStream::connect(&listen)?, [0; 7]);
        client.write_all(b"PING\r\n")?;
        client.read_exact(&mut reply)?;
        Ok(reply)
    };
    let reply = loop {
        if let Ok(reply) = ping() {
            break reply;
        }
        assert!(child.try_wait().unwrap().is_none(), "the server ended");
        basalt::env::Clock::system().sleep(std::time::Duration::from_millis(10));
    };
    assert_eq!(&reply, b"+PONG\r\n");
    // It reports its end, too.
    harness::stop(child);
}

/// A pipe without a reader hid damage: these commands ended with 0.
#[test]
fn a_closed_pipe_hides_no_damage() {
    let s = Scratch::new("stdout-closed");
    for dir in ["l", "db"] {
        if dir == "db" {
            s.run("put", ["k", "v"]).ok();
        }
        for record in ["record one", "record two", "record three"] {
            run(&s, &["log", "append", dir, "a", record]).ok();
        }
        damage(&s, dir, b"record two");
    }
    for args in [
        &["log", "check", "l"][..],
        &["log", "check", "l", "--json"],
        &["check", "--dir", "db"],
        &["check", "--dir", "db", "--json"],
        &["log", "repair", "l", "--yes"],
        &["repair", "--dir", "db", "--yes"],
    ] {
        let ran = ended(command(&s, args).stdout(unread()).spawn().unwrap());
        assert_eq!(ran.code, Some(1), "{args:?}: {ran:?}");
        assert_eq!(ran.err, "", "{args:?}");
    }
    for args in [&["log", "check", "l"][..], &["check", "--dir", "db"]] {
        ended(command(&s, args).stdout(unread()).spawn().unwrap()).ok();
        let ran = ended(command(&s, args).stdout(full()).spawn().unwrap());
        ran.fails(2, &["cannot write to standard output"]);
    }
    run(&s, &["log", "dump", "l", "a"]).ok();
}

/// The message did not say that the change was made, and a user may have made it again.
#[test]
fn a_change_whose_result_cannot_be_printed_is_reported() {
    let s = Scratch::new("stdout-full");
    let with = |args: &[&str], done: &str| {
        let ran = ended(command(&s, args).stdout(full()).spawn().unwrap());
        let last = ran.err.trim_end().ends_with(&format!("; {done}"));
        assert!(last, "{args:?}: {ran:?}");
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(
            ran.err.contains("cannot write to standard output: "),
            "{ran:?}"
        );
    };
    let appended = "the records were appended";
    for record in ["one", "two", "three"] {
        with(&["log", "append", "l", "a", record], appended);
    }
    let trim = ["log", "trim", "l", "a", "--up-to", "1", "--yes"];
    with(&trim, "the log was trimmed");
    let truncate = ["log", "truncate", "l", "a", "--from", "3", "--yes"];
    with(&truncate, "the log was truncated");
    with(&["log", "rename", "l", "a", "b"], "the log was renamed");
    assert_eq!(run(&s, &["log", "dump", "l", "b"]).ok(), b"2\ttwo\n");
    with(&["log", "rm", "l", "b", "--yes"], "the log was removed");
    with(&["log", "repair", "l", "--yes"], "the store was repaired");
    s.run("put", ["k", "v"]).ok();
    with(&["del", "--dir", "db", "k"], "the keys were removed");
    with(&["del", "--dir", "db", "k"], "nothing was removed");
    with(
        &["repair", "--dir", "db", "--yes"],
        "the store was repaired",
    );
}
