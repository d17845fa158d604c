//! The real `basalt-bench log` on tiny stores: every workload runs, and its report has the rows of
//! the table. No test here depends on speed.
#![expect(
    clippy::disallowed_methods,
    reason = "tests make and look at directories of the host by hand"
)]

mod scratch;

use scratch::Scratch;
use serde_json::Value;

const ALL: [&str; 7] = [
    "one-writer",
    "many-writers",
    "many-logs",
    "stuck-log",
    "read",
    "recover",
    "gaps",
];
const SMALL: [&str; 14] = [
    "--pairs",
    "1",
    "--scale",
    "0.002",
    "--ops",
    "400",
    "--warm",
    "0",
    "--no-device",
    "--behind",
    "10",
    "--purge-bytes",
    "8M",
    "--fill=16M",
];

fn run(s: &Scratch, workloads: &[&str], more: &[&str]) -> Value {
    s.json(&[&["log"], workloads, &SMALL, more].concat())
}

/// Returns the first row of a workload and an engine.
fn row<'a>(report: &'a Value, workload: &str, engine: &str) -> &'a Value {
    let rows = report["results"].as_array().unwrap();
    let is =
        |r: &&Value| r["workload"] == workload && r["engine"].as_str().unwrap().starts_with(engine);
    rows.iter()
        .find(is)
        .unwrap_or_else(|| panic!("no row {workload} {engine}"))
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("{v} is no number"))
}

#[test]
fn every_workload_runs_and_has_its_metrics() {
    let s = Scratch::new("logs");
    let report = run(&s, &ALL, &["--sync", "on,off"]);
    let rows = report["results"].as_array().unwrap();
    // Four workloads with two kinds of appends, and read, iterate, recover, gaps.
    assert_eq!(rows.len(), 12);
    for (workload, threads, ops) in [
        ("one-writer", 1, 400),
        ("one-writer-unsynced", 1, 400),
        ("many-writers", 64, 400),
        ("many-writers-unsynced", 4, 400),
        ("many-logs", 2, 400),
        ("many-logs-synced", 2, 400),
        ("stuck-log", 2, 400),
        ("read", 1, 400),
        ("recover", 1, 1),
        ("gaps", 1, 400),
    ] {
        let row = row(&report, workload, "basalt 0");
        assert_eq!(
            (&row["threads"], &row["ops"]),
            (&threads.into(), &ops.into()),
            "{row}"
        );
        assert!(number(&row["mean_us"]) > 0.0, "{row}");
    }
    let written = row(&report, "one-writer", "basalt");
    assert_eq!(written["put_bytes"], 400 * 1024);
    assert!(number(&written["engine_write_bytes"]) > 400.0 * 1024.0);
    let unsynced = row(&report, "many-writers-unsynced", "basalt");
    assert_eq!(unsynced["put_bytes"], 400 * 256);
    for workload in ["many-logs", "stuck-log"] {
        let row = row(&report, workload, "basalt");
        assert!(number(&row["memory_per_live_byte"]) > 0.0, "{row}");
        assert!(number(&row["live_bytes"]) > 0.0, "{row}");
    }
    let iterated = row(&report, "iterate", "basalt");
    assert_eq!(iterated["entries"], 2000);
    assert_eq!(iterated["user_bytes"], 2000 * 1024);
    let read = row(&report, "read", "basalt");
    assert!(number(&read["device_reads_per_op"]) > 0.0, "{read}");
    assert_eq!(row(&report, "recover", "basalt")["records"], 2000);
    let names: Vec<&str> = (report["targets"].as_array().unwrap().iter())
        .map(|t| t["name"].as_str().unwrap())
        .collect();
    for target in [
        "many-logs x2: write_amp",
        "many-logs x2: memory_per_live_byte",
        "read x1: device_reads_per_op",
        "recover x1: mean_us",
        "gaps x1: mean_us",
    ] {
        assert!(names.contains(&target), "{target} is not among {names:?}");
    }
    assert_eq!(
        std::fs::read_dir(&s.0).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

#[test]
fn the_directory_and_an_image_are_two_engines_with_ratios() {
    let s = Scratch::new("logs-image");
    let more = ["--engines", "basalt-lava,basalt", "--image-size", "256M"];
    let workloads = ["one-writer", "read", "recover"];
    let report = run(&s, &workloads, &more);
    for workload in ["one-writer", "read", "iterate", "recover"] {
        row(&report, workload, "basalt-lava 0");
        row(&report, workload, "basalt 0");
        let is = |r: &&Value| r["workload"] == workload && r["figure"] == "mean_us";
        let ratios = report["ratios"].as_array().unwrap();
        let ratio = ratios.iter().find(is).unwrap();
        assert!(
            ratio["against"].as_str().unwrap().starts_with("basalt 0"),
            "{ratio}"
        );
    }
}

#[test]
fn the_report_has_tables_the_device_and_a_page() {
    let s = Scratch::new("logs-report");
    let small = &SMALL[..SMALL.len()];
    let without: Vec<&str> = (small.iter().copied())
        .filter(|a| *a != "--no-device")
        .collect();
    let args = [&["log", "one-writer", "read"], &without[..]].concat();
    let (code, out, err) = s.run(&args);
    assert_eq!(code, 0, "{err}");
    for part in [
        "one-writer x1, medians of 1 runs",
        "iterate x1",
        "of device",
        "device_ratio",
        "at least 0.9",
        "configurations",
    ] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
    let report = run(&s, &["one-writer", "many-logs"], &[]);
    std::fs::write(s.0.join("saved.json"), report.to_string()).unwrap();
    let (code, _, err) = s.run(&["report", "saved.json", "-o", "page.html"]);
    assert_eq!(code, 0, "{err}");
    let page = std::fs::read_to_string(s.0.join("page.html")).unwrap();
    for part in ["one-writer, 1 thread", "many-logs, 2 threads", "<svg"] {
        assert!(page.contains(part), "{part} is not in the page");
    }
}

#[test]
fn what_is_not_possible_is_refused_with_its_reason() {
    let s = Scratch::new("logs-wrong");
    let cases: [(&[&str], &str); 8] = [
        (&["log"], "WORKLOAD"),
        (&["log", "iterate"], "iterate"),
        (&["log", "read", "--scale", "0"], "--scale 0"),
        (&["log", "read", "--logs", "0"], "above 0"),
        (&["log", "read", "--record-size", "7"], "8 to 1M"),
        (&["log", "read", "--engines", "basalt,basalt"], "twice"),
        (&["log", "read", "--threads", "0"], "--threads"),
        (&["log", "read", "--rocksdb-option", "fast"], "NAME=VALUE"),
    ];
    for (args, says) in cases {
        let (code, _, err) = s.run(args);
        assert_eq!(code, 2, "{args:?}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
    for (peer, built) in [
        ("rocksdb", cfg!(feature = "peer-rocksdb")),
        ("raft-engine", cfg!(feature = "peer-raft-engine")),
        ("raft-log", cfg!(feature = "peer-raft-log")),
    ] {
        if built && peer == "rocksdb" {
            continue;
        }
        let (code, _, err) = s.run(&["log", "gaps", "--engines", peer]);
        let says = match built {
            false => format!("--features peer-{peer}`"),
            true => "no log with gaps".into(),
        };
        assert!(code == 2 && err.contains(&says), "{err}");
    }
    let (code, out, _) = s.run(&["log", "--help"]);
    assert_eq!(code, 0);
    for part in ["one-writer", "stuck-log", "Examples:", "--purge-bytes"] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
}

/// Only in builds with the peers.
#[cfg(feature = "peer-rocksdb")]
#[test]
fn rocksdb_runs_every_workload_as_a_log() {
    let s = Scratch::new("logs-rocksdb");
    let report = run(
        &s,
        &ALL,
        &["--engines", "basalt,rocksdb", "--sync", "on,off"],
    );
    assert_eq!(report["results"].as_array().unwrap().len(), 24);
    let options = report["engines"][1]["configuration"]["options_file"]
        .as_str()
        .unwrap();
    for option in [
        "write_buffer_size=134217728",
        "compaction_pri=kByCompensatedSize",
        "recycle_log_file_num=4",
        "memtable_insert_with_hint_prefix_extractor=rocksdb.FixedPrefix",
    ] {
        assert!(options.contains(option), "{option} is not in {options}");
    }
}

/// Only in builds with the peers.
#[cfg(feature = "peer-raft-engine")]
#[test]
fn raft_engine_runs_every_workload_without_gaps() {
    let s = Scratch::new("logs-raft-engine");
    let more = ["--engines", "basalt,raft-engine", "--sync", "on,off"];
    let report = run(&s, &ALL[..6], &more);
    assert_eq!(report["results"].as_array().unwrap().len(), 22);
    assert!(number(&row(&report, "recover", "raft-engine 0.")["mean_us"]) > 0.0);
}

/// Only in builds with the peers.
#[cfg(feature = "peer-raft-log")]
#[test]
fn raft_log_runs_the_workloads_of_one_log() {
    let s = Scratch::new("logs-raft-log");
    let more = [
        "--engines",
        "basalt,raft-log",
        "--sync",
        "on,off",
        "--logs",
        "1",
    ];
    let report = run(&s, &["one-writer", "read", "recover"], &more);
    assert_eq!(report["results"].as_array().unwrap().len(), 10);
    row(&report, "one-writer-unsynced", "raft-log 0.");
}
