//! `blob` with the real binary: the lists add up, verification covers every byte, and a file can be
//! explained alone.
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the host's files by hand"
)]

mod harness;
use basalt::FamilyOptions;
use basalt::fs::{HostFs, HostOptions};
use basalt::{Db, Env, Family, Options, WriteOptions};
use harness::{Ran, Scratch, ended, tree};
use serde_json::Value;
use std::process::{Command, Stdio};

fn blob(s: &Scratch, args: &[&str]) -> Ran {
    let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
    c.current_dir(&s.dir).arg("blob").args(args);
    c.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    ended(c.spawn().expect("the tool starts"))
}

fn json(ran: Ran) -> Value {
    serde_json::from_slice(&ran.ok()).expect("one JSON object")
}

fn number(of: &Value, name: &str) -> u64 {
    of[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} of {of}"))
}

fn separating() -> FamilyOptions {
    FamilyOptions::default().min_blob_size(Some(500))
}

/// Makes a store with large values in two families, a third of them overwritten, and with values of
/// a third family, which was dropped.
fn filled(s: &Scratch) {
    let path = s.path("db");
    let fs = HostFs::new(HostOptions::new(&path)).unwrap();
    let env = Env::builder(fs).build();
    let options = Options::default()
        .default_family(separating())
        // No garbage collection runs, so that there is garbage to show.
        .max_space_amp(10.0);
    let db = Db::open(&env, &path, options).unwrap();
    let more = db.create_family("more", separating()).unwrap();
    let gone = db.create_family("gone", separating()).unwrap();
    let free = WriteOptions::UNSYNCED;
    let default = db.default_family();
    // So much lies between large values that their log is not worth keeping, and the flush writes
    // blob files.
    let put = |f: &Family, key: u32, value: &[u8]| {
        db.put(f, &key.to_be_bytes(), value, &free).unwrap();
        for small in 0..12u8 {
            db.put(&default, &[small], &[0; 450], &free).unwrap();
        }
    };
    for n in 0..300u32 {
        for f in [&default, &more, &gone] {
            put(f, n, &vec![n as u8; 1000 + n as usize]);
        }
    }
    db.flush().unwrap();
    for n in (0..300u32).step_by(3) {
        put(&more, n, &[7; 2000]);
    }
    db.flush().unwrap();
    db.compact_range(&more, None, None).unwrap();
    db.drop_family(&gone).unwrap();
    db.wait_idle().unwrap();
    db.close().unwrap();
}

fn blob_files(s: &Scratch) -> Vec<(String, Vec<u8>)> {
    let files = tree(&s.path("db")).into_iter();
    files
        .filter(|(name, _)| name.extension().is_some_and(|e| e == "blob"))
        .map(|(name, bytes)| (format!("db/{}", name.display()), bytes))
        .collect()
}

#[test]
fn blob_list_totals_equal_the_disk_and_the_statistics() {
    let s = Scratch::new("blob-list");
    filled(&s);
    let report = json(blob(&s, &["list", "--dir", "db", "--json"]));
    let files = report["files"].as_array().unwrap();
    let on_disk = blob_files(&s);
    assert_eq!(files.len(), on_disk.len());
    let sum = |name: &str| files.iter().map(|f| number(f, name)).sum::<u64>();
    assert_eq!(
        sum("bytes"),
        on_disk.iter().map(|f| f.1.len() as u64).sum::<u64>()
    );
    for name in ["bytes", "live_bytes", "garbage_bytes", "live_records"] {
        assert_eq!(number(&report, name), sum(name), "{name}");
    }
    assert_eq!(sum("live_records"), 600);
    let families: Vec<&Value> = (files.iter())
        .flat_map(|f| f["families"].as_array().unwrap())
        .collect();
    let of = |name: Option<&str>, what: &str| {
        let own = families.iter().filter(|f| f["name"].as_str() == name);
        own.map(|f| number(f, what)).sum::<u64>()
    };
    assert_eq!(of(Some("default"), "live_records"), 300);
    assert_eq!(of(Some("default"), "garbage_bytes"), 0);
    assert_eq!(of(Some("more"), "records"), 400);
    assert_eq!(of(Some("more"), "live_records"), 300);
    assert_eq!((of(None, "records"), of(None, "live_bytes")), (300, 0));
    assert!(number(&report, "garbage_bytes") > 300 * 1000);
    for f in files {
        assert!(number(f, "made_ms") > 1_700_000_000_000, "{f}");
        let parts = f["families"].as_array().unwrap();
        let garbage: u64 = parts.iter().map(|p| number(p, "garbage_bytes")).sum();
        // The index belongs to no family.
        assert!(
            (garbage..garbage + 8192).contains(&number(f, "garbage_bytes")),
            "{f}"
        );
    }
    let (bytes, live) = (number(&report, "bytes"), number(&report, "live_bytes"));
    let stats = json(s.run("stats", ["--json"]));
    for name in [
        "bytes",
        "live_bytes",
        "garbage_bytes",
        "live_records",
        "names",
    ] {
        assert_eq!(stats["blobs"][name], report[name], "{name}");
    }
    let slack = number(&stats["blobs"], "space_slack");
    let reachable = live - number(&report, "hidden_bytes");
    assert_eq!(number(&report, "reachable_bytes"), reachable);
    let most = ((reachable as f64 * 1.25) as u64).max(reachable + slack);
    let headroom = most as i64 - bytes as i64;
    assert_eq!(report["headroom_bytes"].as_i64(), Some(headroom));
    assert_eq!(stats["blobs"]["headroom_bytes"].as_i64(), Some(headroom));
    let text = blob(&s, &["list", "--dir", "db"]).ok();
    let text = String::from_utf8(text).unwrap();
    for part in [
        "family more, ",
        "(dropped), 0 of ",
        "bytes a reachable byte, at most 1.25",
        "garbage in blob files",
        " s  ",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let metrics = String::from_utf8(s.run("stats", ["--prometheus"]).ok()).unwrap();
    for (name, of) in [
        ("files", files.len() as u64),
        ("live_bytes", sum("live_bytes")),
        ("headroom_bytes", headroom.max(0) as u64),
    ] {
        let line = metrics
            .lines()
            .find(|l| l.starts_with(&format!("basalt_blob_{name}{{")));
        let line = line.unwrap_or_else(|| panic!("{name} is not in\n{metrics}"));
        assert!(line.ends_with(&format!(" {of}")), "{line}");
    }
    let tenths = metrics
        .lines()
        .filter(|l| l.starts_with("basalt_blob_bytes_by_garbage{"));
    let tenths = tenths.map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    assert_eq!(tenths.sum::<u64>(), sum("bytes"));
    let shares = stats["blobs"]["by_garbage"].as_array().unwrap();
    for name in ["bytes", "garbage_bytes"] {
        assert_eq!(
            shares.iter().map(|s| number(s, name)).sum::<u64>(),
            sum(name)
        );
    }
}

#[test]
fn blob_explain_reads_a_lone_file_and_verify_finds_any_damage() {
    let s = Scratch::new("blob-verify");
    filled(&s);
    let sound = json(blob(&s, &["verify", "--dir", "db", "--json"]));
    assert_eq!(
        (&sound["sound"], number(&sound, "records")),
        (&true.into(), 1000)
    );
    let (name, bytes) = blob_files(&s).swap_remove(0);
    let alone = s.file("elsewhere/a.blob", &bytes);
    let alone = alone.to_str().unwrap();
    let report = json(blob(&s, &["explain", alone, "--json"]));
    assert_eq!(number(&report, "bytes"), bytes.len() as u64);
    let size = report["hash_bytes_a_record"].as_f64().unwrap();
    assert!((1.0..2.5).contains(&size), "{report}");
    let text = String::from_utf8(blob(&s, &["explain", alone]).ok()).unwrap();
    for part in ["file id", "hash pages", "position pages", "bytes a value"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let text = String::from_utf8(blob(&s, &["verify", alone]).ok()).unwrap();
    assert!(text.starts_with("sound: 1 blob file, "), "{text}");
    let (pages, directory) = (number(&report, "pages_at"), number(&report, "directory_at"));
    let places = pages + number(&report, "hash_bytes");
    for (at, what) in [
        (20, "header"),
        (64, "first record"),
        (pages / 2, "a record"),
        (pages + 20, "hash page"),
        (places + 20, "position page"),
        (directory + 9, "directory"),
        (bytes.len() as u64 - 30, "footer"),
    ] {
        let mut wrong = bytes.clone();
        wrong[at as usize] ^= 4;
        s.file("elsewhere/a.blob", &wrong);
        let ran = blob(&s, &["verify", alone]);
        assert_eq!(ran.code, Some(1), "{what}: {ran:?}");
        assert!(ran.text().contains("damage: "), "{what}: {ran:?}");
        s.file(&name, &wrong);
        let ran = blob(&s, &["verify", "--dir", "db", "--json"]);
        assert_eq!(ran.code, Some(1), "{what}: {ran:?}");
        let report: Value = serde_json::from_slice(&ran.out).unwrap();
        assert_eq!(
            report["damage"].as_array().unwrap().len(),
            1,
            "{what}: {report}"
        );
    }
    std::fs::remove_file(s.path(&name)).unwrap();
    let ran = blob(&s, &["verify", "--dir", "db"]);
    assert!(matches!(ran.code, Some(1 | 2)), "a file is lost: {ran:?}");
}

#[test]
fn a_path_without_a_blob_file_or_store_is_refused_with_a_reason() {
    let s = Scratch::new("blob-errors");
    blob(&s, &["list", "--dir", "db"]).fails(2, &["there is no store in db", "--dir"]);
    blob(&s, &["verify", "--dir", "db"]).fails(2, &["there is no store in db", "--dir"]);
    blob(&s, &["explain", "nothing.blob"]).fails(2, &["there is no file nothing.blob"]);
    blob(&s, &["verify", "nothing.blob"]).fails(2, &["there is no file nothing.blob"]);
    for content in [&b""[..], b"hello", &[0; 5000]] {
        s.file("other", content);
        blob(&s, &["explain", "other"]).fails(2, &["other", "is not a blob file"]);
    }
    s.run("put", ["k", "v"]).ok();
    let text = String::from_utf8(blob(&s, &["list", "--dir", "db"]).ok()).unwrap();
    assert_eq!(text, "db has no blob files\n");
    let text = String::from_utf8(blob(&s, &["verify", "--dir", "db"]).ok()).unwrap();
    assert!(text.starts_with("sound: 0 blob files"), "{text}");
}

/// Writes files of up to two megabytes, and small ones.
fn directory(s: &Scratch) -> (usize, usize) {
    let mut large = 0;
    let sizes = [0, 1, 4094, 4095, 4096, 100 << 10, 1 << 20, (2 << 20) + 3];
    for (n, size) in sizes.iter().cycle().take(40).enumerate() {
        let mut content = vec![n as u8; *size];
        (content.iter_mut().step_by(97).enumerate()).for_each(|(i, b)| *b = (i * n) as u8);
        s.file(format!("in/{}/file {n}", n % 3), &content);
        // The encoding of Redis strings puts one byte before a value.
        large += usize::from(*size >= 4095);
    }
    (40, large)
}

#[test]
fn a_directory_of_large_files_is_loaded_and_exported() {
    let s = Scratch::new("blob-load");
    let (files, large) = directory(&s);
    let before = tree(&s.path("in"));
    s.run("load", ["--files", "in", "--write-buffer", "4M"])
        .ok();
    let report = json(blob(&s, &["list", "--dir", "db", "--json"]));
    assert_eq!(number(&report, "live_records"), large as u64);
    s.run("export", ["--files", "out"]).ok();
    assert_eq!(tree(&s.path("out")), before);
    assert_eq!(s.run("scan", ["--keys-only"]).text().lines().count(), files);
    assert_eq!(s.run("check", [""; 0]).code, Some(0));
    // A second load replaces everything, and a merge drops the old values.
    s.run("load", ["--files", "in", "--write-buffer", "4M"])
        .ok();
    let merged = json(s.run("compact", ["--json"]));
    let report = json(blob(&s, &["list", "--dir", "db", "--json"]));
    assert_eq!(number(&report, "live_records"), large as u64);
    // Blob files report the same: those with only replaced values are removed.
    let reported = ["blob_bytes_after", "blob_garbage_bytes"].map(|name| number(&merged, name));
    let listed = ["bytes", "garbage_bytes"].map(|name| number(&report, name));
    assert_eq!(reported, listed);
    assert!(number(&merged, "blob_bytes_before") >= 2 * number(&report, "live_bytes"));
    let said = s.run("compact", [""; 0]);
    assert!(
        said.text().contains("\nblob files had ") && said.text().contains(" of values\n"),
        "{said:?}"
    );
    s.run("export", ["--files", "out2"]).ok();
    assert_eq!(tree(&s.path("out2")), before);
}

/// A load between two keys of an older table reports no hidden garbage.
#[test]
fn a_load_between_two_keys_reports_no_hidden_garbage() {
    let s = Scratch::new("blob-between");
    let (_, large) = directory(&s);
    s.run("put", ["a", "1"]).ok();
    s.run("put", ["z", "1"]).ok();
    s.run("compact", [""; 0]).ok();
    s.run("load", ["--files", "in", "--prefix", "m/"]).ok();
    let report = json(blob(&s, &["list", "--dir", "db", "--json"]));
    assert_eq!(number(&report, "live_records"), large as u64);
    assert_eq!(number(&report, "hidden_bytes"), 0, "{report}");
    assert_eq!(report["hidden_is_guessed"], false);
    let amp = report["space_amp"].as_f64().expect("a ratio");
    assert!(amp < 1.1, "{report}");
    // After one more load of the same keys, all of it may be overwritten, and is.
    s.run("load", ["--files", "in", "--prefix", "m/"]).ok();
    let report = json(blob(&s, &["list", "--dir", "db", "--json"]));
    let hidden = number(&report, "hidden_bytes");
    let half = number(&report, "live_bytes") / 2;
    assert!(
        hidden > half - half / 8 && hidden < half + half / 8,
        "{report}"
    );
    assert_eq!(report["hidden_is_guessed"], true);
    let said = s.run("stats", [""; 0]);
    assert!(
        said.text().contains(", estimated from overlapping keys"),
        "{said:?}"
    );
}

#[test]
fn an_export_without_matching_keys_says_so() {
    let s = Scratch::new("blob-no-key");
    s.run("put", ["a", "1"]).ok();
    let ran = s.run("export", ["--prefix", "b"]);
    assert_eq!((ran.code, ran.out.len()), (Some(0), 0), "{ran:?}");
    assert!(ran.err.contains("no key begins with b\n"), "{ran:?}");
}

#[test]
fn compressed_values_take_less_space_and_read_back() {
    let s = Scratch::new("blob-packed");
    let (_, large) = directory(&s);
    let before = tree(&s.path("in"));
    let own: u64 = before.iter().map(|(_, v)| v.len() as u64).sum();
    for codec in ["lz4", "zstd"] {
        s.run("load", ["--files", "in", "--compression", codec])
            .ok();
        s.run("compact", ["--compression", codec]).ok();
        let report = json(blob(&s, &["list", "--dir", "db", "--json"]));
        assert_eq!(number(&report, "live_records"), large as u64);
        assert!(number(&report, "live_bytes") < own / 4, "{report}");
        let verified = json(blob(&s, &["verify", "--dir", "db", "--json"]));
        assert_eq!(verified["sound"], true);
        assert!(number(&verified, "compressed_records") > 0, "{verified}");
        let (stored, values) = ("stored_value_bytes", "value_bytes");
        assert!(number(&verified, stored) < number(&verified, values) / 4);
        let ran = blob(&s, &["verify", "--dir", "db"]);
        assert!(ran.text().contains("of them compressed"), "{ran:?}");
        let file = report["files"][0]["file"].as_str().expect("a file");
        let explained = json(blob(&s, &["explain", "--json", &format!("db/{file}")]));
        assert_eq!(explained["may_have_compressed_values"], true);
        assert_eq!(s.run("check", [""; 0]).code, Some(0));
    }
    s.run("export", ["--files", "out"]).ok();
    assert_eq!(tree(&s.path("out")), before);
    let ran = s.run("load", ["--compression", "best", "nothing"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn min_blob_size_may_differ_by_command() {
    let s = Scratch::new("blob-off");
    let (_, large) = directory(&s);
    let before = tree(&s.path("in"));
    let live = || {
        let report = json(blob(&s, &["list", "--dir", "db", "--json"]));
        number(&report, "live_records")
    };
    s.run("load", ["--files", "in", "--min-blob-size", "0"])
        .ok();
    assert_eq!(live(), 0);
    // A command with separation writes its own value into a blob file, and a merge moves the
    // others.
    let value = vec![b'x'; 5000];
    s.run_with("put", ["new", "-"], &value).ok();
    assert_eq!(live(), 1);
    s.run("compact", [""; 0]).ok();
    assert_eq!(live(), large as u64 + 1);
    // Separated values remain separated if separation is off.
    s.run("compact", ["--min-blob-size", "0"]).ok();
    assert_eq!(live(), large as u64 + 1);
    assert_eq!(s.run("get", ["new"]).ok(), value);
    s.run("del", ["new"]).ok();
    s.run("export", ["--files", "out"]).ok();
    assert_eq!(tree(&s.path("out")), before);
    assert_eq!(s.run("check", [""; 0]).code, Some(0));
    let raw = ["--family", "raw", "k", "-"];
    s.run_with("put", raw, &value).ok();
    assert_eq!(s.run("get", ["--family", "raw", "k"]).ok(), value);
    let report = json(blob(&s, &["list", "--dir", "db", "--json"]));
    assert!(
        report["files"].to_string().contains("\"name\":\"raw\""),
        "{report}"
    );
    for (flag, value, part) in [
        ("--min-blob-size", "5", "256"),
        ("--max-space-amp", "1", "1.05"),
    ] {
        let ran = s.run("load", [flag, value, "nothing"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(flag) && ran.err.contains(part), "{ran:?}");
    }
}

/// A long load that is stopped near its end keeps most of its work.
#[test]
fn a_large_directory_is_loaded_in_several_ingestions() {
    let s = Scratch::new("blob-steps");
    for n in 0..20 {
        let name = format!("in/{n:02}");
        let file = std::fs::File::create(s.file(&name, b"")).unwrap();
        // The file has only zeros, which take no space here and little in the store.
        file.set_len(15 << 20).unwrap();
    }
    let ran = s.run("load", ["--files", "in", "--compression", "zstd"]);
    assert!(ran.err.contains("all 20 are durable"), "{ran:?}");
    let report = json(blob(&s, &["list", "--dir", "db", "--json"]));
    let files = report["files"].as_array().unwrap();
    let records: Vec<u64> = files.iter().map(|f| number(f, "records")).collect();
    let writers: std::collections::BTreeSet<u64> = (files.iter())
        .map(|f| number(f, "max_sequence_number"))
        .collect();
    assert_eq!(
        (records.iter().sum::<u64>(), writers.len()),
        (20, 2),
        "{report}"
    );
    let sound = json(blob(&s, &["verify", "--dir", "db", "--json"]));
    assert_eq!(number(&sound, "records"), 20);
}

/// Values remain in their log if nothing lies between them.
#[test]
fn a_log_kept_as_a_blob_file_is_listed_verified_and_explained() {
    let s = Scratch::new("blob-log");
    // Lines come in any order, and go through the log.
    let line = |n: usize| format!("{n}\t{}\n", "x".repeat(100 << 10));
    let text: String = (0..3).map(line).collect();
    s.run_with("load", ["--format", "tsv"], text.as_bytes())
        .ok();
    let report = json(blob(&s, &["list", "--dir", "db", "--json"]));
    let file = &report["files"][0];
    assert_eq!(
        (
            number(file, "live_records"),
            number(&report, "garbage_bytes") < 8192
        ),
        (3, true)
    );
    let log = format!("db/{}", file["file"].as_str().unwrap());
    assert!(log.ends_with(".log"), "{report}");
    let sound = json(blob(&s, &["verify", "--dir", "db", "--json"]));
    assert_eq!(
        (&sound["sound"], number(&sound, "records")),
        (&true.into(), 3)
    );
    let explained = json(blob(&s, &["explain", &log, "--json"]));
    assert_eq!(number(&explained, "records"), 3);
    // This flips one bit of a value.
    let path = s.path(&log);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[150_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let ran = blob(&s, &["verify", "--dir", "db"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains("damage: "), "{ran:?}");
}
