//! The tools on a passive store, which only its owner opens for writing.

mod harness;
use basalt::env::EnvBuilder;
use basalt::fs::{HostFs, HostOptions};
use basalt::{Db, FamilyOptions, LogMode, Options, PassiveOptions, WriteBatch};
use harness::{Scratch, json};

const NONE: [&str; 0] = [];

/// Makes a passive store with a key in each of two families. Unless it is closed, only one of them
/// is flushed when its process dies.
fn make(s: &Scratch, is_closed: bool) {
    let fs = HostFs::new(HostOptions::new(s.path("."))).expect("a directory");
    let env = EnvBuilder::new(fs).build();
    let log = LogMode::Passive(PassiveOptions::default());
    let options = Options::default().log(log).write_buffer_bytes(16 << 10);
    let replay = Db::open_passive(&env, "db", options).expect("a new store");
    let db = replay.finish(0).expect("an empty log");
    let families = ["cold", "default"].map(|name| {
        let family = db.family(name);
        family.unwrap_or_else(|| {
            db.create_family(name, FamilyOptions::default())
                .expect("new")
        })
    });
    let mut tsn = 0;
    let mut write = |family: usize, key: &[u8], value: &[u8]| {
        tsn += 1;
        let mut batch = WriteBatch::new();
        batch
            .put(&families[family], key, value)
            .expect("a short key");
        db.write_at(tsn, batch).expect("the next");
    };
    write(0, b"k", b"v");
    write(1, b"a", b"1");
    if is_closed {
        return db.close().expect("closes");
    }
    while db.stats().flushes == 0 {
        write(1, b"b", &[7; 1000]);
    }
    db.abandon();
}

#[test]
fn a_closed_passive_store_is_read_and_not_written() {
    let s = Scratch::new("passive");
    make(&s, true);
    assert_eq!(s.run("get", ["--family", "default", "a"]).ok(), b"1");
    assert_eq!(s.run("get", ["--family", "cold", "k"]).ok(), b"v");
    assert_eq!(s.run("check", NONE).code, Some(0));
    let stats = json(s.run_plain(["stats", "--dir", "db", "--json"]));
    assert_eq!(stats["passive"]["persisted_transaction"], 2, "{stats:#}");
    let text = String::from_utf8(s.run("stats", NONE).ok()).expect("text");
    assert!(
        text.contains("all families have transactions up to"),
        "{text}"
    );
    let refused = s.run("put", ["a", "2"]);
    assert_eq!(refused.code, Some(2));
    let said = refused.err;
    assert!(said.contains("passive") && said.contains("owner"), "{said}");
    assert_eq!(s.run("get", ["--family", "default", "a"]).ok(), b"1");
}

#[test]
fn a_passive_store_that_was_not_closed_is_not_read() {
    let s = Scratch::new("passive-crashed");
    make(&s, false);
    let words = [
        "passive",
        "was not closed",
        "\"cold\"",
        "replay its log from transaction 1 on",
    ];
    s.run("get", ["a"]).fails(2, &words);
    // Its files are sound all the same.
    assert_eq!(s.run("check", NONE).code, Some(0));
}
